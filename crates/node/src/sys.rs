//! The few system calls that nix does not have. The only module of this crate with `unsafe`.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use crate::error::NodeError;
use crate::look::Stat;

/// 128 random bits in hexadecimal, from the kernel's generator.
///
/// # Errors
/// The kernel has no generator (`getrandom(2)`).
pub fn random_hex128() -> Result<String, NodeError> {
    let mut bytes = [0_u8; 16];
    // SAFETY: the buffer is ours, and its length is what we say.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match Errno::result(got) {
        Ok(16) => Ok(format!("{:032x}", u128::from_ne_bytes(bytes))),
        Ok(_) => Err(NodeError::odd("read", "the kernel's random numbers", "fewer than asked for")),
        Err(e) => Err(NodeError::new("read", "the kernel's random numbers", e)),
    }
}

/// Whether the kernel can change a whole tree of mounts at once: `mount_setattr(2)`, Linux 5.12.
#[must_use]
pub fn has_mount_attributes() -> bool {
    let nothing = std::ptr::null::<libc::c_void>();
    // SAFETY: no attributes are given, which the kernel refuses before it looks at anything.
    let done = unsafe { libc::syscall(libc::SYS_mount_setattr, -1, c"".as_ptr(), 0, nothing, 0_usize) };
    Errno::result(done) != Err(Errno::ENOSYS)
}

/// Who made a user namespace, and the one that it lies in, if that is not above ours (`ioctl_nsfs(2)`).
pub(crate) fn namespace_owner(space: &File) -> nix::Result<(u32, Option<OwnedFd>)> {
    const NS_GET_PARENT: libc::c_ulong = 0xb702;
    const NS_GET_OWNER_UID: libc::c_ulong = 0xb704;
    let mut owner: libc::uid_t = 0;
    // SAFETY: the kernel writes one `uid_t`, or fails where the file is no user namespace.
    Errno::result(unsafe { libc::ioctl(space.as_raw_fd(), NS_GET_OWNER_UID as _, &raw mut owner) })?;
    // SAFETY: it takes no argument, and gives a new descriptor.
    let above = Errno::result(unsafe { libc::ioctl(space.as_raw_fd(), NS_GET_PARENT as _) });
    // SAFETY: the descriptor is new, and nobody else's.
    Ok((owner, above.ok().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })))
}

/// The first descriptor that systemd hands to a program that it starts for a socket (`sd_listen_fds(3)`), or `None` where it
/// gave none to this process. To be asked once: whoever asks owns it.
#[must_use]
pub fn handed_socket() -> Option<OwnedFd> {
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let ours = number("LISTEN_PID") == Some(std::process::id()) && number("LISTEN_FDS") == Some(1);
    // SAFETY: by that protocol descriptor 3 is this process's to take over.
    let socket = unsafe { ours.then(|| OwnedFd::from_raw_fd(3)) }?;
    nix::fcntl::fcntl(&socket, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC)).ok()?;
    Some(socket)
}

/// Attributes from the caches, however old: no file system's server is asked. `fstatat` with the same flags asks on newer
/// kernels (seen on 6.18).
pub(crate) fn stat_cached(handle: &OwnedFd) -> nix::Result<Stat> {
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path ends with NUL, and the kernel writes one `statx`.
    let done =
        unsafe { libc::statx(handle.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_BASIC_STATS, found.as_mut_ptr()) };
    Errno::result(done)?;
    // SAFETY: all zeros is a `statx` too.
    let found = unsafe { found.assume_init() };
    Ok(Stat {
        id: ((found.stx_dev_major, found.stx_dev_minor), found.stx_ino),
        mode: found.stx_mode.into(),
        rdev: (found.stx_rdev_major, found.stx_rdev_minor),
        size: found.stx_size,
    })
}

/// Largest file that a hardened process may write: the audit log is the largest that we have.
const MOST_WRITTEN: libc::rlim_t = 1 << 30;
/// Most descriptors that it may have.
const MOST_OPEN: libc::rlim_t = 1024;

