//! Control groups: which device filter a process is really under, and whether a group is empty.
//!
//! Both versions may be there at once, each with its own tree. Emptiness is asked of all; a device filter is looked for
//! where low-level runtimes put it.

mod empty;

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, makedev, mknod, stat};
use nix::unistd::{AccessFlags, access};

use crate::error::NodeError;
use crate::in_root::InRoot;
use crate::landmarks::is_within;
use crate::mountinfo::{self, Mount, Table};
use crate::{devices, file, look, sys};

pub use empty::{filters_nobody, is_empty};

/// The device filter that a process is under, in the hierarchy that low-level runtimes use on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceFilter {
    /// Version 1: the lines of its `devices.list`.
    List(Vec<String>),
    /// Version 2: every device program that decides for it, as instructions. At least one of them decides for it and not
    /// for us, who may be confined ourselves.
    Programs(Vec<Vec<u64>>),
    /// Version 2: it was attached so that the container could be rid of it.
    Loose,
    /// None that is not ours too, or it is in no such hierarchy.
    None,
}

/// The control groups of a process, read once for all that is asked, and our mounts, where they are seen.
#[derive(Debug)]
pub struct Groups<'t> {
    pid: u32,
    own: &'t Table,
    groups: Vec<u8>,
}

impl<'t> Groups<'t> {
    /// Of a process, and our own mounts.
    ///
    /// # Errors
    /// It is gone.
    pub fn of(pid: u32, own: &'t Table) -> Result<Self, NodeError> {
        Ok(Self { pid, own, groups: file::read(&format!("/proc/{pid}/cgroup"))? })
    }

    /// Our mounts.
    #[must_use]
    pub fn own(&self) -> &'t Table {
        self.own
    }

    /// The filters that it is under.
    ///
    /// # Errors
    /// A filter is there that cannot be read.
    pub fn filter(&self) -> Result<DeviceFilter, NodeError> {
        let mounts = self.own.control_groups();
        let unified = is_unified(&mounts);
        let Some(group) = filtering(&self.groups, unified) else { return Ok(DeviceFilter::None) };
        let folder_of = |group: &Group<'_>| mounts.iter().find_map(|mount| Some((group.folder(mount)?, &mount.point)));
        let Some((folder, top)) = folder_of(&group) else {
            return Err(NodeError::odd("look at control group", group.path, "it is not shown by any mount here"));
        };
        if !unified {
            let list = file::read(&format!("{folder}/devices.list"))?;
            return Ok(DeviceFilter::List(String::from_utf8_lossy(&list).lines().map(str::to_owned).collect()));
        }
        // Those above us and it decide for both; a program of our own group that is not above it has another number.
        let own = file::read("/proc/self/cgroup")?;
        let own = parse(&own).find(Group::is_v2).and_then(|group| folder_of(&group));
        let shared = own.map_or(Ok(Vec::new()), |(own, _)| programs(&own))?;
        let all = programs(&folder)?;
        if all.iter().all(|program| shared.contains(program)) {
            return Ok(DeviceFilter::None);
        }
        if is_loose(&folder, top)? {
            return Ok(DeviceFilter::Loose);
        }
        let mut read = Vec::with_capacity(all.len());
        for program in all {
            read.push(instructions(program, &folder)?);
        }
        Ok(DeviceFilter::Programs(read))
    }

    /// Another process under the same device filter, when there is one.
    ///
    /// # Errors
    /// Its group cannot be read.
    pub fn companion(&self) -> Result<Option<u32>, NodeError> {
        let mounts = self.own.control_groups();
        let group = filtering(&self.groups, is_unified(&mounts));
        let Some(folder) = group.and_then(|group| mounts.iter().find_map(|mount| group.folder(mount))) else {
            return Ok(None);
        };
        let members = file::read(&format!("{folder}/cgroup.procs"))?;
        let members = String::from_utf8_lossy(&members);
        Ok(members.lines().filter_map(|line| line.parse().ok()).find(|member| *member != self.pid))
    }

    /// A place where it can write in a hierarchy that holds device filters, outside its own group: the way out of its filter.
    /// `base` is where its root file system is seen from it, and these are its mounts.
    ///
    /// # Errors
    /// It is gone.
    pub fn way_out(&self, mounts: &Table, base: &Path) -> Result<Option<String>, NodeError> {
        let mounts = mounts.control_groups();
        let unified = is_unified(&self.own.control_groups());
        let groups: Vec<Group<'_>> = parse(&self.groups).collect();
        let root = InRoot::open(Path::new(&format!("/proc/{}/root", self.pid)))?;
        let is_own = |mount: &Mount<'_>| {
            let group = groups.iter().find(|group| group.is_in(mount));
            group.is_some_and(|group| group.path != "/" && is_within(&mount.root, group.path))
        };
        let base = base.to_string_lossy();
        let open = mounts.iter().find(|mount| {
            let writable = holds_filters(mount, unified) && !mount.has("ro");
            // What another mount covers cannot be reached.
            writable && is_within(&mount.point, &base) && !is_own(mount) && root.is_writable(&mount.point, mount.dev)
        });
        Ok(open.map(|mount| mount.point.to_string()))
    }

    /// The first of these character devices that its version 1 filter does not close, tried: the kernel asks it for
    /// `access(2)` too, which opens no driver and minds no `nodev`. A child process makes the nodes in `scratch`, joins the
    /// group, asks, and is gone.
    ///
    /// # Errors
    /// It cannot be told.
    pub fn not_closed(&self, numbers: &[(u32, u32)], scratch: &Path) -> Result<Option<(u32, u32)>, NodeError> {
        let group = filtering(&self.groups, false);
        let folder = group.and_then(|group| self.own.control_groups().iter().find_map(|mount| group.folder(mount)));
        let unseen = || NodeError::odd("find", "its device filter", "it is not shown by any mount here");
        let folder = folder.ok_or_else(unseen)?;
        let work = || match tried(numbers, &folder, scratch) {
            Ok(open) => open.map_or("none".to_owned(), |(major, minor)| format!("{major}:{minor}")),
            Err(why) => why.to_string(),
        };
        let failed = |why: &str| NodeError::odd("try the device filter of", folder.as_str(), why);
        let told = sys::in_child(look::PATIENCE_WITH_US, work).map_err(|e| failed(&e.to_string()))?;
        let told = told.ok_or_else(|| NodeError::late("try the device filter of", folder.as_str()))?;
        match told.split_once(':').map(|(major, minor)| (major.parse(), minor.parse())) {
            Some((Ok(major), Ok(minor))) => Ok(Some((major, minor))),
            _ if told == "none" => Ok(None),
            _ => Err(failed(&told)),
        }
    }
}

