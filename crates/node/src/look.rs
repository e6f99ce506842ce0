//! What lies behind a path, without opening it and without waiting for it.
//!
//! A path of a tenant's may lead to a file system whose server is dead. So it is first resolved from the kernel's caches
//! alone; only when they do not suffice, a child process looks, which is killed when it gets no answer.

use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2, readlink};
use nix::sys::stat::SFlag;

use crate::error::words;
use crate::landmarks::is_within;
use crate::{file, sys};

/// `RESOLVE_CACHED` of `linux/openat2.h` (Linux 5.12): fail with EAGAIN where the caches do not suffice.
const CACHED: ResolveFlag = ResolveFlag::from_bits_retain(0x20);
/// A dead server does not answer at all; a live one answers much faster.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// Where nothing of a tenant's is waited for: only a machine under load takes long.
pub(crate) const PATIENCE_WITH_US: Duration = Duration::from_secs(60);
/// The same for all slow paths of a spec: one can name thousands, and a server can answer each at the last moment.
const PATIENCE_WITH_ALL: Duration = Duration::from_secs(10);

/// A file's device (major, minor) and inode.
pub(crate) type Id = ((u32, u32), u64);

/// What a file system's attributes say of an object.
pub(crate) struct Stat {
    pub(crate) id: Id,
    /// Kind and permission bits.
    pub(crate) mode: u32,
    /// Device numbers of a node.
    pub(crate) rdev: (u32, u32),
    /// Length in bytes.
    pub(crate) size: u64,
}

/// What was found.
pub(crate) struct Seen {
    pub(crate) stat: Stat,
    /// The path with all links resolved; for folders and files.
    pub(crate) real: String,
    /// A magic link of procfs was followed: in another process it leads elsewhere.
    pub(crate) by_magic: bool,
}

/// Why nothing was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Blind {
    /// Nothing is there.
    Missing,
    /// It cannot be told.
    Because(String),
}

/// Looks behind a path from the caches; `None` when they do not suffice.
pub(crate) fn at_once(path: &str) -> Option<Result<Seen, Blind>> {
    match resolve(path, CACHED) {
        // An older kernel does not know the flag.
        Err(Errno::EAGAIN | Errno::EINVAL) => None,
        other => Some(tell(other)),
    }
}

/// Looks behind a path, however long it takes.
pub(crate) fn patiently(path: &str) -> Result<Seen, Blind> {
    tell(resolve(path, ResolveFlag::empty()))
}

/// How long a path is waited for when others took so many milliseconds; none when it is not.
pub(crate) fn limit(waited: u64) -> Option<Duration> {
    let left = PATIENCE_WITH_ALL.checked_sub(Duration::from_millis(waited))?;
    (!left.is_zero()).then_some(left.min(PATIENCE))
}

/// Looks behind a path in a child process. `Err`: it gave no answer in time, and other paths need not be waited for.
pub(crate) fn in_child(path: &str, limit: Duration) -> Result<Result<Seen, Blind>, String> {
    let answer =
        sys::in_child(limit, || encode(&patiently(path))).map_err(|e| format!("no process to look at it: {e}"))?;
    answer.as_deref().and_then(decode).ok_or_else(|| format!("no answer in time ({} ms)", limit.as_millis()))
}

/// What was found, as a line of numbers and then the path or the reason.
fn encode(found: &Result<Seen, Blind>) -> String {
    match found {
        Ok(Seen { stat: Stat { id: ((a, b), ino), mode, rdev: (major, minor), size }, real, by_magic }) => {
            format!("{a} {b} {ino} {size} {mode} {major} {minor} {}\n{real}", u32::from(*by_magic))
        }
        Err(Blind::Missing) => "missing\n".to_owned(),
        Err(Blind::Because(why)) => format!("blind\n{why}"),
    }
}

fn decode(text: &str) -> Option<Result<Seen, Blind>> {
    let (line, rest) = text.split_once('\n')?;
    match line {
        "missing" => return Some(Err(Blind::Missing)),
        "blind" => return Some(Err(Blind::Because(rest.to_owned()))),
        _ => {}
    }
    let mut numbers = line.split(' ').map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    let mut small = || u32::try_from(next()?).ok();
    let dev = (small()?, small()?);
    let (ino, size) = (next()?, next()?);
    let mut small = || u32::try_from(next()?).ok();
    let (mode, rdev, by_magic) = (small()?, (small()?, small()?), small()? == 1);
    Some(Ok(Seen { stat: Stat { id: (dev, ino), mode, rdev, size }, real: rest.to_owned(), by_magic }))
}

enum Outcome {
    Seen(Seen),
    MagicToNowhere,
    NotNowInProc,
}

fn tell(outcome: nix::Result<Outcome>) -> Result<Seen, Blind> {
    let because = |why: &str| Err(Blind::Because(why.to_owned()));
    match outcome {
        Ok(Outcome::Seen(seen)) => Ok(seen),
        Ok(Outcome::MagicToNowhere) => because(MAGIC),
        Ok(Outcome::NotNowInProc) => because("it lies in procfs and is not there for now"),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Err(Blind::Missing),
        Err(Errno::ELOOP) => because("its symbolic links go round in a circle, or are too many"),
        Err(other) => Err(Blind::Because(words(other))),
    }
}

