use contract::inventory::{DriverFile, FileId, Finding, Library};

use super::*;
use crate::allocate::allocate;
use crate::testing::{count, cut, ids, inventory, node};

const ID: FileId = FileId { dev: 1, ino: 2, size: 3, ctime: 4, ctime_nsec: 5 };

fn library(soname: &str, bits: u8, capabilities: &[Capability]) -> Library {
    Library {
        host_path: format!("/lib/{soname}"),
        soname: soname.into(),
        bits,
        capabilities: capabilities.to_vec(),
        id: ID,
        found_by: "test".into(),
    }
}

fn file(name: &str, kind: FileKind, capabilities: &[Capability]) -> DriverFile {
    DriverFile {
        host_path: format!("/bin/{name}"),
        path: format!("/usr/bin/{name}"),
        kind,
        capabilities: capabilities.to_vec(),
        id: ID,
        found_by: "test".into(),
    }
}

fn stocked() -> Inventory {
    let mut inventory = inventory(2);
    inventory.libraries = vec![
        library("libcuda.so.1", 64, &[Capability::Compute]),
        library("libcuda.so.1", 32, &[Capability::Compute]),
        library("libnvidia-ml.so.1", 64, &[Capability::Utility]),
        library("libGLX_nvidia.so.0", 64, &[Capability::Graphics, Capability::Display]),
        library("libstray.so", 64, &[]),
    ];
    inventory.files = vec![
        file("nvidia-smi", FileKind::Program, &[Capability::Utility]),
        file("nvidia-cuda-mps-server", FileKind::Program, &[Capability::Compute]),
        file("stray", FileKind::Program, &[]),
        file("icd", FileKind::Data, &[Capability::Graphics]),
        file("gsp", FileKind::Firmware, &[Capability::Compute, Capability::Utility]),
        file("persistenced", FileKind::Persistenced, &[Capability::Utility]),
        file("fabricmanager", FileKind::Fabricmanager, &[Capability::Utility]),
        file("mps", FileKind::Mps, &[Capability::Compute]),
    ];
    inventory
}

fn write(inventory: &Inventory, capabilities: &str, policy: &Policy, gpus: u32) -> Result<Contract, Refusal> {
    let request = Request { capabilities: Capabilities::parse(capabilities).unwrap(), ..count(gpus) };
    let granted: Vec<Granted> = allocate(inventory, &|_| false, &request, &[]).unwrap();
    draft(inventory, &granted, &request, policy, "id", Recipient { key: Some(&Key::of("/r", "c")), owner: None }, 9)
}

fn names(contract: &Contract) -> (String, String, String) {
    let join = |items: Vec<&str>| items.join(" ");
    (
        join(contract.nodes.iter().map(|n| n.path.trim_start_matches("/dev/")).collect()),
        contract.libraries.iter().map(|l| format!("{}/{}", l.soname, l.bits)).collect::<Vec<_>>().join(" "),
        join(contract.files.iter().map(|f| f.path.trim_start_matches("/usr/bin/")).collect()),
    )
}

#[test]
fn what_each_capability_brings() {
    let node = stocked();
    for (capabilities, nodes, libraries, files) in [
        ("utility", "nvidia0 nvidiactl", "libnvidia-ml.so.1/64", "nvidia-smi"),
        ("compute", "nvidia0 nvidiactl nvidia-uvm nvidia-uvm-tools", "libcuda.so.1/64", "nvidia-cuda-mps-server"),
        (
            "compute,utility",
            "nvidia0 nvidiactl nvidia-uvm nvidia-uvm-tools",
            "libcuda.so.1/64 libnvidia-ml.so.1/64",
            "nvidia-smi nvidia-cuda-mps-server",
        ),
        (
            "compute,compat32",
            "nvidia0 nvidiactl nvidia-uvm nvidia-uvm-tools",
            "libcuda.so.1/64 libcuda.so.1/32",
            "nvidia-cuda-mps-server",
        ),
        ("graphics", "nvidia0 nvidiactl nvidia-modeset", "libGLX_nvidia.so.0/64", "icd"),
        ("display", "nvidia0 dri/card0 nvidiactl nvidia-modeset", "libGLX_nvidia.so.0/64", ""),
        ("utility,dri", "nvidia0 dri/renderD128 nvidiactl", "libnvidia-ml.so.1/64", "nvidia-smi"),
        ("video", "nvidia0 nvidiactl", "", ""),
    ] {
        let contract = write(&node, capabilities, &Policy::default(), 1).unwrap();
        let (n, l, b) = names(&contract);
        assert_eq!((n.as_str(), l.as_str(), b.as_str()), (nodes, libraries, files), "{capabilities}");
    }
}

