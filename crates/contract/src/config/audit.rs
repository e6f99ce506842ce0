//! `[audit]`: how the record of what was decided is kept. Types and defaults; `ledger` does it.

use crate::json::Node;
use crate::read::{FromJson, ReadError};
use crate::{settings, word};

/// `[audit]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditPolicy {
    /// Mebibytes at which the log's file is put aside and a new one begun; 0 means never.
    pub rotate_mib: u64,
    /// How many files that were put aside stay; 0 means all of them.
    pub keep: u32,
    /// Permission bits of the log's files.
    pub mode: FileMode,
    /// A syslog socket that gets every record as one line too; empty means none.
    pub syslog: String,
    /// What becomes of a container with GPUs that cannot be recorded. One without is never kept from starting.
    pub unwritable: Unwritable,
}

/// What a log in trouble means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unwritable {
    /// No record, no GPU.
    #[default]
    Refuse,
    /// The container starts without a record.
    GoOn,
}

/// Permission bits of a file that only its owner writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl Default for AuditPolicy {
    fn default() -> Self {
        Self {
            rotate_mib: 64,
            keep: 8,
            mode: FileMode(0o600),
            syslog: String::new(),
            unwritable: Unwritable::default(),
        }
    }
}

settings!(AuditPolicy { rotate_mib, keep, mode, syslog, unwritable });
word!(Unwritable { Refuse = "refuse", GoOn = "go-on" });

impl FromJson for FileMode {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        match node.as_str() {
            Some("0600") => Ok(Self(0o600)),
            Some("0640") => Ok(Self(0o640)),
            Some("0644") => Ok(Self(0o644)),
            _ => Err(ReadError::new("it must be one of \"0600\" \"0640\" \"0644\"")),
        }
    }
}
