//! What removes an engine and everything it left, also when the test's process is killed: `engine-down`.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::error::{Context, Result};
use crate::process::text;
use crate::runc::script;
use crate::scratch::Scratch;

/// Acts when [`Janitor::call`] is used, when it is dropped, and when this process ends.
#[derive(Debug)]
pub(crate) struct Janitor {
    folder: PathBuf,
    name: String,
    child: Child,
    lifeline: Option<ChildStdin>,
}

impl Janitor {
    /// Hands over the folder of an engine that is about to be started. The folder's name is that of the cgroup which the
    /// engine's containers must be in.
    pub(crate) fn start(scratch: Scratch) -> Result<Self> {
        let name = text(Path::new(scratch.path().file_name().unwrap_or_default()))?.to_owned();
        let program = script(&scratch.join("engine-down"), include_str!("../../engine-down"))?;
        let mut command = Command::new("/bin/sh");
        // In a process group of its own: a Ctrl-C meant for the test must not reach it.
        command.arg(&program).arg(scratch.path()).arg(&name).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().cannot(|| format!("start {}", program.display()))?;
        let lifeline = child.stdin.take();
        Ok(Self { folder: scratch.keep(), name, child, lifeline })
    }

    /// The engine's folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The cgroup that the engine's containers must be in.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Lets it begin. It is done when this is dropped.
    pub(crate) fn call(&mut self) {
        self.lifeline.take();
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.call();
        let _ = self.child.wait();
    }
}
