//! The runtime between an engine and a low-level runtime: argv, bundle, the ten steps of `create`, hand-over.
//!
//! Read `create` first: every step is one function there. `check` runs the same decision dry, `stage` is the hook's half.

mod argv;
mod bundle;
mod check;
mod create;
mod decide;
mod delete;
mod edits;
pub mod exec;
mod grant;
mod handover;
mod lowlevel;
mod record;
mod report;
pub mod restore;
mod setup;
pub mod stage;
mod tenant;
mod verify;
mod view;
mod words;

pub use check::{Verdict, check};
pub use grant::{INVENTORY, read_inventory, ready, trusted, within_ceilings};
pub use setup::Setup;

use std::ffi::c_int;

use contract::Refusal;

use argv::{Call, Parsed, Verb};
use create::Container;
use exec::RawArgs;
use handover::Words;
use report::Log;

/// The whole program: gives the status to exit with, if another program did not take our place.
#[must_use]
pub fn main(args: RawArgs) -> c_int {
    if argv::quick_verb(args.words().skip(1)).is_none() {
        return pass(args);
    }
    let words: Option<Vec<&str>> = args.words().map(|word| std::str::from_utf8(word).ok()).collect();
    let Some(words) = words else {
        report::tell(log_of(args), &[Refusal::internal("args", &"a word of the command line is not UTF-8")]);
        return 1;
    };
    let (program, rest) = words.split_first().map_or(("", [].as_slice()), |(first, rest)| (*first, rest));
    match argv::parse(rest) {
        Ok(Parsed::Pass) => pass(args),
        Ok(Parsed::Ours(call)) => ours(&call, Words::of(program.as_bytes(), rest)),
        Err(refusal) => {
            report::tell(log_of(args), &[refusal]);
            1
        }
    }
}

/// Where the engine wants errors, when its words are not read any further.
fn log_of(args: RawArgs) -> Log<'static> {
    let value = |flag| argv::global(args.words().skip(1), flag).and_then(|value| std::str::from_utf8(value).ok());
    Log { path: value("log"), json: value("log-format") == Some("json") }
}

/// Becomes the low-level runtime, untouched.
fn pass(args: RawArgs) -> c_int {
    let why = match lowlevel::for_pass_through() {
        Ok(path) => format!("start {}: {}", path.to_string_lossy(), args.exec(&path)),
        Err(why) => why,
    };
    report::tell(log_of(args), &[Refusal::internal("exec", &why)]);
    1
}

fn ours(call: &Call<'_>, words: Words) -> c_int {
    let setup = Setup::from_environment();
    let log = Log { path: call.value("log"), json: call.value("log-format") == Some("json") };
    match carried_out(call, &setup, words) {
        Ok(status) => status,
        Err(refusals) => {
            report::tell(log, &refusals);
            1
        }
    }
}

fn carried_out(call: &Call<'_>, setup: &Setup, words: Words) -> Result<c_int, Vec<Refusal>> {
    let container = Container::of(call, setup).map_err(|refusal| vec![refusal])?;
    let one = |refusal| vec![refusal];
    match call.verb {
        Verb::Create | Verb::Run | Verb::Restore => create::make(&container, words),
        Verb::Delete => delete::delete(&container, words).map_err(one),
        Verb::Exec => Err(one(tenant::exec(&container, words))),
        Verb::Update => tenant::update(&container, words).map_err(one),
    }
}
