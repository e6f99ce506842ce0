//! A record as one line of words, for people who grep and for programs that read no JSON. Pure.

use serde_json::Value;

use super::{Entry, string};

/// A record in one line, `name=value` with JSON's quotes where a value is more than one plain word.
pub(crate) fn words(entry: &Entry) -> String {
    let seq = entry.get("seq").and_then(Value::as_u64).unwrap_or_default();
    let mut out = format!("{} seq={seq} kind={}", string(entry, "time"), string(entry, "kind"));
    let mut add = |name: &str, value: &str| {
        let odd = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '"' | '=');
        if value.contains(odd) {
            out.push_str(&format!(" {name}={}", Value::from(value)));
        } else if !value.is_empty() {
            out.push_str(&format!(" {name}={value}"));
        }
    };
    let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    for name in ["container", "holder"] {
        add(name, string(entry, name));
    }
    if let Some(pod) = entry.get("pod").filter(|pod| pod.is_object()) {
        let parts = ["namespace", "name", "uid", "container"].map(|field| text(pod, field));
        add("pod", &parts.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("/"));
    }
    for (list, part) in [("gpus", "name"), ("gpus", "uuid"), ("refusals", "code"), ("refusals", "rule")] {
        let items: Vec<String> =
            super::list(entry, list).iter().map(|item| text(item, part)).filter(|item| !item.is_empty()).collect();
        add(if part == "name" { list } else { part }, &items.join(","));
    }
    for name in ["contract", "key", "message", "verify"] {
        add(name, string(entry, name));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn what_is_more_than_a_plain_word_is_quoted() {
        let entry = json!({"seq": 2, "kind": "refuse", "time": "t", "container": "a b\n<0>seq=9 \"", "message": "",
            "refusals": [{"code": "UNSAFE_SPEC", "rule": "hook"}, {"code": "POLICY"}],
            "gpus": [{"name": "nvidia0", "uuid": "GPU-1"}],
            "pod": {"uid": "u", "namespace": "n", "name": null, "container": "c"}});
        assert_eq!(
            super::words(entry.as_object().unwrap()),
            "t seq=2 kind=refuse container=\"a b\\n<0>seq=9 \\\"\" pod=n/u/c gpus=nvidia0 uuid=GPU-1 \
             code=UNSAFE_SPEC,POLICY rule=hook"
        );
    }
}
