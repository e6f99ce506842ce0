//! The whole way over made-up roots on disk.

use std::os::unix::fs::symlink;

use contract::inventory::{FileKind, Inventory};

use super::*;
use crate::demo::fixture;
use crate::inventory::discover;
use crate::inventory::tests::{VERSION, codes};

/// A host root on disk, with real device nodes when we are root.
fn host(root: &Path) -> Host {
    Host { root: root.to_str().unwrap().to_owned(), ..Host::default() }
}

fn put(root: &Path, name: &str, content: &[u8]) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// The least that the kernel shows of one GPU with its driver.
fn lay_out(root: &Path) {
    for (name, content) in [
        ("vendor", "0x10de\n"),
        ("device", "0x20b0\n"),
        ("class", "0x030200\n"),
        ("numa_node", "1\n"),
        ("drm/card0/dev", "226:0\n"),
    ] {
        put(root, &format!("sys/bus/pci/devices/0000:01:00.0/{name}"), content.as_bytes());
    }
    for (name, content) in [("vendor", "0x10de\n"), ("device", "0x1aef\n"), ("class", "0x040300\n")] {
        put(root, &format!("sys/bus/pci/devices/0000:01:00.1/{name}"), content.as_bytes());
    }
    symlink("../../../../bus/pci/drivers/nvidia", root.join("sys/bus/pci/devices/0000:01:00.0/driver")).unwrap();
    put(
        root,
        "proc/driver/nvidia/version",
        format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Fri Jan 10\n").as_bytes(),
    );
    put(
        root,
        "proc/driver/nvidia/gpus/0000:01:00.0/information",
        b"Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-5d1f\nDevice Minor: \t 3\n",
    );
    put(
        root,
        "proc/devices",
        b"Character devices:\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n\nBlock devices:\n259 blkext\n",
    );
}

#[test]
fn a_root_without_a_gpu_has_an_empty_inventory() {
    let root = tempfile::tempdir().unwrap();
    let inventory = discover(&host(root.path())).unwrap();
    assert_eq!((inventory.gpus.len(), inventory.control.len(), inventory.findings.len()), (0, 0, 0));
}

#[test]
fn a_root_on_disk() {
    let root = tempfile::tempdir().unwrap();
    lay_out(root.path());
    let inventory = discover(&host(root.path())).unwrap();
    let [gpu] = inventory.gpus.as_slice() else { panic!("{:?}", inventory.gpus) };
    assert_eq!(
        (gpu.minor, gpu.uuid.as_deref(), gpu.model.as_deref(), gpu.numa, gpu.device_id.as_str()),
        (Some(3), Some("GPU-5d1f"), Some("NVIDIA A100"), Some(1), "0x20b0")
    );
    assert!(
        gpu.unavailable.as_ref().is_some_and(|it| it.why.contains("dev/nvidia3, the node of GPU-5d1f, does not exist")),
        "{gpu:?}"
    );
    assert!(codes(&inventory).contains(&("library-missing", true)), "{:?}", inventory.findings);
}

#[test]
fn nodes_on_disk_count_by_number_and_links_are_not_followed() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: making device nodes needs root");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    lay_out(root.path());
    let dev = root.path().join("dev");
    fs::create_dir(&dev).unwrap();
    let make = |name: &str, major, minor| {
        use nix::sys::stat::{Mode, SFlag, makedev, mknod};
        mknod(&dev.join(name), SFlag::S_IFCHR, Mode::from_bits_truncate(0o660), makedev(major, minor)).unwrap();
    };
    for (name, major, minor) in
        [("nvidia3", 195, 3), ("nvidia-uvm", 511, 0), ("nvidia-uvm-tools", 511, 0), ("real", 195, 255)]
    {
        make(name, major, minor);
    }
    symlink("real", dev.join("nvidiactl")).unwrap();
    let inventory = discover(&host(root.path())).unwrap();
    let node = &inventory.gpus[0].nodes[0];
    assert_eq!((node.path.as_str(), node.major, node.minor, node.mode & 0o600), ("/dev/nvidia3", 195, 3, 0o600));
    assert_eq!(node.host_path, format!("{}/nvidia3", dev.display()));
    let control: Vec<_> = inventory.control.iter().map(|node| node.path.as_str()).collect();
    assert_eq!(control, ["/dev/nvidia-uvm"], "{:?}", inventory.findings);
    assert_eq!(inventory.findings.iter().filter(|finding| finding.code == "node-mismatch").count(), 2);
}

#[test]
fn the_node_of_the_demonstration_is_healthy() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: making device nodes needs root");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    fixture::lay_out(root.path()).unwrap();
    let inventory = discover(&host(root.path())).unwrap();
    assert_eq!(inventory.findings, []);
    assert!(inventory.gpus.len() == 4 && inventory.gpus.iter().all(|gpu| gpu.usable() && gpu.minor != gpu.index));
    assert_eq!((inventory.control.len(), inventory.libraries.len(), inventory.files.len()), (4, 4, 1));
}

