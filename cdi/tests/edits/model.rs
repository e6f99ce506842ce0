//! What the edits mean, written a second time in the plainest way: on a parsed value, without positions or bytes.

use cdi::{Edits, Mount, Stage};
use serde_json::{Value, json};

/// The value that the edited document must have.
pub(crate) fn edited(mut spec: Value, edits: &Edits) -> Value {
    if !edits.env.is_empty() {
        let list = list(&mut spec, &["process", "env"]);
        for (name, value) in later_counts(&edits.env, |(name, _)| name.clone()) {
            put(list, json!(format!("{name}={value}")), |item| {
                item.as_str().unwrap().split('=').next() == Some(name.as_str())
            });
        }
    }
    let known = spec.pointer("/process/user/additionalGids").and_then(Value::as_array).cloned().unwrap_or_default();
    for gid in later_counts(&edits.gids.iter().rev().collect::<Vec<_>>(), |gid| **gid).into_iter().rev() {
        if !known.contains(&json!(gid)) {
            list(&mut spec, &["process", "user", "additionalGids"]).push(json!(gid));
        }
    }
    let mount =
        |m: &Mount| json!({"destination": m.destination, "type": m.kind, "source": m.source, "options": m.options});
    let there = spec["mounts"].as_array().cloned().unwrap_or_default();
    let (inside, behind): (Vec<_>, Vec<_>) = edits.inserted.iter().partition(|(at, _)| *at < there.len());
    let last = behind.iter().map(|(_, m)| mount(m)).chain(edits.mounts.iter().map(mount));
    end_with(&mut spec, &["mounts"], last.collect());
    for at in (0..there.len()).rev() {
        let group: Vec<Value> = inside.iter().filter(|(p, _)| *p == at).map(|(_, m)| mount(m)).collect();
        if !there[at..].starts_with(&group) {
            list(&mut spec, &["mounts"]).splice(at..at, group);
        }
    }
    if !edits.drop_devices.is_empty() {
        let mut index = 0..;
        list(&mut spec, &["linux", "devices"]).retain(|_| !edits.drop_devices.contains(&index.next().unwrap()));
    }
    for node in later_counts(&edits.nodes, |node| node.path.clone()) {
        let entry = json!({"path": node.path, "type": "c", "major": node.major, "minor": node.minor, "fileMode": node.mode, "uid": node.uid, "gid": node.gid});
        put(list(&mut spec, &["linux", "devices"]), entry, |item| item["path"] == node.path.as_str());
    }
    if let Some(rules) = &edits.rules {
        let rules: Vec<Value> = rules.iter().map(|rule| rule_value(&rule.to_string(), rule.allow)).collect();
        if !rules.is_empty()
            || spec.pointer("/linux/resources/devices").is_some_and(|v| v.as_array().is_some_and(|v| !v.is_empty()))
        {
            *list(&mut spec, &["linux", "resources", "devices"]) = rules;
        }
    }
    for stage in [
        Stage::Prestart,
        Stage::CreateRuntime,
        Stage::CreateContainer,
        Stage::StartContainer,
        Stage::Poststart,
        Stage::Poststop,
    ] {
        let hooks = edits.hooks.iter().filter(|hook| hook.stage == stage).map(|hook| {
            let mut value = json!({"path": hook.path});
            if !hook.args.is_empty() {
                value["args"] = json!(hook.args);
            }
            if !hook.env.is_empty() {
                value["env"] = json!(hook.env);
            }
            if let Some(seconds) = hook.timeout {
                value["timeout"] = json!(seconds.get());
            }
            value
        });
        end_with(&mut spec, &["hooks", stage.key()], hooks.collect());
    }
    spec
}

/// From the kernel's words for a rule, `c 195:0 rw`, to the spec's.
fn rule_value(words: &str, allow: bool) -> Value {
    let (kind, rest) = words.split_once(' ').unwrap();
    let (numbers, access) = rest.split_once(' ').unwrap();
    let (major, minor) = numbers.split_once(':').unwrap();
    let mut value = json!({"allow": allow, "access": access});
    if kind != "a" {
        value["type"] = json!(kind);
        for (key, number) in [("major", major), ("minor", minor)] {
            if number != "*" {
                value[key] = json!(number.parse::<u32>().unwrap());
            }
        }
    }
    value
}

fn later_counts<T, K: PartialEq>(all: &[T], key: impl Fn(&T) -> K) -> Vec<&T> {
    all.iter()
        .enumerate()
        .filter(|(i, item)| all[i + 1..].iter().all(|later| key(later) != key(item)))
        .map(|(_, item)| item)
        .collect()
}

/// The list at a path, made with everything above it where it is absent or `null`.
fn list<'v>(spec: &'v mut Value, path: &[&str]) -> &'v mut Vec<Value> {
    let mut value = spec;
    for key in path {
        if value.is_null() {
            *value = json!({});
        }
        value = &mut value[*key];
    }
    if value.is_null() {
        *value = json!([]);
    }
    value.as_array_mut().unwrap()
}

fn put(list: &mut Vec<Value>, entry: Value, is_copy: impl Fn(&Value) -> bool) {
    let first = list.iter().position(&is_copy).unwrap_or(list.len());
    list.retain(|item| !is_copy(item));
    list.insert(first, entry);
}

fn end_with(spec: &mut Value, path: &[&str], wanted: Vec<Value>) {
    if !wanted.is_empty() {
        let list = list(spec, path);
        if !list.ends_with(&wanted) {
            list.extend(wanted);
        }
    }
}
