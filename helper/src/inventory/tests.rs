//! The assembly on made-up facts.

use std::collections::BTreeMap;

use contract::capability::Capability;
use contract::gpu::State;
use contract::inventory::{FileId, FileKind, Role};
use linker::elf::{Class, EM_X86_64, Elf, Kind};
use node::pci::Device;

use super::*;
use crate::inventory::files::{Candidate, Extra};
use crate::inventory::nodes::AtName;
use crate::inventory::root::Fault;

pub(super) const VERSION: &str = "535.309.01";

fn facts() -> Facts {
    let majors = [("nvidia", 195), ("nvidia-modeset", 195), ("nvidia-uvm", 511), ("nvidiactl", 195)];
    Facts {
        boot_id: "b".into(),
        driver_version: Some(VERSION.into()),
        majors: majors.map(|(name, major)| (name.into(), major)).to_vec(),
        driver_gpus: Vec::new(),
        ..Facts::default()
    }
}

fn function(pci: &str) -> Function {
    Function {
        device: Device { address: pci.into(), driver: Some("nvidia".into()), ..Device::default() },
        ..Function::default()
    }
}

fn held(pci: &str, minor: u32) -> (String, Information) {
    (pci.into(), Information { minor: Some(minor), uuid: Some(format!("GPU-{minor}")), ..Information::default() })
}

fn char_node(major: u32, minor: u32) -> AtName {
    AtName::Char { number: (major, minor), mode: 0o666, owner: (0, 0) }
}

/// Two GPUs whose minors are not their order on the bus, and all of the driver's nodes.
struct Made {
    facts: Facts,
    functions: Vec<Function>,
    held: Vec<(String, Information)>,
    nodes: BTreeMap<&'static str, AtName>,
    libraries: Vec<(Candidate, Option<Elf>)>,
    programs: Vec<Extra>,
    answers: Vec<Answer>,
    earlier: Option<Inventory>,
}

impl Made {
    fn new() -> Self {
        let nodes = [
            ("nvidia0", (195, 0)),
            ("nvidia1", (195, 1)),
            ("nvidiactl", (195, 255)),
            ("nvidia-modeset", (195, 254)),
            ("nvidia-uvm", (511, 0)),
            ("nvidia-uvm-tools", (511, 1)),
        ];
        Self {
            facts: facts(),
            functions: vec![function("0000:01:00.0"), function("0000:41:00.0")],
            held: vec![held("0000:01:00.0", 1), held("0000:41:00.0", 0)],
            nodes: nodes.into_iter().map(|(name, (major, minor))| (name, char_node(major, minor))).collect(),
            libraries: vec![
                library("libcuda", VERSION, "libcuda.so.1", Class::Elf64),
                library("libnvidia-ml", VERSION, "libnvidia-ml.so.1", Class::Elf64),
            ],
            programs: vec![Extra {
                path: "/usr/bin/nvidia-smi".into(),
                kind: FileKind::Program,
                capabilities: vec![Capability::Utility],
                candidate: candidate("usr/bin/nvidia-smi"),
                leads: None,
            }],
            answers: Vec::new(),
            earlier: None,
        }
    }

    fn inventory(self) -> Inventory {
        let look = |name: &str| self.nodes.get(name).cloned().unwrap_or(AtName::Missing);
        let seen = Seen {
            capabilities: Vec::new(),
            facts: self.facts,
            functions: self.functions,
            held: self.held,
            driver: Driver { libraries: self.libraries, files: self.programs },
            platform: None,
            findings: Vec::new(),
            answers: self.answers,
            earlier: self.earlier,
        };
        assemble(seen, &DevRoot { path: "/dev", look: &look })
    }
}

fn candidate(path: &str) -> Candidate {
    Candidate {
        real: format!("/{path}"),
        tree: "",
        found_by: "test".into(),
        id: FileId { dev: 1, ino: 2, size: 3, ctime: 4, ctime_nsec: 5 },
        fault: None,
    }
}

fn library(stem: &str, version: &str, soname: &str, class: Class) -> (Candidate, Option<Elf>) {
    let folder = if class == Class::Elf64 { "usr/lib64" } else { "usr/lib" };
    let elf = Elf {
        class,
        machine: EM_X86_64,
        kind: Kind::Shared,
        soname: Some(soname.into()),
        needed: Vec::new(),
        interp: None,
    };
    (candidate(&format!("{folder}/{stem}.so.{version}")), Some(elf))
}

pub(super) fn codes(inventory: &Inventory) -> Vec<(&str, bool)> {
    inventory.findings.iter().map(|finding| (finding.code.as_str(), finding.stops)).collect()
}

