//! Control groups, made with their device filter before the container's first process is in them.
//!
//! libcontainer would make the group and filter nothing on version 2, and on version 1 only what the list itself closes. The
//! rest of the limits stays its work.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use libcgroups::common::{CgroupSetup, DEFAULT_CGROUP_ROOT, get_all_pids, get_cgroup_setup};
use libcgroups::v1::ControllerType;
use libcgroups::v1::util::get_subsystem_mount_point;
use nix::errno::Errno;

/// Of `linux/bpf.h`.
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_ATTACH: libc::c_int = 8;
const BPF_PROG_TYPE_CGROUP_DEVICE: u64 = 15;
const BPF_CGROUP_DEVICE: u64 = 6;
const BPF_F_ALLOW_MULTI: u64 = 2;

/// Whether this machine's containers are in control groups of version 2.
///
/// # Errors
/// What keeps that from being known.
pub(crate) fn is_v2() -> Result<bool, String> {
    let setup =
        get_cgroup_setup().map_err(|cause| format!("cannot tell control groups in {DEFAULT_CGROUP_ROOT}: {cause}"))?;
    Ok(matches!(setup, CgroupSetup::Unified))
}

/// Where a group lies; nothing for a path that climbs.
pub(crate) fn folder(path: &Path) -> Option<PathBuf> {
    let climbs = path.components().any(|part| matches!(part, Component::ParentDir));
    (!climbs).then(|| Path::new(DEFAULT_CGROUP_ROOT).join(path.strip_prefix("/").unwrap_or(path)))
}

/// Of version 2: makes a group, lends it its parents' controllers as far as they have any, puts a device filter on it, and
/// gives its folder.
///
/// # Errors
/// What could not be made, and where.
pub(crate) fn prepare(path: &Path, program: &[u64]) -> Result<PathBuf, String> {
    let full = folder(path).ok_or_else(|| format!("the control group {} climbs", path.display()))?;
    let controllers = fs::read_to_string(Path::new(DEFAULT_CGROUP_ROOT).join("cgroup.controllers")).unwrap_or_default();
    let mut parent = PathBuf::from(DEFAULT_CGROUP_ROOT);
    for part in full.strip_prefix(DEFAULT_CGROUP_ROOT).into_iter().flatten() {
        for controller in controllers.split_whitespace() {
            // One that cannot be lent is missed by the limit that needs it.
            let _ = fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        parent.push(part);
        match fs::create_dir(&parent) {
            Err(cause) if cause.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(format!("cannot make the control group {}: {cause}", parent.display()));
            }
            _ => {}
        }
    }
    attach(&full, program)?;
    Ok(full)
}

/// A group in the hierarchy of devices, of version 1.
fn of_devices(path: &Path) -> Result<PathBuf, String> {
    let mount = get_subsystem_mount_point(&ControllerType::Devices)
        .map_err(|cause| format!("cannot find the control groups of devices: {cause}"))?;
    if path.components().any(|part| matches!(part, Component::ParentDir)) {
        return Err(format!("the control group {} climbs", path.display()));
    }
    Ok(mount.join(path.strip_prefix("/").unwrap_or(path)))
}

/// That a group below a container's is there: libcontainer would make one.
///
/// # Errors
/// In runc's words, that it is not.
pub(crate) fn has_inner(path: &Path, inner: &str) -> Result<(), String> {
    let group = if is_v2()? { folder(path).ok_or("the control group climbs")? } else { of_devices(path)? };
    let group = group.join(inner.trim_start_matches('/'));
    let missing = || format!("adding pid to {}/cgroup.procs: no such file or directory", group.display());
    group.is_dir().then_some(()).ok_or_else(missing)
}

