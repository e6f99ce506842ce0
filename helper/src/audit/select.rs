//! Which records are meant: whose they are, what happened, to which GPU, when. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Entry, list, string};
use crate::exit::Failure;
use crate::table;

/// What can have happened: the kinds of records, as the published schema has them.
const KINDS: [&str; 10] =
    ["create", "refuse", "release", "reclaim", "refresh", "exec", "update", "verify-failed", "reserve", "torn"];

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Filters {
    /// What happened: create, refuse, release, reclaim, refresh, exec, update, verify-failed, reserve, torn; comma-separated
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    kind: Vec<String>,
    /// Records that name this GPU: nvidia0, its PCI address, or its UUID
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    /// Refusals with this code or rule: CAPACITY_FULL, mount-gpu-node
    #[arg(long, value_name = "CODE|RULE")]
    code: Option<String>,
    /// Not before: 2026-01-31, 2026-01-31T08:30 (UTC), or so long ago: 45m, 12h, 30d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Not after, likewise
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

/// Filters whose times are moments.
#[derive(Debug)]
pub(crate) struct Selection<'a> {
    filters: &'a Filters,
    since: Option<String>,
    until: Option<String>,
}

impl Filters {
    /// Makes moments of the times; `now` is in seconds since 1970.
    pub(crate) fn at(&self, now: u64) -> Result<Selection<'_>, Failure> {
        if let Some(kind) = self.kind.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
            let kinds = KINDS.join(", ");
            return Err(Failure::Usage(format!("--kind {kind:?} is no kind of record: there are {kinds}")));
        }
        let moment = |flag, text: &Option<String>| text.as_deref().map(|text| moment(flag, text, now)).transpose();
        Ok(Selection { filters: self, since: moment("--since", &self.since)?, until: moment("--until", &self.until)? })
    }

    /// Whether anything is asked for.
    pub(crate) fn any(&self) -> bool {
        !self.kind.is_empty() || [&self.gpu, &self.code, &self.since, &self.until].iter().any(|word| word.is_some())
    }
}

impl Selection<'_> {
    /// Whether a record is meant.
    pub(crate) fn has(&self, entry: &Entry) -> bool {
        let Filters { kind, gpu, code, .. } = self.filters;
        let time = string(entry, "time");
        let named = |items: &[Value], fields: &[&str], word: &str| {
            let is = |item: &Value, field: &&str| item.get(*field).and_then(Value::as_str) == Some(word);
            items.iter().any(|item| fields.iter().any(|field| is(item, field)))
        };
        (kind.is_empty() || kind.iter().any(|kind| kind == string(entry, "kind")))
            && gpu.as_ref().is_none_or(|gpu| named(list(entry, "gpus"), &["name", "pci", "uuid"], gpu))
            && code.as_ref().is_none_or(|code| named(list(entry, "refusals"), &["code", "rule"], code))
            && self.since.as_deref().is_none_or(|since| time >= since)
            // A day's records are not after that day.
            && self.until.as_deref().is_none_or(|until| time <= until || time.starts_with(until))
    }
}

/// A moment as records carry it, or its beginning.
fn moment(flag: &str, text: &str, now: u64) -> Result<String, Failure> {
    let ago = |(digits, unit): (&str, u64)| digits.parse::<u64>().ok()?.checked_mul(unit);
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let ago = units.iter().find_map(|(letter, unit)| ago((text.strip_suffix(*letter)?, *unit)));
    if let Some(ago) = ago {
        return Ok(node::rfc3339(now.saturating_sub(ago)).trim_end_matches('Z').to_owned());
    }
    let form = b"0000-00-00T00:00:00";
    let plain = text.trim_end_matches('Z');
    let fits = |(a, b): (u8, &u8)| if *b == b'0' { a.is_ascii_digit() } else { a == *b };
    let whole = [10, 13, 16, 19].contains(&plain.len());
    if whole && plain.bytes().zip(form).all(fits) {
        return Ok(plain.to_owned());
    }
    let wrong =
        format!("{flag} {text:?} is no time: give 2026-01-31, 2026-01-31T08:30 (UTC), or so long ago: 45m, 12h, 30d");
    Err(Failure::Usage(wrong))
}

