//! The decision procedure against plain models of each runtime, for random lists.

mod common;

use common::{By, Fake, Spec, judge_text};
use contract::rule::{Access, Kind, Rule};
use guard::{LowLevel, Numbers, granted_rules, open_gpus, openable};
use proptest::prelude::*;

const MAJORS: [u32; 8] = [1, 5, 10, 136, 195, 226, 505, 511];
const MINORS: [u32; 9] = [0, 1, 2, 3, 4, 128, 196, 229, 255];
/// A minor that no rule names.
const UNNAMED: u32 = 77;

fn access() -> impl Strategy<Value = Access> {
    (any::<bool>(), any::<bool>(), any::<bool>())
        .prop_map(|(read, write, make)| Access { read, write, make })
        .prop_filter("some letter", |access| *access != Access::default())
}

fn rule() -> impl Strategy<Value = Rule> {
    let number = |list: &'static [u32]| proptest::option::of(proptest::sample::select(list));
    let kind = prop_oneof![1 => Just(Kind::All), 6 => Just(Kind::Char), 1 => Just(Kind::Block)];
    let any_rule = (any::<bool>(), kind, number(&MAJORS), number(&MINORS), access()).prop_map(|(allow, kind, major, minor, access)| {
        let (major, minor) = if kind == Kind::All { (None, None) } else { (major, minor) };
        Rule { allow, kind, major, minor, access }
    });
    prop_oneof![8 => any_rule, 1 => Just(Rule::DENY_ALL), 1 => Just(Rule::ALLOW_ALL)]
}

fn list() -> impl Strategy<Value = Vec<Rule>> {
    proptest::collection::vec(rule(), 0..9)
}

fn universe() -> impl Iterator<Item = (u32, u32)> {
    MAJORS.into_iter().flat_map(|major| MINORS.into_iter().chain([UNNAMED]).map(move |minor| (major, minor)))
}

fn bits(access: Access) -> u8 {
    u8::from(access.read) | u8::from(access.write) << 1 | u8::from(access.make) << 2
}

type Exception = (Kind, Option<u32>, Option<u32>, u8);

/// `devcgroup_update_access` and `devcgroup_legacy_check_permission` of the kernel, exception by exception.
struct Kernel {
    allow: bool,
    exceptions: Vec<Exception>,
}

impl Kernel {
    fn of(rules: &[Rule], start: bool) -> Self {
        let mut kernel = Self { allow: start, exceptions: Vec::new() };
        for rule in rules {
            kernel.write(rule);
        }
        kernel
    }

    fn write(&mut self, rule: &Rule) {
        if rule.kind == Kind::All {
            self.allow = rule.allow;
            self.exceptions.clear();
            return;
        }
        let found = self.exceptions.iter().position(|e| (e.0, e.1, e.2) == (rule.kind, rule.major, rule.minor));
        match (found, rule.allow == self.allow) {
            (Some(index), true) => {
                self.exceptions[index].3 &= !bits(rule.access);
                if self.exceptions[index].3 == 0 {
                    self.exceptions.remove(index);
                }
            }
            (Some(index), false) => self.exceptions[index].3 |= bits(rule.access),
            (None, true) => {}
            (None, false) => self.exceptions.push((rule.kind, rule.major, rule.minor, bits(rule.access))),
        }
    }

    fn about(&self, (major, minor): (u32, u32)) -> impl Iterator<Item = u8> + '_ {
        self.exceptions
            .iter()
            .filter(move |e| e.0 == Kind::Char && e.1.is_none_or(|m| m == major) && e.2.is_none_or(|m| m == minor))
            .map(|e| e.3)
    }

    fn permits(&self, device: (u32, u32), wanted: u8) -> bool {
        if self.allow {
            !self.about(device).any(|letters| letters & wanted != 0)
        } else {
            self.about(device).any(|letters| letters & wanted == wanted)
        }
    }

    /// runc on v2: the same model made into a program that compares by inclusion.
    fn program_permits(&self, device: (u32, u32), wanted: u8) -> bool {
        self.about(device).any(|letters| letters & wanted == wanted) != self.allow
    }
}

/// A program that asks rules in the given order.
fn program<'r>(rules: impl Iterator<Item = &'r Rule>, (major, minor): (u32, u32), wanted: u8, overlap: bool) -> bool {
    for rule in rules {
        let letters = bits(rule.access) & wanted;
        let hit = if overlap { letters != 0 } else { letters == wanted };
        if rule.kind != Kind::Block && rule.major.is_none_or(|m| m == major) && rule.minor.is_none_or(|m| m == minor) && hit {
            return rule.allow;
        }
    }
    false
}

/// youki: `a` clears the list and sets the default.
fn cleared(rules: &[Rule]) -> Vec<Rule> {
    let mut list = Vec::new();
    let mut default = None;
    for rule in rules {
        if rule.kind == Kind::All {
            list.clear();
            default = Some(*rule);
        } else {
            list.push(*rule);
        }
    }
    list.extend(default);
    list
}

/// Each runtime's answer to whether the device can be opened; `start` is what a cgroup begins with.
fn answers(rules: &[Rule], device: (u32, u32), start: bool) -> Vec<(&'static str, bool)> {
    let wanted = [1u8, 2, 3];
    let opens = |permits: &dyn Fn(u8) -> bool| wanted.iter().any(|w| permits(*w));
    let kernel = Kernel::of(rules, start);
    let mut all = vec![("kernel v1", opens(&|w| kernel.permits(device, w))), ("runc v2", opens(&|w| kernel.program_permits(device, w)))];
    for overlap in [true, false] {
        all.push(("last match", opens(&|w| program(rules.iter().rev(), device, w, overlap))));
        all.push(("first match", opens(&|w| program(cleared(rules).iter(), device, w, overlap))));
    }
    all
}

fn json(rules: &[Rule]) -> String {
    let one = |rule: &Rule| {
        let kind = match rule.kind {
            Kind::All => "a",
            Kind::Char => "c",
            Kind::Block => "b",
        };
        let number = |name, n: Option<u32>| n.map_or(String::new(), |n| format!(r#","{name}":{n}"#));
        format!(r#"{{"allow":{},"type":"{kind}"{}{},"access":"{}"}}"#, rule.allow, number("major", rule.major), number("minor", rule.minor), rule.access.letters())
    };
    format!("[{}]", rules.iter().map(one).collect::<Vec<_>>().join(","))
}

fn numbers() -> Numbers {
    Numbers::read(&Fake::default()).unwrap()
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
    fn no_open_gpu_is_missed_and_none_invented(rules in list(), granted in proptest::collection::vec((proptest::sample::select(&MAJORS[..]), proptest::sample::select(&MINORS[..])), 0..4)) {
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
        let fake = Fake::default();
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
