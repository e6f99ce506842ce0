//! Random device lists in real containers of the low-level runtimes alone: what a process in one can open is never more
//! than the guard's decision procedure says. The kernel's reading by itself is tried in `guard/tests/kernel.rs`.

use std::path::Path;

use contract::rule::{Access, Kind, Rule};
use integration::{Error, Result, Runc, Spec, say};
use serde_json::{Value, json};

use crate::{Bench, RUNC, VERSION_1, VERSION_2, filters};

/// Containers of each runtime.
const SAMPLES: usize = 16;
/// Majors without a driver here: the kernel says ENXIO where such a device may be opened.
const MAJORS: [u32; 3] = [195, 236, 511];
const MINORS: u32 = 4;

/// Marsaglia's xorshift, so that every run tries the same lists.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as usize % end
    }

    fn rule(&mut self) -> Rule {
        // One time in eight everything, one time in eight blocks.
        let kind = [Kind::All, Kind::Block].into_iter().nth(self.below(8)).unwrap_or(Kind::Char);
        let number = |list: &[u32], choice: usize| list.get(choice).copied();
        let (major, minor) = (number(&MAJORS, self.below(4)), number(&[0, 1, 2], self.below(5)));
        let letters = self.below(7) + 1;
        let access = Access { read: letters & 1 != 0, write: letters & 2 != 0, make: letters & 4 != 0 };
        let all = kind == Kind::All;
        Rule {
            allow: self.below(2) != 0,
            kind,
            major: major.filter(|_| !all),
            minor: minor.filter(|_| !all),
            access: if all { Access::ALL } else { access },
        }
    }

    /// Closed at first, as every list that is handed over; making nodes is allowed, to have some to open.
    fn list(&mut self) -> Vec<Rule> {
        let make = Access { make: true, ..Access::default() };
        let made = Rule { allow: true, kind: Kind::Char, major: None, minor: None, access: make };
        let some = (0..self.below(8) + 1).map(|_| self.rule()).collect::<Vec<_>>();
        [Rule::DENY_ALL].into_iter().chain(some).chain([made]).collect()
    }
}

fn written(rule: &Rule) -> Value {
    let kind = match rule.kind {
        Kind::All => "a",
        Kind::Char => "c",
        Kind::Block => "b",
    };
    let mut written = json!({"allow": rule.allow, "type": kind, "access": rule.access.letters()});
    for (key, number) in [("major", rule.major), ("minor", rule.minor)] {
        if let Some(number) = number {
            written[key] = number.into();
        }
    }
    written
}

/// Numbers that a process in a container with this list made a node of and could open; nothing where there is no container.
fn opened(bench: &Bench, id: &str, rules: &[Rule]) -> Result<Option<Vec<(u32, u32)>>> {
    let ranges = MAJORS.map(|major| format!("{major}:0-{}", MINORS - 1));
    let words = ["quilt-probe", "all"].into_iter().chain(ranges.iter().map(String::as_str));
    let list: Vec<Value> = rules.iter().map(written).collect();
    let spec = Spec::new().args(words).edit(|spec| spec["linux"]["resources"]["devices"] = list.into());
    let bundle = bench.bundle(id, &spec)?;
    let output = bench.runc.whole_life(id, &bundle);
    crate::remove(&bundle.path)?;
    let output = match output {
        // runc makes no container of a list that takes back a part of what a wider rule allows.
        Err(error) if error.to_string().contains("not supported") => return Ok(None),
        output => output?,
    };
    let seen: Value = serde_json::from_str(output.trim()).map_err(|e| Error::new(format!("{e}: {output}")))?;
    let tried = seen["numbers"].as_array().cloned().unwrap_or_default();
    assert_eq!(tried.len(), MAJORS.len() * MINORS as usize, "{output}");
    let open = tried.iter().filter(|one| one["mknod"] == "ok" && one["open"] != "EPERM");
    let number = |one: &Value, key: &str| one[key].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or_default();
    Ok(Some(open.map(|one| (number(one, "major"), number(one, "minor"))).collect()))
}

/// Never more than was said, and the readings that the lists are made for are among the samples.
fn sampled(test: &str, low_level: &Path, prepare: &str) -> Result<()> {
    if !low_level.exists() {
        say(format_args!("{test}: skipped, {} is not there", low_level.display()));
        return Ok(());
    }
    let Some(mut bench) = Bench::new(test, 1)? else { return Ok(()) };
    let alone = crate::inside(bench.site.join("alone"), low_level, prepare)?;
    bench.runc = Runc::new(alone, bench.site.join("runc"))?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut open, mut said) = (0, 0);
    for n in 0..SAMPLES {
        let rules = random.list();
        let Some(found) = opened(&bench, &format!("{test}-{n}"), &rules)? else { continue };
        let openable = |device: &(u32, u32)| guard::openable(&rules, device.0, device.1);
        if let Some(more) = found.iter().find(|device| !openable(device)) {
            panic!("{more:?} opens, and the guard takes it for closed: {rules:?}");
        }
        open += found.len();
        let all = MAJORS.into_iter().flat_map(|major| (0..MINORS).map(move |minor| (major, minor)));
        said += all.filter(openable).count();
    }
    say(format_args!("{test}: {SAMPLES} lists, {said} numbers that some reading opens, {open} that this one does"));
    assert!(open >= SAMPLES && open <= said, "{open} of {said}");
    Ok(())
}

#[test]
fn sampled_lists_of_runc() -> Result<()> {
    sampled("sampled_lists_of_runc", Path::new(RUNC), VERSION_1)
}

#[test]
fn sampled_programs_of_runc() -> Result<()> {
    sampled("sampled_programs_of_runc", Path::new(RUNC), VERSION_2)
}

#[test]
fn sampled_programs_of_newer_runc() -> Result<()> {
    sampled("sampled_programs_of_newer_runc", &filters::fetched("runc-1.3"), VERSION_2)
}

#[test]
fn sampled_lists_of_crun() -> Result<()> {
    sampled("sampled_lists_of_crun", Path::new(crate::CRUN), VERSION_1)
}

#[test]
fn sampled_programs_of_crun() -> Result<()> {
    sampled("sampled_programs_of_crun", &filters::fetched("crun-1.28"), VERSION_2)
}
