//! `quilt-gpu completions SHELL`.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::{Cli, Context};
use crate::exit::{Exit, Failure};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args, context: Context<'_>) -> Result<Exit, Failure> {
    // Written to memory first: the generator panics when a pipe breaks.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "quilt-gpu", &mut script);
    context.out.write_all(&script)?;
    Ok(Exit::Done)
}
