//! Writing files so that a crash at any instant leaves the old one or the new one.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use crate::error::NodeError;
use crate::sys;

/// How the name of a file begins that a crash of ours may leave behind; it ends with `.tmp`.
pub(crate) const TEMPORARY: &str = ".quilt-gpu.";

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
        Self { mode, uid: 0, gid: 0 }
    }
}

/// Replaces a file with `bytes`, or makes it; with `sync` it also survives a loss of power. Extended attributes of a file
/// that was there stay, as far as the file system and our rights allow.
///
/// # Errors
/// What failed; the old file is then untouched, or only the loss of power is not guarded against.
pub fn write_atomic(path: &Path, bytes: &[u8], like: Mode, sync: bool) -> Result<(), NodeError> {
    let failed = |e| NodeError::new("write", path.display().to_string(), e);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = folder.join(format!("{TEMPORARY}{}.tmp", sys::random_hex128()?));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary).map_err(failed)?;
    if let Err(e) = fill(file, path, bytes, like, sync).and_then(|()| std::fs::rename(&temporary, path)) {
        let _ = std::fs::remove_file(&temporary);
        return Err(failed(e));
    }
    if sync { File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed) } else { Ok(()) }
}

pub(crate) fn fill(mut file: File, old: &Path, bytes: &[u8], like: Mode, sync: bool) -> std::io::Result<()> {
    file.write_all(bytes)?;
    let made = file.metadata()?;
    if (made.uid(), made.gid()) != (like.uid, like.gid) {
        fchown(&file, Some(like.uid), Some(like.gid))?;
    }
    sys::copy_attributes(old, &file)?;
    // After the attributes: an access list among them does not widen what is asked for.
    file.set_permissions(Permissions::from_mode(like.mode))?;
    if sync { file.sync_all() } else { Ok(()) }
}
