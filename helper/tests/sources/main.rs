//! The whole way from a library with NVML's interface, or a program that prints `nvidia-smi`'s XML, to the inventory.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a fixture that cannot be laid out is a failed test

mod node;
mod usage;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fake_nvml::{Live, Mig, Remapped};
use node::{LIBRARIES, Node, findings, states, topology};
use serde_json::{Value, json};

#[test]
fn one_gpu_in_full() {
    let Some(node) = Node::of(&topology("l4")) else { return };
    let inventory = node.refreshed();
    let gpu = &inventory["gpus"][0];
    assert_eq!(findings(&inventory), []);
    let told = ["memory_mb", "compute_capability", "virtualization", "mig", "uuid", "minor", "model", "index"];
    let told: Vec<&Value> = told.iter().map(|datum| &gpu[datum]).collect();
    let uuid = json!(topology("l4").gpus[0].uuid);
    assert_eq!(json!(told), json!([23034, "8.9", "none", null, uuid, 0, "NVIDIA L4", 0]));
    assert!(gpu["sources"].as_array().unwrap().contains(&json!(["memory_mb", "nvml"])), "{gpu}");
    assert_eq!(inventory["cuda_version"], "12.4");
    // What is known stays when nothing changed: the second time there is nothing to tell.
    assert!(node.quilt_gpu(&["inventory", "refresh"]).1.starts_with("nothing changed"));
}

/// For who looks: what a GPU does changes nothing that is stored, and what is not told is not there.
#[test]
fn what_a_gpu_does_now_is_shown_and_not_stored() {
    let mut topology = topology("rtx4090");
    topology.gpus[0].live = Some(Live { utilization: 37, memory_used_mb: 1024, temperature: 61, power: 250_125 });
    topology.gpus[1].live = topology.gpus[0].live;
    topology.gpus[1].fail = [("nvmlDeviceGetPowerUsage".to_owned(), 3)].into();
    let Some(node) = Node::of(&topology) else { return };
    let stored = node.refreshed();
    let metrics = || -> Vec<Value> {
        let (status, text) = node.quilt_gpu(&["--format", "json", "inventory"]);
        assert_eq!(status, 0, "{text}");
        let document: Value = serde_json::from_str(&text).unwrap();
        document["gpu_inventory"].as_array().unwrap().iter().map(|gpu| gpu["metrics"].clone()).collect()
    };
    let whole = json!({"utilization_percent": 37, "memory_used_mb": 1024, "temperature_c": 61, "power_mw": 250_125});
    let without_power = json!({"utilization_percent": 37, "memory_used_mb": 1024, "temperature_c": 61});
    assert_eq!(metrics()[..3], [whole, without_power, json!({"memory_used_mb": 0})]);
    let (_, text) = node.quilt_gpu(&["--format", "prometheus", "inventory"]);
    let pci = &topology.gpus[0].pci;
    for line in [
        format!("quilt_gpu_temperature_celsius{{pci=\"{pci}\"}} 61"),
        format!("quilt_gpu_memory_used_bytes{{pci=\"{pci}\"}} 1073741824"),
        format!("quilt_gpu_power_milliwatts{{pci=\"{pci}\"}} 250125"),
    ] {
        assert!(text.lines().any(|it| it == line), "{line}: {text}");
    }
    assert_eq!(text.matches("quilt_gpu_power_milliwatts{").count(), 1, "{text}");
    topology.gpus[0].live = None;
    node.tell(&topology);
    assert_eq!(metrics()[0], json!({"memory_used_mb": 0}));
    assert!(node.quilt_gpu(&["inventory", "refresh"]).1.starts_with("nothing changed"));
    assert!(!stored.to_string().contains("utilization"));
}

