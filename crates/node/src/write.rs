//! Writing files so that a crash at any instant leaves the old one or the new one.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::error::NodeError;
use crate::sys;

/// How the name of a file begins that a crash of ours may leave behind; it ends with `.tmp`.
pub const TEMPORARY: &str = ".quilt-gpu.";

/// Permission bits and owner of a file to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// Permission bits, as in 0o644.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Mode {
    /// Root's own, with these permission bits.
    #[must_use]
    pub const fn root(mode: u32) -> Self {
        Self {
            mode,
            uid: 0,
            gid: 0,
        }
    }
}

/// Replaces a file with `bytes`, or makes it; with `sync` it also survives a loss of power.
///
/// # Errors
/// What failed; the old file is then untouched.
pub fn write_atomic(path: &Path, bytes: &[u8], like: Mode, sync: bool) -> Result<(), NodeError> {
    write(path, bytes, like, None, sync)
}

/// Replaces the content of a file that is there; owner, permission bits and extended attributes stay.
///
/// # Errors
/// What failed; the old file is then untouched.
pub fn replace(path: &Path, bytes: &[u8], sync: bool) -> Result<(), NodeError> {
    let failed = |e| NodeError::new("look at", path.display().to_string(), e);
    let old = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(failed)?;
    let meta = old.metadata().map_err(failed)?;
    let like = Mode {
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
    };
    write(path, bytes, like, Some(&old), sync)
}

fn write(
    path: &Path,
    bytes: &[u8],
    like: Mode,
    attributes: Option<&File>,
    sync: bool,
) -> Result<(), NodeError> {
    let failed = |e| NodeError::new("write", path.display().to_string(), e);
    let folder = path.parent().unwrap_or(Path::new("/"));
    let (mut file, temporary) = create(folder, path)?;
    let done = (|| {
        let made = file.metadata()?;
        if (made.uid(), made.gid()) != (like.uid, like.gid) {
            fchown(&file, Some(like.uid), Some(like.gid))?;
        }
        file.set_permissions(Permissions::from_mode(like.mode))?;
        if let Some(old) = attributes {
            sys::copy_attributes(old, &file)?;
        }
        file.write_all(bytes)?;
        if sync {
            file.sync_all()?;
        }
        std::fs::rename(&temporary, path)
    })();
    if let Err(e) = done {
        let _ = std::fs::remove_file(&temporary);
        return Err(failed(e));
    }
    if sync {
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(failed)
    } else {
        Ok(())
    }
}

fn create(folder: &Path, path: &Path) -> Result<(File, PathBuf), NodeError> {
    let temporary = folder.join(format!("{TEMPORARY}{}.tmp", sys::random_hex128()?));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary);
    file.map(|file| (file, temporary))
        .map_err(|e| NodeError::new("write", path.display().to_string(), e))
}
