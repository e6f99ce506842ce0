//! From a spec and edits to a tree of changes: which lists get which items, and nothing about bytes or pointers.
//!
//! What already is as wanted makes no change, so edits made twice are edits made once.

use contract::capability::is_capability;
use contract::json::{self, Node, Value};

use crate::edits::{EditError, Edits, Stage};
use crate::entry;

/// What happens to one value of the document.
#[derive(Debug)]
pub(crate) enum Change<'k> {
    /// Some members of an object change; the others stay.
    Members(Vec<(&'k str, Change<'k>)>),
    /// Some items of an array change; the others stay.
    Items(Items<'k>),
    /// Another value, as JSON text.
    Value(String),
}

/// What happens to the items of an array.
#[derive(Debug, Default)]
pub(crate) struct Items<'k> {
    /// By rising position: what happens to an item; nothing where it goes.
    pub(crate) changed: Vec<(usize, Option<Change<'k>>)>,
    /// New items before others: by rising position of the other, which is there and does not go.
    pub(crate) inserted: Vec<(usize, String)>,
    /// New items at the end.
    pub(crate) added: Vec<String>,
}

/// All changes that the edits make to this spec; none when it already is as wanted.
pub(crate) fn changes(spec: &Node<'_>, edits: &Edits) -> Result<Option<Change<'static>>, EditError> {
    Ok(members([
        (
            "process",
            members([
                ("env", env(spec, &["process", "env"], &edits.env)?),
                ("capabilities", capabilities(spec, edits)?),
                ("user", members([("additionalGids", gids(spec, edits)?)])),
            ]),
        ),
        ("mounts", mounts(spec, edits)?),
        (
            "linux",
            members([
                ("devices", devices(spec, edits)?),
                ("resources", members([("devices", rules(spec, edits)?)])),
                ("maskedPaths", masked(spec, edits)?),
            ]),
        ),
        ("hooks", hooks(spec, edits)?),
    ]))
}

/// The changes to a process document, as `exec` gets one: the variables alone.
pub(crate) fn process_changes(
    process: &Node<'_>,
    variables: &[(String, String)],
) -> Result<Option<Change<'static>>, EditError> {
    Ok(members([("env", env(process, &["env"], variables)?)]))
}

/// The changes of members that change; none when none does.
pub(crate) fn members<'k>(all: impl IntoIterator<Item = (&'k str, Option<Change<'k>>)>) -> Option<Change<'k>> {
    let some: Vec<_> = all.into_iter().filter_map(|(key, change)| Some((key, change?))).collect();
    (!some.is_empty()).then_some(Change::Members(some))
}

pub(crate) fn env(
    root: &Node<'_>,
    path: &[&str],
    variables: &[(String, String)],
) -> Result<Option<Change<'static>>, EditError> {
    if variables.is_empty() {
        return Ok(None);
    }
    let items = list(root, path, Holds::Strings)?;
    let wanted = variables.iter().map(|(name, value)| Ok((name.as_str(), entry::variable(name, value)?)));
    // An entry without '=' is a copy too: crun hands it to putenv, which unsets the variable.
    let is_copy = |item: &Node<'_>, name: &str| {
        let rest = item.as_str().and_then(|text| text.strip_prefix(name));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    Ok(one_per_key(items, &[], is_copy, wanted.collect::<Result<_, _>>()?))
}

