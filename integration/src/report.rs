//! What test output says beside passed and failed: which engines and files were used, what was
//! skipped and why. Written past the test runner's capture, so that it shows in a run that passes.

use std::fmt::Display;
use std::io::{self, Write};

use nix::unistd::geteuid;

/// A line of test output.
pub fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Whether this is root; if not, says that `test` is skipped for it.
pub fn root_for(test: &str) -> bool {
    let root = geteuid().is_root();
    if !root {
        say(format_args!("SKIPPED {test}: needs root"));
    }
    root
}

/// The words that filter: those that are no flag and no flag's value.
#[must_use]
pub fn filter_words() -> Vec<String> {
    let mut words = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(word) = args.next() {
        if word == "--test-threads" || word == "--skip" {
            args.next();
        } else if !word.starts_with('-') {
            words.push(word);
        }
    }
    words
}
