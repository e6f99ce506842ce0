//! CDI files: whatever is refused is refused at a place; whatever is read is written again as the same, resolves, and
//! changes a container's spec once, with nothing of the container's over it.

use cdi::spec::{
    Cache, Encoding, Found, Injection, NodeKind, Problem, RelativeTo, Seen, Spec, VERSIONS, apply, complete, lowest,
    move_root, patch, read, to_json, to_yaml, validate,
};
use contract::json::{self, Node};
use serde_json::{Value, json};

use crate::choices::Choices;

/// Holds the engine to it: the bytes as a file, or as choices that make a file and a container. Reading YAML takes most of the
/// time, so no input is both, and a file that is made is read as YAML once.
pub fn run(data: &[u8]) {
    if data.first().is_some_and(|first| *first >= b' ') {
        let container = container(&mut Choices::new(&[]));
        let as_json = file(data, Encoding::Json, &container);
        let as_yaml = file(data, Encoding::Yaml, &container);
        if let (Some(one), Some(other)) = (as_json, as_yaml) {
            assert_eq!(one, other, "JSON is YAML");
        }
        return;
    }
    let mut choices = Choices::new(data.get(1..).unwrap_or_default());
    let made = document(&mut choices);
    let container = container(&mut choices);
    file(made.to_string().as_bytes(), Encoding::Json, &container);
}

/// What a file says, if it may be used.
fn said(bytes: &[u8], encoding: Encoding) -> Option<Spec> {
    match read(bytes, encoding) {
        Ok(spec) => Some(spec),
        Err(problems) => {
            assert!(!problems.is_empty(), "refused for no reason");
            problems.iter().for_each(|problem| has_a_place(problem, bytes));
            None
        }
    }
}

/// What a file says, if it may be used, held to what follows from that.
fn file(bytes: &[u8], encoding: Encoding, container: &Value) -> Option<Spec> {
    let spec = said(bytes, encoding)?;
    assert_eq!(validate(&spec), [], "read, and not valid");
    let place = |version: &str| VERSIONS.iter().position(|known| *known == version.trim_start_matches('v'));
    assert!(place(lowest(&spec)) <= place(&spec.cdi_version), "{spec:?}");
    for (text, encoding) in [(to_json(&spec), Encoding::Json), (to_yaml(&spec), Encoding::Yaml)] {
        let text = text.unwrap_or_else(|error| panic!("cannot be written: {error}"));
        assert_eq!(read(text.as_bytes(), encoding).as_ref(), Ok(&spec), "{text}");
    }
    let mut moved = spec.clone();
    move_root(&mut moved, "/", "/elsewhere", RelativeTo::Host);
    assert_eq!(validate(&moved), [], "moved, and not valid");
    injected(&spec, container);
    Some(spec)
}

fn has_a_place(problem: &Problem, bytes: &[u8]) {
    assert!(!problem.message.is_empty(), "{problem:?}");
    assert!(problem.at.is_empty() || problem.at.starts_with('/'), "{problem:?}");
    let lines = 1 + bytes.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count();
    assert!(problem.line.is_none_or(|line| (1..=lines + 1).contains(&line)), "{problem:?} of {lines} lines");
    assert!(problem.at.is_empty() || problem.line.is_some(), "{problem:?}");
}

/// All devices of the file at once.
fn injected(spec: &Spec, container: &Value) {
    let text = to_json(spec).unwrap_or_else(|error| panic!("cannot be written: {error}"));
    let cache = Cache::of([Found { path: "a.json".into(), priority: 0, bytes: Ok(text.into_bytes()) }]);
    let names: Vec<String> = cache.devices().map(|(name, ..)| name.to_owned()).collect();
    assert_eq!(names.len(), spec.devices.len());
    let mut injection = cache.resolve(&names).unwrap_or_else(|unresolved| panic!("{unresolved:?}"));
    let look = |_: &str| Ok(Seen { kind: Some(NodeKind::Char), major: 195, minor: 9, mode: 0o600 });
    // A file may say that a node is a block device, and leave its number to be found.
    if complete(&mut injection.edits, look).is_err() {
        return;
    }
    let before = container.to_string();
    let node = parsed(before.as_bytes());
    let after = apply(before.as_bytes(), &node, &injection).unwrap_or_else(|error| panic!("{error}: {before}"));
    let again = parsed(&after);
    assert_eq!(patch(&again, &injection), Ok(vec![]), "done twice: {before}");
    assert_eq!(apply(&after, &again, &injection).as_deref(), Ok(&after[..]));
    stands(&again, &injection);
}

fn parsed(bytes: &[u8]) -> Node<'_> {
    json::parse_oci(bytes).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(bytes)))
}

