//! What holds for every file and every container: JSON and YAML say the same, what is read can be injected, mounts stand
//! where the Go library's sort puts them, and a move there and back is none.

use cdi::spec::{Encoding, RelativeTo, Spec, lowest, move_root, read, to_json, to_yaml};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::apply::{applied, injection};
use crate::made::{cache, container, spec};

const WORDS: [&str; 12] = ["yes", "0", "a", "~", "é: #x", "0x1f", "-", "1e3", "a\nb\t", "'\"\\", "null", "{}"];
const PATHS: [&str; 8] = ["/", "/a", "/a/b", "/a/b/./f", "/dev/x", "/usr/lib/deep/er", "/c//d/./e", "/proc"];

fn optional(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(key, value)| proptest::option::of(value.prop_map(move |v| (key.to_owned(), v))))
        .collect();
    fields.prop_map(|fields| Value::Object(fields.into_iter().flatten().collect())).boxed()
}

fn with(value: BoxedStrategy<Value>, more: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    (value, more)
        .prop_map(|(mut value, more)| {
            value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            value
        })
        .boxed()
}

fn word() -> BoxedStrategy<Value> {
    select(&WORDS[..]).prop_map(|word| json!(word)).boxed()
}

fn path() -> BoxedStrategy<Value> {
    select(&PATHS[..]).prop_map(|path| json!(path)).boxed()
}

fn number() -> BoxedStrategy<Value> {
    select(vec![0u32, 1, 195, 1 << 20, u32::MAX]).prop_map(|number| json!(number)).boxed()
}

fn list(item: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    vec(item, 1..4).prop_map(Value::Array).boxed()
}

