//! How a refusal reaches the user: on stderr, and as the last JSON line of the engine's `--log` file.
//!
//! containerd shows the last error line of that file; Podman shows stderr. Nothing is printed on success: descriptors 1
//! and 2 are the container's own.

use std::fs::OpenOptions;
use std::io::Write;

use contract::Refusal;
use contract::json::quote;

/// Where the engine wants errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Log<'a> {
    /// The `--log` file.
    pub(crate) path: Option<&'a str>,
    /// Whether `--log-format` is `json`.
    pub(crate) json: bool,
}

/// Tells the user why there is no container. The first refusal comes last in the log: engines show the last line.
pub(crate) fn tell(log: Log<'_>, refusals: &[Refusal]) {
    let mut lines = String::new();
    for refusal in refusals.iter().rev() {
        lines.push_str(&line(log, &format!("quilt-gpu: {refusal}")));
    }
    if let Some(path) = log.path
        && let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path)
    {
        // The engine's log is a courtesy; stderr and the audit still have the refusal.
        let _ = file.write_all(lines.as_bytes());
    }
    let mut stderr = String::new();
    for refusal in refusals {
        stderr.push_str(&format!("quilt-gpu: {refusal}\n"));
    }
    let _ = std::io::stderr().write_all(stderr.as_bytes());
}

fn line(log: Log<'_>, message: &str) -> String {
    let time = node::rfc3339(node::now());
    if log.json {
        format!("{{\"level\":\"error\",\"msg\":{},\"time\":{}}}\n", quote(message), quote(&time))
    } else {
        format!("time=\"{time}\" level=error msg={}\n", quote(message))
    }
}
