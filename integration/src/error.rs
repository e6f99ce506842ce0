//! One error type for the whole harness: a sentence that says what was attempted, where, and why not.
//!
//! A failing fixture must name itself; it must not carry types that a caller would branch on.

use std::fmt;

/// What was attempted, on what, and the cause.
pub struct Error(String);

/// The harness's result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with this sentence.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The same as `Display`: a test that returns this error prints the sentence.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Puts what was attempted in front of a cause.
pub(crate) trait Context<T> {
    /// `what` completes "cannot …".
    fn cannot(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn cannot(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|cause| Error(format!("cannot {}: {cause}", what())))
    }
}
