//! Processes by number and start time: a number alone is used again.

use crate::{devices, file, sys};

/// A process, as it can be found again on the same boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since the boot (`proc_pid_stat(5)`, field 22).
    pub start: u64,
}

/// This process; start 0 when `/proc` cannot be read.
#[must_use]
pub fn me() -> Process {
    let pid = std::process::id();
    Process { pid, start: start_time(pid).unwrap_or(0) }
}

/// The process of this number; `None` when there is none.
#[must_use]
pub fn of(pid: u32) -> Option<Process> {
    start_time(pid).map(|start| Process { pid, start })
}

/// What decides which processes and which control groups this process sees: the inodes of its pid and cgroup namespaces. 0
/// where that cannot be told.
#[must_use]
pub fn namespaces() -> (u64, u64) {
    let inode = |path| nix::sys::stat::stat(path).map_or(0, |stat| stat.st_ino);
    (inode("/proc/self/ns/pid"), inode("/proc/self/ns/cgroup"))
}

/// Inode of the first user namespace in nsfs (`PROC_USER_INIT_INO`, `linux/proc_ns.h`).
const FIRST_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// Whether this process is in the machine's own user namespace, where 0 is the machine's root.
#[must_use]
pub fn in_first_user_namespace() -> bool {
    namespace("/proc/self/ns/user").is_some_and(|(_, inode)| inode == FIRST_USER_NAMESPACE)
}

/// Whether this process is the machine's root: not a user without root, and not the root of a user namespace.
#[must_use]
pub fn is_nodes_root() -> bool {
    nix::unistd::geteuid().is_root() && in_first_user_namespace()
}

/// Whether a process is this user's: it runs as that user, or in a user namespace of theirs or below one.
#[must_use]
pub fn is_of(pid: u32, uid: u32) -> bool {
    let status = file::read(&format!("/proc/{pid}/status")).unwrap_or_default();
    let runs_as = |status: &str| {
        let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        ids.split_ascii_whitespace().next()?.parse::<u32>().ok()
    };
    if std::str::from_utf8(&status).ok().and_then(runs_as) == Some(uid) {
        return true;
    }
    let Ok(mut space) = std::fs::File::open(format!("/proc/{pid}/ns/user")) else { return false };
    // The kernel nests 32 of them.
    for _ in 0..33 {
        let first =
            space.metadata().is_ok_and(|meta| std::os::unix::fs::MetadataExt::ino(&meta) == FIRST_USER_NAMESPACE);
        if first {
            return false;
        }
        match sys::namespace_owner(&space) {
            Ok((owner, _)) if owner == uid => return true,
            Ok((_, Some(above))) => space = above.into(),
            _ => return false,
        }
    }
    false
}

/// Who this process is where its user namespace is not the machine's, in words: its user, and the mapping of users.
#[must_use]
pub fn mapped() -> Option<String> {
    let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    let map: Vec<&str> = map.split_whitespace().collect();
    let whole = ["0", "0", "4294967295"];
    (map != whole).then(|| format!("user {} of the mapping \"{}\"", nix::unistd::geteuid(), map.join(" ")))
}

/// Device and inode of the namespace behind a path; links of procfs are followed, as runtimes do.
#[must_use]
pub fn namespace(path: &str) -> Option<(u64, u64)> {
    nix::sys::stat::stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// The mount namespace of a process that is in our own pid namespace; of another one its processes all end with its first.
#[must_use]
pub fn mounts_among_ours(pid: u32) -> Option<u64> {
    let inode = |path: String| namespace(&path).map(|(_, inode)| inode);
    (inode(format!("/proc/{pid}/ns/pid"))? == namespaces().0).then(|| inode(format!("/proc/{pid}/ns/mnt")))?
}

/// NVIDIA's own major, which is registered for it.
const NVIDIA: u32 = 195;

/// A process in the mount namespace of this inode that has NVIDIA's device of this minor open. One look per process, and at
/// the open files of those in the namespace alone.
#[must_use]
pub fn with_open(mounts: u64, minor: u32) -> Option<u32> {
    let numbers = |path: &str| {
        let list = std::fs::read_dir(path).into_iter().flatten();
        list.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok()).collect::<Vec<_>>()
    };
    let is_there = |pid: &u32| namespace(&format!("/proc/{pid}/ns/mnt")).is_some_and(|(_, inode)| inode == mounts);
    let has_open = |pid: &u32| {
        let files = numbers(&format!("/proc/{pid}/fd"));
        files.iter().any(|fd| device(&format!("/proc/{pid}/fd/{fd}")) == Some((NVIDIA, minor)))
    };
    numbers("/proc").into_iter().find(|pid| is_there(pid) && has_open(pid))
}

