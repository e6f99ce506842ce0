//! The edge: links, modes, folders and the record, on a disk. Needs root: the record is believed where only root
//! writes.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use serde_json::Value;

use crate::cli;
use crate::configure::while_it_waits;
use crate::demo::Folder;

/// A node below a folder of its own, with the programs.
struct Place(Folder);

impl Place {
    fn make() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: the record of what was changed is root's");
            return None;
        }
        let place = Self(Folder::make().unwrap());
        for program in ["usr/bin/quilt-gpu-runtime", "usr/bin/quilt-gpu-hook", "usr/sbin/runc"] {
            place.put(program, "#!/bin/true\n");
            fs::set_permissions(place.0.0.join(program), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::create_dir_all(place.0.0.join("etc/quilt-gpu")).unwrap();
        Some(place)
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.0.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn text(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.0.0.join(name)).ok()
    }

    fn call(&self, words: &[&str]) -> (u8, String, String) {
        let root = self.0.0.to_str().unwrap();
        let first = ["configure", "--host-root", root, "--runtime", "/usr/bin/quilt-gpu-runtime"];
        let args: Vec<OsString> = first.iter().chain(words).map(Into::into).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let exit = cli::run(&args, &mut out, &mut err);
        (exit.code(), String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    fn fine(&self, words: &[&str]) -> Value {
        let (code, out, err) = self.call(&[words, &["--format", "json"]].concat());
        assert_eq!((code, err.as_str()), (0, ""), "{words:?}: {out}");
        serde_json::from_str(&out).unwrap()
    }
}

#[test]
fn links_and_modes_stay_and_what_was_made_goes() {
    let Some(place) = Place::make() else { return };
    let text = "{\n  \"debug\": true\n}\n";
    place.put("srv/docker.json", text);
    fs::create_dir_all(place.0.0.join("etc/docker")).unwrap();
    let link = place.0.0.join("etc/docker/daemon.json");
    // An absolute link means a place on the node, wherever that lies.
    symlink("/srv/docker.json", &link).unwrap();
    let real = place.0.0.join("srv/docker.json");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o440)).unwrap();
    nix::unistd::chown(&real, Some(12.into()), Some(34.into())).unwrap();

    let dry = place.fine(&["docker", "--default", "--dry-run"]);
    assert_eq!((place.text("srv/docker.json").as_deref(), &dry["dry_run"]), (Some(text), &Value::Bool(true)));
    assert!(!place.0.0.join("var/lib").exists() && !place.0.0.join("etc/quilt-gpu/low-level-runtime").exists());

    let done = place.fine(&["docker", "--default"]);
    assert_eq!((&done["changed"], &done["files"][0]["action"]), (&true.into(), &"edited".into()));
    assert_eq!(done["files"], dry["files"], "a dry run says what happens");
    assert_eq!(done["restart"], serde_json::json!(["systemctl", "reload", "docker"]));
    assert!(place.text("srv/docker.json").unwrap().contains("\"default-runtime\": \"quilt-gpu\""));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let about = fs::metadata(&real).unwrap();
    assert_eq!((about.mode() & 0o7777, about.uid(), about.gid()), (0o440, 12, 34));
    let low_level = fs::read_link(place.0.0.join("etc/quilt-gpu/low-level-runtime")).unwrap();
    assert_eq!(low_level.to_str(), Some("/usr/sbin/runc"));

    assert_eq!(place.fine(&["docker", "--default"])["changed"], false);
    let undone = place.fine(&["docker", "--undo"]);
    // dockerd keeps a default that its file no longer names, until it is started anew.
    assert_eq!((&undone["changed"], &undone["restart"][1]), (&true.into(), &"restart".into()));
    assert_eq!(place.text("srv/docker.json").as_deref(), Some(text));
    assert_eq!(place.fine(&["docker", "--undo"])["changed"], false, "a second time there is nothing");
    assert!(!place.0.0.join("var/lib/quilt-gpu").exists(), "nothing is left of the record");
}

