//! Whether a case went as it should. The general rule stands first and needs no case's word: what quilt-gpu accepts opens no
//! GPU outside the contract.

use integration::Quilt;

use crate::case::{Bare, Deed, Verdict};
use crate::life::Outcome;
use crate::world::By;

/// What is wrong with what the bare runtime made of a case.
pub(crate) fn of_bare(deed: &Deed, expected: Bare, outcome: &Outcome) -> Option<String> {
    let exposes = match outcome {
        Outcome::Refused(words) => return Some(format!("the bare runtime speaks for quilt-gpu: {words}")),
        Outcome::Failed(words) if expected != Bare::Fails => {
            return Some(format!("the bare runtime makes no container, so that this case shows nothing: {words}"));
        }
        Outcome::Failed(_) => return None,
        // With the filter opened what it makes itself says nothing.
        Outcome::Ran(effects) if deed.opened => !effects.found.is_empty() || effects.on_the_host(),
        Outcome::Ran(effects) => !effects.beyond_contract().is_empty() || effects.on_the_host(),
    };
    match (expected, exposes) {
        (Bare::Exposes, true) | (Bare::Closed, false) => None,
        (Bare::Exposes, false) => {
            Some(format!("the bare runtime exposes nothing, so that this case shows nothing: {outcome:?}"))
        }
        _ => Some(format!("expected of the bare runtime: {expected:?}; it does: {outcome:?}")),
    }
}

/// What is wrong with what quilt-gpu made of it. `bare` is what the bare runtime exposes.
pub(crate) fn of_ours(deed: &Deed, by: By, quilt: &Quilt, id: &str, outcome: &Outcome, bare: &str) -> Option<String> {
    let expected = match by {
        By::Hardened => deed.hardened,
        By::Asking => deed.asking.unwrap_or(deed.standard),
        By::Standard | By::Bare => deed.standard,
    };
    if let Outcome::Ran(effects) = outcome
        && !matches!(expected, Verdict::Unbounded(_))
    {
        let beyond = effects.beyond_contract();
        if !beyond.is_empty() {
            return Some(format!("ACCEPTED AND OPEN: {beyond:?}, granted {:?}; {bare}", effects.granted));
        }
        let granted = usize::from(by == By::Asking);
        if effects.granted.len() != granted {
            return Some(format!("{granted} GPUs were to be granted, it has {:?}", effects.granted));
        }
        if let Some(lost) = effects.granted_but_shut() {
            return Some(format!("granted and shut: {lost}"));
        }
    }
    match (expected, outcome) {
        (Verdict::Refused(code, rule), Outcome::Refused(words)) => {
            let told = words.contains(&format!("quilt-gpu: {code}"));
            let rules = rules(quilt, id, "refusals");
            let ruled = rule.is_empty() || rules.iter().any(|told| told == rule);
            (!told || !ruled).then(|| format!("refused, but not as {code} by {rule}: {rules:?}: {words}"))
        }
        (Verdict::Fails, Outcome::Failed(_)) | (Verdict::Either, Outcome::Failed(_) | Outcome::Refused(_)) => None,
        (Verdict::Runs | Verdict::Either | Verdict::Noted(_), Outcome::Ran(effects)) if effects.on_the_host() => {
            Some(format!("ACCEPTED, and the host is there: {:?}, made {:?}; {bare}", effects.leaks, effects.touched))
        }
        (Verdict::Runs | Verdict::Either | Verdict::Passes(""), Outcome::Ran(_)) => None,
        (Verdict::Noted(rule) | Verdict::Passes(rule) | Verdict::Unbounded(rule), Outcome::Ran(_)) => {
            let rules = rules(quilt, id, "notes");
            (!rules.iter().any(|noted| noted == rule)).then(|| format!("no note of {rule}, only {rules:?}"))
        }
        (expected, Outcome::Ran(_)) => Some(format!("it runs, and was to be: {expected:?}; {bare}")),
        (expected, outcome) => Some(format!("{outcome:?}, and was to be: {expected:?}")),
    }
}

/// Rules that the audit log names for a container, as refusals or notes.
fn rules(quilt: &Quilt, id: &str, kind: &str) -> Vec<String> {
    let audit = quilt.audit();
    let records = audit.iter().filter(|record| record["container"] == id);
    let lists = records.filter_map(|record| record[kind].as_array());
    let names = lists.flatten().filter_map(|entry| entry["rule"].as_str());
    names.map(str::to_owned).collect()
}

/// Whether there is a test of this name that is run: a helper's name, or a test that is left out, shows nothing.
pub(crate) fn is_a_test(tests: &str, name: &str) -> bool {
    tests.contains(&format!("#[test]\nfn {name}("))
}

/// The lines of all tests of the workspace without their indentation, for cases that name one.
pub(crate) fn tests() -> String {
    let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut text = String::new();
    let mut folders: Vec<std::path::PathBuf> =
        ["crates", "shim", "hook", "cdi", "helper", "integration"].iter().map(|name| top.join(name)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let file = std::fs::read_to_string(&path).unwrap_or_default();
                file.lines().for_each(|line| text.extend([line.trim_start(), "\n"]));
            }
        }
    }
    text
}
