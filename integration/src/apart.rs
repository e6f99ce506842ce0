//! A runtime called in a mount namespace of its own: how one machine shows control groups of either version.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::runc::script;

/// What makes a mount namespace with control groups of version 1 alone: crun takes no mixture.
pub const VERSION_1: &str = "{ umount /sys/fs/cgroup/unified 2>/dev/null || true; }";
/// The same with version 2 alone.
pub const VERSION_2: &str = "umount -l /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup";

/// Writes a program that runs another in a mount namespace of its own, made ready by `prepare`.
///
/// # Errors
/// The file cannot be written.
pub fn apart(path: impl AsRef<Path>, program: &Path, prepare: &str) -> Result<PathBuf> {
    let text = format!(
        "#!/bin/sh\nexec unshare --mount --propagation private sh -c '{prepare} && exec \"$@\"' sh '{}' \"$@\"\n",
        program.display()
    );
    script(path.as_ref(), &text)
}
