use cdi::spec::{Encoding, read, to_json};
use contract::capability::{Capabilities, Capability};
use contract::gpu::Partition;
use contract::inventory::{FileId, Role};
use contract::request::{Asked, Source, Words};

use super::*;

const ID: FileId = FileId { dev: 1, ino: 2, size: 3, ctime: 4, ctime_nsec: 5 };

fn char_node(name: &str, minor: u32, role: Role) -> inventory::DeviceNode {
    let path = format!("/dev/{name}");
    inventory::DeviceNode { host_path: path.clone(), path, major: 195, minor, mode: 0o666, uid: 0, gid: 0, role }
}

fn library(soname: &str, bits: u8, capability: Capability) -> inventory::Library {
    let (host_path, found_by) = (format!("/snap/x18/{bits}/{soname}.550"), "test".into());
    inventory::Library { host_path, soname: soname.into(), bits, capabilities: vec![capability], id: ID, found_by }
}

fn gpu(index: u32, minor: u32) -> Gpu {
    Gpu {
        pci: format!("0000:{index:02x}:00.0"),
        index: Some(index),
        uuid: Some(format!("GPU-{minor}")),
        minor: Some(minor),
        nodes: vec![
            char_node(&format!("nvidia{minor}"), minor, Role::Compute),
            char_node(&format!("dri/renderD{minor}"), 128 + minor, Role::Render),
        ],
        ..Gpu::default()
    }
}

fn part(index: u32, uuid: &str) -> Partition {
    Partition {
        kind: "mig".into(),
        index,
        gi: index + 1,
        ci: 0,
        profile: "1g.10gb".into(),
        uuid: Some(uuid.into()),
        memory_mb: None,
        nodes: vec![char_node(&format!("nvidia-caps/nvidia-cap{index}"), index, Role::Caps)].into(),
        unavailable: None,
    }
}

fn node() -> Inventory {
    let control = [("nvidiactl", 255), ("nvidia-uvm", 0), ("nvidia-uvm-tools", 1)];
    Inventory {
        gpus: vec![gpu(0, 3), gpu(1, 2)],
        control: control.map(|(name, minor)| char_node(name, minor, Role::Control)).into(),
        libraries: vec![
            library("libcuda.so.1", 64, Capability::Compute),
            library("libcuda.so.1", 32, Capability::Compute),
            library("libGLX_nvidia.so.0", 64, Capability::Graphics),
        ],
        ..Inventory::default()
    }
}

fn request(capabilities: &str) -> Request {
    let mut words = Words::default();
    words.set("count", String::new(), "1".into());
    let Ok(Asked::Gpus(request)) = words.ask(Source::CommandLine) else { panic!("no request") };
    Request { capabilities: Capabilities::parse(capabilities).unwrap(), ..request }
}

fn file(inventory: &Inventory, capabilities: &str) -> Made {
    let made = made(inventory, "quilt.gpu/device", &request(capabilities), &Policy::default()).unwrap();
    // Whoever reads the version that it states takes it.
    read(to_json(&made.spec).unwrap().as_bytes(), Encoding::Json).unwrap();
    made
}

fn names(spec: &Spec) -> String {
    spec.devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(" ")
}

fn nodes(edits: &ContainerEdits) -> String {
    edits.device_nodes.iter().map(|node| node.path.trim_start_matches("/dev/")).collect::<Vec<_>>().join(" ")
}

fn nodes_of<'s>(spec: &'s Spec, name: &str) -> &'s ContainerEdits {
    &spec.devices.iter().find(|device| device.name == name).unwrap().container_edits
}

#[test]
fn every_gpu_by_all_its_names_with_what_a_contract_gives() {
    let Made { spec, without } = file(&node(), "compute,utility");
    assert_eq!(names(&spec), "nvidia3 GPU-3 0 nvidia2 GPU-2 1 all");
    for (name, expected) in [("nvidia3", "nvidia3"), ("GPU-2", "nvidia2"), ("1", "nvidia2"), ("all", "nvidia3 nvidia2")]
    {
        assert_eq!(nodes(nodes_of(&spec, name)), expected, "{name}");
    }
    let common = &spec.container_edits;
    assert_eq!(nodes(common), "nvidiactl nvidia-uvm nvidia-uvm-tools");
    assert_eq!((spec.cdi_version.as_str(), without.len(), common.hooks.len()), ("0.5.0", 0, 0));
    assert!(common.env.contains(&"QUILT_GPU_CDI=compute,utility".to_owned()), "{:?}", common.env);
    assert!(common.env.contains(&"NVIDIA_VISIBLE_DEVICES=void".to_owned()));
    // D04: no folder of the host's shows in a container.
    let paths: Vec<&str> = common.mounts.iter().map(|mount| mount.container_path.as_str()).collect();
    let debian = FOLDERS[0].0;
    let expected = ["libcuda.so.1", "libcuda.so"].map(|name| format!("{debian}/{name}"));
    assert_eq!(paths, [expected[0].as_str(), &expected[1], "/usr/lib64/libcuda.so.1", "/usr/lib64/libcuda.so"]);
    assert!(common.mounts.iter().all(|mount| mount.options.contains(&"ro".to_owned())));
    let more = file(&node(), "compute,graphics,dri,compat32").spec;
    assert_eq!(nodes(nodes_of(&more, "0")), "nvidia3 dri/renderD3");
    assert!(more.container_edits.mounts.iter().any(|mount| mount.host_path.contains("/32/")));
    assert!(more.container_edits.mounts.iter().any(|mount| mount.host_path.contains("GLX")));
}

