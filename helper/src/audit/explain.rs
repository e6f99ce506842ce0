//! What one container was given and why: its request, the decision, every item put into its spec with the line of the contract
//! it comes from, and the changes to the spec. By its record, and by its contract while that is in force. Pure.

use contract::Contract;
use contract::inventory::DeviceNode;
use contract::key::sha256;
use serde::Serialize;
use serde_json::Value;

use super::{Entry, list, string};
use crate::table;

/// What a record of a create or a refusal means.
#[derive(Debug, Serialize)]
pub(crate) struct Explanation {
    seq: Value,
    time: String,
    /// What was asked for, and where it said so; null where nothing was.
    request: Value,
    /// In words.
    decision: String,
    refusals: Vec<Value>,
    notes: Vec<Value>,
    /// `in force`, `changed since`, or `gone`; null where there was none.
    contract: Option<&'static str>,
    items: Vec<Item>,
    /// What was changed in the spec, RFC 6902; ours only.
    edits: Vec<Value>,
}

/// Something that was put into the spec, or taken out of it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Item {
    /// The place in the spec.
    at: String,
    /// What it is, in one line.
    what: String,
    /// The contract's line that gives it, as a JSON pointer; absent where it closes something, or where the contract is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<String>,
}

/// The record among these that says how the container came to be, or did not: the latest.
pub(crate) fn deciding(entries: &[Entry]) -> Option<&Entry> {
    entries.iter().rev().find(|entry| matches!(string(entry, "kind"), "create" | "refuse"))
}

/// Explains a record; `contracts` are those in force.
pub(crate) fn explain(entry: &Entry, contracts: &[Contract]) -> Explanation {
    let contract = contracts.iter().find(|contract| contract.id == string(entry, "contract"));
    let same = contract.filter(|contract| {
        serde_json::to_vec(contract).is_ok_and(|bytes| sha256(&bytes) == string(entry, "contract_digest"))
    });
    let standing = match (string(entry, "contract"), contract, same) {
        ("", ..) => None,
        (_, None, _) => Some("gone"),
        (_, Some(_), None) => Some("changed since"),
        (.., Some(_)) => Some("in force"),
    };
    Explanation {
        seq: entry.get("seq").cloned().unwrap_or_default(),
        time: string(entry, "time").to_owned(),
        request: entry.get("request").cloned().unwrap_or_default(),
        decision: decision(entry),
        refusals: list(entry, "refusals").to_vec(),
        notes: list(entry, "notes").to_vec(),
        contract: standing,
        items: list(entry, "edits").iter().flat_map(|edit| items(edit, same)).collect(),
        edits: list(entry, "edits").to_vec(),
    }
}

fn decision(entry: &Entry) -> String {
    if string(entry, "kind") == "refuse" {
        return "refused".to_owned();
    }
    let name = |gpu: &Value| {
        let part = |field| gpu.get(field).and_then(Value::as_str);
        Some(format!("{} ({})", part("name").or(part("pci"))?, part("uuid").or(part("pci"))?))
    };
    let gpus: Vec<String> = list(entry, "gpus").iter().filter_map(name).collect();
    match (gpus.as_slice(), list(entry, "edits").len()) {
        ([], 0) => "started without GPUs, its spec as it came".to_owned(),
        ([], n) => format!("started without GPUs, with {} to its spec", table::counted(n as u64, "change", "changes")),
        (gpus, _) => format!("granted {}", gpus.join(", ")),
    }
}

/// The items of one change: a list that is put in whole has many.
fn items(edit: &Value, contract: Option<&Contract>) -> Vec<Item> {
    let text = |field| edit.get(field).and_then(Value::as_str).unwrap_or_default();
    let (op, at) = (text("op"), text("path"));
    let value = edit.get("value").unwrap_or(&Value::Null);
    if op == "remove" {
        return vec![Item { at: at.to_owned(), what: "taken out".to_owned(), line: None }];
    }
    let one = |at: String, value: &Value| {
        let (what, line) = told(&at, value, contract);
        Item { at, what, line }
    };
    match value {
        Value::Array(values) => {
            values.iter().enumerate().map(|(index, value)| one(format!("{at}/{index}"), value)).collect()
        }
        Value::Object(fields) if at == "/hooks" || at == "/linux" || at == "/process" => {
            let inner = |(key, value): (&String, &Value)| {
                items(&serde_json::json!({"op": op, "path": format!("{at}/{key}"), "value": value}), contract)
            };
            fields.iter().flat_map(inner).collect()
        }
        value => vec![one(at.to_owned(), value)],
    }
}

