//! Documents that are read and documents that are not: each problem at its place, and its line where that is known.

use cdi::spec::{Encoding, read, to_json, to_yaml};
use serde_json::{Value, json};

use crate::made::{everything, gpus, one, spec, wrong};

#[test]
fn every_field_is_read_and_written_again() {
    for document in [gpus(), everything()] {
        let spec = spec(&document);
        let text = to_json(&spec).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), document);
        assert_eq!(read(to_yaml(&spec).unwrap().as_bytes(), Encoding::Yaml).as_ref(), Ok(&spec));
    }
}

#[test]
fn what_says_nothing_is_nothing() {
    let mut document = gpus();
    document["annotations"] = json!(null);
    document["devices"][0]["containerEdits"]["env"] = json!(null);
    document["devices"][0]["containerEdits"]["hooks"] = json!([]);
    document["containerEdits"]["mounts"][0]["type"] = json!("");
    document["containerEdits"]["deviceNodes"][0]["permissions"] = json!("");
    let mut expected = spec(&gpus());
    expected.container_edits.device_nodes[0].permissions = None;
    assert_eq!(spec(&document), expected);
    document["containerEdits"] = json!(null);
    expected.container_edits = cdi::spec::ContainerEdits::default();
    assert_eq!(spec(&document), expected);
}