#[test]
fn a_healthy_node_in_pci_order_with_minors_of_its_own() {
    let inventory = Made::new().inventory();
    let known: Vec<_> = inventory
        .gpus
        .iter()
        .map(|gpu| (gpu.pci.as_str(), gpu.index, gpu.minor, gpu.nodes[0].path.as_str(), gpu.usable()))
        .collect();
    assert_eq!(
        known,
        [
            ("0000:01:00.0", Some(0), Some(1), "/dev/nvidia1", true),
            ("0000:41:00.0", Some(1), Some(0), "/dev/nvidia0", true)
        ]
    );
    let control: Vec<_> = inventory.control.iter().map(|node| (node.path.as_str(), node.major, node.minor)).collect();
    assert_eq!(
        control,
        [
            ("/dev/nvidiactl", 195, 255),
            ("/dev/nvidia-uvm", 511, 0),
            ("/dev/nvidia-uvm-tools", 511, 1),
            ("/dev/nvidia-modeset", 195, 254)
        ]
    );
    assert_eq!(inventory.libraries.len(), 2);
    assert_eq!(inventory.findings, []);
}

#[test]
fn nodes_that_are_missing_or_wrong() {
    let table: [(&str, Option<AtName>, &str, bool); 9] = [
        ("nvidia-uvm", None, "uvm-missing", false),
        ("nvidia-uvm-tools", None, "uvm-tools-missing", false),
        ("nvidia-modeset", None, "modeset-missing", false),
        ("nvidiactl", None, "ctl-missing", true),
        ("nvidia-uvm", Some(char_node(510, 0)), "node-mismatch", true),
        ("nvidia-uvm", Some(char_node(511, 1)), "node-mismatch", true),
        ("nvidiactl", Some(AtName::Other("a link".into())), "node-mismatch", true),
        ("nvidia0", Some(char_node(195, 1)), "node-mismatch", true),
        ("nvidia0", Some(char_node(1, 3)), "node-mismatch", true),
    ];
    for (name, at, code, stops) in table {
        let mut made = Made::new();
        match at.clone() {
            Some(at) => made.nodes.insert(name, at),
            None => made.nodes.remove(name),
        };
        let inventory = made.inventory();
        assert_eq!(codes(&inventory), [(code, stops)], "{name} {at:?}");
        assert!(inventory.findings[0].message.contains(name), "{:?}", inventory.findings);
        let all = inventory.gpus.iter().flat_map(|gpu| &gpu.nodes).chain(&inventory.control);
        assert!(all.into_iter().all(|node| node.path != format!("/dev/{name}")), "{name} {at:?}");
    }
}

/// D17: 0666 and 0660 of `video` are as they should be; 666 taken for decimal is not.
#[test]
fn modes_that_lock_everybody_out_are_told() {
    for (mode, told) in [(0o666, false), (0o660, false), (0o600, false), (0o1232, true), (0o440, true), (0, true)] {
        let mut made = Made::new();
        made.nodes.insert("nvidia1", AtName::Char { number: (195, 1), mode, owner: (0, 27) });
        let inventory = made.inventory();
        assert_eq!(codes(&inventory), if told { vec![("device-mode", false)] } else { vec![] }, "{mode:o}");
        let words = format!("/dev/nvidia1 (mode {mode:04o}, owner 0:27)");
        assert_eq!(inventory.findings.iter().any(|finding| finding.message.contains(&words)), told, "{mode:o}");
    }
}

#[test]
fn the_uvm_module_is_not_loaded_whatever_lies_in_dev() {
    let mut made = Made::new();
    made.facts.majors.retain(|(name, _)| name != "nvidia-uvm");
    let inventory = made.inventory();
    assert_eq!(codes(&inventory), [("uvm-missing", false), ("uvm-tools-missing", false)]);
    assert!(inventory.control.iter().all(|node| !node.path.contains("uvm")));
}

#[test]
fn an_older_driver_calls_its_major_nvidia_frontend() {
    let mut made = Made::new();
    made.facts.majors = vec![("nvidia-frontend".into(), 195), ("nvidia-uvm".into(), 511)];
    assert_eq!(codes(&made.inventory()), []);
}

