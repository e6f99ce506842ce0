//! Refusals and notes: what the runtime says when it does not start a container, and what it records when it does.

use serde::Serialize;

/// Stable code of a refusal. The status is the one an HTTP control plane would pass on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// The shape of a request is wrong.
    InvalidGpuRequest,
    /// An id, kind or profile that this node does not have, or more than it has in all.
    UnknownGpu,
    /// `strict` together with a GPU request.
    StrictGpuConflict,
    /// Above a ceiling that the operator set.
    Policy,
    /// A mount that reaches a GPU.
    TenantGpuMount,
    /// A device entry that reaches a GPU.
    TenantGpuDevice,
    /// A device rule that reaches a GPU.
    TenantGpuRule,
    /// Anything else that would undo the promise that only the contract grants.
    UnsafeSpec,
    /// Another injector already put GPUs in.
    ForeignGpuInjection,
    /// All matching GPUs are leased.
    CapacityFull,
    /// The GPU exists but cannot be used now.
    GpuUnavailable,
    /// Hardware is present, driver or nodes are not (yet).
    DriverNotReady,
    /// The node changed since the contract was made, and refreshing did not mend it.
    ContractStale,
    /// Owner, mode, link, schema, replay or binding of a contract.
    ContractUntrusted,
    /// The created container was not what the contract says.
    VerifyFailed,
    /// Our fault.
    Internal,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::InvalidGpuRequest,
        Self::UnknownGpu,
        Self::StrictGpuConflict,
        Self::Policy,
        Self::TenantGpuMount,
        Self::TenantGpuDevice,
        Self::TenantGpuRule,
        Self::UnsafeSpec,
        Self::ForeignGpuInjection,
        Self::CapacityFull,
        Self::GpuUnavailable,
        Self::DriverNotReady,
        Self::ContractStale,
        Self::ContractUntrusted,
        Self::VerifyFailed,
        Self::Internal,
    ];

    /// The status in HTTP's numbers.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::CapacityFull | Self::GpuUnavailable | Self::DriverNotReady | Self::ContractStale => 503,
            Self::ContractUntrusted | Self::VerifyFailed | Self::Internal => 500,
            _ => 400,
        }
    }

    /// The code as it is written everywhere: `TENANT_GPU_MOUNT`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidGpuRequest => "INVALID_GPU_REQUEST",
            Self::UnknownGpu => "UNKNOWN_GPU",
            Self::StrictGpuConflict => "STRICT_GPU_CONFLICT",
            Self::Policy => "POLICY",
            Self::TenantGpuMount => "TENANT_GPU_MOUNT",
            Self::TenantGpuDevice => "TENANT_GPU_DEVICE",
            Self::TenantGpuRule => "TENANT_GPU_RULE",
            Self::UnsafeSpec => "UNSAFE_SPEC",
            Self::ForeignGpuInjection => "FOREIGN_GPU_INJECTION",
            Self::CapacityFull => "CAPACITY_FULL",
            Self::GpuUnavailable => "GPU_UNAVAILABLE",
            Self::DriverNotReady => "DRIVER_NOT_READY",
            Self::ContractStale => "CONTRACT_STALE",
            Self::ContractUntrusted => "CONTRACT_UNTRUSTED",
            Self::VerifyFailed => "VERIFY_FAILED",
            Self::Internal => "INTERNAL",
        }
    }
}

/// Why a create ends without a container: code, place, value, way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The stable code.
    pub code: Code,
    /// The check that refused, as in `mount-gpu-node`.
    pub rule: &'static str,
    /// What is true, in one sentence a tenant may read: counts, never others' ids.
    pub message: String,
    /// JSON pointer into the spec or request; empty when there is none.
    pub at: String,
    /// The offending value; empty when there is none.
    pub value: String,
    /// What would be right.
    pub help: String,
    /// Whether only a new look at the node tells if it still holds. For us alone.
    pub may_be_over: bool,
}

impl Refusal {
    /// A refusal without place or value.
    #[must_use]
    pub fn new(code: Code, rule: &'static str, message: impl Into<String>, help: impl Into<String>) -> Self {
        let may_be_over = matches!(code, Code::ContractStale | Code::DriverNotReady | Code::GpuUnavailable);
        let (at, value) = (String::new(), String::new());
        Self { code, rule, message: message.into(), at, value, help: help.into(), may_be_over }
    }

    /// Our own failure: something that was attempted did not work.
    #[must_use]
    pub fn internal(rule: &'static str, error: &dyn std::fmt::Display) -> Self {
        Self::new(
            Code::Internal,
            rule,
            error.to_string(),
            "look at the node: `quilt-gpu inventory` and `quilt-gpu audit` say what it knows",
        )
    }

    /// The same refusal with the place and value it is about.
    #[must_use]
    pub fn at(mut self, at: impl Into<String>, value: impl Into<String>) -> Self {
        self.at = at.into();
        self.value = value.into();
        self
    }

    /// The refusal as the public JSON object.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "status": self.code.status(), "code": self.code.name(), "rule": self.rule, "message": self.message,
            "at": self.at, "value": self.value, "help": self.help,
        })
    }
}

impl std::fmt::Display for Refusal {
    /// One line for people and logs: `CODE: message (at POINTER: VALUE); help`, control characters escaped.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code.name(), printable(&self.message))?;
        match (self.at.is_empty(), self.value.is_empty()) {
            (false, false) => write!(f, " (at {}: {})", printable(&self.at), printable(&self.value))?,
            (false, true) => write!(f, " (at {})", printable(&self.at))?,
            (true, false) => write!(f, " ({})", printable(&self.value))?,
            (true, true) => {}
        }
        if self.help.is_empty() { Ok(()) } else { write!(f, "; {}", printable(&self.help)) }
    }
}

impl std::error::Error for Refusal {}

impl From<crate::json::JsonError> for Refusal {
    fn from(error: crate::json::JsonError) -> Self {
        Self::new(
            Code::UnsafeSpec,
            error.rule,
            format!("the spec cannot be read in one way only: {error}"),
            match error.rule {
                "json-duplicate-key" | "json-look-alike-key" => {
                    "write each key once, exactly as the OCI runtime spec spells it"
                }
                "json-size" | "json-depth" => "make the document smaller; no engine writes one as large",
                _ => "write one JSON document in UTF-8, without comments and with nothing after its end",
            },
        )
        .at(error.at, "")
    }
}

/// Something neutralised or worth knowing: audited, never stops a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The check that noted it, as in `rules-canonical`.
    pub rule: &'static str,
    /// What is true.
    pub message: String,
    /// JSON pointer into the spec; empty when there is none.
    pub at: String,
}

impl Note {
    /// A note about one place of the spec.
    #[must_use]
    pub fn new(rule: &'static str, at: impl Into<String>, message: impl Into<String>) -> Self {
        Self { rule, at: at.into(), message: message.into() }
    }
}

/// Text of tenants may hold line breaks and terminal controls; people read one line.
fn printable(text: &str) -> String {
    if text.chars().any(char::is_control) { text.escape_debug().to_string() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_whatever_the_tenant_wrote() {
        let refusal = Refusal::new(Code::TenantGpuMount, "mount-gpu-node", "this mount reaches a GPU", "ask for one")
            .at("/mounts/3/source", "/dev/x\n\u{1b}[31m");
        let line = refusal.to_string();
        assert!(!line.contains('\n') && !line.contains('\u{1b}'), "{line}");
        assert!(line.starts_with("TENANT_GPU_MOUNT: ") && line.contains("/mounts/3/source"), "{line}");
    }

    #[test]
    fn names_and_serde_agree() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
        }
    }
}
