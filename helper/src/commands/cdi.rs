//! `quilt-gpu cdi`: which CDI devices this node's files name, whether files are right, and their paths below another root.
//! `generate` makes the node's own file. Reads what engines read and changes nothing of theirs; only `--output` writes.

mod devices;
mod generate;
mod hooks;
mod list;
#[cfg(test)]
mod tests;
mod transform;
mod validate;

use std::path::{Path, PathBuf};

use cdi::spec::{Encoding, MAX_BYTES, Problem, Spec, read, to_json, to_yaml};
use serde_json::{Value, json};

use crate::cli::{Context, Format, not_offered};
use crate::exit::{Exit, Failure};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Prints this node's GPUs as CDI devices, for engines that put them into containers by themselves
    Generate(generate::Args),
    /// Shows the devices that this node's CDI files name, and what is wrong with the files
    List(list::Args),
    /// Says what is wrong with CDI files; 1 when anything is
    Validate {
        /// CDI files, whose names end with .json or .yaml
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Prints a CDI file changed
    Transform {
        #[command(subcommand)]
        what: Transform,
    },
}

#[derive(Debug, clap::Subcommand)]
enum Transform {
    /// Moves what lies below one folder to below another
    Root(transform::Args),
}

pub(crate) fn run(args: &Args, context: Context<'_>) -> Result<Exit, Failure> {
    match &args.action {
        Action::Generate(args) => generate::run(args, context),
        Action::List(args) => list::run(args, context),
        Action::Validate { files } => validate::run(files, context),
        Action::Transform { what: Transform::Root(args) } => transform::run(args, context),
    }
}

/// A file's encoding and what it says, or what is wrong with it.
type Judged = (Encoding, Result<Spec, Vec<Problem>>);

/// Reads a file that somebody named.
fn judged(path: &Path) -> Result<Judged, Failure> {
    let unfit = |why: &dyn std::fmt::Display| Failure::Usage(format!("cannot read {}: {why}", path.display()));
    let encoding = path.to_str().and_then(Encoding::of);
    let encoding = encoding.ok_or_else(|| unfit(&"a CDI file's name ends with .json or .yaml"))?;
    let about = std::fs::metadata(path).map_err(|cause| unfit(&cause))?;
    if !about.is_file() {
        return Err(unfit(&"it is not a regular file"));
    }
    if about.len() > MAX_BYTES as u64 {
        let larger = format!("it has {} bytes, and CDI files of at most {MAX_BYTES} are read", about.len());
        return Ok((encoding, Err(vec![Problem { at: String::new(), line: None, message: larger }])));
    }
    let bytes = std::fs::read(path).map_err(|cause| unfit(&cause))?;
    Ok((encoding, read(&bytes, encoding)))
}

/// As `--format` says, or the output's name, or as usual.
fn encoding(usual: Encoding, format: Option<Format>, output: Option<&Path>) -> Result<Encoding, Failure> {
    match (format, output) {
        (Some(Format::Json), _) => Ok(Encoding::Json),
        (Some(Format::Yaml), _) => Ok(Encoding::Yaml),
        (Some(other), _) => Err(not_offered(other, "json and yaml")),
        (None, None) => Ok(usual),
        (None, Some(path)) => path.to_str().and_then(Encoding::of).ok_or_else(|| {
            Failure::Usage(format!("--output {}: a CDI file's name ends with .json or .yaml", path.display()))
        }),
    }
}

fn encoded(spec: &Spec, encoding: Encoding) -> Result<String, Failure> {
    let text = match encoding {
        Encoding::Json => to_json(spec),
        Encoding::Yaml => to_yaml(spec),
    };
    text.map_err(Failure::internal)
}

fn problem(problem: &Problem) -> Value {
    json!({ "at": problem.at, "line": problem.line, "message": problem.message })
}
