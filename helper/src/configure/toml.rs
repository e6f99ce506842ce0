//! Edits of a TOML text: one key or table put in, changed or taken out. `toml_edit` says where everything stands; its
//! own writer is not used, because it turns every end of line into LF.

use std::ops::Range;

use toml_edit::{Document, InlineTable, Item, Key, Table, Value as TomlValue};

use super::text::{Keys, Trouble, Value, below, indent, line_end, line_start, newline, ready_for_more, spliced};

/// One `[table]` line.
struct Header {
    keys: Vec<String>,
    span: Range<usize>,
}

/// One `key = value`, or an inline table, which is one as a whole.
struct Leaf {
    keys: Vec<String>,
    key: Range<usize>,
    value: Range<usize>,
    /// Inside braces.
    inline: bool,
    /// The inline table that can be written into.
    braces: bool,
    is: TomlValue,
}

/// What stands where.
#[derive(Default)]
struct Map {
    headers: Vec<Header>,
    leaves: Vec<Leaf>,
    /// Keys of `[[tables]]`, which nothing of ours is put into.
    arrays: Vec<Vec<String>>,
}

impl Map {
    fn of(text: &str) -> Result<Self, Trouble> {
        let document = Document::parse(text).map_err(|error| {
            Trouble::at(text, error.span().map_or(0, |span| span.start), error.message().to_owned())
        })?;
        let mut map = Self::default();
        map.table(&[], document.as_table());
        map.headers.sort_by_key(|header| header.span.start);
        map.leaves.sort_by_key(|leaf| leaf.key.start);
        Ok(map)
    }

    fn table(&mut self, keys: &Keys, table: &Table) {
        if let (false, false, false, Some(span)) =
            (keys.is_empty(), table.is_implicit(), table.is_dotted(), table.span())
        {
            self.headers.push(Header { keys: keys.to_vec(), span });
        }
        for (name, item) in table {
            let inner = below(keys, name);
            match item {
                Item::Value(value) => self.leaf(inner, table.key(name), value, false),
                Item::Table(table) => self.table(&inner, table),
                Item::ArrayOfTables(tables) => {
                    self.arrays.push(inner.clone());
                    tables.iter().for_each(|table| self.table(&inner, table));
                }
                Item::None => {}
            }
        }
    }

    fn leaf(&mut self, keys: Vec<String>, key: Option<&Key>, value: &TomlValue, inline: bool) {
        let (Some(key), Some(span)) = (key.and_then(Key::span), value.span()) else { return };
        if let TomlValue::InlineTable(table) = value {
            self.inline(&keys, table);
        }
        let braces = value.as_inline_table().is_some_and(|table| !table.is_dotted());
        self.leaves.push(Leaf { keys, key, value: span, inline, braces, is: value.clone() });
    }

    fn inline(&mut self, keys: &Keys, table: &InlineTable) {
        for (name, value) in table {
            self.leaf(below(keys, name), table.key(name), value, true);
        }
    }

    fn at(&self, keys: &Keys) -> Option<&Leaf> {
        self.leaves.iter().find(|leaf| leaf.keys == keys)
    }

    fn header(&self, keys: &Keys) -> Option<&Header> {
        self.headers.iter().find(|header| header.keys == keys)
    }

    /// Where the lines of a table's own keys end, and the indentation of the first.
    fn section(&self, header: &Header) -> (Range<usize>, Option<&Leaf>) {
        let next = self.headers.iter().map(|other| other.span.start).find(|start| *start > header.span.start);
        let within = |leaf: &&Leaf| {
            !leaf.inline && leaf.key.start > header.span.start && next.is_none_or(|next| leaf.key.start < next)
        };
        let end = self.leaves.iter().filter(within).map(|leaf| leaf.value.end).max().unwrap_or(header.span.end);
        (header.span.start..end, self.leaves.iter().find(within))
    }
}

/// Whether it can be read.
pub(super) fn check(text: &str) -> Result<(), Trouble> {
    Map::of(text).map(|_| ())
}

/// The string there.
pub(super) fn word(text: &str, keys: &Keys) -> Result<Option<String>, Trouble> {
    Ok(Map::of(text)?.at(keys).and_then(|leaf| leaf.is.as_str().map(str::to_owned)))
}