#[test]
fn firmware_and_sockets_are_the_operators_to_give() {
    let node = stocked();
    for (config, capabilities, files) in [
        ("", "utility", "nvidia-smi"),
        ("firmware = true", "utility", "nvidia-smi gsp"),
        ("sockets = ['persistenced']", "utility", "nvidia-smi persistenced"),
        ("sockets = ['fabricmanager', 'mps']", "utility", "nvidia-smi fabricmanager"),
        ("sockets = ['mps']", "compute", "nvidia-cuda-mps-server mps"),
        ("firmware = true\nsockets = ['persistenced', 'fabricmanager', 'mps']", "video", ""),
    ] {
        let (config, wrong) = contract::config::Config::read(format!("[policy]\n{config}").as_bytes());
        assert_eq!(wrong, None);
        let contract = write(&node, capabilities, &config.policy, 1).unwrap();
        assert_eq!(names(&contract).2, files, "{config:?} {capabilities}");
    }
}

#[test]
fn only_the_granted_gpus_nodes() {
    let contract = write(&stocked(), "compute,utility,graphics,video,display,dri", &Policy::default(), 1).unwrap();
    assert!(contract.nodes.iter().all(|node| !matches!((node.major, node.minor), (195, 1) | (226, 1) | (226, 129))));
    assert_eq!(contract.key.as_deref(), Some(Key::of("/r", "c").as_str()));
    assert_eq!((contract.schema, contract.created, contract.gpus.len()), (SCHEMA, 9, 1));
}

#[test]
fn environment_by_policy() {
    let mut unknown = stocked();
    unknown.gpus[1].uuid = None;
    let uuids = "GPU-abcd0000-aaaa-bbbb-cccc-000000000000,GPU-abcd0001-aaaa-bbbb-cccc-000000000001";
    for (inventory, knob, visible, cuda) in [
        (stocked(), CudaVisibleDevices::Index, uuids, Some("0,1")),
        (stocked(), CudaVisibleDevices::Uuid, uuids, Some(uuids)),
        (stocked(), CudaVisibleDevices::Unset, uuids, None),
        (unknown, CudaVisibleDevices::Uuid, "GPU-abcd0000-aaaa-bbbb-cccc-000000000000,nvidia1", Some("0,1")),
    ] {
        let contract =
            write(&inventory, "utility", &Policy { cuda_visible_devices: knob, ..Policy::default() }, 2).unwrap();
        let mut expected = vec![("NVIDIA_VISIBLE_DEVICES", visible), ("NVIDIA_DRIVER_CAPABILITIES", "utility")];
        expected.extend(cuda.map(|value| ("CUDA_VISIBLE_DEVICES", value)));
        let env: Vec<(&str, &str)> = contract.env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(env, expected, "{knob:?}");
    }
}

