//! The lowest version that a file may state, and newer fields in older versions.

use cdi::spec::{Encoding, VERSIONS, lowest, needs, to_json};
use serde_json::{Value, json};

use crate::made::{one, spec, wrong};

fn table() -> Vec<(&'static str, Value)> {
    let device = |name: &str, edits: Value| one("v.org/c", name, &edits);
    let with = |edits: Value| device("a", edits);
    let mut annotated = with(json!({"env": ["A=b"]}));
    annotated["annotations"] = json!({"a": "b"});
    let mut device_annotated = with(json!({"env": ["A=b"]}));
    device_annotated["devices"][0]["annotations"] = json!({"a": "b"});
    let mut for_all = with(json!({"env": ["A=b"]}));
    for_all["containerEdits"] = json!({"additionalGids": [5]});
    vec![
        ("0.3.0", with(json!({"env": ["A=b"], "mounts": [{"hostPath": "/a", "containerPath": "/b"}]}))),
        ("0.3.0", with(json!({"env": ["A=b"], "additionalGids": [], "netDevices": []}))),
        ("0.4.0", with(json!({"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "bind"}]}))),
        ("0.5.0", with(json!({"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]}))),
        ("0.5.0", device("0", json!({"env": ["A=b"]}))),
        ("0.6.0", one("v.org/c.d", "a", &json!({"env": ["A=b"]}))),
        ("0.6.0", annotated),
        ("0.6.0", device_annotated),
        ("0.7.0", with(json!({"intelRdt": {}}))),
        ("0.7.0", with(json!({"intelRdt": {"closID": "a"}}))),
        ("0.7.0", for_all),
        ("1.1.0", with(json!({"intelRdt": {"schemata": []}}))),
        ("1.1.0", with(json!({"intelRdt": {"enableMonitoring": true}}))),
        ("1.1.0", with(json!({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}))),
    ]
}

#[test]
fn each_field_needs_the_version_it_came_with() {
    for (version, document) in table() {
        let spec = spec(&document);
        assert_eq!(lowest(&spec), version, "{document}");
        assert_eq!(needs(&spec).is_empty(), version == "0.3.0", "{document}");
    }
}

#[test]
fn a_file_may_state_what_it_needs_or_more_and_nothing_less() {
    for (version, mut document) in table() {
        for stated in VERSIONS {
            document["cdiVersion"] = json!(stated);
            let at = |version| VERSIONS.iter().position(|known| *known == version);
            let problems = wrong(document.to_string().as_bytes(), Encoding::Json);
            assert_eq!(problems.is_empty(), at(stated) >= at(version), "{stated}: {problems:?}");
        }
    }
}

#[test]
fn a_version_is_kept_as_it_is_written() {
    let mut document = one("v.org/c", "a", &json!({"env": ["A=b"]}));
    document["cdiVersion"] = json!("v0.3.0");
    assert!(to_json(&spec(&document)).unwrap().contains("\"v0.3.0\""));
}