#[test]
fn links_of_switches_cards_and_bridges() {
    for (name, expected) in [
        ("h100", vec![("nvlink", 18); 28]),
        ("gb200", vec![("nvlink", 18); 6]),
        ("rtx4090", vec![("phb", 0), ("node", 0), ("node", 0), ("node", 0), ("node", 0), ("pxb", 0)]),
    ] {
        let Some(node) = Node::of(&topology(name)) else { return };
        let inventory = node.refreshed();
        let links = inventory["links"].as_array().unwrap().iter();
        let links: Vec<_> = links.map(|link| (link["kind"].clone(), link["lanes"].clone())).collect();
        let expected: Vec<_> = expected.into_iter().map(|(kind, lanes)| (json!(kind), json!(lanes))).collect();
        assert_eq!(links, expected, "{name}");
        assert!(states(&inventory).iter().all(|state| state.is_empty()), "{name}");
    }
}

#[test]
fn bridges_between_two_cards_are_counted() {
    let mut pair = topology("rtx4090");
    let (a, b) = (pair.gpus[0].pci.clone(), pair.gpus[2].pci.clone());
    pair.gpus[0].nvlinks = [&b, &b].map(|pci| fake_nvml::NvLink::Gpu(pci.clone())).to_vec();
    pair.gpus[2].nvlinks = [&a, &a].map(|pci| fake_nvml::NvLink::Gpu(pci.clone())).to_vec();
    pair.gpus[2].nvlinks.insert(0, fake_nvml::NvLink::Down);
    let Some(node) = Node::of(&pair) else { return };
    let links = node.refreshed()["links"].take();
    let bridged: Vec<_> = links.as_array().unwrap().iter().filter(|link| link["kind"] == "nvlink").collect();
    assert_eq!(json!(bridged), json!([{ "a": a, "b": b, "kind": "nvlink", "lanes": 2 }]));
}

#[test]
fn a_virtual_gpu_says_so() {
    let Some(node) = Node::of(&topology("vgpu")) else { return };
    assert_eq!(node.refreshed()["gpus"][0]["virtualization"], "vgpu");
}

#[test]
fn mig_mode_with_and_without_instances() {
    let Some(node) = Node::of(&topology("a100-mig")) else { return };
    let inventory = node.refreshed();
    let modes: Vec<_> = inventory["gpus"].as_array().unwrap().iter().map(|gpu| gpu["mig"]["enabled"].clone()).collect();
    assert_eq!(json!(modes), json!([false, false, true, true, true, true, false, true]));
    assert_eq!(states(&inventory)[5], "mig-empty");
    assert_eq!(states(&inventory).iter().filter(|state| **state == "mig-empty").count(), 1);
}

/// What the inventory makes parts of: ids, names, UUIDs, of slots that are not all taken.
#[test]
fn mig_devices_are_told_with_their_ids_and_profiles() {
    let topology = topology("a100-mig");
    let Some(node) = Node::of(&topology) else { return };
    let library = node.root().join(format!("{LIBRARIES}/libnvidia-ml.so.{}", topology.driver_version));
    let told = told_by(&library, &judged(&library), topology.gpus.iter().map(|gpu| &gpu.pci));
    let instances = |gpu: usize| -> Vec<Value> {
        let all = told["told"]["gpus"][gpu]["instances"].as_array().unwrap().iter();
        all.map(|it| json!([it["index"], it["gi"], it["ci"], it["profile"], it["memory_mb"]])).collect()
    };
    assert_eq!(instances(2).len(), 7);
    assert_eq!(
        instances(3),
        [
            json!([0, 1, 0, "3g.20gb", 19968]),
            json!([2, 2, 0, "2c.4g.20gb", 20096]),
            json!([3, 2, 1, "2c.4g.20gb", 20096])
        ]
    );
    assert_eq!(instances(4), [json!([0, 0, 0, "7g.40gb", 40320])]);
    assert_eq!(instances(7), [json!([0, 9, 0, "1g.5gb+me", 4864]), json!([1, 3, 0, "2g.10gb", 9856])]);
    let uuid = &topology.gpus[7].instances[1].as_ref().unwrap().uuid;
    assert_eq!(told["told"]["gpus"][7]["instances"][1]["uuid"], json!(uuid));
    assert_eq!(instances(0), [] as [Value; 0]);
}

