//! The ledger's file operations: a folder under its lock, and writes that a crash cannot spoil.
//!
//! There is one temporary name per lock. Whoever holds the lock may write it, so a crash leaves at most one stray file,
//! which nothing reads and the next write takes over.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::LedgerError;

/// How long a lock may be missed. Its holders write a few small files; one that is stopped must not stop all others.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Makes a folder that is root's alone, or checks that nobody else can write the one that is there.
pub(crate) fn own_folder(path: &Path) -> Result<(), LedgerError> {
    match fs::metadata(path) {
        Ok(meta) if !meta.is_dir() => Err(LedgerError::new("use", path, &"it is not a folder")),
        Ok(meta) if meta.mode() & 0o022 != 0 => {
            let why =
                format!("others than its owner may write there (mode {:04o}), must be 0700", meta.mode() & 0o7777);
            Err(LedgerError::new("use", path, &why))
        }
        // Who owns it writes there; whoever tests this without being root, too.
        Ok(meta) if meta.uid() != 0 && fs::metadata("/proc/self").map_or(0, |me| me.uid()) != meta.uid() => {
            let why = format!("it belongs to user {}, must belong to root", meta.uid());
            Err(LedgerError::new("use", path, &why))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make_folder(path),
        Err(error) => Err(LedgerError::new("look at", path, &error)),
    }
}

fn make_folder(path: &Path) -> Result<(), LedgerError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| LedgerError::new("make", path, &e))
}

/// A folder whose lock this holds until it is dropped; a holder that dies lets go of it.
pub(crate) struct Locked {
    folder: PathBuf,
    temporary: PathBuf,
    /// Another one held it.
    pub(crate) waited: bool,
    _lock: File,
}

impl Locked {
    /// Takes the lock file `name` of `folder`.
    pub(crate) fn take(folder: &Path, name: &str) -> Result<Self, LedgerError> {
        Self::take_within(folder, name, PATIENCE)
    }

    /// The same for somebody who can do without sooner.
    pub(crate) fn take_within(folder: &Path, name: &str, patience: Duration) -> Result<Self, LedgerError> {
        let path = folder.join(name);
        let failed = |e: &dyn std::fmt::Display| LedgerError::new("lock", &path, e);
        // Each taker opens the file anew: the lock belongs to the open file, so threads exclude each other too.
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .map_err(|e| failed(&e))?;
        let begin = Instant::now();
        let mut pause = Duration::from_micros(100);
        let mut waited = false;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(e)) => return Err(failed(&e)),
                Err(TryLockError::WouldBlock) if begin.elapsed() > patience => {
                    return Err(failed(&format!("another process has held it for {} s", patience.as_secs())));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(pause),
            }
            waited = true;
            pause = (pause * 2).min(Duration::from_millis(2));
        }
        Ok(Self { folder: folder.to_owned(), temporary: folder.join(format!("{name}.new")), waited, _lock: lock })
    }

    /// The path of a name in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Puts a file there, whole: a reader, or whoever comes after a crash, finds the old file or the new one.
    pub(crate) fn place(&self, name: &str, bytes: &[u8]) -> Result<(), LedgerError> {
        let path = self.path(name);
        let failed = |e: io::Error| LedgerError::new("write", &path, &e);
        crash_point().and_then(|()| self.write_temporary(bytes)).map_err(failed)?;
        match crash_point().and_then(|()| fs::rename(&self.temporary, &path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_folder(path.parent().unwrap_or(&self.folder))?;
                fs::rename(&self.temporary, &path).map_err(failed)
            }
            other => other.map_err(failed),
        }
    }

    /// Writes over a file that is there and has exactly so many bytes, a page at most: the kernel writes those at once, so
    /// whatever interrupts us, the old or the new ones are there. `false` when there is no such file.
    pub(crate) fn write_over(&self, name: &str, bytes: &[u8]) -> Result<bool, LedgerError> {
        let path = self.path(name);
        let Ok(mut file) = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(&path)
        else {
            return Ok(false);
        };
        if !file.metadata().is_ok_and(|meta| meta.is_file() && meta.len() == bytes.len() as u64) {
            return Ok(false);
        }
        let written = crash_point().and_then(|()| file.write_all(bytes));
        written.map(|()| true).map_err(|e| LedgerError::new("write", &path, &e))
    }

    fn write_temporary(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&self.temporary)?;
        file.write_all(bytes)
    }

    /// Removes a file; `false` when it was not there.
    pub(crate) fn remove(&self, name: &str) -> Result<bool, LedgerError> {
        let path = self.path(name);
        match crash_point().and_then(|()| fs::remove_file(&path)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(LedgerError::new("remove", &path, &error)),
        }
    }
}

/// The bytes of a regular file of at most `max` bytes. Never waits: whatever else lies there is an error.
///
/// # Errors
/// It is not there, is no regular file, or is too large.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let bytes = node::read_bounded(&file, meta.len(), usize::try_from(max).unwrap_or(usize::MAX))?;
    bytes.ok_or_else(|| io::Error::other(format!("it is larger than {max} bytes")))
}

/// The names in a folder; none when it does not exist.
pub(crate) fn names(folder: &Path) -> Result<Vec<String>, LedgerError> {
    let failed = |e: io::Error| LedgerError::new("list", folder, &e);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        // A name that is not UTF-8 is none of ours.
        names.extend(entry.map_err(failed)?.file_name().into_string().ok());
    }
    Ok(names)
}

/// In tests: where a process could be killed. From the chosen point on nothing more is done to the disk.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn crash_point() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(crate) use crash::crash_point;

#[cfg(test)]
pub(crate) mod crash {
    use std::cell::Cell;
    use std::io;

    thread_local!(static LEFT: Cell<Option<u32>> = const { Cell::new(None) });

    /// Runs `act` and lets it do `steps` operations; says whether it wanted more.
    pub(crate) fn after<T>(steps: u32, act: impl FnOnce() -> T) -> (T, bool) {
        LEFT.set(Some(steps));
        let result = act();
        (result, LEFT.replace(None) == Some(u32::MAX))
    }

    pub(crate) fn crash_point() -> io::Result<()> {
        match LEFT.get() {
            None => Ok(()),
            Some(0 | u32::MAX) => {
                LEFT.set(Some(u32::MAX));
                Err(io::Error::other("crashed here"))
            }
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }
}
