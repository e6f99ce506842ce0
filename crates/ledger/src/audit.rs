//! The audit log: one JSON object per line, each with the digest of the line before.
//!
//! `audit.jsonl` holds the records; `audit.head` says how far it goes, so that adding one does not read the log, and a
//! log that was cut or written by others is noticed; `audit.lock` is held while one is added. A file that is full is put
//! aside, and the chain goes on in the next. The chain shows what changed, it does not stop root. Nothing here decides; the
//! caller says what happened.

mod aside;
mod chain;
mod syslog;
mod time;
mod walk;

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use contract::Granted;
use contract::config::AuditPolicy;
use contract::json::{parse_data, to_value};
use contract::key::sha256;
use serde_json::{Map, Value, json};

use crate::LedgerError;
use crate::files::{Locked, PATIENCE, crash_point, own_folder};
use chain::Head;

pub use walk::{Bad, Verified, read, verify};

/// What went wrong with the log.
pub type AuditError = LedgerError;

const LOG: &str = "audit.jsonl";
/// Most bytes of one line.
const MAX_LINE: usize = 64 << 10;
/// Fields that the log itself writes.
const OWN: [&str; 4] = ["seq", "prev", "kind", "time"];
/// The field for what stands in a record as it was given.
const EDITS: &str = "edits";

/// GPUs as every record names them: by all their names.
#[must_use]
pub fn gpus(list: &[Granted]) -> Value {
    list.iter().map(|gpu| json!({ "name": gpu.name(), "pci": gpu.pci, "uuid": gpu.driver_name() })).collect()
}

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A container was given a contract, or plainly none.
    Create,
    /// A create was refused.
    Refuse,
    /// A container's GPUs were released.
    Release,
    /// GPUs of a dead holder were taken back.
    Reclaim,
    /// The inventory was made anew.
    Refresh,
    /// A process was started in a container with a contract.
    Exec,
    /// A container's limits were changed, and something of that was left out.
    Update,
    /// A created container was not what its contract says.
    VerifyFailed,
    /// GPUs were reserved.
    Reserve,
}

impl Kind {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Refuse => "refuse",
            Self::Release => "release",
            Self::Reclaim => "reclaim",
            Self::Refresh => "refresh",
            Self::Exec => "exec",
            Self::Update => "update",
            Self::VerifyFailed => "verify-failed",
            Self::Reserve => "reserve",
        }
    }
}

/// One thing that happened. Number, chain and time are the log's to add.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// What it is about.
    pub kind: Kind,
    /// Everything else, by name; `seq`, `prev`, `kind` and `time` are taken.
    pub fields: Map<String, Value>,
}

/// The log in one folder.
#[derive(Debug, Clone)]
pub struct Audit {
    folder: PathBuf,
    patience: Duration,
    policy: AuditPolicy,
}

impl Audit {
    /// The log in this folder, which is made (0700) when it does not exist.
    ///
    /// # Errors
    /// The folder cannot be made, or others than its owner may write there.
    pub fn open(log_dir: &Path, policy: &AuditPolicy) -> Result<Self, AuditError> {
        own_folder(log_dir)?;
        Ok(Self { folder: log_dir.to_owned(), patience: PATIENCE, policy: policy.clone() })
    }

    /// The same log for somebody who can do without a record: waits a second for its lock, not ten.
    #[must_use]
    pub fn hasty(self) -> Self {
        Self { patience: Duration::from_secs(1), ..self }
    }

    /// Adds a record and says its number.
    ///
    /// What a crash left half-written becomes a record of kind `torn` first. Long strings of a record over 64 KiB are
    /// shortened, with a mark.
    ///
    /// # Errors
    /// The record is not in the log.
    pub fn append(&self, record: &Record) -> Result<u64, AuditError> {
        self.append_with(record, "")
    }

    /// The same, with this JSON text as the field `edits`: what is text already is not read to be written again.
    ///
    /// # Errors
    /// As [`Audit::append`].
    pub fn append_with(&self, record: &Record, edits: &str) -> Result<u64, AuditError> {
        let locked = Locked::take_within(&self.folder, "audit.lock", self.patience)?;
        let path = locked.path(LOG);
        let failed = |e: &dyn std::fmt::Display| LedgerError::new("write", &path, e);
        if let Some(own) = OWN.iter().find(|own| record.fields.contains_key(**own)) {
            return Err(failed(&format!("a record's field {own:?} is the log's own")));
        }
        let (mut file, size) = self.file(&path)?;
        let mut head = match Head::read(&self.folder) {
            Some(head) if head.is_at(size) => head,
            other => chain::recover(&locked, &mut file, size, other)?,
        };
        let full = self.policy.rotate_mib.saturating_mul(1 << 20);
        if full > 0
            && head.size >= full
            && let Ok(next) = aside::put(&locked, &head, self.policy.keep)
        {
            (head, file) = (next, self.file(&path)?.0);
        }
        let kind = record.kind.name();
        let (head, line) = add(&mut file, &path, &head, kind, (&record.fields, edits))?;
        // The record is in the log. If the head is not written, the next append finds the record by walking from the old one.
        let _ = head.write(&locked);
        drop(locked);
        if !self.policy.syslog.is_empty() {
            syslog::send(&self.policy.syslog, &line, &head.digest);
        }
        Ok(head.seq)
    }

