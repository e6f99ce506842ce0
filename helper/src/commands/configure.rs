//! `quilt-gpu configure ENGINE`: makes the runtime known to an engine, shows what that would change, or takes it back.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::cli::Context;
use crate::configure::{Ask, Engine, OnNode, Outcome, Turn, configure, configured, link, undo};
use crate::exit::{Exit, Failure};
use crate::handover;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The engine
    #[arg(required_unless_present = "all")]
    engine: Option<Engine>,
    /// Let containers that name no runtime go through quilt-gpu too
    #[arg(long, conflicts_with = "undo")]
    default: bool,
    /// Print what would change, as a unified diff
    #[arg(long)]
    dry_run: bool,
    /// Take back what was changed, byte for byte unless others have changed the file since
    #[arg(long)]
    undo: bool,
    /// With --undo: of every engine that was configured here
    #[arg(long, requires = "undo", conflicts_with_all = ["engine", "engine_config", "runtime", "hook"])]
    all: bool,
    /// Make the engine read its files, by the command that is printed otherwise
    #[arg(long, conflicts_with = "dry_run")]
    restart: bool,
    /// The engine's file, where it is not the usual one
    #[arg(long, value_name = "FILE")]
    engine_config: Option<String>,
    /// The runtime's program [default: quilt-gpu-runtime beside this one]
    #[arg(long, value_name = "PROGRAM")]
    runtime: Option<String>,
    /// Podman, CRI-O: have the hook judge containers of other runtimes, too
    #[arg(long)]
    hook: bool,
}

pub(crate) fn run(args: &Args, mut context: Context<'_>) -> Result<Exit, Failure> {
    let json = context.json()?;
    let root = context.setup.config.host.root.to_string();
    if args.restart && Path::new(&root) != Path::new("/") {
        return Err(Failure::Usage(format!("--restart is for this machine, and the node is below {root}")));
    }
    let node = OnNode::below(&root);
    let _turn = if args.dry_run { None } else { Some(Turn::wait(&node)?) };
    let asked = match args.engine {
        Some(engine) => vec![(engine, args.engine_config.as_deref().map(absolute).transpose()?)],
        None => configured(&root)?,
    };
    let mut documents = Vec::new();
    for (engine, file) in asked {
        let (outcome, restarted) = one(args, &context, &root, (engine, file))?;
        if json {
            documents.push(document(args, engine, &outcome, restarted));
        } else {
            context.out.write_all(told(args, engine, &outcome, restarted).as_bytes())?;
        }
    }
    match documents.pop() {
        Some(only) if json && !args.all => context.document(&only)?,
        last if json => context.document(&documents.into_iter().chain(last).collect::<Vec<_>>())?,
        _ => {}
    }
    Ok(Exit::Done)
}

/// One engine; whether it was restarted.
fn one(
    args: &Args,
    context: &Context<'_>,
    root: &str,
    (engine, file): (Engine, Option<String>),
) -> Result<(Outcome, bool), Failure> {
    if args.hook && !matches!(engine, Engine::Podman | Engine::Crio) {
        return Err(Failure::Usage(format!("{} has no folder of hooks; podman and crio have", engine.name())));
    }
    let program = args.runtime.clone().unwrap_or_else(|| handover::runtime().display().to_string());
    let hook = args.hook.then(|| program.replace("quilt-gpu-runtime", "quilt-gpu-hook"));
    if !args.undo {
        [Some(&program), hook.as_ref()].into_iter().flatten().try_for_each(|program| serves(root, program))?;
    }
    let ask = Ask { engine, root, file, program, hook, default: args.default, dry_run: args.dry_run };
    let mut outcome = if args.undo { undo(&ask)? } else { configure(&ask)? };
    if !args.undo {
        let ours = context.setup.path.parent().map(|folder| folder.display().to_string());
        let here = Path::new(root) == Path::new("/");
        let folder = ours.filter(|_| here).unwrap_or_else(|| "/etc/quilt-gpu".to_owned());
        outcome.notes.extend(link(root, &folder, &outcome.low_level, args.dry_run)?);
    }
    let restarted = args.restart && !outcome.changes.is_empty() && restart(&outcome)?;
    Ok((outcome, restarted))
}

