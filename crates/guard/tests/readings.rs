//! The decision procedure against plain models of each runtime, for random lists.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::models::{MINORS, UNNAMED, answers, list, universe};
use common::{By, Fake, Spec, judge_text};
use contract::rule::{Access, Kind, Rule};
use guard::{LowLevel, Numbers, granted_rules, open_gpus, openable};
use proptest::prelude::*;

fn json(rules: &[Rule]) -> String {
    let one = |rule: &Rule| {
        let kind = match rule.kind {
            Kind::All => "a",
            Kind::Char => "c",
            Kind::Block => "b",
        };
        let number = |name, n: Option<u32>| n.map_or(String::new(), |n| format!(r#","{name}":{n}"#));
        format!(
            r#"{{"allow":{},"type":"{kind}"{}{},"access":"{}"}}"#,
            rule.allow,
            number("major", rule.major),
            number("minor", rule.minor),
            rule.access.letters()
        )
    };
    format!("[{}]", rules.iter().map(one).collect::<Vec<_>>().join(","))
}

/// Every DRM minor of the universe is there, and the vendor of one cannot be told.
fn machine() -> Fake {
    let mut fake = Fake { untold: vec![3], ..Fake::default() };
    for minor in MINORS.into_iter().chain([UNNAMED]).filter(|minor| *minor != 3) {
        fake.vendors.entry(minor).or_insert(0x8086);
    }
    fake
}

fn numbers() -> Numbers {
    Numbers::read(&machine()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn openable_is_what_any_reading_opens(rules in list()) {
        for device in universe() {
            let all = answers(&rules, device, false);
            prop_assert_eq!(openable(&rules, device.0, device.1), all.iter().any(|a| a.1), "{:?} {:?}", device, all);
        }
    }

    #[test]
    fn no_open_gpu_is_missed_and_none_invented(rules in list(), granted in proptest::collection::vec((proptest::sample::select(&common::models::MAJORS[..]), proptest::sample::select(&MINORS[..])), 0..4)) {
        let numbers = numbers();
        let open = universe().any(|(major, minor)| numbers.is_gpu(major, minor) && !granted.contains(&(major, minor)) && openable(&rules, major, minor));
        // The universe lacks most majors of the machine, so it may see less through a wildcard, never more.
        let found = open_gpus(&rules, &numbers, &granted);
        prop_assert!(!open || found.is_some());
        let wild = rules.iter().any(|rule| rule.allow && rule.kind != Kind::Block && rule.major.is_none());
        prop_assert!(open || wild || found.is_none(), "{found:?}");
    }

    #[test]
    fn a_contracts_list_reads_the_same_everywhere(tenant in list(), nodes in proptest::collection::vec((proptest::sample::select(&[195u32, 511, 226][..]), proptest::sample::select(&MINORS[..])), 0..4)) {
        let numbers = numbers();
        let list = granted_rules(&tenant, &nodes, &numbers);
        prop_assert_eq!(open_gpus(&list, &numbers, &nodes), None);
        prop_assert_eq!(list[0], Rule::DENY_ALL);
        for device in universe() {
            let all = answers(&list, device, true);
            let opens = openable(&list, device.0, device.1);
            prop_assert!(all.iter().all(|answer| answer.1 == opens), "{device:?} {all:?}");
            if numbers.is_gpu(device.0, device.1) || nodes.contains(&device) {
                prop_assert_eq!(opens, nodes.contains(&device), "{:?}", device);
            } else if opens {
                // Of the tenant's own nothing that no runtime would have opened, and in a list that begins closed nothing
                // that one of the two in wide use would not.
                prop_assert!(openable(&tenant, device.0, device.1), "{device:?}");
                let begins_closed = tenant.iter().all(|rule| rule.kind != Kind::All || *rule == Rule::DENY_ALL);
                let all = answers(&tenant, device, false);
                prop_assert!(!begins_closed || all.iter().all(|a| a.1 || a.0 == "first match"), "{device:?} {all:?}");
            }
        }
    }

    #[test]
    fn what_is_accepted_leaves_no_gpu_open(rules in list(), runc in any::<bool>()) {
        let fake = machine();
        let low_level = if runc { LowLevel::Runc } else { LowLevel::Crun };
        let spec = Spec { rules: json(&rules), ..Spec::default() };
        let judgement = judge_text(&spec.text(), &By { low_level, ..By::default() }, &fake);
        prop_assert_eq!(&judgement.rules, &rules);
        let numbers = numbers();
        let written = judgement.changes.rules.as_ref().unwrap_or(&rules);
        if judgement.refusals.is_empty() {
            prop_assert_eq!(open_gpus(written, &numbers, &[]), None);
            for device in universe().filter(|device| numbers.is_gpu(device.0, device.1)) {
                // runc starts from closed whatever the cgroup has; for others the list itself must close.
                let open = answers(written, device, !runc).into_iter().find(|answer| answer.1);
                prop_assert_eq!(open, None, "{:?}", device);
            }
        } else {
            // A refusal names a rule that speaks about a GPU number.
            for refusal in &judgement.refusals {
                let index: usize = refusal.at.rsplit('/').next().unwrap().parse().unwrap();
                let rule = rules[index];
                prop_assert!(rule.allow && rule.access.opens() && rule.kind == Kind::Char);
                prop_assert!(rule.major.is_none() || universe().any(|(a, b)| numbers.is_gpu(a, b) && rule.matches_char(a, b)), "{rule}");
            }
        }
    }
}

/// Lists of this length are in the spec's power; the time is a hundred times what it takes.
#[test]
fn long_lists_are_read() {
    let numbers = Numbers::read(&Fake::default()).unwrap();
    let c = |major: Option<u32>, minor: u32, access| Rule {
        allow: true,
        kind: Kind::Char,
        major,
        minor: Some(minor),
        access,
    };
    let make = Access { make: true, ..Access::default() };
    let list: Vec<Rule> = (0..2048).flat_map(|n| [c(Some(10), n + 300, Access::OPEN), c(None, n, make)]).collect();
    assert_eq!(open_gpus(&list, &numbers, &[]), None);
    assert!(open_gpus(&[&list[..], &[Rule::open_char(195, 2047)]].concat(), &numbers, &[]).is_some());
    // A minor that only a deny names is no more open than the rest, however many there are in a cgroup's own list.
    let closing: Vec<Rule> = (0..6000).map(|n| Rule::deny_char(195, Some(3 * n))).collect();
    assert_eq!(open_gpus(&closing, &numbers, &[]), None);
}

#[test]
fn stand_ins_are_a_few_of_each_major_and_every_single_number() {
    let list = guard::stand_ins(&numbers());
    for device in [(195, 0), (195, 255), (195, 0xF_FFFF), (511, 1), (1, 1), (10, 196), (10, 259), (226, 0)] {
        assert!(list.contains(&device), "{device:?} is not in {list:?}");
    }
    assert!(list.iter().all(|(major, minor)| numbers().is_gpu(*major, *minor)), "{list:?}");
}