/// Of version 1: makes a group whose device list is closed before libcontainer adds to it, as it adds to whatever is there,
/// and gives its folder. A group that was there is closed where all is open in it.
///
/// # Errors
/// What could not be made or closed, and where.
pub(crate) fn close(path: &Path) -> Result<PathBuf, String> {
    let failed =
        |what: &str, at: &Path, cause: &dyn std::fmt::Display| format!("cannot {what} {}: {cause}", at.display());
    let folder = of_devices(path)?;
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent).map_err(|cause| failed("make the control group", parent, &cause))?;
    }
    let open = match fs::create_dir(&folder) {
        Ok(()) => true,
        Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {
            let list = folder.join("devices.list");
            fs::read_to_string(&list).map_err(|cause| failed("read", &list, &cause))?.starts_with("a ")
        }
        Err(cause) => return Err(failed("make the control group", &folder, &cause)),
    };
    if open {
        let deny = folder.join("devices.deny");
        fs::write(&deny, "a").map_err(|cause| failed("close all devices in", &deny, &cause))?;
    }
    Ok(folder)
}

/// Puts a device filter on a group that exists. All filters of a group and its parents must allow what is opened.
///
/// # Errors
/// What the kernel does not let us do.
pub(crate) fn attach(folder: &Path, program: &[u64]) -> Result<(), String> {
    let failed = |what: &str, cause: &dyn std::fmt::Display| format!("cannot {what} {}: {cause}", folder.display());
    let group = File::open(folder).map_err(|cause| failed("open the control group", &cause))?;
    let license = c"Apache-2.0";
    let mut load = [0_u64; 16];
    load[0] = BPF_PROG_TYPE_CGROUP_DEVICE | (u64::try_from(program.len()).unwrap_or(u64::MAX) << 32);
    load[1] = program.as_ptr() as u64;
    load[2] = license.as_ptr() as u64;
    let number = bpf(BPF_PROG_LOAD, &mut load).map_err(|cause| failed("load the device filter of", &cause))?;
    // SAFETY: the kernel just gave us this descriptor; nobody else has it.
    let loaded = unsafe { OwnedFd::from_raw_fd(number) };
    let mut attach = [0_u64; 16];
    attach[0] = half(group.as_raw_fd()) | (half(loaded.as_raw_fd()) << 32);
    attach[1] = BPF_CGROUP_DEVICE | (BPF_F_ALLOW_MULTI << 32);
    bpf(BPF_PROG_ATTACH, &mut attach).map(drop).map_err(|cause| failed("attach the device filter of", &cause))
}

fn half(number: RawFd) -> u64 {
    number.unsigned_abs().into()
}

/// `bpf(2)`. `attributes` are the words of `union bpf_attr`.
fn bpf(command: libc::c_int, attributes: &mut [u64; 16]) -> nix::Result<RawFd> {
    // SAFETY: the kernel reads no more than we say, and what the words point at lives in our caller until this returns.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(attributes)) };
    Errno::result(answer).map(|number| RawFd::try_from(number).unwrap_or(-1))
}

/// Makes what is mounted at a container's path, and with `inner` in it, read-only: of version 1 libcontainer mounts each
/// hierarchy writable, whatever the spec says, and `/dev`. Before the container starts, so that nothing in it is open yet.
///
/// # Errors
/// What the kernel does not let us do.
pub(crate) fn make_read_only(pid: i32, path: &str, inner: bool) -> Result<(), String> {
    let depth = if inner { libc::AT_RECURSIVE } else { 0 };
    let failed = |cause: &dyn std::fmt::Display| format!("cannot make {path} of the container read-only: {cause}");
    let namespace = format!("/proc/{pid}/ns/mnt");
    let same = |path: &str| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).map_err(|cause| failed(&cause));
    if same(&namespace)? == same("/proc/self/ns/mnt")? {
        return Err(failed(&"its mounts are the host's"));
    }
    let namespace = File::open(namespace).map_err(|cause| failed(&cause))?;
    let place = std::ffi::CString::new(path).map_err(|cause| failed(&cause))?;
    let enter = move || {
        // attr_set, attr_clr, propagation, userns_fd.
        let attributes: [u64; 4] = [libc::MOUNT_ATTR_RDONLY, 0, 0, 0];
        // SAFETY: these change this thread alone, which ends with them; the kernel reads what lives until they return.
        unsafe {
            Errno::result(libc::unshare(libc::CLONE_FS))?;
            Errno::result(libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS))?;
            Errno::result(libc::syscall(
                libc::SYS_mount_setattr,
                libc::AT_FDCWD,
                place.as_ptr(),
                depth,
                attributes.as_ptr(),
                size_of_val(&attributes),
            ))
        }
        .map(drop)
    };
    match std::thread::spawn(enter).join() {
        Ok(done) => done.map_err(|cause| failed(&cause)),
        Err(_) => Err(failed(&"the thread that should have done it died")),
    }
}

