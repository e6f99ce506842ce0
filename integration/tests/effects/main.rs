//! Every known way past a check of specs, as real containers: under the bare low-level runtime, where it must show what it
//! is about, and under quilt-gpu, where nothing of that may be left. What the process inside can open counts, not messages.
//!
//! Cases are data, by section of the threat list; each is tried under quilt-gpu in `standard`, the same while it asks for a
//! GPU, and in `hardened`. A program of its own: its result is a list. Words filter cases by id or wording
//! (`cargo test --test effects -- A6 Q13`).

mod case;
mod channels;
mod devices;
mod documents;
mod elsewhere;
mod ids;
mod images;
mod life;
mod lifecycle;
mod lookalikes;
mod machine;
mod mounts;
mod process;
mod processes;
mod rules;
mod verdict;
mod world;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use integration::{Error, Result, root_for, say};

use case::{Act, Bare, Case, Deed};
use life::{Outcome, Run};
use world::{By, Place, World};

/// Containers at a time.
const AT_ONCE: usize = 2;

fn cases() -> Vec<Case> {
    let sections = [
        mounts::cases(),
        elsewhere::cases(),
        machine::cases(),
        devices::cases(),
        rules::cases(),
        process::cases(),
        processes::cases(),
        channels::cases(),
        documents::cases(),
        images::cases(),
        lifecycle::cases(),
        lookalikes::cases(),
    ];
    sections.into_iter().flatten().collect()
}

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--list") {
        return ExitCode::SUCCESS;
    }
    let words = integration::filter_words();
    let cases = cases();
    // Filters of a whole workspace's tests reach us too: what is no case of ours means somebody else.
    let wanted: Vec<&Case> = cases.iter().filter(|case| asked_for(case, &words)).collect();
    if wanted.is_empty() {
        say("test result: ok. 0 passed; 0 failed; 0 ignored");
        return ExitCode::SUCCESS;
    }
    if !root_for("effects") {
        say("test result: ok. 0 passed; 0 failed; 1 ignored");
        return ExitCode::SUCCESS;
    }
    let begun = Instant::now();
    match all(&wanted) {
        Ok(mut done) => {
            if words.is_empty() {
                done.wrong.extend(ids::wrong(&cases));
            }
            report(&done, begun)
        }
        Err(why) => {
            say(format_args!("effects: the fixture cannot be made: {why}"));
            say("test result: FAILED. 0 passed; 1 failed; 0 ignored");
            ExitCode::FAILURE
        }
    }
}

fn report(done: &Done, begun: Instant) -> ExitCode {
    for skipped in &done.skipped {
        say(format_args!("SKIPPED effects: {skipped}"));
    }
    for wrong in &done.wrong {
        say(format_args!("NOT SO: {wrong}"));
    }
    let Done { cases, containers, ids, elsewhere, reasons, others, .. } = done;
    let (failed, skipped) = (done.failed, done.skipped.len());
    let seconds = begun.elapsed().as_secs();
    say(format_args!(
        "effects: {cases} cases, {containers} containers, {ids} ids ({elsewhere} of them shown by other tests alone, \
         {reasons} by none, for a reason), {others} vulnerabilities of others, {seconds} s"
    ));
    let failed = failed.max(usize::from(!done.wrong.is_empty()));
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    let passed = cases.saturating_sub(failed);
    say(format_args!("test result: {verdict}. {passed} passed; {failed} failed; {skipped} ignored"));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn asked_for(case: &Case, words: &[String]) -> bool {
    words.is_empty() || words.iter().any(|word| case.ids.contains(&word.as_str()) || case.what.contains(word.as_str()))
}

/// What came of all cases.
struct Done {
    cases: usize,
    containers: usize,
    ids: usize,
    /// Of these: those that other tests show and no container here.
    elsewhere: usize,
    /// Those that nothing shows, as their case says.
    reasons: usize,
    /// Vulnerabilities of others.
    others: usize,
    failed: usize,
    wrong: Vec<String>,
    skipped: Vec<String>,
}

/// The control group (version 2) of the machine's first process. A container that moves it takes along whatever the machine
/// starts from then on, and its device filter holds for all of that.
fn machines_group() -> Result<String> {
    let groups = std::fs::read_to_string("/proc/1/cgroup")
        .map_err(|e| Error::new(format!("cannot read /proc/1/cgroup: {e}")))?;
    Ok(groups.lines().find(|line| line.starts_with("0::")).unwrap_or_default().to_owned())
}

fn all(cases: &[&Case]) -> Result<Done> {
    let world = World::new()?;
    let before = machines_group()?;
    let tests = verdict::tests();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begun = Instant::now();
                    let found = tried(&world, case, &tests);
                    if std::env::var_os("QUILT_EFFECTS_TIMES").is_some() {
                        say(format_args!("{} ms: {} {}", begun.elapsed().as_millis(), case.ids.join(" "), case.what));
                    }
                    wrong.lock().unwrap_or_else(PoisonError::into_inner).push((case.ids.join(" "), found));
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    let failed = wrong.iter().filter(|(_, found)| !found.is_empty()).count();
    let after = machines_group()?;
    let moved = (after != before).then(|| format!("a case moved the machine's first process from {before} to {after}"));
    let (others, ids): (BTreeSet<&str>, BTreeSet<&str>) = named(cases, |_| true).partition(|id| id.contains('-'));
    let here: BTreeSet<&str> = named(cases, |act| matches!(act, Act::Deed(_))).collect();
    let by_test: BTreeSet<&str> = named(cases, |act| matches!(act, Act::NoEffect(Some(_)))).collect();
    let unseen = || ids.difference(&here);
    let elsewhere = unseen().filter(|id| by_test.contains(*id)).count();
    Ok(Done {
        cases: cases.len(),
        containers: world.containers(),
        ids: ids.len(),
        elsewhere,
        reasons: unseen().count() - elsewhere,
        others: others.len(),
        failed,
        wrong: wrong.into_iter().flat_map(|(_, found)| found).chain(moved).collect(),
        skipped: world::missing(&world),
    })
}

/// The ids of the cases that are carried out like this.
fn named(cases: &[&Case], like: fn(&Act) -> bool) -> impl Iterator<Item = &'static str> {
    let those = cases.iter().filter(move |case| like(&case.act));
    those.flat_map(|case| &case.ids).copied().filter(|id| !id.starts_with('L'))
}