/// What a file is, in the form in which one of our processes tells another.
fn judged(file: &Path) -> String {
    let it = fs::metadata(file).unwrap();
    format!("{}:{}:{}:{}:{}", it.dev(), it.ino(), it.size(), it.ctime(), it.ctime_nsec())
}

fn told_by<'a>(library: &Path, judged: &str, gpus: impl Iterator<Item = &'a String>) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quilt-gpu"));
    command.env_clear().args(["source", "nvml"]).arg(library).arg(judged).args(gpus);
    serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
}

#[test]
fn a_library_that_was_exchanged_since_is_not_loaded() {
    let topology = topology("l4");
    let Some(node) = Node::of(&topology) else { return };
    let library = node.root().join(format!("{LIBRARIES}/libnvidia-ml.so.{}", topology.driver_version));
    let judged = judged(&library);
    assert_eq!(told_by(&library, &judged, [].iter())["told"]["source"], "nvml");
    fs::copy(&library, node.root().join("other")).unwrap();
    fs::rename(node.root().join("other"), &library).unwrap();
    let told = told_by(&library, &judged, [].iter());
    assert!(told["silence"]["why"].as_str().unwrap().contains("is another file than a moment ago"), "{told}");
}

/// The library and the program of somebody else's folder would run as root, with every refresh.
#[test]
fn nothing_of_a_folder_that_others_can_write_is_run() {
    let topology = topology("l4");
    let Some(node) = Node::of(&topology) else { return };
    let Some(()) = prints_a_file(&node, "") else { return };
    chown(node.root().join(LIBRARIES), Some(65534), None).unwrap();
    let inventory = node.refreshed();
    assert_eq!((&inventory["gpus"][0]["memory_mb"], findings(&inventory)), (&Value::Null, vec![]));
    let all = inventory["findings"].as_array().unwrap();
    let untrusted: Vec<_> = all.iter().filter(|finding| finding["code"] == "file-untrusted").collect();
    let named = untrusted[0]["message"].as_str().unwrap();
    let folder = format!("{} belongs to user 65534", node.root().join(LIBRARIES).display());
    assert!(untrusted.len() == 1 && named.starts_with(&folder), "{inventory}");

    // The library in order, and the program not.
    chown(node.root().join(LIBRARIES), Some(0), None).unwrap();
    node.put(&format!("{LIBRARIES}/{}", fake_nvml::BESIDE), b"{");
    assert!(findings(&node.refreshed()).iter().any(|(_, message)| message.starts_with("nvidia-smi tells nothing")));
    chown(node.root().join("usr/bin"), Some(65534), None).unwrap();
    assert!(!findings(&node.refreshed()).iter().any(|(_, message)| message.starts_with("nvidia-smi tells nothing")));
}