fn edits() -> BoxedStrategy<Value> {
    let variable = (select(vec!["A", "B", "PATH"]), word())
        .prop_map(|(name, word)| json!(format!("{name}={}", word.as_str().unwrap())))
        .boxed();
    let kind = select(vec!["b", "c", "u"]).prop_map(|kind| json!(kind)).boxed();
    let node = with(
        (path(), kind, 1..200u32)
            .prop_map(|(path, kind, major)| json!({"path": path, "type": kind, "major": major}))
            .boxed(),
        optional(vec![
            ("hostPath", path()),
            ("minor", number()),
            ("fileMode", number()),
            ("permissions", select(vec!["r", "rwm", "none"]).prop_map(|it| json!(it)).boxed()),
            ("uid", number()),
            ("gid", number()),
        ]),
    );
    let mount = with(
        (path(), path()).prop_map(|(host, container)| json!({"hostPath": host, "containerPath": container})).boxed(),
        optional(vec![
            ("type", word()),
            ("options", list(select(vec!["bind", "rbind", "ro", "yes"]).prop_map(|it| json!(it)).boxed())),
        ]),
    );
    let stage = select(vec!["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]);
    let hook = with(
        (stage, path()).prop_map(|(stage, path)| json!({"hookName": stage, "path": path})).boxed(),
        optional(vec![("args", list(word())), ("env", list(variable.clone())), ("timeout", Just(json!(1)).boxed())]),
    );
    let net = vec(any::<bool>(), 2).prop_map(|is| {
        let both = [("eth0", "a", is[0]), ("ib0", "b", is[1])];
        Value::Array(both.iter().filter(|it| it.2).map(|it| json!({"hostInterfaceName": it.0, "name": it.1})).collect())
    });
    let rdt = optional(vec![
        ("closID", Just(json!("x")).boxed()),
        ("schemata", list(word())),
        ("enableMonitoring", any::<bool>().prop_map(|it| json!(it)).boxed()),
    ]);
    optional(vec![
        ("env", list(variable)),
        ("deviceNodes", list(node)),
        ("netDevices", net.boxed()),
        ("hooks", list(hook)),
        ("mounts", list(mount)),
        ("intelRdt", rdt),
        ("additionalGids", list(number())),
    ])
}

/// A file that may be used.
fn file() -> BoxedStrategy<Value> {
    let annotations = || optional(vec![("on", word()), ("a.b/C", word())]);
    let device = (annotations(), edits()).prop_map(|(annotations, mut edits)| {
        edits["env"] = json!(["SOME=1"]);
        json!({"annotations": annotations, "containerEdits": edits})
    });
    (annotations(), vec(device, 1..4), edits())
        .prop_map(|(annotations, mut devices, edits)| {
            for (index, device) in devices.iter_mut().enumerate() {
                device["name"] = json!(["0", "yes", "GPU-1:2"][index]);
            }
            json!({"cdiVersion": "1.1.0", "kind": "v.org/c", "annotations": annotations, "devices": devices, "containerEdits": edits})
        })
        .boxed()
}

/// What the library does with the mounts, in its own words: the first of the same destination goes, the new one comes last,
/// and a stable sort by depth follows.
fn sorted(document: &Value, edits: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut mounts: Vec<(String, String)> = document["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (text(&it["destination"]), text(&it["source"])))
        .collect();
    for mount in edits["mounts"].as_array().into_iter().flatten() {
        let destination = text(&mount["containerPath"]);
        if let Some(first) = mounts.iter().position(|it| it.0 == destination) {
            mounts.remove(first);
        }
        mounts.push((destination, text(&mount["hostPath"])));
    }
    mounts.sort_by_key(|it| it.0.split('/').filter(|part| !matches!(*part, "" | ".")).count().max(1));
    mounts
}

/// By depth, each depth's in the order of names: siblings do not meet.
fn levels(mut mounts: Vec<(String, String)>) -> Vec<(String, String)> {
    mounts.sort_by_key(|it| (it.0.split('/').filter(|part| !matches!(*part, "" | ".")).count().max(1), it.0.clone()));
    mounts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn json_and_yaml_say_the_same(document in file()) {
        let spec = spec(&document);
        let (json, yaml) = (to_json(&spec).unwrap(), to_yaml(&spec).unwrap());
        // JSON is YAML, too.
        for (text, encoding) in [(&json, Encoding::Json), (&yaml, Encoding::Yaml), (&document.to_string(), Encoding::Yaml)] {
            let again = read(text.as_bytes(), encoding);
            prop_assert_eq!(again.as_ref(), Ok(&spec), "{}", text);
        }
    }

    #[test]
    fn a_file_may_state_the_lowest_version_it_needs(document in file()) {
        let mut spec = spec(&document);
        spec.cdi_version = lowest(&spec).to_owned();
        prop_assert_eq!(cdi::spec::validate(&spec), []);
    }

    #[test]
    fn what_is_read_is_injected_once(document in file()) {
        let cache = cache(&[("a.json", &document)]);
        let names: Vec<String> = cache.devices().map(|(name, ..)| name.to_owned()).collect();
        let injection = cache.resolve(&names).unwrap();
        let after = applied(&container(), &injection);
        prop_assert!(after["process"]["env"].as_array().unwrap().contains(&json!("SOME=1")));
        prop_assert_eq!(applied(&after, &injection), after);
    }

    #[test]
    fn mounts_stand_where_the_library_puts_them(mut edits in edits()) {
        edits["env"] = json!(["SOME=1"]);
        let after = applied(&container(), &injection(&edits));
        let there: Vec<(String, String)> = sorted(&after, &json!({}));
        let given: Vec<(String, String)> = after["mounts"].as_array().unwrap().iter().map(|it| (it["destination"].as_str().unwrap().to_owned(), it["source"].as_str().unwrap().to_owned())).collect();
        prop_assert_eq!(&given, &there, "sorted by depth");
        prop_assert_eq!(levels(given), levels(sorted(&container(), &edits)));
    }

    #[test]
    fn a_move_there_and_back_is_none(document in file()) {
        let mut spec: Spec = spec(&document);
        move_root(&mut spec, "/", "/m", RelativeTo::Host);
        move_root(&mut spec, "/m", "/", RelativeTo::Host);
        for which in [RelativeTo::Host, RelativeTo::Container] {
            let mut moved = spec.clone();
            let there = move_root(&mut moved, "/", "/m", which);
            prop_assert_eq!(cdi::spec::validate(&moved), []);
            prop_assert_eq!(move_root(&mut moved, "/m", "/", which), there);
            prop_assert_eq!(&moved, &spec);
        }
    }
}
