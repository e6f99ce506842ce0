//! `quilt-gpu audit`: what was decided on this node, and whether the record of it is whole.

use std::io::Write;

use contract::Contract;
use ledger::Ledger;
use ledger::audit::{self, Verified};
use serde_json::{Value, json};
use shim::Setup;

use crate::audit::select::{Filters, may_be_about, only_one};
use crate::audit::words::words;
use crate::audit::{Entry, drift, explain, list, string};
use crate::cli::{Context, Format, not_offered};
use crate::exit::{Exit, Failure};
use crate::table;

/// How many records are shown unless more are asked for.
const LATEST: usize = 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Records about this container, key, contract, lease holder or pod (its UID, NAME or NAMESPACE/NAME) only; of a
    /// container's id the first 4 characters or more will do. Explains the latest decision: request, contract, spec
    id: Option<String>,
    /// Holds every running container with a contract, or a changed spec, against what was decided; 1 when one differs
    #[arg(long)]
    all: bool,
    /// Computes the chain of digests anew, over all files of the log; 1 when a record was changed, taken out, put in or lost
    #[arg(long)]
    verify_log: bool,
    /// So many of the latest records that are meant; 0: all of them [default: 20, all where something is asked for]
    #[arg(long, value_name = "N")]
    last: Option<usize>,
    /// With --format json and one ID: an object with the records and the explanation
    #[arg(long, requires = "id")]
    explain: bool,
    #[command(flatten)]
    filters: Filters,
}

pub(crate) fn run(args: &Args, mut context: Context<'_>) -> Result<Exit, Failure> {
    if [args.id.is_some() || args.filters.any() || args.last.is_some(), args.all, args.verify_log]
        .iter()
        .filter(|given| **given)
        .count()
        > 1
    {
        let message = "--all and --verify-log look at everything: give one of them, or an ID and filters";
        return Err(Failure::Usage(message.to_owned()));
    }
    if args.id.as_deref() == Some("report") {
        return Err(Failure::Usage("the page is `quilt-gpu report`".to_owned()));
    }
    if args.verify_log {
        let json = context.json()?;
        return verify(&mut context, json);
    }
    if args.all {
        return all(&mut context);
    }
    let entries = entries(&context.setup, args)?;
    let told = args.id.as_ref().and_then(|_| explain::deciding(&entries)).map(|entry| {
        let contracts = contracts(&context.setup);
        explain::explain(entry, &contracts)
    });
    match context.format {
        None | Some(Format::Table) => {
            let told = told.as_ref().map(explain::text).unwrap_or_default();
            write!(context.out, "{}{told}", text(&entries, args.id.as_deref()))?;
        }
        Some(Format::Json) if args.explain => context.document(&json!({ "records": entries, "explanation": told }))?,
        Some(Format::Json) => context.document(&entries)?,
        Some(Format::Words) => entries.iter().try_for_each(|entry| writeln!(context.out, "{}", words(entry)))?,
        Some(other) => return Err(not_offered(other, "table, json and words")),
    }
    Ok(Exit::Done)
}

fn all(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let json = context.json()?;
    let looked = drift::look(&context.setup)?;
    if json {
        context.document(&drift::document(&looked))?;
    } else {
        write!(context.out, "{}", drift::text(&looked))?;
    }
    Ok(if drift::any(&looked) { Exit::Refused } else { Exit::Done })
}

/// The contracts that are in force and trusted.
fn contracts(setup: &Setup) -> Vec<Contract> {
    let filed = Ledger::for_reading(setup.state_dir()).contracts().unwrap_or_default();
    filed.into_iter().filter_map(|(_, contract)| contract.ok()).collect()
}

/// Prints the latest records as a table.
pub(crate) fn table(setup: &Setup, out: &mut dyn Write) -> Result<(), Failure> {
    let mut entries = audit::read(setup.log_dir(), |_| true).map_err(Failure::internal)?;
    entries.drain(..entries.len().saturating_sub(LATEST));
    Ok(write!(out, "{}", text(&entries, None))?)
}

fn entries(setup: &Setup, args: &Args) -> Result<Vec<Entry>, Failure> {
    let selection = args.filters.at(node::now())?;
    let id = args.id.as_deref();
    let wanted = |entry: &Entry| id.is_none_or(|id| may_be_about(entry, id)) && selection.has(entry);
    let mut entries = audit::read(setup.log_dir(), wanted).map_err(Failure::internal)?;
    if let Some(id) = id {
        entries = only_one(entries, id)?;
    }
    let last = args.last.unwrap_or(if id.is_some() || args.filters.any() { 0 } else { LATEST });
    if last > 0 {
        entries.drain(..entries.len().saturating_sub(last));
    }
    Ok(entries)
}

fn text(entries: &[Entry], id: Option<&str>) -> String {
    let rows: Vec<_> = entries.iter().map(row).collect();
    match (rows.as_slice(), id) {
        ([], None) => "no records\n".to_owned(),
        ([], Some(id)) => format!(
            "no record is about {id:?}: no container's id is that or begins with it (4 characters or more), and no key, contract, lease holder or pod is called so\n"
        ),
        (rows, _) => table::render(["SEQ", "TIME", "WHAT", "WHO", "GPUS", "WHY"], rows),
    }
}