fn absolute(file: &str) -> Result<String, Failure> {
    if Path::new(file).is_absolute() {
        return Ok(file.to_owned());
    }
    Err(Failure::Usage(format!("--engine-config takes an absolute path of the node's, and {file} is none")))
}

/// An engine runs this as root: it has to be there, and nobody else's to change.
fn serves(root: &str, program: &str) -> Result<(), Failure> {
    let wrong = |why: &str| Err(Failure::Usage(format!("{program} {why}; say where it is with --runtime PROGRAM")));
    if !program.starts_with('/') {
        return wrong("is not an absolute path");
    }
    let Ok(about) = std::fs::metadata(Path::new(root).join(program.trim_start_matches('/'))) else {
        return wrong("is not there");
    };
    if !about.is_file() || about.mode() & 0o111 == 0 {
        return wrong("is no program");
    }
    if about.uid() != 0 || about.mode() & 0o022 != 0 {
        return wrong("can be changed by others than root");
    }
    Ok(())
}

fn restart(outcome: &Outcome) -> Result<bool, Failure> {
    let Some(command) = outcome.restart.as_deref() else { return Ok(false) };
    let Some((program, args)) = command.split_first() else { return Ok(false) };
    let words = command.join(" ");
    let ended = Command::new(program).args(args).status();
    match ended {
        Ok(status) if status.success() => Ok(true),
        Ok(status) => Err(Failure::Internal(format!("the engine's files are changed, and `{words}` failed: {status}"))),
        Err(cause) => {
            Err(Failure::Internal(format!("the engine's files are changed, and `{words}` cannot be run: {cause}")))
        }
    }
}

fn document(args: &Args, engine: Engine, outcome: &Outcome, restarted: bool) -> serde_json::Value {
    let files = outcome.changes.iter();
    let files: Vec<serde_json::Value> = files
        .map(|change| json!({ "path": change.path, "action": change.action.word(), "diff": change.diff }))
        .collect();
    json!({
        "engine": engine.name(),
        "undo": args.undo,
        "dry_run": args.dry_run,
        "changed": !outcome.changes.is_empty(),
        "files": files,
        "restart": outcome.restart.as_ref().filter(|_| !outcome.changes.is_empty()),
        "restarted": restarted,
        "notes": outcome.notes,
    })
}

fn told(args: &Args, engine: Engine, outcome: &Outcome, restarted: bool) -> String {
    let mut out = String::new();
    // What is around a diff must not be taken for a part of it.
    let before = if args.dry_run { "# " } else { "" };
    for change in &outcome.changes {
        match args.dry_run {
            true => out.push_str(&change.diff),
            false => out.push_str(&format!("{}: {}\n", change.path, change.action.word())),
        }
    }
    if outcome.changes.is_empty() {
        let state = if args.undo { "nothing to undo" } else { "everything is as asked already" };
        out.push_str(&format!("{before}{}: {state}\n", engine.name()));
    }
    for note in &outcome.notes {
        out.push_str(&format!("{before}{note}\n"));
    }
    if let (Some(command), false) = (&outcome.restart, outcome.changes.is_empty()) {
        let words = command.join(" ");
        out.push_str(&match restarted {
            true => format!("{before}done: {words}\n"),
            false => format!("{before}takes effect with: {words}\n"),
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_does_not_restart_is_told_and_the_files_are_said_to_be_changed() {
        for (command, ends) in [
            (&["true"][..], Ok(true)),
            (&["false"], Err("the engine's files are changed, and `false` failed")),
            (&["/does/not/exist", "x"], Err("`/does/not/exist x` cannot be run")),
        ] {
            let command = command.iter().map(|word| (*word).to_owned()).collect();
            let ended = restart(&Outcome { restart: Some(command), ..Outcome::default() });
            match (ended, ends) {
                (Ok(done), expected) => assert_eq!(Ok(done), expected),
                (Err(failure), expected) => assert!(failure.to_string().contains(expected.unwrap_err()), "{failure}"),
            }
        }
        assert!(!restart(&Outcome::default()).unwrap(), "Podman has no daemon");
    }
}
