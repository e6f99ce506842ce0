//! Small reads and identities: what every other module here needs from one file.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use contract::inventory::FileId;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, stat};

use crate::error::NodeError;

/// Room for what the kernel tells in a file about one thing: more than most need, and less than the C library's allocator
/// tidies up for.
const SMALL: usize = 1000;

/// The whole of a small file of the kernel's or the operator's.
///
/// A read that leaves room had it all, and nobody asks to hear that there is no more. A disk's file is short at its end alone.
/// The kernel's own (`seq_read_iter`) gathers a page of entries before it hands out any, and stops below our room only
/// at the end, or before an entry that is longer than the rest of its page, which is three times our room: where an entry is a
/// line, as in lists of devices and processes, none is; where the file is one entry, the page grows until it fits.
pub(crate) fn read(path: &str) -> Result<Vec<u8>, NodeError> {
    let read = |mut file: File| {
        let mut bytes = vec![0; SMALL];
        let len = loop {
            match file.read(&mut bytes) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        bytes.truncate(len);
        if len == SMALL { file.read_to_end(&mut bytes).map(|_| bytes) } else { Ok(bytes) }
    };
    File::open(path).and_then(read).map_err(|e| NodeError::new("read", path, e))
}

/// The whole of such a file that is longer: each short read makes the kernel begin again.
pub(crate) fn read_into(path: &str, room: usize) -> Result<Vec<u8>, NodeError> {
    let read = |file: File| {
        // The standard library's own would ask the file for its length and position before.
        let mut bytes = Vec::with_capacity(room);
        file.take(u64::MAX).read_to_end(&mut bytes).map(|_| bytes)
    };
    File::open(path).and_then(read).map_err(|e| NodeError::new("read", path, e))
}

/// The bytes of an open file that is `size` bytes long, as it says itself; `None` when there are more than `max`. A read that
/// has them all and leaves room was the last: who asks for more to hear that there is none pays for it in every container.
///
/// # Errors
/// It cannot be read.
pub fn read_bounded(mut file: &File, size: u64, max: usize) -> std::io::Result<Option<Vec<u8>>> {
    let size = usize::try_from(size).unwrap_or(max).min(max);
    let mut bytes = vec![0; size.saturating_add(1).max(SMALL)];
    let mut len = 0;
    loop {
        let read = match file.read(bytes.get_mut(len..).unwrap_or_default()) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        len += read;
        // Files of the kernel's say that they are empty.
        if read == 0 || (len == size && size > 0) {
            break;
        }
        if len > max {
            return Ok(None);
        }
        if len == bytes.len() {
            bytes.resize(len.saturating_mul(2).min(max.saturating_add(1)), 0);
        }
    }
    bytes.truncate(len);
    Ok(Some(bytes))
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
    let handle = handle(path)?;
    // Without procfs each part is asked for.
    std::fs::read_link(format!("/proc/self/fd/{}", handle.as_raw_fd())).or_else(|_| path.canonicalize())
}

/// A file without opening it. Not by the standard library's options: musl counts `O_PATH` among the ways of access, which the
/// options take away, and a device or a queue would be opened.
pub(crate) fn handle(path: &Path) -> nix::Result<OwnedFd> {
    open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a file says that its length is: all of it is read, or what it said there was, and never more than `max`.
    #[test]
    fn a_file_is_read_whole_or_is_too_large() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let whole: Vec<u8> = (0_u8..=255).cycle().take(5000).collect();
        for len in [0, 1, SMALL - 1, SMALL, SMALL + 1, 5000] {
            std::fs::write(&path, whole.get(..len).unwrap()).unwrap();
            for (said, max) in [(0, 9000), (len, 9000), (len, len), (len, 700), (len + 9, 9000), (len / 2, 9000)] {
                let read = read_bounded(&File::open(&path).unwrap(), said as u64, max).unwrap();
                let expected = (len <= max).then(|| whole.get(..len).unwrap().to_vec());
                assert_eq!(read, expected, "{len} bytes, said to be {said}, {max} at most");
            }
        }
        let kernels = File::open("/proc/self/mountinfo").unwrap();
        let told = read_bounded(&kernels, 0, 1 << 20).unwrap().unwrap();
        assert_eq!(told, std::fs::read("/proc/self/mountinfo").unwrap());
    }
}
