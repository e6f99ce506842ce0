//! One list of steps, told in two ways: as RFC 6902 operations and as bytes spliced into the original.
//!
//! Both ways read the same fields of the same steps, so what is shown is what is written.

use std::ops::Range;

use contract::json::{self, Node};
use contract::order;

use crate::change::{Change, Items, changes, members, process_changes, some_items};
use crate::edits::{EditError, Edits, Op, Without};

/// What edits do to one spec, found out once.
pub struct Plan(Vec<Step<'static>>);

impl Plan {
    /// Finds out what the edits do to the spec.
    ///
    /// # Errors
    /// The spec has another shape than the OCI runtime spec where it would be edited, or something to add cannot be written.
    pub fn new(spec: &Node<'_>, edits: &Edits) -> Result<Self, EditError> {
        Ok(Self(steps_of(spec, changes(spec, edits)?)))
    }

    /// The document with the edits made. `bytes` is what the strict reader made the spec of. Every byte that is not part of
    /// an edit stays, and edits that change nothing give the same bytes.
    ///
    /// # Errors
    /// The spec was not read from `bytes`.
    pub fn apply(&self, bytes: &[u8]) -> Result<Vec<u8>, EditError> {
        splice(bytes, &self.0)
    }

    /// The edits as RFC 6902 operations, valid when applied in order; none when the spec already is as wanted.
    #[must_use]
    pub fn into_patch(self) -> Vec<Op> {
        self.0.into_iter().map(Step::into_op).collect()
    }
}

/// [`Plan::into_patch`] of these edits.
///
/// # Errors
/// As [`Plan::new`].
pub fn patch(spec: &Node<'_>, edits: &Edits) -> Result<Vec<Op>, EditError> {
    Plan::new(spec, edits).map(Plan::into_patch)
}

/// [`Plan::apply`] of these edits.
///
/// # Errors
/// As [`Plan::new`] and [`Plan::apply`].
pub fn apply(bytes: &[u8], spec: &Node<'_>, edits: &Edits) -> Result<Vec<u8>, EditError> {
    Plan::new(spec, edits)?.apply(bytes)
}

/// The document without these items, and the same as operations; `spec` is what the strict reader made of `bytes`.
///
/// # Errors
/// As [`apply`].
pub fn without(bytes: &[u8], spec: &Node<'_>, gone: &Without) -> Result<(Vec<u8>, Vec<Op>), EditError> {
    let cut = |key, positions: &[usize]| {
        let mut items = Items::default();
        for position in positions {
            items.changed.push((*position, None));
        }
        (key, some_items(items))
    };
    let resources = ("resources", members([cut("devices", &gone.rules)]));
    let linux = ("linux", members([cut("devices", &gone.devices), resources]));
    let steps = steps_of(spec, members([cut("mounts", &gone.mounts), linux]));
    let mut removed = Vec::new();
    for step in &steps {
        removed.push(Op::Remove { path: step.at.clone() });
    }
    Ok((splice(bytes, &steps)?, removed))
}

/// A process document (what `exec --process` names) with these variables set.
///
/// # Errors
/// As [`apply`].
pub fn apply_process(bytes: &[u8], process: &Node<'_>, variables: &[(String, String)]) -> Result<Vec<u8>, EditError> {
    made(bytes, process, process_changes(process, variables)?)
}

fn splice(bytes: &[u8], steps: &[Step<'_>]) -> Result<Vec<u8>, EditError> {
    // What is added at one place keeps its order, and comes after what was cut out before that place.
    let mut steps: Vec<(usize, &Step<'_>)> = steps.iter().enumerate().collect();
    // What is put before an item stands before what replaces it.
    let place = |step: &Step<'_>| (step.place.start, step.place.end);
    order::sort_by(&mut steps, |(a, one), (b, other)| (place(one), a).cmp(&(place(other), b)));
    let steps: Vec<&Step<'_>> = steps.into_iter().map(|(_, step)| step).collect();
    let added: usize = steps.iter().map(|step| step.value.as_ref().map_or(0, String::len) + 32).sum();
    let mut out = Vec::with_capacity(bytes.len() + added);
    let mut done = 0;
    let foreign = || EditError { at: String::new(), message: "the spec was not read from these bytes".to_owned() };
    for step in steps {
        out.extend_from_slice(bytes.get(done..step.place.start).ok_or_else(foreign)?);
        step.write(&mut out);
        done = step.place.end;
    }
    out.extend_from_slice(bytes.get(done..).ok_or_else(foreign)?);
    Ok(out)
}

/// One change of the document.
struct Step<'k> {
    /// JSON pointer; `-` at its end where an item is added.
    at: String,
    /// The bytes of the original that give way; empty where something is added.
    place: Range<usize>,
    /// The new value; none where something goes.
    value: Option<String>,
    comma: Comma,
    /// The key before the new value, where a member is added.
    key: Option<&'k str>,
}

/// Where a comma stands beside the new value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comma {
    None,
    Before,
    After,
}

impl Comma {
    fn before(needed: bool) -> Self {
        if needed { Self::Before } else { Self::None }
    }
}

impl Step<'_> {
    fn into_op(self) -> Op {
        match self.value {
            None => Op::Remove { path: self.at },
            Some(value) if self.place.is_empty() => Op::Add { path: self.at, value },
            Some(value) => Op::Replace { path: self.at, value },
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        if self.comma == Comma::Before {
            out.push(b',');
        }
        if let Some(key) = self.key {
            out.extend_from_slice(json::quote(key).as_bytes());
            out.push(b':');
        }
        out.extend_from_slice(self.value.as_deref().unwrap_or_default().as_bytes());
        if self.comma == Comma::After {
            out.push(b',');
        }
    }
}

/// The steps that make a change.
fn steps_of<'k>(document: &Node<'_>, change: Option<Change<'k>>) -> Vec<Step<'k>> {
    let mut steps = Vec::new();
    if let Some(change) = change {
        walk(document, change, String::new(), &mut steps);
    }
    steps
}

/// The changes as RFC 6902 operations.
pub(crate) fn told(document: &Node<'_>, change: Option<Change<'_>>) -> Vec<Op> {
    steps_of(document, change).into_iter().map(Step::into_op).collect()
}

/// The document with the changes made.
pub(crate) fn made(bytes: &[u8], document: &Node<'_>, change: Option<Change<'_>>) -> Result<Vec<u8>, EditError> {
    splice(bytes, &steps_of(document, change))
}

/// The steps that make a change to the value `node` at the pointer `at`.
fn walk<'k>(node: &Node<'_>, change: Change<'k>, at: String, steps: &mut Vec<Step<'k>>) {
    match change {
        Change::Value(text) => {
            steps.push(Step { at, place: node.span.clone(), value: Some(text), comma: Comma::None, key: None })
        }
        // `null` counts as absent: it gives way to a value that holds only what is added.
        change if node.is_null() => walk(node, Change::Value(render(change)), at, steps),
        Change::Items(items) => walk_items(node, items, &at, steps),
        Change::Members(members) => {
            let mut comma = !node.members().is_empty();
            let end = node.members().last().map_or(node.span.start + 1, |member| member.value.span.end);
            for (key, change) in members {
                let at = format!("{at}/{key}");
                if let Some(member) = node.member(key) {
                    walk(&member.value, change, at, steps);
                } else {
                    steps.push(Step {
                        at,
                        place: end..end,
                        value: Some(render(change)),
                        comma: Comma::before(comma),
                        key: Some(key),
                    });
                    comma = true;
                }
            }
        }
    }
}