/// Everything that is wrong with a case.
fn tried(world: &World, case: &Case, tests: &str) -> Vec<String> {
    let named = |wrong: String| format!("{}: {}: {wrong}", case.ids.join(" "), case.what);
    match &case.act {
        Act::NoEffect(None) => Vec::new(),
        Act::NoEffect(Some(test)) if verdict::is_a_test(tests, test) => Vec::new(),
        Act::NoEffect(Some(test)) => vec![named(format!("there is no test {test}"))],
        Act::Deed(deed) => {
            let on = |(place, bare): &(Place, Bare)| at_place(world, case, deed, *place, *bare);
            deed.places.iter().flat_map(on).map(named).collect()
        }
    }
}

/// The same on one low-level runtime.
fn at_place(world: &World, case: &Case, deed: &Deed, place: Place, expected: Bare) -> Vec<String> {
    let Ok(stand) = world.stand(place) else { return Vec::new() };
    let mut wrong = Vec::new();
    let mut say_wrong = |by: By, why: String| {
        let line: String = format!("{} {by:?}: {why}", place.name()).trim().chars().take(600).collect();
        wrong.push(line);
    };
    let carry_out = |by: By| {
        let id = format!("{}-{}-{by:?}-{}", case.ids.first().unwrap_or(&""), place.name(), world.next()).to_lowercase();
        let trap = world.site.join(format!("traps/{id}"));
        let run = Run { world, stand: &stand, by, id, trap, deed };
        (run.carry_out(), run.id)
    };
    let mut shown = "nothing is known of the bare runtime".to_owned();
    if !matches!(expected, Bare::Unasked(_)) {
        match carry_out(By::Bare).0 {
            Ok(outcome) => {
                shown = bare_words(&outcome);
                if let Some(why) = verdict::of_bare(deed, expected, &outcome) {
                    say_wrong(By::Bare, why);
                }
            }
            Err(why) => say_wrong(By::Bare, why.to_string()),
        }
    }
    for by in [By::Standard, By::Asking, By::Hardened] {
        let (outcome, id) = carry_out(by);
        let why = match &outcome {
            Ok(outcome) => verdict::of_ours(deed, by, stand.quilt(by), &id, outcome, &shown),
            Err(why) => Some(why.to_string()),
        };
        if let Some(why) = why {
            say_wrong(by, why);
        }
    }
    wrong
}

fn bare_words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Ran(effects) if effects.beyond_contract().is_empty() && !effects.on_the_host() => {
            "the bare runtime exposes nothing".into()
        }
        Outcome::Ran(effects) => format!(
            "the bare runtime exposes {} numbers, {:?}, {:?}",
            effects.beyond_contract().len(),
            effects.leaks,
            effects.touched
        ),
        _ => "the bare runtime makes no container".into(),
    }
}
