//! The files of the log: the one that is written, and those that were put aside, by us when it is full or by logrotate.
//!
//! A file is put aside by renaming it, whatever its new name: the chain goes on in the next one, and readers find the order
//! by the number of each file's first record. Compressed files are not read; a log begins where the first readable one does.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::chain::{Head, Link};
use super::{AuditError, LOG, MAX_LINE};
use crate::LedgerError;
use crate::files::{self, Locked, crash_point};

/// Digits of the number in a name of ours: as many as any log has, so that names sort as numbers do.
const DIGITS: usize = 12;
/// What logrotate makes of files that it compresses.
const COMPRESSED: [&str; 5] = [".gz", ".bz2", ".xz", ".zst", ".lz4"];

/// Puts the file of the log aside, and removes the oldest that were put aside so when more than `keep` are there (0: none).
///
/// # Errors
/// It could not be renamed, and goes on as it is.
pub(super) fn put(locked: &Locked, head: &Head, keep: u32) -> Result<Head, AuditError> {
    let (path, aside) = (locked.path(LOG), locked.path(&format!("{LOG}.{:0DIGITS$}", head.seq)));
    let failed = |e: std::io::Error| LedgerError::new("put aside", &path, &e);
    crash_point().and_then(|()| fs::rename(&path, &aside)).map_err(failed)?;
    if keep > 0 {
        // What cannot be removed now is removed next time.
        let _ = thin(locked, keep as usize);
    }
    Ok(Head { size: 0, ..head.clone() })
}

fn thin(locked: &Locked, keep: usize) -> Result<(), AuditError> {
    let mut names: Vec<String> = files::names(&locked.path(""))?;
    names.retain(|name| number_of(name).is_some());
    contract::order::sort(&mut names);
    let excess = names.len().saturating_sub(keep);
    names.iter().take(excess).try_for_each(|name| locked.remove(name).map(|_| ()))
}

/// The number of the last record in a file that we put aside.
fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(LOG)?.strip_prefix('.')?;
    (digits.len() == DIGITS).then(|| digits.parse().ok()).flatten()
}

/// The files that were put aside, oldest first, and the one that is written.
pub(super) struct Files {
    pub(super) aside: Vec<PathBuf>,
    /// It may be put aside while others are read: this is the file itself.
    pub(super) current: Option<File>,
}

impl Files {
    /// Looks at the folder of a log; one that is not there has none.
    ///
    /// # Errors
    /// The folder or its log cannot be read.
    pub(super) fn of(folder: &Path) -> Result<Self, AuditError> {
        let current = open(&folder.join(LOG))?;
        let id = |file: &File| file.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
        let written = current.as_ref().and_then(id);
        let mut aside = Vec::new();
        for name in files::names(folder)? {
            let other = name.strip_prefix(LOG).is_some_and(|rest| rest.starts_with(['.', '-']));
            if !other || COMPRESSED.iter().any(|end| name.ends_with(end)) {
                continue;
            }
            let path = folder.join(&name);
            if let Some(file) = open(&path)?
                && id(&file) != written
            {
                aside.extend(first(file).map(|first| (first, path)));
            }
        }
        contract::order::sort(&mut aside);
        Ok(Self { aside: aside.into_iter().map(|(_, path)| path).collect(), current })
    }
}

/// A file that may not be there, or not any more.
pub(super) fn open(path: &Path) -> Result<Option<File>, AuditError> {
    match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(|e| LedgerError::new("read", path, &e)),
    }
}

/// The number of a file's first record: 0 where its first line is none, nothing where it is empty.
fn first(file: File) -> Option<u64> {
    let mut line = Vec::new();
    let read = BufReader::new(file.take(MAX_LINE as u64 + 1)).read_until(b'\n', &mut line);
    line.pop_if(|last| *last == b'\n');
    (!matches!(read, Ok(0))).then(|| Link::of(&line).map_or(0, |link| link.seq))
}
