//! `quilt-gpu install-node`: puts the programs on a node from a container, tells its engine, and takes that back.

use std::path::{Path, PathBuf};

use crate::cli::Context;
use crate::configure::Engine;
use crate::exit::{Exit, Failure};
use crate::install::{Ask, Outcome, install, remove};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The engine that kubelet uses [default: the one that is there]
    #[arg(long)]
    engine: Option<Engine>,
    /// The engine's file, where it is not the usual one
    #[arg(long, value_name = "FILE")]
    engine_config: Option<String>,
    /// Where the programs go on the node
    #[arg(long, value_name = "DIR", default_value = "/opt/quilt-gpu")]
    prefix: String,
    /// Where they are taken from [default: beside this program]
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Restart the engine when its files have changed, by the node's own command
    #[arg(long, conflicts_with = "dry_run")]
    restart: bool,
    /// Print what would change
    #[arg(long)]
    dry_run: bool,
    /// Take back what was installed; 3 while containers need it
    #[arg(long)]
    remove: bool,
}

pub(crate) fn run(args: &Args, mut context: Context<'_>) -> Result<Exit, Failure> {
    let json = context.json()?;
    let root = context.setup.config.host.root.to_string();
    for (flag, path) in [("--prefix", Some(&args.prefix)), ("--engine-config", args.engine_config.as_ref())] {
        if let Some(path) = path.filter(|path| !plain(path)) {
            let why = format!("{flag} takes an absolute path of the node's without . or .., and {path} is none");
            return Err(Failure::Usage(why));
        }
    }
    let own = || std::env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned));
    let from = args.from.clone().or_else(own).unwrap_or_else(|| "/usr/bin".into());
    let ask = Ask {
        root: &root,
        prefix: args.prefix.trim_end_matches('/'),
        from,
        engine: args.engine,
        engine_config: args.engine_config.clone(),
        restart: args.restart,
        dry_run: args.dry_run,
    };
    let outcome = if args.remove { remove(&ask)? } else { install(&ask)? };
    if json {
        context.document(&outcome)?;
    } else {
        context.out.write_all(told(args, &outcome).as_bytes())?;
    }
    Ok(if outcome.used_by.is_empty() { Exit::Done } else { Exit::NotReady })
}

fn plain(path: &str) -> bool {
    path.len() > 1 && path.starts_with('/') && !path.split('/').any(|part| part == "." || part == "..")
}

fn told(args: &Args, outcome: &Outcome) -> String {
    // What is around a diff must not be taken for a part of it.
    let mark = if args.dry_run { "# " } else { "" };
    let mut out = String::new();
    for line in outcome.steps.iter().chain(&outcome.notes) {
        out.push_str(&format!("{mark}{line}\n"));
    }
    if args.dry_run {
        out.push_str(&outcome.diffs.concat());
    }
    if !outcome.changed && outcome.used_by.is_empty() {
        out.push_str(match args.remove {
            true => "nothing to remove\n",
            false => "everything is installed already\n",
        });
    }
    if let Some(words) = outcome.restart.as_ref().map(|words| words.join(" ")) {
        out.push_str(&match outcome.restarted {
            true => format!("{mark}done: {words}\n"),
            false => format!("{mark}takes effect with: {words}\n"),
        });
    }
    if !outcome.used_by.is_empty() {
        out.push_str(&format!("{mark}these need it; call again when they are gone:\n"));
        outcome.used_by.iter().take(10).for_each(|place| out.push_str(&format!("{mark}  {place}\n")));
    }
    out
}
