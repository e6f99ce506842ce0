//! Reads the whole log, over all of its files, and computes the chain anew. Changes nothing.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Map, Value};

use super::aside::{self, Files};
use super::chain::{Head, Link, ZERO};
use super::{AuditError, LOG};
use crate::LedgerError;
use crate::files::Locked;

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
    /// The name of its file.
    pub file: String,
    /// Its number in the file, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub why: String,
}

/// Computes the chain of the log in this folder anew, over all files of it that are there. Changes nothing.
///
/// # Errors
/// The log cannot be read; one that does not exist has no records.
pub fn verify(log_dir: &Path) -> Result<Verified, AuditError> {
    // A folder that is not there holds no log.
    if !log_dir.exists() {
        return Ok(Verified::default());
    }
    // The lock, so that nothing is half-written; then only what is there now, while others go on writing.
    let locked = Locked::take(log_dir, "audit.lock")?;
    let (known, files) = (Head::read(log_dir), Files::of(log_dir)?);
    let size = files.current.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |meta| meta.len());
    drop(locked);
    let mut walk = Walk::default();
    for path in &files.aside {
        walk.begin(&path.file_name().unwrap_or_default().to_string_lossy(), None);
        if let Some(file) = aside::open(path)?
            && !each_line(path, file, u64::MAX, |line, whole| walk.line(line, whole))?
        {
            break;
        }
    }
    if let (Some(file), false) = (files.current, walk.over()) {
        walk.begin(LOG, known.clone());
        each_line(&log_dir.join(LOG), file, size, |line, whole| walk.line(line, whole))?;
    }
    Ok(walk.end(known))
}

/// A place in the log.
type Place = (String, u64);

/// The way through the lines.
#[derive(Default)]
struct Walk {
    found: Verified,
    /// Where the last good line ends, in its file.
    head: Option<Head>,
    /// The place of that line.
    good: Place,
    /// The place of this one.
    here: Place,
    /// What the head file says of this file.
    known: Option<Head>,
    /// A line whose `prev` is wrong: either it was changed, or the one before it. The one after it tells which.
    broken: Option<Head>,
    attested: Option<bool>,
}

impl Walk {
    fn begin(&mut self, file: &str, known: Option<Head>) {
        self.here = (file.to_owned(), 0);
        self.known = known;
        if let Some(head) = &mut self.head {
            head.size = 0;
        }
    }

    /// Whether nothing more is to be read.
    fn over(&self) -> bool {
        self.found.bad.is_some() && (self.broken.is_none() || self.attested.is_some())
    }

    /// Takes the next line; says whether to go on.
    fn line(&mut self, line: &[u8], whole: bool) -> bool {
        if let Some(broken) = &self.broken {
            self.attested = Some(Link::of(line).is_some_and(|link| link.prev == broken.digest));
            return false;
        }
        self.here.1 += 1;
        let next = next(self.head.as_ref(), line, whole)
            .and_then(|(next, link)| agrees(&next, self.known.as_ref()).map(|()| (next, link)));
        match next {
            Ok((next, link)) => {
                if self.found.records == 0 {
                    self.found.first = next.seq;
                }
                self.found.records += 1;
                self.found.last = next.seq;
                self.found.torn += u64::from(link.kind == "torn");
                self.found.lost += link.lost.unwrap_or(0);
                self.head = Some(next);
                self.good = self.here.clone();
                true
            }
            Err(why) => {
                self.found.bad = Some(bad(&self.here, why));
                self.broken = self.head.as_ref().and_then(|head| misled(head, line)).filter(|_| whole);
                self.broken.is_some()
            }
        }
    }

    /// What was found, held against the head file.
    fn end(mut self, known: Option<Head>) -> Verified {
        let in_log = self.here.0 == LOG;
        if let (Some(broken), Some(bad)) = (&self.broken, &mut self.found.bad) {
            let in_head = known.as_ref().filter(|known| in_log && known.size == broken.size);
            match self.attested.or_else(|| in_head.map(|known| known.digest == broken.digest)) {
                // Whoever wrote the line after next saw this one as it is, so what it says of the one before it is true.
                Some(true) => {
                    let changed = broken.seq - 1;
                    (bad.file, bad.line) = self.good.clone();
                    bad.why = format!(
                        "record {changed} was changed: it is not the one that record {} knows as prev",
                        broken.seq
                    );
                    self.found.records -= 1;
                    self.found.last -= 1;
                }
                Some(false) => bad.why = format!("record {} was changed: {}", broken.seq, bad.why),
                None => {}
            }
        }
        if let (None, Some(head), Some(known)) = (&self.found.bad, &self.head, known) {
            let written = if self.good.0 == LOG { head.size } else { 0 };
            let why = if known.size > written && written > 0 {
                let Head { size, seq, .. } = known;
                Some(format!("the log ends at byte {written}, the head file knows {size} bytes and record {seq}"))
            } else if written == 0 && known.seq > head.seq {
                Some(format!("the log ends with record {}, the head file knows record {}", head.seq, known.seq))
            } else if written == 0 && known.seq == head.seq && known.digest != head.digest {
                Some("the record before it is not the one that the head file knows".to_owned())
            } else {
                None
            };
            let next = (self.good.0, self.good.1 + 1);
            self.found.bad = why.map(|why| bad(&next, why));
        }
        self.found
    }
}

fn bad((file, line): &Place, why: String) -> Bad {
    Bad { file: file.clone(), line: *line, why }
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

/// The records of the log in this folder that `wanted` picks, oldest first, over all files of it that are there; lines that
/// are no records are passed over.
///
/// # Errors
/// The log cannot be read; one that does not exist has no records.
pub fn read(
    log_dir: &Path,
    mut wanted: impl FnMut(&Map<String, Value>) -> bool,
) -> Result<Vec<Map<String, Value>>, AuditError> {
    let mut records = Vec::new();
    let mut take = |line: &[u8], _: bool| {
        if let Ok(record) = serde_json::from_slice(line)
            && wanted(&record)
        {
            records.push(record);
        }
        true
    };
    let files = Files::of(log_dir)?;
    for path in &files.aside {
        if let Some(file) = aside::open(path)? {
            each_line(path, file, u64::MAX, &mut take)?;
        }
    }
    if let Some(file) = files.current {
        each_line(&log_dir.join(LOG), file, u64::MAX, &mut take)?;
    }
    Ok(records)
}

/// Calls `act` with each line of the first `limit` bytes, and whether it has an end, until it says stop; says whether it never did.
fn each_line(
    path: &Path,
    file: File,
    limit: u64,
    mut act: impl FnMut(&[u8], bool) -> bool,
) -> Result<bool, AuditError> {
    let mut reader = BufReader::new(file.take(limit));
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).map_err(|e| LedgerError::new("read", path, &e))? > 0 {
        let whole = line.pop_if(|last| *last == b'\n').is_some();
        if !act(&line, whole) {
            return Ok(false);
        }
        line.clear();
    }
    Ok(true)
}