/// D43: named and stopped, whatever of a driver lies there too.
#[test]
fn machines_whose_gpus_are_not_ours_to_give_are_named_and_stop() {
    let signs: [(&str, &[u8], &str, &str); 4] = [
        (
            "proc/device-tree/compatible",
            b"nvidia,p3737-0000\0nvidia,tegra234\0",
            "tegra-unsupported",
            "nvidia,tegra234",
        ),
        ("etc/nv_tegra_release", b"# R35", "tegra-unsupported", "/etc/nv_tegra_release"),
        ("sys/module/nvgpu/refcnt", b"1", "tegra-unsupported", "/sys/module/nvgpu"),
        // A node that the kernel does not know opens nothing, and looks as if it did.
        ("dev/dxg", b"", "node-mismatch", "dev/dxg is there, and the kernel lists no dxg"),
    ];
    for (sign, content, code, words) in signs {
        for with_gpu in [false, true] {
            let root = tempfile::tempdir().unwrap();
            if with_gpu {
                lay_out(root.path());
            }
            put(root.path(), sign, content);
            let lists = "etc/nvidia-container-runtime/host-files-for-container.d/l4t.csv";
            put(root.path(), lists, b"dev, /dev/nvhost-gpu\nlib, /usr/lib/libcuda.so\nnonsense\n");
            let inventory = discover(&host(root.path())).unwrap();
            assert_eq!(codes(&inventory), [(code, true)], "{sign}");
            assert!(inventory.findings[0].message.contains(words), "{:?}", inventory.findings);
            let given = inventory.control.len() + inventory.libraries.len() + inventory.files.len();
            assert_eq!(given, 0, "{sign}");
        }
    }
}

/// D06: one node stands for what Windows has; without a library that opens it there is no GPU.
#[test]
fn d06_the_gpu_of_wsl() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: making device nodes needs root");
        return;
    }
    const LIB: &str = "usr/lib/wsl/lib";
    let all = ["libcuda.so.1.1", "libnvidia-ml.so.1", "libdxcore.so"];
    let usable = "dxg nvidia0 WSL /dev/dxg 10:62";
    for (name, libraries, node, misc, on_bus, expected, findings) in [
        ("as it is", &all[..], Some(62), true, false, usable, &[][..]),
        ("no dxcore", &all[..2], Some(62), true, false, "", &[("library-missing", true)]),
        ("nothing of NVIDIA's", &all[2..], Some(62), true, false, "", &[("library-missing", true)]),
        ("no node", &all[..], None, true, false, "dxg nvidia0 WSL node-missing", &[]),
        ("another node", &all[..], Some(61), true, false, "dxg nvidia0 WSL node-mismatch", &[("node-mismatch", true)]),
        ("not the kernel's", &all[..], Some(62), false, false, "", &[("node-mismatch", true)]),
        ("GPUs beside it", &all[..], Some(62), true, true, "0000:01:00.0", &[("dxg-beside-bus", false)]),
    ] {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("dev")).unwrap();
        if on_bus {
            lay_out(root.path());
        }
        for library in libraries {
            let soname =
                library.trim_end_matches(".1.1").to_owned() + if library.ends_with(".1.1") { ".1" } else { "" };
            put(root.path(), &format!("{LIB}/{library}"), &fixture::elf(&soname));
        }
        for other in ["lib/nvidia-smi", "drivers/nv_dispi.inf_amd64_aa11/libcuda.so.1.1"] {
            put(root.path(), &format!("usr/lib/wsl/{other}"), b"");
        }
        put(root.path(), "proc/misc", if misc { b" 62 dxg\n".as_slice() } else { b"200 tun\n" });
        if let Some(minor) = node {
            use nix::sys::stat::{Mode, SFlag, makedev, mknod};
            let mode = Mode::from_bits_truncate(0o666);
            mknod(&root.path().join("dev/dxg"), SFlag::S_IFCHR, mode, makedev(10, minor)).unwrap();
        }
        let inventory = discover(&host(root.path())).unwrap();
        let gpu = inventory.gpus.first().map(|gpu| {
            let state = gpu.unavailable.as_ref().map(|why| why.state.rule().trim_start_matches("gpu-").to_owned());
            let nodes = gpu.nodes.iter().map(|node| format!("{} {}:{}", node.path, node.major, node.minor));
            let words = nodes.chain(state).collect::<Vec<_>>().join(" ");
            if gpu.is_dxg() {
                format!("{} {} {} {words}", gpu.pci, gpu.name(), gpu.model.as_deref().unwrap_or_default())
            } else {
                gpu.pci.clone()
            }
        });
        assert_eq!(gpu.unwrap_or_default(), expected, "{name}");
        let all = codes(&inventory);
        // What else is amiss with those on the bus is not the question.
        let told = if on_bus { &all[..1] } else { &all[..] };
        assert_eq!(told, findings, "{name}: {:?}", inventory.findings);
        if name == "as it is" {
            let libraries: Vec<&str> = inventory.libraries.iter().map(|library| library.soname.as_str()).collect();
            assert_eq!(libraries, ["libcuda.so.1", "libdxcore.so", "libnvidia-ml.so.1"]);
            let files: Vec<&str> = inventory.files.iter().map(|file| file.path.as_str()).collect();
            let stored = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_aa11/libcuda.so.1.1";
            assert_eq!((files, inventory.control.len()), (vec!["/usr/bin/nvidia-smi", stored], 0));
        }
        let missing = inventory.findings.iter().find(|finding| finding.code == "library-missing");
        let lacks = |library: &str| missing.is_some_and(|finding| finding.message.contains(library));
        assert_eq!(lacks("libdxcore.so"), name == "no dxcore", "{name}");
    }
}

