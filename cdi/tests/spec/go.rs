//! Eight behaviours of the Go library that engines are built on, and in which another library differs.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use cdi::spec::{Cache, Encoding, Found, MAX_BYTES, MAX_FILES, NodeKind, Seen, apply, complete};
use contract::json;
use node::folder::{Bounds, Writers, files};
use serde_json::{Value, json};

use crate::made::{cache, container, gpus, one};

/// A folder as engines read it, once more each time.
fn folder(path: &Path) -> Cache {
    let wanted = |name: &Path| name.to_str().and_then(Encoding::of).is_some();
    let bounds = Bounds { files: MAX_FILES, bytes: MAX_BYTES };
    let found = files(path, wanted, Writers::Anyone, bounds).unwrap();
    Cache::of(found.into_iter().map(|(path, bytes)| Found {
        path: path.to_str().unwrap().to_owned(),
        priority: 0,
        bytes,
    }))
}

/// What a path is, as the library looks at it: a link at its end is not followed.
fn seen(path: &str) -> Result<Seen, String> {
    let about = fs::symlink_metadata(path).map_err(|e| e.to_string())?;
    let kind = about.file_type();
    let kind = match () {
        () if kind.is_char_device() => Some(NodeKind::Char),
        () if kind.is_block_device() => Some(NodeKind::Block),
        () if kind.is_fifo() => Some(NodeKind::Fifo),
        () => None,
    };
    let number = about.rdev();
    let (major, minor) = (u32::try_from(number >> 8 & 0xfff).unwrap(), u32::try_from(number & 0xff).unwrap());
    Ok(Seen { kind, major, minor, mode: about.mode() & 0o7777 })
}

fn names(cache: &Cache) -> Vec<&str> {
    cache.devices().map(|(name, ..)| name).collect()
}

fn injected(cache: &Cache, devices: &[&str], spec: &Value) -> Value {
    let mut injection = cache.resolve(devices).unwrap();
    complete(&mut injection.edits, seen).unwrap();
    let text = spec.to_string();
    let bytes = apply(text.as_bytes(), &json::parse_oci(text.as_bytes()).unwrap(), &injection).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn a_device_of_two_files_of_one_folder_is_nobodys() {
    let (a, b) = (one("v.org/c", "x", &json!({"env": ["A=1"]})), one("v.org/c", "x", &json!({"env": ["A=2"]})));
    let mut both = b.clone();
    both["devices"].as_array_mut().unwrap().push(json!({"name": "y", "containerEdits": {"env": ["B=1"]}}));
    let cache = cache(&[("a.json", &a), ("b.json", &both)]);
    assert_eq!(names(&cache), ["v.org/c=y"]);
    let unresolved = cache.resolve(&["v.org/c=x"]).unwrap_err();
    assert_eq!(unresolved[0].why, "a.json and b.json both have it; take it out of all but one");

    // In two folders the later one counts.
    let cache = crate::made::cache(&[("a.json", &a), ("later/b.json", &b)]);
    assert_eq!(injected(&cache, &["v.org/c=x"], &json!({}))["process"]["env"], json!(["A=2"]));
    assert_eq!((cache.shadows[0].path.as_str(), cache.shadows[0].by.as_str()), ("a.json", "later/b.json"));
    // But what is in conflict in an earlier folder stays so.
    let cache = crate::made::cache(&[("a.json", &a), ("b.json", &b), ("later/c.json", &a)]);
    assert_eq!((names(&cache), cache.conflicts.len()), (vec![], 1));
}

#[test]
fn a_malformed_file_leaves_the_others_alone() {
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join("bad.json"), "{\n\"kind\": 5").unwrap();
    fs::write(scratch.path().join("good.json"), gpus().to_string()).unwrap();
    let cache = folder(scratch.path());
    assert_eq!(names(&cache), ["nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1c0a", "nvidia.com/gpu=all"]);
    let path = scratch.path().join("bad.json").to_str().unwrap().to_owned();
    assert_eq!(cache.problems.keys().collect::<Vec<_>>(), [&path]);
    assert!(cache.resolve(&["nvidia.com/gpu=1"]).unwrap_err()[0].why.contains(&path));
}