/// A change to the file with every field: pointer, new value (nothing: taken out), and the problem.
fn table() -> Vec<(&'static str, Option<Value>, &'static str)> {
    let node = "/devices/0/containerEdits/deviceNodes/0";
    assert_eq!(everything().pointer(node).unwrap()["path"], "/dev/nvidia0");
    vec![
        ("/cdiVersion", None, "/cdiVersion: it is missing"),
        ("/cdiVersion", Some(json!(1)), "/cdiVersion: it must be a string"),
        ("/cdiVersion", Some(json!("1.2.0")), "/cdiVersion: there is no version \"1.2.0\" of CDI; there are 0.3.0, "),
        ("/cdiVersion", Some(json!("0.2.0")), "/cdiVersion: version 0.2.0 is older than any that is read; state 1.1.0"),
        ("/cdiVersion", Some(json!("vv1.1.0")), "/cdiVersion: there is no version"),
        ("/kind", None, "/kind: it is missing"),
        ("/kind", Some(json!("gpu")), "/kind: the kind \"gpu\" must be VENDOR/CLASS"),
        ("/kind", Some(json!("/gpu")), "/kind: the vendor \"\" is empty"),
        ("/kind", Some(json!("nvidia.com/")), "/kind: the class \"\" is empty"),
        ("/kind", Some(json!("nvidia.com/gpu/0")), "/kind: the class \"gpu/0\" may have letters, digits and _-. only"),
        ("/kind", Some(json!("0vidia.com/gpu")), "/kind: the vendor \"0vidia.com\" must begin with a letter"),
        ("/kind", Some(json!("nvidia.com/gpu-")), "/kind: the class \"gpu-\" must end with a letter or digit"),
        ("/kind", Some(json!("nvidia.com/gpü")), "/kind: the class \"gpü\" must end with a letter or digit"),
        ("/extra", Some(json!(1)), "/extra: unknown field"),
        ("/Kind", Some(json!("x")), "/Kind: unknown field"),
        ("/annotations", Some(json!([])), "/annotations: it must be a table of texts"),
        ("/annotations/a~1b", Some(json!(1)), "/annotations/a~1b: it must be a string"),
        ("/annotations/-a", Some(json!("")), "/annotations/-a: the key \"-a\" must be a name"),
        ("/annotations/a~1b~1c", Some(json!("")), "/annotations/a~1b~1c: the key \"a/b/c\" must be a name"),
        ("/annotations/a", Some(json!("x".repeat(256 << 10))), "/annotations: they have 2621"),
        ("/devices", None, "/devices: it is missing"),
        ("/devices", Some(json!({})), "/devices: it must be a list"),
        ("/devices", Some(json!([])), "/devices: a file must have at least one device"),
        ("/devices/1/name", Some(json!("0")), "/devices/1/name: there are two devices \"0\""),
        ("/devices/1/name", Some(json!("")), "/devices/1/name: the device name \"\" is empty"),
        (
            "/devices/1/name",
            Some(json!(":a")),
            "/devices/1/name: the device name \":a\" must begin with a letter or digit",
        ),
        ("/devices/1/name", Some(json!("a=b")), "/devices/1/name: the device name \"a=b\" may have letters"),
        ("/devices/1/containerEdits", None, "/devices/1/containerEdits: it is missing"),
        ("/devices/1/containerEdits", Some(json!({})), "/devices/1/containerEdits: a device must change something"),
        ("/devices/1/containerEdits/devices", Some(json!([])), "/devices/1/containerEdits/devices: unknown field"),
        (
            "/devices/1/containerEdits/env/0",
            Some(json!("ONE")),
            "/devices/1/containerEdits/env/0: \"ONE\" must be NAME=VALUE",
        ),
        (
            "/devices/1/containerEdits/env/0",
            Some(json!("=1")),
            "/devices/1/containerEdits/env/0: \"=1\" must be NAME=VALUE",
        ),
        ("/devices/0/containerEdits/deviceNodes/0/path", None, "deviceNodes/0/path: it is missing"),
        ("/devices/0/containerEdits/deviceNodes/0/path", Some(json!("")), "deviceNodes/0/path: it is empty"),
        ("/devices/0/containerEdits/deviceNodes/0/path", Some(json!("dev/x")), "\"dev/x\" must be an absolute path"),
        ("/devices/0/containerEdits/deviceNodes/0/hostPath", Some(json!("x")), "\"x\" must be an absolute path"),
        ("/devices/0/containerEdits/deviceNodes/0/type", Some(json!("d")), "/type: it must be one of b c u p"),
        (
            "/devices/0/containerEdits/deviceNodes/0/major",
            Some(json!(-1)),
            "/major: it must be a whole number in range",
        ),
        ("/devices/0/containerEdits/deviceNodes/0/minor", Some(json!("1")), "/minor: it must be a whole number"),
        (
            "/devices/0/containerEdits/deviceNodes/0/fileMode",
            Some(json!("0666")),
            "/fileMode: it must be a whole number",
        ),
        (
            "/devices/0/containerEdits/deviceNodes/0/permissions",
            Some(json!("rx")),
            "\"rx\" must be letters of rwm, or none",
        ),
        ("/devices/0/containerEdits/deviceNodes/0/uid", Some(json!(4_294_967_296_u64)), "/uid: it must be a whole"),
        ("/devices/0/containerEdits/netDevices/0/name", None, "/netDevices/0/name: it is missing"),
        ("/devices/0/containerEdits/netDevices/0/name", Some(json!("")), "/netDevices/0/name: \"\" must be the name"),
        ("/devices/0/containerEdits/netDevices/0/name", Some(json!("a/b")), "\"a/b\" must be the name of a network"),
        ("/devices/0/containerEdits/netDevices/0/name", Some(json!("a".repeat(16))), "must be the name of a network"),
        (
            "/devices/0/containerEdits/netDevices",
            Some(json!([{"hostInterfaceName": "a", "name": "b"}, {"hostInterfaceName": "a", "name": "c"}])),
            "/netDevices/1/hostInterfaceName: \"a\" is there twice",
        ),
        (
            "/devices/0/containerEdits/netDevices",
            Some(json!([{"hostInterfaceName": "a", "name": "b"}, {"hostInterfaceName": "c", "name": "b"}])),
            "/netDevices/1/name: \"b\" is there twice",
        ),
        ("/devices/0/containerEdits/additionalGids/1", Some(json!(-1)), "/additionalGids/1: it must be a whole number"),
        ("/containerEdits/hooks/0/hookName", Some(json!("precreate")), "/hooks/0/hookName: it must be one of prestart"),
        ("/containerEdits/hooks/0/path", Some(json!("")), "/hooks/0/path: it is empty"),
        ("/containerEdits/hooks/0/path", Some(json!("hook")), "/hooks/0/path: \"hook\" must be an absolute path"),
        ("/containerEdits/hooks/0/env/0", Some(json!("A")), "/hooks/0/env/0: \"A\" must be NAME=VALUE"),
        ("/containerEdits/hooks/0/timeout", Some(json!(0)), "/hooks/0/timeout: it must be greater than 0"),
        ("/containerEdits/mounts/0/hostPath", Some(json!("")), "/mounts/0/hostPath: it is empty"),
        (
            "/containerEdits/mounts/0/hostPath",
            Some(json!("lib")),
            "/mounts/0/hostPath: \"lib\" must be an absolute path",
        ),
        ("/containerEdits/mounts/0/containerPath", Some(json!("lib")), "/mounts/0/containerPath: \"lib\" must be"),
        ("/containerEdits/mounts/0/options", Some(json!("ro")), "/mounts/0/options: it must be a list"),
        ("/containerEdits/intelRdt/closID", Some(json!("..")), "/intelRdt/closID: \"..\" must be the name of a file"),
        ("/containerEdits/intelRdt/closID", Some(json!("a/b")), "/intelRdt/closID: \"a/b\" must be the name of a file"),
        ("/containerEdits/intelRdt/enableCMT", Some(json!(true)), "/intelRdt/enableCMT: unknown field"),
        ("/containerEdits/intelRdt/enableMonitoring", Some(json!("yes")), "it must be true or false"),
    ]
}

fn changed(at: &str, value: Option<Value>) -> Value {
    let mut document = everything();
    let (above, key) = at.rsplit_once('/').unwrap();
    let above = document.pointer_mut(above).unwrap();
    let key = key.replace("~1", "/");
    match (above, value) {
        (Value::Object(map), Some(value)) => drop(map.insert(key, value)),
        (Value::Object(map), None) => drop(map.remove(&key).unwrap()),
        (Value::Array(items), Some(value)) => items[key.parse::<usize>().unwrap()] = value,
        _ => panic!("{at}"),
    }
    document
}

