//! Exact bytes and operations for small documents, and the shapes that are refused.

use std::num::NonZeroU32;

use cdi::{Edits, Hook, Mount, Stage, apply, patch};
use contract::inventory::{DeviceNode, Role};
use contract::json;
use contract::rule::Rule;

pub(crate) fn node() -> DeviceNode {
    DeviceNode {
        path: "/dev/nvidia0".to_owned(),
        host_path: "/dev/nvidia0".to_owned(),
        major: 195,
        minor: 0,
        mode: 0o660,
        uid: 0,
        gid: 27,
        role: Role::Compute,
    }
}

const NODE: &str = r#"{"path":"/dev/nvidia0","type":"c","major":195,"minor":0,"fileMode":432,"uid":0,"gid":27}"#;

fn env(all: &[(&str, &str)]) -> Edits {
    Edits {
        env: all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        ..Edits::default()
    }
}

fn run(text: &str, edits: &Edits) -> (String, Vec<String>) {
    let spec = json::parse_oci(text.as_bytes()).unwrap();
    let bytes = apply(text.as_bytes(), &spec, edits).unwrap();
    (String::from_utf8(bytes).unwrap(), patch(&spec, edits).unwrap().iter().map(ToString::to_string).collect())
}

#[test]
fn a_variable() {
    for (before, after) in [
        (r#"{ }"#, r#"{"process":{"env":["K=v"]} }"#),
        (r#"{"a":1 }"#, r#"{"a":1,"process":{"env":["K=v"]} }"#),
        (r#"{"process": null}"#, r#"{"process": {"env":["K=v"]}}"#),
        (r#"{"process":{"env" : null , "x":1}}"#, r#"{"process":{"env" : ["K=v"] , "x":1}}"#),
        (r#"{"process":{"env":[ ]}}"#, r#"{"process":{"env":["K=v" ]}}"#),
        (r#"{"process":{"env":["A=1", "B"] }}"#, r#"{"process":{"env":["A=1", "B","K=v"] }}"#),
        (r#"{"process":{"env":["K=1" , "A=1", "K=v", "KK=K=2"]}}"#, r#"{"process":{"env":["K=v" , "A=1", "KK=K=2"]}}"#),
        (r#"{"process":{"env":["A=1", "\u004b=v", "K", "K="]}}"#, r#"{"process":{"env":["A=1", "\u004b=v"]}}"#),
        (r#"{"process":{"env":["K"]}}"#, r#"{"process":{"env":["K=v"]}}"#),
        (r#"{"process":{"env":["k=1","K=v"]}}"#, r#"{"process":{"env":["k=1","K=v"]}}"#),
    ] {
        assert_eq!(run(before, &env(&[("K", "v")])).0, after, "{before}");
    }
}

#[test]
fn the_later_of_two_values_counts() {
    assert_eq!(run("{}", &env(&[("K", "1"), ("L", "2"), ("K", "3")])).0, r#"{"process":{"env":["L=2","K=3"]}}"#);
}

#[test]
fn operations_are_in_an_order_that_can_be_applied() {
    let text = r#"{"process":{"env":["K=1","A=1","K=2","L=1","K=3"]}}"#;
    let (after, ops) = run(text, &env(&[("K", "v"), ("L", "v"), ("M", "v")]));
    assert_eq!(after, r#"{"process":{"env":["K=v","A=1","L=v","M=v"]}}"#);
    let expected = [
        r#"{"op":"replace","path":"/process/env/0","value":"K=v"}"#,
        r#"{"op":"replace","path":"/process/env/3","value":"L=v"}"#,
        r#"{"op":"remove","path":"/process/env/4"}"#,
        r#"{"op":"remove","path":"/process/env/2"}"#,
        r#"{"op":"add","path":"/process/env/-","value":"M=v"}"#,
    ];
    assert_eq!(ops, expected);
}

#[test]
fn a_node_and_its_rules_share_a_new_parent() {
    let edits =
        Edits { nodes: vec![node()], rules: Some(vec![Rule::DENY_ALL, Rule::open_char(195, 0)]), ..Edits::default() };
    let rules = r#"[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":195,"minor":0,"access":"rw"}]"#;
    let linux = format!(r#"{{"devices":[{NODE}],"resources":{{"devices":{rules}}}}}"#);
    let (after, ops) = run(r#"{"mounts":[]}"#, &edits);
    assert_eq!(after, format!(r#"{{"mounts":[],"linux":{linux}}}"#));
    assert_eq!(ops, [format!(r#"{{"op":"add","path":"/linux","value":{linux}}}"#)]);
}

#[test]
fn devices_go_come_and_are_replaced() {
    let edits = |drop: &[usize]| Edits { nodes: vec![node()], drop_devices: drop.to_vec(), ..Edits::default() };
    let (zero, other) = (r#"{"path":"/dev/zero"}"#, r#"{"path":"/dev/nvidia0","type":"c","major":1,"minor":5}"#);
    for (before, drop, after) in [
        (format!("[{zero} , {other}, {zero}]"), vec![], format!("[{zero} , {NODE}, {zero}]")),
        (format!("[{zero} , {other}, {zero}]"), vec![1], format!("[{zero}, {zero},{NODE}]")),
        (format!("[ {zero} , {zero} ]"), vec![1, 0, 1], format!("[ {NODE} ]")),
        (format!("[ {zero} , {zero} ]"), vec![0], format!("[ {zero},{NODE} ]")),
        (format!("[{NODE},{zero},{NODE}]"), vec![], format!("[{NODE},{zero}]")),
    ] {
        let document = |devices: &str| format!(r#"{{"linux":{{"devices":{devices}}}}}"#);
        assert_eq!(run(&document(&before), &edits(&drop)).0, document(&after), "{before} {drop:?}");
    }
}

#[test]
fn a_mount_gets_one_more_option_behind_its_own() {
    let edits = Edits { options: vec![(0, "nodev"), (2, "nodev")], ..Edits::default() };
    for (before, after) in [
        (r#"{"options":["rbind", "dev"] ,"x":1}"#, r#"{"options":["rbind", "dev","nodev"] ,"x":1}"#),
        (r#"{"options":[ ]}"#, r#"{"options":["nodev" ]}"#),
        (r#"{"options":null}"#, r#"{"options":["nodev"]}"#),
        (r#"{"destination":"/x" }"#, r#"{"destination":"/x","options":["nodev"] }"#),
        (r#"{"options":["nodev"]}"#, r#"{"options":["nodev"]}"#),
        (r#"{"options":["nodev","dev"]}"#, r#"{"options":["nodev","dev","nodev"]}"#),
    ] {
        let document = |mount: &str| format!(r#"{{"mounts":[{mount}, {{}},{mount}]}}"#);
        assert_eq!(run(&document(before), &edits).0, document(after), "{before}");
    }
    let (_, ops) = run(r#"{"mounts":[{"options":["rbind"]},{},{}]}"#, &edits);
    assert_eq!(
        ops,
        [
            r#"{"op":"add","path":"/mounts/0/options/-","value":"nodev"}"#,
            r#"{"op":"add","path":"/mounts/2/options","value":["nodev"]}"#
        ]
    );
}

#[test]
fn capabilities_go_from_every_set_by_any_spelling() {
    let edits = Edits { drop_capabilities: vec!["MKNOD"], ..Edits::default() };
    let document = |a: &str, b: &str| {
        let sets =
            format!(r#"{{"bounding":[{a}],"effective":[{b}],"inheritable":[{a}],"permitted":[{b}],"ambient":[{a}]}}"#);
        format!(r#"{{"process":{{"capabilities":{sets}}}}}"#)
    };
    let before = document(r#""CAP_CHOWN","CAP_MKNOD""#, r#""mknod", "CAP_KILL","Cap_Mknod""#);
    assert_eq!(run(&before, &edits).0, document(r#""CAP_CHOWN""#, r#""CAP_KILL""#));
    for untouched in
        ["{}", r#"{"process":{"capabilities":null}}"#, r#"{"process":{"capabilities":{"bounding":["CAP_MKNODE"]}}}"#]
    {
        assert_eq!(run(untouched, &edits).0, untouched);
    }
}

#[test]
fn rules_are_replaced_as_a_whole_or_left() {
    let edits = Edits { rules: Some(vec![Rule::DENY_ALL, Rule::deny_char(195, None)]), ..Edits::default() };
    let written = r#"[{"allow":false,"access":"rwm"},{"allow":false,"type":"c","major":195,"access":"rwm"}]"#;
    let spaced = r#"[{"access":"rwm", "allow":false}, {"major":195,"type":"c","allow":false,"access":"rwm"} ]"#;
    for (before, after) in [
        ("[]", written),
        ("null", written),
        (r#"[{"allow":false,"access":"rwm"}]"#, written),
        (
            r#"[{"allow":false,"access":"rwm"},{"allow":false,"type":"c","major":195,"access":"rwm","minor":0}]"#,
            written,
        ),
        (spaced, spaced),
    ] {
        let document =
            |rules: &str| format!(r#"{{"linux":{{"resources":{{"devices":{rules} ,"pids":{{"limit":1}}}}}}}}"#);
        assert_eq!(run(&document(before), &edits).0, document(after), "{before}");
    }
}

#[test]
fn mounts_and_hooks_stand_last() {
    let hook = |timeout| Hook {
        stage: Stage::CreateRuntime,
        path: "/h".to_owned(),
        args: vec!["h".to_owned()],
        env: vec![],
        timeout,
    };
    let edits = Edits {
        mounts: vec![Mount::library("/l", "/usr/l"), Mount::node("/d/n", "/dev/n")],
        hooks: vec![hook(None), Hook { stage: Stage::Poststop, ..hook(NonZeroU32::new(5)) }],
        ..Edits::default()
    };
    let library =
        r#"{"destination":"/usr/l","type":"bind","source":"/l","options":["ro","nosuid","nodev","bind","rprivate"]}"#;
    let node = r#"{"destination":"/dev/n","type":"bind","source":"/d/n","options":["rw","nosuid","noexec","bind","rprivate"]}"#;
    let last =
        r#""hooks":{"createRuntime":[{"path":"/h","args":["h"]}],"poststop":[{"path":"/h","args":["h"],"timeout":5}]}"#;
    // The same mount before one that may cover it does not count.
    let before = format!(r#"{{"mounts":[{library},{node},{{"destination":"/usr"}}]}}"#);
    let after = format!(r#"{{"mounts":[{library},{node},{{"destination":"/usr"}},{library},{node}],{last}}}"#);
    assert_eq!(run(&before, &edits).0, after);
    assert_eq!(run(&after, &edits), (after, vec![]));
}

#[test]
fn a_mount_follows_one_of_the_specs_at_once() {
    let [x, y, z] = ["/x", "/y", "/z"].map(|at| Mount::read_only("/s", at, true));
    let text = |at: &str| {
        format!(
            r#"{{"destination":"{at}","type":"bind","source":"/s","options":["ro","rro","nosuid","noexec","nodev","rbind","rprivate"]}}"#
        )
    };
    let (tx, ty, tz) = (text("/x"), text("/y"), text("/z"));
    let edits = Edits { inserted: vec![(1, x), (1, y), (3, z)], ..Edits::default() };
    let before = r#"{"mounts":[ {"a":1} , {"b":1}, {"c":1} ]}"#;
    let after = format!(r#"{{"mounts":[ {{"a":1}} , {tx},{ty},{{"b":1}}, {{"c":1}},{tz} ]}}"#);
    let (once, ops) = run(before, &edits);
    assert_eq!(once, after);
    let op = |at: &str, value: &str| format!(r#"{{"op":"add","path":"/mounts/{at}","value":{value}}}"#);
    assert_eq!(ops, [op("1", &tx), op("2", &ty), op("-", &tz)]);
    // What stands there already is not put there again.
    let moved = edits.inserted.iter().map(|(at, mount)| (if *at == 3 { 5 } else { *at }, mount.clone())).collect();
    assert_eq!(run(&once, &Edits { inserted: moved, ..Edits::default() }), (once.clone(), vec![]));
    assert_eq!(
        run("{}", &Edits { inserted: edits.inserted[..1].to_vec(), ..Edits::default() }).0,
        format!(r#"{{"mounts":[{tx}]}}"#)
    );
}

#[test]
fn many_mounts_keep_their_order() {
    let mounts: Vec<_> = (0..100).map(|n| Mount::library(format!("/l{n}"), "/usr/l")).collect();
    // The variable comes first among the steps and last in the document.
    let (after, ops) =
        run(r#"{"mounts":[{"destination":"/usr"}],"process":{"env":[]}}"#, &Edits { mounts, ..env(&[("K", "v")]) });
    assert_eq!(ops.len(), 101);
    let spec = json::parse_oci(after.as_bytes()).unwrap();
    let sources = spec
        .path(&["mounts"])
        .unwrap()
        .items()
        .iter()
        .skip(1)
        .map(|mount| mount.get("source").unwrap().as_str().unwrap().to_owned());
    assert!(sources.eq((0..100).map(|n| format!("/l{n}"))), "{after}");
}

#[test]
fn groups_are_added_once() {
    let edits = Edits { gids: vec![27, 44, 27], ..Edits::default() };
    let document = |user: &str| format!(r#"{{"process":{{"user":{user}}}}}"#);
    assert_eq!(
        run(&document(r#"{"uid":1,"additionalGids":[27]}"#), &edits).0,
        document(r#"{"uid":1,"additionalGids":[27,44]}"#)
    );
    assert_eq!(run(&document(r#"{"uid":1}"#), &edits).0, document(r#"{"uid":1,"additionalGids":[27,44]}"#));
}

#[test]
fn node_mounts_can_be_opened() {
    let has = |mount: &Mount, option: &str| mount.options.iter().any(|o| o == option);
    assert!(!has(&Mount::node("/a", "/b"), "nodev") && !has(&Mount::node("/a", "/b"), "ro"));
    assert!(!has(&Mount::library("/a", "/b"), "noexec"));
}

#[test]
fn hooks_go_and_others_come() {
    let own = Hook { stage: Stage::Prestart, path: "/h".to_owned(), args: vec![], env: vec![], timeout: None };
    let text = r#"{"hooks":{"prestart":[{"path":"/gone"},{"path":"/stays"}],"poststop":[{"path":"/x"}]}}"#;
    let dropped = Edits { drop_prestart: vec![0], ..Edits::default() };
    assert_eq!(run(text, &dropped).0, r#"{"hooks":{"prestart":[{"path":"/stays"}],"poststop":[{"path":"/x"}]}}"#);
    let replaced = run(text, &Edits { hooks: vec![own], ..dropped }).0;
    assert_eq!(replaced, r#"{"hooks":{"prestart":[{"path":"/stays"},{"path":"/h"}],"poststop":[{"path":"/x"}]}}"#);
    let beyond = Edits { drop_prestart: vec![2], ..Edits::default() };
    let spec = json::parse_oci(text.as_bytes()).unwrap();
    assert_eq!(patch(&spec, &beyond).unwrap_err().at, "/hooks/prestart/2");
}

#[test]
fn wrong_shapes_are_refused_where_they_are_edited() {
    let all = Edits {
        env: env(&[("K", "v")]).env,
        nodes: vec![node()],
        mounts: vec![Mount::library("/a", "/b")],
        inserted: vec![(0, Mount::read_only("/a", "/b", true))],
        rules: Some(vec![]),
        drop_devices: vec![0],
        hooks: vec![Hook { stage: Stage::Prestart, path: "/h".to_owned(), args: vec![], env: vec![], timeout: None }],
        gids: vec![1],
        ..Edits::default()
    };
    let nodev = Edits { options: vec![(0, "nodev")], ..Edits::default() };
    let drop = Edits { drop_capabilities: vec!["MKNOD"], ..Edits::default() };
    for (text, at, edits) in [
        ("{}", "/mounts/0", nodev.clone()),
        (r#"{"mounts":[{"options":"ro"}]}"#, "/mounts/0/options", nodev),
        (r#"{"process":{"capabilities":{"ambient":[1]}}}"#, "/process/capabilities/ambient/0", drop),
        ("[]", "", env(&[("K", "v")])),
        (r#"{"process":1}"#, "/process", all.clone()),
        (r#"{"process":{"env":{}}}"#, "/process/env", all.clone()),
        (r#"{"process":{"env":["A=1",null]}}"#, "/process/env/1", all.clone()),
        (r#"{"process":{"user":"root"}}"#, "/process/user", all.clone()),
        (r#"{"process":{"user":{"additionalGids":[1.5]}}}"#, "/process/user/additionalGids/0", all.clone()),
        (r#"{"mounts":true}"#, "/mounts", all.clone()),
        (r#"{"mounts":["x"]}"#, "/mounts/0", all.clone()),
        (r#"{"linux":[]}"#, "/linux", all.clone()),
        (r#"{"linux":{"devices":[]}}"#, "/linux/devices/0", all.clone()),
        (r#"{"linux":{"devices":[{},{},7]}}"#, "/linux/devices/2", all.clone()),
        (r#"{"linux":{"devices":[{}],"resources":[]}}"#, "/linux/resources", all.clone()),
        (r#"{"linux":{"devices":[{}],"resources":{"devices":{}}}}"#, "/linux/resources/devices", all.clone()),
        (r#"{"linux":{"devices":[{}]},"hooks":[]}"#, "/hooks", all.clone()),
        (r#"{"linux":{"devices":[{}]},"hooks":{"prestart":"x"}}"#, "/hooks/prestart", all.clone()),
        ("{}", "", env(&[("", "v")])),
        ("{}", "", env(&[("A=B", "v")])),
        ("{}", "", env(&[("A", "a\0b")])),
        ("{}", "", Edits { mounts: vec![Mount::library("/a\0", "/b")], ..Edits::default() }),
    ] {
        let spec = json::parse_data(text.as_bytes()).unwrap();
        let error = apply(text.as_bytes(), &spec, &edits).unwrap_err();
        assert_eq!(error.at, at, "{text}: {error}");
        assert_eq!(patch(&spec, &edits).unwrap_err(), error);
        assert_eq!(
            apply(text.as_bytes(), &spec, &Edits::default()).unwrap(),
            text.as_bytes(),
            "not edited, not looked at"
        );
    }
}

#[test]
fn bytes_of_another_document_are_refused() {
    let spec = json::parse_oci(br#"{"process":{"env":["A=1"]}}"#).unwrap();
    let error = apply(b"{}", &spec, &env(&[("K", "v")])).unwrap_err();
    assert_eq!(error.to_string(), "edit the spec: the spec was not read from these bytes");
}

#[test]
fn a_process_document_gets_the_variables_and_nothing_else() {
    for (document, expected) in [
        (r#"{"args":["x"],"env":["A=1","B=2","A=3"]}"#, r#"{"args":["x"],"env":["A=new","B=2"]}"#),
        (r#"{ "env": null, "cwd": "/" }"#, r#"{ "env": ["A=new"], "cwd": "/" }"#),
        (r#"{"cwd":"/"}"#, r#"{"cwd":"/","env":["A=new"]}"#),
        (r#"{"env":["A=new"]}"#, r#"{"env":["A=new"]}"#),
    ] {
        let node = json::parse_oci(document.as_bytes()).unwrap();
        let edited = cdi::apply_process(document.as_bytes(), &node, &[("A".to_owned(), "new".to_owned())]).unwrap();
        assert_eq!(String::from_utf8(edited).unwrap(), expected);
    }
    let node = json::parse_oci(br#"{"env":"A"}"#).unwrap();
    assert!(cdi::apply_process(br#"{"env":"A"}"#, &node, &[("A".to_owned(), "b".to_owned())]).is_err());
}
