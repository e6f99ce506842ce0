//! Device lists as each runtime makes something of them, read from the document anew: nothing here is the guard's.

use serde_json::Value;

/// A rule; no number is every number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Raw {
    allow: bool,
    kind: u8,
    major: Option<i64>,
    minor: Option<i64>,
    letters: u8,
}

const READ: u8 = 1;
const WRITE: u8 = 2;
const ALL: u8 = 7;

pub(super) fn read(spec: &Value) -> Vec<Raw> {
    let list = spec.pointer("/linux/resources/devices").and_then(Value::as_array);
    list.map(|list| list.iter().map(Raw::of).collect()).unwrap_or_default()
}

impl Raw {
    fn of(rule: &Value) -> Self {
        let allow = rule.get("allow").and_then(Value::as_bool).unwrap_or(false);
        let letters = match rule.get("access").and_then(Value::as_str) {
            None | Some("") => {
                if allow {
                    ALL
                } else {
                    0
                }
            }
            // A deny of letters that are none may deny nothing.
            Some(text) if !allow && text.contains(|letter| !"rwm".contains(letter)) => 0,
            Some(text) => text
                .chars()
                .map(|letter| match letter {
                    'r' => READ,
                    'w' => WRITE,
                    _ => 4,
                })
                .fold(0, |a, b| a | b),
        };
        let number = |key| rule.get(key).and_then(Value::as_i64).filter(|number| *number >= 0);
        let kind = rule.get("type").and_then(Value::as_str).unwrap_or("a").bytes().next().unwrap_or(b'a');
        Self { allow, kind, major: number("major"), minor: number("minor"), letters }
    }

    pub(super) fn closes_all(&self) -> bool {
        !self.allow && self.kind == b'a' && self.major.is_none() && self.minor.is_none() && self.letters == ALL
    }

    pub(super) fn opens_all(&self) -> bool {
        self.allow && self.kind == b'a'
    }

    pub(super) fn numbers(&self) -> Option<(i64, i64)> {
        Some((self.major.unwrap_or(195), self.minor?))
    }

    /// Of another kind than this no rule is left in a [`Readings`].
    fn is_about(&self, (major, minor): (i64, i64)) -> bool {
        self.major.is_none_or(|m| m == major) && self.minor.is_none_or(|m| m == minor)
    }
}

/// A list in every reading.
pub(super) struct Readings {
    rules: Vec<Raw>,
    cleared: Vec<Raw>,
    exceptions: Exceptions,
}

impl Readings {
    /// What the list says of character devices (`c`), or of block devices (`b`). `open`: what the group is before the first rule.
    pub(super) fn of(rules: &[Raw], kind: u8, open: bool) -> Self {
        let rules: Vec<Raw> =
            rules.iter().filter(|rule| rule.kind == kind || !matches!(rule.kind, b'b' | b'c')).copied().collect();
        Self { cleared: cleared(&rules), exceptions: Exceptions::of(&rules, open), rules }
    }

    /// The first reading that lets a device be opened.
    pub(super) fn open(&self, device: (i64, i64)) -> Option<&'static str> {
        let Self { rules, cleared, exceptions } = self;
        let any = |permits: &dyn Fn(u8) -> bool| [READ, WRITE, READ | WRITE].iter().any(|letters| permits(*letters));
        let readings: [(&'static str, &dyn Fn(u8) -> bool); 6] = [
            ("kernel, version 1", &|w| exceptions.kernel(device, w)),
            ("runc, version 2", &|w| exceptions.program(device, w)),
            ("crun, by overlap", &|w| asked(rules.iter().rev(), device, |l| l & w != 0)),
            ("crun, by inclusion", &|w| asked(rules.iter().rev(), device, |l| l & w == w)),
            ("youki, by overlap", &|w| asked(cleared.iter(), device, |l| l & w != 0)),
            ("youki, by inclusion", &|w| asked(cleared.iter(), device, |l| l & w == w)),
        ];
        readings.into_iter().find(|reading| any(reading.1)).map(|reading| reading.0)
    }
}

/// A program that asks one rule after the other, and denies behind the last.
fn asked<'r>(mut rules: impl Iterator<Item = &'r Raw>, device: (i64, i64), hits: impl Fn(u8) -> bool) -> bool {
    rules.find(|rule| rule.is_about(device) && hits(rule.letters)).is_some_and(|rule| rule.allow)
}

/// A rule of type `a` empties the list and becomes the default behind it.
fn cleared(rules: &[Raw]) -> Vec<Raw> {
    let last = rules.iter().rposition(|rule| rule.kind == b'a');
    let since = last.map_or(0, |last| last + 1);
    let mut list = rules.get(since..).unwrap_or_default().to_vec();
    list.extend(last.and_then(|last| rules.get(last)));
    list
}

/// `security/device_cgroup.c`.
struct Exceptions {
    allow: bool,
    list: Vec<Raw>,
}

impl Exceptions {
    fn of(rules: &[Raw], open: bool) -> Self {
        let mut all = Self { allow: open, list: Vec::new() };
        for rule in rules {
            if rule.kind == b'a' {
                all = Self { allow: rule.allow, list: Vec::new() };
                continue;
            }
            let same = |other: &&mut Raw| (other.kind, other.major, other.minor) == (rule.kind, rule.major, rule.minor);
            let found = all.list.iter_mut().find(same);
            match (found, rule.allow == all.allow) {
                (Some(exception), true) => exception.letters &= !rule.letters,
                (Some(exception), false) => exception.letters |= rule.letters,
                (None, true) => {}
                (None, false) => all.list.push(*rule),
            }
            all.list.retain(|exception| exception.letters != 0);
        }
        all
    }

    fn letters(&self, device: (i64, i64)) -> impl Iterator<Item = u8> {
        self.list.iter().filter(move |exception| exception.is_about(device)).map(|exception| exception.letters)
    }

    fn kernel(&self, device: (i64, i64), wanted: u8) -> bool {
        if self.allow {
            !self.letters(device).any(|letters| letters & wanted != 0)
        } else {
            self.letters(device).any(|letters| letters & wanted == wanted)
        }
    }

    fn program(&self, device: (i64, i64), wanted: u8) -> bool {
        self.letters(device).any(|letters| letters & wanted == wanted) != self.allow
    }
}