/// Whether a record may be about what is called so; of a container's id the beginning will do.
pub(crate) fn may_be_about(entry: &Entry, id: &str) -> bool {
    is_about(entry, id) || table::means(id, string(entry, "container"))
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
pub(crate) fn only_one(mut entries: Vec<Entry>, id: &str) -> Result<Vec<Entry>, Failure> {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::exit::Exit;

    fn entry(value: Value) -> Entry {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn kinds_are_those_of_the_schema_and_no_other() {
        let schema: Value = serde_json::from_str(include_str!("../../../docs/audit.schema.json")).unwrap();
        assert_eq!(schema["properties"]["kind"]["enum"], json!(KINDS));
        let at = |kind: &str| Filters { kind: vec![kind.to_owned()], ..Filters::default() }.at(0).map(|_| ());
        assert!(KINDS.iter().all(|kind| at(kind).is_ok()));
        let failure = at("created").unwrap_err();
        assert!(failure.exit() == Exit::Usage && failure.to_string().contains("there are create, refuse"), "{failure}");
    }

    #[test]
    fn every_filter_lets_through_what_it_names_and_nothing_else() {
        let created = entry(json!({"seq": 1, "kind": "create", "time": "2026-01-31T08:30:00.000Z",
            "gpus": [{"name": "nvidia0", "pci": "0000:01:00.0", "uuid": "GPU-a"}]}));
        let refused = entry(json!({"seq": 2, "kind": "refuse", "time": "2026-02-01T00:00:00.500Z",
            "refusals": [{"code": "UNSAFE_SPEC", "rule": "hook"}]}));
        let filters = Filters::default();
        let with = |change: &dyn Fn(&mut Filters)| {
            let mut filters = filters.clone();
            change(&mut filters);
            // 2026-02-01T00:00:10Z
            let selection = filters.at(1_769_904_010).unwrap();
            [selection.has(&created), selection.has(&refused)]
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(with(&|_| {}), [true, true]);
        assert_eq!(with(&|f| f.kind = vec!["create".into(), "reserve".into()]), [true, false]);
        for gpu in ["nvidia0", "0000:01:00.0", "GPU-a"] {
            assert_eq!(with(&|f| f.gpu = some(gpu)), [true, false]);
        }
        assert_eq!(with(&|f| f.gpu = some("nvidia1")), [false, false]);
        for code in ["UNSAFE_SPEC", "hook"] {
            assert_eq!(with(&|f| f.code = some(code)), [false, true]);
        }
        for (since, until, expected) in [
            (some("2026-02-01"), None, [false, true]),
            (some("10s"), None, [false, true]),
            (some("1d"), None, [true, true]),
            (None, some("2026-01-31"), [true, false]),
            (None, some("2026-01-31T08:29Z"), [false, false]),
            (None, some("2026-02-01T00:00:00"), [true, true]),
            (some("2026-01-31T08:30:01"), some("1h"), [false, false]),
        ] {
            let told = with(&|f| (f.since, f.until) = (since.clone(), until.clone()));
            assert_eq!(told, expected, "{since:?} {until:?}");
        }
        for text in ["yesterday", "2026-1-1", "2026-01-31T8", "31.1.2026", "", "d", "99999999999999999999d"] {
            let filters = Filters { since: some(text), ..Filters::default() };
            assert_eq!(filters.at(0).unwrap_err().exit(), Exit::Usage, "{text}");
        }
    }

    #[test]
    fn a_pod_is_called_by_uid_name_or_both_names() {
        let pods = entry(
            json!({"container": "5ea1".repeat(16), "pod": {"uid": "u", "name": "p", "namespace": "n", "container": "c"}}),
        );
        for (id, about) in [("u", true), ("p", true), ("n/p", true), ("n", false), ("c", false), ("n/p/c", false)] {
            assert_eq!(is_about(&pods, id), about, "{id}");
        }
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
            .map(entry)
            .to_vec()
        };
        assert_eq!(only_one(entries(), "abcd").unwrap().len(), 1, "a whole name comes first");
        assert_eq!(only_one(entries(), "abcd2").unwrap().len(), 2);
        assert_eq!(only_one(entries().split_off(1)[..2].to_vec(), "abcd").unwrap().len(), 2, "one container's");
        let several = only_one(entries()[..3].to_vec(), "abcd").unwrap_err();
        assert_eq!(several.exit(), Exit::Refused);
        assert_eq!(several.to_string(), "the ids of 2 containers begin with \"abcd\": abcd1, abcd2; give more of one");
        assert!(only_one(Vec::new(), "abcd").unwrap().is_empty());
    }
}