/// The group whose filter decides.
fn filtering(groups: &[u8], unified: bool) -> Option<Group<'_>> {
    parse(groups).find(|group| if unified { group.is_v2() } else { group.has("devices") })
}

fn tried(numbers: &[(u32, u32)], group: &str, scratch: &Path) -> std::io::Result<Option<(u32, u32)>> {
    let path = scratch.join(format!(".node-{}", std::process::id()));
    let mut nodes = Vec::with_capacity(numbers.len());
    for &(major, minor) in numbers {
        mknod(&path, SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, makedev(major.into(), minor.into()))?;
        let held = file::handle(&path);
        std::fs::remove_file(&path)?;
        nodes.push(held?);
    }
    std::fs::write(format!("{group}/cgroup.procs"), "0")?;
    let is_open = |node: &OwnedFd| {
        let path = format!("/proc/self/fd/{}", node.as_raw_fd());
        [AccessFlags::R_OK, AccessFlags::W_OK].into_iter().any(|way| access(path.as_str(), way) != Err(Errno::EPERM))
    };
    Ok(numbers.iter().zip(&nodes).find(|(_, node)| is_open(node)).map(|(number, _)| *number))
}

/// Whether runtimes put device filters into version 2: they go by what is mounted at `/sys/fs/cgroup`.
fn is_unified(mounts: &[Mount<'_>]) -> bool {
    let usual = mounts.iter().any(|mount| mount.point == "/sys/fs/cgroup" && mount.fs == "cgroup2");
    usual || !mounts.iter().any(is_v1_devices)
}

fn is_v1_devices(mount: &Mount<'_>) -> bool {
    mount.fs == "cgroup" && mount.super_options.split(',').any(|option| option == "devices")
}

fn holds_filters(mount: &Mount<'_>, unified: bool) -> bool {
    is_v1_devices(mount) || (unified && mount.fs == "cgroup2")
}

/// Where the hierarchies that hold device filters are mounted, rising; what another mount covers is left out.
pub(crate) fn filters_mounted(table: &Table) -> Vec<String> {
    let mounts = table.control_groups();
    let unified = is_unified(&mounts);
    let is_seen =
        |mount: &&Mount<'_>| stat(mount.point.as_ref()).is_ok_and(|stat| devices::numbers(stat.st_dev) == mount.dev);
    let holding = mounts.iter().filter(|mount| holds_filters(mount, unified)).filter(is_seen);
    let mut points: Vec<String> = holding.map(|mount| mount.point.to_string()).collect();
    contract::order::sort(&mut points);
    points.dedup();
    points
}

fn programs(folder: &str) -> Result<Vec<u32>, NodeError> {
    of_programs(folder, sys::device_programs)
}

fn of_programs<T>(folder: &str, ask: impl FnOnce(&File) -> nix::Result<T>) -> Result<T, NodeError> {
    let failed = |e: std::io::Error| NodeError::new("ask for the device programs of", folder, e);
    let group = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(folder).map_err(failed)?;
    ask(&group).map_err(|e| failed(e.into()))
}

/// Whether the programs nearest to a group, its own or those of one above, are loose.
fn is_loose(folder: &str, top: &str) -> Result<bool, NodeError> {
    for folder in Path::new(folder).ancestors().take_while(|folder| folder.starts_with(top)) {
        if let Some(loose) = of_programs(&folder.to_string_lossy(), sys::is_loose)? {
            return Ok(loose);
        }
    }
    Ok(false)
}

fn instructions(program: u32, folder: &str) -> Result<Vec<u64>, NodeError> {
    let attempt = "read the device programs of";
    let hidden = "the kernel hides one; set the sysctl kernel.kptr_restrict to 1 or net.core.bpf_jit_harden to 0, \
                  or go without verification: [policy] verify = \"off\"";
    match sys::instructions(program) {
        Ok(code) => code.ok_or_else(|| NodeError::odd(attempt, folder, hidden)),
        Err(e) => Err(NodeError::new(attempt, folder, e)),
    }
}

/// The version of the control groups that low-level runtimes put device filters into here: 1 (lists) or 2 (programs).
///
/// # Errors
/// Our mounts cannot be read.
pub fn version_of_filters() -> Result<u8, NodeError> {
    Ok(if is_unified(&mountinfo::own()?.control_groups()) { 2 } else { 1 })
}

/// Where a process is in one hierarchy: a line of `/proc/<pid>/cgroup` (`cgroups(7)`).
#[derive(Debug, PartialEq, Eq)]
struct Group<'a> {
    /// Version 1: `cpu,cpuacct` or `name=systemd`; version 2: empty.
    controllers: &'a str,
    path: &'a str,
}

