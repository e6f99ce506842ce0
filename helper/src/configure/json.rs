//! Edits of a JSON text: one member put in, changed or taken out, everything else byte for byte as it was.

use contract::json::{Node, Value as Json, parse_data, quote};

use super::text::{Keys, Trouble, Value, indent, newline, spliced};

/// A document is an object; an empty file counts as one without members, as that is what its author meant.
pub(super) fn check(text: &str) -> Result<(), Trouble> {
    parse(text).map(|_| ())
}

fn parse(text: &str) -> Result<Option<Node<'_>>, Trouble> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let node = parse_data(text.as_bytes()).map_err(|error| Trouble::at(text, error.offset, error.message))?;
    match node.value {
        Json::Object(_) => Ok(Some(node)),
        _ => Err(Trouble::at(text, node.span.start, "this is not an object")),
    }
}

fn find<'n, 'a>(top: &'n Node<'a>, keys: &Keys) -> Option<&'n Node<'a>> {
    keys.iter().try_fold(top, |node, key| node.member(key).map(|member| &member.value))
}

/// The string there.
pub(super) fn word(text: &str, keys: &Keys) -> Result<Option<String>, Trouble> {
    Ok(parse(text)?.and_then(|top| find(&top, keys)?.as_str().map(str::to_owned)))
}

/// The value there, as it is written.
pub(super) fn verbatim(text: &str, keys: &Keys) -> Result<Option<String>, Trouble> {
    Ok(parse(text)?.and_then(|top| text.get(find(&top, keys)?.span.clone()).map(str::to_owned)))
}

/// Whether there is something.
pub(super) fn has(text: &str, keys: &Keys) -> Result<bool, Trouble> {
    Ok(parse(text)?.is_some_and(|top| find(&top, keys).is_some()))
}

/// Whether there is an object without members.
pub(super) fn is_hollow(text: &str, keys: &Keys) -> Result<bool, Trouble> {
    Ok(parse(text)?.is_some_and(|top| find(&top, keys).is_some_and(|node| node.value == Json::Object(Vec::new()))))
}

/// Puts a value there, or makes what is there this value. Members of an object that it does not name stay.
pub(super) fn set(text: &str, keys: &Keys, value: &Value) -> Result<String, Trouble> {
    let Some(top) = parse(text)? else {
        // What was there is white space; a document has none to keep.
        return set(&format!("{{}}{}", newline(text)), keys, value);
    };
    if let (Value::Table(entries), Some(Json::Object(_))) = (value, find(&top, keys).map(|node| &node.value)) {
        return entries
            .iter()
            .try_fold(text.to_owned(), |text, (key, value)| set(&text, &super::text::below(keys, key), value));
    }
    let mut node = &top;
    for (step, key) in keys.iter().enumerate() {
        let deeper = keys.get(step + 1..).unwrap_or_default();
        match node.member(key) {
            Some(member) if deeper.is_empty() || member.value.is_null() => {
                if same(&member.value, value) {
                    return Ok(text.to_owned());
                }
                let layout = Layout::of(text, &top, node);
                let new = layout.nested(deeper, value, 1);
                return Ok(spliced(text, vec![(member.value.span.clone(), new)]));
            }
            Some(member) if matches!(member.value.value, Json::Object(_)) => node = &member.value,
            Some(member) => {
                let message = format!("{} is no object, so nothing can be put into it", quote(key));
                return Err(Trouble::at(text, member.value.span.start, message));
            }
            None => return Ok(Layout::of(text, &top, node).insert(text, node, key, deeper, value)),
        }
    }
    Ok(text.to_owned())
}

