//! Privileged containers that the operator lets have GPUs: a list of everything that this machine has, but GPUs.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::HashMap;

use common::{By, Fake, NVIDIA, Spec, gpu, judge_text, majors, verdict};
use contract::exception::{Exception, Excusable};
use contract::rule::{Kind, Rule};
use guard::{Judgement, Numbers, granted_rules, open_gpus, openable};
use proptest::prelude::*;

const GRANTED: [(u32, u32); 3] = [(195, 0), (195, 255), (511, 0)];

fn excusing(rule: &'static str) -> By {
    By { exceptions: vec![Exception { rules: vec![Excusable(rule)], ..Exception::default() }], ..gpu() }
}

fn judged(spec: &Spec, fake: &Fake) -> (Judgement, Vec<Rule>, Numbers) {
    let judgement = judge_text(&spec.text(), &excusing("privileged"), fake);
    assert_eq!(verdict(&judgement), "ok");
    assert_eq!(judgement.changes.rules, None, "the contract's list is made later");
    let numbers = judgement.gpus.clone().unwrap();
    let list = granted_rules(&judgement.rules, &GRANTED, &numbers);
    (judgement, list, numbers)
}

/// D4: the engine's own entries go, what was granted is all that opens.
#[test]
fn privileged_with_gpus_where_a_list_names_it() {
    let node = |path: &str, major: u32, minor: u32| {
        format!(r#"{{"path":"{path}","type":"c","major":{major},"minor":{minor}}}"#)
    };
    let devices = [node("/dev/fuse", 10, 229), node("/dev/nvidia0", 195, 0), node("/dev/nvidia1", 195, 1)].join(",");
    let spec = Spec { devices: format!("[{devices}]"), ..Spec::privileged() };
    let (judgement, list, numbers) = judged(&spec, &Fake::default());
    assert_eq!(judgement.changes.drop_devices, [1, 2]);
    let notes: Vec<_> = judgement.notes.iter().map(|note| note.rule).collect();
    assert!(notes.contains(&"privileged") && notes.contains(&"cgroup-canon") && notes.contains(&"device-gpu"));
    assert_eq!(open_gpus(&list, &numbers, &GRANTED), None);
    for (major, minor, open) in [
        (195, 0, true),
        (195, 1, false),
        (195, 255, true),
        (511, 0, true),
        (511, 1, false),
        (510, 1, false),
        (506, 12, false),
        (1, 1, false),
        (1, 3, true),
        (1, 8, true),
        (10, 196, false),
        (10, 259, false),
        (10, 229, true),
        (10, 200, true),
        (10, 124, true),
        (226, 0, false),
        (226, 1, true),
        (226, 129, true),
        (226, 9, false),
        (136, 5, true),
        (231, 192, true),
        (505, 3, true),
        (116, 0, true),
    ] {
        assert_eq!(openable(&list, major, minor), open, "{major}:{minor}");
    }
    assert!(list.contains(&Rule { allow: true, kind: Kind::Block, major: None, minor: None, ..Rule::ALLOW_ALL }));
    assert_eq!(verdict(&judge_text(&spec.text(), &gpu(), &Fake::default())), "UNSAFE_SPEC privileged");
    assert_eq!(
        verdict(&judge_text(&spec.text(), &excusing("cgroup-wildcard"), &Fake::default())),
        "UNSAFE_SPEC privileged"
    );
}

/// A list that allows everything, without privilege: by its own name.
#[test]
fn everything_with_gpus() {
    for list in [
        r#"[{"allow":true,"access":"rwm"}]"#,
        r#"[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","access":"rwm"}]"#,
    ] {
        let spec = Spec::whole_list(list);
        let judgement = judge_text(&spec.text(), &excusing("cgroup-wildcard"), &Fake::default());
        assert_eq!(verdict(&judgement), "ok");
        let numbers = judgement.gpus.clone().unwrap();
        let written = granted_rules(&judgement.rules, &GRANTED, &numbers);
        assert_eq!(open_gpus(&written, &numbers, &GRANTED), None);
        assert!(openable(&written, 10, 229) && openable(&written, 195, 0));
        let without = judge_text(&spec.text(), &By { gpu: false, ..excusing("cgroup-wildcard") }, &Fake::default());
        let written = without.changes.rules.unwrap();
        assert_eq!((written[1], open_gpus(&written, &numbers, &[])), (Rule::ALLOW_ALL, None));
    }
}

#[test]
fn a_machine_that_cannot_be_read_gets_no_such_list() {
    let fake = Fake { majors: Err("read /proc/devices: no such file".into()), ..Fake::default() };
    let judgement = judge_text(&Spec::privileged().text(), &excusing("privileged"), &fake);
    assert_eq!(verdict(&judgement), "INTERNAL numbers-unreadable");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_machine_has(
        drivers in prop::collection::vec((prop::sample::select(vec!["nvidia-uvm", "nvidia-caps", "vfio", "alsa", "hidraw", "misc", "mem", "drm", "nvhost-x"]), 1..512u32), 0..12),
        misc in prop::collection::vec((prop::sample::select(vec!["iommu", "dxg", "fuse", "x"]), 0..300u32), 0..8),
        vendors in prop::collection::hash_map(0..200u32, prop::sample::select(vec![NVIDIA, 0x1002, 0x8086]), 0..6),
        tried in prop::collection::vec((0..520u32, 0..300u32), 64),
    ) {
        let fake = Fake { majors: Ok(majors(&drivers)), misc: majors(&misc), vendors: HashMap::clone(&vendors), ..Fake::default() };
        let (_, list, numbers) = judged(&Spec::privileged(), &fake);
        prop_assert_eq!(open_gpus(&list, &numbers, &GRANTED), None);
        prop_assert!(list.iter().skip(1).all(|rule| rule.allow && rule.kind != Kind::All), "reads the same everywhere");
        prop_assert_eq!(list.first(), Some(&Rule::DENY_ALL));
        for (major, minor) in tried.into_iter().chain(misc.iter().map(|one| (10, one.1))).chain(vendors.keys().map(|minor| (226, *minor))) {
            let open = openable(&list, major, minor);
            prop_assert!(!open || !numbers.is_gpu(major, minor) || GRANTED.contains(&(major, minor)), "{}:{}", major, minor);
        }
        // What is there and no GPU's stays open.
        for major in drivers.iter().map(|driver| driver.1).filter(|major| !matches!(major, 1 | 10 | 226)) {
            prop_assert!(openable(&list, major, 77) || numbers.is_gpu(major, 77), "major {}", major);
        }
        for (_, minor) in misc {
            prop_assert!(openable(&list, 10, minor) != numbers.is_gpu(10, minor), "10:{}", minor);
        }
    }
}
