//! `quilt-gpu stats`: who uses which GPU, and how much.

use std::time::Duration;

use crate::cli::{Context, Format, not_offered};
use crate::exit::{Exit, Failure};
use crate::stats::{gather, show};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Again every so many seconds (2 where none are given), until it is ended
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
}

pub(crate) fn run(args: &Args, mut context: Context<'_>) -> Result<Exit, Failure> {
    loop {
        let gpus = gather(&context.setup)?;
        match context.format {
            None | Some(Format::Table) => write!(context.out, "{}", show::text(&gpus))?,
            Some(Format::Json) => context.document(&gpus)?,
            Some(Format::Prometheus) => write!(context.out, "{}", show::metrics(&gpus))?,
            Some(other) => return Err(not_offered(other, "table, json and prometheus")),
        }
        let Some(seconds) = args.watch else { return Ok(Exit::Done) };
        writeln!(context.out)?;
        context.out.flush()?;
        std::thread::sleep(Duration::from_secs(seconds));
    }
}
