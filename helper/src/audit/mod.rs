//! What was decided on this node, read back: which records are meant, what one container was given and why, what differs from
//! it now, and a page about it. Pure but for `drift`, which asks the runtime's library to look at running containers.

pub(crate) mod drift;
pub(crate) mod explain;
pub(crate) mod report;
pub(crate) mod select;
pub(crate) mod words;

use serde_json::{Map, Value};

/// One record.
pub(crate) type Entry = Map<String, Value>;

/// A field of a record as text; empty where it has none.
pub(crate) fn string<'a>(entry: &'a Entry, field: &str) -> &'a str {
    entry.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// A field of a record as a list; empty where it has none.
pub(crate) fn list<'a>(entry: &'a Entry, field: &str) -> &'a [Value] {
    entry.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
