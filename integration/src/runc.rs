//! Driving an OCI runtime by its command line, as an engine's shim does.
//!
//! Knows runc's grammar and nothing of the product: the runtime is a path.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bundle::Bundle;
use crate::error::{Context, Error, Result};
use crate::process::{Ran, run, run_into, text as text_of, tool};

/// How long one call may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A runtime with a state root of its own; threads can share it. Containers that it created are
/// deleted when it is dropped.
#[derive(Debug)]
pub struct Runc {
    runtime: PathBuf,
    folder: PathBuf,
    env: Vec<(OsString, OsString)>,
    created: Mutex<Vec<String>>,
}

impl Runc {
    /// Calls `runtime`, with the state root and logs in `folder`.
    ///
    /// # Errors
    /// `folder` cannot be made.
    pub fn new(runtime: impl Into<PathBuf>, folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = folder.into();
        fs::create_dir_all(&folder).cannot(|| format!("create {}", folder.display()))?;
        Ok(Self { runtime: runtime.into(), folder, env: Vec::new(), created: Mutex::default() })
    }

    /// One more variable in the runtime's own environment.
    #[must_use]
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// The state root given as `--root`.
    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// Any call: global flags, then `args`. Its own output, not a container's.
    ///
    /// # Errors
    /// It cannot be started or does not end in time. That it failed is in the result.
    pub fn call(&self, id: &str, args: &[&str]) -> Result<Ran> {
        run(self.command(id).args(args), None, LIMIT)
    }

    /// `create`; the container's output goes to `stdout` and `stderr` in the bundle.
    ///
    /// # Errors
    /// As [`Runc::call`].
    pub fn create(&self, id: &str, bundle: &Bundle) -> Result<Ran> {
        self.remember(id);
        let mut command = self.command(id);
        command.arg("create").arg("--bundle").arg(&bundle.path);
        command.arg("--pid-file").arg(bundle.path.join("init.pid"));
        run_into(command.arg(id), None, output_files(bundle)?, LIMIT)
    }

    /// `run` in the foreground, with the container's output in the result.
    ///
    /// # Errors
    /// As [`Runc::call`].
    pub fn run(&self, id: &str, bundle: &Bundle) -> Result<Ran> {
        self.remember(id);
        let mut command = self.command(id);
        command.arg("run").arg("--bundle").arg(&bundle.path);
        run_into(command.arg(id), None, output_files(bundle)?, LIMIT)
    }

    /// `start`.
    ///
    /// # Errors
    /// As [`Runc::call`].
    pub fn start(&self, id: &str) -> Result<Ran> {
        self.call(id, &["start", id])
    }

    /// `kill` with this signal.
    ///
    /// # Errors
    /// As [`Runc::call`].
    pub fn kill(&self, id: &str, signal: &str) -> Result<Ran> {
        self.call(id, &["kill", id, signal])
    }

    /// `exec` of a command, in the foreground.
    ///
    /// # Errors
    /// As [`Runc::call`].
    pub fn exec(&self, id: &str, args: &[&str]) -> Result<Ran> {
        let call: Vec<&str> = ["exec", id].iter().chain(args).copied().collect();
        self.call(id, &call)
    }

    /// `delete`, with `--force` if asked for.
    ///
    /// # Errors
    /// As [`Runc::call`].
    pub fn delete(&self, id: &str, force: bool) -> Result<Ran> {
        let call: &[&str] = if force { &["delete", "--force", id] } else { &["delete", id] };
        self.call(id, call)
    }

    /// `state`, parsed; `None` where the runtime knows no such container.
    ///
    /// # Errors
    /// As [`Runc::call`]; or the answer is no JSON.
    pub fn state(&self, id: &str) -> Result<Option<Value>> {
        let answer = self.call(id, &["state", id])?;
        if !answer.ok() {
            return Ok(None);
        }
        serde_json::from_str(&answer.stdout).map(Some).cannot(|| format!("parse: {}", answer.stdout))
    }

    /// Waits until the container's process has ended.
    ///
    /// # Errors
    /// It has not within the limit.
    pub fn wait_stopped(&self, id: &str) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while self.state(id)?.is_some_and(|state| state["status"] != "stopped") {
            if Instant::now() > deadline {
                return Err(Error::new(format!("container {id} still runs after {} s", LIMIT.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// A container's whole life as an engine leads it: create, start, wait, delete. What it wrote.
    ///
    /// # Errors
    /// A step failed: its command, status and words.
    pub fn whole_life(&self, id: &str, bundle: &Bundle) -> Result<String> {
        self.create(id, bundle)?.checked()?;
        self.start(id)?.checked()?;
        self.wait_stopped(id)?;
        self.delete(id, false)?.checked()?;
        output(bundle)
    }

    /// The runtime's log of calls for this id, a JSON object a line.
    pub fn log(&self, id: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.log_file(id)).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The last `error` in that log: what an engine shows its user.
    pub fn last_error(&self, id: &str) -> Option<String> {
        let log = self.log(id);
        let last = log.iter().rev().find(|line| line["level"] == "error")?;
        last["msg"].as_str().map(str::to_owned)
    }

    /// The runtime with its global flags and environment, for calls that a test makes by itself.
    pub fn command(&self, id: &str) -> Command {
        let mut command = Command::new(&self.runtime);
        command.arg("--root").arg(self.root());
        command.arg("--log").arg(self.log_file(id));
        command.args(["--log-format", "json"]);
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        command
    }

    fn remember(&self, id: &str) {
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        created.push(id.into());
    }

    fn log_file(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.log"))
    }
}

impl Drop for Runc {
    fn drop(&mut self) {
        let created = self.created.get_mut().unwrap_or_else(PoisonError::into_inner);
        for id in std::mem::take(created) {
            if self.root().join(&id).exists() {
                let _ = self.delete(&id, true);
            }
        }
    }
}

/// What a container of this bundle wrote to its standard output.
fn output(bundle: &Bundle) -> Result<String> {
    let path = bundle.path.join("stdout");
    fs::read_to_string(&path).cannot(|| format!("read {}", path.display()))
}

fn output_files(bundle: &Bundle) -> Result<(File, File)> {
    let open = |name: &str| {
        let path = bundle.path.join(name);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        options.open(&path).cannot(|| format!("open {}", path.display()))
    };
    Ok((open("stdout")?, open("stderr")?))
}

/// Writes into `folder` a runc that gets along without CAP_SYS_RESOURCE, and with a cgroup2 without the cpu controller, and
/// gives its path: for what engines ask for on machines that lack it. On others it is runc.
///
/// # Errors
/// The file cannot be written.
pub fn runc_without_sys_resource(folder: &Path) -> Result<PathBuf> {
    runc_that_gets_along(folder, Path::new("/usr/sbin/runc"))
}

/// The same over this runc or crun.
///
/// # Errors
/// As above.
pub fn runc_that_gets_along(folder: &Path, low_level: &Path) -> Result<PathBuf> {
    let text = include_str!("../runc-nsr").replace("/usr/sbin/runc", text_of(low_level)?);
    script(&folder.join("runc-nsr"), &text)
}

/// Writes a program.
pub(crate) fn script(path: &Path, text: &str) -> Result<PathBuf> {
    let mut draft = tempfile::NamedTempFile::new().cannot(|| "make a temporary file".into())?;
    draft.write_all(text.as_bytes()).cannot(|| format!("write {}", draft.path().display()))?;
    // By another process: what another thread starts meanwhile would inherit the open file, which nobody could execute then.
    tool("install", ["-m", "0755", text_of(draft.path())?, text_of(path)?])?;
    Ok(path.to_path_buf())
}
