//! `quilt-gpu audit`: what was decided on this node, and whether the record of it is whole.

use std::collections::BTreeSet;
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
    /// Records about this container, key, contract, lease holder or pod (its UID, NAME or NAMESPACE/NAME) only; of a
    /// container's id the first 4 characters or more will do
    id: Option<String>,
    /// Every record, instead of the latest 20
    #[arg(long)]
    all: bool,
    /// Computes the chain of digests anew; 1 when a record was changed, taken out, put in or lost
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
        write!(context.out, "{}", text(&entries, args.id.as_deref()))?
    }
    Ok(Exit::Done)
}

/// Prints the latest records as a table.
pub(crate) fn table(setup: &Setup, out: &mut dyn Write) -> Result<(), Failure> {
    Ok(write!(out, "{}", text(&entries(setup, None, false)?, None))?)
}

fn entries(setup: &Setup, id: Option<&str>, all: bool) -> Result<Vec<Entry>, Failure> {
    let wanted =
        |entry: &Entry| id.is_none_or(|id| is_about(entry, id) || table::means(id, string(entry, "container")));
    let mut entries = audit::read(setup.log_dir(), wanted).map_err(Failure::internal)?;
    if let Some(id) = id {
        return only_one(entries, id);
    }
    if !all {
        entries.drain(..entries.len().saturating_sub(LATEST));
    }
    Ok(entries)
}

fn is_about(entry: &Entry, id: &str) -> bool {
    ["container", "key", "contract", "holder"].iter().any(|field| string(entry, field) == id)
        || entry.get("pod").is_some_and(|pod| is_pod(pod, id))
}

/// A pod is called by its UID, its name, or `NAMESPACE/NAME`.
fn is_pod(pod: &Value, id: &str) -> bool {
    let [uid, name, namespace] = ["uid", "name", "namespace"]
        .map(|field| pod.get(field).and_then(Value::as_str).filter(|text| !text.is_empty()));
    uid == Some(id) || name == Some(id) || name.zip(namespace).is_some_and(|(name, of)| id == format!("{of}/{name}"))
}

/// The records about what is called so; when nothing is, those about the one container whose id begins so.
fn only_one(mut entries: Vec<Entry>, id: &str) -> Result<Vec<Entry>, Failure> {
    if entries.iter().any(|entry| is_about(entry, id)) {
        entries.retain(|entry| is_about(entry, id));
        return Ok(entries);
    }
    let containers: BTreeSet<&str> = entries.iter().map(|entry| string(entry, "container")).collect();
    if containers.len() > 1 {
        let list: Vec<String> = containers.iter().map(|container| table::one_line(container)).collect();
        return Err(Failure::Wrong(format!(
            "the ids of {} containers begin with {id:?}: {}; give more of one",
            list.len(),
            list.join(", ")
        )));
    }
    Ok(entries)
}

fn string<'a>(entry: &'a Entry, field: &str) -> &'a str {
    entry.get(field).and_then(Value::as_str).unwrap_or_default()
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
    let list = |field: &str| entry.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let part = |item: &Value, field: &str| item.get(field).and_then(Value::as_str).map(str::to_owned);
    let who = ["container", "holder", "contract"]
        .into_iter()
        .map(|field| string(entry, field))
        .find(|who| !who.is_empty())
        .unwrap_or_default();
    let gpus: Vec<String> =
        list("gpus").iter().filter_map(|gpu| part(gpu, "name").or_else(|| part(gpu, "pci"))).collect();
    // The rule is what an exception in the configuration names.
    let told = |refusal: &Value| {
        let rule = part(refusal, "rule").map(|rule| format!(" {rule}")).unwrap_or_default();
        Some(part(refusal, "code")? + &rule)
    };
    let refusals: Vec<String> = list("refusals").iter().filter_map(told).collect();
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
fn is_whole(found: &Verified) -> bool {
    found.bad.is_none() && found.lost == 0
}

/// What was found, for people.
fn told(found: &Verified) -> String {
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
        for (id, about) in [("u", true), ("p", true), ("n/p", true), ("n", false), ("c", false), ("n/p/c", false)] {
            assert_eq!(is_about(&pods, id), about, "{id}");
        }
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
    fn records_are_found_by_a_name_or_by_the_beginning_of_one_id() {
        let entries = || -> Vec<Entry> {
            [
                json!({"container": "abcd1"}),
                json!({"container": "abcd2"}),
                json!({"container": "abcd2"}),
                json!({"holder": "abcd"}),
            ]
            .iter()
            .map(|entry| entry.as_object().cloned().unwrap())
            .collect()
        };
        assert_eq!(only_one(entries(), "abcd").unwrap().len(), 1, "a whole name comes first");
        assert_eq!(only_one(entries(), "abcd2").unwrap().len(), 2);
        assert_eq!(only_one(entries().split_off(1)[..2].to_vec(), "abcd").unwrap().len(), 2, "one container's");
        let several = only_one(entries()[..3].to_vec(), "abcd").unwrap_err();
        assert_eq!(several.exit(), Exit::Refused);
        assert_eq!(several.to_string(), "the ids of 2 containers begin with \"abcd\": abcd1, abcd2; give more of one");
        assert!(only_one(Vec::new(), "abcd").unwrap().is_empty());
        assert!(text(&[], Some("web")).starts_with("no record is about \"web\""));
    }
}
