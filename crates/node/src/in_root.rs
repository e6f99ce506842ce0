//! A container's root file system, seen from outside: no path of the image's leads out of it, nothing in it is followed
//! or opened but regular files.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, SFlag, fstat};

use crate::error::NodeError;
use crate::file;

/// A handle on the root of an image.
#[derive(Debug)]
pub struct InRoot {
    root: OwnedFd,
    path: PathBuf,
}

impl InRoot {
    /// Takes hold of a root file system.
    ///
    /// # Errors
    /// It is not a folder, or may not be opened.
    pub fn open(path: &Path) -> Result<Self, NodeError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = open(path, flags, Mode::empty())
            .map_err(|e| NodeError::new("open", path.display().to_string(), e))?;
        Ok(Self {
            root,
            path: path.to_owned(),
        })
    }

    /// Whether there is a folder.
    #[must_use]
    pub fn is_dir(&self, path: &str) -> bool {
        self.at(path, OFlag::O_DIRECTORY).is_ok()
    }

    /// Whether there is anything.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.at(path, OFlag::empty()).is_ok()
    }

    /// The bytes of a regular file of at most `max` bytes; `None` when there is none.
    ///
    /// # Errors
    /// Something else than a regular file is there, it is larger, or it cannot be read.
    pub fn read(&self, path: &str, max: usize) -> Result<Option<Vec<u8>>, NodeError> {
        let handle = match self.at(path, OFlag::empty()) {
            Ok(handle) => handle,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(e) => return Err(self.failed("open", path, e)),
        };
        // An image may hold device nodes, and opening some of them does something: look first, then open what was seen.
        let stat = fstat(&handle).map_err(|e| self.failed("look at", path, e))?;
        if !file::is(&stat, SFlag::S_IFREG) {
            return Err(NodeError::odd(
                "read",
                self.name(path),
                "not a regular file",
            ));
        }
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let opened = open(
            format!("/proc/self/fd/{}", handle.as_raw_fd()).as_str(),
            flags,
            Mode::empty(),
        )
        .map_err(|e| self.failed("open", path, e))?;
        let bytes = file::read_bounded(&File::from(opened), file::size(&stat), max)
            .map_err(|e| NodeError::new("read", self.name(path), e))?;
        bytes.map(Some).ok_or_else(|| {
            NodeError::odd("read", self.name(path), format!("larger than {max} bytes"))
        })
    }

    fn at(&self, path: &str, flags: OFlag) -> nix::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC | flags)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        openat2(&self.root, path, how)
    }

    fn failed(&self, attempt: &'static str, path: &str, errno: Errno) -> NodeError {
        NodeError::new(attempt, self.name(path), errno)
    }

    fn name(&self, path: &str) -> String {
        format!("{} in {}", path, self.path.display())
    }
}
