//! Both formats as tables, and as what is written is read back.

use contract::gpu::{Gpu, MigMode, Partition, State, Unavailable};
use contract::inventory::Inventory;
use proptest::prelude::*;

use super::super::view::views;
use super::*;

fn vfio(pci: &str, model: Option<&str>) -> Gpu {
    Gpu {
        pci: pci.into(),
        device_id: "0x2684".into(),
        model: model.map(str::to_owned),
        driver: Some("vfio-pci".into()),
        unavailable: Some(Unavailable::new(State::Vfio, "w")),
        ..Gpu::default()
    }
}

/// Functions that share a group with others here.
fn members(pci: &str) -> Vec<String> {
    match pci {
        "0000:01:00.0" | "0000:02:00.0" => vec!["0000:02:00.0".into(), "0000:01:00.1".into(), "0000:01:00.0".into()],
        "0000:03:00.0" => vec!["0000:03:00.0".into(), "0000:03:00.1".into()],
        _ => Vec::new(),
    }
}

#[test]
fn a_group_is_one_line_and_counts_its_displays() {
    let known = Gpu {
        uuid: Some("GPU-1".into()),
        memory_mb: Some(24564),
        mig: Some(MigMode { enabled: false, pending: false }),
        ..vfio("0000:03:00.0", Some("NVIDIA GeForce RTX 4090"))
    };
    let bound = Gpu { driver: Some("nvidia".into()), unavailable: None, ..vfio("0000:05:00.0", Some("NVIDIA L4")) };
    for (gpus, lines) in [
        (vec![bound], ""),
        (vec![vfio("0000:04:00.0", None)], "1 2684 0000:04:00.0 | bus_id=0000:04:00.0"),
        (
            vec![known],
            "1 rtx4090 0000:03:00.0 0000:03:00.1 | bus_id=0000:03:00.0;uuid=GPU-1;model=NVIDIA GeForce RTX 4090;memory_mb=24564;mig_mode=disabled",
        ),
        (
            vec![vfio("0000:01:00.0", None), vfio("0000:02:00.0", None)],
            "2 2684 0000:01:00.0 0000:01:00.1 0000:02:00.0 | bus_id=0000:01:00.0 | bus_id=0000:02:00.0",
        ),
        (vec![vfio("0000:04:00.0", Some("a;b|c\nd"))], "1 2684 0000:04:00.0 | bus_id=0000:04:00.0;model=a b c d"),
    ] {
        let inventory = Inventory { gpus, ..Inventory::default() };
        let groups = groups(&views(&inventory, &|_| false), &members);
        let written: Vec<String> = groups.iter().map(Group::to_string).collect();
        assert_eq!(written.join("\n"), lines);
        assert_eq!(read_groups(lines).unwrap(), groups);
    }
}

#[test]
fn instances_that_can_be_granted() {
    let part = |index: u32, uuid: Option<&str>, lost: bool| Partition {
        kind: "mig".into(),
        index,
        gi: index,
        ci: 0,
        profile: "1g.10gb".into(),
        uuid: uuid.map(str::to_owned),
        memory_mb: None,
        nodes: Vec::new().into(),
        unavailable: lost.then(|| Unavailable::new(State::NodeMissing, "w")),
    };
    let gpu = |uuid: Option<&str>| Gpu {
        uuid: uuid.map(str::to_owned),
        model: Some("NVIDIA H100 80GB HBM3".into()),
        partitions: vec![part(0, Some("MIG-a"), false), part(1, None, false), part(2, Some("MIG-c"), true)],
        ..Gpu::default()
    };
    for (uuid, line) in [(Some("GPU-1"), "1g.10gb h100 MIG-a GPU-1"), (None, "1g.10gb h100 MIG-a")] {
        let inventory = Inventory { gpus: vec![gpu(uuid)], ..Inventory::default() };
        let instances = instances(&views(&inventory, &|_| false));
        assert_eq!(instances.iter().map(Instance::to_string).collect::<Vec<_>>(), [line]);
        assert_eq!(read_instances(line).unwrap(), instances);
    }
}