#[test]
fn a_device_node_that_is_a_link_is_no_device_node() {
    let scratch = tempfile::tempdir().unwrap();
    let link = scratch.path().join("link");
    symlink("/dev/null", &link).unwrap();
    let of = |host: &str| {
        cache(&[("a.json", &one("v.org/c", "x", &json!({"deviceNodes": [{"path": "/dev/x", "hostPath": host}]})))])
    };
    let mut injection = of(link.to_str().unwrap()).resolve(&["v.org/c=x"]).unwrap();
    let error = complete(&mut injection.edits, seen).unwrap_err();
    assert!(error.ends_with("/link is: it is not a device node"), "{error}");

    let spec = injected(&of("/dev/null"), &["v.org/c=x"], &json!({}));
    let mode = fs::metadata("/dev/null").unwrap().permissions().mode() & 0o7777;
    assert_eq!(
        spec["linux"]["devices"],
        json!([{"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "fileMode": mode}])
    );
    assert_eq!(
        spec["linux"]["resources"]["devices"],
        json!([{"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm"}])
    );
}

#[test]
fn mounts_are_sorted_by_depth() {
    let mount = |path: &str| json!({"hostPath": "/x", "containerPath": path, "options": ["bind"]});
    let edits = json!({"mounts": [mount("/opt/a/b/c"), mount("/opt/a"), mount("/opt/a/b/../d"), mount("/opt")]});
    let spec = injected(&cache(&[("a.json", &one("v.org/c", "x", &edits))]), &["v.org/c=x"], &container());
    let there: Vec<&str> =
        spec["mounts"].as_array().unwrap().iter().map(|it| it["destination"].as_str().unwrap()).collect();
    assert_eq!(
        there,
        ["/proc", "/dev", "/opt", "/dev/pts", "/opt/a", "/opt/a/b/../d", "/usr/lib/deep/er", "/opt/a/b/c"]
    );
}

#[test]
fn a_file_of_a_folder_within_is_passed_by() {
    let scratch = tempfile::tempdir().unwrap();
    fs::create_dir_all(scratch.path().join("more.json")).unwrap();
    fs::write(scratch.path().join("more.json/gpus.json"), gpus().to_string()).unwrap();
    for passed in ["gpus.yml", "gpus.json.tmp", "gpus", "README.md"] {
        fs::write(scratch.path().join(passed), gpus().to_string()).unwrap();
    }
    let cache = folder(scratch.path());
    assert_eq!((names(&cache), cache.problems.len()), (vec![], 0));
}

#[test]
fn a_bind_mount_in_a_user_namespace_maps_its_ids() {
    let mut spec = container();
    spec["linux"]["namespaces"] = json!([{"type": "mount"}, {"type": "user"}]);
    for (mount, options) in [
        (json!({"options": ["ro", "bind"]}), json!(["ro", "bind", "idmap"])),
        (json!({"options": ["rbind", "ro"]}), json!(["rbind", "ro", "ridmap"])),
        (json!({"options": ["ro"], "type": "bind"}), json!(["ro", "idmap"])),
        (json!({"type": "bind"}), json!(["idmap"])),
        (json!({"options": ["rbind"], "type": "bind"}), json!(["rbind", "ridmap"])),
        (json!({"options": ["bind", "ridmap"]}), json!(["bind", "ridmap"])),
        (json!({"options": ["ro"], "type": "tmpfs"}), json!(["ro"])),
    ] {
        let mut whole = json!({"hostPath": "/x", "containerPath": "/y"});
        whole.as_object_mut().unwrap().extend(mount.as_object().unwrap().clone());
        let cache = cache(&[("a.json", &one("v.org/c", "x", &json!({"mounts": [whole]})))]);
        let find = |spec: Value| {
            spec["mounts"].as_array().unwrap().iter().find(|it| it["destination"] == "/y").unwrap()["options"].clone()
        };
        assert_eq!(find(injected(&cache, &["v.org/c=x"], &spec)), options);
        let plain = mount.get("options").cloned().unwrap_or_default();
        assert_eq!(find(injected(&cache, &["v.org/c=x"], &container())), plain);
    }
}

#[test]
fn each_file_has_its_own_errors() {
    let scratch = tempfile::tempdir().unwrap();
    let mut newer = gpus();
    newer["cdiVersion"] = json!("0.4.0");
    for (name, text) in [("a.json", "{}"), ("b.yaml", "kind: v.org/c\n"), ("c.json", &newer.to_string())] {
        fs::write(scratch.path().join(name), text).unwrap();
    }
    symlink("/nowhere", scratch.path().join("d.json")).unwrap();
    let cache = folder(scratch.path());
    let told: Vec<(String, usize)> = cache
        .problems
        .iter()
        .map(|(path, problems)| (path.rsplit_once('/').unwrap().1.to_owned(), problems.len()))
        .collect();
    // The third one has a hostPath for each of five nodes, and a name that begins with a digit.
    assert_eq!(told, [("a.json".into(), 1), ("b.yaml".into(), 1), ("c.json".into(), 6), ("d.json".into(), 1)]);
}

#[test]
fn what_changes_in_a_folder_is_seen_by_the_next_look() {
    let scratch = tempfile::tempdir().unwrap();
    let later = scratch.path().join("cdi");
    assert_eq!(names(&folder(&later)), Vec::<&str>::new());
    fs::create_dir(&later).unwrap();
    fs::write(later.join("a.json"), one("v.org/c", "x", &json!({"env": ["A=b"]})).to_string()).unwrap();
    assert_eq!(names(&folder(&later)), ["v.org/c=x"]);
    fs::write(later.join("a.json"), one("v.org/c", "y", &json!({"env": ["A=b"]})).to_string()).unwrap();
    assert_eq!(names(&folder(&later)), ["v.org/c=y"]);
    fs::remove_file(later.join("a.json")).unwrap();
    assert_eq!(names(&folder(&later)), Vec::<&str>::new());
}
