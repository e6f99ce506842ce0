//! A small JSON patch applier that knows nothing of the code under test. Strict: what is not there cannot be replaced or
//! removed, and nothing is added beyond the end of a list.

use cdi::Op;
use serde_json::Value;

/// The document after the operations, read back from their own JSON form.
pub(crate) fn applied(mut document: Value, ops: &[Op]) -> Value {
    for op in ops {
        let op: Value = serde_json::from_str(&op.to_string()).unwrap();
        let path = op["path"].as_str().unwrap();
        let (parent, token) = path.rsplit_once('/').unwrap();
        let parent = document.pointer_mut(parent).unwrap_or_else(|| panic!("no parent for {op}"));
        match (op["op"].as_str().unwrap(), parent) {
            ("add", Value::Object(members)) => {
                members.insert(token.to_owned(), op["value"].clone());
            }
            ("add", Value::Array(items)) => {
                let index = if token == "-" { items.len() } else { token.parse().unwrap() };
                items.insert(index, op["value"].clone());
            }
            ("replace", Value::Object(members)) => *members.get_mut(token).unwrap() = op["value"].clone(),
            ("replace", Value::Array(items)) => items[token.parse::<usize>().unwrap()] = op["value"].clone(),
            ("remove", Value::Object(members)) => drop(members.remove(token).unwrap()),
            ("remove", Value::Array(items)) => drop(items.remove(token.parse().unwrap())),
            (_, parent) => panic!("{op} on {parent}"),
        }
    }
    document
}