/// What a process may ever have, and among whom it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Its bounding set of capabilities.
    pub capabilities: u64,
    /// It is in this process's own pid namespace.
    pub same_pids: bool,
    /// It is in this process's own user namespace, so that its capabilities reach as far as ours.
    pub same_user: bool,
}

/// The bounds of a process; `None` when it is gone, or they cannot be told.
#[must_use]
pub fn bounds(pid: u32) -> Option<Bounds> {
    let status = file::read(&format!("/proc/{pid}/status")).ok()?;
    let (capabilities, same_pids) = bounding_and_pids(std::str::from_utf8(&status).ok()?)?;
    let user = |who: &str| namespace(&format!("/proc/{who}/ns/user"));
    Some(Bounds { capabilities, same_pids, same_user: user(&pid.to_string())? == user("self")? })
}

/// The bounding set, and whether the process has one number alone: seen from its own pid namespace. The name before them
/// has its line breaks escaped.
fn bounding_and_pids(status: &str) -> Option<(u64, bool)> {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
    let capabilities = u64::from_str_radix(field("CapBnd:")?.trim(), 16).ok()?;
    Some((capabilities, field("NSpid:")?.split_ascii_whitespace().count() == 1))
}

/// The character devices (major, minor) among so many of this process's descriptors, with the descriptors.
#[must_use]
pub fn open_devices(first: u64, many: u64) -> Vec<(u64, (u32, u32))> {
    let Ok(list) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let named = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<u64>().ok();
    let wanted = list.filter_map(named).filter(|fd| *fd >= first && fd - first < many);
    wanted.filter_map(|fd| Some((fd, device(&format!("/proc/self/fd/{fd}"))?))).collect()
}

fn device(path: &str) -> Option<(u32, u32)> {
    let stat = nix::sys::stat::stat(path).ok()?;
    file::is(stat.st_mode, nix::sys::stat::SFlag::S_IFCHR).then(|| devices::numbers(stat.st_rdev))
}

/// When the process started, in clock ticks since the boot; `None` when there is no such process.
#[must_use]
pub fn start_time(pid: u32) -> Option<u64> {
    look(pid).map(|(_, start)| start)
}

/// Whether it is the same process and still runs: a zombie does not.
#[must_use]
pub fn is_alive(pid: u32, start: u64) -> bool {
    look(pid).is_some_and(|(state, started)| started == start && !matches!(state, 'Z' | 'X' | 'x'))
}

fn look(pid: u32) -> Option<(char, u64)> {
    state_and_start(&file::read(&format!("/proc/{pid}/stat")).ok()?)
}