/// Takes out what is there; nothing there is no error.
pub(super) fn unset(text: &str, keys: &Keys) -> Result<String, Trouble> {
    let (Some(top), Some((last, parents))) = (parse(text)?, keys.split_last()) else { return Ok(text.to_owned()) };
    let Some(parent) = find(&top, parents) else { return Ok(text.to_owned()) };
    let members = parent.members();
    let Some(place) = members.iter().position(|member| member.key == *last) else { return Ok(text.to_owned()) };
    let own = members.get(place).map_or(0..0, |member| member.start..member.value.span.end);
    let cut = match (place.checked_sub(1).and_then(|before| members.get(before)), members.get(place + 1)) {
        (_, Some(next)) => own.start..next.start,
        (Some(before), None) => before.value.span.end..own.end,
        (None, None) => return Ok(spliced(text, vec![(parent.span.clone(), "{}".into())])),
    };
    Ok(spliced(text, vec![(cut, String::new())]))
}

fn same(node: &Node<'_>, value: &Value) -> bool {
    match (value, &node.value) {
        (Value::Word(word), Json::String(text)) => word == text,
        (Value::Words(words), Json::Array(items)) => {
            words.len() == items.len() && words.iter().zip(items).all(|(word, item)| item.as_str() == Some(word))
        }
        _ => false,
    }
}

/// How an object is written: its members' indentation, or none where all stand on one line.
struct Layout {
    newline: &'static str,
    unit: String,
    own: String,
    members: Option<String>,
}

impl Layout {
    fn of(text: &str, top: &Node<'_>, object: &Node<'_>) -> Self {
        let lines = |node: &Node<'_>| {
            let first = node.members().first()?;
            let own_line = text.get(node.span.start..first.start).is_some_and(|between| between.contains('\n'));
            own_line.then(|| indent(text, first.start).to_owned())
        };
        let own = indent(text, object.span.start).to_owned();
        let unit = lines(top).filter(|unit| !unit.is_empty()).unwrap_or_else(|| "  ".into());
        let hollow = object.members().is_empty();
        let spread = top.members().is_empty() || lines(top).is_some();
        let members = if hollow { spread.then(|| format!("{own}{unit}")) } else { lines(object) };
        Self { newline: newline(text), unit, own, members }
    }

    fn insert(&self, text: &str, object: &Node<'_>, key: &str, deeper: &Keys, value: &Value) -> String {
        let member = format!("{}: {}", quote(key), self.nested(deeper, value, 1));
        let piece = match (object.members().last(), &self.members) {
            (Some(last), Some(indent)) => {
                (last.value.span.end..last.value.span.end, format!(",{}{indent}{member}", self.newline))
            }
            (Some(last), None) => (last.value.span.end..last.value.span.end, format!(", {member}")),
            (None, Some(indent)) => {
                let new = format!("{{{0}{indent}{member}{0}{1}}}", self.newline, self.own);
                (object.span.clone(), new)
            }
            (None, None) => (object.span.clone(), format!("{{{member}}}")),
        };
        spliced(text, vec![piece])
    }

    /// The value under the keys that are still to be made; `depth` steps below the object.
    fn nested(&self, keys: &Keys, value: &Value, depth: usize) -> String {
        match (keys.split_first(), value) {
            (Some((first, rest)), _) => {
                self.object([format!("{}: {}", quote(first), self.nested(rest, value, depth + 1))].into(), depth)
            }
            (None, Value::Table(entries)) => {
                let members = entries.iter();
                let members =
                    members.map(|(key, value)| format!("{}: {}", quote(key), self.nested(&[], value, depth + 1)));
                self.object(members.collect(), depth)
            }
            (None, Value::Word(word)) => quote(word),
            (None, Value::Words(words)) => {
                format!("[{}]", words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(", "))
            }
            (None, Value::Verbatim(text)) => text.clone(),
        }
    }

    fn object(&self, members: Vec<String>, depth: usize) -> String {
        let Some(base) = &self.members else { return format!("{{{}}}", members.join(", ")) };
        let (inner, outer) = (self.unit.repeat(depth), self.unit.repeat(depth - 1));
        let separator = format!(",{}{base}{inner}", self.newline);
        format!("{{{0}{base}{inner}{1}{0}{base}{outer}}}", self.newline, members.join(&separator))
    }
}