#[test]
fn gpus_that_cannot_be_granted_say_why() {
    type Change = fn(&mut Made);
    let table: [(Change, State, &str); 12] = [
        (
            |made| made.functions[1].device.driver = None,
            State::Unbound,
            "write 0000:41:00.0 to /sys/bus/pci/drivers/nvidia/bind",
        ),
        (|made| made.functions[1].device.driver = Some("vfio-pci".into()), State::VfioGroup, "vfio-pci"),
        (
            |made| made.functions[1].device.driver = Some("nvgrace_gpu_vfio_pci".into()),
            State::VfioGroup,
            "no IOMMU group",
        ),
        (
            |made| {
                made.functions[1].device.driver = Some("vfio-pci".into());
                made.functions[1].device.iommu_group = Some(7);
            },
            State::Vfio,
            "IOMMU group 7, alone: viable",
        ),
        (
            |made| made.functions[1].device.driver = Some("nouveau".into()),
            State::OtherDriver,
            "/sys/bus/pci/drivers/nouveau/unbind",
        ),
        (|made| made.held.retain(|(pci, _)| pci != "0000:41:00.0"), State::Lost, "does not list"),
        (|made| made.held[1].1.excluded = true, State::Excluded, "excluded"),
        (|made| made.held[1].1.minor = None, State::NodeMissing, "device minor"),
        (
            |made| drop(made.nodes.remove("nvidia0")),
            State::NodeMissing,
            "/dev/nvidia0, the node of GPU-0, does not exist; run `nvidia-modprobe -c 0`",
        ),
        (
            |made| drop(made.nodes.insert("nvidia0", AtName::Other("a regular file".into()))),
            State::NodeMismatch,
            "a regular file",
        ),
        (|made| drop(made.nodes.insert("nvidia0", char_node(195, 9))), State::NodeMismatch, "device 195:9"),
        (|made| made.held[0].1.minor = Some(0), State::Ambiguous, "several GPUs"),
    ];
    for (change, state, part) in table {
        let mut made = Made::new();
        change(&mut made);
        let inventory = made.inventory();
        let gpu = &inventory.gpus[1];
        assert_eq!(gpu.unavailable.as_ref().map(|it| it.state), Some(state), "{part}");
        let reason = gpu.unavailable.as_ref().map_or("", |it| it.why.as_str());
        assert!(reason.contains(part), "{part}: {reason}");
        assert_eq!((gpu.index, gpu.nodes.as_slice()), (None, &[][..]), "{part}");
        let other = &inventory.gpus[0];
        assert_eq!(other.index, other.usable().then_some(0), "{part}");
    }
}

#[test]
fn without_a_driver_hardware_is_listed_and_nothing_given() {
    let mut made = Made::new();
    made.facts = Facts { boot_id: "b".into(), ..Facts::default() };
    made.held.clear();
    let inventory = made.inventory();
    assert_eq!(codes(&inventory), [("driver-missing", true)]);
    let states: Vec<_> = inventory.gpus.iter().map(|gpu| gpu.unavailable.as_ref().unwrap().state).collect();
    assert_eq!(states, [State::DriverMissing; 2]);
    assert!(inventory.control.is_empty() && inventory.libraries.is_empty() && inventory.files.is_empty());

    let mut made = Made::new();
    made.facts = Facts::default();
    made.functions.iter_mut().for_each(|function| function.device.driver = Some("vfio-pci".into()));
    assert_eq!(codes(&made.inventory()), [], "virtual machines need no driver here");

    let mut made = Made::new();
    made.functions.clear();
    let inventory = made.inventory();
    assert_eq!((inventory.gpus.len(), inventory.findings.len()), (0, 0), "a node without GPUs lacks nothing");
}