/// Why an object behind a magic link is not judged.
pub(crate) const MAGIC: &str = "it passes through a magic link of procfs, which leads elsewhere in another process";

fn resolve(path: &str, caches: ResolveFlag) -> nix::Result<Outcome> {
    match see(path, caches | ResolveFlag::RESOLVE_NO_MAGICLINKS) {
        // A magic link, or links without end: following magic links tells which.
        Err(Errno::ELOOP) => match see(path, caches) {
            Ok(seen) => Ok(Outcome::Seen(Seen { by_magic: true, ..seen })),
            Err(unknown @ (Errno::ELOOP | Errno::EAGAIN | Errno::EINVAL)) => Err(unknown),
            Err(_) => Ok(Outcome::MagicToNowhere),
        },
        // A process that is not there now may be when the low-level runtime looks.
        Err(Errno::ENOENT) if missing_in_proc(path, caches)? => Ok(Outcome::NotNowInProc),
        other => other.map(Outcome::Seen),
    }
}

fn see(path: &str, resolve: ResolveFlag) -> nix::Result<Seen> {
    let handle = openat2(AT_FDCWD, path, OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve))?;
    let stat = sys::stat_cached(&handle)?;
    let mut real = String::new();
    if !file::is(stat.mode, SFlag::S_IFCHR) && !file::is(stat.mode, SFlag::S_IFBLK) {
        // No answer of the file system's: the kernel knows the names.
        let link = readlink(format!("/proc/self/fd/{}", handle.as_raw_fd()).as_str())?;
        real = link.into_string().map_err(|_| Errno::EILSEQ)?;
        if !real.starts_with('/') {
            return Err(Errno::EXDEV);
        }
    }
    Ok(Seen { stat, real, by_magic: false })
}

/// Whether the last folder of the path that is there lies in procfs. Told by its path: asking the file system could wait.
fn missing_in_proc(path: &str, caches: ResolveFlag) -> nix::Result<bool> {
    let mut path = path;
    while let Some((parent, _)) = path.trim_end_matches('/').rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
        path = parent;
        match see(parent, caches) {
            Err(Errno::ENOENT) => {}
            seen => return Ok(is_within(&seen?.real, "/proc")),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn who_does_not_answer_is_not_waited_for() {
        let start = Instant::now();
        let never = || {
            std::thread::sleep(Duration::from_secs(60));
            String::new()
        };
        assert_eq!(sys::in_child(Duration::from_millis(50), never).unwrap(), None);
        assert!(start.elapsed() < Duration::from_secs(2));
        let long = "x".repeat(200_000);
        assert_eq!(sys::in_child(PATIENCE, || long.clone()).unwrap(), Some(long));
    }

    #[test]
    fn late_answers_are_waited_for_together() {
        let limits =
            [0, 6_999, 7_000, 7_001, 9_999, 10_000, u64::MAX].map(|waited| limit(waited).map(|left| left.as_millis()));
        assert_eq!(limits, [Some(3_000), Some(3_000), Some(3_000), Some(2_999), Some(1), None, None]);
    }

    #[test]
    fn a_child_has_nothing_that_could_be_used_against_it() {
        let _kept = std::fs::File::open("/etc/passwd").unwrap();
        let looks = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
            let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
            let lines = |text: &str, names: &[&str]| {
                let wanted = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
                wanted.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect::<String>()
            };
            // Two signals are the C library's own, and nobody may set them.
            let ignored = lines(&status, &["SigIgn:"]);
            let ignored =
                u64::from_str_radix(ignored.trim_start_matches("SigIgn:").trim(), 16).unwrap_or(1) & !(3 << 31);
            let fds = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
            let cwd = std::env::current_dir().unwrap_or_default();
            format!(
                "{}{}{fds} {ignored} {} {}",
                lines(&status, &["Umask:", "SigBlk:", "NoNewPrivs:"]),
                lines(&limits, &["Max core", "Max open"]),
                std::env::vars_os().count(),
                cwd.display()
            )
        };
        let zero = "0000000000000000";
        // Standard descriptors, the pipe, and the folder that is being read.
        let expected = format!(
            "Umask: 0022\nSigBlk: {zero}\nNoNewPrivs: 1\nMax core file size 0 0 bytes\nMax open files 1024 1024 files\n5 0 0 /"
        );
        let told = sys::in_child(PATIENCE, looks).unwrap().unwrap();
        // A harness may keep fewer descriptors open than we do.
        assert_eq!(told, expected);
        assert_ne!(looks(), expected, "this process is not like that");
    }

    #[test]
    fn what_a_child_found_is_what_we_would_have_found() {
        for path in ["/dev/null", "/", "/nowhere/at/all", "/proc/self/root", "/etc/passwd"] {
            let there = patiently(path);
            let told = decode(&encode(&there)).unwrap();
            assert_eq!(encode(&told), encode(&there), "{path}");
        }
    }

    #[test]
    fn caches_suffice_for_what_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let _ = patiently(path);
        let seen = at_once(path).expect("no child is needed").map_err(|_| ()).unwrap();
        assert_eq!(seen.real, std::fs::canonicalize(path).unwrap().to_str().unwrap());
    }
}
