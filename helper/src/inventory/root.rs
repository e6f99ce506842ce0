//! The driver root: files looked up below it as a process confined to it would, links included. Reads only.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use contract::inventory::FileId;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

/// An open driver root.
pub(crate) struct Root {
    handle: OwnedFd,
    real: String,
}

/// A regular file in it.
pub(crate) struct Found {
    /// The open file.
    pub(crate) file: File,
    /// Its path on the host, links resolved.
    pub(crate) real: String,
    /// Its identity.
    pub(crate) id: FileId,
    /// Owned by root, and nobody else can write it.
    pub(crate) trusted: bool,
}

impl Root {
    /// Opens the root.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let handle = open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        let real = real(&handle)?;
        Ok(Self { handle, real })
    }

    /// A folder in it, as a root of its own.
    pub(crate) fn below(&self, path: &str) -> io::Result<Self> {
        let handle = self.at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?.into();
        Ok(Self { real: real(&handle)?, handle })
    }

    /// A host path as a path in this root.
    pub(crate) fn inside<'a>(&self, real: &'a str) -> Option<&'a str> {
        real.strip_prefix(self.real.trim_end_matches('/')).map(|rest| rest.trim_start_matches('/'))
    }

    fn at(&self, path: &str, flags: OFlag) -> io::Result<File> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        Ok(openat2(&self.handle, path, how)?.into())
    }

    /// The names in a folder, sorted; none when there is no such folder.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let Ok(handle) = self.at(folder, OFlag::O_RDONLY | OFlag::O_DIRECTORY) else {
            return Vec::new();
        };
        let Ok(mut dir) = nix::dir::Dir::from_fd(handle.into()) else {
            return Vec::new();
        };
        let name = |name: &CStr| name.to_str().ok().map(str::to_owned);
        let mut names: Vec<String> = dir.iter().flatten().filter_map(|entry| name(entry.file_name())).collect();
        names.sort();
        names
    }

    /// A regular file, opened for reading.
    pub(crate) fn file(&self, path: &str) -> io::Result<Found> {
        let file = self.at(path, OFlag::O_RDONLY)?;
        let facts = file.metadata()?;
        if !facts.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let id = FileId {
            dev: facts.dev(),
            ino: facts.ino(),
            size: facts.size(),
            ctime: facts.ctime(),
            ctime_nsec: facts.ctime_nsec(),
        };
        Ok(Found { real: real(&file)?, id, trusted: facts.uid() == 0 && facts.mode() & 0o022 == 0, file })
    }
}

/// The path of an open file, links resolved.
fn real(handle: &impl AsFd) -> io::Result<String> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd()))?;
    path.into_os_string().into_string().map_err(|_| io::Error::other("its path is not UTF-8"))
}
