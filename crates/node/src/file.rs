//! Small reads and identities: what every other module here needs from one file.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use contract::inventory::FileId;
use nix::sys::stat::{FileStat, SFlag, fstat, stat};

use crate::error::NodeError;

/// Room for what the kernel tells in a file about one thing: more than most need, and less than the C library's allocator
/// tidies up for.
const SMALL: usize = 1000;

/// The whole of a small file of the kernel's or the operator's.
pub(crate) fn read(path: &str) -> Result<Vec<u8>, NodeError> {
    read_into(path, SMALL)
}

/// The whole of such a file that is longer: each short read makes the kernel begin again.
pub(crate) fn read_into(path: &str, room: usize) -> Result<Vec<u8>, NodeError> {
    let read = File::open(path).and_then(|file| to_end(&file, room, usize::MAX));
    read.map_err(|e| NodeError::new("read", path, e))
}

/// What is left of an open file, at most `max` bytes; `None` when there is more.
pub(crate) fn read_bounded(file: &File, expected: u64, max: usize) -> std::io::Result<Option<Vec<u8>>> {
    // One more, so that the read after the last byte finds room to say that it was the last.
    let room = usize::try_from(expected).unwrap_or(max).min(max).saturating_add(1);
    to_end(file, room, max).map(|bytes| (bytes.len() <= max).then_some(bytes))
}

/// What is left of a file, at most one byte more than `max`, into `room` bytes at first. The standard library would ask a
/// file for its length and position before.
fn to_end(file: &File, room: usize, max: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(room);
    file.take(u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What a file is now, links followed.
///
/// # Errors
/// It is not there, or may not be looked at.
pub fn file_id(path: &Path) -> Result<FileId, NodeError> {
    stat(path).map(|stat| id(&stat)).map_err(|e| NodeError::new("look at", path.display().to_string(), e))
}

/// A path with all links resolved, as the kernel knows it: three calls, however many folders are on the way.
///
/// # Errors
/// It is not there, or may not be looked at.
pub fn real_path(path: &Path) -> std::io::Result<PathBuf> {
    let handle = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    // Without procfs each part is asked for.
    std::fs::read_link(format!("/proc/self/fd/{}", handle.as_raw_fd())).or_else(|_| path.canonicalize())
}

pub(crate) fn id_of(fd: impl AsFd) -> nix::Result<(FileStat, FileId)> {
    let stat = fstat(fd)?;
    Ok((stat, id(&stat)))
}

/// What a file was when it was looked at.
#[must_use]
pub fn id(stat: &FileStat) -> FileId {
    FileId {
        dev: stat.st_dev,
        ino: stat.st_ino,
        size: size(stat),
        ctime: stat.st_ctime,
        ctime_nsec: stat.st_ctime_nsec,
    }
}

/// The size in bytes.
pub(crate) fn size(stat: &FileStat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Whether a file with this mode is of this kind.
pub(crate) fn is(mode: u32, kind: SFlag) -> bool {
    mode & SFlag::S_IFMT.bits() == kind.bits()
}
