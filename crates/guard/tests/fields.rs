//! Every field of a spec has a verdict in `fields.txt`: judged, with a part of a spec that shows it, or free, with the reason. Most
//! ways past a check were fields that nobody had thought of. `engine` holds the list against the types that its library reads.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use common::{By, Fake, Spec, hardened, judge_text, verdict};
use serde_json::{Value, json};

const FIELDS: &str = include_str!("fields.txt");
/// What climbs, ends quotes, has another option behind it, and leads to a GPU.
const HOSTILE: &str = "/../../../dev/nvidia0\",lowerdir=/x\n195:* rwm";

/// Path, verdict, and what stands behind it.
fn rows() -> Vec<(&'static str, &'static str, &'static str)> {
    let lines = FIELDS.lines().filter(|line| !line.starts_with('#'));
    let parts = lines.map(|line| line.splitn(3, ' ').collect::<Vec<_>>());
    parts.map(|parts| (parts[0], parts[1], parts[2])).collect()
}

/// Lays one document over another.
fn laid_over(document: &mut Value, over: &Value) {
    match (document, over) {
        (Value::Object(map), Value::Object(over)) => {
            over.iter().for_each(|(key, value)| laid_over(map.entry(key).or_insert(Value::Null), value));
        }
        (document, over) => *document = over.clone(),
    }
}

/// A value at a path of the table, in lists and maps of one thing.
fn at(path: &str, value: Value) -> Value {
    path.rsplit('.').fold(value, |value, name| at_end(name, value))
}

fn at_end(name: &str, value: Value) -> Value {
    if let Some(name) = name.strip_suffix("[]") {
        return at_end(name, json!([value]));
    }
    if let Some(name) = name.strip_suffix("{}") {
        return at_end(name, json!({ HOSTILE: value }));
    }
    json!({ name: value })
}

/// A plain spec with this over it.
fn spec(over: &Value) -> Value {
    let mut document: Value = serde_json::from_str(&Spec::default().text()).unwrap();
    laid_over(&mut document, over);
    document
}

/// The verdict of both profiles, with the rules of the notes.
fn told(over: &Value) -> String {
    let document = spec(over);
    let one = |by: &By| {
        let judgement = judge_text(&document.to_string(), by, &Fake::default());
        let notes: Vec<_> = judgement.notes.iter().map(|note| note.rule).collect();
        format!("{} {notes:?} {:?}", verdict(&judgement), judgement.changes.void_visible_devices)
    };
    format!("{} | {}", one(&By::default()), one(&hardened()))
}

#[test]
fn every_field_is_what_the_list_says() {
    let plain = json!({});
    let rows = rows();
    assert!(rows.len() > 170, "{}", rows.len());
    let mut wrong = Vec::new();
    for (path, verdict, rest) in rows {
        let (without, with, judged) = match verdict {
            "judged" => {
                let with = serde_json::from_str(rest).unwrap_or_else(|e| panic!("{path}: {e}"));
                (plain.clone(), with, true)
            }
            // An entry of a hook's or device's is judged whatever else it says.
            "free" => {
                let entry = path.rsplit_once('.').map_or(plain.clone(), |(entry, _)| at(entry, json!({})));
                (entry, at(path, json!(HOSTILE)), false)
            }
            "spelt" => {
                let text = spec(&at(path, json!(HOSTILE))).to_string();
                assert!(contract::json::parse_oci(text.as_bytes()).is_err(), "{path} is read");
                continue;
            }
            other => panic!("{path}: {other}"),
        };
        let (without, with) = (told(&without), told(&with));
        if (without != with) != judged {
            wrong.push(format!("{path}: {verdict}, and without it {without}, with it {with}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