#[test]
fn missing_nodes_refuse_what_needs_them() {
    let without = |name: &str| {
        let mut inventory = stocked();
        inventory.control.retain(|node| node.path != format!("/dev/{name}"));
        inventory
    };
    let code = |inventory: &Inventory, capabilities| {
        write(inventory, capabilities, &Policy::default(), 1).map_err(|refusal| refusal.code).map(|_| ())
    };
    assert_eq!(code(&without("nvidia-uvm"), "compute"), Err(Code::DriverNotReady));
    assert_eq!(code(&without("nvidia-uvm"), "utility"), Ok(()));
    assert_eq!(code(&without("nvidia-uvm-tools"), "compute"), Ok(()));
    assert_eq!(code(&without("nvidia-modeset"), "graphics"), Ok(()));
    assert_eq!(code(&without("nvidiactl"), "utility"), Err(Code::DriverNotReady));
    let mut known = without("nvidia-uvm");
    let message = "/dev/nvidia-uvm does not exist; run `nvidia-modprobe -u`";
    known.findings = vec![Finding { code: "uvm-missing".into(), stops: false, message: message.into() }];
    let refusal = write(&known, "compute,utility", &Policy::default(), 1).unwrap_err();
    assert_eq!((refusal.message.as_str(), refusal.value.as_str()), (message, "compute,utility"));
    assert!(refusal.help.contains("without the capability compute"), "{refusal}");
    let mut bare = stocked();
    bare.gpus[0].nodes.clear();
    assert_eq!(code(&bare, "utility"), Err(Code::DriverNotReady));
    let granted = [Granted { pci: "0000:ff:00.0".into(), uuid: None, minor: None, partition: None }];
    let gone = draft(&bare, &granted, &count(1), &Policy::default(), "id", Recipient::default(), 1).unwrap_err();
    assert_eq!(gone.code, Code::ContractStale);
}

/// A container with instances has their GPU's node once, and the capability nodes of these instances only.
#[test]
fn what_instances_bring() {
    let mut node = stocked();
    cut(&mut node.gpus[1], &["1g.10gb", "1g.10gb", "1g.10gb"]);
    node.gpus[1].partitions[2].uuid = None;
    node.facts.instances.0 = vec!["gpu1/gi7/ci0".into()];
    let write = |names: &[&str], cuda| {
        let request = Request { capabilities: Capabilities::parse("utility,display,dri").unwrap(), ..ids(names) };
        let granted = allocate(&node, &|_| false, &request, &[]).unwrap();
        let policy = Policy { cuda_visible_devices: cuda, ..Policy::default() };
        draft(&node, &granted, &request, &policy, "id", Recipient { key: Some(&Key::of("/r", "c")), owner: None }, 9)
            .unwrap()
    };
    let caps = |n: u32| format!("nvidia-caps/nvidia-cap{n} nvidia-caps/nvidia-cap{}", n + 1);
    let [one, two] = [caps(3 + 135 + 63), caps(3 + 135 + 72)];
    let uuids = ["MIG-00010000-aaaa-bbbb-cccc-0123456789ab", "MIG-00010001-aaaa-bbbb-cccc-0123456789ab"];
    for (asked, nodes, visible) in [
        (&["1:0"][..], format!("nvidia1 {one} nvidiactl nvidia-modeset"), uuids[0].to_owned()),
        (
            &["1:1", "1:0"][..],
            format!("nvidia1 {two} {one} nvidiactl nvidia-modeset"),
            format!("{},{}", uuids[1], uuids[0]),
        ),
        (
            &["nvidia0", "1:1"][..],
            format!("nvidia0 dri/renderD128 dri/card0 nvidia1 {two} nvidiactl nvidia-modeset"),
            format!("{},{}", node.gpus[0].uuid.as_deref().unwrap(), uuids[1]),
        ),
        (
            &["1:2"][..],
            format!("nvidia1 {} nvidiactl nvidia-modeset", caps(3 + 135 + 81)),
            format!("MIG-{}/9/0", node.gpus[1].uuid.as_deref().unwrap()),
        ),
    ] {
        // Positions do not name instances.
        for cuda in [CudaVisibleDevices::Index, CudaVisibleDevices::Uuid] {
            let contract = write(asked, cuda);
            assert_eq!(names(&contract).0, nodes, "{asked:?}");
            let env = [&contract.env[0].1, &contract.env[2].1];
            assert_eq!(env, [&visible, &visible], "{asked:?}");
            assert_eq!(contract.facts.instances.0.len(), 0, "instances beside its own come and go");
        }
        assert_eq!(write(asked, CudaVisibleDevices::Unset).env.len(), 2);
    }
    // As they are stored, and as nobody can read them.
    let folded = node.clone().folded();
    let request = ids(&["1:0"]);
    let granted = allocate(&folded, &|_| false, &request, &[]).unwrap();
    let of = |node: &Inventory| draft(node, &granted, &request, &Policy::default(), "id", Recipient::default(), 9);
    assert_ne!(serde_json::to_vec(&folded).unwrap(), serde_json::to_vec(&node).unwrap());
    assert_eq!(of(&folded).unwrap().nodes, of(&node).unwrap().nodes);
    let mut odd = folded.clone();
    odd.gpus[1].partitions[0].nodes = contract::read::document(b"\"236 201 292 0 0 /dev/x\"").unwrap();
    let refusal = of(&odd).unwrap_err();
    assert_eq!((refusal.code, refusal.may_be_over), (Code::DriverNotReady, true), "{refusal}");
    // Of an instance that is gone there is no contract.
    let request = ids(&["1:0"]);
    let granted = allocate(&node, &|_| false, &request, &[]).unwrap();
    node.gpus[1].partitions.remove(0);
    let refusal = draft(&node, &granted, &request, &Policy::default(), "id", Recipient::default(), 9).unwrap_err();
    assert_eq!((refusal.code, refusal.rule), (Code::ContractStale, "gpu-gone"), "{refusal}");
}

