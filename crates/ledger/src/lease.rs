//! What stands in a lease, and whether its holder still lives: the rules, over facts that [`Liveness`] brings.
//!
//! The file's name says enough to know that a GPU is taken; the content says by whom. Not knowing counts as held.

mod made;
mod pod;

use std::path::Path;

use contract::json::Node;
use contract::read::{self, FromJson, ReadError};
use contract::request::Sharing;
use contract::{Granted, GrantedPartition, record};
use node::process::Process;
use serde::Serialize;

use crate::liveness::Liveness;
use crate::store::is_rootless;
pub use made::Made;
pub use pod::PodContainer;

/// Version of a lease's layout. Newer fields are ignored; another version cannot be judged and counts as held.
pub(crate) const VERSION: u32 = 1;

/// One GPU, held or reserved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// Layout version, 1.
    pub version: u32,
    /// PCI address of the GPU.
    pub pci: String,
    /// Its UUID, when known.
    pub uuid: Option<String>,
    /// Its device minor, when there is one.
    pub minor: Option<u32>,
    /// The part of it that is meant; the whole when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<GrantedPartition>,
    /// Who has it.
    pub holder: HeldBy,
    /// `/proc/sys/kernel/random/boot_id` when it was taken: another boot ends it.
    pub boot_id: String,
    /// When it was taken, in seconds since 1970.
    pub since: u64,
}

/// The kinds of holder; each has its own end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HeldBy {
    /// A container: until it is deleted, or plainly gone.
    Container {
        /// Its id.
        container: String,
        /// The low-level runtime's folder of states; `<state_root>/<container>` exists while the container does.
        state_root: String,
        /// The low-level runtime that created it.
        low_level: String,
        /// Its cgroup as the spec names it; absent when that is not known.
        cgroup: Option<String>,
        /// Process that creates it.
        pid: u32,
        /// That process's start time, in clock ticks since the boot.
        start: u64,
        /// Whence it can be told whether it is gone; absent in leases of versions that did not ask.
        made: Option<Made>,
        /// Its place in a pod.
        pod: Option<PodContainer>,
        /// Whose it is, where somebody other than the tenant says so.
        #[serde(skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
        /// Whether its owner's other containers may have the GPU too; nobody may when that is absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        sharing: Option<Sharing>,
    },
    /// A container that was deleted while a process of it, stuck in the driver perhaps, is still there with the GPU open:
    /// until its cgroup is empty.
    Draining {
        /// Its id.
        container: String,
        /// Its cgroup.
        cgroup: String,
        /// As above.
        made: Option<Made>,
        /// Its place in a pod.
        pod: Option<PodContainer>,
        /// Whose it was: until it has ended, it is of what the owner has.
        #[serde(skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
    },
    /// Something known by name, `vm:NAME`: until it is released by name.
    Name {
        /// The name.
        name: String,
    },
    /// A container that does not exist yet: until the time is over or the token is used.
    Reservation {
        /// End of its time, in seconds since the boot (`CLOCK_BOOTTIME`); does not count while a container of the pod has
        /// the GPU.
        until: u64,
        /// The only container that may use the token, as often as it is started anew.
        pod: Option<PodContainer>,
        /// How long it is kept for a pod from the end of one container to the start of the next.
        seconds: Option<u64>,
        /// Whose it is, by the word of the operator who reserved.
        #[serde(skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
    },
}

record!(open Lease { version, pci, uuid, minor, partition, holder, boot_id, since });

impl FromJson for HeldBy {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        if let Some(node) = node.get("container") {
            return Ok(Self::Container {
                container: read::field(node, "container")?,
                state_root: read::field(node, "state_root")?,
                low_level: read::field(node, "low_level")?,
                cgroup: read::field(node, "cgroup")?,
                pid: read::field(node, "pid")?,
                start: read::field(node, "start")?,
                made: read::field(node, "made")?,
                pod: read::field(node, "pod")?,
                owner: read::field(node, "owner")?,
                sharing: read::field(node, "sharing")?,
            });
        }
        if let Some(node) = node.get("draining") {
            return Ok(Self::Draining {
                container: read::field(node, "container")?,
                cgroup: read::field(node, "cgroup")?,
                made: read::field(node, "made")?,
                pod: read::field(node, "pod")?,
                owner: read::field(node, "owner")?,
            });
        }
        if let Some(node) = node.get("name") {
            return Ok(Self::Name { name: read::field(node, "name")? });
        }
        match node.get("reservation") {
            Some(node) => Ok(Self::Reservation {
                until: read::field(node, "until")?,
                pod: read::field(node, "pod")?,
                seconds: read::field(node, "seconds")?,
                owner: read::field(node, "owner")?,
            }),
            None => Err(ReadError::new("it must be a container, draining, a name or a reservation")),
        }
    }
}

