//! What is wrong with a file and where, and how a place in a document becomes a line of the file. Judges nothing.

use contract::json::Node;

/// Something that is wrong with a CDI file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// JSON pointer of the place; empty when it is the whole file.
    pub at: String,
    /// The line of the file, from 1 on, where it is known.
    pub line: Option<usize>,
    /// What is true and what would be right.
    pub message: String,
}

impl Problem {
    pub(crate) fn new(at: impl Into<String>, message: impl Into<String>) -> Self {
        Self { at: at.into(), line: None, message: message.into() }
    }

    pub(crate) fn whole(message: impl Into<String>) -> Self {
        Self::new("", message)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.at.is_empty() {
            write!(f, "{}: ", self.at)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

/// Where the parts of the document stand in the file.
pub(crate) enum Lines<'b> {
    /// The document is the file.
    Same(&'b [u8]),
    /// By rising position in the document: the line of the file that this was made of.
    #[cfg(feature = "yaml")]
    Table(Vec<(usize, usize)>),
}

impl Lines<'_> {
    pub(crate) fn of(&self, offset: usize) -> Option<usize> {
        match self {
            Self::Same(bytes) => Some(1 + bytes.iter().take(offset).filter(|byte| **byte == b'\n').count()),
            #[cfg(feature = "yaml")]
            Self::Table(table) => {
                let after = table.partition_point(|(start, _)| *start <= offset);
                table.get(after.checked_sub(1)?).map(|(_, line)| *line)
            }
        }
    }
}

/// Where the place starts that a pointer names; of what is missing, what it is missing from.
pub(crate) fn offset(document: &Node<'_>, at: &str) -> usize {
    let mut node = document;
    let mut start = node.span.start;
    for token in at.split('/').skip(1) {
        let key = token.replace("~1", "/").replace("~0", "~");
        if let Some(member) = node.member(&key) {
            (node, start) = (&member.value, member.start);
        } else if let Some(item) = key.parse().ok().and_then(|index: usize| node.items().get(index)) {
            (node, start) = (item, item.span.start);
        } else {
            break;
        }
    }
    start
}