fn row(entry: &Entry) -> [String; 6] {
    let part = |item: &Value, field: &str| item.get(field).and_then(Value::as_str).map(str::to_owned);
    let who = ["container", "holder", "contract"]
        .into_iter()
        .map(|field| string(entry, field))
        .find(|who| !who.is_empty())
        .unwrap_or_default();
    let gpus: Vec<String> =
        list(entry, "gpus").iter().filter_map(|gpu| part(gpu, "name").or_else(|| part(gpu, "pci"))).collect();
    // The rule is what an exception in the configuration names.
    let told = |refusal: &Value| {
        let rule = part(refusal, "rule").map(|rule| format!(" {rule}")).unwrap_or_default();
        Some(part(refusal, "code")? + &rule)
    };
    let refusals: Vec<String> = list(entry, "refusals").iter().filter_map(told).collect();
    let why = if refusals.is_empty() { string(entry, "message").to_owned() } else { refusals.join(", ") };
    let seq = entry.get("seq").map(Value::to_string).unwrap_or_default();
    let [time, kind] = ["time", "kind"].map(|field| string(entry, field).to_owned());
    let who = table::in_pod(entry.get("pod")).unwrap_or_else(|| table::short(who).to_owned());
    [seq, time, kind, who, gpus.join(","), why]
}

fn verify(context: &mut Context<'_>, json: bool) -> Result<Exit, Failure> {
    let found = audit::verify(context.setup.log_dir()).map_err(Failure::internal)?;
    if json {
        let Verified { records, first, last, torn, lost, bad } = &found;
        let bad = bad.as_ref().map(|bad| json!({ "file": bad.file, "line": bad.line, "why": bad.why }));
        context.document(
            &json!({ "records": records, "first": first, "last": last, "torn": torn, "lost": lost, "bad": bad }),
        )?;
    } else {
        write!(context.out, "{}", told(&found))?;
    }
    Ok(if is_whole(&found) { Exit::Done } else { Exit::Refused })
}

/// Whoever cuts records off the end and lets one more be written leaves a sound chain: only the record of kind torn, which
/// counts what is lost, tells. A line that a crash tore before the head knew it is no loss.
pub(crate) fn is_whole(found: &Verified) -> bool {
    found.bad.is_none() && found.lost == 0
}

/// What was found, for people.
pub(crate) fn told(found: &Verified) -> String {
    let Verified { records, first, last, torn, lost, bad } = found;
    let sound = table::counted(*records, "record", "records");
    let are = if *records == 1 { "is" } else { "are" };
    let mut out = match (bad, records) {
        (Some(bad), _) => {
            format!("line {} of {} is wrong: {}; the {sound} before it {are} in order\n", bad.line, bad.file, bad.why)
        }
        (None, 0) => "the log has no records: nothing was recorded yet, or it was moved away\n".to_owned(),
        (None, 1) => format!("{sound}, number {first}, is in order\n"),
        (None, _) => format!("{sound}, {first} to {last}, are in order\n"),
    };
    if *torn > 0 {
        let (times, what) = match torn {
            1 => ("once".to_owned(), "the record of kind torn says"),
            _ => (format!("{torn} times"), "the records of kind torn say"),
        };
        let lost = match lost {
            0 => "no record is known to be lost".to_owned(),
            1 => "1 record that had been written is lost".to_owned(),
            _ => format!("{lost} records that had been written are lost"),
        };
        out.push_str(&format!(
            "the end of the log was found damaged {times}, by a crash or by hand: {lost}; {what} what was found\n"
        ));
    }
    out
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
            json!({"seq": 8, "time": "t", "kind": "refuse", "refusals": [{"code": "UNSAFE_SPEC", "rule": "hook"}, {"code": "POLICY"}]}),
        );
        assert_eq!(row(&refused), ["8", "t", "refuse", "", "", "UNSAFE_SPEC hook, POLICY"]);
        assert_eq!(row(&Entry::new()), ["", "", "", "", "", ""]);
        let engines = entry(json!({"container": "5ea1".repeat(16)}));
        assert_eq!(row(&engines)[3], "5ea15ea15ea1");
        let pods = entry(
            json!({"container": "5ea1".repeat(16), "pod": {"uid": "u", "name": "p", "namespace": "n", "container": "c"}}),
        );
        assert_eq!(row(&pods)[3], "n/p/c");
    }

    #[test]
    fn a_log_is_whole_only_without_any_loss_and_numbers_are_told_in_plain_words() {
        let found = |records, torn, lost| Verified { records, first: 4, last: 3 + records, torn, lost, bad: None };
        let damaged = |rest: &str| {
            format!("2 records, 4 to 5, are in order\nthe end of the log was found damaged {rest} what was found\n")
        };
        for (found, whole, text) in [
            (
                Verified::default(),
                true,
                "the log has no records: nothing was recorded yet, or it was moved away\n".to_owned(),
            ),
            (found(1, 0, 0), true, "1 record, number 4, is in order\n".to_owned()),
            (found(2, 0, 0), true, "2 records, 4 to 5, are in order\n".to_owned()),
            (
                found(2, 1, 0),
                true,
                damaged("once, by a crash or by hand: no record is known to be lost; the record of kind torn says"),
            ),
            (
                found(2, 1, 1),
                false,
                damaged(
                    "once, by a crash or by hand: 1 record that had been written is lost; the record of kind torn says",
                ),
            ),
            (
                found(2, 2, 15),
                false,
                damaged(
                    "2 times, by a crash or by hand: 15 records that had been written are lost; the records of kind torn say",
                ),
            ),
        ] {
            assert_eq!((is_whole(&found), told(&found)), (whole, text));
        }
        let bad = Some(audit::Bad { file: "audit.jsonl".into(), line: 2, why: "it is not a record".into() });
        let found = Verified { bad, ..found(1, 0, 0) };
        assert!(!is_whole(&found));
        assert_eq!(
            told(&found),
            "line 2 of audit.jsonl is wrong: it is not a record; the 1 record before it is in order\n"
        );
    }

    #[test]
    fn nothing_found_says_what_was_looked_for() {
        assert!(text(&[], Some("web")).starts_with("no record is about \"web\""));
        assert_eq!(text(&[], None), "no records\n");
    }
}
