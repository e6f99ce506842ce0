//! What the operator lets single containers do although the guard would refuse it: `[[allow]]` tables of the configuration.
//!
//! Only refusals that close no GPU themselves can be excused. A table that cannot be read excuses nothing: a misspelt
//! `namespace` must not make it count for every container of the node.

use crate::json::Node;
use crate::read::{FromJson, ReadError, field, only};

/// Rules that can be excused, by the names that refusals give them. Where a rule closes a GPU's own node or number, or our own
/// files, no exception reaches it, whatever its name.
pub const EXCUSABLE: &[&str] = &[
    "annotation-low-level",
    "args-no-pivot",
    "cap",
    "cgroup-path",
    "cgroup-wildcard",
    "device-path",
    "hook",
    "mount-control-socket",
    "mount-dev-tree",
    "mount-fstype",
    "mount-procfs-rw",
    "mount-runtime-state",
    "mount-sysfs-rw",
    "mount-visible-devices",
    "net-devices",
    "ns-hostpid",
    "ns-path",
    "privileged",
    "rootfs-propagation",
    "seccomp-listener",
];

/// Capabilities that policy `hardened` refuses or drops, without their prefix.
pub const GUARDED_CAPABILITIES: &[&str] =
    &["SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "DAC_READ_SEARCH", "BPF", "PERFMON", "SYS_BOOT", "SYS_PTRACE", "MKNOD"];

/// One `[[allow]]` table. Without namespace and container it counts for every container of the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exception {
    /// The rules that it excuses.
    pub rules: Vec<Excusable>,
    /// Kubernetes namespace of the pod.
    pub namespace: Option<String>,
    /// Name of the container in its pod.
    pub container: Option<String>,
}

impl FromJson for Exception {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        only(node, &["rules", "namespace", "container"])?;
        let (rules, namespace, container) =
            (field(node, "rules")?, field(node, "namespace")?, field(node, "container")?);
        Ok(Self { rules, namespace, container })
    }
}

/// The name of a rule that can be excused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excusable(pub &'static str);

impl FromJson for Excusable {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        one_of(node, EXCUSABLE, "this rule cannot be excused, if there is one of this name").map(Self)
    }
}

/// The name of a capability that policy `hardened` acts on, without its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardedCapability(pub &'static str);

impl FromJson for GuardedCapability {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        one_of(node, GUARDED_CAPABILITIES, "policy hardened does not act on this capability").map(Self)
    }
}

fn one_of(node: &Node<'_>, known: &'static [&'static str], wrong: &str) -> Result<&'static str, ReadError> {
    let word = node.as_str();
    let found = known.iter().copied().find(|known| Some(*known) == word);
    found.ok_or_else(|| {
        ReadError::new(format!("{wrong}: {}; known are {}", word.unwrap_or("no string"), known.join(", ")))
    })
}
