//! A dry run tells everything that is wrong at once, each so that it can be acted on.

use contract::Code;

use super::*;

/// Eleven kinds of problems, from the request to the command's working folder.
const EVERYTHING: &str = r#"{
  "ociVersion": "1.0.2",
  "process": {"args": ["sh"], "cwd": "/proc/self/fd/7", "env": ["QUILT_GPU_COUNT=0"]},
  "root": {"path": "rootfs"},
  "hooks": {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]},
  "annotations": {"org.systemd.property.DeviceAllow": "x"},
  "mounts": [
    {"destination": "/a", "type": "bind", "source": "/dev/nvidia77", "options": ["rbind"]},
    {"destination": "/b", "type": "bind", "source": "/proc/self/root/etc", "options": ["rbind"]},
    {"destination": "/c", "type": "bind", "source": "/dev", "options": ["rbind"]},
    {"destination": "/d", "type": "devtmpfs", "source": "devtmpfs"}
  ],
  "linux": {
    "cgroupsPath": "/a/../b",
    "namespaces": [{"type": "cgroup", "path": "/proc/1/ns/cgroup"}],
    "devices": [
      {"path": "/dev/x", "type": "c", "major": 195, "minor": 0},
      {"path": "relative", "type": "c", "major": 1, "minor": 3}
    ],
    "resources": {
      "devices": [{"allow": true, "type": "c", "access": "rw"}, {"allow": true, "type": "c", "major": 1.5, "access": "r"}],
      "unified": {"cgroup.procs": "1"}
    }
  }
}"#;

#[test]
fn all_problems_at_once() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("host/proc")).unwrap();
    std::fs::write(folder.path().join("host/proc/devices"), "Character devices:\n195 nvidia\n").unwrap();
    let mut setup = Setup::read(&folder.path().join("etc/config.toml"));
    (setup.config, setup.problem) = (contract::config::Config::default(), None);
    let text = |name: &str| folder.path().join(name).display().to_string();
    (setup.config.paths.state_dir, setup.config.paths.log_dir) = (text("state"), text("log"));
    setup.config.host.root = text("host");
    let spec = folder.path().join("config.json");
    std::fs::write(&spec, EVERYTHING).unwrap();
    let verdict = check(&spec, &setup, || unreachable!("what is refused needs no inventory")).unwrap();
    let mut rules: Vec<&str> = Vec::new();
    for refusal in verdict.refusals.iter().map(Refusal::to_json) {
        for key in ["code", "rule", "message", "help"] {
            assert!(refusal[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {refusal}");
        }
        let (at, value) = (refusal["at"].as_str().unwrap(), refusal["value"].as_str().unwrap());
        let document: serde_json::Value = serde_json::from_str(EVERYTHING).unwrap();
        let there = document.pointer(at).unwrap_or_else(|| panic!("nothing is at {at}: {refusal}"));
        // A value that is a word stands in the document as it is told; of a map it may be the key.
        assert!(there.as_str().is_none_or(|there| there == value || at.ends_with(value)), "{refusal}");
    }
    rules.extend(verdict.refusals.iter().map(|refusal| refusal.rule));
    rules.sort_unstable();
    rules.dedup();
    assert_eq!(
        rules,
        [
            "annotation-low-level",
            "cgroup-path",
            "cgroup-rule-shape",
            "cgroup-unified",
            "cgroup-wildcard",
            "device-gpu",
            "device-path",
            "hook-foreign",
            "mount-dev-tree",
            "mount-fstype",
            "mount-gpu-node",
            "mount-unresolvable",
            "ns-hostmnt",
            "ns-path",
            "process-cwd",
            "request-count",
        ]
    );
    assert!(verdict.grant.is_none() && verdict.patch.is_empty());
}

#[test]
fn what_create_refuses_of_a_bundle_is_told_before() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let text = |name: &str| folder.path().join(name).display().to_string();
    let mut setup = Setup::read(&folder.path().join("etc/config.toml"));
    (setup.config.paths.state_dir, setup.config.paths.log_dir) = (text("state"), text("log"));
    let spec = |path: &str| {
        format!(
            r#"{{"process":{{"env":["QUILT_GPU_COUNT=1"]}},"linux":{{"namespaces":[{{"type":"mount"}},{{"type":"pid"{path}}}]}}}}"#
        )
    };
    let rules = |mode: u32, path: &str| {
        std::fs::write(folder.path().join("config.json"), spec(path)).unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        let nothing = || Err(Refusal::internal("inventory", &"no node"));
        let verdict = check(folder.path(), &setup, nothing).unwrap();
        verdict.refusals.iter().map(|refusal| refusal.rule).collect::<Vec<_>>()
    };
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED what_create_refuses_of_a_bundle_is_told_before: it needs root");
        return;
    }
    assert!(!rules(0o755, "").iter().any(|rule| ["bundle", "ns-path"].contains(rule)));
    assert!(rules(0o777, "").contains(&"bundle"));
    let mut other = std::process::Command::new("unshare").args(["--pid", "--fork", "sleep", "60"]).spawn().unwrap();
    let theirs = format!("/proc/{}/ns/pid_for_children", other.id());
    let ours = std::fs::read_link("/proc/self/ns/pid").unwrap();
    // The program needs a moment to be in a namespace of its own.
    while std::fs::read_link(&theirs).map_or(true, |theirs| theirs == ours) {
        std::thread::yield_now();
    }
    let found = rules(0o755, &format!(r#","path":"{theirs}""#));
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(found.contains(&"ns-path"), "{found:?}");
}

/// A spec with devices of our CDI file is judged by the node as the caller sees it: nothing is made anew for a dry run.
#[test]
fn a_dry_run_refreshes_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let text = |name: &str| folder.path().join(name).display().to_string();
    let mut setup = Setup::read(&folder.path().join("etc/config.toml"));
    (setup.config.paths.state_dir, setup.config.paths.log_dir) = (text("state"), text("log"));
    setup.config.paths.helper = text("helper");
    std::fs::write(text("helper"), format!("#!/bin/sh\ntouch {}\n", text("refreshed"))).unwrap();
    std::fs::set_permissions(text("helper"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let control = r#"{"path":"/dev/nvidiactl","type":"c","major":195,"minor":255}"#;
    let spec = format!(r#"{{"process":{{"env":["QUILT_GPU_CDI=compute"]}},"linux":{{"devices":[{control}]}}}}"#);
    std::fs::write(text("config.json"), &spec).unwrap();
    let seen = || Err(Refusal::new(Code::DriverNotReady, "facts", "as it is seen", "look again"));
    let verdict = check(Path::new(&text("config.json")), &setup, seen).unwrap();
    assert!(verdict.refusals.iter().any(|refusal| refusal.message == "as it is seen"), "{:?}", verdict.refusals);
    assert!(!folder.path().join("refreshed").exists());
    // What create does with the same spec, so that there was something to miss.
    let _ = Judged::new(spec.as_bytes()).spec(&setup).unwrap();
    assert!(folder.path().join("refreshed").exists());
}