/// The value there, as it is written.
pub(super) fn verbatim(text: &str, keys: &Keys) -> Result<Option<String>, Trouble> {
    Ok(Map::of(text)?.at(keys).and_then(|leaf| text.get(leaf.value.clone()).map(str::to_owned)))
}

/// The whole number there.
pub(super) fn number(text: &str, keys: &Keys) -> Result<Option<i64>, Trouble> {
    Ok(Map::of(text)?.at(keys).and_then(|leaf| leaf.is.as_integer()))
}

/// The strings of the list there.
pub(super) fn words(text: &str, keys: &Keys) -> Result<Vec<String>, Trouble> {
    let map = Map::of(text)?;
    let items = map.at(keys).and_then(|leaf| leaf.is.as_array()).into_iter().flatten();
    Ok(items.filter_map(|item| item.as_str().map(str::to_owned)).collect())
}

/// Whether there is something, a table that only others imply included.
pub(super) fn has(text: &str, keys: &Keys) -> Result<bool, Trouble> {
    let map = Map::of(text)?;
    let all = map.headers.iter().map(|header| &header.keys).chain(map.leaves.iter().map(|leaf| &leaf.keys));
    Ok(all.chain(&map.arrays).any(|found| found.starts_with(keys)))
}

/// Names directly below a table.
pub(super) fn names(text: &str, keys: &Keys) -> Result<Vec<String>, Trouble> {
    let map = Map::of(text)?;
    let all = map.headers.iter().map(|header| &header.keys).chain(map.leaves.iter().map(|leaf| &leaf.keys));
    let mut names: Vec<String> =
        all.filter(|found| found.starts_with(keys)).filter_map(|found| found.get(keys.len()).cloned()).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// The plain values of a table as they are written: neither tables nor what is in them.
pub(super) fn values(text: &str, keys: &Keys) -> Result<Vec<(String, String)>, Trouble> {
    let map = Map::of(text)?;
    let own = map.leaves.iter().filter(|leaf| leaf.keys.len() == keys.len() + 1 && leaf.keys.starts_with(keys));
    let plain = own.filter(|leaf| !leaf.is.is_inline_table());
    Ok(plain.filter_map(|leaf| Some((leaf.keys.last()?.clone(), text.get(leaf.value.clone())?.to_owned()))).collect())
}

/// The text without the line of this table, or its braces, if none of its own keys follow it and `was` had no such
/// line.
pub(super) fn tidied(text: String, was: &str, keys: &Keys) -> Result<String, Trouble> {
    let (map, old) = (Map::of(&text)?, Map::of(was)?);
    if old.header(keys).is_some() || old.at(keys).is_some() {
        return Ok(text);
    }
    let braces = map.at(keys).is_some_and(|leaf| leaf.is.as_inline_table().is_some_and(InlineTable::is_empty));
    let header = map.header(keys).filter(|header| map.section(header).1.is_none());
    match header {
        Some(header) => Ok(spliced(&text, vec![(whole_lines(&text, header.span.clone()), String::new())])),
        None if braces => unset(&text, keys),
        None => Ok(text),
    }
}

/// Puts a value there, or makes what is there this value. Keys of a table that it does not name stay.
pub(super) fn set(text: &str, keys: &Keys, value: &Value) -> Result<String, Trouble> {
    if let (Value::Table(entries), true) = (value, has(text, keys)?) {
        return entries.iter().try_fold(text.to_owned(), |text, (key, value)| set(&text, &below(keys, key), value));
    }
    let map = Map::of(text)?;
    let new = match map.at(keys) {
        Some(leaf) if same(text, leaf, value) => return Ok(text.to_owned()),
        Some(leaf) => spliced(text, vec![(leaf.value.clone(), inline(value))]),
        None => added(text, &map, keys, value),
    };
    parsed(new, keys)
}

/// Takes out what is there; nothing there is no error.
pub(super) fn unset(text: &str, keys: &Keys) -> Result<String, Trouble> {
    let map = Map::of(text)?;
    let mut cuts: Vec<Range<usize>> = Vec::new();
    for header in map.headers.iter().filter(|header| header.keys.starts_with(keys)) {
        let (section, _) = map.section(header);
        cuts.push(whole_lines(text, section));
    }
    for leaf in map.leaves.iter().filter(|leaf| leaf.keys.starts_with(keys)) {
        let cut = if leaf.inline { from_braces(text, leaf) } else { lines(text, leaf.key.start..leaf.value.end) };
        if !cuts.iter().any(|known| known.start <= cut.start && cut.end <= known.end) {
            cuts.push(cut);
        }
    }
    parsed(spliced(text, cuts.into_iter().map(|cut| (cut, String::new())).collect()), keys)
}

/// What our edit made must be TOML again: a table that is written by dotted keys takes no second place, for one.
fn parsed(text: String, keys: &Keys) -> Result<String, Trouble> {
    match check(&text) {
        Ok(()) => Ok(text),
        Err(_) => {
            let parent = keys.get(..keys.len().saturating_sub(1)).unwrap_or_default();
            let table = dotted(parent);
            Err(Trouble::Refused(format!(
                "{table} is written in a way that nothing can be added to (dotted keys, or an array): write it \
                 as [{table}]"
            )))
        }
    }
}

fn lines(text: &str, range: Range<usize>) -> Range<usize> {
    line_start(text, range.start)..line_end(text, range.end)
}

/// The lines of a block, and the blank one before it where there is none behind it to take its place.
fn whole_lines(text: &str, range: Range<usize>) -> Range<usize> {
    let Range { start, end } = lines(text, range);
    let before = start.checked_sub(1).map(|at| line_start(text, at)..start).unwrap_or_default();
    let blank = !before.is_empty() && text.get(before.clone()).is_some_and(|line| line.trim().is_empty());
    if blank { before.start..end } else { start..end }
}

fn from_braces(text: &str, leaf: &Leaf) -> Range<usize> {
    let white = |c: char| c.is_ascii_whitespace();
    let rest = text.get(leaf.value.end..).unwrap_or_default();
    if let Some(after) = rest.trim_start_matches(white).strip_prefix(',') {
        return leaf.key.start..text.len() - after.trim_start_matches(white).len();
    }
    let before = text.get(..leaf.key.start).unwrap_or_default().trim_end_matches(white);
    before.strip_suffix(',').map_or(leaf.key.start, |before| before.trim_end_matches(white).len())..leaf.value.end
}

fn added(text: &str, map: &Map, keys: &Keys, value: &Value) -> String {
    // The nearest table above that is written in braces: everything below it stands in them.
    let braces = (1..keys.len()).rev().find_map(|depth| {
        let above = map.at(keys.get(..depth)?).filter(|leaf| leaf.braces)?;
        Some((above, keys.get(depth..)?))
    });
    if let Some((above, rest)) = braces {
        return in_braces(text, above, rest, value);
    }
    let newline = newline(text);
    let (Some((last, parent)), false) = (keys.split_last(), matches!(value, Value::Table(_))) else {
        return with_block(text, map, keys, value);
    };
    let line = format!("{} = {}{newline}", bare(last), inline(value));
    if let Some(header) = map.header(parent) {
        let (section, first) = map.section(header);
        let at = line_end(text, header.span.end.max(section.start));
        let indent = first.map_or_else(|| indent(text, header.span.start), |leaf| indent(text, leaf.key.start));
        let gap = if text.get(..at).is_some_and(|before| before.ends_with('\n')) { "" } else { newline };
        return spliced(text, vec![(at..at, format!("{gap}{indent}{line}"))]);
    }
    if parent.is_empty() {
        let end = map.headers.first().map_or(text.len(), |header| line_start(text, header.span.start));
        let last = map.leaves.iter().filter(|leaf| leaf.value.end <= end).map(|leaf| leaf.value.end).max();
        let at = last.map_or(0, |last| line_end(text, last));
        let gap = if text.get(..at).is_some_and(|before| !before.is_empty() && !before.ends_with('\n')) {
            newline
        } else {
            ""
        };
        return spliced(text, vec![(at..at, format!("{gap}{line}"))]);
    }
    let table = Value::Table(vec![(last.clone(), value.clone())]);
    with_block(text, map, parent, &table)
}

/// The text with a new table, behind the last of its siblings, or at the end where it has none.
fn with_block(text: &str, map: &Map, keys: &Keys, value: &Value) -> String {
    let newline = newline(text);
    let block = block(keys, value, &sibling_indent(text, map, keys), newline);
    let parent = keys.get(..keys.len().saturating_sub(1)).unwrap_or_default();
    let mut beside = map.headers.iter().filter(|header| !parent.is_empty() && header.keys.starts_with(parent));
    let at = match beside.next_back() {
        Some(last) => behind_comments(text, line_end(text, map.section(last).0.end)),
        None => text.len(),
    };
    let (before, after) = text.split_at_checked(at).unwrap_or((text, ""));
    format!("{}{block}{after}", ready_for_more(before, newline))
}

/// Behind comments that close a table: those before another table are that one's.
fn behind_comments(text: &str, at: usize) -> usize {
    let mut end = at;
    for line in text.get(at..).unwrap_or_default().split_inclusive('\n') {
        match line.trim_start().chars().next() {
            Some('#') => end += line.len(),
            Some(_) => return at,
            None => return end,
        }
    }
    end
}

fn in_braces(text: &str, above: &Leaf, rest: &Keys, value: &Value) -> String {
    let member = member(rest, value);
    let hollow = above.is.as_inline_table().is_some_and(InlineTable::is_empty);
    if hollow {
        return spliced(text, vec![(above.value.clone(), format!("{{ {member} }}"))]);
    }
    let inside = text.get(above.value.start..above.value.end.saturating_sub(1)).unwrap_or_default();
    let end = above.value.start + inside.trim_end().trim_end_matches(',').trim_end().len();
    spliced(text, vec![(end..end, format!(", {member}"))])
}

/// `a = { b = value }`
fn member(keys: &Keys, value: &Value) -> String {
    match keys.split_first() {
        None => inline(value),
        Some((last, [])) => format!("{} = {}", bare(last), inline(value)),
        Some((first, rest)) => format!("{} = {{ {} }}", bare(first), member(rest, value)),
    }
}

/// The indentation of tables beside this one.
fn sibling_indent(text: &str, map: &Map, keys: &Keys) -> String {
    let parent = keys.get(..keys.len().saturating_sub(1)).unwrap_or_default();
    let beside = |header: &&Header| header.keys.len() == keys.len() && header.keys.starts_with(parent);
    map.headers.iter().find(beside).map_or_else(String::new, |header| indent(text, header.span.start).to_owned())
}

/// A table with its own line, and the tables in it behind it.
pub(super) fn block(keys: &Keys, value: &Value, indent: &str, newline: &str) -> String {
    let Value::Table(entries) = value else { return String::new() };
    let mut out = format!("{indent}[{}]{newline}", dotted(keys));
    let mut tables = String::new();
    for (key, value) in entries {
        match value {
            Value::Table(_) => {
                let inner = block(&below(keys, key), value, &format!("{indent}  "), newline);
                tables = format!("{tables}{newline}{inner}");
            }
            _ => out.push_str(&format!("{indent}  {} = {}{newline}", bare(key), inline(value))),
        }
    }
    out + &tables
}

/// A value on one line.
fn inline(value: &Value) -> String {
    match value {
        Value::Word(word) => quoted(word),
        Value::Words(words) => format!("[{}]", words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(", ")),
        Value::Verbatim(text) => text.clone(),
        Value::Table(entries) => {
            let members = entries.iter().map(|(key, value)| format!("{} = {}", bare(key), inline(value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Keys as a header has them.
pub(super) fn dotted(keys: &Keys) -> String {
    keys.iter().map(|key| bare(key)).collect::<Vec<_>>().join(".")
}

fn bare(key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if plain { key.to_owned() } else { quoted(key) }
}

/// A basic string; JSON's escapes are among TOML's.
fn quoted(text: &str) -> String {
    contract::json::quote(text)
}

fn same(text: &str, leaf: &Leaf, value: &Value) -> bool {
    match (value, &leaf.is) {
        (Value::Word(word), found) => found.as_str() == Some(word),
        (Value::Words(words), TomlValue::Array(items)) => {
            words.len() == items.len() && words.iter().zip(items).all(|(word, item)| item.as_str() == Some(word))
        }
        (Value::Verbatim(verbatim), _) => text.get(leaf.value.clone()) == Some(verbatim),
        _ => false,
    }
}

/// The keys of one line, if that begins a table.
pub(super) fn header(line: &str) -> Option<Vec<String>> {
    Map::of(line).ok()?.headers.into_iter().next().map(|header| header.keys)
}