/// State and start time from a `stat` line; the name before them may hold blanks and parentheses.
fn state_and_start(line: &[u8]) -> Option<(char, u64)> {
    let after = line.iter().rposition(|&b| b == b')')?;
    let fields = std::str::from_utf8(line.get(after + 1..)?).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is field 3, the start time field 22.
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    #[test]
    fn we_are_alive() {
        let me = me();
        assert!(me.start > 0);
        assert!(is_alive(me.pid, me.start));
        assert!(!is_alive(me.pid, me.start + 1));
    }

    #[test]
    fn bounds_are_read_and_doubt_is_none() {
        let ours = bounds(std::process::id()).unwrap();
        assert!(ours.same_pids && ours.same_user, "{ours:?}");
        assert_eq!(bounds(u32::MAX), None);
        for (status, expected) in [
            ("Name:\tx\\nCapBnd:\t0\nNSpid:\t7\t1\nCapBnd:\t00000000a80425fb\n", Some((0xa804_25fb, false))),
            ("NSpid:\t7\nCapBnd:\t000001ffffffffff\n", Some((0x1ff_ffff_ffff, true))),
            ("NSpid:\t7\n", None),
            ("CapBnd:\t00\n", None),
            ("NSpid:\t7\nCapBnd:\tx\n", None),
        ] {
            assert_eq!(bounding_and_pids(status), expected, "{status}");
        }
    }

    #[test]
    fn a_process_is_its_users_in_their_user_namespaces_too() {
        let own = nix::unistd::getuid().as_raw();
        assert!(is_of(std::process::id(), own));
        assert!(!is_of(std::process::id(), 61_234) && !is_of(u32::MAX, own));
        if !is_nodes_root() {
            println!("skipped: only root runs programs as others");
            return;
        }
        assert!(!is_of(1, 61_234));
        // As another user, who makes a user namespace; root gives it ids, and it becomes one of those, who is nobody's outside.
        let script = "echo; read line; exec setpriv --reuid 0 --regid 0 --clear-groups sh -c 'echo; exec sleep 60'";
        let words = [
            "--reuid",
            "61234",
            "--regid",
            "61234",
            "--clear-groups",
            "unshare",
            "--user",
            "--keep-caps",
            "sh",
            "-c",
            script,
        ];
        let mut command = Command::new("setpriv");
        let command = command.args(words).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = |child: &mut std::process::Child| {
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        };
        said(&mut child);
        for map in ["uid_map", "gid_map"] {
            std::fs::write(format!("/proc/{}/{map}", child.id()), "0 712000 10").unwrap();
        }
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
        said(&mut child);
        let found = [712_000, 61_234, 61_235, 0].map(|uid| is_of(child.id(), uid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [true, true, false, false]);
    }

    #[test]
    fn a_zombie_is_not() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let start = start_time(child.id()).unwrap();
        assert!(is_alive(child.id(), start));
        child.kill().unwrap();
        while is_alive(child.id(), start) {
            std::thread::yield_now();
        }
        assert_eq!(start_time(child.id()), Some(start), "not waited for yet");
        child.wait().unwrap();
        assert_eq!(start_time(child.id()), None);
    }

    #[test]
    fn who_has_a_device_open_is_found_in_its_mount_namespace_alone() {
        let mounts = mounts_among_ours(std::process::id()).unwrap();
        assert_eq!(namespace("/proc/self/ns/mnt").map(|(_, inode)| inode), Some(mounts));
        assert_eq!(mounts_among_ours(u32::MAX), None);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node");
        let number = nix::sys::stat::makedev(u64::from(NVIDIA), 251);
        let made = nix::sys::stat::mknod(&path, nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::S_IRUSR, number);
        if made.is_err() {
            println!("skipped: only root makes device nodes");
            return;
        }
        assert_eq!(with_open(mounts, 251), None);
        // No driver answers for this number: only a descriptor without access can be had.
        let flags = nix::fcntl::OFlag::O_PATH | nix::fcntl::OFlag::O_CLOEXEC;
        let open = nix::fcntl::open(&path, flags, nix::sys::stat::Mode::empty()).unwrap();
        assert_eq!(with_open(mounts, 251), Some(std::process::id()));
        assert_eq!((with_open(mounts, 252), with_open(mounts + 1, 251)), (None, None));
        drop(open);
        assert_eq!(with_open(mounts, 251), None);
    }

    proptest! {
        #[test]
        fn names_do_not_mislead(name in prop::collection::vec(any::<u8>(), 0..16), start in any::<u64>()) {
            let mut line = b"7 (".to_vec();
            line.extend_from_slice(&name);
            line.extend_from_slice(format!(") S 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 {start} 2 3\n").as_bytes());
            prop_assert_eq!(state_and_start(&line), Some(('S', start)));
        }

        #[test]
        fn anything_is_read(line in prop::collection::vec(prop_oneof![any::<u8>(), Just(b')'), Just(b' ')], 0..80)) {
            let _ = state_and_start(&line);
        }
    }
}