#[test]
fn what_others_write_is_read_or_told_where_it_is_wrong() {
    for (line, read) in [
        // Other spellings, order, unknown keys, no facts at all.
        ("1 RTX4090 01:00.0", Ok("1 rtx4090 0000:01:00.0")),
        ("  2 l4  0000:02:00.0 00000000:01:00.0  ", Ok("2 l4 0000:01:00.0 0000:02:00.0")),
        ("1 l4 01:00.0 | colour=red;memory_mb=5; uuid=GPU-1 ;", Ok("1 l4 0000:01:00.0 | uuid=GPU-1;memory_mb=5")),
        ("# a comment\n\n1 l4 01:00.0 |", Ok("1 l4 0000:01:00.0 | ")),
        ("x l4 01:00.0", Err("line 1: \"x\" is no count of GPUs")),
        ("0 l4 01:00.0", Err("line 1: \"0\" is no count of GPUs")),
        ("\n1", Err("line 2: the kind is missing")),
        ("1 l4", Err("1 GPUs are counted, and there are 0 PCI addresses")),
        ("2 l4 01:00.0 0000:01:00.0", Err("2 GPUs are counted, and there are 1 PCI addresses")),
        ("1 l4 01:00", Err("\"01:00\" is no PCI address")),
        ("1 l4 01:00.0 | uuid", Err("\"uuid\" is no key=value")),
        ("1 l4 01:00.0 | memory_mb=much", Err("memory_mb \"much\" is no whole number")),
        ("1 l4 01:00.0 | bus_id=x", Err("bus_id \"x\" is no PCI address")),
    ] {
        let found = read_groups(line);
        match read {
            Ok(written) => assert_eq!(found.unwrap()[0].to_string(), written, "{line}"),
            Err(why) => assert!(found.as_ref().is_err_and(|found| found.contains(why)), "{line}: {found:?}"),
        }
    }
    for (line, read) in [
        ("1g.10gb H100 MIG-a", Ok("1g.10gb h100 MIG-a")),
        ("1g.10gb h100", Err("line 1: a line is <profile>")),
        ("1g.10gb h100 GPU-1", Err("is no UUID of an instance")),
        ("1g.10gb h100 MIG-a GPU-1 more", Err("a line is <profile>")),
    ] {
        let found = read_instances(line);
        match read {
            Ok(written) => assert_eq!(found.unwrap()[0].to_string(), written, "{line}"),
            Err(why) => assert!(found.as_ref().is_err_and(|found| found.contains(why)), "{line}: {found:?}"),
        }
    }
}

proptest! {
    /// Whatever a driver calls its products and whatever shares a group.
    #[test]
    fn what_is_written_is_read_back(gpus in proptest::collection::vec((0u8..8, ".{0,30}", proptest::option::of("[ -~]{1,20}"), proptest::option::of(0u64..1 << 40)), 1..6)) {
        let mut seen = Vec::new();
        let gpus: Vec<Gpu> = gpus.into_iter().filter(|(bus, ..)| !seen.contains(bus) && { seen.push(*bus); true }).map(|(bus, model, uuid, memory_mb)| Gpu {
            uuid, memory_mb, ..vfio(&format!("0000:0{bus}:00.0"), Some(&model))
        }).collect();
        let inventory = Inventory { gpus, ..Inventory::default() };
        let written = groups(&views(&inventory, &|_| false), &members);
        let text: String = written.iter().map(|group| format!("{group}\n")).collect();
        prop_assert_eq!(text.lines().count(), written.len());
        prop_assert_eq!(read_groups(&text).unwrap(), written);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[0-9a-z:.|;= \n#-]{0,80}") {
        if let Ok(groups) = read_groups(&text) {
            let again: String = groups.iter().map(|group| format!("{group}\n")).collect();
            prop_assert_eq!(read_groups(&again).unwrap(), groups);
        }
        let _ = read_instances(&text);
    }
}

#[test]
fn a_count_of_any_size_is_a_count() {
    for (text, is) in [
        ("4294967296 h100 0000:01:00.0", true),
        ("-1 h100 0000:01:00.0", true),
        ("# list\n\n 1\th100 0000:01:00.0", true),
        ("", true),
        ("1g.10gb h100 MIG-1", false),
        ("MIG-1", false),
    ] {
        assert_eq!(begins_with_a_number(text), is, "{text}");
    }
    for count in ["4294967296", "-1", "0"] {
        let why = read_groups(&format!("{count} h100 0000:01:00.0")).unwrap_err();
        assert!(why.starts_with(&format!("line 1: {count:?} is no count of GPUs")), "{why}");
    }
}
