//! What a device list lets be opened, in every way that runtimes and kernels read lists.
//!
//! They differ in order and in what a partial match is, so the question is never what a list means, but whether any
//! reading leaves a device open:
//!
//! - *exceptions* (cgroup v1's kernel, `security/device_cgroup.c`; runc writes v2 programs from the same model): a rule
//!   of type `a` sets the default and forgets the rest; then rules against the default are exceptions, and rules with it
//!   take letters from the exception with exactly the same numbers, however many wider ones there are;
//! - *last match* (crun's v2 program): the last rule that matches decides;
//! - *first match* (programs built in list order): the first rule after the last one of type `a` decides.
//!
//! A program compares the letters of an access with those of the rule by inclusion (runc, newer crun) or by overlap
//! (older crun). Whatever opens by overlap opens by inclusion to one of its letters alone, so inclusion is what is tried.
//! All readings start from closed: the guard writes a deny of everything in front of a list for a runtime that would not.

use contract::rule::{Access, Kind, Rule};

use crate::minors::{self, Minors};
use crate::numbers::Numbers;

/// Whether any reading of the list lets the character device be opened.
#[must_use]
pub fn openable(rules: &[Rule], major: u32, minor: u32) -> bool {
    let device = (major, minor);
    let last = rules.iter().rposition(sets_default).unwrap_or(0);
    let since = rules.get(last..).unwrap_or_default();
    matching(rules.iter().rev(), device) || matching(first(since), device) || exceptions(rules, device)
}

/// A GPU number outside `granted` that some reading leaves open, in words.
#[must_use]
pub fn open_gpus(rules: &[Rule], numbers: &Numbers, granted: &[(u32, u32)]) -> Option<String> {
    // Rules tell minors apart only by naming them, and one that only other rules name, closing ones or of other majors, is
    // no more open than the rest.
    let named = |major: u32, minors: &mut Minors| {
        for rule in rules.iter().filter(|rule| rule.allow && rule.kind != Kind::Block && rule.access.opens()) {
            if let (true, Some(minor)) = (rule.major.is_none_or(|m| m == major), rule.minor) {
                minors.compared(minor);
            }
        }
    };
    let open = |device: (u32, u32), _: &mut Minors| !granted.contains(&device) && openable(rules, device.0, device.1);
    let (major, minor) = minors::find(numbers, granted, &named, &open)?;
    Some(format!("character device {major}:{minor}"))
}

/// A rule of type `a` stands for all devices whatever letters and numbers are beside it, except to programs.
fn sets_default(rule: &Rule) -> bool {
    rule.kind == Kind::All
}

/// The rules in list order, the one of type `a` at their head last: it is the default.
fn first(rules: &[Rule]) -> impl Iterator<Item = &Rule> + Clone {
    match rules.split_first() {
        Some((default, rest)) if sets_default(default) => rest.iter().chain(Some(default)),
        _ => rules.iter().chain(None),
    }
}

fn includes(rule: Access, wanted: Access) -> bool {
    (rule.read || !wanted.read) && (rule.write || !wanted.write) && (rule.make || !wanted.make)
}

/// Whether a program that asks the rules in this order lets the device be opened in any way.
fn matching<'r>(rules: impl Iterator<Item = &'r Rule> + Clone, (major, minor): (u32, u32)) -> bool {
    let about = |rule: &&Rule| {
        rule.kind != Kind::Block && rule.major.is_none_or(|m| m == major) && rule.minor.is_none_or(|m| m == minor)
    };
    let read = Access { read: true, ..Access::default() };
    let write = Access { write: true, ..Access::default() };
    [read, write, Access::OPEN].into_iter().any(|wanted| {
        rules.clone().filter(about).find(|rule| includes(rule.access, wanted)).is_some_and(|rule| rule.allow)
    })
}

/// The kernel's reading, and runc's. Of all exceptions only those that match the device count, and they differ only in
/// which of their two numbers is a wildcard: four at most.
fn exceptions(rules: &[Rule], (major, minor): (u32, u32)) -> bool {
    let mut default = false;
    let mut against = [Access::default(); 4];
    for rule in rules {
        if sets_default(rule) {
            default = rule.allow;
            against = [Access::default(); 4];
        } else if rule.matches_char(major, minor) {
            let same = usize::from(rule.major.is_some()) * 2 + usize::from(rule.minor.is_some());
            if let Some(exception) = against.get_mut(same) {
                set(exception, rule.access, rule.allow != default);
            }
        }
    }
    if default {
        // Letters from two exceptions do not close a program's door: it looks for one that has them all.
        !against.iter().any(|exception| exception.read && exception.write)
    } else {
        against.iter().any(|exception| exception.opens())
    }
}

fn set(exception: &mut Access, letters: Access, on: bool) {
    for (bit, named) in [
        (&mut exception.read, letters.read),
        (&mut exception.write, letters.write),
        (&mut exception.make, letters.make),
    ] {
        if named {
            *bit = on;
        }
    }
}
