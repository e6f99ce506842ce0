//! Which boot this is, and what time it is.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::NodeError;
use crate::file;

/// Where the kernel tells the boot's id, below the root.
pub(crate) const ID: &str = "proc/sys/kernel/random/boot_id";

/// The id of this boot of this machine (`random(4)`).
///
/// # Errors
/// `/proc` is not there.
pub fn boot_id() -> Result<String, NodeError> {
    file::read(&format!("/{ID}")).map(|bytes| text(&bytes))
}

/// One line of the kernel's without its end.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// Now, in seconds since 1970; 0 on a clock before that.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
