//! Specs that real engines wrote (`integration/samples`): all are accepted as they are, each road to a GPU added to them is not.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::fs;

use common::{By, Fake, crun, gpu, judge_text, verdict};
use contract::json;

/// Name and text of each sample, those with an engine's own GPU option or without.
fn samples(with_gpus: bool) -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../integration/samples");
    let mut found: Vec<(String, String)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.to_string_lossy().contains("-cdi-"))
        .filter(|path| path.to_string_lossy().contains("-gpus-") == with_gpus)
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), fs::read_to_string(&path).unwrap()))
        .collect();
    found.sort();
    assert!(found.len() >= 3, "{folder} lacks samples");
    found
}

/// Puts one more item into a list of the spec, which is made when it is not there.
fn add(text: &str, path: &[&str], item: &str) -> String {
    let spec = json::parse_oci(text.as_bytes()).unwrap();
    let (position, insert) = match spec.path(path) {
        Some(list) => (list.span.end - 1, format!("{}{item}", if list.items().is_empty() { "" } else { "," })),
        None => {
            let (last, above) = path.split_last().unwrap();
            match spec.path(above) {
                Some(object) => (
                    object.span.end - 1,
                    format!("{}\"{last}\":[{item}]", if object.members().is_empty() { "" } else { "," }),
                ),
                None => return add_object(text, above, last, item),
            }
        }
    };
    format!("{}{insert}{}", &text[..position], &text[position..])
}

fn add_object(text: &str, path: &[&str], key: &str, item: &str) -> String {
    let spec = json::parse_oci(text.as_bytes()).unwrap();
    let (last, above) = path.split_last().unwrap();
    let position = spec.path(above).unwrap().span.end - 1;
    format!("{},\"{last}\":{{\"{key}\":[{item}]}}{}", &text[..position], &text[position..])
}

#[test]
fn accepted_as_they_are() {
    for (name, text) in samples(false) {
        for by in [By::default(), gpu(), crun(), By { gpu: true, ..crun() }] {
            let fake = Fake::default();
            let judgement = judge_text(&text, &by, &fake);
            assert_eq!(verdict(&judgement), "ok", "{name}");
            assert!(judgement.changes.drop_devices.is_empty(), "{name}");
            let open = by.low_level != guard::LowLevel::Runc && name.contains("rootless");
            assert_eq!(judgement.changes.rules.is_some(), open && !by.gpu, "{name}");
            assert_eq!(
                judgement.changes.void_visible_devices,
                !by.gpu && text.contains("NVIDIA_VISIBLE_DEVICES="),
                "{name}"
            );
            assert_eq!(
                (fake.count("majors"), fake.count("tree"), fake.count("vendor")),
                (0, 0, 0),
                "{name}: nothing to ask the machine"
            );
        }
    }
}

/// With the one hook of Docker's that the operator names, and where the engine vouches for the pod.
#[test]
fn accepted_by_policy_hardened() {
    for (name, text) in samples(false) {
        let mut fake = Fake::default();
        fake.links.extend(["9583", "25653"].map(|pid| (format!("/proc/{pid}/exe"), "/usr/bin/dockerd".to_owned())));
        let mut by = By { workload: name.starts_with("cri").then_some(("ns1", "c1")), ..common::hardened() };
        by.policy.allow_hooks = ["/usr/bin/dockerd", "/bin/true"].map(str::to_owned).to_vec();
        let judgement = judge_text(&text, &by, &fake);
        // Kubelet names what stays read-only of /proc; the tool that these were asked for with did not.
        let ok = if text.contains("readonlyPaths") { "ok" } else { "UNSAFE_SPEC mount-procfs-rw" };
        assert_eq!(verdict(&judgement), ok, "{name}");
        let makes_nodes = text.contains("CAP_MKNOD");
        assert_eq!(!judgement.changes.drop_capabilities.is_empty(), makes_nodes, "{name}");
    }
}

#[test]
fn rootless_containers_start_unchanged() {
    let fake = Fake { first_namespace: false, ..Fake::default() };
    for (name, text) in samples(false).into_iter().filter(|(name, _)| name.contains("rootless")) {
        let judgement = judge_text(&text, &crun(), &fake);
        assert_eq!((verdict(&judgement).as_str(), &judgement.changes.rules), ("ok", &None), "{name}");
    }
}

#[test]
fn each_road_to_a_gpu_is_refused() {
    let roads: [(&[&str], &str, &str); 9] = [
        (
            &["mounts"],
            r#"{"destination":"/x","type":"bind","source":"/dev/nvidia0","options":["rbind"]}"#,
            "TENANT_GPU_MOUNT",
        ),
        (
            &["mounts"],
            r#"{"destination":"/x","type":"tmpfs","source":"/home/user/link","options":["bind"]}"#,
            "TENANT_GPU_MOUNT",
        ),
        (&["mounts"], r#"{"destination":"/x","type":"devtmpfs","source":"devtmpfs"}"#, "TENANT_GPU_MOUNT"),
        (&["linux", "devices"], r#"{"path":"/dev/tty9","type":"c","major":195,"minor":0}"#, "TENANT_GPU_DEVICE"),
        (
            &["linux", "resources", "devices"],
            r#"{"allow":true,"type":"c","major":195,"access":"rw"}"#,
            "TENANT_GPU_RULE",
        ),
        (&["linux", "resources", "devices"], r#"{"allow":true,"type":"c","access":"r"}"#, "TENANT_GPU_RULE"),
        (&["hooks", "prestart"], r#"{"path":"/usr/bin/nvidia-container-runtime-hook"}"#, "FOREIGN_GPU_INJECTION"),
        (&["linux", "namespaces"], r#"{"type":"mount","path":"/proc/1/ns/mnt"}"#, "UNSAFE_SPEC"),
        (
            &["mounts"],
            r#"{"destination":"/x","type":"bind","source":"/run/quilt-gpu","options":["rbind"]}"#,
            "UNSAFE_SPEC",
        ),
    ];
    for (name, text) in samples(false) {
        for (path, item, code) in roads {
            let more = add(&text, path, item);
            for by in [By::default(), gpu()] {
                let judgement = judge_text(&more, &by, &Fake::default());
                let found: Vec<&str> = judgement.refusals.iter().map(|refusal| refusal.code.name()).collect();
                assert_eq!(found, [code], "{name} with {item}");
            }
        }
    }
}

#[test]
fn engines_own_gpu_options_are_foreign() {
    for (name, text) in samples(true) {
        for by in [By::default(), gpu()] {
            let judgement = judge_text(&text, &by, &Fake::default());
            assert_eq!(verdict(&judgement), "FOREIGN_GPU_INJECTION hook-foreign", "{name}");
        }
    }
}
