//! One creator for each id at a time: two would each find no container, and clean up after each other.
//!
//! A lock beside the state folder, under a name that no id has, and gone with its holder.

use std::fs::{File, TryLockError};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An id that nobody else creates a container of.
pub(crate) struct Claim {
    path: PathBuf,
    /// The container's first process has it too until it starts. That does no harm: the name is gone by then.
    _lock: File,
}

impl Claim {
    /// Claims an id of which there is no container.
    ///
    /// # Errors
    /// That there is one, or will be, in runc's words; or why that cannot be told.
    pub(crate) fn of(root: &Path, id: &str) -> Result<Self, String> {
        let path = root.join(format!("{id}:"));
        let failed = |cause: std::io::Error| format!("cannot lock {}: {cause}", path.display());
        let exists = || format!("container with id exists: {id}");
        let lock = loop {
            let lock =
                File::options().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(failed)?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(exists()),
                Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            }
            // One that ended between our two calls took the name with it.
            let opened = lock.metadata().map_err(failed)?.ino();
            if std::fs::metadata(&path).is_ok_and(|named| named.ino() == opened) {
                break lock;
            }
        };
        let claim = Self { path, _lock: lock };
        if root.join(id).exists() { Err(exists()) } else { Ok(claim) }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_creator() {
        let folder = std::env::temp_dir().join(format!("engine-claim-{}", std::process::id()));
        let root = folder.as_path();
        std::fs::create_dir_all(root.join("there")).unwrap();
        let taken = |id| Claim::of(root, id).err();
        let first = Claim::of(root, "a").unwrap();
        assert_eq!(taken("a").as_deref(), Some("container with id exists: a"));
        assert_eq!((taken("b"), taken("there").as_deref()), (None, Some("container with id exists: there")));
        drop(first);
        // What a creator left that was killed.
        std::fs::write(root.join("a:"), "").unwrap();
        assert_eq!(taken("a"), None);
        assert_eq!(std::fs::read_dir(root).unwrap().count(), 1, "locks are left");
        std::fs::remove_dir_all(root).unwrap();
    }
}
