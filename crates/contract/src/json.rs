//! A strict JSON reader over bytes that remembers where everything stands.
//!
//! The runtime must run exactly the bytes it judged, so whatever two parsers could read differently is refused here:
//! duplicate keys, look-alike keys of OCI structures, trailing data, comments, byte order marks, lone surrogates,
//! NUL in strings, excessive depth and size. Engines write none of these. Values keep their span, so that an edit
//! replaces a few bytes of the original instead of writing the document anew.

use std::borrow::Cow;
use std::ops::Range;

mod reader;

use reader::{Keys, Taken};

/// Largest document that is read, in bytes.
pub const MAX_BYTES: usize = 8 << 20;
/// Deepest nesting of arrays and objects that is read.
pub const MAX_DEPTH: usize = 64;

/// One JSON value and the bytes of the document that it was read from.
#[derive(Debug, Clone, PartialEq)]
pub struct Node<'a> {
    /// Where the value stands in the document, without surrounding white space.
    pub span: Range<usize>,
    /// The value.
    pub value: Value<'a>,
}

/// A JSON value. Numbers keep their text: nothing is rounded.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as it was written.
    Number(&'a str),
    /// A string with its escapes resolved.
    String(Cow<'a, str>),
    /// An array.
    Array(Vec<Node<'a>>),
    /// An object; the members stand in document order and no key repeats.
    Object(Vec<Member<'a>>),
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Member<'a> {
    /// The key with its escapes resolved.
    pub key: Cow<'a, str>,
    /// Where the key starts in the document (its opening quote).
    pub start: usize,
    /// The value.
    pub value: Node<'a>,
}

/// What was wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonError {
    /// Short name of the rule, as in `json-duplicate-key`.
    pub rule: &'static str,
    /// What is true, in words.
    pub message: String,
    /// Byte offset in the document.
    pub offset: usize,
    /// JSON pointer of the structure it was found in; empty at the top.
    pub at: String,
}

impl std::fmt::Display for JsonError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at byte {}", self.message, self.offset)?;
        if self.at.is_empty() { Ok(()) } else { write!(f, " in {}", self.at) }
    }
}

impl std::error::Error for JsonError {}

impl<'a> Node<'a> {
    /// The member of an object; `null` counts as absent, as the OCI runtimes read it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node<'a>> {
        self.member(key).map(|m| &m.value).filter(|n| !n.is_null())
    }

    /// The member of an object, `null` or not.
    #[must_use]
    pub fn member(&self, key: &str) -> Option<&Member<'a>> {
        self.members().iter().find(|m| m.key == key)
    }

    /// Follows keys from object to object.
    #[must_use]
    pub fn path(&self, keys: &[&str]) -> Option<&Node<'a>> {
        keys.iter().try_fold(self, |node, key| node.get(key))
    }

    /// The members of an object; empty for anything else.
    #[must_use]
    pub fn members(&self) -> &[Member<'a>] {
        match &self.value {
            Value::Object(members) => members,
            _ => &[],
        }
    }

    /// The items of an array; empty for anything else.
    #[must_use]
    pub fn items(&self) -> &[Node<'a>] {
        match &self.value {
            Value::Array(items) => items,
            _ => &[],
        }
    }

    /// The text of a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// A whole number that fits; `1.0` and `1e2` are not whole numbers, as in Go's decoder.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match self.value {
            Value::Number(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// A boolean.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self.value {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// Whether this is `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }
}

/// Reads an OCI runtime spec (or a process document) strictly.
///
/// # Errors
/// The first thing that two readers of the document could disagree about.
pub fn parse_oci(bytes: &[u8]) -> Result<Node<'_>, JsonError> {
    let node = reader::read(bytes, Keys::Structure, None)?;
    match node.value {
        Value::Object(_) => Ok(node),
        _ => {
            let message = "the document is not an object".to_owned();
            Err(JsonError { rule: "json-object", message, offset: node.span.start, at: String::new() })
        }
    }
}

/// Reads any JSON strictly; every key is data.
///
/// # Errors
/// As [`parse_oci`], without the rule about look-alike keys.
pub fn parse_data(bytes: &[u8]) -> Result<Node<'_>, JsonError> {
    reader::read(bytes, Keys::Data, None)
}

/// The same, where `take` gets the items of the list under this key of the document, one after the other: in what is read it
/// is empty. A long list is in memory as JSON item by item then.
///
/// # Errors
/// As [`parse_data`]; some items may have been taken.
pub fn parse_taking<'a>(bytes: &'a [u8], key: &str, take: &mut dyn FnMut(Node<'a>)) -> Result<Node<'a>, JsonError> {
    reader::read(bytes, Keys::Data, Some(Taken { key, take }))
}

/// The same value for a writer that takes `serde_json`'s.
#[must_use]
pub fn to_value(node: &Node<'_>) -> serde_json::Value {
    match &node.value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(value) => (*value).into(),
        Value::Number(text) => match (text.parse::<u64>(), text.parse::<i64>()) {
            (Ok(number), _) => number.into(),
            (_, Ok(number)) => number.into(),
            // Nothing of ours is a fraction, and a reader of those is large.
            _ => (*text).into(),
        },
        Value::String(text) => text.as_ref().into(),
        Value::Array(items) => items.iter().map(to_value).collect(),
        Value::Object(members) => {
            // One by one: to collect a map is to sort it, by a sort of its own for each place that does.
            let mut map = serde_json::Map::new();
            for member in members {
                map.insert(member.key.to_string(), to_value(&member.value));
            }
            map.into()
        }
    }
}

/// A key as one token of a JSON pointer (RFC 6901).
#[must_use]
pub fn pointer_token(key: &str) -> Cow<'_, str> {
    if key.contains(['~', '/']) { Cow::Owned(key.replace('~', "~0").replace('/', "~1")) } else { Cow::Borrowed(key) }
}

/// The key that a part of a JSON pointer means.
pub(crate) fn pointed_key(token: &str) -> Cow<'_, str> {
    if token.contains('~') { Cow::Owned(token.replace("~1", "/").replace("~0", "~")) } else { Cow::Borrowed(token) }
}

/// A text as a JSON string, quotes included.
#[must_use]
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 || c == '\u{7f}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests;
