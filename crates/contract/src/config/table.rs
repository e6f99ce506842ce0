//! TOML in the form that documents are read from. No I/O, no judgement.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::json::{Member, Node, Value};

/// A TOML table as the reader of documents takes it.
pub(super) fn table_node<'t>(table: &'t DeTable<'_>) -> Node<'t> {
    let member = |(key, value): (&'t Spanned<DeString<'_>>, &'t Spanned<DeValue<'_>>)| {
        let key = Cow::Borrowed(key.get_ref().as_ref());
        Member { key, start: value.span().start, value: value_node(value) }
    };
    Node { span: 0..0, value: Value::Object(table.iter().map(member).collect()) }
}

fn value_node<'t>(value: &'t Spanned<DeValue<'_>>) -> Node<'t> {
    let made = match value.get_ref() {
        DeValue::String(text) => Value::String(Cow::Borrowed(text)),
        DeValue::Integer(number) if number.radix() == 10 => Value::Number(number.as_str()),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Array(items) => Value::Array(items.iter().map(value_node).collect()),
        DeValue::Table(table) => return Node { span: value.span(), ..table_node(table) },
        // Dates, fractions: something that is right for no key, not even for a table.
        _ => {
            let value = Node { span: value.span(), value: Value::Null };
            Value::Object(vec![Member { key: Cow::Borrowed("a date or a fraction"), start: 0, value }])
        }
    };
    Node { span: value.span(), value: made }
}

/// The text up to the line that holds this byte.
pub(super) fn before_the_line(text: &str, at: usize) -> &str {
    let before = text.get(..at).unwrap_or(text).trim_end_matches('\n');
    text.get(..before.rfind('\n').map_or(0, |end| end + 1)).unwrap_or_default()
}

/// The number of the line that holds this byte.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}