/// D19: where the bus cannot be seen, what is known of the node stays, whoever asks anew and however often.
#[test]
fn d19_an_empty_look_takes_the_place_of_nothing() {
    let root = tempfile::tempdir().unwrap();
    lay_out(root.path());
    let known = discover(&host(root.path())).unwrap();
    assert!(!known.gpus.is_empty());
    let look = |earlier: &Inventory| super::super::asked(&host(root.path()), Some(earlier.clone()), false);
    let bus = root.path().join("sys/bus/pci/devices");
    fs::rename(&bus, root.path().join("away")).unwrap();
    for earlier in [&known, &Inventory::default()] {
        // The driver holds GPUs: that there is nothing cannot be.
        let why = look(earlier).err().unwrap();
        assert!(why.contains("sys/bus/pci/devices is not there") && why.contains("is /sys mounted"), "{why}");
    }
    fs::remove_dir_all(root.path().join("proc/driver/nvidia")).unwrap();
    assert!(look(&known).is_err());
    // A machine without PCI.
    assert_eq!(look(&Inventory::default()).unwrap().0.gpus, []);
    // One whose last GPU was taken out.
    fs::create_dir(&bus).unwrap();
    assert_eq!(look(&known).unwrap().0.gpus, []);
}

#[test]
fn sockets_and_firmware_are_found_and_somebody_elses_folder_is_not() {
    let root = tempfile::tempdir().unwrap();
    lay_out(root.path());
    let at = |name: &str| root.path().join(name);
    fs::create_dir_all(at("run/nvidia-persistenced")).unwrap();
    let _listens = std::os::unix::net::UnixListener::bind(at("run/nvidia-persistenced/socket")).unwrap();
    fs::create_dir_all(at("run/nvidia-fabricmanager")).unwrap();
    symlink("/run/docker.sock", at("run/nvidia-fabricmanager/socket")).unwrap();
    put(root.path(), "tmp/nvidia-mps", b"no folder");
    put(root.path(), &format!("lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"), b"");
    let files = discover(&host(root.path())).unwrap().files;
    let found: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.kind)).collect();
    let firmware = format!("/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin");
    assert_eq!(
        found,
        [(firmware.as_str(), FileKind::Firmware), ("/run/nvidia-persistenced/socket", FileKind::Persistenced)]
            .into_iter()
            .filter(|(_, kind)| *kind != FileKind::Firmware || nix::unistd::geteuid().is_root())
            .collect::<Vec<_>>()
    );
}

/// D13
#[test]
fn d13_a_driver_root_without_a_driver_is_named_and_nothing_is_taken_from_elsewhere() {
    let root = tempfile::tempdir().unwrap();
    lay_out(root.path());
    put(root.path(), &format!("usr/lib64/libcuda.so.{VERSION}"), &fixture::elf("libcuda.so.1"));
    fs::create_dir(root.path().join("empty")).unwrap();
    for (folder, code) in [("empty", "driver-root-empty"), ("absent", "driver-root-missing")] {
        let driver_root = format!("{}/{folder}", root.path().display());
        let inventory = discover(&Host { driver_root: driver_root.clone(), ..host(root.path()) }).unwrap();
        assert_eq!(inventory.libraries, [], "{folder}");
        let finding = inventory.findings.iter().find(|finding| finding.code == code).unwrap();
        assert!(finding.stops && finding.message.contains(&driver_root), "{finding:?}");
        let told =
            format!("[host] driver_root {driver_root} holds no driver libraries, and {}/usr/", root.path().display());
        let end = " is there; if that is the driver, take driver_root out";
        let whole = finding.message.starts_with(&told) && finding.message.ends_with(end);
        assert!(code != "driver-root-empty" || whole, "{finding:?}");
    }
}