#[test]
fn a_lost_gpu_and_failing_ones_leave_the_others_usable() {
    let Some(node) = Node::of(&topology("lost")) else { return };
    assert_eq!(states(&node.refreshed()), ["", "lost"]);

    type Change = fn(&mut fake_nvml::Gpu);
    let table: [(Change, &str, &str); 9] = [
        (|gpu| gpu.fail = [("nvmlDeviceGetHandleByPciBusId_v2".to_owned(), 15)].into(), "lost", "fell off the bus"),
        (|gpu| gpu.fail = [("nvmlDeviceGetMemoryInfo_v2".to_owned(), 15)].into(), "lost", "fell off the bus"),
        (
            |gpu| gpu.fail = [("nvmlDeviceGetHandleByPciBusId_v2".to_owned(), 999)].into(),
            "failing",
            "NVML cannot open it",
        ),
        (
            |gpu| gpu.fail = [("nvmlDeviceGetHandleByPciBusId_v2".to_owned(), 6)].into(),
            "failing",
            "could not be initialised",
        ),
        (|gpu| gpu.fail = [("nvmlDeviceGetUUID".to_owned(), 16)].into(), "failing", "needs a reset"),
        (|gpu| gpu.remapped = Some(Remapped { pending: true, failed: false }), "failing", "next reset"),
        (|gpu| gpu.remapped = Some(Remapped { pending: true, failed: true }), "failing", "replaced"),
        (|gpu| gpu.retirement_pending = Some(true), "failing", "pages of its memory"),
        (|gpu| gpu.recovery_action = Some(2), "failing", "reboot of the node"),
    ];
    for (change, state, words) in table {
        let mut topology = topology("lost");
        topology.gpus[1].fail.clear();
        node.tell(&topology);
        assert_eq!(states(&node.refreshed()), ["", ""]);
        change(&mut topology.gpus[1]);
        node.tell(&topology);
        let inventory = node.refreshed();
        assert_eq!(states(&inventory), ["", state], "{words}");
        let why = inventory["gpus"][1]["unavailable"]["why"].as_str().unwrap();
        assert!(why.contains(words), "{why}");
        assert_eq!(findings(&inventory), []);
    }
    // About the one who asks, not about the GPU: neither ill nor mended by that.
    let mut topology = topology("lost");
    topology.gpus[1].fail.clear();
    node.tell(&topology);
    assert_eq!(states(&node.refreshed()), ["", ""]);
    topology.gpus[1].fail = [("nvmlDeviceGetHandleByPciBusId_v2".to_owned(), 4)].into();
    node.tell(&topology);
    assert_eq!(states(&node.refreshed()), ["", ""]);
}

#[test]
fn any_call_may_fail_and_only_its_datum_is_missing() {
    let whole = topology("l4");
    let Some(node) = Node::of(&whole) else { return };
    for (call, datum) in [
        ("nvmlDeviceGetMemoryInfo_v2", "memory_mb"),
        ("nvmlDeviceGetCudaComputeCapability", "compute_capability"),
        ("nvmlDeviceGetVirtualizationMode", "virtualization"),
    ] {
        // Nothing known before can fill it in.
        let _ = fs::remove_file(node.config().with_file_name("state").join("inventory.json"));
        let mut failing = whole.clone();
        failing.gpus[0].fail = [(call.to_owned(), 999)].into();
        node.tell(&failing);
        let inventory = node.refreshed();
        assert_eq!(inventory["gpus"][0][datum], Value::Null, "{call}");
        assert_eq!((states(&inventory), findings(&inventory)), (vec![""], vec![]), "{call}");
    }
}

#[test]
fn every_error_of_the_first_call_is_a_finding_and_keeps_what_was_known() {
    let whole = topology("l4");
    let Some(node) = Node::of(&whole) else { return };
    assert_eq!(node.refreshed()["gpus"][0]["memory_mb"], 23034);
    for code in (1..=30).chain([100, 999]) {
        let mut failing = whole.clone();
        failing.fail = [("nvmlInit_v2".to_owned(), code)].into();
        node.tell(&failing);
        let inventory = node.refreshed();
        let [(word, message)] = &findings(&inventory)[..] else { panic!("{code}: {inventory}") };
        let (expected, cure) =
            if code == 18 { ("driver-version-mismatch", "reboot") } else { ("source-failed", "is kept") };
        assert_eq!(word, expected, "{code}");
        assert!(message.contains("libnvidia-ml.so.550.54.15") && message.contains(cure), "{code}: {message}");
        let gpu = &inventory["gpus"][0];
        assert_eq!((&gpu["memory_mb"], states(&inventory)), (&json!(23034), vec![""]), "{code}");
        assert!(gpu["sources"].as_array().unwrap().contains(&json!(["memory_mb", "earlier"])), "{gpu}");
    }
    // And with a library that is none.
    node.put(&format!("{LIBRARIES}/{}", fake_nvml::BESIDE), b"{");
    assert_eq!(findings(&node.refreshed())[0].0, "source-failed");
}