/// Takes from this process what a tenant's file or file system could use against it, before it looks at one: descriptors
/// from 3 on but `keep`, the engine's environment, signal actions and working folder, core dumps, rights gained by running
/// something. For processes that become no other program: all of it would be handed on.
pub fn harden(keep: Option<&OwnedFd>) {
    let keep = keep.map_or(2, |fd| fd.as_raw_fd().unsigned_abs());
    let limit = |resource, most: libc::rlim_t| {
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads and writes one `rlimit`, which is ours.
        unsafe {
            libc::getrlimit(resource, &raw mut now);
            let most = most.min(now.rlim_max);
            libc::setrlimit(resource, &libc::rlimit { rlim_cur: most.min(now.rlim_cur), rlim_max: most });
        }
    };
    // SAFETY: every call takes numbers, a string that ends with NUL or a set of ours. We have one thread, nobody has read a
    // variable by reference, and the descriptors that are closed are used by nobody: a child has no use for its parent's, and
    // a hook has none but its standard ones.
    unsafe {
        for (first, last) in [(3, keep.saturating_sub(1)), (keep + 1, u32::MAX)] {
            if first <= last {
                libc::syscall(libc::SYS_close_range, first, last, 0);
            }
        }
        libc::clearenv();
        libc::chdir(c"/".as_ptr());
        libc::umask(0o022);
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = MaybeUninit::<libc::sigset_t>::zeroed();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
    limit(libc::RLIMIT_CORE, 0);
    limit(libc::RLIMIT_NOFILE, MOST_OPEN);
    limit(libc::RLIMIT_FSIZE, MOST_WRITTEN);
}

/// Has a child process do `work` and gives what it returned; nothing when it was not done in time. It is killed then.
pub(crate) fn in_child(limit: Duration, work: impl FnOnce() -> String) -> io::Result<Option<String>> {
    let (ours, theirs) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    // SAFETY: the child runs `work`, writes and leaves by `_exit`; it runs no destructor and no exit handler of ours. The
    // static programs have one thread, so it holds no lock that another thread had; glibc sees to its own allocator.
    let child = Errno::result(unsafe { libc::fork() })?;
    if child == 0 {
        // SAFETY: a number; whoever waits for the answer is gone then.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        harden(Some(&theirs));
        let told = File::from(theirs).write_all(work().as_bytes()).is_ok();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!told)) };
    }
    drop(theirs);
    let answer = read_within(&File::from(ours), limit);
    // SAFETY: the child is ours and was not waited for. One that cannot be killed is left to whoever inherits it.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), if answer.is_some() { 0 } else { libc::WNOHANG });
    }
    Ok(answer)
}

/// Everything up to the end of a pipe, if the end comes in time.
fn read_within(mut pipe: &File, limit: Duration) -> Option<String> {
    let end = Instant::now() + limit;
    let mut all = Vec::new();
    let mut part = [0_u8; 4096];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let mut wait = libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one `pollfd`, which is ours.
        let ready = unsafe { libc::poll(&raw mut wait, 1, i32::try_from(left.as_millis()).unwrap_or(i32::MAX)) };
        if ready <= 0 {
            return None;
        }
        match pipe.read(&mut part).ok()? {
            0 => return String::from_utf8(all).ok().filter(|text| !text.is_empty()),
            got => all.extend_from_slice(part.get(..got)?),
        }
    }
}

const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_PROG_QUERY: libc::c_int = 16;
const BPF_CGROUP_DEVICE: u64 = 6;
const BPF_F_QUERY_EFFECTIVE: u64 = 1;
const BPF_F_ALLOW_MULTI: u64 = 2;
/// Most programs that are read. The kernel attaches 64 to a group, and ancestors' count too.
const MOST_PROGRAMS: usize = 1024;
/// Most instructions of a program that are read: 512 KiB.
const MOST_INSTRUCTIONS: usize = 1 << 16;

/// `bpf(2)`. `attributes` are the words of `union bpf_attr` in `linux/bpf.h`, with room for what newer kernels write back.
fn bpf(command: libc::c_int, attributes: &mut [u64; 16]) -> nix::Result<libc::c_long> {
    // SAFETY: the kernel reads and writes no more than we say. What the words point at lives in our callers, as long as the
    // words next to the pointers say.
    Errno::result(unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(attributes)) })
}

/// Two halves of a word, the first one first in memory.
fn halves(first: u64, second: u64) -> u64 {
    first | (second << 32)
}

