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
        set.sort_unstable();
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

/// Whether a text is the Linux capability of this name, given without its prefix: crun takes names in any case, and without
/// the prefix.
#[must_use]
pub fn is_capability(text: &str, name: &str) -> bool {
    let bare = match text.split_at_checked(4) {
        Some((prefix, bare)) if prefix.eq_ignore_ascii_case("CAP_") => bare,
        _ => text,
    };
    bare.eq_ignore_ascii_case(name)
}