#[test]
fn instances_instead_of_what_is_cut_and_nothing_that_cannot_be_used() {
    let mut node = node();
    node.gpus[0].partitions = vec![part(0, "MIG-a"), part(1, "MIG-GPU-old/2/0")];
    node.gpus[1].unavailable = Some(Unavailable::new(State::Busy, "somebody has it open"));
    node.gpus.push(Gpu { unavailable: Some(Unavailable::new(State::Lost, "it fell off")), ..gpu(2, 7) });
    let Made { spec, without } = file(&node, "compute");
    assert_eq!(names(&spec), "0:0 MIG-a 0:1 nvidia2 GPU-2 1 all");
    assert_eq!(nodes(nodes_of(&spec, "MIG-a")), "nvidia3 nvidia-caps/nvidia-cap0");
    assert_eq!(nodes(nodes_of(&spec, "all")), "nvidia3 nvidia-caps/nvidia-cap0 nvidia-caps/nvidia-cap1 nvidia2");
    assert_eq!(without, ["nvidia7: it fell off"]);
}

#[test]
fn hooks_are_given_every_library_once() {
    let mut made = file(&node(), "compute,graphics,compat32");
    super::super::hooks::add(&mut made, std::path::Path::new("/opt/quilt-gpu-hook"));
    let Spec { container_edits, cdi_version, .. } =
        read(to_json(&made.spec).unwrap().as_bytes(), Encoding::Json).unwrap();
    assert_eq!(cdi_version, "0.5.0");
    let libraries = "--library /usr/lib64/libcuda.so.1 --library32 /usr/lib/libcuda.so.1 \
                     --library /usr/lib64/libGLX_nvidia.so.0";
    for (hook, word) in container_edits.hooks.iter().zip(["create-links", "update-cache"]) {
        assert_eq!(hook.args.join(" "), format!("quilt-gpu-hook {word} {libraries}"));
        assert_eq!((hook.hook_name, hook.path.as_str()), (cdi::Stage::CreateContainer, "/opt/quilt-gpu-hook"));
        assert!(!hook.env.is_empty());
    }
    assert_eq!(container_edits.hooks.len(), 2);
}

#[test]
fn nothing_to_name_is_no_file() {
    let mut lost = node();
    lost.gpus.iter_mut().for_each(|gpu| gpu.unavailable = Some(Unavailable::new(State::Vfio, "a guest has it")));
    let bare = Inventory { gpus: Vec::new(), ..node() };
    let no_uvm = Inventory { control: node().control[..1].to_vec(), ..node() };
    for (inventory, code, part) in [
        (lost, Code::GpuUnavailable, "nvidia3: a guest has it; nvidia2: a guest has it"),
        (bare, Code::UnknownGpu, "no NVIDIA GPU"),
        (no_uvm, Code::DriverNotReady, "nvidia-uvm"),
    ] {
        let refusal = made(&inventory, "a.b/c", &request("compute"), &Policy::default()).err().unwrap();
        assert!(refusal.code == code && refusal.message.contains(part), "{refusal}");
    }
}

#[test]
fn the_lowest_version_that_its_parts_need_and_what_old_engines_lose() {
    type Row<'r> = (fn(&mut Inventory), &'r str, &'r [&'r str]);
    let group = |node: &mut Inventory| (node.gpus[0].nodes[0].mode, node.gpus[0].nodes[0].gid) = (0o660, 44);
    let closed = |node: &mut Inventory| (node.gpus[0].nodes[0].mode, node.gpus[0].nodes[0].gid) = (0o600, 44);
    let rows: [Row<'_>; 4] = [
        (|_| {}, "0.5.0", &["called 0, 1:"]),
        (|it| it.gpus[0].nodes[0].host_path = "/x/nvidia3".into(), "0.5.0", &["called 0, 1:", "(/x/nvidia3)"]),
        (group, "0.7.0", &["called 0, 1:", "the group 44"]),
        (closed, "0.5.0", &["called 0, 1:"]),
    ];
    for (change, version, lost) in rows {
        let mut node = node();
        change(&mut node);
        let mut spec = file(&node, "compute").spec;
        assert_eq!(spec.cdi_version, version, "{lost:?}");
        let told = for_old_engines(&mut spec);
        assert!(told.len() == lost.len() && told.iter().zip(lost).all(|(told, part)| told.contains(part)), "{told:?}");
        assert_eq!((spec.cdi_version.as_str(), names(&spec).as_str()), ("0.3.0", "nvidia3 GPU-3 nvidia2 GPU-2 all"));
        read(to_json(&spec).unwrap().as_bytes(), Encoding::Json).unwrap();
    }
}
