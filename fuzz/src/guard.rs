//! Placeholder while the rest is made.

/// Nothing yet.
pub fn run(_: &[u8]) {}
