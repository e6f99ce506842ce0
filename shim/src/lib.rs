//! The runtime between an engine and a low-level runtime: argv, bundle, the ten steps of `create`, hand-over.
//!
//! Read `create` first: every step is one function there. `check` runs the same decision dry, `stage` is the hook's half.

pub mod argv;
mod broker;
mod bundle;
mod carried;
mod check;
mod compat;
mod container;
mod create;
mod cuda;
mod decide;
mod delete;
mod docker_gpus;
mod edits;
pub mod exec;
mod fallback;
mod gained;
mod grant;
mod groups;
mod handover;
#[cfg(target_env = "musl")]
mod heap;
mod injected;
mod inside;
mod joined;
pub mod layout;
pub mod live;
mod looked;
mod lowlevel;
mod made;
mod managing;
mod moved;
mod named;
#[cfg(all(panic = "abort", target_feature = "crt-static", target_env = "gnu"))]
mod no_locale;
#[cfg(all(panic = "abort", target_feature = "crt-static"))]
mod no_unwind;
mod others;
mod precreate;
mod preserved;
mod profile;
mod record;
mod report;
pub mod restore;
mod setup;
mod sources;
pub mod stage;
mod stops;
mod targets;
mod tenant;
mod verify;
mod view;
mod words;

pub use check::{Verdict, check};
pub use grant::{INVENTORY, allocated, read_inventory, ready, trusted, within_ceilings};
pub use lowlevel::{LOW_LEVEL, current};
pub use setup::Setup;
pub use verify::{Wrong, filter};

use std::borrow::Cow;
use std::ffi::c_int;

use contract::{Code, Refusal};

use argv::{Call, Parsed, Verb};
use container::Container;
use exec::RawArgs;
use handover::Words;
use report::Log;

/// The whole program: gives the status to exit with, if another program did not take our place.
#[must_use]
pub fn main(args: RawArgs) -> c_int {
    if argv::quick_verb(args.words().skip(1)).is_none() {
        return pass(args);
    }
    // Words of a tenant's command may be any bytes; what is handed over is always the words as they came.
    let words: Vec<Cow<'_, str>> = args.words().skip(1).map(String::from_utf8_lossy).collect();
    let unreadable = words.iter().find(|word| matches!(word, Cow::Owned(_)));
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match argv::parse(&words) {
        Ok(Parsed::Pass) => pass(args),
        Ok(Parsed::Ours(call)) if call.verb.opens() && unreadable.is_some() => {
            let word = unreadable.map_or("", |word| word);
            let help = "name bundle, files and container in UTF-8";
            let message = "a word of the command line is not UTF-8";
            report::tell(log_of(args), &[Refusal::new(Code::UnsafeSpec, "args", message, help).at("argv", word)]);
            1
        }
        Ok(Parsed::Ours(call)) => ours(&call, Words::of(args.words())),
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
    let setup = Setup::from_environment().of_this_user();
    let log = Log { path: call.value("log"), json: call.value("log-format") == Some("json") };
    match carried_out(call, &setup, words) {
        Ok(status) => exec::end_as(status),
        Err(refusals) => {
            report::tell(log, &refusals);
            1
        }
    }
}

fn carried_out(call: &Call<'_>, setup: &Setup, words: Words) -> Result<c_int, Vec<Refusal>> {
    let container = Container::of(call, setup).map_err(|refusal| vec![refusal])?;
    let one = |refusal| vec![refusal];
    let recorded = |refusal| {
        record::refused_call(&container, &refusal);
        one(refusal)
    };
    if call.has("help") || call.has("h") {
        return Err(one(handover::become_runtime(&container.low_level, &words)));
    }
    match call.verb {
        Verb::Create | Verb::Run | Verb::Restore => create::make(&container, words),
        Verb::Delete => delete::delete(&container, words).map_err(one),
        Verb::Exec => Err(recorded(tenant::exec(&container, words))),
        Verb::Update => tenant::update(&container, words).map_err(recorded),
    }
}
