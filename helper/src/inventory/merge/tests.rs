//! What comes of sources that agree, disagree, fail and forget.

use contract::gpu::{Link, LinkKind, MigMode};
use contract::inventory::Facts;
use proptest::prelude::*;

use super::*;
use crate::inventory::told::{SMI, ToldInstance};

const PCI: [&str; 3] = ["0000:01:00.0", "0000:41:00.0", "0000:81:00.0"];

fn name(number: usize) -> String {
    format!("GPU-{number}")
}

/// GPUs as the kernel shows them, and the driver's words about them.
fn node() -> (Inventory, Vec<(String, Information)>) {
    let information = |at: usize| Information {
        uuid: Some(name(at)),
        minor: u32::try_from(at).ok(),
        model: Some("NVIDIA A100".into()),
        ..Information::default()
    };
    let held: Vec<_> = PCI.iter().enumerate().map(|(at, pci)| ((*pci).to_owned(), information(at))).collect();
    let facts = Facts { boot_id: "boot".into(), driver_version: Some("550.1".into()), ..Facts::default() };
    (Inventory { gpus: gpus(&held), facts, ..Inventory::default() }, held)
}

fn gpus(held: &[(String, Information)]) -> Vec<Gpu> {
    let gpu = |(pci, held): &(String, Information)| Gpu {
        pci: pci.clone(),
        driver: Some("nvidia".into()),
        device_id: "0x20b0".into(),
        uuid: held.uuid.clone(),
        minor: held.minor,
        model: held.model.clone(),
        ..Gpu::default()
    };
    held.iter().map(gpu).collect()
}

/// What a source tells that agrees with the kernel.
fn agreeing(source: &str) -> Told {
    let gpu = |(at, pci): (usize, &&str)| ToldGpu {
        pci: (*pci).into(),
        uuid: Some(name(at)),
        minor: u32::try_from(at).ok(),
        model: Some("NVIDIA A100-SXM4".into()),
        memory_mb: Some(40960),
        compute_capability: Some("8.0".into()),
        virtualization: Some("none".into()),
        mig: Some(MigMode { enabled: false, pending: false }),
        ..ToldGpu::default()
    };
    Told {
        source: source.into(),
        driver_version: Some("550.1".into()),
        cuda_version: Some("12.4".into()),
        gpus: PCI.iter().enumerate().map(gpu).collect(),
        links: vec![Link { a: PCI[0].into(), b: PCI[1].into(), kind: LinkKind::Nvlink, lanes: 12 }],
    }
}

fn merged(answers: &[Answer], earlier: Option<&Inventory>) -> (Inventory, Vec<Finding>) {
    let (inventory, held) = node();
    merged_from(inventory, &held, answers, earlier)
}

/// As `assemble` does it.
fn merged_from(
    mut inventory: Inventory,
    held: &[(String, Information)],
    answers: &[Answer],
    earlier: Option<&Inventory>,
) -> (Inventory, Vec<Finding>) {
    let before = std::mem::replace(&mut inventory.gpus, gpus(&completed(held, answers)));
    for (gpu, before) in inventory.gpus.iter_mut().zip(before) {
        (gpu.driver, gpu.unavailable, gpu.device_id) = (before.driver, before.unavailable, before.device_id);
    }
    let findings = merge(&mut inventory, held, answers, earlier);
    (inventory, findings)
}

fn states(inventory: &Inventory) -> Vec<Option<State>> {
    inventory.gpus.iter().map(|gpu| gpu.unavailable.as_ref().map(|it| it.state)).collect()
}

fn codes(findings: &[Finding]) -> Vec<(&str, bool)> {
    findings.iter().map(|finding| (finding.code.as_str(), finding.stops)).collect()
}

fn source<'a>(gpu: &'a Gpu, datum: &str) -> Option<&'a str> {
    gpu.sources.iter().find(|(is, _)| is == datum).map(|(_, source)| source.as_str())
}

