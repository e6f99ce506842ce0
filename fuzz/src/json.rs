//! The strict reader: what it accepts another reader reads the same, its spans are where the values stand, and what it
//! refuses that other reader refuses too, unless the rule is about what two readers could take differently.

use contract::json::{self, JsonError, MAX_DEPTH, Node, Value};

/// Values whose spans are read again, one by one: it costs their length each.
const MOST_AGAIN: usize = 16;

/// Holds the reader to it.
pub fn run(data: &[u8]) {
    for read in [json::parse_data, json::parse_oci] {
        match read(data) {
            Ok(node) => accepted(data, &node),
            Err(error) => refused(data, &error, read),
        }
    }
    if let Ok(node) = json::parse_oci(data) {
        assert!(json::parse_data(data).as_ref() == Ok(&node), "keys that are data read otherwise");
        if let Ok(bytes) = cdi::apply(data, &node, &cdi::Edits::default()) {
            assert!(bytes == data, "no edit changed the document");
        }
    }
}

fn accepted(data: &[u8], node: &Node<'_>) {
    let mut overflow = false;
    shape(data, node, 0, &mut overflow);
    match serde_json::from_slice::<serde_json::Value>(data) {
        Ok(value) => assert!(same(node, &value), "read otherwise: {value}"),
        Err(error) => assert!(overflow, "another reader refuses it: {error}"),
    }
    let mut left = MOST_AGAIN;
    again(data, node, &mut left);
}

fn refused(data: &[u8], error: &JsonError, read: fn(&[u8]) -> Result<Node<'_>, JsonError>) {
    assert!(error.offset <= data.len() && !error.message.is_empty(), "{error}");
    let longer = [data, b" "].concat();
    match read(&longer) {
        Ok(_) => panic!("with a blank behind it is accepted: {error}"),
        Err(other) => assert_eq!(other.rule, error.rule, "{error}"),
    }
    if error.rule == "json-syntax" {
        let other = serde_json::from_slice::<serde::de::IgnoredAny>(data);
        assert!(other.is_err(), "another reader takes it: {error}");
    }
}

/// Spans lie in each other, in order, and begin and end where a value of the kind does.
fn shape(data: &[u8], node: &Node<'_>, depth: usize, overflow: &mut bool) {
    assert!(depth <= MAX_DEPTH, "too deep");
    let Some([first, .., last]) = data.get(node.span.clone()).map(|text| [text.first(), text.last()]) else {
        panic!("no bytes at {:?}", node.span)
    };
    let (first, last) = (first.copied().unwrap_or(b' '), last.copied().unwrap_or(b' '));
    let mut inside = node.span.start + 1..node.span.end.saturating_sub(1);
    let mut within = |span: &std::ops::Range<usize>| {
        assert!(
            inside.start <= span.start && span.start < span.end && span.end <= inside.end,
            "{span:?} in {inside:?}"
        );
        inside.start = span.end;
    };
    match &node.value {
        Value::Null => assert_eq!((first, last), (b'n', b'l')),
        Value::Bool(value) => assert_eq!((first, last), (if *value { b't' } else { b'f' }, b'e')),
        Value::Number(text) => {
            assert_eq!(Some(text.as_bytes()), data.get(node.span.clone()), "a number's text");
            *overflow |= text.parse::<f64>().is_ok_and(f64::is_infinite);
        }
        Value::String(text) => {
            assert_eq!((first, last), (b'"', b'"'));
            quoted(text);
        }
        Value::Array(items) => {
            assert_eq!((first, last), (b'[', b']'));
            items.iter().for_each(|item| within(&item.span));
            items.iter().for_each(|item| shape(data, item, depth + 1, overflow));
        }
        Value::Object(members) => {
            assert_eq!((first, last), (b'{', b'}'));
            for member in members {
                assert_eq!(data.get(member.start), Some(&b'"'), "a key begins with a quote");
                within(&(member.start..member.value.span.end));
                quoted(&member.key);
                shape(data, &member.value, depth + 1, overflow);
            }
        }
    }
}

fn quoted(text: &str) {
    assert!(!text.contains('\0'), "NUL in a string");
    let written = json::quote(text);
    let back = json::parse_data(written.as_bytes());
    assert_eq!(back.ok().as_ref().and_then(Node::as_str), Some(text), "{written}");
}

fn same(node: &Node<'_>, other: &serde_json::Value) -> bool {
    use serde_json::Value as Other;
    match (&node.value, other) {
        (Value::Null, Other::Null) => true,
        (Value::Bool(a), Other::Bool(b)) => a == b,
        (Value::String(a), Other::String(b)) => a == b,
        (Value::Number(text), Other::Number(number)) => {
            let whole = (number.as_i64().map(i128::from)).or(number.as_u64().map(i128::from));
            match whole {
                Some(whole) => text.parse() == Ok(whole) && node.as_i64() == i64::try_from(whole).ok(),
                // `-0` is a whole number to us, and 0.
                None => *text == "-0" || (node.as_i64().is_none() && number.as_f64().is_some()),
            }
        }
        (Value::Array(a), Other::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        // A key that stands twice would make the other map smaller.
        (Value::Object(a), Other::Object(b)) => {
            let equal = |member: &json::Member<'_>| b.get(&*member.key).is_some_and(|b| same(&member.value, b));
            a.len() == b.len() && a.iter().all(equal)
        }
        _ => false,
    }
}

/// Each value's bytes are that value.
fn again(data: &[u8], node: &Node<'_>, left: &mut usize) {
    if *left == 0 {
        return;
    }
    *left -= 1;
    let bytes = data.get(node.span.clone()).unwrap_or_default();
    let Ok(read) = json::parse_data(bytes) else { panic!("the bytes of a value are none") };
    assert_eq!(read.span, 0..bytes.len());
    assert_eq!(json::to_value(&read), json::to_value(node), "the bytes of a value are another");
    node.items().iter().for_each(|item| again(data, item, left));
    node.members().iter().for_each(|member| again(data, &member.value, left));
}
