//! `quilt-gpu cdi transform root`: a CDI file whose paths lie below another folder, as where a driver container's root is
//! mounted elsewhere.

use std::path::{Component, Path, PathBuf};

use cdi::spec::{RelativeTo, move_root};
use nix::unistd::{getegid, geteuid};
use node::{Mode, write_atomic};

use super::judged;
use crate::cli::Context;
use crate::exit::{Exit, Failure};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder that paths lie below now
    from: PathBuf,
    /// The folder that they shall lie below
    to: PathBuf,
    /// A CDI file, whose name ends with .json or .yaml
    file: PathBuf,
    /// Which paths: those on the host, or those in the container
    #[arg(long, value_enum, default_value = "host")]
    relative_to: Side,
    /// Writes the file here, in one step, instead of to stdout
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Side {
    /// Device nodes, mounts and hooks on the host
    Host,
    /// Device nodes and mounts in the container
    Container,
}

pub(crate) fn run(args: &Args, context: Context<'_>) -> Result<Exit, Failure> {
    let (from, to) = (folder("FROM", &args.from)?, folder("TO", &args.to)?);
    let file = args.file.display();
    let (encoding, verdict) = judged(&args.file)?;
    let encoding = super::encoding(encoding, context.format, args.output.as_deref())?;
    let mut spec = verdict.map_err(|problems| {
        let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Failure::Wrong(format!("{file} is no CDI file that can be used: {}", told.join("; ")))
    })?;
    let which = match args.relative_to {
        Side::Host => RelativeTo::Host,
        Side::Container => RelativeTo::Container,
    };
    if move_root(&mut spec, from, to, which) == 0 {
        let side = if which == RelativeTo::Host { "host" } else { "container" };
        return Err(Failure::Wrong(format!("{file}: no path of the {side} in it lies below {from}")));
    }
    let text = super::encoded(&spec, encoding)?;
    match &args.output {
        None => context.out.write_all(text.as_bytes())?,
        Some(path) => {
            // Everybody reads it: engines run for users too.
            let mode = Mode { mode: 0o644, uid: geteuid().as_raw(), gid: getegid().as_raw() };
            write_atomic(path, text.as_bytes(), mode, true).map_err(Failure::internal)?;
        }
    }
    Ok(Exit::Done)
}

/// An absolute path that says where it leads.
fn folder<'p>(name: &str, path: &'p Path) -> Result<&'p str, Failure> {
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    path.to_str()
        .filter(|_| path.is_absolute() && plain)
        .ok_or_else(|| Failure::Usage(format!("{name} must be an absolute path without .., and is {}", path.display())))
}