#[test]
fn each_datum_is_from_the_most_trusted_source_and_says_which() {
    let mut xml = agreeing(SMI);
    xml.gpus[0].compute_capability = Some("0.0".into());
    let mut nvml = agreeing(NVML);
    nvml.gpus[1].memory_mb = None;
    let (inventory, findings) = merged(&[Ok(xml), Ok(nvml)], None);
    assert_eq!(codes(&findings), []);
    let [a, b, _] = inventory.gpus.as_slice() else { panic!() };
    assert_eq!((a.model.as_deref(), source(a, "model")), (Some("NVIDIA A100"), Some(PROCFS)));
    assert_eq!((a.compute_capability.as_deref(), source(a, "compute_capability")), (Some("8.0"), Some(NVML)));
    assert_eq!((b.memory_mb, source(b, "memory_mb")), (Some(40960), Some(SMI)));
    assert_eq!((source(a, "uuid"), source(a, "minor")), (Some(PROCFS), Some(PROCFS)));
    assert_eq!(inventory.cuda_version.as_deref(), Some("12.4"));
    assert_eq!(inventory.links.len(), 1);
    assert_eq!(inventory.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
}

#[test]
fn names_that_the_driver_does_not_tell_come_from_others() {
    let (inventory, mut held) = node();
    held[1].1 = Information::default();
    let (inventory, findings) = merged_from(inventory, &held, &[Ok(agreeing(NVML))], None);
    let gpu = &inventory.gpus[1];
    assert_eq!((gpu.uuid.as_deref(), source(gpu, "uuid")), (Some("GPU-1"), Some(NVML)));
    assert_eq!((gpu.minor, source(gpu, "minor")), (Some(1), Some(NVML)));
    assert_eq!(codes(&findings), []);
}

#[test]
fn a_name_that_two_sources_give_differently_is_not_granted() {
    type Change = fn(&mut ToldGpu);
    let table: [(Change, &str); 3] = [
        (|gpu| gpu.minor = Some(7), "device minor: 1 (procfs), 7 (nvml)"),
        (|gpu| gpu.uuid = Some("GPU-7".into()), "UUID: GPU-1 (procfs), GPU-7 (nvml)"),
        (|gpu| (gpu.minor, gpu.uuid) = (Some(0), Some(name(0))), "GPU-0 (nvml); device minor: 1 (procfs), 0 (nvml)"),
    ];
    for (change, words) in table {
        let mut nvml = agreeing(NVML);
        change(&mut nvml.gpus[1]);
        let (inventory, findings) = merged(&[Ok(nvml)], None);
        assert_eq!(states(&inventory), [None, Some(State::Ambiguous), None], "{words}");
        assert_eq!(codes(&findings), [("source-conflict", false)], "{words}");
        assert!(findings[0].message.contains(words) && findings[0].message.contains(PCI[1]), "{findings:?}");
    }
    let mut spelled = agreeing(NVML);
    spelled.gpus[1].uuid = Some("gpu-1".into());
    assert_eq!(codes(&merged(&[Ok(spelled)], None).1), []);
}

#[test]
fn what_cannot_be_about_this_node_is_a_finding_and_stops_nothing() {
    type Change = fn(&mut Told);
    let table: [(Change, &str, &str); 3] = [
        (|told| told.gpus[0].pci = "0000:ff:00.0".into(), "source-conflict", "a GPU 0000:ff:00.0"),
        (|told| told.driver_version = Some("570.1".into()), "source-conflict", "570.1, and the kernel that 550.1"),
        (|told| told.gpus.clear(), "source-failed", "lists no GPU, and the driver holds 3"),
    ];
    for (change, code, words) in table {
        let mut nvml = agreeing(NVML);
        change(&mut nvml);
        let (inventory, findings) = merged(&[Ok(nvml)], None);
        assert_eq!(states(&inventory), [None; 3], "{words}");
        assert_eq!(codes(&findings), [(code, false)], "{words}");
        assert!(findings[0].message.contains(words), "{findings:?}");
    }
}

#[test]
fn a_gpu_that_a_source_gives_up_is_unavailable_and_the_others_are_not() {
    for state in [State::Lost, State::Failing] {
        let mut nvml = agreeing(NVML);
        nvml.gpus[0].unavailable = Some(Unavailable::new(state, "it says so"));
        let (inventory, findings) = merged(&[Ok(nvml)], None);
        assert_eq!(states(&inventory), [Some(state), None, None]);
        assert_eq!(codes(&findings), []);
        assert_eq!(inventory.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [None, Some(0), Some(1)]);
    }
}

/// D21: the mode outlives a reboot, the instances do not.
#[test]
fn d21_mig_mode_without_instances_is_neither_a_gpu_nor_a_part() {
    let mut nvml = agreeing(NVML);
    nvml.gpus[0].mig = Some(MigMode { enabled: true, pending: true });
    nvml.gpus[1].mig = Some(MigMode { enabled: true, pending: true });
    nvml.gpus[1].instances = vec![ToldInstance::default()];
    nvml.gpus[2].mig = Some(MigMode { enabled: false, pending: true });
    let (inventory, _) = merged(&[Ok(nvml)], None);
    assert_eq!(states(&inventory), [Some(State::MigEmpty), None, None]);
    let why = &inventory.gpus[0].unavailable.as_ref().unwrap().why;
    assert!(why.contains("there are no instances"), "{why}");
}

#[test]
fn a_source_that_fails_is_a_finding_and_erases_nothing() {
    let (earlier, _) = merged(&[Ok(agreeing(NVML))], None);
    for (kind, code, stops, part) in [
        (Kind::Failed, "source-failed", false, "nvml tells nothing: why"),
        (Kind::Slow, "source-failed", false, "nvml tells nothing: why"),
        (Kind::Mismatch, "driver-version-mismatch", true, "the loaded module is 550.1"),
    ] {
        let silence = || Err(Silence { source: NVML.into(), kind, why: "why".into() });
        let (inventory, findings) = merged(&[silence()], Some(&earlier));
        assert_eq!(codes(&findings), [(code, stops)]);
        assert!(findings[0].message.contains(part), "{findings:?}");
        let gpu = &inventory.gpus[0];
        assert_eq!((gpu.memory_mb, source(gpu, "memory_mb")), (Some(40960), Some(EARLIER)));
        assert_eq!((gpu.mig, gpu.virtualization.as_deref()), (earlier.gpus[0].mig, Some("none")));
        assert_eq!((inventory.links.len(), inventory.cuda_version.as_deref()), (1, Some("12.4")));
        assert_eq!(source(gpu, "uuid"), Some(PROCFS));
        // The next time too.
        let (again, _) = merged(&[silence()], Some(&inventory));
        assert_eq!(again, inventory);

        // Under another driver, modes and links may be others.
        let mut other = earlier.clone();
        other.facts.driver_version = Some("535.1".into());
        let (inventory, _) = merged(&[silence()], Some(&other));
        assert_eq!((inventory.gpus[0].mig, inventory.links.len(), inventory.cuda_version), (None, 0, None));
        assert_eq!(inventory.gpus[0].memory_mb, Some(40960));
    }
}

#[test]
fn a_gpu_that_was_given_up_is_not_mended_by_a_source_that_fails() {
    let mut nvml = agreeing(NVML);
    nvml.gpus[0].unavailable = Some(Unavailable::new(State::Failing, "it says so"));
    nvml.gpus[1].mig = Some(MigMode { enabled: true, pending: true });
    let silence = || Err(Silence::failed(NVML, "why"));
    let bad = [Some(State::Failing), Some(State::MigEmpty), None];
    let (earlier, _) = merged(&[Ok(nvml)], None);
    assert_eq!(states(&earlier), bad);
    let (again, _) = merged(&[silence()], Some(&earlier));
    assert_eq!(states(&merged(&[silence()], Some(&again)).0), bad);
    // Nor by nobody being asked, nor by one who may not look at it.
    assert_eq!(states(&merged(&[], Some(&again)).0), [Some(State::Failing), None, None]);
    let mut blind = agreeing(NVML);
    blind.gpus[0] = ToldGpu { pci: PCI[0].into(), ..ToldGpu::default() };
    assert_eq!(states(&merged(&[Ok(blind)], Some(&again)).0), [Some(State::Failing), None, None]);
    // Somebody who answers does, also where another fails, and so does another driver.
    assert_eq!(states(&merged(&[Ok(agreeing(NVML))], Some(&again)).0), [None; 3]);
    assert_eq!(states(&merged(&[silence(), Ok(agreeing(SMI))], Some(&again)).0), [None; 3]);
    let mut other = earlier.clone();
    other.facts.driver_version = Some("535.1".into());
    assert_eq!(states(&merged(&[silence()], Some(&other)).0), [None; 3]);
    // What the driver itself had given up is seen in its own files.
    let mut unlisted = earlier;
    unlisted.gpus[0].minor = None;
    assert_eq!(states(&merged(&[silence()], Some(&unlisted)).0), [None, Some(State::MigEmpty), None]);
}

#[test]
fn what_was_known_of_a_gpu_stays_when_a_virtual_machine_takes_it() {
    let (earlier, _) = merged(&[Ok(agreeing(NVML))], None);
    let taken = |held: &mut Vec<(String, Information)>, inventory: &mut Inventory| {
        held.remove(1);
        let gpu = &mut inventory.gpus[1];
        (gpu.driver, gpu.uuid, gpu.minor, gpu.model) = (Some("vfio-pci".into()), None, None, None);
        gpu.unavailable = Some(Unavailable::new(State::Vfio, "bound to vfio-pci"));
    };
    let (mut inventory, mut held) = node();
    taken(&mut held, &mut inventory);
    let before = inventory.clone();
    let told = || vec![Ok(agreeing(NVML))];
    let answers: Vec<Answer> = told();
    merge(&mut inventory, &held, &answers[..0], Some(&earlier));
    let gpu = &inventory.gpus[1];
    assert_eq!(
        (gpu.uuid.as_deref(), gpu.model.as_deref(), gpu.memory_mb, gpu.minor),
        (Some("GPU-1"), Some("NVIDIA A100"), Some(40960), None)
    );
    assert_eq!((source(gpu, "uuid"), source(gpu, "model")), (Some(EARLIER), Some(EARLIER)));
    assert_eq!(gpu.mig, None, "a mode is not for ever");

    // After a boot, and in another card, it is another GPU.
    for change in [(|old: &mut Inventory| old.facts.boot_id = "other".into()) as fn(&mut Inventory), |old| {
        old.gpus[1].device_id = "0x2230".into()
    }] {
        let mut old = earlier.clone();
        change(&mut old);
        let mut inventory = before.clone();
        merge(&mut inventory, &held, &[], Some(&old));
        assert_eq!(inventory.gpus[1].uuid, None);
    }
}

/// D28: another card in the same slot.
#[test]
fn d28_a_card_that_was_swapped_has_nothing_of_the_old_one() {
    let (mut earlier, _) = merged(&[Ok(agreeing(NVML))], None);
    earlier.gpus[1].uuid = Some("GPU-old".into());
    earlier.gpus[1].memory_mb = Some(1);
    let (inventory, _) = merged(&[], Some(&earlier));
    assert_eq!((inventory.gpus[1].uuid.as_deref(), inventory.gpus[1].memory_mb), (Some("GPU-1"), None));

    // The old card now works elsewhere: its name is not remembered for the slot that it left.
    let (inventory, mut held) = node();
    let (mut earlier, _) = merged(&[], None);
    earlier.gpus[1].uuid = Some(name(2));
    held[1].1.uuid = None;
    let (inventory, _) = merged_from(inventory, &held, &[], Some(&earlier));
    assert_eq!((inventory.gpus[1].uuid.as_deref(), inventory.gpus[2].uuid.as_deref()), (None, Some("GPU-2")));
    assert_eq!(states(&inventory), [None; 3]);
}

/// D28: a name that is gone is remembered with where it was, until it is back; not more of them than a machine has.
#[test]
fn d28_names_that_are_gone_are_remembered() {
    let (first, _) = merged(&[], None);
    assert_eq!(first.former, None);
    let next = |before: &Inventory, names: [Option<&str>; 3], boot: &str| {
        let (mut inventory, mut held) = node();
        inventory.facts.boot_id = boot.into();
        for ((gpu, (_, held)), name) in inventory.gpus.iter_mut().zip(&mut held).zip(names) {
            (gpu.uuid, held.uuid) = (name.map(str::to_owned), name.map(str::to_owned));
        }
        merged_from(inventory, &held, &[], Some(before)).0
    };
    let at = |list: &[(&str, usize)]| {
        let list: Vec<_> = list.iter().map(|(name, slot)| ((*name).to_owned(), PCI[*slot].to_owned())).collect();
        Some(list).filter(|list| !list.is_empty())
    };
    let mut now = first;
    for (names, boot, gone) in [
        ([Some("GPU-0"), Some("gpu-1"), Some("GPU-2")], "boot", &[][..]),
        ([Some("GPU-0"), Some("GPU-b"), Some("GPU-2")], "boot", &[("gpu-1", 1)]),
        // It has not told its name yet: it is the one of before. After a boot nobody knows.
        ([Some("GPU-0"), None, Some("GPU-2")], "boot", &[("gpu-1", 1)]),
        ([Some("GPU-0"), None, Some("GPU-2")], "next", &[("gpu-1", 1), ("GPU-b", 1)]),
        // Two change places, and one of before is back elsewhere.
        ([Some("GPU-2"), Some("GPU-0"), Some("GPU-B")], "next", &[("gpu-1", 1)]),
        ([Some("GPU-2"), Some("GPU-1"), Some("GPU-9")], "next", &[("GPU-0", 1), ("GPU-B", 2)]),
        ([Some("GPU-2"), Some("GPU-1"), Some("GPU-b")], "next", &[("GPU-0", 1), ("GPU-9", 2)]),
    ] {
        now = next(&now, names, boot);
        assert_eq!(now.former, at(gone), "{names:?}");
    }
    for n in 0..40 {
        now = next(&now, [Some(&format!("GPU-x{n}")), None, None], "next");
    }
    let former = now.former.unwrap();
    assert_eq!((former.len(), former.last().unwrap().0.as_str()), (MOST_FORMER, "GPU-x38"));
}

/// Anything that a source may say about names, from a small world in which they often meet.
fn any_information() -> impl Strategy<Value = Information> {
    let uuid = prop::option::of((0_usize..4, any::<bool>()));
    (uuid, prop::option::of(0_u32..4)).prop_map(|(uuid, minor)| Information {
        uuid: uuid.map(|(number, upper)| if upper { name(number).to_uppercase() } else { name(number) }),
        minor,
        ..Information::default()
    })
}

fn any_told(source: &'static str) -> impl Strategy<Value = Told> {
    let gpu = |information: Information, pci: &str| ToldGpu {
        pci: pci.into(),
        uuid: information.uuid,
        minor: information.minor,
        ..ToldGpu::default()
    };
    prop::collection::vec(any_information(), 0..4).prop_map(move |gpus| Told {
        source: source.into(),
        gpus: gpus.into_iter().zip(PCI).map(|(information, pci)| gpu(information, pci)).collect(),
        ..Told::default()
    })
}

proptest! {
    #[test]
    fn no_two_usable_gpus_share_a_name_and_the_order_of_sources_is_nothing(
        held in prop::collection::vec(any_information(), 3),
        earlier in prop::collection::vec(any_information(), 3),
        nvml in prop::option::of(any_told(NVML)),
        smi in any_told(SMI),
    ) {
        let words = |list: Vec<Information>| -> Vec<_> { PCI.iter().map(|pci| (*pci).to_owned()).zip(list).collect() };
        let (inventory, _) = node();
        let (held, earlier) = (words(held), Inventory { gpus: gpus(&words(earlier)), ..inventory.clone() });
        let nvml = nvml.ok_or_else(|| Silence::failed(NVML, "why"));
        let (one, findings) = merged_from(inventory.clone(), &held, &[nvml.clone(), Ok(smi.clone())], Some(&earlier));
        let (other, others) = merged_from(inventory, &held, &[Ok(smi), nvml], Some(&earlier));
        prop_assert_eq!(&one, &other);
        prop_assert_eq!(findings.len(), others.len());
        let usable: Vec<_> = one.gpus.iter().filter(|gpu| gpu.usable()).collect();
        for (at, gpu) in usable.iter().enumerate() {
            for other in usable.iter().skip(at + 1) {
                prop_assert!(gpu.minor.is_none() || gpu.minor != other.minor);
                prop_assert!(uuid(gpu).is_none() || uuid(gpu) != uuid(other));
            }
        }
    }
}
