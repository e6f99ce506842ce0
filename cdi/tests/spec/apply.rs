//! What injected devices change in a spec.

use cdi::spec::{Injection, NodeKind, Seen, apply, complete, patch};
use contract::json;
use serde_json::{Value, json};

use crate::made::{cache, container, everything, one, spec};

pub(crate) fn injection(edits: &Value) -> Injection {
    Injection { devices: vec![], edits: spec(&one("v.org/c", "x", edits)).devices.remove(0).container_edits }
}

pub(crate) fn applied(document: &Value, injection: &Injection) -> Value {
    let text = document.to_string();
    let node = json::parse_oci(text.as_bytes()).unwrap();
    let bytes = apply(text.as_bytes(), &node, injection).unwrap();
    // Done twice it is done once.
    let again = json::parse_oci(&bytes).unwrap();
    assert_eq!(patch(&again, injection).unwrap(), []);
    assert_eq!(apply(&bytes, &again, injection).unwrap(), bytes);
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn every_edit_of_a_file_lands_where_it_belongs() {
    let injection = cache(&[("a.json", &everything())]).resolve(&["nvidia.com/gpu=0"]).unwrap();
    let spec = applied(&container(), &injection);
    assert_eq!(spec["process"]["env"], json!(["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=void"]));
    assert_eq!(spec["process"]["user"]["additionalGids"], json!([44, 107]));
    let paths: Vec<&Value> = spec["linux"]["devices"].as_array().unwrap().iter().map(|it| &it["path"]).collect();
    assert_eq!(paths, ["/dev/nvidiactl", "/dev/nvidia0"]);
    let rule = |minor: u32| json!({"allow": true, "type": "c", "major": 195, "minor": minor, "access": "rw"});
    let deny = json!({"allow": false, "access": "rwm"});
    assert_eq!(spec["linux"]["resources"]["devices"], json!([deny, rule(255), rule(0)]));
    assert_eq!(spec["linux"]["netDevices"], json!({"ib0": {"name": "eth1"}}));
    assert_eq!(spec["linux"]["intelRdt"], everything()["containerEdits"]["intelRdt"]);
    assert_eq!(
        spec["mounts"][3],
        json!({"destination": "/usr/lib/libcuda.so.1", "type": "none", "source": "/usr/lib/libcuda.so.535", "options": ["ro", "nosuid", "nodev", "bind"]})
    );
    let hook = json!({"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "update-ldcache"], "env": ["A=b"], "timeout": 5});
    assert_eq!(spec["hooks"], json!({"createContainer": [hook]}));
}

#[test]
fn what_stands_there_gives_way_or_stays() {
    let mut before = container();
    before["linux"]["netDevices"] = json!({"ib0": {"name": "old"}, "ib1": {"name": "x", "unknown": 1.5}});
    before["linux"]["intelRdt"] = json!({"closID": "old"});
    before["linux"]["devices"] = json!([{"path": "/dev/a", "type": "c", "major": 9, "minor": 9}, {"path": "/dev/b"}]);
    before["hooks"] = json!({"poststop": [{"path": "/first"}]});
    before["mounts"][1]["source"] = json!("/old");
    let spec = applied(
        &before,
        &injection(&json!({
            "netDevices": [{"hostInterfaceName": "ib0", "name": "new"}],
            "intelRdt": {"memBwSchema": "MB:0=1"},
            "deviceNodes": [{"path": "/dev/a", "type": "b", "major": 8, "minor": 1}],
            "hooks": [{"hookName": "poststop", "path": "/second"}],
            "mounts": [{"hostPath": "/one", "containerPath": "/dev"}, {"hostPath": "/two", "containerPath": "/dev"}],
        })),
    );
    assert_eq!(spec["linux"]["netDevices"], json!({"ib0": {"name": "new"}, "ib1": {"name": "x", "unknown": 1.5}}));
    assert_eq!(spec["linux"]["intelRdt"], json!({"memBwSchema": "MB:0=1"}));
    assert_eq!(
        spec["linux"]["devices"],
        json!([{"path": "/dev/a", "type": "b", "major": 8, "minor": 1}, {"path": "/dev/b"}])
    );
    assert_eq!(spec["hooks"]["poststop"], json!([{"path": "/first"}, {"path": "/second"}]));
    assert_eq!(spec["mounts"].as_array().unwrap().len(), 4);
    assert_eq!(spec["mounts"][1], json!({"destination": "/dev", "source": "/two"}));
}

#[test]
fn a_mount_may_stand_before_one_that_gives_way() {
    let edits = json!({"mounts": [
        {"hostPath": "/a", "containerPath": "/opt"},
        {"hostPath": "/b", "containerPath": "/dev/pts"},
        {"hostPath": "/c", "containerPath": "/opt/x"},
        {"hostPath": "/d", "containerPath": "/usr/lib/deep/er"},
    ]});
    let spec = applied(&container(), &injection(&edits));
    let there: Vec<&str> = spec["mounts"].as_array().unwrap().iter().map(|it| it["source"].as_str().unwrap()).collect();
    assert_eq!(there, ["/x", "/x", "/a", "/b", "/c", "/d"]);
}

#[test]
fn nothing_of_the_containers_hides_an_injected_mount() {
    for (before, mounts, after) in [
        (&["/a/b", "/a"][..], &["/a/b"][..], &["x /a/b", "x /a", "0 /a/b"][..]),
        (&["/a", "/a/"], &["/a"], &["x /a", "x /a/", "0 /a"]),
        (&["/a", "/a/b", "/a"], &["/a"], &["x /a", "x /a/b", "0 /a"]),
        (&["/a/b/c", "/d"], &["/a/b", "/a"], &["x /a/b/c", "x /d", "1 /a", "0 /a/b"]),
        (&["/a"], &["/x", "/x/.", "/x/y/.."], &["x /a", "2 /x/y/.."]),
        (&["/a"], &["/b", "/"], &["1 /", "x /a", "0 /b"]),
        (&["/a/c", "b"], &["/a", "/a/c"], &["x /a/c", "x b", "0 /a", "1 /a/c"]),
        (&[], &["/b/c", "/b"], &["1 /b", "0 /b/c"]),
    ] {
        let there: Vec<Value> = before.iter().map(|path| json!({"destination": path, "source": "x"})).collect();
        let ours: Vec<Value> = mounts
            .iter()
            .enumerate()
            .map(|(index, path)| json!({"hostPath": index.to_string(), "containerPath": path}))
            .collect();
        let spec = applied(&json!({"mounts": there}), &injection(&json!({"mounts": ours})));
        let told = |it: &Value| format!("{} {}", it["source"].as_str().unwrap(), it["destination"].as_str().unwrap());
        assert_eq!(
            spec["mounts"].as_array().unwrap().iter().map(told).collect::<Vec<_>>(),
            after,
            "{mounts:?} in {before:?}"
        );
    }
}

#[test]
fn nodes_belong_to_who_runs_the_container() {
    let mut before = container();
    before["process"]["user"] = json!({"uid": 1000, "gid": 100});
    let edits = json!({"deviceNodes": [
        {"path": "/dev/a", "type": "c", "major": 9},
        {"path": "/dev/b", "type": "u", "major": 9, "minor": 1, "uid": 0, "gid": 5, "permissions": "none"},
        {"path": "/dev/c", "type": "p"},
    ]});
    let spec = applied(&before, &injection(&edits));
    assert_eq!(
        spec["linux"]["devices"],
        json!([
            {"path": "/dev/a", "type": "c", "major": 9, "minor": 0, "uid": 1000, "gid": 100},
            {"path": "/dev/b", "type": "u", "major": 9, "minor": 1, "uid": 0, "gid": 5},
            {"path": "/dev/c", "type": "p", "major": 0, "minor": 0, "uid": 1000, "gid": 100},
        ])
    );
    // A pipe has no rule, and `none` allows nothing.
    assert_eq!(
        spec["linux"]["resources"]["devices"],
        json!([
            {"allow": false, "access": "rwm"},
            {"allow": true, "type": "c", "major": 9, "minor": 0, "access": "rwm"},
            {"allow": true, "type": "c", "major": 9, "minor": 1, "access": ""},
        ])
    );
}

#[test]
fn what_a_file_leaves_open_is_looked_up() {
    let char = Seen { kind: Some(NodeKind::Char), major: 195, minor: 7, mode: 0o660 };
    let gone = Err("no such file".to_owned());
    for (node, seen, expected) in [
        (json!({}), Ok(char), Ok(json!({"type": "c", "major": 195, "minor": 7, "fileMode": 0o660}))),
        (json!({"fileMode": 6}), Ok(char), Ok(json!({"type": "c", "major": 195, "minor": 7, "fileMode": 6}))),
        (
            json!({"type": "c", "major": 0, "minor": 3}),
            Ok(char),
            Ok(json!({"type": "c", "major": 195, "minor": 7, "fileMode": 0o660})),
        ),
        (json!({"major": 9}), Ok(char), Ok(json!({"type": "c", "major": 9, "fileMode": 0o660}))),
        // A file that says enough is believed, also where nothing is there yet.
        (json!({"type": "c", "major": 9}), Ok(char), Ok(json!({"type": "c", "major": 9, "fileMode": 0o660}))),
        (json!({"type": "b", "major": 9}), Ok(char), Ok(json!({"type": "b", "major": 9, "fileMode": 0o660}))),
        (json!({"type": "c", "major": 9}), gone.clone(), Ok(json!({"type": "c", "major": 9}))),
        (json!({"type": "p"}), gone.clone(), Ok(json!({"type": "p"}))),
        (
            json!({"type": "p"}),
            Ok(Seen { kind: Some(NodeKind::Fifo), ..char }),
            Ok(json!({"type": "p", "fileMode": 0o660})),
        ),
        (json!({}), Ok(Seen { kind: Some(NodeKind::Fifo), ..char }), Ok(json!({"type": "p", "fileMode": 0o660}))),
        (json!({}), gone.clone(), Err("cannot tell what the device node /dev/h is: no such file")),
        (json!({"type": "c"}), gone, Err("cannot tell what the device node /dev/h is: no such file")),
        (json!({}), Ok(Seen { kind: None, ..char }), Err("it is not a device node")),
        (json!({"type": "b"}), Ok(char), Err("the file says type b, and it is of type c")),
    ] {
        let mut whole = json!({"path": "/dev/x", "hostPath": "/dev/h"});
        whole.as_object_mut().unwrap().extend(node.as_object().unwrap().clone());
        let mut edits = injection(&json!({"deviceNodes": [whole]})).edits;
        let look = |path: &str| {
            assert_eq!(path, "/dev/h");
            seen.clone()
        };
        match (complete(&mut edits, look), expected) {
            (Ok(()), Ok(mut expected)) => {
                expected
                    .as_object_mut()
                    .unwrap()
                    .extend([("path".into(), "/dev/x".into()), ("hostPath".into(), "/dev/h".into())]);
                assert_eq!(serde_json::to_value(&edits.device_nodes[0]).unwrap(), expected, "{node}");
            }
            (Err(error), Err(expected)) => assert!(error.ends_with(expected), "{node}: {error}"),
            (result, expected) => panic!("{node}: {result:?} instead of {expected:?}"),
        }
    }
}

#[test]
fn a_spec_of_another_shape_is_refused_at_its_place() {
    for (document, edits, at) in [
        (json!({"linux": []}), json!({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}), "/linux"),
        (json!({"linux": {"intelRdt": 5}}), json!({"intelRdt": {}}), "/linux/intelRdt"),
        (
            json!({"linux": {"netDevices": []}}),
            json!({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}),
            "/linux/netDevices",
        ),
        (json!({"mounts": {}}), json!({"mounts": [{"hostPath": "/a", "containerPath": "/b"}]}), "/mounts"),
        (json!({"linux": {"devices": [1]}}), json!({"deviceNodes": [{"path": "/a", "type": "p"}]}), "/linux/devices/0"),
        (json!({"hooks": 1}), json!({"hooks": [{"hookName": "poststop", "path": "/a"}]}), "/hooks"),
        (json!({}), json!({"deviceNodes": [{"path": "/a"}]}), ""),
    ] {
        let text = document.to_string();
        let node = json::parse_oci(text.as_bytes()).unwrap();
        let error = apply(text.as_bytes(), &node, &injection(&edits)).unwrap_err();
        assert_eq!(error.at, at, "{document}: {error}");
    }
    assert_eq!(applied(&json!({"a": 1}), &Injection::default()), json!({"a": 1}));
    assert_eq!(
        applied(&json!({"linux": null, "hooks": null}), &injection(&json!({"intelRdt": {"closID": "a"}}))),
        json!({"linux": {"intelRdt": {"closID": "a"}}, "hooks": null})
    );
}