/// Operations move the items behind them, bytes do not: first the replacements, then what goes, from the back, then
/// what is put in between, from the front, then what is added.
fn walk_items<'k>(node: &Node<'_>, items: Items<'k>, at: &str, steps: &mut Vec<Step<'k>>) {
    let old = node.items();
    let end = old.last().map_or(node.span.start + 1, |item| item.span.end);
    let gone = items.changed.iter().filter(|(_, change)| change.is_none()).count();
    let mut comma = old.len() > gone;
    let mut cuts = Vec::new();
    let mut one_stays = false;
    let mut changed = items.changed.into_iter().peekable();
    for (index, item) in old.iter().enumerate() {
        let cut = |place| Step { at: format!("{at}/{index}"), place, value: None, comma: Comma::None, key: None };
        match changed.next_if(|(changed, _)| *changed == index) {
            // The comma goes with the item: the one before it, or the one behind it where no item before it stays.
            Some((_, None)) => {
                let before = index.checked_sub(1).and_then(|index| old.get(index)).filter(|_| one_stays);
                let behind = old.get(index + 1).map_or(item.span.end, |next| next.span.start);
                cuts.push(cut(before.map_or(item.span.start..behind, |before| before.span.end..item.span.end)));
            }
            Some((_, Some(change))) => {
                walk(item, change, format!("{at}/{index}"), steps);
                one_stays = true;
            }
            None => one_stays = true,
        }
    }
    steps.extend(cuts.into_iter().rev());
    for (before, (index, text)) in items.inserted.into_iter().enumerate() {
        let start = old.get(index).map_or(end, |item| item.span.start);
        let at = format!("{at}/{}", index + before);
        steps.push(Step { at, place: start..start, value: Some(text), comma: Comma::After, key: None });
    }
    for text in items.added {
        steps.push(Step {
            at: format!("{at}/-"),
            place: end..end,
            value: Some(text),
            comma: Comma::before(comma),
            key: None,
        });
        comma = true;
    }
}

/// The value that a change makes where there was none.
fn render(change: Change<'_>) -> String {
    match change {
        Change::Value(text) => text,
        Change::Items(items) => format!("[{}]", items.added.join(",")),
        Change::Members(members) => {
            let members: Vec<_> =
                members.into_iter().map(|(key, change)| format!("{}:{}", json::quote(key), render(change))).collect();
            format!("{{{}}}", members.join(","))
        }
    }
}