pub(crate) fn gids(spec: &Node<'_>, edits: &Edits) -> Result<Option<Change<'static>>, EditError> {
    if edits.gids.is_empty() {
        return Ok(None);
    }
    let items = list(spec, &["process", "user", "additionalGids"], Holds::Numbers)?;
    let mut added: Vec<String> = Vec::new();
    for gid in &edits.gids {
        let text = gid.to_string();
        if !items.iter().any(|item| item.as_i64() == Some(i64::from(*gid))) && !added.contains(&text) {
            added.push(text);
        }
    }
    Ok(some_items(Items { added, ..Items::default() }))
}

fn masked(spec: &Node<'_>, edits: &Edits) -> Result<Option<Change<'static>>, EditError> {
    if edits.masked.is_empty() {
        return Ok(None);
    }
    let items = list(spec, &["linux", "maskedPaths"], Holds::Strings)?;
    let is_new = |path: &&String| !items.iter().any(|item| item.as_str() == Some(path));
    let added = edits.masked.iter().filter(is_new).map(|path| json::quote(path)).collect();
    Ok(some_items(Items { added, ..Items::default() }))
}

fn mounts(spec: &Node<'_>, edits: &Edits) -> Result<Option<Change<'static>>, EditError> {
    if edits.mounts.is_empty() && edits.inserted.is_empty() && edits.options.is_empty() {
        return Ok(None);
    }
    let path = ["mounts"];
    let items = list(spec, &path, Holds::Objects)?;
    let mut inserted = Vec::new();
    let mut added = Vec::new();
    for group in edits.inserted.chunk_by(|a, b| a.0 == b.0) {
        let at = group.first().map_or(0, |(at, _)| *at);
        let wanted = group.iter().map(|(_, mount)| entry::mount(mount)).collect::<Result<Vec<_>, _>>()?;
        if at >= items.len() {
            added.extend(wanted);
        } else if !stand_at(items, at, &wanted) {
            inserted.extend(wanted.into_iter().map(|text| (at, text)));
        }
    }
    for mount in &edits.mounts {
        added.push(entry::mount(mount)?);
    }
    if items.len().checked_sub(added.len()).is_some_and(|start| stand_at(items, start, &added)) {
        added.clear();
    }
    Ok(some_items(Items { changed: options(items, edits)?, inserted, added }))
}

/// Options behind those that a mount has, unless the last one says so already.
fn options(mounts: &[Node<'_>], edits: &Edits) -> Result<Vec<(usize, Option<Change<'static>>)>, EditError> {
    let mut changed = Vec::new();
    for &(index, option) in &edits.options {
        let outside = || wrong(&["mounts"], Some(index), "there is no such mount to change");
        let mount = mounts.get(index).ok_or_else(outside)?;
        let inside = |e: EditError| EditError { at: format!("/mounts/{index}{}", e.at), ..e };
        let there = list(mount, &["options"], Holds::Strings).map_err(inside)?;
        if there.last().and_then(Node::as_str) != Some(option) {
            let added = Change::Items(Items { added: vec![json::quote(option)], ..Items::default() });
            changed.push((index, Some(Change::Members(vec![("options", added)]))));
        }
    }
    Ok(changed)
}

const SETS: [&str; 5] = ["bounding", "effective", "inheritable", "permitted", "ambient"];

fn capabilities(spec: &Node<'_>, edits: &Edits) -> Result<Option<Change<'static>>, EditError> {
    let mut sets = Vec::new();
    for set in SETS.into_iter().filter(|_| !edits.drop_capabilities.is_empty()) {
        let items = list(spec, &["process", "capabilities", set], Holds::Strings)?.iter().enumerate();
        let goes = |text: &str| edits.drop_capabilities.iter().any(|name| is_capability(text, name));
        let gone = items.filter(|(_, item)| item.as_str().is_some_and(goes)).map(|(index, _)| (index, None));
        sets.push((set, some_items(Items { changed: gone.collect(), ..Items::default() })));
    }
    Ok(members(sets))
}

pub(crate) fn hooks(spec: &Node<'_>, edits: &Edits) -> Result<Option<Change<'static>>, EditError> {
    let mut stages = Vec::new();
    for stage in Stage::ALL {
        let wanted =
            edits.hooks.iter().filter(|hook| hook.stage == stage).map(entry::hook).collect::<Result<_, _>>()?;
        let change = last(spec, &["hooks", stage.key()], wanted)?;
        let gone = if stage == Stage::Prestart { edits.drop_prestart.as_slice() } else { &[] };
        let there = spec.path(&["hooks", stage.key()]).map_or(0, |list| list.items().len());
        if let Some(index) = gone.iter().find(|index| **index >= there) {
            return Err(wrong(&["hooks", stage.key()], Some(*index), "there is no such hook to take out"));
        }
        let changed = gone.iter().map(|index| (*index, None)).collect();
        let added = if let Some(Change::Items(items)) = change { items.added } else { Vec::new() };
        stages.push((stage.key(), some_items(Items { changed, added, ..Items::default() })));
    }
    Ok(members(stages))
}

fn devices(spec: &Node<'_>, edits: &Edits) -> Result<Option<Change<'static>>, EditError> {
    if edits.nodes.is_empty() && edits.drop_devices.is_empty() {
        return Ok(None);
    }
    let path = ["linux", "devices"];
    let items = list(spec, &path, Holds::Objects)?;
    let mut dropped = vec![false; items.len()];
    for index in &edits.drop_devices {
        let there = items.len();
        let outside =
            || wrong(&path, Some(*index), &format!("there is nothing to take out, the list has {there} items"));
        *dropped.get_mut(*index).ok_or_else(outside)? = true;
    }
    let wanted = edits.nodes.iter().map(|node| Ok((node.path.as_str(), entry::device(node)?)));
    let is_copy = |item: &Node<'_>, path: &str| item.get("path").and_then(Node::as_str) == Some(path);
    Ok(one_per_key(items, &dropped, is_copy, wanted.collect::<Result<_, _>>()?))
}

fn rules(spec: &Node<'_>, edits: &Edits) -> Result<Option<Change<'static>>, EditError> {
    let Some(rules) = &edits.rules else { return Ok(None) };
    let items = list(spec, &["linux", "resources", "devices"], Holds::Objects)?;
    let wanted = rules.iter().map(entry::rule).collect::<Result<Vec<_>, _>>()?;
    let there = items.len() == wanted.len() && items.iter().zip(&wanted).all(|(item, text)| is(item, text));
    Ok((!there).then(|| Change::Value(format!("[{}]", wanted.join(",")))))
}

/// The wanted entries under their keys: every copy of a key goes, the entry stands where the first copy stood or at the
/// end. `dropped` items go whatever their key, and hold no place.
pub(crate) fn one_per_key(
    items: &[Node<'_>],
    dropped: &[bool],
    is_copy: impl Fn(&Node<'_>, &str) -> bool,
    wanted: Vec<(&str, String)>,
) -> Option<Change<'static>> {
    // The later of two entries with one key counts.
    let mut open: Vec<(&str, Option<String>)> = Vec::new();
    for (key, text) in wanted {
        open.retain(|(known, _)| *known != key);
        open.push((key, Some(text)));
    }
    let mut changed = Vec::new();
    for (index, item) in items.iter().enumerate() {
        if dropped.get(index) == Some(&true) {
            changed.push((index, None));
        } else if let Some((_, text)) = open.iter_mut().find(|(key, _)| is_copy(item, key)) {
            match text.take() {
                Some(text) if is(item, &text) => {}
                other => changed.push((index, other.map(Change::Value))),
            }
        }
    }
    some_items(Items { changed, added: open.into_iter().filter_map(|(_, text)| text).collect(), ..Items::default() })
}

/// The wanted entries as the last ones of a list. Entries that stand there already, in this order, stay.
pub(crate) fn last(spec: &Node<'_>, path: &[&str], wanted: Vec<String>) -> Result<Option<Change<'static>>, EditError> {
    if wanted.is_empty() {
        return Ok(None);
    }
    let items = list(spec, path, Holds::Objects)?;
    if items.len().checked_sub(wanted.len()).is_some_and(|start| stand_at(items, start, &wanted)) {
        return Ok(None);
    }
    Ok(some_items(Items { added: wanted, ..Items::default() }))
}

/// Whether the items from a position on are these.
fn stand_at(items: &[Node<'_>], at: usize, wanted: &[String]) -> bool {
    let there = items.get(at..).unwrap_or_default();
    there.len() >= wanted.len() && there.iter().zip(wanted).all(|(item, text)| is(item, text))
}

pub(crate) fn some_items(items: Items<'static>) -> Option<Change<'static>> {
    (!items.changed.is_empty() || !items.inserted.is_empty() || !items.added.is_empty()).then_some(Change::Items(items))
}

/// What the items of a list must be for a runtime to accept it.
#[derive(Clone, Copy)]
pub(crate) enum Holds {
    /// Texts.
    Strings,
    /// Whole numbers.
    Numbers,
    /// Objects.
    Objects,
}

/// The items of the list at `path`; none when it or something above it is absent or `null`.
pub(crate) fn list<'s, 'a>(spec: &'s Node<'a>, path: &[&str], holds: Holds) -> Result<&'s [Node<'a>], EditError> {
    let mut node = spec;
    for (depth, key) in path.iter().enumerate() {
        if !matches!(node.value, Value::Object(_)) {
            return Err(wrong(path.get(..depth).unwrap_or(path), None, &expected("an object", node)));
        }
        match node.get(key) {
            Some(inner) => node = inner,
            None => return Ok(&[]),
        }
    }
    if !matches!(node.value, Value::Array(_)) {
        return Err(wrong(path, None, &expected("a list", node)));
    }
    let unfit = node.items().iter().enumerate().find_map(|(index, item)| {
        let (fits, what) = match holds {
            Holds::Strings => (matches!(item.value, Value::String(_)), "a string"),
            Holds::Numbers => (item.as_i64().is_some(), "a whole number"),
            Holds::Objects => (matches!(item.value, Value::Object(_)), "an object"),
        };
        (!fits).then(|| wrong(path, Some(index), &expected(what, item)))
    });
    unfit.map_or(Ok(node.items()), Err)
}

pub(crate) fn expected(what: &str, found: &Node<'_>) -> String {
    let found = match found.value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    format!("it must be {what} and is {found}")
}

pub(crate) fn wrong(path: &[&str], index: Option<usize>, message: &str) -> EditError {
    let steps = path.iter().map(|key| (*key).to_owned()).chain(index.map(|index| index.to_string()));
    EditError { at: steps.map(|step| format!("/{step}")).collect(), message: message.to_owned() }
}

/// Whether an item of the document says what this JSON text says, however it is spaced, escaped or ordered.
pub(crate) fn is(item: &Node<'_>, text: &str) -> bool {
    json::parse_data(text.as_bytes()).is_ok_and(|wanted| equal(item, &wanted))
}

fn equal(a: &Node<'_>, b: &Node<'_>) -> bool {
    match (&a.value, &b.value) {
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| equal(x, y)),
        // No key repeats in a strict document: as many members and each found make the same object.
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|x| b.member(&x.key).is_some_and(|y| equal(&x.value, &y.value)))
        }
        (x, y) => x == y,
    }
}
