//! What a node's agent reads and asks, on a made-up node: inventories in every form, and CUDA.

use std::os::unix::fs::symlink;

use super::*;

/// Hands the GPU at this address to vfio-pci, with a sound function beside it in its group.
fn bind_to_vfio(node: &Node, pci: &str) {
    fs::remove_dir_all(node.path(&format!("node/proc/driver/nvidia/gpus/{pci}"))).unwrap();
    let device = node.path(&format!("node/sys/bus/pci/devices/{pci}"));
    fs::remove_file(format!("{device}/driver")).unwrap();
    let sound = device.replace(":00.0", ":00.1");
    fs::create_dir_all(&sound).unwrap();
    for (name, text) in [("vendor", "0x10de\n"), ("device", "0x1aef\n"), ("class", "0x040300\n")] {
        fs::write(format!("{sound}/{name}"), text).unwrap();
    }
    for folder in [&device, &sound] {
        symlink("../../drivers/vfio-pci", format!("{folder}/driver")).unwrap();
        symlink("../../../../kernel/iommu_groups/7", format!("{folder}/iommu_group")).unwrap();
    }
}

#[test]
fn an_agent_has_a_row_for_each_gpu_and_knows_which_is_free() {
    let Some(node) = Node::make() else { return };
    node.json(&["inventory", "refresh"]);
    node.json(&["lease", "acquire", "--holder", "vm:secret", "--ids", "nvidia1"]);
    let document = node.json(&["inventory"]);
    assert_eq!(document["gpus"].as_array().unwrap().len(), 4, "what was there before is there still");
    let rows = document["gpu_inventory"].as_array().unwrap();
    let leased: Vec<_> = rows.iter().filter(|row| row["lease"] == "leased").map(|row| row["id"].clone()).collect();
    assert_eq!((rows.len(), leased), (4, vec![json!("nvidia1")]));
    let row = &rows[0];
    let told = ["pci", "device_id", "kind", "kernel_driver", "mode", "health"].map(|key| row[key].as_str().unwrap());
    assert_eq!(told, ["0000:11:00.0", "0x20b0", "a100", "nvidia", "whole", "ok"]);

    let (code, text, _) = node.call(&["inventory", "--format", "prometheus"]);
    let leased = text.lines().filter(|line| line.starts_with("quilt_gpu_leased") && line.ends_with(" 1")).count();
    assert_eq!((code, leased), (0, 1), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn what_was_known_before_vfio_is_kept_and_lists_are_compared() {
    let Some(node) = Node::make() else { return };
    node.json(&["inventory", "refresh"]);
    let (code, none, _) = node.call(&["inventory", "--format", "vfio-inventory"]);
    assert_eq!((code, none.as_str()), (0, ""));
    bind_to_vfio(&node, "0000:21:00.0");
    let line = "1 a100 0000:21:00.0 0000:21:00.1 | bus_id=0000:21:00.0;uuid=GPU-5d1f0c02-11aa-4b6c-9d3e-0a1b2c3d4e5f;model=NVIDIA A100-SXM4-40GB\n";
    // Before it is stored, after, and when what is stored is what was kept.
    for refresh in [false, true, true] {
        if refresh {
            node.json(&["inventory", "refresh"]);
        }
        assert_eq!(node.call(&["inventory", "--format", "vfio-inventory"]).1, line, "{refresh}");
    }
    assert_eq!(node.json(&["inventory"])["gpu_inventory"][1]["mode"], "vfio");

    let file = node.path("list");
    for (list, code, told) in [
        (line, 0, ""),
        ("# nothing is known\n1 A100 21:00.0 21:00.1\n", 0, ""),
        ("2 a100 21:00.0 31:00.0\n", 1, "- 2 a100 0000:21:00.0 0000:31:00.0\n+ 1 a100 0000:21:00.0 0000:21:00.1\n"),
        ("", 1, "+ 1 a100 0000:21:00.0 0000:21:00.1\n"),
        ("1g.5gb a100 MIG-1 GPU-1\n", 1, "- 1g.5gb a100 MIG-1\n"),
    ] {
        fs::write(&file, list).unwrap();
        let (status, out, err) = node.call(&["inventory", "diff", &file]);
        assert_eq!((status, out.as_str()), (code, told), "{list}: {err}");
    }
    fs::write(&file, "1 a100\n").unwrap();
    let (status, _, err) = node.call(&["inventory", "diff", &file]);
    assert!(status == 2 && err.contains("line 1: 1 GPUs are counted"), "{err}");
    assert_eq!(node.call(&["inventory", "--format", "mig-inventory"]), (0, String::new(), String::new()));
}

#[test]
fn an_image_is_held_against_the_node() {
    let Some(node) = Node::make() else { return };
    let file = node.path("env");
    // Driver 550.54.15 on A100.
    for (environment, code, verdict) in [
        ("PATH=/bin\n", 0, "supported"),
        ("CUDA_VERSION=12.4.1\nA=b", 0, "supported"),
        ("CUDA_VERSION=12.8.0\n", 0, "minor-version"),
        ("CUDA_VERSION=13.0.0\n", 0, "forward-compatibility"),
        ("NVIDIA_REQUIRE_CUDA=cuda<12\n", 1, "unmet"),
        ("NVIDIA_REQUIRE_CUDA=cuda<12\nNVIDIA_DISABLE_REQUIRE=1\n", 0, "unmet"),
    ] {
        fs::write(&file, environment).unwrap();
        let (status, out, err) = node.call(&["cuda", "check", "--image-env", &file, "--format", "json"]);
        let document: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((status, &document["verdict"]), (code, &json!(verdict)), "{environment}: {out}{err}");
        assert_eq!((&document["driver"], &document["cuda"]), (&json!("550.54.15"), &json!("12.4")), "{out}");
    }
    fs::write(node.path("config.json"), r#"{"process":{"env":["CUDA_VERSION=12.8.0"]}}"#).unwrap();
    let (code, out, _) = node.call(&["cuda", "check", &node.path("config.json")]);
    assert!(code == 0 && out.starts_with("minor version compatibility"), "{out}");
    fs::write(node.path("config.json"), "{}").unwrap();
    let (code, _, err) = node.call(&["cuda", "check", &node.path("config.json")]);
    assert!(code == 2 && err.contains("it has no process"), "{err}");
    fs::remove_file(node.path("node/proc/driver/nvidia/version")).unwrap();
    let (code, _, err) = node.call(&["cuda", "check", "--image-env", &file]);
    assert!(code == 3 && err.contains("DRIVER_NOT_READY"), "{err}");
}

/// The same judgement, where a container would be made.
#[test]
fn the_policy_refuses_notes_or_does_not_look() {
    let Some(node) = Node::make() else { return };
    node.json(&["inventory", "refresh"]);
    fs::create_dir_all(node.path("bundle/rootfs")).unwrap();
    let config = fs::read_to_string(node.path("etc/config.toml")).unwrap();
    let spec = |env: &[&str]| {
        json!({"ociVersion": "1.0.2", "process": {"args": ["true"], "cwd": "/", "env": env}, "root": {"path": "rootfs"},
               "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}], "resources": {"devices": [{"allow": false, "access": "rwm"}]}}})
    };
    let old = "NVIDIA_REQUIRE_CUDA=cuda<12";
    for (policy, env, code, rule) in [
        ("", &["QUILT_GPU_COUNT=1", old][..], 0, "cuda-requirement"),
        ("cuda = \"warn\"", &["QUILT_GPU_COUNT=1", old], 0, "cuda-requirement"),
        ("cuda = \"off\"", &["QUILT_GPU_COUNT=1", old], 0, ""),
        ("cuda = \"refuse\"", &["QUILT_GPU_COUNT=1", old], 1, "cuda-requirement"),
        ("cuda = \"refuse\"", &["QUILT_GPU_COUNT=1", old, "NVIDIA_DISABLE_REQUIRE=1"], 0, "cuda-requirement"),
        ("cuda = \"refuse\"", &["QUILT_GPU_COUNT=1"], 0, ""),
        ("cuda = \"refuse\"", &[old], 0, ""),
        ("", &["QUILT_GPU_COUNT=1", "QUILT_GPU_CAPABILITIES=utility", old], 0, "cuda-without-compute"),
    ] {
        fs::write(node.path("etc/config.toml"), format!("{config}\n[policy]\n{policy}\n")).unwrap();
        fs::write(node.path("bundle/config.json"), spec(env).to_string()).unwrap();
        let (status, out, err) = node.call(&["check", &node.path("bundle"), "--format", "json"]);
        let verdict: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{policy} {env:?}: {out}{err}"));
        assert_eq!(status, code, "{policy} {env:?}: {verdict}");
        let place = if code == 0 { "notes" } else { "refusals" };
        let rules = verdict[place].as_array().unwrap().iter().map(|one| one["rule"].as_str().unwrap());
        let rules: Vec<&str> = rules.filter(|rule| rule.starts_with("cuda")).collect();
        assert_eq!(rules.first().copied().unwrap_or_default(), rule, "{policy} {env:?}: {verdict}");
    }
}

#[test]
fn a_reservation_says_why_when_it_is_asked_and_whose_it_is() {
    let Some(node) = Node::make() else { return };
    let file = node.path("request.json");
    fs::write(&file, json!({"gpu_count": 2}).to_string()).unwrap();
    let answer = |more: &[&str]| -> Value {
        let (code, out, err) = node.call(&[&["contract", "prepare", "--request", &file], more].concat());
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        serde_json::from_str(&out).unwrap()
    };
    assert_eq!(answer(&[]).get("why"), None);
    let (code, _, err) = node.call(&["contract", "prepare", "--request", &file, "--owner", "a b"]);
    assert!(code == 2 && err.contains("write letters"), "{err}");
    let asked = answer(&["--explain", "--owner", "namespace:red"]);
    let (_, log, _) = node.call(&["audit", "--last", "0", "--format", "json"]);
    assert!(log.contains("\"owner\": \"namespace:red\""), "{log}");
    let why = asked["why"].as_array().unwrap();
    assert!(!why.is_empty() && asked["contract"]["gpus"].as_array().unwrap().len() == 2, "{asked}");
}
