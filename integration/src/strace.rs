//! What a program of ours did, by its system calls: which files it changed and which programs it ran. What those did in turn (a
//! low-level runtime, the container) is left out.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Calls that change something by name.
const CHANGES: [&str; 14] = [
    "mkdir",
    "mknod",
    "rename",
    "unlink",
    "rmdir",
    "symlink",
    "link(",
    "linkat",
    "chmod",
    "chown",
    "truncate(",
    "setxattr",
    "utime",
    "mount",
];

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Paths that were made, changed or removed.
    pub changed: BTreeSet<String>,
    /// The calls that ran a program.
    pub programs: Vec<String>,
}

/// The command under strace, which writes to `file`, ends with it and lets go of whoever runs another program.
#[must_use]
pub fn strace(command: &Command, file: &Path) -> Command {
    let mut traced = Command::new("strace");
    traced.args(["-f", "-y", "-s", "512", "-o"]).arg(file).args(["-e", "trace=file,process,desc", "-b", "execve"]);
    traced.arg(command.get_program()).args(command.get_args());
    traced.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    traced
}

impl Trace {
    /// Reads what strace wrote.
    #[must_use]
    pub fn read(trace: &str) -> Self {
        let lines: Vec<&str> =
            trace.lines().filter_map(|line| line.split_once(' ').map(|(_, call)| call.trim_start())).collect();
        let mut seen = Self::default();
        for call in lines.iter().filter(|call| !call.contains(" = -1 ")) {
            let name = call.split('(').next().unwrap_or_default();
            let opens =
                name.starts_with("open") && ["O_WRONLY", "O_RDWR", "O_CREAT"].iter().any(|flag| call.contains(flag));
            if opens || CHANGES.iter().any(|change| call.starts_with(change)) {
                seen.changed.extend(named(call));
            }
        }
        seen.programs = lines.iter().filter(|call| call.starts_with("execve")).map(|call| (*call).to_owned()).collect();
        seen
    }
}

/// The paths that a call names: descriptors with what they are, and texts.
fn named(call: &str) -> Vec<String> {
    let mut folder = String::new();
    let mut paths = Vec::new();
    for part in call.split(['(', ',']).map(str::trim) {
        if let Some(text) = part.strip_prefix('"').and_then(|text| text.split('"').next()) {
            let full = if text.starts_with('/') { text.to_owned() } else { format!("{folder}/{text}") };
            paths.push(full);
        } else if let Some((_, path)) = part.split_once('<') {
            folder = path.trim_end_matches(['>', ')']).to_owned();
        }
    }
    paths
}
