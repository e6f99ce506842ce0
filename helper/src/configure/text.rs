//! What every format of a foreign file shares: where something stands, what is put in, and why it cannot be. Edits are
//! splices into the text, so that whatever is not ours keeps its bytes. No files.

use std::fmt;
use std::ops::Range;

/// Keys from the top of a document.
pub(super) type Keys = [String];

/// What is put in under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// A string.
    Word(String),
    /// A list of strings.
    Words(Vec<String>),
    /// As it stands elsewhere in the same format: a number, a boolean, a template's action.
    Verbatim(String),
    /// Keys of its own.
    Table(Vec<(String, Value)>),
}

impl Value {
    /// A string.
    pub(super) fn word(text: impl Into<String>) -> Self {
        Self::Word(text.into())
    }
}

/// Why a text stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It is not what its format asks for.
    Broken {
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// It can be read, and what was asked would not work: why, and what would.
    Refused(String),
}

impl Trouble {
    /// The same, said of a place in a text.
    pub(super) fn at(text: &str, offset: usize, message: impl Into<String>) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before.get(line_start..).map_or(0, |line| line.chars().count()) + 1;
        Self::Broken { line: before.matches('\n').count() + 1, column, message: message.into() }
    }

    /// For people, with the file it is about.
    pub(super) fn of(&self, path: &str) -> String {
        match self {
            Self::Broken { line, column, message } => {
                format!("{path}:{line}:{column}: {message}; mend it first, nothing was changed")
            }
            Self::Refused(why) => format!("{path}: {why}"),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken { line, column, message } => write!(f, "line {line}, column {column}: {message}"),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

/// The text with these pieces replaced; they do not overlap.
pub(super) fn spliced(text: &str, mut pieces: Vec<(Range<usize>, String)>) -> String {
    pieces.sort_by_key(|(range, _)| range.start);
    let mut out = String::with_capacity(text.len() + pieces.iter().map(|(_, new)| new.len()).sum::<usize>());
    let mut from = 0;
    for (range, new) in pieces {
        out.push_str(text.get(from..range.start).unwrap_or_default());
        out.push_str(&new);
        from = from.max(range.end);
    }
    out.push_str(text.get(from..).unwrap_or_default());
    out
}

/// The text's own end of line.
pub(super) fn newline(text: &str) -> &'static str {
    match text.find('\n') {
        Some(at) if text.get(..at).is_some_and(|before| before.ends_with('\r')) => "\r\n",
        _ => "\n",
    }
}

/// Where the line begins that holds this byte.
pub(super) fn line_start(text: &str, at: usize) -> usize {
    text.get(..at).and_then(|before| before.rfind('\n')).map_or(0, |found| found + 1)
}

/// Behind the end of line of the line that holds this byte.
pub(super) fn line_end(text: &str, at: usize) -> usize {
    text.get(at..).and_then(|rest| rest.find('\n')).map_or(text.len(), |found| at + found + 1)
}

/// The white space that the line of this byte begins with.
pub(super) fn indent(text: &str, at: usize) -> &str {
    let line = text.get(line_start(text, at)..at).unwrap_or_default();
    let white = line.len() - line.trim_start_matches([' ', '\t']).len();
    line.get(..white).unwrap_or_default()
}

/// The lines, with one more blank one where something ended, to which a block can be appended.
pub(super) fn ready_for_more(text: &str, newline: &str) -> String {
    let mut out = text.to_owned();
    if !out.is_empty() && !out.ends_with('\n') {
        out.push_str(newline);
    }
    if !out.trim().is_empty() {
        out.push_str(newline);
    }
    out
}

/// The keys one step further.
pub(super) fn below(keys: &Keys, key: &str) -> Vec<String> {
    let mut out = keys.to_vec();
    out.push(key.to_owned());
    out
}

/// Owned keys.
pub(super) fn keys<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}
