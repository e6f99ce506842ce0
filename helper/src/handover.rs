//! Calls that are meant for the runtime: Podman and people find `quilt-gpu` on the PATH and use it as one.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::exit::Failure;

const RUNTIME: &str = "quilt-gpu-runtime";

/// The verbs of the OCI command line and runc's own.
const VERBS: [&str; 17] = [
    "checkpoint",
    "create",
    "delete",
    "events",
    "exec",
    "features",
    "kill",
    "list",
    "pause",
    "ps",
    "restore",
    "resume",
    "run",
    "spec",
    "start",
    "state",
    "update",
];

/// runc's and crun's global flags, which stand before the verb.
const FLAGS: [&str; 8] =
    ["--debug", "--root", "--log", "--log-format", "--log-level", "--cgroup-manager", "--rootless", "--systemd-cgroup"];

/// Whether a command line begins as an engine's call of a runtime does.
#[must_use]
pub fn is_runtime_call(first: &OsStr) -> bool {
    let first = first.to_string_lossy();
    let flag = first.split_once('=').map_or(&*first, |(flag, _)| flag);
    VERBS.contains(&flag) || FLAGS.contains(&flag)
}

/// The runtime: beside this program, else where packages put it.
pub(crate) fn runtime() -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|own| own.parent().map(|folder| folder.join(RUNTIME)));
    beside.filter(|path| path.exists()).unwrap_or_else(|| Path::new("/usr/bin").join(RUNTIME))
}

/// Becomes the runtime that lies beside this program; returns only when that fails.
pub(crate) fn become_runtime(args: &[OsString]) -> Failure {
    let path = runtime();
    let cause = Command::new(&path).args(args).exec();
    Failure::Internal(format!("cannot run {}: {cause}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_call_a_runtime_and_people_call_the_helper() {
        for (first, runtime) in [
            ("create", true),
            ("--root", true),
            ("--root=/run/x", true),
            ("list", true),
            ("features", true),
            ("lease", false),
            ("--host-root", false),
            ("--help", false),
            ("--version", false),
            ("check", false),
        ] {
            assert_eq!(is_runtime_call(OsStr::new(first)), runtime, "{first}");
        }
    }
}
