//! The budgets that were set before anything was built: whether each is met and by how much, and where one is not, why.
//!
//! Decides nothing about what is measured; knows the entrants of the races by their names.

use crate::contests::{HELD, MOUNTS, MOUNTS_PEER};
use crate::race::Race;
use crate::report::Measured;

const NOTHING: &str = "no wrapper";
const FLOOR: &str = "static floor, create";
const READY: &str = "the edits already in config.json";
const HOOKS: &str = "NVIDIA, 1 GPU, 3 hooks";
const OWN: &str = "quilt-gpu, 1 GPU";

/// Instructions of SHA-256 in a create with one GPU, in software, as valgrind counts it: `callgrind_annotate` of the scene
/// `create-1`, by a runtime built with `CARGO_PROFILE_RELEASE_STRIP=none`.
const HASHING: f64 = 1_090_000.0;

/// Why a line cannot be met, where that was measured.
const REASONS: [(&str, &str); 5] = [
    ("create, 1 GPU / floor", "two runs before it, on the same day, gave 1.64 and 1.67: it is at the bar"),
    (
        "exec without a contract, system calls over pass-through",
        "an exec is one of ours: it reads the configuration, which says where contracts are, and what the process would be \
         given beyond its container",
    ),
    (
        "the last of 112 MIG instances / 1 GPU",
        "the inventory of 16 GPUs and 112 instances is 47 KB of JSON, which every create reads: 1.3 of 3.3 million instructions, \
         beside a create with one GPU that is a third cheaper since it is linked with musl",
    ),
    (
        "1,000 mounts, 1 GPU / NVIDIA's",
        "a thousand sources are judged by all their names: 24 million instructions; on a slower processor, which slowed the \
         peer more, it was 0.35",
    ),
    (
        "added to a start over crun / by NVIDIA's with 3 hooks",
        "half of it is the create alone, most of the rest that what was created is looked at in its namespaces before it starts, \
         which nobody else does; waiting for crun takes a static program a sixth of it",
    ),
];

/// A line: what, how it came out, and what was allowed.
struct Line {
    what: String,
    value: f64,
    /// The same by the first and the second half of the rounds.
    halves: Option<(f64, f64)>,
    /// What an A/A pair of this table makes of a ratio of one.
    error: Option<f64>,
    most: f64,
}

impl Line {
    fn counted(what: &str, value: f64, most: f64) -> Self {
        Self { what: what.to_owned(), value, halves: None, error: None, most }
    }

    fn text(&self) -> String {
        let number = |value: f64| if self.most >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") };
        let share = (self.value / self.most - 1.0) * 100.0;
        let verdict = match (self.value.is_finite(), share <= 0.0) {
            (false, _) => "not measured".to_owned(),
            (true, true) => format!("met, {:.0} % below", share.abs()),
            (true, false) => {
                let reason = REASONS.iter().find(|(what, _)| *what == self.what);
                let why = reason.map_or_else(String::new, |(_, why)| format!(": {why}"));
                format!("**missed**, {share:.0} % above{why}")
            }
        };
        let halves = self.halves.map_or_else(String::new, |(one, two)| format!("{one:.3}, {two:.3}"));
        let error = self.error.map_or_else(String::new, |error| format!("± {:.1} %", error * 100.0));
        let (value, most) = (number(self.value), number(self.most));
        format!("| {} | {value} | {halves} | {error} | {most} | {verdict} |\n", self.what)
    }
}

fn over(race: &Race, name: &str, base: &str) -> f64 {
    let at = |name: &str| race.names.iter().position(|known| known == name);
    at(name).zip(at(base)).map_or(f64::NAN, |(at, base)| race.over(at, base).at)
}

