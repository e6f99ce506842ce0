//! Random device lists, and plain models of what each runtime makes of one.

use contract::rule::{Access, Kind, Rule};
use proptest::prelude::*;

pub const MAJORS: [u32; 8] = [1, 5, 10, 136, 195, 226, 505, 511];
pub const MINORS: [u32; 10] = [0, 1, 2, 3, 4, 128, 196, 229, 255, 259];
/// A minor that no rule names.
pub const UNNAMED: u32 = 77;

pub fn access() -> impl Strategy<Value = Access> {
    (any::<bool>(), any::<bool>(), any::<bool>())
        .prop_map(|(read, write, make)| Access { read, write, make })
        .prop_filter("some letter", |access| *access != Access::default())
}

pub fn rule() -> impl Strategy<Value = Rule> {
    let number = |list: &'static [u32]| proptest::option::of(proptest::sample::select(list));
    let kind = prop_oneof![1 => Just(Kind::All), 6 => Just(Kind::Char), 1 => Just(Kind::Block)];
    let any_rule = (any::<bool>(), kind, number(&MAJORS), number(&MINORS), access()).prop_map(
        |(allow, kind, major, minor, access)| {
            let (major, minor) = if kind == Kind::All { (None, None) } else { (major, minor) };
            Rule { allow, kind, major, minor, access }
        },
    );
    prop_oneof![8 => any_rule, 1 => Just(Rule::DENY_ALL), 1 => Just(Rule::ALLOW_ALL)]
}

pub fn list() -> impl Strategy<Value = Vec<Rule>> {
    proptest::collection::vec(rule(), 0..9)
}

pub fn universe() -> impl Iterator<Item = (u32, u32)> {
    MAJORS.into_iter().flat_map(|major| MINORS.into_iter().chain([UNNAMED]).map(move |minor| (major, minor)))
}

pub fn bits(access: Access) -> u8 {
    u8::from(access.read) | u8::from(access.write) << 1 | u8::from(access.make) << 2
}

pub type Exception = (Kind, Option<u32>, Option<u32>, u8);

/// `devcgroup_update_access` and `devcgroup_legacy_check_permission` of the kernel, exception by exception.
pub struct Kernel {
    allow: bool,
    exceptions: Vec<Exception>,
}

impl Kernel {
    pub fn of(rules: &[Rule], start: bool) -> Self {
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

    pub fn permits(&self, device: (u32, u32), wanted: u8) -> bool {
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
pub fn program<'r>(
    rules: impl Iterator<Item = &'r Rule>,
    (major, minor): (u32, u32),
    wanted: u8,
    overlap: bool,
) -> bool {
    for rule in rules {
        let letters = bits(rule.access) & wanted;
        let hit = if overlap { letters != 0 } else { letters == wanted };
        if rule.kind != Kind::Block
            && rule.major.is_none_or(|m| m == major)
            && rule.minor.is_none_or(|m| m == minor)
            && hit
        {
            return rule.allow;
        }
    }
    false
}

/// youki: `a` clears the list and sets the default.
pub fn cleared(rules: &[Rule]) -> Vec<Rule> {
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
pub fn answers(rules: &[Rule], device: (u32, u32), start: bool) -> Vec<(&'static str, bool)> {
    let wanted = [1u8, 2, 3];
    let opens = |permits: &dyn Fn(u8) -> bool| wanted.iter().any(|w| permits(*w));
    let kernel = Kernel::of(rules, start);
    let mut all = vec![
        ("kernel v1", opens(&|w| kernel.permits(device, w))),
        ("runc v2", opens(&|w| kernel.program_permits(device, w))),
    ];
    for overlap in [true, false] {
        all.push(("last match", opens(&|w| program(rules.iter().rev(), device, w, overlap))));
        all.push(("first match", opens(&|w| program(cleared(rules).iter(), device, w, overlap))));
    }
    all
}
