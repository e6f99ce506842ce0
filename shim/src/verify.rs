//! Whether a created container is what its contract says, before anything of the tenant's has run.

use std::path::Path;

use contract::Contract;
use contract::rule::Rule;
use guard::Numbers;
use node::InRoot;
use node::cgroup::{self, DeviceFilter};

/// A file that must lie at a place in the container.
pub(crate) struct Placed<'a> {
    /// Container path.
    pub(crate) path: &'a str,
    /// Device and inode of the host's file.
    pub(crate) file: (u64, u64),
}

/// Checks the container whose first process is `pid`. `base` is where its root file system is seen from that process:
/// `/` after `create`, the bundle's root path while hooks run.
///
/// # Errors
/// The first difference, in words.
pub(crate) fn created(
    pid: u32,
    base: &Path,
    contract: &Contract,
    placed: &[Placed<'_>],
    numbers: &Numbers,
) -> Result<(), String> {
    let granted: Vec<(u32, u32)> = contract.nodes.iter().map(|n| (n.major, n.minor)).collect();
    filter(pid, &granted, numbers).map_err(|wrong| wrong.to_string())?;
    let root = format!("/proc/{pid}/root/{}", base.display());
    let root = InRoot::open(Path::new(&root)).map_err(|e| format!("the container's root cannot be opened: {e}"))?;
    for item in &contract.nodes {
        match root.device(Path::new(&item.path)) {
            Ok(number) if number == (item.major, item.minor) => {}
            Ok((major, minor)) => {
                return Err(format!(
                    "{} is {major}:{minor}, the contract says {}:{}",
                    item.path, item.major, item.minor
                ));
            }
            Err(error) => return Err(format!("{} is not the contract's device: {error}", item.path)),
        }
    }
    for item in placed {
        match root.file_id(Path::new(item.path)) {
            Ok(id) if (id.dev, id.ino) == item.file => {}
            Ok(_) => return Err(format!("{} is not the host's file", item.path)),
            Err(error) => return Err(format!("{} is missing: {error}", item.path)),
        }
    }
    Ok(())
}

/// What is wrong with a container's device filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// It leaves a GPU open that was not granted.
    Open(String),
    /// There is none.
    Absent,
    /// It closes what was granted, or serves somebody else too.
    Unfit(String),
    /// It cannot be told: it could not be read.
    Unknown(String),
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Open(open) => write!(f, "the device filter leaves a GPU open: {open}"),
            Self::Absent => f.write_str("no device filter is attached"),
            Self::Unfit(why) | Self::Unknown(why) => f.write_str(why),
        }
    }
}

/// Looks at the device filter: what it leaves open outside `granted`, and what of it is closed.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn judged(pid: u32, granted: &[(u32, u32)], numbers: &Numbers) -> Result<(), Wrong> {
    let unknown = |e: node::NodeError| Wrong::Unknown(format!("the device filter cannot be read: {e}"));
    let (open, shut) = match DeviceFilter::of(pid).map_err(unknown)? {
        DeviceFilter::List(lines) => {
            // The kernel's list is complete: everything that it does not name is denied.
            let mut rules = vec![Rule::DENY_ALL];
            for line in &lines {
                let odd = || Wrong::Unknown(format!("the device filter holds a line that cannot be read: {line}"));
                rules.push(guard::parse_list_line(line).ok_or_else(odd)?);
            }
            let shut = granted.iter().copied().find(|node| !guard::openable(&rules, node.0, node.1));
            (guard::open_gpus(&rules, numbers, granted), shut)
        }
        DeviceFilter::Programs(programs) => {
            (guard::open_to_programs(&programs, numbers, granted), guard::shut_by_programs(&programs, granted))
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
    judged(pid, granted, numbers)?;
    match cgroup::companion(pid).map_err(|e| Wrong::Unknown(format!("its cgroup cannot be read: {e}")))? {
        Some(other) => Err(Wrong::Unfit(format!("process {other} is in its cgroup and would get the GPU too"))),
        None => Ok(()),
    }
}

/// Whether the container has no way out of its device filter: no group that it could move itself to. `base` is as above.
///
/// # Errors
/// The place where it could.
pub(crate) fn confined(pid: u32, base: &Path) -> Result<(), String> {
    match cgroup::way_out(pid, base).map_err(|e| format!("the container's mounts cannot be read: {e}"))? {
        Some(place) => Err(format!("the host's control groups are writable in the container, at {place}")),
        None => Ok(()),
    }
}
