//! Documents of a manifest as Kubernetes reads them: YAML 1.2's plain words are values, so a number without quotes
//! where a string belongs is seen as what it is. No aliases, no tags: manifests of ours have none.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// A list or table that is not at its end, with the key that waits for its value.
enum Open {
    List(Vec<Value>),
    Table(Map<String, Value>, Option<String>),
}

/// Every document of a text.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    let (mut all, mut open): (Vec<Value>, Vec<Open>) = (Vec::new(), Vec::new());
    for event in Parser::new_from_str(text) {
        let done = match event.unwrap().0 {
            Event::Scalar(word, style, 0, None) => scalar(&word, style == ScalarStyle::Plain),
            Event::SequenceStart(0, None) => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            Event::MappingStart(0, None) => {
                open.push(Open::Table(Map::new(), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop().unwrap() {
                Open::List(list) => list.into(),
                Open::Table(table, _) => table.into(),
            },
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {
                continue;
            }
            other => panic!("no manifest of ours has this: {other:?}"),
        };
        match open.last_mut() {
            None => all.push(done),
            Some(Open::List(list)) => list.push(done),
            Some(Open::Table(table, waiting)) => match waiting.take() {
                Some(key) => assert!(table.insert(key.clone(), done).is_none(), "{key} stands twice"),
                None => *waiting = Some(done.as_str().unwrap_or_else(|| panic!("{done} as a key")).to_owned()),
            },
        }
    }
    all
}

fn scalar(word: &str, plain: bool) -> Value {
    match word {
        _ if !plain => word.into(),
        "true" | "false" => (word == "true").into(),
        "null" | "~" | "" => Value::Null,
        // YAML 1.1, which Kubernetes's reader still knows, takes these for booleans.
        "yes" | "no" | "on" | "off" | "y" | "n" => panic!("{word} without quotes"),
        _ => word.parse::<i64>().map_or_else(|_| word.into(), Value::from),
    }
}
