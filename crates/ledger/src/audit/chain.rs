//! The chain itself: how far the log goes, and mending it after a crash.
//!
//! Mending never drops anything silently: what is cut off the log stands in the `torn` record that follows, and when it
//! is longer than a record can be, or no text, whole in a file `audit.torn-<digest>` as well.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use contract::key::sha256;
use contract::{read, record};
use serde::Serialize;

use super::{AuditError, LOG, MAX_LINE, add, cut};
use crate::LedgerError;
use crate::files::{Locked, crash_point};

const HEAD: &str = "audit.head";
/// Most bytes of it: a torn tail of the log may stand in it, shortened.
const MAX_HEAD: u64 = 1 << 20;
/// Bytes of one without a torn tail, spaces behind it included: always as many, so that one can be written over another.
const ROOM: usize = 192;
/// What stands for the digest before the first record.
pub(super) const ZERO: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Where the log ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Head {
    /// Number of the last record, 0 before the first.
    pub(super) seq: u64,
    /// Digest of its line, without the line's end.
    pub(super) digest: String,
    /// Bytes of the log.
    pub(super) size: u64,
    /// What lies behind that, while it is being replaced by a record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) torn: Option<Torn>,
}

/// Something that is not a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Torn {
    /// The text, shortened when it is longer than a record may be.
    text: String,
    /// Its bytes, and their digest.
    bytes: u64,
    sha256: String,
    /// How many records the head knew that are not in the log any more.
    lost: u64,
}

impl Head {
    pub(super) fn start() -> Self {
        Self { seq: 0, digest: ZERO.to_owned(), size: 0, torn: None }
    }

    /// What was written last; nothing when it is not there or cannot be read: the log itself says the rest.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        read::document(&crate::files::read(&folder.join(HEAD), MAX_HEAD).ok()?).ok()
    }

    pub(super) fn is_at(&self, size: u64) -> bool {
        self.size == size && self.torn.is_none()
    }

    /// One without a torn tail is written over the one before: a file made anew for each record, and put in place of the old
    /// one, has the file system of a disk write at once and look for room, which costs more than all else of a record.
    pub(super) fn write(&self, locked: &Locked) -> Result<(), AuditError> {
        let mut bytes = serde_json::to_vec(self).map_err(|e| LedgerError::new("write", &locked.path(HEAD), &e))?;
        if self.torn.is_none() && bytes.len() < ROOM {
            bytes.resize(ROOM, b' ');
            if locked.write_over(HEAD, &bytes)? {
                return Ok(());
            }
        }
        locked.place(HEAD, &bytes)
    }

    /// The next record, if this line is it.
    fn follow(&self, line: &[u8]) -> Option<Self> {
        let link = Link::of(line)?;
        (link.seq == self.seq + 1 && link.prev == self.digest).then(|| self.at(&link, line))
    }

    pub(super) fn at(&self, link: &Link, line: &[u8]) -> Self {
        Self { seq: link.seq, digest: sha256(line), size: self.size + line.len() as u64 + 1, torn: None }
    }
}

/// What chains a line.
pub(super) struct Link {
    pub(super) seq: u64,
    pub(super) prev: String,
    pub(super) kind: String,
    pub(super) lost: Option<u64>,
}

record!(Head { seq, digest, size, torn });
record!(Torn { text, bytes, sha256, lost });
record!(open Link { seq, prev, kind, lost });

impl Link {
    pub(super) fn of(line: &[u8]) -> Option<Self> {
        read::document(line).ok()
    }
}

/// Brings log and head together again, and says where the log ends.
///
/// The order: the head takes in what will be cut off; then it is cut off; then it becomes a record; then the head lets
/// go of it. Whatever a crash interrupts, the next call begins where the head says.
pub(super) fn recover(locked: &Locked, file: &mut File, size: u64, head: Option<Head>) -> Result<Head, AuditError> {
    let path = locked.path(LOG);
    let failed = |e: std::io::Error| LedgerError::new("mend", &path, &e);
    let mut head = match head {
        Some(Head { torn: Some(torn), size: end, seq, digest }) => {
            Head { seq, digest, size: end.min(size), torn: Some(torn) }
        }
        other => {
            let (head, rest) = find_end(file, size, other).map_err(failed)?;
            if let Some(torn) = head.torn.as_ref().filter(|torn| torn.text.as_bytes() != rest) {
                // More than a record of ours can be, or no text: kept whole beside the log.
                locked.place(&format!("audit.torn-{}", torn.sha256), &rest)?;
            }
            head
        }
    };
    let Some(torn) = head.torn.clone() else { return Ok(head) };
    head.write(locked)?;
    crash_point().and_then(|()| file.set_len(head.size)).map_err(failed)?;
    let fields = serde_json::to_value(&torn).ok().and_then(|value| value.as_object().cloned()).unwrap_or_default();
    (head, _) = add(file, &path, &head, "torn", (&fields, ""))?;
    head.write(locked)?;
    Ok(head)
}

/// Where the good part of the log ends, and what lies behind it; when that is not nothing, the head has it as `torn`.
fn find_end(file: &mut File, size: u64, before: Option<Head>) -> std::io::Result<(Head, Vec<u8>)> {
    let known = before.as_ref();
    let mut was_cut = false;
    let mut head = match known {
        Some(head) if head.size <= size => head.clone(),
        // The file with what the head knows was put aside: the chain goes on in this one.
        Some(head) if size == 0 || goes_on(file, head)? => Head { size: 0, ..head.clone() },
        other => {
            was_cut = other.is_some();
            last_record(file, size)?
        }
    };
    let tail = bytes_from(file, head.size)?;
    let mut rest = tail.as_slice();
    while let Some((line, after)) = split_line(rest)
        && let Some(next) = head.follow(line)
    {
        (head, rest) = (next, after);
    }
    let lost = known.map_or(0, |known| known.seq.saturating_sub(head.seq));
    if !rest.is_empty() || was_cut {
        // A loss of power leaves zeros, which our own reader takes in no string.
        let text = String::from_utf8_lossy(rest).replace('\0', "\u{fffd}");
        let text = cut(&text, MAX_LINE / 4);
        head.torn = Some(Torn { text, bytes: rest.len() as u64, sha256: sha256(rest), lost });
    }
    Ok((head, rest.to_vec()))
}

/// Whether a file begins with the record after `head`.
fn goes_on(file: &mut File, head: &Head) -> std::io::Result<bool> {
    let bytes = bytes_from(file, 0)?;
    Ok(split_line(&bytes).is_some_and(|(line, _)| head.follow(line).is_some()))
}

/// The last line that is a record, found from the end.
fn last_record(file: &mut File, size: u64) -> std::io::Result<Head> {
    let begin = size.saturating_sub(4 * MAX_LINE as u64);
    let tail = bytes_from(file, begin)?;
    let mut end = tail.len();
    while let Some(stop) = tail.get(..end).and_then(|bytes| bytes.iter().rposition(|b| *b == b'\n')) {
        let start = tail.get(..stop).and_then(|bytes| bytes.iter().rposition(|b| *b == b'\n')).map_or(0, |at| at + 1);
        let line = tail.get(start..stop).unwrap_or_default();
        if let Some(link) = Link::of(line) {
            return Ok(Head { size: begin + start as u64, ..Head::start() }.at(&link, line));
        }
        end = stop;
    }
    Ok(Head::start())
}

fn bytes_from(file: &mut File, begin: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(begin))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|b| *b == b'\n')?;
    Some((bytes.get(..end)?, bytes.get(end + 1..)?))
}
