//! How a command ends: its exit status, and the errors that lead to one. Decides nothing else.

use std::fmt;
use std::io;

use contract::Refusal;

/// The exit status of `quilt-gpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: done.
    Done,
    /// 1: refused, or a check found something wrong.
    Refused,
    /// 2: wrong usage or configuration.
    Usage,
    /// 3: not ready, or no capacity now: the same call can succeed later.
    NotReady,
    /// 4: our fault, or the system's.
    Internal,
}

impl Exit {
    /// The number.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Refused => 1,
            Self::Usage => 2,
            Self::NotReady => 3,
            Self::Internal => 4,
        }
    }
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub enum Failure {
    /// A refusal with its public code.
    Refused(Box<Refusal>),
    /// The command line or the configuration is wrong.
    Usage(String),
    /// What was asked about is not there, or not as it should be.
    Wrong(String),
    /// Something that was attempted did not work.
    Internal(String),
    /// The reader of our output is gone.
    Output(io::Error),
}

impl Failure {
    /// The status this failure ends with. A refusal's follows its HTTP status: 4xx means that the request must change,
    /// 503 that the same request can succeed later, 500 that the node is at fault.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Refused(refusal) => match refusal.code.status() {
                503 => Exit::NotReady,
                500 => Exit::Internal,
                _ => Exit::Refused,
            },
            Self::Wrong(_) => Exit::Refused,
            Self::Usage(_) => Exit::Usage,
            // `quilt-gpu … | head` is no error.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
            Self::Internal(_) | Self::Output(_) => Exit::Internal,
        }
    }

    /// An internal failure in the words of its cause.
    pub(crate) fn internal(cause: impl fmt::Display) -> Self {
        Self::Internal(cause.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Usage(text) | Self::Wrong(text) | Self::Internal(text) => f.write_str(text),
            Self::Output(error) => write!(f, "cannot write the output: {error}"),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl From<io::Error> for Failure {
    /// Only writes to the command's output use `?` on a bare I/O error; every other one says what was attempted.
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        if error.is_io() { Self::Output(error.into()) } else { Self::internal(error) }
    }
}

#[cfg(test)]
mod tests {
    use contract::Code;

    use super::*;

    #[test]
    fn a_refusal_ends_by_its_http_status() {
        for (code, exit) in [
            (Code::InvalidGpuRequest, 1),
            (Code::StrictGpuConflict, 1),
            (Code::UnknownGpu, 1),
            (Code::CapacityFull, 3),
            (Code::DriverNotReady, 3),
            (Code::ContractUntrusted, 4),
            (Code::Internal, 4),
        ] {
            assert_eq!(Failure::from(Refusal::new(code, "x", "y", "z")).exit().code(), exit, "{code:?}");
        }
        assert_eq!(Failure::Usage(String::new()).exit().code(), 2);
        assert_eq!(Failure::Output(io::ErrorKind::BrokenPipe.into()).exit().code(), 0);
        assert_eq!(Failure::Output(io::ErrorKind::StorageFull.into()).exit().code(), 4);
    }
}
