//! `quilt-gpu man DIR`: manual pages, for `make install`. The same as one page of the documents is held to the definitions by
//! the test.

use std::path::PathBuf;

use clap::CommandFactory;

use crate::cli::Cli;
use crate::exit::{Exit, Failure};

#[cfg(test)]
mod page;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder for the pages
    dir: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    std::fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &args.dir))
        .map_err(|cause| Failure::Internal(format!("cannot write manual pages to {}: {cause}", args.dir.display())))?;
    Ok(Exit::Done)
}