#[test]
fn folders_that_were_made_go_with_their_files() {
    let Some(place) = Place::make() else { return };
    for (words, made) in [
        (
            &["podman", "--hook", "--default"][..],
            &["etc/containers/containers.conf.d/quilt-gpu.conf", "etc/containers/oci/hooks.d/quilt-gpu.json"][..],
        ),
        (&["crio"], &["etc/crio/crio.conf.d/99-quilt-gpu.conf"]),
    ] {
        place.fine(words);
        assert!(made.iter().all(|name| place.text(name).is_some()), "{words:?}");
        place.fine(&[words[0], "--undo"]);
        let top = made[0].split('/').take(2).collect::<Vec<_>>().join("/");
        assert!(!place.0.0.join(&top).exists(), "{words:?}: {top} is left");
    }
}

#[test]
fn everything_that_was_configured_is_found_again() {
    let Some(place) = Place::make() else { return };
    place.put("srv/daemon.json", "{}");
    place.fine(&["docker", "--engine-config", "/srv/daemon.json"]);
    place.fine(&["crio"]);
    let root = place.0.0.to_str().unwrap();
    let args = ["configure", "--host-root", root, "--undo", "--all", "--format", "json"].map(OsString::from);
    for engines in [&["crio", "docker"][..], &[]] {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        assert_eq!(cli::run(&args, &mut out, &mut err).code(), 0, "{}", String::from_utf8_lossy(&err));
        let done: Vec<Value> = serde_json::from_slice(&out).unwrap();
        let names: Vec<&str> = done.iter().map(|one| one["engine"].as_str().unwrap()).collect();
        assert_eq!(names, engines);
        assert!(done.iter().all(|one| one["changed"] == true));
    }
    assert_eq!(place.text("srv/daemon.json").as_deref(), Some("{}"));
}

