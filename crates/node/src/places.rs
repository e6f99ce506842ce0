//! Many places of one root file system: whatever lies in one folder is looked at there, and the folder is found once.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use contract::inventory::FileId;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};

use crate::error::NodeError;
use crate::in_root::InRoot;
use crate::{devices, file};

/// A root, and the folder in it that was looked into last.
#[derive(Debug)]
pub struct Places<'r> {
    root: &'r InRoot,
    last: Option<(PathBuf, OwnedFd)>,
}

impl<'r> Places<'r> {
    /// Of this root.
    #[must_use]
    pub fn of(root: &'r InRoot) -> Self {
        Self { root, last: None }
    }

    /// Major and minor of a character device.
    ///
    /// # Errors
    /// Nothing is there, or something else.
    pub fn device(&mut self, path: &Path) -> Result<(u32, u32), NodeError> {
        let stat = self.look(path)?;
        if !file::is(stat.st_mode, SFlag::S_IFCHR) {
            return Err(self.root.failed("look at", path, std::io::Error::other("not a character device")));
        }
        Ok(devices::numbers(stat.st_rdev))
    }

    /// What a file is.
    ///
    /// # Errors
    /// Nothing is there, or it may not be looked at.
    pub fn file_id(&mut self, path: &Path) -> Result<FileId, NodeError> {
        self.look(path).map(|stat| file::id(&stat))
    }

    fn look(&mut self, path: &Path) -> Result<FileStat, NodeError> {
        if let (Some(folder), Some(name)) = (path.parent(), path.file_name()) {
            let last = self.last.take().filter(|(last, _)| last == folder);
            let found = last.map_or_else(|| self.root.look(folder).map(|handle| (folder.to_owned(), handle)), Ok)?;
            let seen = fstatat(&found.1, name, AtFlags::AT_SYMLINK_NOFOLLOW);
            self.last = Some(found);
            let seen = seen.map_err(|e| self.root.failed("look at", path, e))?;
            // A name leads nowhere else than into its folder; a link is followed from the root.
            if !file::is(seen.st_mode, SFlag::S_IFLNK) {
                return Ok(seen);
            }
        }
        fstat(self.root.look(path)?).map_err(|e| self.root.failed("look at", path, e))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn links_lead_from_the_root_and_names_into_their_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (at, outside) = (folder.path().join("root"), folder.path().join("outside"));
        fs::create_dir_all(at.join("lib/deep")).unwrap();
        for path in ["root/lib/a", "root/lib/deep/b", "root/outside", "outside"] {
            fs::write(folder.path().join(path), "").unwrap();
        }
        symlink("../outside", at.join("lib/near")).unwrap();
        symlink("/outside", at.join("lib/top")).unwrap();
        symlink("../../../../outside", at.join("far")).unwrap();
        symlink("lib", at.join("lib64")).unwrap();
        symlink(&outside, at.join("lib/nowhere")).unwrap();
        let root = InRoot::open(&at).unwrap();
        let mut places = Places::of(&root);
        for (path, is) in [
            ("/lib/a", Some("lib/a")),
            ("/lib/deep/b", Some("lib/deep/b")),
            ("/lib/deep/../a", Some("lib/a")),
            ("/lib64/deep/b", Some("lib/deep/b")),
            ("/lib/near", Some("outside")),
            ("/lib/top", Some("outside")),
            ("/far", Some("outside")),
            ("/../outside", Some("outside")),
            ("/lib/deep/..", Some("lib")),
            ("/", Some("")),
            ("/lib/nowhere", None),
            ("/lib/a/b", None),
            ("/lib/none", None),
            ("/none/a", None),
            ("/lib/a", Some("lib/a")),
        ] {
            let seen = places.file_id(Path::new(path)).ok().map(|id| id.ino);
            assert_eq!(seen, is.map(|is| fs::metadata(at.join(is)).unwrap().ino()), "{path}");
            assert_eq!(seen, root.file_id(Path::new(path)).ok().map(|id| id.ino), "{path}");
        }
        assert!(places.device(Path::new("/lib/a")).unwrap_err().to_string().contains("not a character device"));
        let dev = InRoot::open(Path::new("/dev")).unwrap();
        let mut nodes = Places::of(&dev);
        for (name, minor) in [("/null", 3), ("/zero", 5)] {
            assert_eq!(nodes.device(Path::new(name)).unwrap(), (1, minor));
        }
    }
}
