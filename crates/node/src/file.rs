//! Small reads and identities: what every other module here needs from one file.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use contract::inventory::FileId;
use nix::sys::stat::{FileStat, SFlag, fstat, stat};

use crate::error::NodeError;

/// The whole of a file of the kernel's or the operator's.
pub(crate) fn read(path: &str) -> Result<Vec<u8>, NodeError> {
    // Files of the kernel's have no length to go by, and each short read makes the kernel begin again.
    let read = File::open(path).and_then(|file| to_end(&file, 4096, usize::MAX));
    read.map_err(|e| NodeError::new("read", path, e))
}

/// What is left of an open file, at most `max` bytes; `None` when there is more.
pub(crate) fn read_bounded(file: &File, expected: u64, max: usize) -> std::io::Result<Option<Vec<u8>>> {
    // One more, so that the read after the last byte finds room to say that it was the last.
    let room = usize::try_from(expected).unwrap_or(max).min(max).saturating_add(1);
    to_end(file, room, max).map(|bytes| (bytes.len() <= max).then_some(bytes))
}

/// What is left of a file, into `room` bytes at first; stops when it has more than `max`. The standard library would ask
/// for length and position before, and read in pieces.
fn to_end(mut file: &File, room: usize, max: usize) -> std::io::Result<Vec<u8>> {
    let (mut bytes, mut filled) = (vec![0; room], 0);
    while filled <= max {
        if filled == bytes.len() {
            bytes.resize(filled.saturating_mul(2).max(4096), 0);
        }
        match file.read(bytes.get_mut(filled..).unwrap_or_default()) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// What a file is now, links followed.
///
/// # Errors
/// It is not there, or may not be looked at.
pub fn file_id(path: &std::path::Path) -> Result<FileId, NodeError> {
    stat(path).map(|stat| id(&stat)).map_err(|e| NodeError::new("look at", path.display().to_string(), e))
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
