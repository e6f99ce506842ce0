//! `quilt-gpu report`: one HTML page that needs nothing but itself: who had which GPU from when to when, what was refused, what
//! differs now, every record. No script, no request; what tenants name is text there. Pure.

mod held;

use ledger::audit::Verified;
use shim::live::{Looked, State};

use super::{Entry, drift, list, string};
use held::{Held, held, who};

const STYLE: &str = include_str!("style.css");

/// What a page is made of.
pub(crate) struct Facts<'a> {
    /// The node's name.
    pub(crate) node: &'a str,
    /// When it was made, RFC 3339.
    pub(crate) now: &'a str,
    pub(crate) entries: &'a [Entry],
    pub(crate) verified: &'a Verified,
    /// What the check of the log says, in words.
    pub(crate) chain: &'a str,
    pub(crate) whole: bool,
    pub(crate) looked: &'a [Looked],
}

/// The page.
pub(crate) fn page(facts: &Facts<'_>) -> String {
    let held = held(facts.entries);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>GPUs of {node}</title>\n<style>\n{STYLE}</style></head>\n<body>\n<h1>GPUs of {node}</h1>\n",
        node = text(facts.node)
    );
    let records = facts.entries.len();
    let span = |at: Option<&Entry>| text(at.map(|entry| string(entry, "time")).unwrap_or("-"));
    out.push_str(&format!(
        "<p>Made {}. {records} records, {} to {}.</p>\n<p class=\"{}\">{}</p>\n",
        text(facts.now),
        span(facts.entries.first()),
        span(facts.entries.last()),
        if facts.whole { "good" } else { "bad" },
        text(facts.chain.trim()),
    ));
    if facts.verified.first > 1 {
        out.push_str(&format!("<p>Records before number {} were moved away.</p>\n", facts.verified.first));
    }
    out.push_str("<h2>Who had which GPU</h2>\n");
    out.push_str(&bars(&held, facts.now));
    out.push_str(&rows("held", ["GPU", "Who", "From", "To", "Because"], held.iter().map(row)));
    out.push_str("<h2>Refused</h2>\n");
    out.push_str(&rows(
        "refusals",
        ["Time", "Who", "Code", "Rule", "At", "Why"],
        facts.entries.iter().flat_map(refusals),
    ));
    out.push_str("<h2>Containers that run, held against what was decided</h2>\n");
    out.push_str(&rows("drift", ["Who", "GPUs", "State", "Why"], facts.looked.iter().flat_map(standing)));
    out.push_str("<h2>All records</h2>\n");
    out.push_str(&rows("records", ["No.", "Time", "What", "Who", "GPUs", "Why"], facts.entries.iter().map(record)));
    out.push_str("</body></html>\n");
    out
}

/// Text as HTML.
fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// A table, or that there is nothing.
fn rows<const N: usize>(id: &str, names: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut body = String::new();
    for row in rows {
        body.push_str("<tr>");
        for (name, cell) in names.iter().zip(&row) {
            body.push_str(&format!("<td data-name=\"{}\">{}</td>", text(name), text(cell)));
        }
        body.push_str("</tr>\n");
    }
    if body.is_empty() {
        return format!("<p id=\"{id}\">None.</p>\n");
    }
    let heads: String = names.iter().map(|name| format!("<th>{}</th>", text(name))).collect();
    format!("<table id=\"{id}\"><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody></table>\n")
}

/// A bar for each GPU, over the time from the first holder to now.
fn bars(held: &[Held], now: &str) -> String {
    let Some(begin) = held.iter().filter_map(|held| moment(&held.from)).min() else { return String::new() };
    // Whoever got one in this very second has a bar, too.
    let last = held.iter().filter_map(|held| moment(&held.from)).max();
    let end = moment(now).max(last).unwrap_or(begin) + 1;
    let mut gpus: Vec<(&str, &str)> = held.iter().map(|held| (held.pci.as_str(), held.gpu.as_str())).collect();
    gpus.sort_unstable();
    gpus.dedup_by_key(|(pci, _)| *pci);
    let share = |at: u64| (at.clamp(begin, end) - begin) as f64 * 100.0 / (end - begin) as f64;
    let mut out = String::new();
    for (pci, name) in gpus {
        out.push_str(&format!("<div>{} <code>{}</code></div><div class=\"track\">", text(name), text(pci)));
        for held in held.iter().filter(|held| held.pci == pci) {
            let from = share(moment(&held.from).unwrap_or(begin));
            let to = share(held.to.as_deref().and_then(moment).unwrap_or(end));
            let (who, until) = (text(&held.who), text(held.to.as_deref().unwrap_or("now")));
            out.push_str(&format!(
                "<i style=\"left:{from:.2}%;width:{:.2}%\" title=\"{who}, {} to {until}\"></i>",
                (to - from).max(0.0),
                text(&held.from),
            ));
        }
        out.push_str("</div>\n");
    }
    out
}