#[test]
fn only_the_loaded_version_is_given_out() {
    let old = |soname, stem| library(stem, "470.1", soname, Class::Elf64);
    type Row<'a> = (Vec<(Candidate, Option<Elf>)>, &'a [&'a str], &'a [(&'a str, bool)]);
    let table: [Row<'_>; 5] = [
        (Made::new().libraries, &["libcuda.so.1", "libnvidia-ml.so.1"], &[]),
        (
            [vec![old("libcuda.so.1", "libcuda")], Made::new().libraries].concat(),
            &["libcuda.so.1", "libnvidia-ml.so.1"],
            &[("driver-version-mixed", false)],
        ),
        (
            vec![old("libcuda.so.1", "libcuda"), old("libnvidia-ml.so.1", "libnvidia-ml")],
            &[],
            &[("driver-version-mismatch", true)],
        ),
        (Made::new().libraries.drain(1..).collect(), &["libnvidia-ml.so.1"], &[("library-missing", true)]),
        (vec![], &[], &[("library-missing", true)]),
    ];
    for (libraries, given, findings) in table {
        let names: Vec<_> = libraries.iter().map(|(candidate, _)| candidate.real.clone()).collect();
        let inventory = Made { libraries, ..Made::new() }.inventory();
        let sonames: Vec<_> = inventory.libraries.iter().map(|library| library.soname.as_str()).collect();
        assert_eq!((sonames.as_slice(), codes(&inventory).as_slice()), (given, findings), "{names:?}");
    }
}

#[test]
fn libraries_by_class_name_and_version_of_their_own() {
    let mut made = Made::new();
    made.libraries.push(library("libcuda", VERSION, "libcuda.so.1", Class::Elf32));
    made.libraries.push(library("libnvidia-egl-gbm", "1.1.0", "libnvidia-egl-gbm.so.1", Class::Elf64));
    made.libraries.push(library("libnvidia-somethingnew", VERSION, "libnvidia-somethingnew.so.1", Class::Elf64));
    made.libraries.push(library("libnvidia-somethingelse", "2.0", "libnvidia-somethingelse.so.2", Class::Elf64));
    let known: Vec<_> = made.inventory().libraries.into_iter().map(|library| (library.soname, library.bits)).collect();
    let expected = [
        ("libcuda.so.1", 64),
        ("libcuda.so.1", 32),
        ("libnvidia-egl-gbm.so.1", 64),
        ("libnvidia-ml.so.1", 64),
        ("libnvidia-somethingnew.so.1", 64),
    ];
    assert_eq!(known, expected.map(|(soname, bits)| (soname.to_owned(), bits)));
}

fn fault() -> Option<Fault> {
    Some(Fault { path: "/usr/lib64".into(), why: "belongs to user 7, must belong to root".into() })
}

#[test]
fn files_that_others_can_write_are_left_out() {
    let mut made = Made::new();
    made.programs[0].candidate.fault = fault();
    let inventory = made.inventory();
    assert_eq!((codes(&inventory).as_slice(), inventory.files.len()), (&[("file-untrusted", false)][..], 0));

    let mut made = Made::new();
    made.libraries[0].0.fault = fault();
    assert_eq!(codes(&made.inventory()), [("file-untrusted", false), ("library-missing", true)]);
}

#[test]
fn a_library_that_is_there_and_not_given_out_says_why() {
    type Change = fn(&mut Made);
    let table: [(Change, &str); 4] = [
        (|made| made.libraries[0].0.fault = fault(), "/usr/lib64 belongs to user 7"),
        (|made| made.libraries[0].1 = None, "it is no ELF library"),
        (|made| made.libraries[0].1.as_mut().unwrap().kind = Kind::Other(0), "it is no ELF library"),
        (|made| made.libraries[0].1.as_mut().unwrap().soname = Some("libother.so.1".into()), "libother.so.1"),
    ];
    for (change, part) in table {
        let mut made = Made::new();
        // Another version beside it does not hide the reason.
        made.libraries.push(library("libcuda", "470.1", "libcuda.so.1", Class::Elf64));
        change(&mut made);
        let inventory = made.inventory();
        let finding = inventory.findings.iter().find(|finding| finding.stops).unwrap();
        assert_eq!(finding.code, "library-missing", "{part}");
        for part in [part, "no libcuda.so.1 of the loaded driver", "/usr/lib64/libcuda.so.535.309.01"] {
            assert!(finding.message.contains(part), "{part}: {}", finding.message);
        }
    }
}

#[test]
fn display_nodes_follow_their_gpu() {
    let mut made = Made::new();
    made.functions[1].drm = vec![("card1".into(), 226, 1), ("renderD128".into(), 226, 128), ("card9".into(), 226, 9)];
    made.nodes.insert("dri/card1", char_node(226, 1));
    made.nodes.insert("dri/renderD128", char_node(226, 128));
    let inventory = made.inventory();
    let nodes: Vec<_> = inventory.gpus[1].nodes.iter().map(|node| (node.path.as_str(), node.role)).collect();
    assert_eq!(
        nodes,
        [("/dev/nvidia0", Role::Compute), ("/dev/dri/card1", Role::Display), ("/dev/dri/renderD128", Role::Render)]
    );
}

#[test]
fn changes_are_named() {
    let old = Made::new().inventory();
    assert_eq!(changes(Some(&old), &old), Vec::<String>::new());
    assert!(changes(None, &old).iter().any(|line| line == "+ driver: 535.309.01"));

    let mut new = old.clone();
    new.facts.driver_version = Some("550.1".into());
    new.libraries.remove(0);
    new.libraries[0].id.ino += 1;
    new.control[0].mode = 0o660;
    let lines = changes(Some(&old), &new);
    let expected = [
        "~ driver: 535.309.01 -> 550.1",
        "- library libcuda.so.1 (64-bit): /usr/lib64/libcuda.so.535.309.01",
        "~ library libnvidia-ml.so.1 (64-bit): /usr/lib64/libnvidia-ml.so.535.309.01 was replaced",
        "~ node /dev/nvidiactl: /dev/nvidiactl 195:255, mode 0666, owner 0:0 -> /dev/nvidiactl 195:255, mode 0660, owner 0:0",
    ];
    assert_eq!(lines, expected);
}
