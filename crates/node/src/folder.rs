//! All files of a folder that several programs fill: each is read alone, so that what is wrong with one says nothing about
//! the others. Sees one folder, not those in it, and bounds what it reads.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::error::{NodeError, found};
use crate::file;
use crate::trust::read_trusted;

/// Who may have written the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// Root alone: the file and every folder above it are root's, and nobody else may write them. No links.
    Root,
    /// Anybody; links are followed.
    Anyone,
}

/// What is read.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The most files.
    pub files: usize,
    /// The most bytes of one.
    pub bytes: usize,
}

/// A file of the folder, by its path, and its bytes or why they are not read.
pub type Read = (PathBuf, Result<Vec<u8>, String>);

/// The files of a folder whose names are wanted, by name; none where there is no folder.
///
/// # Errors
/// The folder cannot be read, or has more files than that.
pub fn files(
    folder: &Path,
    wanted: impl Fn(&Path) -> bool,
    writers: Writers,
    bounds: Bounds,
) -> Result<Vec<Read>, NodeError> {
    let failed = |e: io::Error| NodeError::new("read the folder", folder.display().to_string(), e);
    // `/var/run` is a link by tradition; what it leads to is judged.
    let Some(real) = found(folder.canonicalize().map_err(failed))? else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&real).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = PathBuf::from(entry.file_name());
        if !wanted(&name) || entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if names.len() == bounds.files {
            return Err(failed(io::Error::other(format!("it has more than {} such files", bounds.files))));
        }
        names.push(name);
    }
    names.sort_unstable();
    let read = |name: PathBuf| {
        let path = real.join(&name);
        let bytes = match writers {
            Writers::Root => read_trusted(&path, bounds.bytes).map(|file| file.bytes).map_err(|e| e.to_string()),
            Writers::Anyone => any(&path, bounds.bytes).map_err(|e| e.to_string()),
        };
        (folder.join(name), bytes)
    };
    Ok(names.into_iter().map(read).collect())
}

/// A regular file of at most so many bytes, whoever wrote it. A pipe or device in its place is not waited for.
fn any(path: &Path, max: usize) -> Result<Vec<u8>, NodeError> {
    let failed = |e: io::Error| NodeError::new("read", path.display().to_string(), e);
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    let bytes = file::read_bounded(&file, about.len(), max).map_err(failed)?;
    bytes.ok_or_else(|| failed(io::Error::other(format!("larger than {max} bytes"))))
}