fn parse(bytes: &[u8]) -> impl Iterator<Item = Group<'_>> {
    bytes.split(|&b| b == b'\n').filter_map(|line| {
        let mut parts = std::str::from_utf8(line).ok()?.splitn(3, ':').skip(1);
        Some(Group { controllers: parts.next()?, path: parts.next().filter(|path| path.starts_with('/'))? })
    })
}

impl Group<'_> {
    fn is_v2(&self) -> bool {
        self.controllers.is_empty()
    }

    fn has(&self, controller: &str) -> bool {
        self.controllers.split(',').any(|one| one == controller)
    }

    /// The group's folder under this mount, when it is a mount of its hierarchy that shows it.
    fn folder(&self, mount: &Mount<'_>) -> Option<String> {
        if self.is_in(mount) { below(mount, self.path) } else { None }
    }

    /// Whether the mount is one of its hierarchy.
    fn is_in(&self, mount: &Mount<'_>) -> bool {
        match mount.fs {
            "cgroup2" => self.is_v2(),
            "cgroup" => {
                self.controllers.split(',').all(|one| mount.super_options.split(',').any(|option| option == one))
                    && !self.is_v2()
            }
            _ => false,
        }
    }
}

/// A path of a hierarchy as a path under its mount; `None` when the mount shows another part of the hierarchy.
fn below(mount: &Mount<'_>, path: &str) -> Option<String> {
    let rest = if mount.root == "/" { path } else { path.strip_prefix(mount.root.as_ref())? };
    match rest {
        "" | "/" => Some(mount.point.as_ref().to_owned()),
        rest if rest.starts_with('/') => Some(format!("{}{rest}", mount.point)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