/// A group's folder in each hierarchy, where it has one; none for the top, which is everybody's, and for a path that climbs.
fn everywhere(path: &Path) -> Vec<PathBuf> {
    let Some(full) = folder(path) else { return Vec::new() };
    let below = full.strip_prefix(DEFAULT_CGROUP_ROOT).ok().filter(|below| !below.as_os_str().is_empty());
    let Some(below) = below else { return Vec::new() };
    let hierarchies = match is_v2() {
        Ok(true) => vec![PathBuf::from(DEFAULT_CGROUP_ROOT)],
        _ => fs::read_dir(DEFAULT_CGROUP_ROOT).into_iter().flatten().flatten().map(|entry| entry.path()).collect(),
    };
    hierarchies.iter().map(|root| root.join(below)).filter(|group| group.is_dir()).collect()
}

/// Whether a group may be one of systemd's, which lies elsewhere: `slice:prefix:name`, and none is called so.
///
/// # Errors
/// What keeps that from being known.
pub(crate) fn named_for_systemd(path: &Path) -> Result<bool, String> {
    Ok(is_v2()? && path.to_string_lossy().split(':').count() == 3 && everywhere(path).is_empty())
}

/// The processes of a group and of those below it, in all hierarchies.
///
/// # Errors
/// Why they cannot be told.
pub(crate) fn processes(path: &Path) -> Result<Vec<i32>, String> {
    let mut found = Vec::new();
    for group in everywhere(path) {
        let here = get_all_pids(&group);
        let here =
            here.map_err(|cause| format!("cannot tell who is in the control group {}: {cause}", group.display()));
        found.extend(here?.iter().map(|pid| pid.as_raw()));
    }
    Ok(found)
}

/// That nobody is in a group: it would get the container's device filter, and end with it.
///
/// # Errors
/// That somebody is, or why that cannot be told.
pub(crate) fn free(path: &Path) -> Result<(), String> {
    if processes(path)?.is_empty() {
        return Ok(());
    }
    Err(format!("the control group {} has processes already", path.display()))
}

/// Lets a group's processes run, so that they can die. Where that fails they are found alive.
pub(crate) fn thaw(path: &Path) {
    for group in everywhere(path) {
        for (file, thawed) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
            let _ = Some(group.join(file)).filter(|file| file.exists()).map(|file| fs::write(file, thawed));
        }
    }
}

/// Removes a group with those in it. Processes are gone.
///
/// # Errors
/// Why one is left.
pub(crate) fn remove(path: &Path) -> Result<(), String> {
    remove_inner(path);
    for group in everywhere(path) {
        match fs::remove_dir(&group) {
            // Hierarchies may have two names.
            Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                return Err(format!("cannot remove the control group {}: {cause}", group.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes the groups that a container made in its own, which libcontainer leaves, and stumbles over. Processes are gone.
pub(crate) fn remove_inner(path: &Path) {
    everywhere(path).iter().for_each(|group| remove_below(group));
}

fn remove_below(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&entry.path());
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// A session keyring of the container's own, for all that comes of this process: the caller's keys stay outside. Kernels
/// without keyrings, and seccomp filters around us, may have none to give.
///
/// # Errors
/// Why there is none, where there should be.
pub(crate) fn own_keyring(id: &str) -> Result<(), String> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    let name = std::ffi::CString::new(format!("_ses.{id}")).map_err(|_| "an id with a NUL".to_owned())?;
    // SAFETY: the name is a C string that lives until this returns.
    let answer = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, name.as_ptr()) };
    match Errno::result(answer) {
        Ok(_) | Err(Errno::ENOSYS | Errno::EPERM) => Ok(()),
        Err(cause) => Err(format!("cannot make the session keyring of {id}: {cause}")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_of_the_host_becomes_read_only() {
        let own = i32::try_from(std::process::id()).unwrap();
        let refused = super::make_read_only(own, "/nonesuch", false).unwrap_err();
        assert!(refused.ends_with("read-only: its mounts are the host's"), "{refused}");
    }
}