#[test]
fn a_library_of_another_driver_says_how_to_mend_it() {
    let Some(node) = Node::of(&topology("mismatch")) else { return };
    let inventory = node.refreshed();
    let [(code, message)] = &findings(&inventory)[..] else { panic!("{inventory}") };
    assert_eq!(code, "driver-version-mismatch");
    for part in ["the loaded module is 550.54.15", "libnvidia-ml.so.550.54.15", "reboot", "modprobe nvidia"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn two_names_of_one_gpu_refuse_it_and_spare_the_others() {
    let mut topology = topology("rtx4090");
    let Some(node) = Node::of(&topology) else { return };
    topology.gpus[2].minor = 9;
    node.tell(&topology);
    let inventory = node.refreshed();
    assert_eq!(states(&inventory), ["", "", "ambiguous", ""]);
    assert_eq!(findings(&inventory)[0].0, "source-conflict");
}

#[test]
fn the_operator_can_forbid_to_ask() {
    let mut topology = topology("l4");
    topology.gpus[0].mig = Some(Mig { enabled: true, pending: true });
    let Some(node) = Node::of(&topology) else { return };
    assert_eq!(states(&node.refreshed()), ["mig-empty"]);
    fs::remove_file(node.config().with_file_name("state").join("inventory.json")).unwrap();
    let config = fs::read_to_string(node.config()).unwrap().replace("[policy]", "nvml = \"off\"\n[policy]");
    fs::write(node.config(), config).unwrap();
    let inventory = node.refreshed();
    assert_eq!((states(&inventory), &inventory["gpus"][0]["memory_mb"]), (vec![""], &Value::Null));
    assert_eq!(findings(&inventory), []);
}

/// Everything below /dev that NVIDIA's user-space code is known to make.
fn devices() -> BTreeSet<PathBuf> {
    let names = |folder: &str| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    names("/dev").chain(names("/dev/char")).filter(|path| !path.starts_with("/dev/pts")).collect()
}

#[test]
fn what_the_library_would_make_in_dev_is_not_made() {
    let mut topology = topology("l4");
    for folder in ["/dev", "/dev/char"] {
        let made = format!("{folder}/quilt-gpu-test-{}", std::process::id());
        topology.makes = Some(made.clone());
        let Some(node) = Node::of(&topology) else { return };
        if fs::write(&made, "").is_err() {
            println!("skipped: {made} cannot be made here");
            continue;
        }
        fs::remove_file(&made).unwrap();
        assert_eq!(findings(&node.refreshed()), []);
        assert!(!Path::new(&made).exists(), "{made}");
    }
}

/// NVIDIA's own library, which repairs what it misses.
#[test]
fn nvidias_library_without_a_driver_is_a_clear_finding_and_changes_nothing() {
    let cache = std::env::var_os("QUILT_TEST_CACHE").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache")).join("driver/real");
    let Ok(version) = fs::read_to_string(cache.join("version")) else {
        println!("skipped: no files of NVIDIA's; `integration/setup.sh driver` fetches them");
        return;
    };
    if Path::new("/proc/driver/nvidia").exists() {
        println!("skipped: this machine has the driver");
        return;
    }
    let mut topology = topology("l4");
    topology.driver_version = version.trim().to_owned();
    let Some(node) = Node::without_nvml(&topology) else { return };
    let name = format!("libnvidia-ml.so.{}", topology.driver_version);
    let library = fs::read(cache.join("lib").join(&name)).unwrap();
    node.put(&format!("{LIBRARIES}/{name}"), &library);
    let before = devices();
    let inventory = node.refreshed();
    assert_eq!(devices(), before);
    let [(code, message)] = &findings(&inventory)[..] else { panic!("{inventory}") };
    assert_eq!(code, "source-failed");
    assert!(message.contains("NVIDIA driver is not loaded") && message.contains(&name), "{message}");
    assert_eq!(states(&inventory), [""]);

    // Nor is there one on the node.
    fs::remove_dir_all(node.root().join("proc/driver")).unwrap();
    let (status, said) = node.quilt_gpu(&["inventory", "refresh"]);
    assert_eq!(status, 3, "{said}");
    assert!(said.contains("driver-not-loaded") || said.contains("driver is not loaded"), "{said}");
    assert_eq!(devices(), before);
}

/// `None` without a C compiler: a program that prints a file of its root, so that it must have entered it.
fn prints_a_file(node: &Node, xml: &str) -> Option<()> {
    let program = node.root().join("usr/bin/nvidia-smi");
    fs::create_dir_all(program.parent()?).unwrap();
    // It tries to make devices too, in the closed folder and where it could write.
    let source = r#"#include <stdio.h>
#include <sys/stat.h>
int main(int argc, char **argv) {
    if (argc != 3 || argv[1][1] != 'q' || argv[2][1] != 'x' || getenv("FAKE_NVML")) return 2;
    if (!mknod("/dev/made", 0020666, 0x103) || !mknod("/made", 0020666, 0x103)) return 3;
    FILE *file = fopen("/answer.xml", "r");
    for (int c; (c = fgetc(file)) != EOF;) putchar(c);
    return 0;
}"#;
    let mut compiler = Command::new("cc");
    compiler.args(["-static", "-x", "c", "-include", "stdlib.h", "-", "-o"]).arg(&program).stdin(Stdio::piped());
    let Ok(mut child) = compiler.spawn() else {
        println!("skipped: no C compiler");
        return None;
    };
    std::io::Write::write_all(&mut child.stdin.take()?, source.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    node.put("answer.xml", xml.as_bytes());
    Some(())
}

#[test]
fn without_nvml_the_program_is_asked_inside_the_driver_root() {
    let topology = topology("l4");
    let Some(node) = Node::of(&topology) else { return };
    // NVML's library is the installation's, and tells nothing.
    node.put(&format!("{LIBRARIES}/{}", fake_nvml::BESIDE), b"{");
    let of_the_program = |inventory: &Value| -> Vec<_> {
        findings(inventory).into_iter().filter(|(_, message)| !message.starts_with("nvml tells nothing")).collect()
    };
    let xml = format!(
        "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log><driver_version>550.54.15</driver_version><cuda_version>12.4</cuda_version><attached_gpus>1</attached_gpus><gpu id=\"00000000:31:00.0\"><uuid>{}</uuid><minor_number>0</minor_number><fb_memory_usage><total>23034 MiB</total></fb_memory_usage></gpu></nvidia_smi_log>\n",
        topology.gpus[0].uuid
    );
    let Some(()) = prints_a_file(&node, &xml) else { return };
    let inventory = node.refreshed();
    assert_eq!(of_the_program(&inventory), []);
    assert_eq!(inventory["gpus"][0]["memory_mb"], 23034);
    assert!(inventory["gpus"][0]["sources"].as_array().unwrap().contains(&json!(["memory_mb", "nvidia-smi"])));

    // A document that ends in the middle says nothing, and nothing is forgotten.
    node.put("answer.xml", xml.replace("</nvidia_smi_log>", "").as_bytes());
    let inventory = node.refreshed();
    assert!(of_the_program(&inventory)[0].1.contains("ends in the middle"), "{inventory}");
    assert_eq!(inventory["gpus"][0]["memory_mb"], 23034);

    // What others can write is not run.
    let program = node.root().join("usr/bin/nvidia-smi");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(of_the_program(&node.refreshed()), []);
}
