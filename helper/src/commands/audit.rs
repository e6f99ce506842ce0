//! `quilt-gpu audit`: what was decided on this node, and whether the record of it is whole.

use std::io::Write;

use ledger::audit::{self, Verified};
use serde_json::{Map, Value, json};
use shim::Setup;

use crate::cli::{Context, later};
use crate::exit::{Exit, Failure};
use crate::table;

/// How many records are shown unless more are asked for.
const LATEST: usize = 20;

type Entry = Map<String, Value>;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Records about this container, key, contract or lease holder only
    id: Option<String>,
    /// Every record, instead of the latest 20
    #[arg(long)]
    all: bool,
    /// Computes the chain of digests anew; 1 when a record was changed, taken out or put in
    #[arg(long, conflicts_with_all = ["id", "all"])]
    verify_log: bool,
}

pub(crate) fn run(args: &Args, mut context: Context<'_>) -> Result<Exit, Failure> {
    let json = context.json()?;
    if args.verify_log {
        return verify(&mut context, json);
    }
    if args.id.as_deref() == Some("report") {
        return Err(later("audit report"));
    }
    let entries = entries(&context.setup, args.id.as_deref(), args.all)?;
    if json {
        context.document(&entries)?
    } else {
        write!(context.out, "{}", text(&entries))?
    }
    Ok(Exit::Done)
}

/// Prints the latest records as a table.
pub(crate) fn table(setup: &Setup, out: &mut dyn Write) -> Result<(), Failure> {
    Ok(write!(out, "{}", text(&entries(setup, None, false)?))?)
}

fn entries(setup: &Setup, id: Option<&str>, all: bool) -> Result<Vec<Entry>, Failure> {
    let about = |entry: &Entry| {
        id.is_none_or(|id| ["container", "key", "contract", "holder"].iter().any(|field| string(entry, field) == id))
    };
    let mut entries = audit::read(setup.log_dir(), about).map_err(Failure::internal)?;
    if !all && id.is_none() {
        entries.drain(..entries.len().saturating_sub(LATEST));
    }
    Ok(entries)
}

fn string<'a>(entry: &'a Entry, field: &str) -> &'a str {
    entry.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn text(entries: &[Entry]) -> String {
    let rows: Vec<_> = entries.iter().map(row).collect();
    if rows.is_empty() {
        "no records\n".to_owned()
    } else {
        table::render(["SEQ", "TIME", "WHAT", "WHO", "GPUS", "WHY"], &rows)
    }
}

fn row(entry: &Entry) -> [String; 6] {
    let list = |field: &str| entry.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let part = |item: &Value, field: &str| item.get(field).and_then(Value::as_str).map(str::to_owned);
    let who = ["container", "holder", "contract"]
        .into_iter()
        .map(|field| string(entry, field))
        .find(|who| !who.is_empty())
        .unwrap_or_default();
    let gpus: Vec<String> =
        list("gpus").iter().filter_map(|gpu| part(gpu, "name").or_else(|| part(gpu, "pci"))).collect();
    let codes: Vec<String> = list("refusals").iter().filter_map(|refusal| part(refusal, "code")).collect();
    let why = if codes.is_empty() { string(entry, "message").to_owned() } else { codes.join(",") };
    let seq = entry.get("seq").map(Value::to_string).unwrap_or_default();
    [seq, string(entry, "time").to_owned(), string(entry, "kind").to_owned(), who.to_owned(), gpus.join(","), why]
}

fn verify(context: &mut Context<'_>, json: bool) -> Result<Exit, Failure> {
    let found = audit::verify(context.setup.log_dir()).map_err(Failure::internal)?;
    let Verified { records, first, last, torn, lost, bad } = &found;
    if json {
        let bad = bad.as_ref().map(|bad| json!({ "line": bad.line, "why": bad.why }));
        context.document(
            &json!({ "records": records, "first": first, "last": last, "torn": torn, "lost": lost, "bad": bad }),
        )?;
    } else {
        match bad {
            Some(bad) => writeln!(
                context.out,
                "line {} of the log is wrong: {}; the {records} records before it are in order",
                bad.line, bad.why
            )?,
            None => writeln!(context.out, "{records} records, {first} to {last}, are in order")?,
        }
        if *torn > 0 {
            writeln!(
                context.out,
                "{torn} times a crash left something that was no record; {lost} records were lost by it"
            )?;
        }
    }
    Ok(if bad.is_none() { Exit::Done } else { Exit::Refused })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_in_one_line() {
        let entry = |value: Value| value.as_object().cloned().unwrap();
        let created = entry(
            json!({"seq": 7, "time": "t", "kind": "create", "container": "red", "gpus": [{"name": "nvidia0", "pci": "0000:01:00.0"}, {"pci": "0000:02:00.0"}]}),
        );
        assert_eq!(row(&created), ["7", "t", "create", "red", "nvidia0,0000:02:00.0", ""]);
        let refused = entry(
            json!({"seq": 8, "time": "t", "kind": "refuse", "refusals": [{"code": "CAPACITY_FULL"}, {"code": "POLICY"}]}),
        );
        assert_eq!(row(&refused), ["8", "t", "refuse", "", "", "CAPACITY_FULL,POLICY"]);
        assert_eq!(row(&Entry::new()), ["", "", "", "", "", ""]);
    }
}
