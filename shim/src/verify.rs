//! Whether a created container is what was decided, before anything of the tenant's has run.

use std::path::Path;

use contract::Contract;
use contract::rule::Rule;
use guard::Numbers;
use node::cgroup::{DeviceFilter, Groups};
use node::{Node, mountinfo};

use crate::decide::{By, Decision};
use crate::inside;
use crate::setup::Setup;

/// A file that must lie at a place in the container.
pub(crate) struct Placed<'a> {
    /// Container path.
    pub(crate) path: &'a str,
    /// Device and inode of the host's file.
    pub(crate) file: (u64, u64),
}

/// A created container, and what was decided about it.
pub(crate) struct Created<'a> {
    /// Its first process.
    pub(crate) pid: u32,
    /// Where its root file system is seen from that process: `/` after `create`, the bundle's root path while hooks run.
    pub(crate) base: &'a Path,
    pub(crate) decision: &'a Decision<'a>,
    pub(crate) system: &'a Node,
    pub(crate) numbers: &'a Numbers,
    pub(crate) contract: Option<&'a Contract>,
    pub(crate) placed: Vec<Placed<'a>>,
    /// Paths that are masked beside those that the tenant's spec names.
    pub(crate) masked: &'a [String],
    /// Its device list or its mounts are what we made of them; otherwise only its mounts' sources may have changed.
    pub(crate) changed: bool,
    /// It was made just now, and nothing of the tenant's has run in it.
    pub(crate) fresh: bool,
    /// By what its binds are judged once more, right after it was made: what lies behind their sources may be something else.
    pub(crate) by: Option<By<'a>>,
    pub(crate) setup: &'a Setup,
}

impl Created<'_> {
    /// Checks everything.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn verify(&self) -> Result<(), Wrong> {
        let groups = self.groups()?;
        match self.contract {
            // No filter can be had there, and nobody says that there is one.
            _ if self.setup.rootless => {}
            Some(contract) => alone(&groups, &numbers_of(contract), self.numbers)?,
            None if self.changed => match judged(&groups, &[], self.numbers, Some(self.setup.state_dir())) {
                // Where nothing filters, or nobody can tell, a container without GPUs starts all the same.
                Err(Wrong::Absent | Wrong::Unknown(_)) => {}
                told => told?,
            },
            None => {}
        }
        self.look_at(&groups)
    }

    /// Checks everything of a container that has been running: there are more processes in its cgroup by now.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn still(&self) -> Result<(), Wrong> {
        let groups = self.groups()?;
        let granted = self.contract.map(numbers_of);
        let scratch = granted.is_none().then_some(self.setup.state_dir());
        match judged(&groups, granted.as_deref().unwrap_or_default(), self.numbers, scratch) {
            Err(Wrong::Absent | Wrong::Unknown(_)) if granted.is_none() => {}
            told => told?,
        }
        self.look_at(&groups)
    }

    /// Checks everything but the device filter.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn look(&self) -> Result<(), Wrong> {
        self.look_at(&self.groups()?)
    }

    fn groups(&self) -> Result<Groups<'_>, Wrong> {
        groups_of(self.pid, self.system)
    }

    fn look_at(&self, groups: &Groups<'_>) -> Result<(), Wrong> {
        let table = mountinfo::of(self.pid).map_err(unknown)?;
        let told = table.patiently(|| encode(&inside::judged(self, &table, groups))).map_err(unknown)?;
        decode(&told)
    }
}

/// The control groups of a container's first process.
///
/// # Errors
/// They cannot be read.
pub(crate) fn groups_of(pid: u32, system: &Node) -> Result<Groups<'_>, Wrong> {
    let own = system.mounts().map_err(|why| Wrong::Unknown(format!("the device filter cannot be read: {why}")))?;
    Groups::of(pid, own).map_err(unreadable)
}

/// The device numbers that a contract grants.
pub(crate) fn numbers_of(contract: &Contract) -> Vec<(u32, u32)> {
    contract.nodes.iter().map(|n| (n.major, n.minor)).collect()
}

/// What was found in a child process.
fn encode(told: &Result<(), Wrong>) -> String {
    match told {
        Ok(()) => "fine".to_owned(),
        Err(Wrong::Unknown(why)) => format!("unknown\n{why}"),
        Err(wrong) => format!("differs\n{wrong}"),
    }
}

fn decode(told: &str) -> Result<(), Wrong> {
    match told.split_once('\n') {
        None => Ok(()),
        Some(("unknown", why)) => Err(Wrong::Unknown(why.to_owned())),
        Some((_, why)) => Err(Wrong::Differs(why.to_owned())),
    }
}