/// The device programs that decide for a control group of version 2, its ancestors' included, by their numbers.
pub(crate) fn device_programs(group: &File) -> nix::Result<Vec<u32>> {
    let mut numbers = vec![0_u32; MOST_PROGRAMS];
    let mut query = [0; 16];
    query[0] = halves(group.as_raw_fd().unsigned_abs().into(), BPF_CGROUP_DEVICE);
    query[1] = BPF_F_QUERY_EFFECTIVE;
    query[2] = numbers.as_mut_ptr() as u64;
    query[3] = numbers.len() as u64;
    match bpf(BPF_PROG_QUERY, &mut query) {
        Ok(_) => numbers.truncate(usize::try_from(query[3] & 0xffff_ffff).unwrap_or(0)),
        // A kernel without such programs has none attached.
        Err(Errno::ENOSYS | Errno::EINVAL) => numbers.clear(),
        Err(e) => return Err(e),
    }
    Ok(numbers)
}

/// Whether the device programs of this very group can be taken away, or be replaced in a group below, by whoever has one of some
/// small capabilities; the kernel asks for the program itself only where they were attached with `BPF_F_ALLOW_MULTI`. Nothing:
/// it has none.
pub(crate) fn is_loose(group: &File) -> nix::Result<Option<bool>> {
    let mut query = [0; 16];
    query[0] = halves(group.as_raw_fd().unsigned_abs().into(), BPF_CGROUP_DEVICE);
    bpf(BPF_PROG_QUERY, &mut query)?;
    let (flags, count) = (query[1] >> 32, query[3] & 0xffff_ffff);
    Ok((count > 0).then_some(flags & BPF_F_ALLOW_MULTI == 0))
}

/// The instructions of a program, by its number. Those of device programs are as they were loaded: the kernel translates
/// none of what they may do (`cg_dev_verifier_ops` in `kernel/bpf/cgroup.c`), at most it hides numbers. Nothing: it shows
/// none, or they are too many.
pub(crate) fn instructions(number: u32) -> nix::Result<Option<Vec<u64>>> {
    let mut named = [0; 16];
    named[0] = number.into();
    let program = bpf(BPF_PROG_GET_FD_BY_ID, &mut named)?;
    let program = i32::try_from(program).map_err(|_| Errno::EBADF)?;
    // SAFETY: a descriptor that the kernel made for us just now.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    // `struct bpf_prog_info` as far as `xlated_prog_insns`: its length is in the upper half of the third word.
    let told = |info: &mut [u64; 5]| {
        let mut about = [0; 16];
        about[0] = halves(program.as_raw_fd().unsigned_abs().into(), size_of_val(info) as u64);
        about[1] = info.as_mut_ptr() as u64;
        bpf(BPF_OBJ_GET_INFO_BY_FD, &mut about)
    };
    let mut info = [0; 5];
    told(&mut info)?;
    let length = usize::try_from(info[2] >> 32).unwrap_or(0) / 8;
    if length == 0 || length > MOST_INSTRUCTIONS {
        return Ok(None);
    }
    let mut code = vec![0_u64; length];
    info = [0, 0, halves(0, length as u64 * 8), 0, code.as_mut_ptr() as u64];
    told(&mut info)?;
    Ok((info[4] != 0 && info[2] >> 32 == length as u64 * 8).then_some(code))
}