impl HeldBy {
    /// What people call the holder.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Container { container, .. } | Self::Draining { container, .. } => container,
            Self::Name { name } => name,
            Self::Reservation { .. } => "(reserved)",
        }
    }

    /// Whose it is, where somebody says so.
    pub(crate) fn owner(&self) -> Option<&str> {
        match self {
            Self::Container { owner, .. } | Self::Draining { owner, .. } | Self::Reservation { owner, .. } => {
                owner.as_deref()
            }
            Self::Name { .. } => None,
        }
    }

    /// Whether it is the container of a user without root, whom the broker gave GPUs: no device filter holds it.
    #[must_use]
    pub fn is_rootless(&self) -> bool {
        matches!(self, Self::Container { state_root, .. } if is_rootless(state_root))
    }

    /// Its place in a pod, when it has one.
    #[must_use]
    pub fn pod(&self) -> Option<&PodContainer> {
        match self {
            Self::Container { pod, .. } | Self::Draining { pod, .. } | Self::Reservation { pod, .. } => pod.as_ref(),
            Self::Name { .. } => None,
        }
    }
}

impl Lease {
    /// Whether a container has it, by this creator where one is named.
    pub(crate) fn is_by(&self, creator: Option<Process>) -> bool {
        match &self.holder {
            HeldBy::Container { pid, start, .. } => creator.is_none_or(|by| (by.pid, by.start) == (*pid, *start)),
            _ => false,
        }
    }

    pub(crate) fn new(gpu: &Granted, holder: &HeldBy, boot_id: &str, since: u64) -> Self {
        Self {
            version: VERSION,
            pci: gpu.pci.clone(),
            uuid: gpu.uuid.clone(),
            minor: gpu.minor,
            partition: gpu.partition.clone(),
            holder: holder.clone(),
            boot_id: boot_id.to_owned(),
            since,
        }
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let lease: Self = read::document(bytes).map_err(|e| format!("its record cannot be read: {e}"))?;
        if lease.version == VERSION {
            Ok(lease)
        } else {
            Err(format!("its record has layout {}, this version knows {VERSION}", lease.version))
        }
    }
}

/// A lease's file name: `<slot>@<tag>` (see [`crate::slot`]), where the tag is the holder's key, `r-` and a token, or `d-` and
/// the key of a container that is deleted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) slot: String,
    pub(crate) tag: String,
}

impl Name {
    /// Any name with an `@` takes its GPU, whoever wrote it.
    pub(crate) fn parse(file: &str) -> Option<Self> {
        let (slot, tag) = file.split_once('@')?;
        Some(Self { slot: slot.to_owned(), tag: tag.to_owned() })
    }

    /// The path below the state folder.
    pub(crate) fn path(slot: &str, tag: &str) -> String {
        format!("leases/{slot}@{tag}")
    }

    /// The reservation's token, when it is one.
    pub(crate) fn token(&self) -> Option<&str> {
        self.tag.strip_prefix("r-")
    }
}

/// Whether a lease's holder is there, and how that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    Held(String),
    Gone(String),
}

/// What a reservation's own lease does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    /// Used, given up, or never finished.
    Void,
    /// It can be used.
    Open,
    /// It can be used, and somebody else has a lease on the GPU too: a container of the pod.
    InUse,
}

