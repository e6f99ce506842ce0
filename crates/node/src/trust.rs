//! Reading files that decide something: only root may have written them, or may write them while we read.

use std::fmt;
use std::fs::File;
use std::path::{Component, Path, PathBuf};

use contract::inventory::FileId;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{FileStat, Mode, SFlag, lstat, stat};
use nix::unistd::geteuid;

use crate::error::{NodeError, words};
use crate::{file, process};

/// A file that only root could have written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trusted {
    /// Its content.
    pub bytes: Vec<u8>,
    /// What it was when it was read.
    pub id: FileId,
}

/// Why a file is not trusted.
#[derive(Debug)]
pub enum TrustError {
    /// It, or a folder above it, is not there.
    Missing(PathBuf),
    /// It, or a folder above it, is not what it must be.
    Untrusted {
        /// The file or folder that is at fault.
        path: PathBuf,
        /// What is wrong with it, and what would be right.
        why: String,
    },
    /// It cannot be read.
    Unreadable(NodeError),
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(path) => write!(f, "{} does not exist", path.display()),
            Self::Untrusted { path, why } => write!(f, "{} {why}", path.display()),
            Self::Unreadable(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for TrustError {}

/// Reads a root-owned regular file of at most `max` bytes whose whole path only root can change.
///
/// # Errors
/// [`TrustError`], naming the part of the path at fault.
pub fn read_trusted(path: &Path, max: usize) -> Result<Trusted, TrustError> {
    walk(path)?;
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let fd = open(path, flags, Mode::empty()).map_err(|e| failed(path, e))?;
    let (stat, id) = file::id_of(&fd).map_err(|e| failed(path, e))?;
    if !file::is(stat.st_mode, SFlag::S_IFREG) {
        return Err(untrusted(path, "is not a regular file"));
    }
    if stat.st_nlink != 1 {
        return Err(untrusted(path, "has more than one name (hard links)"));
    }
    only_root_writes(path, &stat)?;
    let file = File::from(fd);
    let bytes = file::read_bounded(&file, id.size, max)
        .map_err(|e| TrustError::Unreadable(NodeError::new("read", path.display().to_string(), e)))?;
    let bytes = bytes.ok_or_else(|| untrusted(path, &format!("is larger than {max} bytes")))?;
    let (_, after) = file::id_of(&file).map_err(|e| failed(path, e))?;
    if after != id {
        return Err(untrusted(path, "was changed while it was read"));
    }
    Ok(Trusted { bytes, id })
}

/// Checks each folder on the way, from the top. Paths suffice: in a folder that only root can write nobody else puts
/// another one in the place of what was looked at.
fn walk(path: &Path) -> Result<(), TrustError> {
    let mut parts = path.components();
    if (parts.next(), path.file_name().is_some()) != (Some(Component::RootDir), true) {
        return Err(untrusted(path, "is not the absolute path of a file"));
    }
    parts.next_back();
    let mut so_far = PathBuf::from("/");
    check_folder(&so_far)?;
    for part in parts {
        let Component::Normal(part) = part else {
            return Err(untrusted(path, "has .. in its path"));
        };
        so_far.push(part);
        check_folder(&so_far)?;
    }
    Ok(())
}

fn check_folder(path: &Path) -> Result<(), TrustError> {
    let stat = lstat(path).map_err(|e| failed(path, e))?;
    if file::is(stat.st_mode, SFlag::S_IFLNK) {
        return Err(untrusted(path, "is a symbolic link, must be the folder itself"));
    }
    if !file::is(stat.st_mode, SFlag::S_IFDIR) {
        return Err(untrusted(path, "is not a folder"));
    }
    only_root_writes(path, &stat)
}

fn only_root_writes(path: &Path, stat: &FileStat) -> Result<(), TrustError> {
    fault(stat).map_or(Ok(()), |why| Err(untrusted(path, &why)))
}

/// What is wrong with a file or folder that only root may be able to change; nothing when that is so.
///
/// A POSIX ACL that lets others write shows in the group bits; a sticky folder still lets anyone put things in.
#[must_use]
pub fn fault(stat: &FileStat) -> Option<String> {
    if stat.st_uid != 0 && !is_own(stat.st_uid) {
        return Some(format!("belongs to user {}, must belong to root", stat.st_uid));
    }
    (stat.st_mode & 0o022 != 0)
        .then(|| format!("may be written by others than root (mode {:04o}), must not be", stat.st_mode & 0o7777))
}

/// Whether it is this process's own user's, where that is not root; in a user namespace the node's root is one of those that
/// have no name there.
fn is_own(uid: u32) -> bool {
    const NAMELESS: u32 = 65534;
    uid == geteuid().as_raw() || uid == NAMELESS && !process::in_first_user_namespace()
}

/// The same of a folder on the way to a file. In the store of Nix users that build may add, and cannot exchange: it is
/// sticky, and whatever a path leads to next must be root's too.
#[must_use]
pub fn folder_fault(path: &str, stat: &FileStat) -> Option<String> {
    let store = path.ends_with("/nix/store") && stat.st_uid == 0 && stat.st_mode & Mode::S_ISVTX.bits() != 0;
    if store { None } else { fault(stat) }
}

/// The first folder from `root` down to one of these files in which others than root could put another in its place, and
/// why. The files are named by absolute paths without links.
#[must_use]
pub fn exchangeable<'a>(files: impl Iterator<Item = &'a str>, root: &str) -> Option<String> {
    let id = |stat: &FileStat| (stat.st_dev, stat.st_ino);
    let root = stat(root).ok().map(|stat| id(&stat));
    let mut judged: Vec<&str> = Vec::new();
    for mut path in files {
        while let Some((folder, _)) = path.rsplit_once('/').filter(|(folder, _)| !judged.contains(folder)) {
            judged.push(folder);
            let named = if folder.is_empty() { "/" } else { folder };
            let (why, last) = match lstat(named) {
                Ok(stat) => (folder_fault(named, &stat), root == Some(id(&stat))),
                Err(errno) => (Some(format!("cannot be looked at: {}", words(errno))), true),
            };
            match why {
                Some(why) => return Some(format!("{named} {why}")),
                None if last => break,
                None => path = folder,
            }
        }
    }
    None
}

fn untrusted(path: &Path, why: &str) -> TrustError {
    TrustError::Untrusted { path: path.to_owned(), why: why.to_owned() }
}

fn failed(path: &Path, errno: Errno) -> TrustError {
    match errno {
        Errno::ENOENT => TrustError::Missing(path.to_owned()),
        // With O_NOFOLLOW: a link.
        Errno::ELOOP => untrusted(path, "is a symbolic link, must be the file itself"),
        other => TrustError::Unreadable(NodeError::new("open", path.display().to_string(), other)),
    }
}