    /// The file that is written, and its size.
    fn file(&self, path: &Path) -> Result<(File, u64), AuditError> {
        let failed = |e: std::io::Error| LedgerError::new("write", path, &e);
        let mode = self.policy.mode.0;
        let file = File::options().create(true).append(true).read(true).mode(mode).open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        // Beyond 0600, whoever's umask begins a file must not decide who reads it.
        if size == 0 && mode != 0o600 {
            file.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
        }
        Ok((file, size))
    }
}

/// The fields of a record, and the text of its edits; none when empty.
type Content<'a> = (&'a Map<String, Value>, &'a str);

/// Writes one line after the place that `head` tells, and says where the log ends then, and the line.
fn add(
    file: &mut File,
    path: &Path,
    head: &Head,
    kind: &str,
    content: Content<'_>,
) -> Result<(Head, String), AuditError> {
    let seq = head.seq + 1;
    let mut line = line(seq, &head.digest, kind, content);
    let digest = sha256(line.as_bytes());
    line.push('\n');
    let written = crash_point().and_then(|()| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        // A full disk takes a part of the line. If it cannot be cut off, the next append keeps it aside.
        let _ = crash_point().and_then(|()| file.set_len(head.size));
        return Err(LedgerError::new("write", path, &error));
    }
    Ok((Head { seq, digest, size: head.size + line.len() as u64, torn: None }, line))
}

fn line(seq: u64, prev: &str, kind: &str, (fields, edits): Content<'_>) -> String {
    let head = format!("{{\"seq\":{seq},\"prev\":\"{prev}\",\"kind\":\"{kind}\",\"time\":\"{}\"", time::now());
    let room = MAX_LINE - head.len() - 2;
    let mut body = body(fields);
    if !edits.is_empty() {
        let comma = if body.is_empty() { "" } else { "," };
        body.push_str(&format!("{comma}\"{EDITS}\":{}", edits.replace("\\u0000", "\\ufffd")));
    }
    let whole = body.len();
    if whole > room {
        let mut fields = fields.clone();
        if let Ok(edits) = parse_data(edits.as_bytes()) {
            fields.insert(EDITS.to_owned(), to_value(&edits));
        }
        for longest in [4096, 1024, 128] {
            if body.len() > room {
                body = self::body(&shorten(&fields, longest));
            }
        }
    }
    if body.len() > room {
        body = format!("\"dropped\":\"{whole} bytes of fields\"");
    }
    if body.is_empty() { head + "}" } else { format!("{head},{body}}}") }
}

/// The fields as they stand inside the braces. A NUL, which our own reader takes in no string, becomes U+FFFD.
fn body(fields: &Map<String, Value>) -> String {
    // A map of strings to values always serialises.
    let object = serde_json::to_string(fields).unwrap_or_default().replace("\\u0000", "\\ufffd");
    object.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or_default().to_owned()
}

fn shorten(fields: &Map<String, Value>, longest: usize) -> Map<String, Value> {
    // One by one: to collect a map is to sort it, by a sort of its own for each place that does.
    let mut short = Map::new();
    for (key, value) in fields {
        short.insert(key.clone(), shortened(value, longest));
    }
    short
}

fn shortened(value: &Value, longest: usize) -> Value {
    match value {
        Value::String(text) => Value::String(cut(text, longest)),
        Value::Array(items) => items.iter().map(|item| shortened(item, longest)).collect(),
        Value::Object(fields) => Value::Object(shorten(fields, longest)),
        other => other.clone(),
    }
}

/// A text of at most `longest` bytes, and how many more there were.
fn cut(text: &str, longest: usize) -> String {
    let end = text.floor_char_boundary(longest);
    if end == text.len() { text.to_owned() } else { format!("{}…[{} bytes more]", &text[..end], text.len() - end) }
}

#[cfg(test)]
mod tests;