/// Judges a lease.
pub(crate) fn standing(lease: &Lease, token: Token, machine: &dyn Liveness) -> Standing {
    match machine.boot_id() {
        Err(error) => return Standing::Held(format!("it cannot be told which boot this is: {error}")),
        Ok(boot) if boot != lease.boot_id => return Standing::Gone("the machine was started again since".to_owned()),
        Ok(_) => {}
    }
    match &lease.holder {
        HeldBy::Draining { cgroup, made, .. } => {
            match may_run(made, machine)
                .or_else(|| in_cgroup(cgroup, made, machine))
                .or_else(|| held_open(lease, made, machine))
            {
                Some(why) => Standing::Held(format!("its container is deleted, but {why}")),
                None => Standing::Gone("its container is deleted, and its cgroup is empty now".to_owned()),
            }
        }
        HeldBy::Name { name } => Standing::Held(format!("taken as {name} until it is released")),
        HeldBy::Reservation { .. } if token == Token::Void => {
            Standing::Gone("its token was used, or given up, or never finished".to_owned())
        }
        HeldBy::Reservation { until, pod, .. } => {
            let whose = pod.as_ref().map_or_else(String::new, |pod| format!(" {pod}"));
            match machine.boot_seconds() {
                _ if pod.is_some() && token == Token::InUse => {
                    Standing::Held(format!("reserved{whose}, a container of which has it"))
                }
                Err(error) => Standing::Held(format!("reserved, and it cannot be told what time it is: {error}")),
                Ok(now) if now >= *until => Standing::Gone("its time is over".to_owned()),
                Ok(now) => Standing::Held(format!("reserved{whose} for {} s more", until - now)),
            }
        }
        HeldBy::Container { container, state_root, cgroup, pid, start, made, .. } => {
            // A start of 0 is how a process says that it could not read its own.
            if *start == 0 {
                return Standing::Held(format!("it cannot be told whether its create, process {pid}, still runs"));
            }
            if let Some(why) = may_run(made, machine) {
                return Standing::Held(why);
            }
            // The creator first: once it is gone, nothing appears any more in the two places looked at next.
            let overdue = made.as_ref().is_some_and(|made| made.is_overdue(machine));
            if !overdue && machine.is_alive(Process { pid: *pid, start: *start }) {
                return Standing::Held(format!("its create still runs, process {pid}"));
            }
            let cgroup = cgroup.as_deref();
            let remains = remains(state_root, container, cgroup, made, machine);
            match remains.or_else(|| held_open(lease, made, machine)) {
                Some(why) => Standing::Held(why),
                None if is_rootless(state_root) => Standing::Gone("its create and its first process ended".to_owned()),
                None if overdue => {
                    Standing::Gone("nobody creates it, it has no state folder, and its cgroup is empty".to_owned())
                }
                None => Standing::Gone("its create ended, it has no state folder, and its cgroup is empty".to_owned()),
            }
        }
    }
}

/// What is left of a container, or why that cannot be told.
fn remains(
    state_root: &str,
    container: &str,
    cgroup: Option<&str>,
    made: &Option<Made>,
    machine: &dyn Liveness,
) -> Option<String> {
    if let Some(why) = state_folder(state_root, container, machine) {
        return Some(why);
    }
    let Some(cgroup) = cgroup else {
        // No cgroup would hold a user's processes: its container is gone with the first of them.
        if is_rootless(state_root) {
            return None;
        }
        return Some("its cgroup is not known, so processes of it may be left".to_owned());
    };
    in_cgroup(cgroup, made, machine)
}

fn may_run(made: &Option<Made>, machine: &dyn Liveness) -> Option<String> {
    made.as_ref().and_then(|made| made.may_run(machine))
}

fn held_open(lease: &Lease, made: &Option<Made>, machine: &dyn Liveness) -> Option<String> {
    made.as_ref().and_then(|made| made.holds(lease.minor, machine))
}

fn in_cgroup(cgroup: &str, made: &Option<Made>, machine: &dyn Liveness) -> Option<String> {
    if let Some(why) = made.as_ref().and_then(|made| made.other_groups(machine)) {
        return Some(why);
    }
    match machine.cgroup_is_empty(cgroup) {
        Ok(true) => None,
        Ok(false) => Some(format!("processes are left in its cgroup {cgroup}")),
        Err(error) => Some(format!("it cannot be told whether its cgroup {cgroup} is empty: {error}")),
    }
}

/// Why the low-level runtime may still know the container; nothing when it does not.
pub(crate) fn state_folder(state_root: &str, container: &str, machine: &dyn Liveness) -> Option<String> {
    // What a user has there says nothing, and may be a file system that never answers.
    if is_rootless(state_root) {
        return None;
    }
    let folder = Path::new(state_root).join(container);
    match machine.exists(&folder) {
        Ok(false) => None,
        Ok(true) => Some(format!("its state folder {} exists", folder.display())),
        Err(error) => Some(format!("it cannot be told whether its state folder exists: {error}")),
    }
}

#[cfg(test)]
mod tests;
