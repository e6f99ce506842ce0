//! What went wrong with the system: what was attempted, where, and why.

use std::fmt;
use std::io;

use nix::errno::Errno;

/// Something that was attempted on the system and failed.
#[derive(Debug)]
pub struct NodeError {
    attempt: &'static str,
    path: String,
    cause: io::Error,
}

impl NodeError {
    pub(crate) fn new(attempt: &'static str, path: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        Self { attempt, path: path.into(), cause: cause.into() }
    }

    /// For something that the system did, but whose outcome makes no sense.
    pub(crate) fn odd(attempt: &'static str, path: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(attempt, path, io::Error::other(why.into()))
    }

    /// For something that took too long.
    pub(crate) fn late(attempt: &'static str, path: impl Into<String>) -> Self {
        Self::new(attempt, path, io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))
    }

    /// Whether it took too long: another time there might have been an answer.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.cause.kind() == io::ErrorKind::TimedOut
    }

    /// Whether the server of that file system is gone, or what it gave before: nothing there opens again (`fs/fuse/dev.c` and
    /// `fs/nfs/inode.c` of Linux).
    pub(crate) fn is_dead(&self) -> bool {
        let number = self.cause.raw_os_error().map(Errno::from_raw);
        matches!(number, Some(Errno::ENOTCONN | Errno::ECONNABORTED | Errno::ESTALE))
    }

    /// Whether it failed because nothing is there.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.cause.kind() == io::ErrorKind::NotFound
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: ", self.attempt, self.path)?;
        match self.cause.raw_os_error() {
            Some(number) => f.write_str(&words(Errno::from_raw(number))),
            None => write!(f, "{}", self.cause),
        }
    }
}

impl std::error::Error for NodeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// An error number in words, as in `no such file or directory`.
pub(crate) fn words(errno: Errno) -> String {
    errno.desc().to_ascii_lowercase()
}

/// Nothing there is an answer, not an error.
pub(crate) fn found<T>(result: Result<T, NodeError>) -> Result<Option<T>, NodeError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}
