//! The driver root: files looked up below it as a process confined to it would, links included. Reads only.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use contract::inventory::FileId;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, SFlag, fstat};

/// An open driver root.
pub(crate) struct Root {
    handle: OwnedFd,
    real: String,
    /// What was found wrong with folders in it, by their path there, without links.
    judged: RefCell<HashMap<String, Option<Fault>>>,
}

/// Why others than root could put something else in a file's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The file, or the folder on the way to it, on the host.
    pub(crate) path: String,
    /// What is wrong with it.
    pub(crate) why: String,
}

/// A regular file in it.
pub(crate) struct Found {
    /// The open file.
    pub(crate) file: File,
    /// Its path on the host, links resolved.
    pub(crate) real: String,
    /// Its identity.
    pub(crate) id: FileId,
    /// Why it is not root's alone; nothing when nobody else can write it, or exchange it on its whole way in this root.
    pub(crate) fault: Option<Fault>,
}

impl Root {
    /// Opens the root.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let handle = open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        let real = real(&handle)?;
        Ok(Self { handle, real, judged: RefCell::default() })
    }

    /// A folder in it, as a root of its own.
    pub(crate) fn below(&self, path: &str) -> io::Result<Self> {
        let handle = self.at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?.into();
        let real = real(&handle)?;
        // Whoever could exchange the folder could exchange all in it.
        let above = self.within(self.inside(&real), &real);
        let judged = RefCell::new(above.into_iter().map(|fault| (String::new(), Some(fault))).collect());
        Ok(Self { handle, real, judged })
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
        let facts = fstat(&file)?;
        if SFlag::from_bits_truncate(facts.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
            return Err(io::Error::other("not a regular file"));
        }
        let real = real(&file)?;
        let own = node::fault(&facts).map(|why| Fault { path: real.clone(), why });
        let fault = own.or_else(|| {
            let above = self.inside(&real).map(|path| path.rsplit_once('/').map_or("", |(above, _)| above));
            self.within(above, &real)
        });
        Ok(Found { real, id: node::id(&facts), fault, file })
    }

    /// As [`Root::folder`]; what does not lie in this root cannot be judged.
    fn within(&self, path: Option<&str>, real: &str) -> Option<Fault> {
        let elsewhere = || Some(Fault { path: real.to_owned(), why: format!("does not lie in {}", self.real) });
        path.map_or_else(elsewhere, |path| self.folder(path))
    }

    /// What is wrong with a folder, or with one on the way to it from this root. Of the folders on a path the first that
    /// others can change stays where it is, so looking one after the other misses none.
    fn folder(&self, path: &str) -> Option<Fault> {
        if let Some(known) = self.judged.borrow().get(path) {
            return known.clone();
        }
        let above = (!path.is_empty()).then(|| path.rsplit_once('/').map_or("", |(above, _)| above));
        let fault = above.and_then(|above| self.folder(above)).or_else(|| self.folder_alone(path));
        self.judged.borrow_mut().insert(path.to_owned(), fault.clone());
        fault
    }

    fn folder_alone(&self, path: &str) -> Option<Fault> {
        let real = format!("{}/{path}", self.real.trim_end_matches('/'));
        let real = if path.is_empty() { self.real.clone() } else { real };
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
        let inside = if path.is_empty() { "." } else { path };
        let why = match openat2(&self.handle, inside, how).and_then(fstat) {
            Ok(facts) => node::folder_fault(&real, &facts)?,
            Err(cause) => format!("cannot be looked at: {cause}"),
        };
        Some(Fault { path: real, why })
    }
}

/// The path of an open file, links resolved.
fn real(handle: &impl AsFd) -> io::Result<String> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd()))?;
    path.into_os_string().into_string().map_err(|_| io::Error::other("its path is not UTF-8"))
}