pub(crate) fn unreadable(error: node::NodeError) -> Wrong {
    Wrong::Unknown(format!("the device filter cannot be read: {error}"))
}

/// Load is no answer: whoever makes it could open what nobody then looks at.
fn untried(error: node::NodeError) -> Wrong {
    if error.is_late() { Wrong::Unfit(error.to_string()) } else { unreadable(error) }
}

pub(crate) fn unknown(error: node::NodeError) -> Wrong {
    Wrong::Unknown(format!("the container cannot be looked at: {error}"))
}

/// What is wrong with a created container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// Its device filter leaves a GPU open that was not granted.
    Open(String),
    /// It has no device filter.
    Absent,
    /// Its device filter closes what was granted, or serves somebody else too.
    Unfit(String),
    /// It is not what was decided.
    Differs(String),
    /// It cannot be told: something could not be read.
    Unknown(String),
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Open(open) => write!(f, "the device filter leaves a GPU open: {open}"),
            Self::Absent => f.write_str("no device filter is attached"),
            Self::Unfit(why) | Self::Differs(why) | Self::Unknown(why) => f.write_str(why),
        }
    }
}

/// Looks at the device filter: what it leaves open outside `granted`, and what of it is closed. `scratch`: a version 1 list
/// that allows everything does not show what it closes; that is tried, with nodes made there.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn judged(
    groups: &Groups<'_>,
    granted: &[(u32, u32)],
    numbers: &Numbers,
    scratch: Option<&Path>,
) -> Result<(), Wrong> {
    let (open, shut) = match groups.filter().map_err(unreadable)? {
        DeviceFilter::List(lines) => {
            // The kernel's list is complete: everything that it does not name is denied.
            let mut rules = vec![Rule::DENY_ALL];
            for line in &lines {
                let odd = || Wrong::Unknown(format!("the device filter holds a line that cannot be read: {line}"));
                rules.push(guard::parse_list_line(line).ok_or_else(odd)?);
            }
            if let (true, Some(scratch)) = (rules.contains(&Rule::ALLOW_ALL), scratch) {
                let open = groups.not_closed(&guard::stand_ins(numbers), scratch).map_err(untried)?;
                (open.map(|(major, minor)| format!("character device {major}:{minor}")), None)
            } else {
                let shut = granted.iter().copied().find(|node| !guard::openable(&rules, node.0, node.1));
                (guard::open_gpus(&rules, numbers, granted), shut)
            }
        }
        DeviceFilter::Programs(programs) => {
            (guard::open_to_programs(&programs, numbers, granted), guard::shut_by_programs(&programs, granted))
        }
        DeviceFilter::Loose => {
            let why = "the device filter was attached without BPF_F_ALLOW_MULTI, so that whoever is in the container with \
                       CAP_NET_ADMIN or CAP_BPF could take it away";
            return Err(Wrong::Unfit(why.to_owned()));
        }
        DeviceFilter::None => return Err(Wrong::Absent),
    };
    match (open, shut) {
        (Some(open), _) => Err(Wrong::Open(open)),
        (None, Some((major, minor))) => {
            let why = format!("the device filter closes character device {major}:{minor}, which was granted");
            Err(Wrong::Unfit(why))
        }
        (None, None) => Ok(()),
    }
}

/// Whether a device filter is attached that closes every GPU outside `granted`, and serves this process alone.
///
/// # Errors
/// What is wrong with it.
pub fn filter(pid: u32, granted: &[(u32, u32)], numbers: &Numbers) -> Result<(), Wrong> {
    let own = mountinfo::own().map_err(unreadable)?;
    alone(&Groups::of(pid, &own).map_err(unreadable)?, granted, numbers)
}

fn alone(groups: &Groups<'_>, granted: &[(u32, u32)], numbers: &Numbers) -> Result<(), Wrong> {
    judged(groups, granted, numbers, None)?;
    match groups.companion().map_err(|e| Wrong::Unknown(format!("its cgroup cannot be read: {e}")))? {
        Some(other) => Err(Wrong::Unfit(format!("process {other} is in its cgroup and would get the GPU too"))),
        None => Ok(()),
    }
}

/// Whether the container has no way out of its device filter: no group that it could move itself to. `base` is as above, and
/// these are its mounts.
///
/// # Errors
/// The place where it could.
pub(crate) fn confined(groups: &Groups<'_>, mounts: &mountinfo::Table, base: &Path) -> Result<(), Wrong> {
    match groups.way_out(mounts, base).map_err(unknown)? {
        Some(place) => {
            let why = format!("the host's control groups are writable in the container, at {place}");
            Err(Wrong::Differs(why))
        }
        None => Ok(()),
    }
}