/// One thing, and the line of the contract that it comes from.
fn told(at: &str, value: &Value, contract: Option<&Contract>) -> (String, Option<String>) {
    let text = |field| value.get(field).and_then(Value::as_str).unwrap_or_default();
    let number = |field| value.get(field).and_then(Value::as_i64);
    let node = |is: &dyn Fn(&DeviceNode) -> bool| {
        let index = contract?.nodes.iter().position(is)?;
        Some(format!("/nodes/{index}"))
    };
    let numbered = |node: &DeviceNode| {
        number("major") == Some(i64::from(node.major)) && number("minor") == Some(i64::from(node.minor))
    };
    if at.starts_with("/linux/resources/devices") {
        let any = |field| number(field).map_or("*".to_owned(), |number| number.to_string());
        let allow = value.get("allow").and_then(Value::as_bool) == Some(true);
        let kind = Some(text("type")).filter(|kind| !kind.is_empty()).unwrap_or("a");
        let rule = format!("{kind} {}:{} {}", any("major"), any("minor"), text("access"));
        let what = format!("device rule: {} {rule}", if allow { "allow" } else { "deny" });
        return (what, if allow { node(&numbered) } else { None });
    }
    if at.starts_with("/linux/devices") {
        let what = format!(
            "device node {} ({}:{})",
            text("path"),
            number("major").unwrap_or(-1),
            number("minor").unwrap_or(-1)
        );
        return (what, node(&|node| node.path == text("path") && numbered(node)));
    }
    if at.starts_with("/mounts") && value.is_object() {
        let (source, destination) = (text("source"), text("destination"));
        let what = if text("type") == "tmpfs" {
            format!("an empty file system hides {destination}")
        } else {
            format!("{source} at {destination}")
        };
        return (what, contract.and_then(|contract| file_line(contract, source)).or(node(&|node| node.path == source)));
    }
    if at.starts_with("/process/env") {
        let name = value.as_str().and_then(|pair| pair.split('=').next()).unwrap_or_default();
        let line = contract.and_then(|contract| contract.env.iter().position(|(own, _)| own == name));
        return (format!("variable {}", value.as_str().unwrap_or_default()), line.map(|line| format!("/env/{line}")));
    }
    if at.starts_with("/process/user/additionalGids") {
        let gid = value.as_u64().unwrap_or_default();
        return (format!("group {gid}, to open nodes of that group"), node(&|node| u64::from(node.gid) == gid));
    }
    if at.starts_with("/hooks") {
        return (format!("hook {}", text("path")), None);
    }
    (value.to_string(), None)
}

fn file_line(contract: &Contract, source: &str) -> Option<String> {
    let library = contract.libraries.iter().position(|library| library.host_path == source);
    let file = contract.files.iter().position(|file| file.host_path == source);
    library.map(|index| format!("/libraries/{index}")).or(file.map(|index| format!("/files/{index}")))
}

/// The explanation for people.
pub(crate) fn text(told: &Explanation) -> String {
    let mut out = format!("\nrecord {}, {}: {}\n", told.seq, told.time, table::one_line(&told.decision));
    let line = |text: String| format!("  {}\n", table::one_line(&text));
    if told.request.is_null() {
        out.push_str("asked for: no GPU\n");
    } else {
        out.push_str(&format!("asked for: {}\n", table::one_line(&told.request.to_string())));
    }
    let part = |item: &Value, field: &str| item.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    for refusal in &told.refusals {
        let [code, rule, at, message] = ["code", "rule", "at", "message"].map(|field| part(refusal, field));
        out.push_str(&line(format!("refused, {code} by {rule} at {at}: {message}")));
    }
    for note in &told.notes {
        let [rule, at, message] = ["rule", "at", "message"].map(|field| part(note, field));
        out.push_str(&line(format!("note {rule} {at}: {message}")));
    }
    if let Some(contract) = told.contract {
        out.push_str(&format!("contract: {contract}\n"));
    }
    if !told.items.is_empty() {
        let rows: Vec<[String; 3]> = told
            .items
            .iter()
            .map(|item| [item.line.clone().unwrap_or_default(), item.what.clone(), item.at.clone()])
            .collect();
        out.push_str(&table::render(["CONTRACT", "PUT IN", "AT"], &rows));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_change_is_told_in_one_line_each() {
        for (edit, told) in [
            (json!({"op": "remove", "path": "/linux/devices/0"}), vec![("/linux/devices/0", "taken out")]),
            (
                json!({"op": "replace", "path": "/linux/resources/devices", "value": [
                    {"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"}]}),
                vec![
                    ("/linux/resources/devices/0", "device rule: deny a *:* rwm"),
                    ("/linux/resources/devices/1", "device rule: allow c 195:0 rw"),
                ],
            ),
            (
                json!({"op": "add", "path": "/mounts/-", "value": {"source": "tmpfs", "type": "tmpfs", "destination": "/x"}}),
                vec![("/mounts/-", "an empty file system hides /x")],
            ),
            (
                json!({"op": "add", "path": "/hooks", "value": {"poststop": [{"path": "/h"}]}}),
                vec![("/hooks/poststop/0", "hook /h")],
            ),
            (json!({"op": "add", "path": "/process/env/-", "value": "A=b"}), vec![("/process/env/-", "variable A=b")]),
        ] {
            let items = items(&edit, None);
            let items: Vec<_> = items.iter().map(|item| (item.at.as_str(), item.what.as_str())).collect();
            assert_eq!(items, told, "{edit}");
        }
    }

    #[test]
    fn a_refusal_is_the_decision_when_it_came_last() {
        let entry = |value: Value| value.as_object().cloned().unwrap();
        let entries = [
            entry(json!({"seq": 1, "kind": "create"})),
            entry(
                json!({"seq": 2, "kind": "refuse", "refusals": [{"code": "POLICY", "rule": "r", "at": "/x", "message": "m\u{1b}"}]}),
            ),
            entry(json!({"seq": 3, "kind": "release"})),
        ];
        let told = explain(deciding(&entries).unwrap(), &[]);
        assert_eq!((told.decision.as_str(), told.contract), ("refused", None));
        assert!(text(&told).contains("  refused, POLICY by r at /x: m\\u{1b}\n"), "{}", text(&told));
    }
}
