//! The published schema of audit records (`docs/audit.schema.json`), and whether a record keeps to it: by as much of JSON Schema as
//! it uses, and strictly. A field that it does not name is a mistake of ours, though readers may meet newer ones.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::fs;
use std::path::Path;

use serde_json::Value;

fn schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/audit.schema.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Fails with the first place where one of these records is not as the schema says.
pub(crate) fn keeps(records: &[Value]) {
    let schema = schema();
    assert!(!records.is_empty(), "nothing is shown without a record");
    for record in records {
        if let Err(why) = fits(&schema, &schema, record, "") {
            panic!("{why}: {record}");
        }
    }
}

fn fits(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    for (word, wanted) in schema.as_object().ok_or("a schema is an object")? {
        let ok = match word.as_str() {
            "$schema" | "$defs" | "title" | "description" => true,
            "$ref" => {
                let path = wanted.as_str().unwrap_or_default().trim_start_matches('#');
                return fits(root, root.pointer(path).ok_or(format!("no {path}"))?, value, at);
            }
            "type" => {
                let any = wanted.as_array().cloned().unwrap_or_else(|| vec![wanted.clone()]);
                any.iter().any(|kind| is(kind.as_str().unwrap_or_default(), value))
            }
            "enum" => wanted.as_array().is_some_and(|list| list.contains(value)),
            "anyOf" => wanted.as_array().is_some_and(|list| list.iter().any(|one| fits(root, one, value, at).is_ok())),
            "minimum" => value.as_i64() >= wanted.as_i64(),
            "minItems" => value.as_array().map(|list| list.len() as u64) >= wanted.as_u64(),
            "pattern" => {
                let long = if wanted.as_str().is_some_and(|pattern| pattern.contains("{64}")) { 64 } else { 32 };
                let hex = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
                value.as_str().is_some_and(|text| text.len() == long && hex(text))
            }
            "required" => {
                wanted.as_array().into_iter().flatten().all(|name| !value[name.as_str().unwrap_or("")].is_null())
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    fits(root, wanted, item, &format!("{at}/{index}"))?;
                }
                true
            }
            "properties" => {
                for (name, item) in value.as_object().into_iter().flatten() {
                    match wanted.get(name) {
                        Some(schema) => fits(root, schema, item, &format!("{at}/{name}"))?,
                        // Operations have values of any kind, and records only what is published.
                        None if at.starts_with("/edits") => {}
                        None => return Err(format!("{at}/{name} is in no schema")),
                    }
                }
                true
            }
            other => return Err(format!("this test knows no {other}")),
        };
        if !ok {
            return Err(format!("{at} does not keep to {word} {wanted}"));
        }
    }
    Ok(())
}

fn is(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        _ => false,
    }
}

#[test]
fn what_does_not_keep_to_the_schema_is_seen() {
    let schema = schema();
    let good =
        serde_json::json!({"seq": 1, "prev": "0".repeat(64), "kind": "create", "time": "t", "gpus": [{"pci": "x"}]});
    assert_eq!(fits(&schema, &schema, &good, ""), Ok(()));
    for (name, value) in [
        ("seq", serde_json::json!(0)),
        ("prev", serde_json::json!("0")),
        ("kind", serde_json::json!("made")),
        ("time", Value::Null),
        ("gpus", serde_json::json!([{"name": "nvidia0"}])),
        ("refusals", serde_json::json!([])),
        ("more", serde_json::json!(1)),
    ] {
        let mut bad = good.clone();
        bad[name] = value;
        assert!(fits(&schema, &schema, &bad, "").is_err(), "{bad}");
    }
}
