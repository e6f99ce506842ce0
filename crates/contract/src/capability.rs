//! Driver capabilities: which parts of the driver a container gets; and the names of Linux' own.

use serde::Serialize;

use crate::json::Node;
use crate::read::{FromJson, ReadError};
use crate::refusal::{Code, Refusal};
use crate::word;

/// One part of the driver, by the names that the field uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Capability {
    /// CUDA and OpenCL.
    Compute,
    /// NVML and nvidia-smi.
    Utility,
    /// OpenGL, EGL, Vulkan.
    Graphics,
    /// Video codec libraries.
    Video,
    /// X11 display.
    Display,
    /// The GPU's DRM render node.
    Dri,
    /// 32-bit copies of the libraries.
    Compat32,
}

const ALL: [Capability; 7] = [
    Capability::Compute,
    Capability::Utility,
    Capability::Graphics,
    Capability::Video,
    Capability::Display,
    Capability::Dri,
    Capability::Compat32,
];

impl Capability {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Utility => "utility",
            Self::Graphics => "graphics",
            Self::Video => "video",
            Self::Display => "display",
            Self::Dri => "dri",
            Self::Compat32 => "compat32",
        }
    }
}

word!(Capability {
    Compute = "compute",
    Utility = "utility",
    Graphics = "graphics",
    Video = "video",
    Display = "display",
    Dri = "dri",
    Compat32 = "compat32",
});

/// A set of capabilities, kept sorted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Capabilities(Vec<Capability>);

impl FromJson for Capabilities {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        Vec::from_json(node).map(Self)
    }
}

impl Default for Capabilities {
    /// `compute,utility`, as CUDA images expect.
    fn default() -> Self {
        Self(vec![Capability::Compute, Capability::Utility])
    }
}

impl Capabilities {
    /// Reads a comma list.
    ///
    /// # Errors
    /// `INVALID_GPU_REQUEST` naming the first word that is not a capability, or for an empty list.
    pub fn parse(list: &str) -> Result<Self, Refusal> {
        let mut set = Vec::new();
        for word in list.split(',').map(str::trim) {
            let capability = ALL.into_iter().find(|c| c.name() == word).ok_or_else(|| {
                let known: Vec<&str> = ALL.iter().map(|c| c.name()).collect();
                Refusal::new(
                    Code::InvalidGpuRequest,
                    "request-capabilities",
                    format!("{word:?} is not a driver capability"),
                    format!("capabilities are {}", known.join(", ")),
                )
            })?;
            if !set.contains(&capability) {
                set.push(capability);
            }
        }
        crate::order::sort(&mut set);
        Ok(Self(set))
    }

    /// Whether the set has this one.
    #[must_use]
    pub fn has(&self, capability: Capability) -> bool {
        self.0.contains(&capability)
    }

    /// What this set has and the other has not.
    #[must_use]
    pub fn beyond(&self, ceiling: &Self) -> Vec<&'static str> {
        self.0.iter().filter(|c| !ceiling.has(**c)).map(|c| c.name()).collect()
    }

    /// What both sets have.
    #[must_use]
    pub fn within(&self, other: &Self) -> Self {
        Self(self.0.iter().copied().filter(|c| other.has(*c)).collect())
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The comma list.
    #[must_use]
    pub fn list(&self) -> String {
        self.0.iter().map(|c| c.name()).collect::<Vec<_>>().join(",")
    }

    /// The capabilities, sorted.
    pub fn iter(&self) -> impl Iterator<Item = Capability> + '_ {
        self.0.iter().copied()
    }
}

/// Names of the kernel's capabilities, each at the place of its number (`linux/capability.h`).
const LINUX: &str = "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE \
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE \
    SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL \
    SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE";

/// What some runtime takes a text for.
enum Told<'t> {
    /// The number of a capability, if it is one.
    Number(Option<u32>),
    /// The name of one, without prefixes, in any case.
    Name(&'t str),
}

/// runc takes the one spelling of the specification. crun hands names to libcap, which takes any case, numbers in C's notations,
/// and whatever follows (`21`, `0x15`, `cap_sys_admin=ep`); youki adds and removes prefixes.
fn told(text: &str) -> Told<'_> {
    let mut bare = text;
    while let Some((_, rest)) = bare.split_at_checked(4).filter(|(prefix, _)| prefix.eq_ignore_ascii_case("CAP_")) {
        bare = rest;
    }
    if bare.starts_with(|c: char| c.is_ascii_digit()) {
        return Told::Number(numeral(bare));
    }
    let end = bare.find(|c: char| !c.is_ascii_alphabetic() && c != '_').unwrap_or(bare.len());
    Told::Name(&bare[..end])
}

/// The number that some runtime takes a name for.
#[must_use]
pub fn capability_number(text: &str) -> Option<u32> {
    match told(text) {
        Told::Number(number) => number,
        Told::Name(name) => {
            let place = LINUX.split(' ').position(|known| known.eq_ignore_ascii_case(name))?;
            u32::try_from(place).ok()
        }
    }
}

/// What `strtoul` makes of the beginning of a text that begins with a digit.
fn numeral(text: &str) -> Option<u32> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', ..] => (text, 8),
        _ => (text, 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    u32::from_str_radix(&digits[..end], radix).ok()
}

/// The kernel's name for a number, without its prefix.
#[must_use]
pub fn capability_name(number: u32) -> Option<&'static str> {
    LINUX.split(' ').nth(usize::try_from(number).ok()?)
}

/// Whether some runtime takes this text for this capability, named without its prefix as the kernel names it.
#[must_use]
pub fn is_capability(text: &str, name: &str) -> bool {
    match told(text) {
        Told::Number(number) => number.and_then(capability_name) == Some(name),
        Told::Name(told) => told.eq_ignore_ascii_case(name),
    }
}

#[cfg(test)]
mod linux_tests {
    use super::*;

    #[test]
    fn names_are_read_as_the_most_generous_runtime_does() {
        // Each tried: crun 1.8, 1.21 and 1.28 take all but those without a prefix and with two, youki 0.7 takes those.
        for text in [
            "CAP_SYS_ADMIN",
            "cap_sys_admin",
            "sys_admin",
            "CAP_CAP_SYS_ADMIN",
            "21",
            "21x",
            "0x15",
            "025",
            "cap_sys_admin=ep",
            "CAP_SYS_ADMIN,CAP_BPF",
        ] {
            assert!(is_capability(text, "SYS_ADMIN"), "{text}");
        }
        for text in [
            "",
            "CAP_",
            "CAP_SYS_ADMINX",
            "CAP_SYS",
            " CAP_SYS_ADMIN",
            "all",
            "64",
            "-21",
            "0x",
            "9999999999",
            "ſys_admin",
        ] {
            assert!(!is_capability(text, "SYS_ADMIN"), "{text}");
        }
        assert_eq!(
            (capability_number("CAP_CHOWN"), capability_number("CAP_CHECKPOINT_RESTORE"), capability_number("CAP_BPF")),
            (Some(0), Some(40), Some(39))
        );
    }
}
