//! What the operator lets single containers do although the guard would refuse it: `[[allow]]` tables of the configuration.
//!
//! Only refusals that close no GPU themselves can be excused. A table that cannot be read excuses nothing: a misspelt
//! `namespace` must not make it count for every container of the node. The others go on counting, as exceptions only let more
//! through and one less is never unsafe; but not those for the whole node: what was to narrow them may be what cannot be read.

use crate::json::{Node, Value};
use crate::read::{FromJson, ReadError, Settings, field, only};

/// Rules that can be excused, by the names that refusals give them. Where a rule closes a GPU's own node or number, or our own
/// files, no exception reaches it, whatever its name.
pub const EXCUSABLE: &[&str] = &[
    "annotation-low-level",
    "args-no-pivot",
    "cap",
    "cgroup-path",
    "cgroup-wildcard",
    "device-disk",
    "device-path",
    "hook",
    "mount-control-socket",
    "mount-dev-tree",
    "mount-fstype",
    "mount-procfs",
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

/// All exceptions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exceptions(pub Vec<Exception>);

impl Settings for Exceptions {
    fn take(&mut self, node: &Node<'_>, wrong: &mut Option<ReadError>) {
        let Value::Array(tables) = &node.value else {
            wrong.get_or_insert(ReadError::new("it must be a list: [[allow]]"));
            return;
        };
        for (index, table) in tables.iter().enumerate() {
            match Exception::from_json(table) {
                Ok(exception) => self.0.push(exception),
                Err(error) => _ = wrong.get_or_insert(error.inside(&index.to_string())),
            }
        }
        if wrong.is_some() {
            self.0.retain(|exception| exception.namespace.is_some() || exception.container.is_some());
        }
    }
}

impl FromJson for Exception {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        only(node, &["rules", "namespace", "container"])?;
        let rules: Vec<Excusable> = field(node, "rules")?;
        if rules.is_empty() {
            return Err(ReadError::new(format!("no rule, so nothing is excused; {}", all(EXCUSABLE))).inside("rules"));
        }
        Ok(Self { rules, namespace: name(node, "namespace")?, container: name(node, "container")? })
    }
}

/// What narrows an exception, as Kubernetes writes names: any other word would be nobody's.
fn name(node: &Node<'_>, key: &str) -> Result<Option<String>, ReadError> {
    let name: Option<String> = field(node, key)?;
    let is_plain = |name: &str| {
        let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !name.is_empty() && name.bytes().all(letter)
    };
    match name {
        Some(name) if !is_plain(&name) => Err(ReadError::new(format!(
            "no {key} is called {name:?}: it must be one name of small letters, digits and dashes; without this key every {key} is meant"
        ))
        .inside(key)),
        name => Ok(name),
    }
}

/// The name of a rule that can be excused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excusable(pub &'static str);

impl FromJson for Excusable {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        one_of(node, EXCUSABLE, "no rule of this name can be excused").map(Self)
    }
}

/// The name of a capability that policy `hardened` acts on, without its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardedCapability(pub &'static str);

impl FromJson for GuardedCapability {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        one_of(node, GUARDED_CAPABILITIES, "policy hardened acts on no capability of this name").map(Self)
    }
}

fn one_of(node: &Node<'_>, known: &'static [&'static str], wrong: &str) -> Result<&'static str, ReadError> {
    let word = node.as_str().unwrap_or_default();
    known.iter().copied().find(|known| *known == word).ok_or_else(|| {
        let near = near(word, known);
        let way = if near.is_empty() { all(known) } else { format!("near it: {}", near.join(", ")) };
        ReadError::new(format!("{wrong}: {word:?}; {way}"))
    })
}

fn all(known: &[&str]) -> String {
    format!("known are {}", known.join(", "))
}

/// The names that share most with a misspelt one, from both ends; none where that is next to nothing.
fn near(word: &str, known: &'static [&'static str]) -> Vec<&'static str> {
    let shared = |name: &str| {
        let equal = |(a, b): &(u8, u8)| a == b;
        let front = word.bytes().zip(name.bytes()).take_while(equal).count();
        front + word.bytes().skip(front).rev().zip(name.bytes().skip(front).rev()).take_while(equal).count()
    };
    let most = known.iter().map(|name| shared(name)).max().unwrap_or_default();
    known.iter().copied().filter(|name| most > 2 && shared(name) == most).collect()
}