#[test]
fn a_second_configure_still_undoes_to_what_was_first_there() {
    let Some(place) = Place::make() else { return };
    let name = "etc/docker/daemon.json";
    place.put(name, "{\n  \"default-runtime\": \"crun\"\n}\n");
    place.fine(&["docker"]);
    place.fine(&["docker", "--default"]);
    // Another tool writes the file anew, as some do.
    let value: Value = serde_json::from_str(&place.text(name).unwrap()).unwrap();
    place.put(name, &value.to_string().replacen('{', "{\"debug\":true,", 1));
    let (code, out, err) = place.call(&["docker", "--undo"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("was changed by others since"), "{out}");
    let left: Value = serde_json::from_str(&place.text(name).unwrap()).unwrap();
    assert_eq!(left, serde_json::json!({"debug": true, "default-runtime": "crun"}));
}

/// Two at once: the second one plans from what the first one left.
#[test]
fn nothing_is_lost_that_another_wrote_while_it_waited() {
    let Some(place) = Place::make() else { return };
    let name = "etc/docker/daemon.json";
    place.put(name, "{}");
    fs::create_dir_all(place.0.0.join("var/lib/quilt-gpu")).unwrap();
    while_it_waits(&place.0.0, || place.fine(&["docker"]), || place.put(name, "{\"debug\": true}"));
    let text = place.text(name).unwrap();
    assert!(text.contains("debug") && text.contains("quilt-gpu-runtime"), "{text}");
    while_it_waits(
        &place.0.0,
        || place.fine(&["docker", "--undo"]),
        || place.put(name, &text.replace("debug", "other")),
    );
    assert_eq!(place.text(name).as_deref(), Some("{\"other\": true}"));
}

#[test]
fn what_is_wrong_leaves_everything_and_says_so() {
    let Some(place) = Place::make() else { return };
    place.put("etc/docker/daemon.json", "{\n  \"a\": 1\n  \"b\": 2\n}\n");
    place.put("etc/containerd/config.toml", "disabled_plugins = ['cri']\n");
    place.put("etc/crio/crio.conf.d/50.conf", "[crio.runtime]\n");
    for (words, status, part) in [
        (&["docker"][..], 2, "/etc/docker/daemon.json:3:3: "),
        (&["docker", "--runtime", "/usr/bin/none"], 2, "/usr/bin/none is not there"),
        (&["docker", "--runtime", "/etc/docker/daemon.json"], 2, "is no program"),
        (&["docker", "--hook"], 2, "docker has no folder of hooks"),
        (&["docker", "--engine-config", "daemon.json"], 2, "takes an absolute path"),
        (&["docker", "--restart"], 2, "--restart is for this machine"),
        (&["docker", "--undo", "--default"], 2, "cannot be used with"),
        (&["containerd"], 1, "the CRI plugin is off"),
        (&["docker", "--undo", "--all"], 2, "cannot be used with"),
        (&[], 2, "<ENGINE>"),
        (&["nomad"], 2, "invalid value 'nomad'"),
    ] {
        // The first `--runtime` is not repeated.
        let root = place.0.0.to_str().unwrap();
        let args: Vec<OsString> = ["configure", "--host-root", root].iter().chain(words).map(Into::into).collect();
        let args = if words.contains(&"--runtime") {
            args
        } else {
            [args, ["--runtime".into(), "/usr/bin/quilt-gpu-runtime".into()].into()].concat()
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = cli::run(&args, &mut out, &mut err).code();
        let err = String::from_utf8(err).unwrap();
        assert!(code == status && err.contains(part), "{words:?}: {code}, {err}");
    }
    assert!(
        !place.0.0.join("var/lib/quilt-gpu").exists() && !place.0.0.join("etc/quilt-gpu/low-level-runtime").exists()
    );
    // An entry of somebody else's hand is not taken out.
    place.put("etc/docker/daemon.json", r#"{"runtimes": {"quilt-gpu": {"path": "/usr/bin/quilt-gpu-runtime"}}}"#);
    let (code, _, err) = place.call(&["docker", "--undo"]);
    assert!(code == 1 && err.contains("take it out by hand"), "{err}");
    // A record that others could write is not believed.
    place.fine(&["crio"]);
    let record = place.0.0.join("var/lib/quilt-gpu/configured/crio.json");
    fs::set_permissions(&record, fs::Permissions::from_mode(0o666)).unwrap();
    let (code, _, err) = place.call(&["crio", "--undo"]);
    assert!(code == 4 && err.contains("crio.json may be written by others"), "{err}");
}

/// The last file of a plan cannot be written: those before it are as they were.
#[test]
fn all_files_or_none() {
    let Some(place) = Place::make() else { return };
    place.put("etc/containers/oci", "a file where a folder should be");
    let (code, _, err) = place.call(&["podman", "--hook"]);
    assert!(code != 0 && err.contains("hooks.d/quilt-gpu.json"), "{err}");
    assert_eq!(place.text("etc/containers/containers.conf.d/quilt-gpu.conf"), None);
}

#[test]
fn the_diff_is_one_that_patch_takes() {
    let Some(place) = Place::make() else { return };
    let text: String = (0..40).map(|n| format!("# {n}\r\n")).collect::<String>() + "version = 2\r\n[grpc]\r\nuid = 0";
    place.put("etc/containerd/config.toml", &text);
    let (_, diff, _) = place.call(&["containerd", "--default", "--dry-run"]);
    place.put("diff", &diff);
    place.put("copy", &text);
    place.fine(&["containerd", "--default"]);
    let mut patch = std::process::Command::new("patch");
    let Ok(ran) = patch.arg("--binary").args(["-s", "copy", "diff"]).current_dir(&place.0.0).output() else {
        println!("skipped: no patch here");
        return;
    };
    assert!(ran.status.success(), "{ran:?}\n{diff}");
    assert_eq!(place.text("copy"), place.text("etc/containerd/config.toml"), "{diff}");
}
