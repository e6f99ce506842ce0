use contract::inventory::{DriverFile, FileId, Finding, Library};

use super::*;
use crate::allocate::allocate;
use crate::testing::{count, inventory};

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
    let granted: Vec<Granted> = allocate(inventory, &|_| false, &request, &[])
        .unwrap()
        .iter()
        .map(|g| Granted { pci: g.pci.clone(), uuid: g.uuid.clone(), minor: g.minor })
        .collect();
    draft(inventory, &granted, &request, policy, "id", Some(&Key::of("/r", "c")), 9)
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
    let granted = [Granted { pci: "0000:ff:00.0".into(), uuid: None, minor: None }];
    let gone = draft(&bare, &granted, &count(1), &Policy::default(), "id", None, 1).unwrap_err();
    assert_eq!(gone.code, Code::ContractStale);
}
