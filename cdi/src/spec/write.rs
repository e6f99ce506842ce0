//! A CDI spec as a file: the same bytes for the same spec. The YAML is the JSON's structure in blocks, and every text that
//! any reader of YAML could take for something else stands in quotes.

use contract::json::{self, Node, Value};

use super::problem::Problem;
use super::types::Spec;

/// The file as JSON.
///
/// # Errors
/// It cannot be written, which no spec that was read makes happen.
pub fn to_json(spec: &Spec) -> Result<String, Problem> {
    let mut text = serde_json::to_string_pretty(spec).map_err(|e| Problem::whole(format!("cannot write it: {e}")))?;
    text.push('\n');
    Ok(text)
}

/// The file as YAML.
///
/// # Errors
/// As [`to_json`].
pub fn to_yaml(spec: &Spec) -> Result<String, Problem> {
    let text = to_json(spec)?;
    let node = json::parse_data(text.as_bytes()).map_err(|e| Problem::whole(format!("cannot write it: {e}")))?;
    let mut out = "---\n".to_owned();
    block(&node, 0, &mut out);
    Ok(out)
}

/// A value whose first line begins where the output ends: what is a block has its first part there.
fn block(node: &Node<'_>, depth: usize, out: &mut String) {
    match &node.value {
        Value::Object(members) if !members.is_empty() => {
            for (index, member) in members.iter().enumerate() {
                indent(index, depth, out);
                out.push_str(&text(&member.key));
                out.push(':');
                behind(&member.value, depth, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                indent(index, depth, out);
                out.push_str("- ");
                block(item, depth + 1, out);
            }
        }
        _ => {
            out.push_str(&scalar(&node.value));
            out.push('\n');
        }
    }
}

/// A value behind its key: on the same line, or as a block on the next ones.
fn behind(node: &Node<'_>, depth: usize, out: &mut String) {
    let step = match &node.value {
        Value::Object(members) if !members.is_empty() => 1,
        Value::Array(items) if !items.is_empty() => 0,
        _ => {
            out.push(' ');
            return block(node, depth, out);
        }
    };
    out.push('\n');
    out.push_str(&"  ".repeat(depth + step));
    block(node, depth + step, out);
}

fn indent(index: usize, depth: usize, out: &mut String) {
    if index > 0 {
        out.push_str(&"  ".repeat(depth));
    }
}

fn scalar(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => (*number).to_owned(),
        Value::String(string) => text(string),
        Value::Array(_) => "[]".to_owned(),
        Value::Object(_) => "{}".to_owned(),
    }
}

/// Words that are no texts to one reader or another.
const NOT_TEXT: [&str; 11] = ["null", "true", "false", "y", "n", "yes", "no", "on", "off", "nan", "inf"];

fn text(text: &str) -> String {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let goes_on = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+=,@".contains(&byte));
    let is_text = !NOT_TEXT.contains(&text.to_ascii_lowercase().as_str());
    if begins && goes_on && is_text { text.to_owned() } else { json::quote(text) }
}
