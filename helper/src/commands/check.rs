//! `quilt-gpu check`: the runtime's own decision about a spec, run dry.

use std::path::PathBuf;

use contract::{Contract, Note, Refusal};
use ledger::Ledger;
use serde::Serialize;
use serde_json::Value;
use shim::Verdict;

use crate::cli::{Context, Format, not_offered};
use crate::exit::{Exit, Failure};
use crate::inventory;
use crate::table;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A config.json, or the bundle that holds one
    #[arg(value_name = "CONFIG.json|BUNDLE")]
    path: PathBuf,
    /// Says why these GPUs and no others
    #[arg(long)]
    explain: bool,
}

pub(crate) fn run(args: &Args, mut context: Context<'_>) -> Result<Exit, Failure> {
    let file = if args.path.is_dir() { args.path.join("config.json") } else { args.path.clone() };
    if let Err(cause) = std::fs::metadata(&file) {
        return Err(Failure::Usage(format!("cannot look at {}: {cause}", file.display())));
    }
    let verdict = shim::check(&args.path, &context.setup, || inventory::seen(&context.setup))?;
    let why = if args.explain { explanation(&verdict, &context)? } else { Vec::new() };
    match context.format {
        None | Some(Format::Table) => write!(context.out, "{}{}", text(&verdict), table::lines("why: ", &why))?,
        Some(Format::Json) => context.document(&Document { why: &why, ..document(&verdict)? })?,
        Some(Format::Patch) => context.document(&patch(&verdict)?)?,
        Some(other) => return Err(not_offered(other, "table, json and patch")),
    }
    Ok(if verdict.refusals.is_empty() { Exit::Done } else { Exit::Refused })
}

/// The public form, in this order.
#[derive(Serialize)]
struct Document<'a> {
    verdict: &'static str,
    refusals: Vec<Value>,
    notes: &'a [Note],
    grant: Option<&'a Contract>,
    patch: Vec<Value>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    why: &'a [String],
}

/// Why the container would get what it would get.
fn explanation(verdict: &Verdict, context: &Context<'_>) -> Result<Vec<String>, Failure> {
    let Some(contract) = verdict.grant.as_ref().filter(|_| verdict.refusals.is_empty()) else { return Ok(Vec::new()) };
    let ledger = Ledger::for_reading(context.setup.state_dir());
    Ok(ledger.explain(&inventory::seen(&context.setup)?, &contract.request, &contract.gpus))
}

fn document(verdict: &Verdict) -> Result<Document<'_>, Failure> {
    let word = if verdict.refusals.is_empty() { "accept" } else { "refuse" };
    let refusals: Vec<Value> = verdict.refusals.iter().map(Refusal::to_json).collect();
    Ok(Document {
        verdict: word,
        refusals,
        notes: &verdict.notes,
        // What is refused gets nothing, however far the decision went.
        grant: verdict.grant.as_ref().filter(|_| verdict.refusals.is_empty()),
        patch: patch(verdict)?,
        why: &[],
    })
}

/// The operations as JSON; each prints itself as one.
fn patch(verdict: &Verdict) -> Result<Vec<Value>, Failure> {
    verdict.patch.iter().map(|op| serde_json::from_str(&op.to_string()).map_err(Failure::internal)).collect()
}

fn text(verdict: &Verdict) -> String {
    let mut out = String::new();
    for refusal in &verdict.refusals {
        // The rule is what an exception in the configuration names.
        out.push_str(&format!("refused by {}: {refusal}\n", refusal.rule));
    }
    if verdict.refusals.is_empty() {
        out.push_str(&match &verdict.grant {
            Some(contract) => format!(
                "accepted, with {}\n",
                contract.gpus.iter().map(|gpu| format!("{} ({})", gpu.name(), gpu.pci)).collect::<Vec<_>>().join(", ")
            ),
            None => "accepted, without GPUs\n".to_owned(),
        });
        out.push_str(&match verdict.patch.len() {
            0 => "config.json stays as it is\n".to_owned(),
            n => {
                format!("{} to config.json; --format patch shows what\n", table::counted(n as u64, "change", "changes"))
            }
        });
    }
    for note in &verdict.notes {
        let place = if note.at.is_empty() { String::new() } else { format!(" (at {})", table::one_line(&note.at)) };
        out.push_str(&format!("note {}: {}{place}\n", note.rule, table::one_line(&note.message)));
    }
    out
}
