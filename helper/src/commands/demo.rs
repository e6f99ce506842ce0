//! `quilt-gpu demo`.

use std::path::{Path, PathBuf};

use crate::cli::{Context, Format, not_offered};
use crate::demo;
use crate::exit::{Exit, Failure};
use crate::handover;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The runtime to show [default: quilt-gpu-runtime beside this program]
    #[arg(long, value_name = "PATH")]
    runtime: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, context: Context<'_>) -> Result<Exit, Failure> {
    if let Some(other) = context.format.filter(|format| *format != Format::Table) {
        return Err(not_offered(other, "table"));
    }
    let runtime = args.runtime.clone().unwrap_or_else(handover::runtime);
    if !Path::new(&runtime).exists() {
        return Err(Failure::Usage(format!("no runtime at {}; name one with --runtime", runtime.display())));
    }
    demo::run(&runtime, context.out)?;
    Ok(Exit::Done)
}