/// What was injected is there, once, and not hidden.
fn stands(spec: &Node<'_>, injection: &Injection) {
    let text = |node: &Node<'_>, key: &str| node.get(key).and_then(Node::as_str).unwrap_or_default().to_owned();
    let list = |path: &[&str]| spec.path(path).map(Node::items).unwrap_or_default();
    let edits = &injection.edits;
    for node in &edits.device_nodes {
        let copies = list(&["linux", "devices"]).iter().filter(|device| text(device, "path") == node.path);
        assert_eq!(copies.count(), 1, "{node:?}");
    }
    let env: Vec<&str> = list(&["process", "env"]).iter().filter_map(Node::as_str).collect();
    for variable in &edits.env {
        let name = variable.split('=').next().unwrap_or_default();
        let copies = env.iter().filter(|it| it.split('=').next() == Some(name)).count();
        assert_eq!(copies, 1, "{variable} in {env:?}");
    }
    let mounts = list(&["mounts"]);
    for mount in &edits.mounts {
        let ours = parts(&mount.container_path);
        let last = mounts.iter().rfind(|it| ours.starts_with(&parts(&text(it, "destination"))));
        let Some(last) = last else { panic!("{mount:?} is not there") };
        assert_eq!(parts(&text(last, "destination")), ours, "{mount:?} is hidden");
        let said = |it: &&cdi::spec::Mount| parts(&it.container_path) == ours;
        assert_eq!(Some(text(last, "source")), edits.mounts.iter().rfind(said).map(|it| it.host_path.clone()));
    }
    let rules = list(&["linux", "resources", "devices"]);
    let wanted = edits.device_nodes.iter().filter(|node| node.kind != Some(NodeKind::Fifo)).count();
    assert!(rules.iter().rev().take(wanted).all(|rule| rule.get("allow").and_then(Node::as_bool) == Some(true)));
}

fn parts(path: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for part in path.split('/').filter(|part| !matches!(*part, "" | ".")) {
        if part == ".." { drop(parts.pop()) } else { parts.push(part.to_owned()) }
    }
    parts
}

const PATHS: &[&str] = &["/a", "/", "/a/b", "/a/", "/a/b/../c", "/dev/x", "/a/b/c", "/b", "relative", ""];
const WORDS: &[&str] =
    &["A=b", "yes", "0", "B=c=d", "none", "rw", "~", "é", "=", "bind", "rbind", "tmpfs", "0:1", "x.y"];

/// A container's spec, its mounts in any order.
fn container(choices: &mut Choices<'_>) -> Value {
    let mounts: Vec<Value> = (0..choices.below(5))
        .map(|index| json!({"destination": choices.of(PATHS), "source": index.to_string()}))
        .collect();
    let space = choices.of(&["mount", "user"]);
    json!({
        "process": {"env": ["A=0", "P=1", "A=2"], "user": {"uid": choices.byte()}},
        "mounts": mounts,
        "linux": {"namespaces": [{"type": space}], "resources": {"devices": [{"allow": false}]}},
    })
}

/// A file that may be right.
fn document(choices: &mut Choices<'_>) -> Value {
    let devices: Vec<Value> = (0..=choices.below(3))
        .map(|index| {
            let name = if choices.below(8) == 7 { choices.of(WORDS).to_string() } else { format!("d{index}") };
            json!({"name": name, "containerEdits": edits(choices)})
        })
        .collect();
    let version = choices.of(&["1.1.0", "0.5.0", "v0.7.0", "0.3.0", "2.0.0"]);
    json!({"cdiVersion": version, "kind": choices.of(&["v.org/c", "v/c.d", "gpu"]), "devices": devices, "containerEdits": edits(choices)})
}

fn edits(choices: &mut Choices<'_>) -> Value {
    let mut edits = json!({"env": ["E=1"]});
    for _ in 0..choices.below(6) {
        let (key, item) = edit(choices);
        let Some(edits) = edits.as_object_mut() else { continue };
        match (edits.entry(key).or_insert_with(|| json!([])), key) {
            (place, "intelRdt") => *place = item,
            (Value::Array(items), _) => items.push(item),
            _ => {}
        }
    }
    edits
}

fn edit(choices: &mut Choices<'_>) -> (&'static str, Value) {
    let (path, word) = (*choices.of(PATHS), *choices.of(WORDS));
    match choices.below(7) {
        0 => ("mounts", json!({"hostPath": choices.of(PATHS), "containerPath": path, "options": [word]})),
        1 => (
            "deviceNodes",
            json!({"path": path, "type": choices.of(&["c", "b", "u", "p", ""]), "major": choices.byte()}),
        ),
        2 => ("deviceNodes", json!({"path": path, "hostPath": choices.of(PATHS), "permissions": word})),
        3 => ("env", json!(word)),
        4 => ("hooks", json!({"hookName": "poststop", "path": path, "env": [word], "timeout": choices.byte()})),
        5 => ("netDevices", json!({"hostInterfaceName": word, "name": word})),
        _ => ("intelRdt", json!({"closID": word, "enableMonitoring": choices.below(2) == 1})),
    }
}
