//! The chain itself: how far the log goes, mending it after a crash, checking and reading it.
//!
//! Mending never drops anything silently: what is cut off the log stands in the `torn` record that follows, and when it
//! is longer than a record can be, or no text, whole in a file `audit.torn-<digest>` as well.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use contract::key::sha256;
use contract::{read, record};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{AuditError, LOG, MAX_LINE, add, cut};
use crate::LedgerError;
use crate::files::{Locked, crash_point};

const HEAD: &str = "audit.head";
/// Most bytes of it: a torn tail of the log may stand in it, shortened.
const MAX_HEAD: u64 = 1 << 20;
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
    fn start() -> Self {
        Self { seq: 0, digest: ZERO.to_owned(), size: 0, torn: None }
    }

    /// What was written last; nothing when it is not there or cannot be read: the log itself says the rest.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        read::document(&crate::files::read(&folder.join(HEAD), MAX_HEAD).ok()?).ok()
    }

    pub(super) fn is_at(&self, size: u64) -> bool {
        self.size == size && self.torn.is_none()
    }

    pub(super) fn write(&self, locked: &Locked) -> Result<(), AuditError> {
        let bytes = serde_json::to_vec(self).map_err(|e| LedgerError::new("write", &locked.path(HEAD), &e))?;
        locked.place(HEAD, &bytes)
    }

    /// The next record, if this line is it.
    fn follow(&self, line: &[u8]) -> Option<Self> {
        let link = Link::of(line)?;
        (link.seq == self.seq + 1 && link.prev == self.digest).then(|| self.at(&link, line))
    }

    fn at(&self, link: &Link, line: &[u8]) -> Self {
        Self { seq: link.seq, digest: sha256(line), size: self.size + line.len() as u64 + 1, torn: None }
    }
}

/// What chains a line.
struct Link {
    seq: u64,
    prev: String,
    kind: String,
    lost: Option<u64>,
}

record!(Head { seq, digest, size, torn });
record!(Torn { text, bytes, sha256, lost });
record!(open Link { seq, prev, kind, lost });

impl Link {
    fn of(line: &[u8]) -> Option<Self> {
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
    head = add(file, &path, &head, "torn", (&fields, ""))?;
    head.write(locked)?;
    Ok(head)
}

/// Where the good part of the log ends, and what lies behind it; when that is not nothing, the head has it as `torn`.
fn find_end(file: &mut File, size: u64, before: Option<Head>) -> std::io::Result<(Head, Vec<u8>)> {
    let known = before.as_ref();
    let mut head = match known {
        Some(head) if head.size <= size => head.clone(),
        // An empty log with a head was moved away by log rotation: the chain goes on.
        Some(head) if size == 0 => Head { size: 0, ..head.clone() },
        _ => last_record(file, size)?,
    };
    let tail = bytes_from(file, head.size)?;
    let mut rest = tail.as_slice();
    while let Some((line, after)) = split_line(rest)
        && let Some(next) = head.follow(line)
    {
        (head, rest) = (next, after);
    }
    let lost = known.map_or(0, |known| known.seq.saturating_sub(head.seq));
    let was_cut = size > 0 && known.is_some_and(|known| known.size > size);
    if !rest.is_empty() || was_cut {
        // A loss of power leaves zeros, which our own reader takes in no string.
        let text = String::from_utf8_lossy(rest).replace('\0', "\u{fffd}");
        let text = cut(&text, MAX_LINE / 4);
        head.torn = Some(Torn { text, bytes: rest.len() as u64, sha256: sha256(rest), lost });
    }
    Ok((head, rest.to_vec()))
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

/// What a check of the log found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    /// Records that are in order, up to the first bad line.
    pub records: u64,
    /// Number of the first record; over 1 when earlier ones were moved away.
    pub first: u64,
    /// Number of the last record in order.
    pub last: u64,
    /// Records of kind `torn`: a crash or someone's hand left something that was no record.
    pub torn: u64,
    /// Records that `torn` records report as lost.
    pub lost: u64,
    /// The first line that is wrong.
    pub bad: Option<Bad>,
}

/// A wrong line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    /// Its number in the file, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub why: String,
}