/// D22: the nodes that manage instances of every GPU are for the owners that the operator names, each for its own.
#[test]
fn d22_who_may_configure_and_monitor() {
    let mut inventory = stocked();
    inventory.control.push(node("nvidia-caps/nvidia-cap1", 236, 1, Role::MigConfig));
    inventory.control.push(node("nvidia-caps/nvidia-cap2", 236, 2, Role::MigMonitor));
    let owners = |list: &[&str]| list.iter().map(|owner| (*owner).to_owned()).collect();
    let policy = |config: &[&str], monitor: &[&str]| Policy {
        mig_config: owners(config),
        mig_monitor: owners(monitor),
        ..Policy::default()
    };
    let granted = allocate(&inventory, &|_| false, &count(1), &[]).unwrap();
    for (policy, owner, expected) in [
        (policy(&[], &[]), Some("red"), ""),
        (policy(&["red"], &["namespace:watch", "red"]), None, ""),
        (policy(&["red"], &[]), Some("blue"), ""),
        (policy(&["red"], &[]), Some("red"), "cap1"),
        (policy(&[], &["namespace:watch"]), Some("namespace:watch"), "cap2"),
        (policy(&["red"], &["red"]), Some("red"), "cap1 cap2"),
    ] {
        let to = Recipient { key: None, owner };
        let contract = draft(&inventory, &granted, &count(1), &policy, "id", to, 9).unwrap();
        let given = contract.nodes.iter().filter_map(|node| node.path.split_once("nvidia-cap").map(|it| it.1));
        let given: Vec<_> = given.filter_map(|name| name.rsplit_once('-').map(|it| it.1)).collect();
        assert_eq!(given.join(" "), expected, "{policy:?} {owner:?}");
    }
    // A driver that has no such nodes keeps nobody from its GPU.
    inventory.control.retain(|node| node.role == Role::Control);
    let to = Recipient { key: None, owner: Some("red") };
    assert!(draft(&inventory, &granted, &count(1), &policy(&["red"], &["red"]), "id", to, 9).is_ok());
}

/// D06: WSL's node is all that opens its GPU, whatever is asked for.
#[test]
fn the_gpu_of_wsl_has_one_node() {
    let mut node = stocked();
    node.gpus.truncate(1);
    node.control.clear();
    let gpu = &mut node.gpus[0];
    gpu.pci = contract::gpu::DXG.into();
    gpu.nodes.truncate(1);
    gpu.nodes[0].path = "/dev/dxg".into();
    let contract = write(&node, "compute,utility,graphics", &Policy::default(), 1).unwrap();
    assert_eq!(names(&contract).0, "dxg");
    node.gpus[0].pci = "0000:01:00.0".into();
    assert_eq!(write(&node, "compute", &Policy::default(), 1).unwrap_err().rule, "node-missing");
}
