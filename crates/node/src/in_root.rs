//! A container's root file system, seen from outside: no path of the image's leads out of it, nothing in it is followed
//! or opened but regular files. Two things are ever changed there: a file that is replaced, and a link where nothing was.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use contract::inventory::FileId;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2, readlinkat, renameat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat, mkdirat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

use crate::error::NodeError;
use crate::write::{Mode as Like, TEMPORARY, fill};
use crate::{devices, file, sys};

/// How often a path with `..` in it is looked for: the kernel gives up where anything on the machine is mounted or renamed
/// meanwhile (`openat2(2)`).
const TRIES: usize = 100;

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
        let root =
            open(path, flags, Mode::empty()).map_err(|e| NodeError::new("open", path.display().to_string(), e))?;
        Ok(Self { root, path: path.to_owned() })
    }

    /// Whether there is a folder.
    #[must_use]
    pub fn is_dir(&self, path: &Path) -> bool {
        self.at(path, OFlag::O_DIRECTORY).is_ok()
    }

    /// Which folder a path is.
    #[must_use]
    pub fn folder(&self, path: &Path) -> Option<(u64, u64)> {
        let (_, id) = file::id_of(self.at(path, OFlag::O_DIRECTORY).ok()?).ok()?;
        Some((id.dev, id.ino))
    }

    /// Whether there is a regular file.
    #[must_use]
    pub fn is_file(&self, path: &Path) -> bool {
        let stat = self.at(path, OFlag::empty()).and_then(fstat);
        stat.is_ok_and(|stat| file::is(stat.st_mode, SFlag::S_IFREG))
    }

    /// Shows the names in a folder, as far as they are text: of at most `most` files, and none where there is no folder.
    pub fn names(&self, path: &Path, most: usize, show: &mut dyn FnMut(&str)) {
        let Ok(handle) = self.at(path, OFlag::O_DIRECTORY) else { return };
        let Ok(entries) = std::fs::read_dir(format!("/proc/self/fd/{}", handle.as_raw_fd())) else { return };
        for entry in entries.take(most) {
            let Ok(entry) = entry else { return };
            entry.file_name().to_str().into_iter().for_each(&mut *show);
        }
    }

    /// What a link says; nothing where there is none.
    #[must_use]
    pub fn link(&self, path: &Path) -> Option<PathBuf> {
        let handle = self.at(path, OFlag::O_NOFOLLOW).ok()?;
        readlinkat(&handle, Path::new("")).ok().map(PathBuf::from)
    }

    /// Whether nobody can change it from the node either.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        fstatvfs(&self.root).is_ok_and(|seen| seen.flags().contains(FsFlags::ST_RDONLY))
    }

    /// Replaces a regular file that is there, in one step: whoever has it open keeps the old one. Owner, mode and attributes
    /// stay. Neither a link nor another file system's file is replaced, and nothing of the node's own root.
    ///
    /// # Errors
    /// What failed; the old file is then untouched.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
        let temporary = format!("{TEMPORARY}{}.tmp", sys::random_hex128()?);
        self.replaced(path, bytes, &temporary).map_err(|e| self.failed("replace", path, e))
    }

    fn replaced(&self, path: &Path, bytes: &[u8], temporary: &str) -> std::io::Result<()> {
        let (folder, name) = self.place(path)?;
        let old = fstatat(&folder, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        if !file::is(old.st_mode, SFlag::S_IFREG) {
            return Err(std::io::Error::other("not a regular file"));
        }
        let like = Like { mode: old.st_mode & 0o7777, uid: old.st_uid, gid: old.st_gid };
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let made = openat(&folder, temporary, flags, Mode::from_bits_truncate(0o600))?;
        let attributes = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
        let done = fill(File::from(made), &attributes, bytes, like, false)
            .and_then(|()| renameat(&folder, temporary, &folder, name).map_err(Into::into));
        if done.is_err() {
            let _ = unlinkat(&folder, temporary, UnlinkatFlags::NoRemoveDir);
        }
        done
    }

    /// Makes a link that says `target`, and the folders above it, where nothing is. Not in another file system, nor in the
    /// node's own root.
    ///
    /// # Errors
    /// What failed, or what is there.
    pub fn make_link(&self, path: &Path, target: &Path) -> Result<(), NodeError> {
        let made = self.make_folders(path).and_then(|()| {
            let (folder, name) = self.place(path)?;
            symlinkat(target, &folder, name).map_err(Into::into)
        });
        made.map_err(|e| self.failed("link", path, e))
    }

    fn make_folders(&self, path: &Path) -> std::io::Result<()> {
        let above: Vec<&Path> = path.ancestors().skip(1).filter(|folder| folder.file_name().is_some()).collect();
        for folder in above.into_iter().rev().filter(|folder| !self.is_dir(folder)) {
            let (within, name) = self.place(folder)?;
            mkdirat(&within, name, Mode::from_bits_truncate(0o755))?;
        }
        Ok(())
    }

    /// The folder in which something may be changed, and the name there. No mount is crossed, and the node's own root is none.
    fn place<'p>(&self, path: &'p Path) -> std::io::Result<(OwnedFd, &'p OsStr)> {
        let (_, node) = file::id_of(File::open("/")?)?;
        let (_, own) = file::id_of(&self.root)?;
        if (own.dev, own.ino) == (node.dev, node.ino) {
            return Err(std::io::Error::other("it is the node's own root"));
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(std::io::Error::other("no file's name"));
        };
        Ok((self.resolved(folder, OFlag::O_DIRECTORY, ResolveFlag::RESOLVE_NO_XDEV)?, name))
    }

    /// Whether there is anything.
    #[must_use]
    pub fn exists(&self, path: &Path) -> bool {
        self.at(path, OFlag::empty()).is_ok()
    }

    /// What a file is.
    ///
    /// # Errors
    /// Nothing is there, or it may not be looked at.
    pub fn file_id(&self, path: &Path) -> Result<FileId, NodeError> {
        file::id_of(self.look(path)?).map(|(_, id)| id).map_err(|e| self.failed("look at", path, e))
    }

    /// Whether this file system is what is seen at a path, and not read-only there.
    pub(crate) fn is_writable(&self, path: &str, file_system: (u32, u32)) -> bool {
        let Ok(handle) = self.look(Path::new(path)) else { return false };
        let same = fstat(&handle).is_ok_and(|stat| devices::numbers(stat.st_dev) == file_system);
        same && fstatvfs(&handle).is_ok_and(|seen| !seen.flags().contains(FsFlags::ST_RDONLY))
    }

    /// The bytes of a regular file of at most `max` bytes.
    ///
    /// # Errors
    /// Nothing is there, or something else than a regular file; it is larger, or cannot be read.
    pub fn read(&self, path: &Path, max: usize) -> Result<Vec<u8>, NodeError> {
        let (file, size) = self.open_file(path)?;
        let bytes = file::read_bounded(&file, size, max).map_err(|e| self.failed("read", path, e))?;
        bytes.ok_or_else(|| self.failed("read", path, std::io::Error::other(format!("larger than {max} bytes"))))
    }

    /// A part of a regular file: offset and size, as `part` tells by the file's first bytes; nothing where it tells none, or
    /// the file is shorter.
    ///
    /// # Errors
    /// Nothing is there, or something else than a regular file; it cannot be read.
    pub fn read_part(
        &self,
        path: &Path,
        part: impl FnOnce(&[u8]) -> Option<(u64, usize)>,
    ) -> Result<Option<Vec<u8>>, NodeError> {
        let (file, _) = self.open_file(path)?;
        let failed = |e| self.failed("read", path, e);
        let mut head = [0; 1024];
        let many = file.read_at(&mut head, 0).map_err(failed)?;
        let Some((offset, size)) = part(head.get(..many).unwrap_or_default()) else { return Ok(None) };
        let mut bytes = vec![0; size];
        match file.read_exact_at(&mut bytes, offset) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
            read => read.map(|()| Some(bytes)).map_err(failed),
        }
    }

    /// A regular file, open for reading, and its size.
    fn open_file(&self, path: &Path) -> Result<(File, u64), NodeError> {
        let handle = self.look(path)?;
        // An image may hold device nodes, and opening some of them does something: look first, then open what was seen.
        let (stat, id) = file::id_of(&handle).map_err(|e| self.failed("look at", path, e))?;
        if !file::is(stat.st_mode, SFlag::S_IFREG) {
            return Err(self.failed("read", path, std::io::Error::other("not a regular file")));
        }
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let opened = open(format!("/proc/self/fd/{}", handle.as_raw_fd()).as_str(), flags, Mode::empty())
            .map_err(|e| self.failed("open", path, e))?;
        Ok((File::from(opened), id.size))
    }

    pub(crate) fn handle(&self) -> &OwnedFd {
        &self.root
    }

    /// What is at a path, taken hold of; nothing when nothing is there.
    pub(crate) fn find(&self, path: &str) -> Result<Option<OwnedFd>, NodeError> {
        match self.at(Path::new(path), OFlag::empty()) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Ok(handle) => Ok(Some(handle)),
            Err(e) => Err(self.failed("find", Path::new(path), e)),
        }
    }

    pub(crate) fn look(&self, path: &Path) -> Result<OwnedFd, NodeError> {
        self.at(path, OFlag::empty()).map_err(|e| self.failed("find", path, e))
    }

    fn at(&self, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
        self.resolved(path, flags, ResolveFlag::empty())
    }

    /// Every path of an image's is resolved here.
    fn resolved(&self, path: &Path, flags: OFlag, also: ResolveFlag) -> nix::Result<OwnedFd> {
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC | flags);
        let how = how.resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS | also);
        let mut tries = 0..TRIES;
        loop {
            match openat2(&self.root, path, how) {
                Err(Errno::EAGAIN) if tries.next().is_some() => {}
                told => return told,
            }
        }
    }

    pub(crate) fn failed(&self, attempt: &'static str, path: &Path, cause: impl Into<std::io::Error>) -> NodeError {
        NodeError::new(attempt, format!("{} in {}", path.display(), self.path.display()), cause)
    }
}