/// Computes the chain of the log in this folder anew. Changes nothing.
///
/// # Errors
/// The log cannot be read; one that does not exist has no records.
pub fn verify(log_dir: &Path) -> Result<Verified, AuditError> {
    let mut found = Verified::default();
    // A folder that is not there holds no log.
    if !log_dir.exists() {
        return Ok(found);
    }
    let path = log_dir.join(LOG);
    // The lock, so that nothing is half-written; then only what is there now, while others go on writing.
    let locked = Locked::take(log_dir, "audit.lock")?;
    let known = Head::read(log_dir);
    let size = std::fs::metadata(&path).map_or(0, |meta| meta.len());
    drop(locked);
    let mut head: Option<Head> = None;
    // A line whose `prev` is wrong: either it was changed, or the one before it. The one after it tells which.
    let mut broken: Option<Head> = None;
    let mut attested = None;
    let mut number = 0;
    let complete = each_line(&path, size, |line, whole| {
        if let Some(broken) = &broken {
            attested = Link::of(line).map(|link| link.prev == broken.digest);
            return false;
        }
        number += 1;
        let next = next(head.as_ref(), line, whole)
            .and_then(|(next, link)| agrees(&next, known.as_ref()).map(|()| (next, link)));
        match next {
            Ok((next, link)) => {
                if found.records == 0 {
                    found.first = next.seq;
                }
                found.records += 1;
                found.last = next.seq;
                found.torn += u64::from(link.kind == "torn");
                found.lost += link.lost.unwrap_or(0);
                head = Some(next);
                true
            }
            Err(why) => {
                found.bad = Some(Bad { line: number, why });
                broken = head.as_ref().and_then(|head| misled(head, line)).filter(|_| whole);
                broken.is_some()
            }
        }
    })?;
    let complete = complete && found.bad.is_none();
    if let (Some(broken), Some(bad)) = (&broken, &mut found.bad) {
        let in_head = known.as_ref().filter(|known| known.size == broken.size);
        match attested.or_else(|| in_head.map(|known| known.digest == broken.digest)) {
            // Whoever wrote the line after next saw this one as it is, so what it says of the one before it is true.
            Some(true) => {
                let changed = broken.seq - 1;
                bad.line -= 1;
                bad.why =
                    format!("record {changed} was changed: it is not the one that record {} knows as prev", broken.seq);
                found.records -= 1;
                found.last -= 1;
            }
            Some(false) => bad.why = format!("record {} was changed: {}", broken.seq, bad.why),
            None => {}
        }
    }
    let end = head.map_or(0, |head| head.size);
    if complete && let Some(known) = known.filter(|known| known.size > end && end > 0) {
        found.bad = Some(Bad {
            line: number + 1,
            why: format!(
                "the log ends at byte {end}, the head file knows {} bytes and record {}",
                known.size, known.seq
            ),
        });
    }
    Ok(found)
}

/// The place after a line, if it belongs there.
fn next(head: Option<&Head>, line: &[u8], whole: bool) -> Result<(Head, Link), String> {
    let link = Link::of(line).ok_or_else(|| "it is not a record".to_owned())?;
    if !whole {
        return Err("it has no end: a crash interrupted it, and the next record keeps it aside".to_owned());
    }
    // A log that begins later than with record 1 goes on from one that was moved away.
    let start = Head {
        seq: link.seq.saturating_sub(1),
        digest: if link.seq == 1 { ZERO.to_owned() } else { link.prev.clone() },
        ..Head::start()
    };
    let head = head.unwrap_or(&start);
    if link.seq != head.seq + 1 {
        return Err(format!("it is record {}, expected {}", link.seq, head.seq + 1));
    }
    if link.prev != head.digest {
        return Err(format!("its prev is not the digest of record {}", head.seq));
    }
    Ok((head.at(&link, line), link))
}

/// Where a line ends that follows by its number alone.
fn misled(head: &Head, line: &[u8]) -> Option<Head> {
    let link = Link::of(line)?;
    (link.seq == head.seq + 1 && link.prev != head.digest).then(|| head.at(&link, line))
}

/// At the size that the head file knows, its digest must be the line's.
fn agrees(next: &Head, known: Option<&Head>) -> Result<(), String> {
    match known {
        Some(known) if known.size == next.size && known.digest != next.digest => {
            Err("it is not the record that the head file knows".to_owned())
        }
        _ => Ok(()),
    }
}

/// The records of the log in this folder that `wanted` picks, oldest first; lines that are no records are passed over.
///
/// # Errors
/// The log cannot be read; one that does not exist has no records.
pub fn read(
    log_dir: &Path,
    mut wanted: impl FnMut(&Map<String, Value>) -> bool,
) -> Result<Vec<Map<String, Value>>, AuditError> {
    let mut records = Vec::new();
    each_line(&log_dir.join(LOG), u64::MAX, |line, _| {
        if let Ok(record) = serde_json::from_slice(line)
            && wanted(&record)
        {
            records.push(record);
        }
        true
    })?;
    Ok(records)
}

/// Calls `act` with each line of the first `limit` bytes, and whether it has an end, until it says stop; says whether it never did.
fn each_line(path: &Path, limit: u64, mut act: impl FnMut(&[u8], bool) -> bool) -> Result<bool, AuditError> {
    let failed = |e: std::io::Error| LedgerError::new("read", path, &e);
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        other => other.map_err(failed)?,
    };
    let mut reader = BufReader::new(file.take(limit));
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).map_err(failed)? > 0 {
        let whole = line.pop_if(|last| *last == b'\n').is_some();
        if !act(&line, whole) {
            return Ok(false);
        }
        line.clear();
    }
    Ok(true)
}
