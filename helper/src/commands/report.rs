//! `quilt-gpu report`: a page about this node's GPUs for a browser.

use std::path::PathBuf;

use ledger::audit;

use crate::audit::drift;
use crate::audit::report::{Facts, page};
use crate::audit::select::Filters;
use crate::cli::Context;
use crate::commands::audit::{is_whole, told};
use crate::exit::{Exit, Failure};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to; stdout without it
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    filters: Filters,
}

pub(crate) fn run(args: &Args, context: Context<'_>) -> Result<Exit, Failure> {
    if context.format.is_some() {
        return Err(Failure::Usage("a report is HTML: leave --format out".to_owned()));
    }
    let selection = args.filters.at(node::now())?;
    let log_dir = context.setup.log_dir();
    let verified = audit::verify(log_dir).map_err(Failure::internal)?;
    let entries = audit::read(log_dir, |entry| selection.has(entry)).map_err(Failure::internal)?;
    let looked = drift::look(&context.setup)?;
    let name = std::fs::read_to_string(context.setup.config.host.path("proc/sys/kernel/hostname")).unwrap_or_default();
    let name = Some(name.trim()).filter(|name| !name.is_empty()).unwrap_or("this node");
    let page = page(&Facts {
        node: name,
        now: &node::rfc3339(node::now()),
        entries: &entries,
        verified: &verified,
        chain: &told(&verified),
        whole: is_whole(&verified),
        looked: &looked,
    });
    match &args.output {
        Some(path) => std::fs::write(path, page)
            .map_err(|cause| Failure::Usage(format!("cannot write the report {}: {cause}", path.display())))?,
        None => write!(context.out, "{page}")?,
    }
    Ok(Exit::Done)
}