/// Gives `to` the extended attributes of `from`, as far as the file system and our rights allow.
pub(crate) fn copy_attributes(from: &Path, to: &File) -> io::Result<()> {
    let from = CString::new(from.as_os_str().as_bytes())?;
    // SAFETY: `from` ends with NUL, and the kernel writes at most `room` bytes at `buffer`.
    let names = match bytes_of(|buffer, room| unsafe { libc::llistxattr(from.as_ptr(), buffer.cast(), room) }) {
        Err(Errno::ENOTSUP | Errno::ENOENT) => return Ok(()),
        names => names?,
    };
    for name in names.split_inclusive(|&b| b == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        // SAFETY: as above, and `name` ends with NUL.
        let value =
            bytes_of(|buffer, room| unsafe { libc::lgetxattr(from.as_ptr(), name.as_ptr(), buffer.cast(), room) })?;
        // SAFETY: `value` is as long as we say, and `name` ends with NUL.
        let done = unsafe { libc::fsetxattr(to.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
        match Errno::result(done) {
            Ok(_) | Err(Errno::ENOTSUP | Errno::EPERM) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Gives a file its SELinux label; where nobody asks for labels, it is an attribute like any other.
///
/// # Errors
/// The kernel does not take it. A file system without such attributes has one label for all its files: that is none.
pub fn label(path: &Path, label: &str) -> Result<(), NodeError> {
    let failed = |e: io::Error| NodeError::new("label", path.display().to_string(), e);
    let file = CString::new(path.as_os_str().as_bytes()).map_err(|e| failed(e.into()))?;
    // SAFETY: both names end with NUL, and `label` is as long as we say.
    let done =
        unsafe { libc::lsetxattr(file.as_ptr(), c"security.selinux".as_ptr(), label.as_ptr().cast(), label.len(), 0) };
    match Errno::result(done) {
        Ok(_) | Err(Errno::ENOTSUP) => Ok(()),
        Err(e) => Err(failed(e.into())),
    }
}

/// Calls twice: for the length, and for the bytes.
fn bytes_of(call: impl Fn(*mut u8, usize) -> isize) -> nix::Result<Vec<u8>> {
    let length = usize::try_from(Errno::result(call(std::ptr::null_mut(), 0))?).unwrap_or(0);
    let mut bytes = vec![0; length];
    if length > 0 {
        let got = Errno::result(call(bytes.as_mut_ptr(), length))?;
        bytes.truncate(usize::try_from(got).unwrap_or(0));
    }
    Ok(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn random_numbers_differ() {
        let numbers: BTreeSet<String> = (0..100).map(|_| random_hex128().unwrap()).collect();
        assert_eq!(numbers.len(), 100);
        assert!(numbers.iter().all(|n| n.len() == 32 && n.bytes().all(|b| b.is_ascii_hexdigit())));
    }

    /// Loads a device program and attaches it.
    pub(crate) fn attach(group: &File, code: &[u64], flags: u64) -> nix::Result<()> {
        // BPF_PROG_LOAD of BPF_PROG_TYPE_CGROUP_DEVICE, then BPF_PROG_ATTACH.
        let mut load = [0; 16];
        load[..3].copy_from_slice(&[halves(15, code.len() as u64), code.as_ptr() as u64, c"GPL".as_ptr() as u64]);
        let program = u64::try_from(bpf(5, &mut load)?).unwrap();
        let mut attached = [0; 16];
        attached[0] = halves(group.as_raw_fd().unsigned_abs().into(), program);
        attached[1] = halves(BPF_CGROUP_DEVICE, flags);
        bpf(8, &mut attached).map(drop)
    }

    #[test]
    fn device_programs_are_read_as_they_were_loaded() {
        let table = crate::mountinfo::own().unwrap();
        let mounts = table.mounts();
        let Some(top) = mounts.iter().find(|mount| mount.fs == "cgroup2").map(|mount| mount.point.to_string()) else {
            return println!("skipped: no control groups of version 2");
        };
        let path = format!("{top}/quilt-gpu-test-{}-programs", std::process::id());
        if std::fs::create_dir_all(format!("{path}/below")).is_err() {
            return println!("skipped: no control groups can be made here");
        }
        let (above, below) = (File::open(&path).unwrap(), File::open(format!("{path}/below")).unwrap());
        let before = device_programs(&above);
        // `r2 = major; if r2 == 195 skip one; r0 = 1; exit` and `r0 = 0; exit`.
        let code = [0x0004_1261, 0xc3_0002_0215, 0x1_0000_00b7, 0x95, 0xb7, 0x95];
        let attached = attach(&above, &code, BPF_F_ALLOW_MULTI);
        let after = (device_programs(&above), device_programs(&below));
        let held = (is_loose(&above), is_loose(&below), attach(&below, &code, 0), is_loose(&below));
        let read = after.0.clone().map(|programs| instructions(*programs.last().unwrap()));
        std::fs::remove_dir(format!("{path}/below")).unwrap();
        std::fs::remove_dir(&path).unwrap();
        if let Err(e) = attached {
            return println!("skipped: no program can be attached here: {e}");
        }
        assert_eq!(after.0.clone().unwrap().len(), before.unwrap().len() + 1);
        assert_eq!(after.0, after.1, "what is attached above decides below");
        assert_eq!(held, (Ok(Some(false)), Ok(None), Ok(()), Ok(Some(true))), "flags of the group itself");
        assert_eq!(read.unwrap().unwrap(), Some(code.to_vec()));
        assert_eq!(instructions(u32::MAX), Err(Errno::ENOENT));
    }
}
