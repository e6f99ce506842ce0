//! Edits of a template that renders to containerd's TOML (k3s, rke2): a block of lines at its end, outside of all
//! logic. A template is no TOML before it is rendered, so it is looked at line by line and never written anew.

use super::text::{Keys, Trouble, Value, newline, ready_for_more};
use super::toml;

/// Words of Go's templates that `end` closes.
const OPENS: [&str; 5] = ["if", "range", "with", "define", "block"];

/// What k3s and rke2 replace by their own template.
pub(super) const BASE: &str = "{{ template \"base\" . }}";

/// Every action ends, and every block: else a block at the end would be inside one.
pub(super) fn check(text: &str) -> Result<(), Trouble> {
    let mut open: Vec<usize> = Vec::new();
    let mut from = 0;
    while let Some(found) = text.get(from..).and_then(|rest| rest.find("{{")) {
        let start = from + found;
        let inside = text.get(start + 2..).unwrap_or_default();
        let comment = inside.trim_start_matches('-').trim_start().starts_with("/*");
        let close = if comment {
            inside.find("*/").and_then(|at| Some(at + inside.get(at..)?.find("}}")?))
        } else {
            inside.find("}}")
        };
        let Some(length) = close else { return Err(Trouble::at(text, start, "this action has no end: }} is missing")) };
        let action = inside.get(..length).unwrap_or_default().trim_start_matches('-').trim_start();
        match action.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default() {
            "end" if open.pop().is_none() => return Err(Trouble::at(text, start, "this end closes nothing")),
            word if OPENS.contains(&word) => open.push(start),
            _ => {}
        }
        from = start + 2 + length + 2;
    }
    match open.first() {
        Some(start) => Err(Trouble::at(text, *start, "this block has no {{ end }}")),
        None => Ok(()),
    }
}

/// Whether a template renders a configuration that has handlers: the base, or handlers of its own. What has neither
/// replaces everything the distribution would have written.
pub(super) fn is_stub(text: &str) -> bool {
    let base = text.lines().any(|line| {
        let words: String = line.chars().filter(|c| !c.is_whitespace() && *c != '-').collect();
        words.contains("{{template\"base\".}}")
    });
    !base && !text.lines().filter_map(header).any(|keys| keys.iter().any(|key| key == "runtimes"))
}

/// Whether a table of these keys, or one in it, has a line.
pub(super) fn has(text: &str, keys: &Keys) -> bool {
    text.lines().filter_map(header).any(|found| found.starts_with(keys))
}

/// Puts the table at the end, or anew there where its lines differ.
pub(super) fn set(text: &str, keys: &Keys, value: &Value) -> String {
    let newline = newline(text);
    let block = toml::block(keys, value, "", newline);
    if has(text, keys) {
        let squeezed = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
        if squeezed(text).contains(&squeezed(&block)) {
            return text.to_owned();
        }
        return set(&unset(text, keys), keys, value);
    }
    format!("{}{block}", ready_for_more(text, newline))
}

/// Takes the table's lines out, up to the next table or action.
pub(super) fn unset(text: &str, keys: &Keys) -> String {
    let mut out = String::with_capacity(text.len());
    let mut ours = false;
    for line in text.split_inclusive('\n') {
        if let Some(found) = header(line) {
            ours = found.starts_with(keys);
        } else if line.contains("{{") && !line.contains('=') {
            ours = false;
        }
        if !ours {
            out.push_str(line);
        }
    }
    if out.len() < text.len() && out.ends_with("\n\n") {
        out.pop();
    }
    out
}

/// The keys of a line that begins a table.
fn header(line: &str) -> Option<Vec<String>> {
    let line = line.trim();
    if !line.starts_with('[') || line.contains("{{") {
        return None;
    }
    toml::header(line)
}

/// A new template: the distribution's own, and the table.
pub(super) fn fresh(keys: &Keys, value: &Value) -> String {
    set(&format!("{BASE}\n"), keys, value)
}
