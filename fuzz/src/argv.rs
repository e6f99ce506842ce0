//! Command lines: what is read as ours, runc and crun read the same, or they refuse it.
//!
//! Two plain models stand for them: Go's `flag` under urfave/cli v1, which runc is built with, and GNU's `getopt_long` in
//! order, which crun has by `argp`. A model that refuses is right: then no container comes of it.

mod models;

use shim::argv::{Call, Parsed, parse, quick_verb};

use models::{Model, crun, runc};

/// Holds the reader to it.
pub fn run(data: &[u8]) {
    // As an engine's words, with blanks between; two blanks hold an empty word.
    let text = String::from_utf8_lossy(data);
    let words: Vec<&str> = text.split(' ').collect();
    let models = [("runc", runc(&words)), ("crun", crun(&words))];
    assert_eq!(quick_verb(words.iter().map(|word| word.as_bytes())), verb_of(&words), "{words:?}");
    match parse(&words) {
        Ok(Parsed::Pass) => {
            for (name, model) in models {
                let opens = model.as_ref().is_some_and(Model::opens);
                assert!(!opens, "passed, but {name} reads {model:?} in {words:?}");
            }
        }
        Ok(Parsed::Ours(call)) => {
            assert_eq!(
                words.get(call.verb_index).is_some_and(|word| *word == call.verb.name()),
                call.clear || named(&call, &words)
            );
            stands(&call, &words);
            for (name, model) in models.iter().filter(|_| call.clear && !asks_help(&call)) {
                let Some(model) = model.as_ref().filter(|model| model.knows(call.verb.name())) else { continue };
                assert!(model.agrees(&call), "{name} reads {model:?}, not {call:?}, in {words:?}");
            }
        }
        Err(refusal) => {
            assert!(refusal.at.starts_with("argv/"), "{refusal}");
            assert!(verb_of(&words).is_some(), "refused without a verb: {words:?}");
        }
    }
}

fn asks_help(call: &Call<'_>) -> bool {
    call.has("help") || call.has("h")
}

fn named(call: &Call<'_>, words: &[&str]) -> bool {
    words.get(call.verb_index).is_some_and(|word| *word == call.verb.name())
}

/// The verb that parsing finds: both ways must agree that the words are ours.
fn verb_of(words: &[&str]) -> Option<shim::argv::Verb> {
    match parse(words) {
        Ok(Parsed::Ours(call)) => Some(call.verb),
        Ok(Parsed::Pass) => None,
        Err(_) => quick_verb(words.iter().map(|word| word.as_bytes())),
    }
}

/// Values stand where they are said to, so that one can be replaced by another word.
fn stands(call: &Call<'_>, words: &[&str]) {
    for (long, short) in
        [("bundle", "b"), ("process", "p"), ("resources", "r"), ("pid-file", "pid-file"), ("root", "root")]
    {
        if let Some((value, at)) = call.value_at(long, short) {
            let word = words.get(at).copied().unwrap_or_default();
            let joined = word.split_once('=').is_some_and(|(name, joined)| name.starts_with('-') && joined == value);
            assert!(word == value || joined, "{value} is not word {at} of {words:?}");
        }
    }
    if !call.id.is_empty() {
        assert!(words.contains(&call.id), "{} in {words:?}", call.id);
    }
}
