//! The words of this crate: what shall change in a spec, and how a change is told.

use std::borrow::Cow;
use std::num::NonZeroU32;

use contract::inventory::DeviceNode;
use contract::rule::Rule;

/// What shall change in a spec. The default changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits {
    /// Variables of `process.env`, name and value. All copies of a name go; ours stands where the first one stood, or at
    /// the end. Of a name given twice here the later one counts.
    pub env: Vec<(String, String)>,
    /// Entries of `linux.devices`, one per path: an entry of the spec with that path gives way as a variable does.
    pub nodes: Vec<DeviceNode>,
    /// Mounts, put last in this order: mounts are made in order, and nothing of the tenant's may cover ours.
    pub mounts: Vec<Mount>,
    /// Mounts that follow one of the spec's before anything else is mounted: each with the position in the unedited spec
    /// that it stands before (the number of mounts there: at the end), rising.
    pub inserted: Vec<(usize, Mount)>,
    /// The whole of `linux.resources.devices`.
    pub rules: Option<Vec<Rule>>,
    /// Positions in the `linux.devices` of the unedited spec that are taken out.
    pub drop_devices: Vec<usize>,
    /// Positions in the `mounts` of the unedited spec, rising, and the option that each gets behind its own: the later of two
    /// that contradict each other counts.
    pub options: Vec<(usize, &'static str)>,
    /// Capabilities that every set of `process.capabilities` loses, without their prefix.
    pub drop_capabilities: Vec<&'static str>,
    /// Positions in the `hooks.prestart` of the unedited spec that are taken out, rising.
    pub drop_prestart: Vec<usize>,
    /// Hooks, put last in their stage in this order.
    pub hooks: Vec<Hook>,
    /// Groups that `process.user.additionalGids` shall hold.
    pub gids: Vec<u32>,
    /// Paths that `linux.maskedPaths` shall hold, each once.
    pub masked: Vec<String>,
}

/// Items that go out of a spec, by their positions, rising.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Without {
    /// In `linux.devices`.
    pub devices: Vec<usize>,
    /// In `mounts`.
    pub mounts: Vec<usize>,
    /// In `linux.resources.devices`.
    pub rules: Vec<usize>,
}

/// One mount of the spec. No SELinux label and no idmapping is ever part of it: host files are not relabelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// What is mounted: an absolute path of the host for a bind.
    pub source: String,
    /// Where the container sees it: an absolute path.
    pub destination: String,
    /// Type of the mount: `bind`, `tmpfs`.
    pub kind: Cow<'static, str>,
    /// Options as in fstab; `rprivate` stands last.
    pub options: Vec<Cow<'static, str>>,
}

impl Mount {
    /// A file of the driver: read-only, no devices, no setuid. A program may be executed, as everything that is not `noexec`.
    #[must_use]
    pub fn library(host: impl Into<String>, destination: impl Into<String>) -> Self {
        Self::bind(host.into(), destination.into(), &["ro", "nosuid", "nodev", "bind", "rprivate"])
    }

    /// What is mounted already, shown once more and read-only. `at_once`: crun makes `ro` true only when all mounts are made,
    /// and a later one may have shown this one again by then; `rro` it makes true with the mount (from Linux 5.12 on).
    #[must_use]
    pub fn read_only(host: impl Into<String>, destination: impl Into<String>, at_once: bool) -> Self {
        let options: &[_] = &["ro", "rro", "nosuid", "noexec", "nodev", "rbind", "rprivate"];
        let mut mount = Self::bind(host.into(), destination.into(), options);
        mount.options.retain(|option| at_once || option != "rro");
        mount
    }

    /// A device node where nodes cannot be made, as in a user namespace. Never `nodev`: it could not be opened.
    #[must_use]
    pub fn node(host: impl Into<String>, destination: impl Into<String>) -> Self {
        Self::bind(host.into(), destination.into(), &["rw", "nosuid", "noexec", "bind", "rprivate"])
    }

    /// An empty file system over something that may not be seen.
    #[must_use]
    pub fn hiding(destination: impl Into<String>, options: &[&'static str]) -> Self {
        Self {
            source: "tmpfs".to_owned(),
            destination: destination.into(),
            kind: Cow::Borrowed("tmpfs"),
            options: options.iter().copied().map(Cow::Borrowed).collect(),
        }
    }

    fn bind(source: String, destination: String, options: &[&'static str]) -> Self {
        Self {
            source,
            destination,
            kind: Cow::Borrowed("bind"),
            options: options.iter().copied().map(Cow::Borrowed).collect(),
        }
    }
}

/// When the low-level runtime calls a hook (runtime-spec, "POSIX-platform Hooks").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Before the container's process starts, in the runtime's namespaces; deprecated, still the only one some know.
    Prestart,
    /// After the namespaces exist and before the root changes, in the runtime's namespaces.
    CreateRuntime,
    /// The same moment, in the container's namespaces.
    CreateContainer,
    /// On `start`, before the container's program, inside the container.
    StartContainer,
    /// After the container's program started, in the runtime's namespaces.
    Poststart,
    /// After the container is deleted, in the runtime's namespaces.
    Poststop,
}

impl Stage {
    /// All stages in the order in which they happen.
    pub(crate) const ALL: [Self; 6] = [
        Self::Prestart,
        Self::CreateRuntime,
        Self::CreateContainer,
        Self::StartContainer,
        Self::Poststart,
        Self::Poststop,
    ];

    /// Its key under `hooks`.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Prestart => "prestart",
            Self::CreateRuntime => "createRuntime",
            Self::CreateContainer => "createContainer",
            Self::StartContainer => "startContainer",
            Self::Poststart => "poststart",
            Self::Poststop => "poststop",
        }
    }
}

/// A program that the low-level runtime calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// When.
    pub stage: Stage,
    /// Absolute path of the program.
    pub path: String,
    /// Its arguments, its own name first; empty writes none.
    pub args: Vec<String>,
    /// Its environment as `NAME=value`; empty writes none.
    pub env: Vec<String>,
    /// Seconds after which it is given up.
    pub timeout: Option<NonZeroU32>,
}

/// One operation of a JSON patch (RFC 6902). Values are JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// A new member, or a new last item where the pointer ends in `-`.
    Add {
        /// JSON pointer.
        path: String,
        /// The new value.
        value: String,
    },
    /// Another value for what is there.
    Replace {
        /// JSON pointer.
        path: String,
        /// The new value.
        value: String,
    },
    /// Takes out what is there.
    Remove {
        /// JSON pointer.
        path: String,
    },
}

impl std::fmt::Display for Op {
    /// As the JSON object of RFC 6902. Our pointers hold field names and numbers only: nothing to escape.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Add { path, value } => write!(f, r#"{{"op":"add","path":"{path}","value":{value}}}"#),
            Self::Replace { path, value } => write!(f, r#"{{"op":"replace","path":"{path}","value":{value}}}"#),
            Self::Remove { path } => write!(f, r#"{{"op":"remove","path":"{path}"}}"#),
        }
    }
}

/// Why edits cannot be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditError {
    /// JSON pointer of the place in the spec; empty when it is the document itself or the edits.
    pub at: String,
    /// What is true and what would work.
    pub message: String,
}

impl std::fmt::Display for EditError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("edit the spec")?;
        if !self.at.is_empty() {
            write!(f, " at {}", self.at)?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for EditError {}
