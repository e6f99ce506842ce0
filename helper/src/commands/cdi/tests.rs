//! The command line on folders with good, bad, foreign and conflicting files. Listing needs root: files are trusted by owner.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use cdi::spec::{Encoding, read};
use serde_json::{Value, json};

use crate::cli;
use crate::demo::{Folder, prepare};

const GOOD: &str = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\ncontainerEdits:\n  mounts:\n  - hostPath: /run/driver/lib/libcuda.so.1\n    containerPath: /lib/libcuda.so.1\n    options: [ro, bind]\n";

fn call(words: &[&str]) -> (u8, String, String) {
    let args: Vec<OsString> = words.iter().map(Into::into).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = cli::run(&args, &mut out, &mut err);
    (exit.code(), String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn with(version: &str, name: &str) -> String {
    let edits = json!({"env": ["A=b"]});
    json!({"cdiVersion": version, "kind": "v.org/c", "devices": [{"name": name, "containerEdits": edits}]}).to_string()
}

/// A node of its own; none, with the reason on stdout, when this is not root.
fn node() -> Option<Folder> {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: files that root owns need root");
        return None;
    }
    Some(Folder::make().unwrap())
}

fn listed(folder: &Path, more: &[&str]) -> Value {
    let words = [&["cdi", "list", "--format", "json", "--host-root", folder.to_str().unwrap()], more].concat();
    let (code, out, err) = call(&words);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    serde_json::from_str(&out).unwrap()
}

fn names(listed: &Value) -> Vec<&str> {
    listed["devices"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect()
}

#[test]
fn a_list_names_devices_and_what_keeps_others_from_being_one() {
    let Some(node) = node() else { return };
    let at = |path: &str| node.0.join(path).to_str().unwrap().to_owned();
    write(&node.0, "etc/cdi/gpus.yaml", GOOD);
    write(&node.0, "etc/cdi/a.json", &with("0.5.0", "twice"));
    write(&node.0, "etc/cdi/b.json", &with("0.5.0", "twice"));
    write(&node.0, "etc/cdi/c.json", &with("0.5.0", "both"));
    write(&node.0, "etc/cdi/bad.yaml", "kind: v.org/c\ncdiVersion: 0.5\n");
    write(&node.0, "run/cdi/both.json", &with("0.5.0", "both"));
    symlink("../run", {
        fs::create_dir(node.0.join("var")).unwrap();
        node.0.join("var/run")
    })
    .unwrap();
    let list = listed(&node.0, &[]);
    assert_eq!(names(&list), ["nvidia.com/gpu=0", "v.org/c=both"]);
    assert_eq!(list["devices"][1]["file"], at("run/cdi/both.json"));
    assert_eq!(
        list["conflicts"],
        json!([{"device": "v.org/c=twice", "files": [at("etc/cdi/a.json"), at("etc/cdi/b.json")]}])
    );
    assert_eq!(
        list["shadows"],
        json!([{"device": "v.org/c=both", "file": at("etc/cdi/c.json"), "by": at("run/cdi/both.json")}])
    );
    assert_eq!(list["problems"][0]["file"], at("etc/cdi/bad.yaml"));
    assert_eq!(list["problems"][0]["problems"][0]["line"], 2);

    let (code, out, _) = call(&["cdi", "list", "--host-root", node.0.to_str().unwrap()]);
    let lines: Vec<&str> = out.lines().map(str::trim).collect();
    assert_eq!((code, lines.len()), (0, 7), "{out}");
    for part in [
        "DEVICE",
        "nvidia.com/gpu=0",
        "nobody gets v.org/c=twice: ",
        "v.org/c=both of ",
        "bad.yaml is passed by: line 2: 0.5 is a number to some readers",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[test]
fn a_file_that_others_could_have_written_counts_only_when_told_so() {
    let Some(node) = node() else { return };
    let open = write(&node.0, "etc/cdi/open.yaml", GOOD);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).unwrap();
    let own = write(&node.0, "etc/cdi/own.json", &with("0.5.0", "own"));
    nix::unistd::chown(own.as_str(), Some(12345.into()), None).unwrap();
    let elsewhere = write(&node.0, "elsewhere.json", &with("0.5.0", "linked"));
    symlink(elsewhere, node.0.join("etc/cdi/link.json")).unwrap();
    let list = listed(&node.0, &[]);
    assert_eq!(names(&list), Vec::<&str>::new());
    let why: Vec<String> =
        list["problems"].as_array().unwrap().iter().map(|it| it["problems"][0]["message"].to_string()).collect();
    for (why, part) in why.iter().zip(["symbolic link", "may be written by others", "belongs to user 12345"]) {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(names(&listed(&node.0, &["--any-owner"])), ["nvidia.com/gpu=0", "v.org/c=linked", "v.org/c=own"]);
}

#[test]
fn a_node_without_files_has_no_device_and_folders_can_be_named() {
    let Some(node) = node() else { return };
    let (code, out, _) = call(&["cdi", "list", "--host-root", node.0.to_str().unwrap()]);
    assert!(code == 0 && out.starts_with("no CDI device is named in "), "{out}");
    write(&node.0, "x/a.json", &with("0.5.0", "a"));
    write(&node.0, "y/a.json", &with("0.5.0", "a"));
    let [x, y] = ["x", "y"].map(|name| node.0.join(name).to_str().unwrap().to_owned());
    for (first, second) in [(&x, &y), (&y, &x)] {
        let list = listed(&node.0, &["--dir", first, "--dir", second]);
        assert_eq!(list["devices"][0]["file"], format!("{second}/a.json"));
    }
}

#[test]
fn files_are_valid_or_wrong_at_a_place() {
    let scratch = tempfile::tempdir().unwrap();
    let good = write(scratch.path(), "good.yaml", GOOD);
    let bad = write(scratch.path(), "bad.json", &with("0.4.0", "0"));
    let (code, out, err) = call(&["cdi", "validate", &good]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("valid") && out.contains("nvidia.com/gpu") && out.contains("0.5.0"), "{out}");
    let (code, out, _) = call(&["cdi", "validate", &good, &bad]);
    assert_eq!(code, 1);
    let told = format!("{bad}: line 1: /devices/0/name: a device name that begins with a digit: there since 0.5.0");
    assert!(out.contains(&told), "{out}");
    let (code, out, _) = call(&["cdi", "validate", "--format", "json", &good, &bad]);
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 1);
    assert_eq!(document[0]["lowest_version"], "0.5.0");
    assert_eq!(document[0]["needs"][0]["at"], "/devices/0/name");
    assert_eq!((&document[1]["valid"], &document[1]["problems"][0]["at"]), (&json!(false), &json!("/devices/0/name")));
    let large = write(scratch.path(), "large.json", &" ".repeat((1 << 20) + 1));
    assert_eq!(call(&["cdi", "validate", &large]).0, 1);
    assert_eq!(call(&["cdi", "validate", scratch.path().to_str().unwrap()]).0, 2);
}

#[test]
fn a_root_moves_and_the_file_stays_what_it_was() {
    let scratch = tempfile::tempdir().unwrap();
    let file = write(scratch.path(), "a.yaml", GOOD);
    let (code, yaml, err) = call(&["cdi", "transform", "root", "/run/driver", "/", &file]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(yaml.contains("  - hostPath: /lib/libcuda.so.1\n    containerPath: /lib/libcuda.so.1\n"), "{yaml}");
    assert_eq!(fs::read_to_string(&file).unwrap(), GOOD);

    let output = scratch.path().join("b.json").to_str().unwrap().to_owned();
    assert_eq!(
        call(&["cdi", "transform", "root", "/", "/x", &file, "--output", &output]),
        (0, String::new(), String::new())
    );
    let document: Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
    assert_eq!(document["devices"][0]["containerEdits"]["deviceNodes"][0]["hostPath"], "/x/dev/nvidia0");
    assert_eq!(fs::metadata(&output).unwrap().permissions().mode() & 0o7777, 0o644);
    assert_eq!(call(&["cdi", "validate", &output]).0, 0);

    let (_, inside, _) =
        call(&["cdi", "transform", "root", "/lib", "/y", &file, "--relative-to", "container", "--format", "json"]);
    let inside: Value = serde_json::from_str(&inside).unwrap();
    assert_eq!(inside["containerEdits"]["mounts"][0]["containerPath"], "/y/libcuda.so.1");

    let bad = write(scratch.path(), "bad.json", "{}");
    for (words, code, part) in [
        (["/nothing", "/x", &file], 1, "no path of the host in it lies below /nothing"),
        (["/", "/x", &bad], 1, "is no CDI file that can be used: line 1: /cdiVersion: it is missing"),
    ] {
        let (exit, out, err) = call(&[&["cdi", "transform", "root"], &words[..]].concat());
        assert_eq!((exit, out.as_str()), (code, ""), "{err}");
        assert!(err.contains(part), "{err}");
    }
    let (code, _, err) = call(&["cdi", "transform", "root", "/", "/x", &file, "--output", "x.txt"]);
    assert!(code == 2 && err.contains("--output x.txt: a CDI file's name ends with .json or .yaml"), "{err}");
}

/// D42: a file by index, UUID and name, never from a node that is not ready, and readable by everybody.
#[test]
fn a_nodes_own_file_is_written_when_it_is_ready_and_only_when_it_changes() {
    let Some(folder) = node() else { return };
    prepare(&folder.0).unwrap();
    let at = |path: &str| folder.0.join(path).to_str().unwrap().to_owned();
    let (config, output) = (at("etc/config.toml"), at("cdi/quilt-gpu.json"));
    let generate = |more: &[&str]| call(&[&["cdi", "generate", "--config", &config], more].concat());
    let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&output).unwrap());
    assert_eq!(generate(&["--output", &output]), (0, String::new(), String::new()));
    let (first, written) = (inode(), fs::read_to_string(&output).unwrap());
    assert_eq!(fs::metadata(&output).unwrap().permissions().mode() & 0o7777, 0o644);
    assert_eq!(generate(&["--output", &output]).0, 0);
    assert_eq!(generate(&[]), (0, written.clone(), String::new()));
    assert_eq!(inode(), first, "a file that says the same is left alone");
    assert_eq!(names(&listed(&folder.0, &["--dir", &at("cdi")])).len(), 4 * 3 + 1);
    let (_, yaml, _) = generate(&["--format", "yaml"]);
    assert_eq!(read(yaml.as_bytes(), Encoding::Yaml).unwrap(), read(written.as_bytes(), Encoding::Json).unwrap());
    let (code, out, err) = generate(&["--vendor", "nvidia.com", "--class", "gpu", "--compat"]);
    assert!(code == 0 && out.contains("\"nvidia.com/gpu\"") && out.contains("\"0.3.0\""), "{out}");
    assert!(err.contains("--compat: no device is called 0, 1, 2, 3") && err.contains("NVIDIA's toolkit"), "{err}");
    for (more, exit, part) in [
        (&["--capabilities", "graphics"][..], 1, "POLICY"),
        (&["--capabilities", "magic"], 1, "INVALID_GPU_REQUEST"),
        (&["--vendor", "9"], 2, "the vendor \"9\" must begin with a letter"),
    ] {
        let (code, out, err) = generate(more);
        assert_eq!((code, out.as_str()), (exit, ""), "{err}");
        assert!(err.contains(part), "{err}");
    }
    fs::remove_file(folder.0.join("node/dev/nvidiactl")).unwrap();
    let (code, _, err) = generate(&["--output", &output]);
    assert!(code == 3 && err.contains("DRIVER_NOT_READY"), "{err}");
    assert_eq!(fs::read_to_string(&output).unwrap(), written);
}