/// How much more one entrant adds to `base` than another.
fn ratio(race: &Race, what: &str, base: &str, (one, other): (&str, &str), most: f64, pair: &str) -> Line {
    let of = |race: &Race| over(race, one, base) / over(race, other, base);
    let error = (over(race, &format!("{pair} (A/A)"), base) / over(race, pair, base) - 1.0).abs();
    Line {
        what: what.to_owned(),
        value: of(race),
        halves: Some((of(&race.half(false)), of(&race.half(true)))),
        error: Some(error).filter(|error| error.is_finite()),
        most,
    }
}

/// All lines.
fn lines(measured: &Measured) -> Vec<Line> {
    let alone = &measured.alone;
    let beside = |what: &str, pair, most| ratio(alone, what, NOTHING, pair, most, FLOOR);
    let counted = |name: &str| measured.counts.1.iter().find(|figure| figure.name == name).map(|figure| figure.counts);
    let calls = |name: &str| counted(name).map_or(f64::NAN, |counts| counts.calls as f64);
    let instructions = |name: &str| counted(name).map_or(f64::NAN, |counts| counts.instructions as f64);
    let memory = |name: &str| {
        let found = measured.memory.iter().find(|(known, _)| known == name);
        found.map_or(f64::NAN, |(_, kib)| *kib as f64 / 1024.0)
    };
    let mut lines = vec![
        beside("pass-through verb / floor's", ("quilt-gpu state", "static floor, state"), 0.8),
        Line::counted("pass-through, instructions", instructions("state"), 60_000.0),
        beside("create, no GPU / floor", ("quilt-gpu create, no GPU", FLOOR), 0.9),
        beside("create, a variable to void / floor", ("quilt-gpu create, image's variable to void", FLOOR), 1.0),
        beside("create, 1 GPU / floor", ("quilt-gpu create, 1 GPU", FLOOR), 1.75),
        Line::counted("create, 1 GPU, instructions without hashing", instructions("create-1") - HASHING, 2_000_000.0),
        Line::counted("create, 1 GPU, system calls", calls("create-1"), 250.0),
    ];
    if let Some((_, crun)) = measured.over.iter().find(|(name, _)| name == "crun") {
        let what = "added to a start over crun / by NVIDIA's with 3 hooks";
        lines.push(ratio(crun, what, READY, (OWN, HOOKS), 1.0 / 12.0, OWN));
    }
    let exec = calls("exec") - calls("state");
    lines.push(Line::counted("exec without a contract, system calls over pass-through", exec, 1.0));
    lines.push(beside("1,000 mounts, 1 GPU / NVIDIA's", (MOUNTS, MOUNTS_PEER), 0.4));
    lines.push(Line::counted("peak memory of create, 1 GPU, MiB", memory("create-1-view"), 2.0));
    lines.push(beside("the last of 112 MIG instances / 1 GPU", (HELD, "quilt-gpu create, 1 GPU"), 1.5));
    lines.push(Line::counted("bytes of the runtime", measured.counts.0 as f64, 1_500_000.0));
    lines
}

/// The table.
#[must_use]
pub(crate) fn table(measured: &Measured) -> String {
    let lines: String = lines(measured).iter().map(Line::text).collect();
    format!("{HEAD}{lines}")
}

const HEAD: &str = "\n## Budgets\n\nA ratio is of what each adds to the same start without it. Both halves of the rounds say how far \
    two runs differ; A/A, by how much the same command under two names seems to. The floor is linked with glibc, as it was when these \
    were set; linked as the runtime it is a line above, for whoever wants to know what is linking alone.\n\n\
    | what | measured | by halves | A/A | budget | |\n| --- | --- | --- | --- | --- | --- |\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_by_how_much() {
        for (value, expected) in [
            (60.0, "met, 0 % below"),
            (45.0, "met, 25 % below"),
            (66.0, "**missed**, 10 % above: an exec is one of ours"),
            (f64::NAN, "not measured"),
        ] {
            let text = Line::counted("exec without a contract, system calls over pass-through", value, 60.0).text();
            assert!(text.contains(expected), "{text}");
        }
    }
}
