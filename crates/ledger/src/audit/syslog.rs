//! A record as one line of words, and the socket of a syslog daemon that may get it. The file is the record: what a socket does
//! not take is lost there, and nothing waits for it.

use std::os::unix::net::UnixDatagram;

use serde_json::{Map, Value};

use super::cut;

/// Most bytes of a line: what every syslog daemon takes.
const LONGEST: usize = 1900;
/// `authpriv.warning`, `authpriv.notice` (RFC 5424, 6.2.1).
const WARNING: u32 = 10 << 3 | 4;
const NOTICE: u32 = 10 << 3 | 5;

/// A record in one line, `name=value` with JSON's quotes where a value is more than one plain word.
#[must_use]
pub fn words(seq: u64, kind: &str, fields: &Map<String, Value>) -> String {
    let mut out = format!("seq={seq} kind={kind}");
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
        add(name, fields.get(name).and_then(Value::as_str).unwrap_or_default());
    }
    if let Some(pod) = fields.get("pod").filter(|pod| pod.is_object()) {
        let parts = ["namespace", "name", "uid", "container"].map(|field| text(pod, field));
        add("pod", &parts.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("/"));
    }
    for (list, part) in [("gpus", "name"), ("gpus", "uuid"), ("refusals", "code"), ("refusals", "rule")] {
        let items = fields.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let items: Vec<String> = items.iter().map(|item| text(item, part)).filter(|item| !item.is_empty()).collect();
        add(if part == "name" { list } else { part }, &items.join(","));
    }
    for name in ["contract", "key", "message", "verify"] {
        add(name, fields.get(name).and_then(Value::as_str).unwrap_or_default());
    }
    cut(&out, LONGEST)
}

/// Sends a record to a syslog socket, with the digest of its line in the log. What fails, fails.
pub(super) fn send(socket: &str, seq: u64, kind: &str, fields: &Map<String, Value>, digest: &str) {
    let level = if matches!(kind, "refuse" | "verify-failed" | "torn") { WARNING } else { NOTICE };
    let (pid, words) = (std::process::id(), words(seq, kind, fields));
    let line = format!("<{level}>quilt-gpu[{pid}]: {words} sha256={digest}");
    if let Ok(sender) = UnixDatagram::unbound() {
        let _ = sender.set_nonblocking(true).and_then(|()| sender.send_to(line.as_bytes(), socket));
    }
}
