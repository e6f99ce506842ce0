//! `quilt-gpu-engine`: a low-level runtime for nodes without one, on libcontainer, with runc's command line.
//!
//! It knows nothing of GPUs and of the rest of quilt-gpu: what a container may have stands in its `config.json`. What
//! libcontainer cannot do is an error here, never left out (`unsupported`).

// Without libseccomp libcontainer runs containers without their filter and says nothing.
#[cfg(not(feature = "seccomp"))]
compile_error!("quilt-gpu-engine needs its feature `seccomp`: without it every seccomp profile would be ignored");

mod about;
mod args;
mod claim;
mod container;
mod create;
mod exec;
mod executor;
#[cfg(test)]
mod fields;
mod filter;
mod foreground;
mod group;
mod life;
mod limits;
mod mounted;
mod no_nss;
mod oom;
mod report;
mod seal;
mod streams;
mod terminal;
mod unsupported;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use args::{Call, Flags};
use report::{Causes, Report};

fn main() -> ExitCode {
    let mut words = Vec::new();
    for word in std::env::args_os().skip(1) {
        match word.into_string() {
            Ok(word) => words.push(word),
            Err(word) => return failed(&Flags::default(), &format!("{} is no UTF-8", word.display())),
        }
    }
    let call = match args::parse(words.into_iter()) {
        Ok(call) => call,
        Err((why, global)) => return failed(&global, &why),
    };
    let causes = Causes::collect();
    match run(&call) {
        // As a shell has it, and as runc does.
        Ok(status) => ExitCode::from(u8::try_from(status & 0xff).unwrap_or(255)),
        Err(why) => {
            let _ = failed(&call.global, &causes.behind(why));
            // Engines tell a command that cannot run from one that ran and failed.
            ExitCode::from(if call.verb == "exec" { 255 } else { 1 })
        }
    }
}

fn run(call: &Call) -> Result<i32, String> {
    if call.global.is("version") {
        return about::version();
    }
    if call.verb.is_empty() || call.global.is("help") {
        return life::print(args::help().trim_end());
    }
    let root = call.global.value("root").unwrap_or(container::DEFAULT_ROOT);
    let root: PathBuf =
        std::path::absolute(root).map_err(|cause| format!("cannot tell where --root {root} is: {cause}"))?;
    let root: &Path = &root;
    // Whatever enters a container does so as a copy that nothing there can change.
    if matches!(call.verb, "create" | "run" | "exec") {
        seal::ensure()?;
    }
    match call.verb {
        "create" => create::create(call, root),
        "run" => create::run(call, root),
        "start" => life::start(call, root),
        "state" => life::state(call, root),
        "kill" => life::kill(call, root),
        "delete" => life::delete(call, root),
        "list" => life::list(call, root),
        "ps" => life::ps(call, root),
        "exec" => exec::exec(call, root),
        "pause" => life::pause(call, root, true),
        "resume" => life::pause(call, root, false),
        "events" => limits::events(call, root),
        "update" => limits::update(call, root),
        "features" => about::features(),
        "spec" => about::spec(call),
        other => Err(format!("{other} is not done here")),
    }
}

fn failed(global: &Flags, why: &str) -> ExitCode {
    let json = global.value("log-format") == Some("json");
    Report { file: global.value("log").map(PathBuf::from), json }.error(why);
    ExitCode::FAILURE
}