#[test]
fn each_problem_is_told_at_its_place() {
    for (at, value, expected) in table() {
        let document = changed(at, value.clone());
        for (encoding, text) in
            [(Encoding::Json, serde_json::to_string_pretty(&document).unwrap()), (Encoding::Yaml, document.to_string())]
        {
            let problems = wrong(text.as_bytes(), encoding);
            assert_eq!(problems.len(), 1, "{at} = {value:?} in {encoding:?}: {problems:?}");
            assert!(problems[0].contains(expected), "{at} = {value:?} in {encoding:?}: {problems:?}");
            assert!(problems[0].starts_with("line "), "{at} in {encoding:?}: {problems:?}");
        }
    }
}

#[test]
fn all_problems_are_told_with_their_lines() {
    let text = "{\n \"cdiVersion\": \"0.4.0\",\n \"kind\": \"x.org/a.b\",\n \"devices\": [\n  {\"name\": \"0\",\n   \"containerEdits\": {\n    \"env\": [\"A=b\",\n     \"C\"]}}]\n}";
    assert_eq!(
        wrong(text.as_bytes(), Encoding::Json),
        [
            "line 3: /kind: a class with a dot: there since 0.6.0, and the file states 0.4.0",
            "line 5: /devices/0/name: a device name that begins with a digit: there since 0.5.0, and the file states 0.4.0",
            "line 8: /devices/0/containerEdits/env/1: \"C\" must be NAME=VALUE",
        ]
    );
    let missing =
        "cdiVersion: 1.1.0\nkind: x.org/a\ndevices:\n- name: a\n  containerEdits:\n    mounts:\n    - hostPath: /x\n";
    assert_eq!(
        wrong(missing.as_bytes(), Encoding::Yaml),
        ["line 7: /devices/0/containerEdits/mounts/0/containerPath: it is missing"]
    );
}

#[test]
fn what_is_no_document_is_told_by_its_line() {
    for (encoding, text, expected) in [
        (Encoding::Json, "", "the file is empty"),
        (Encoding::Json, " \n\n", "the file is empty"),
        (Encoding::Yaml, "\n", "the file is empty"),
        (Encoding::Yaml, "# nothing\n", "the file is empty"),
        (Encoding::Json, "{\"kind\":\n\"a\",\n\"kind\": \"b\"}", "line 3: key \"kind\" appears twice"),
        (Encoding::Json, "{\"kind\": \"a\u{0}\"}", "line 1: "),
        (Encoding::Json, "kind: a", "line 1: "),
        (Encoding::Json, "[]", "line 1: it must be a table of fields"),
        (Encoding::Yaml, "kind: a\nkind: b\n", "line 2: key \"kind\" appears twice"),
        (Encoding::Yaml, "kind: [a\n", "the file is not YAML"),
        (Encoding::Yaml, "just words\n", "line 1: it must be a table of fields"),
    ] {
        let problems = wrong(text.as_bytes(), encoding);
        assert!(problems.len() == 1 && problems[0].contains(expected), "{text:?}: {problems:?}");
    }
    assert_eq!(wrong(b"kind: a\n\xff\n", Encoding::Yaml), ["line 2: the file is not UTF-8"]);
}

#[test]
fn what_engines_take_is_taken() {
    for (kind, name, edits) in [
        ("v/c", "a", json!({"env": ["A="]})),
        ("vendor.com-a_b/class_1.2-x", "0:1", json!({"env": ["A=b=c"]})),
        ("a.b/c", "GPU-1_2.3", json!({"additionalGids": [0]})),
        ("a.b/c", "a", json!({"intelRdt": {}})),
        ("a.b/c", "a", json!({"intelRdt": {"closID": "/"}})),
        ("a.b/c", "a", json!({"mounts": [{"hostPath": "tmpfs", "containerPath": "/t", "type": "tmpfs"}]})),
        ("a.b/c", "a", json!({"deviceNodes": [{"path": "/dev/x", "permissions": "none"}]})),
        ("a.b/c", "a", json!({"netDevices": [{"hostInterfaceName": "enp3s0f0.100", "name": "eth0"}]})),
    ] {
        spec(&one(kind, name, &edits));
    }
    for version in ["0.5.0", "v0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"] {
        let mut document = gpus();
        document["cdiVersion"] = json!(version);
        assert_eq!(spec(&document).cdi_version, version);
    }
}

#[test]
fn the_ending_tells_the_encoding() {
    for (path, encoding) in [
        ("/etc/cdi/a.json", Some(Encoding::Json)),
        ("a.b.yaml", Some(Encoding::Yaml)),
        ("a.yml", None),
        ("a.JSON", None),
        ("json", None),
        (".json", None),
        ("a.json.tmp", None),
    ] {
        assert_eq!(Encoding::of(path), encoding, "{path}");
    }
}
