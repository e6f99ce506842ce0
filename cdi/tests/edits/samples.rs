//! The documents that engines really write: docker, containerd, CRI and Podman, with and without GPUs by other means.

use std::path::Path;

use cdi::{Edits, Hook, Mount, Stage, apply, patch};
use contract::json;
use contract::rule::Rule;
use serde_json::Value;

use crate::rfc6902::applied;
use crate::{exact, model};

fn samples() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../integration/samples");
    let mut all: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    assert!(all.len() >= 26, "samples are missing: {all:?}");
    all.into_iter()
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect()
}

/// What a container with one GPU gets.
fn grant(devices: usize) -> Edits {
    let text = str::to_owned;
    Edits {
        env: vec![(text("NVIDIA_VISIBLE_DEVICES"), text("GPU-1")), (text("CUDA_VISIBLE_DEVICES"), text("0"))],
        nodes: vec![exact::node()],
        inserted: vec![(0, Mount::read_only("/sys/fs/cgroup", "/x", false))],
        mounts: vec![
            Mount::library("/usr/lib/libcuda.so.550", "/usr/lib/libcuda.so.1"),
            Mount::library("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"),
        ],
        rules: Some(vec![Rule::DENY_ALL, Rule::open_char(195, 0)]),
        drop_devices: (0..devices).collect(),
        hooks: vec![Hook {
            stage: Stage::CreateRuntime,
            path: text("/usr/bin/quilt-gpu-hook"),
            args: vec![],
            env: vec![],
            timeout: None,
        }],
        gids: vec![27],
        ..Edits::default()
    }
}

#[test]
fn a_grant_in_every_sample() {
    for (name, bytes) in samples() {
        let spec = json::parse_oci(&bytes).unwrap();
        let value: Value = serde_json::from_slice(&bytes).unwrap();
        let edits = grant(spec.path(&["linux", "devices"]).map_or(0, |devices| devices.items().len()));
        let edited = apply(&bytes, &spec, &edits).unwrap();
        let result: Value = serde_json::from_slice(&edited).unwrap();
        assert_eq!(result, model::edited(value.clone(), &edits), "{name}");
        assert_eq!(result, applied(value, &patch(&spec, &edits).unwrap()), "{name}");

        let spec = json::parse_oci(&edited).unwrap();
        let again = Edits { drop_devices: vec![], ..edits };
        assert_eq!(apply(&edited, &spec, &again).unwrap(), edited, "{name}: twice is once");
        let names = result["process"]["env"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|item| item.as_str().unwrap().starts_with("NVIDIA_VISIBLE_DEVICES="));
        assert_eq!(names.count(), 1, "{name}");
    }
}

#[test]
fn no_edit_gives_the_same_bytes_in_every_sample() {
    for (name, bytes) in samples() {
        let spec = json::parse_oci(&bytes).unwrap();
        assert_eq!(apply(&bytes, &spec, &Edits::default()).unwrap(), bytes, "{name}");
        assert!(patch(&spec, &Edits::default()).unwrap().is_empty(), "{name}");
    }
}

/// An image that brings the variable twice: one copy stays in place of the first, the rest of the document as it was.
#[test]
fn one_variable_changes_nothing_else() {
    let (_, bytes) = samples().into_iter().find(|(name, _)| name == "cri16-container-config.json").unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let edits = Edits { env: vec![("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned())], ..Edits::default() };
    let edited = apply(text.as_bytes(), &json::parse_oci(text.as_bytes()).unwrap(), &edits).unwrap();
    let expected = text
        .replace("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void")
        .replace(",\"NVIDIA_VISIBLE_DEVICES=0\"", "");
    assert_eq!(String::from_utf8(edited).unwrap(), expected);
}