/// Seconds since 1970 of a record's time.
fn moment(time: &str) -> Option<u64> {
    let part = |range: std::ops::Range<usize>| time.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (part(0..4)?, part(5..7)?, part(8..10)?);
    let (hour, minute, second) = (part(11..13)?, part(14..16)?, part(17..19)?);
    // Days are counted from March on, so that a leap day is the last of its year.
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * ((month + 9) % 12) + 2) / 5 + day.checked_sub(1)?;
    Some(days.checked_sub(719_468)? * 86_400 + hour * 3600 + minute * 60 + second)
}

fn row(held: &Held) -> [String; 5] {
    let to = held.to.clone().unwrap_or_else(|| "still".to_owned());
    [held.gpu.clone(), held.who.clone(), held.from.clone(), to, held.why.clone()]
}

fn refusals(entry: &Entry) -> Vec<[String; 6]> {
    let part = |refusal: &serde_json::Value, field: &str| {
        refusal.get(field).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
    };
    let one = |refusal| {
        let [code, rule, at, message] = ["code", "rule", "at", "message"].map(|field| part(refusal, field));
        [string(entry, "time").to_owned(), who(entry), code, rule, at, message]
    };
    list(entry, "refusals").iter().map(one).collect()
}

fn standing(looked: &Looked) -> Vec<[String; 4]> {
    let (who, gpus) = (drift::who(looked), looked.gpus.join(", "));
    let row = |state: &str, why: &str| [who.clone(), gpus.clone(), state.to_owned(), why.to_owned()];
    match &looked.state {
        State::Holds => vec![row("as decided", "")],
        State::Gone => vec![row("not running", "")],
        State::Unknown(why) => vec![row("cannot be told", why)],
        State::Drift(list) => list.iter().map(|one| row(&format!("{} differs", one.what), &one.message)).collect(),
    }
}

fn record(entry: &Entry) -> [String; 6] {
    let names = list(entry, "gpus").iter().filter_map(|gpu| gpu.get("name")?.as_str());
    let codes = list(entry, "refusals").iter().filter_map(|refusal| refusal.get("code")?.as_str());
    let mut why: Vec<&str> = codes.collect();
    why.extend(Some(string(entry, "message")).filter(|message| !message.is_empty()));
    let seq = entry.get("seq").map(ToString::to_string).unwrap_or_default();
    let [time, kind] = ["time", "kind"].map(|field| string(entry, field).to_owned());
    [seq, time, kind, who(entry), names.collect::<Vec<_>>().join(", "), why.join(", ")]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn moments_are_those_of_the_clock() {
        for seconds in [0, 951_782_400, 951_868_800, 1_735_689_599, 4_107_542_400] {
            assert_eq!(moment(&node::rfc3339(seconds)), Some(seconds));
        }
        assert_eq!((moment(""), moment("2026-01-01"), moment("x")), (None, None, None));
    }

    /// A page of all that tenants can name, and how many rows each part of it has.
    #[test]
    fn a_page_has_every_record_and_nothing_that_a_browser_would_run_or_fetch() {
        let evil = "</td><script src=http://x/></script><img src=x onerror=y>\"'";
        let entries: Vec<Entry> = [
            json!({"seq": 1, "time": "2026-01-01T00:00:00.000Z", "kind": "create", "key": "k", "container": evil,
                "gpus": [{"name": "nvidia0", "pci": "0000:01:00.0"}]}),
            json!({"seq": 2, "time": "2026-01-01T01:00:00.000Z", "kind": "refuse", "container": "b",
                "refusals": [{"code": "CAPACITY_FULL", "message": evil}, {"code": "POLICY", "rule": evil}]}),
            json!({"seq": 3, "time": "2026-01-01T02:00:00.000Z", "kind": "release", "key": "k", "message": evil,
                "gpus": [{"name": "nvidia0", "pci": "0000:01:00.0"}]}),
        ]
        .iter()
        .map(|entry| entry.as_object().cloned().unwrap())
        .collect();
        let verified = Verified { records: 3, first: 7, last: 9, ..Verified::default() };
        let facts = Facts {
            node: evil,
            now: "2026-01-01T04:00:00.000Z",
            entries: &entries,
            verified: &verified,
            chain: evil,
            whole: true,
            looked: &[],
        };
        let page = page(&facts);
        for word in ["<script", "<img", "<link", "url(", "@import", "<a ", "<iframe", "<svg", "<form"] {
            assert!(!page.contains(word), "{word}: {page}");
        }
        let part = |id: &str| {
            let body = page.split(&format!("<table id=\"{id}\">")).nth(1).unwrap().split("</table>").next().unwrap();
            body.matches("<tr><td").count()
        };
        assert_eq!([part("held"), part("refusals"), part("records")], [1, 2, 3]);
        assert!(
            page.contains("<p id=\"drift\">None.</p>") && page.contains("CAPACITY_FULL") && page.contains("number 7")
        );
        assert!(page.contains("left:0.00%;width:50.00%"), "half of the time, from the beginning");
        assert!(page.contains("default-src 'none'"));
    }
}
