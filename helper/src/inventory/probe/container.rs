//! The probe's container: created, looked at, never started.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

/// What its device list lets it open: `/dev/null`.
pub(super) const ALLOWED: (u32, u32) = (1, 3);

/// How the probes' containers, folders and control groups begin.
const NAME: &str = "quilt-gpu-probe-";
/// How long one call of the low-level runtime may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long removed processes may take to leave their control group.
const LEAVING: Duration = Duration::from_secs(2);

/// A created container; removed when it is dropped.
pub(super) struct Container<'a> {
    pub(super) pid: u32,
    _traces: Traces<'a>,
}

/// Whatever there is of one: state, processes, control groups, folder.
struct Traces<'a> {
    low_level: &'a Path,
    /// The bundle, named like the container; the state root is beside it.
    bundle: PathBuf,
}

/// Why there is none.
pub(super) enum Failure {
    /// The low-level runtime makes none, by its own account; its words.
    Refused(String),
    /// Anything else: it did not end, or was ended, or there is no room.
    Other(String),
}

impl<'a> Container<'a> {
    /// Makes one below `folder`, that may open [`ALLOWED`], or with no device list at all.
    ///
    /// # Errors
    /// What failed, with the low-level runtime's own words.
    pub(super) fn create(folder: &Path, low_level: &'a Path, list: bool) -> Result<Self, Failure> {
        let other = |why| Failure::Other(why);
        let random = node::random_hex128().map_err(|cause| other(cause.to_string()))?;
        let name = format!("{NAME}{random}");
        let traces = Traces { low_level, bundle: folder.join(&name) };
        let bundle = &traces.bundle;
        lay_out(bundle, &name, list)
            .map_err(|cause| other(format!("cannot make a bundle in {}: {cause}", bundle.display())))?;
        let mut create = traces.command();
        create.arg("create").arg("--bundle").arg(bundle).arg("--pid-file").arg(bundle.join("pid")).arg(&name);
        let said = bundle.join("stderr");
        // Its container keeps the descriptors: a pipe would never end.
        let errors =
            File::create(&said).map_err(|cause| other(format!("cannot create {}: {cause}", said.display())))?;
        let ended = finished(create.stderr(errors));
        let text = fs::read_to_string(&said).unwrap_or_default();
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it gave no reason");
        match ended {
            Ok(true) => {}
            Ok(false) => {
                return Err(Failure::Refused(format!("{} makes no container: {last}", low_level.display())));
            }
            Err(why) => return Err(other(why)),
        }
        let pid = fs::read_to_string(bundle.join("pid")).ok().and_then(|text| text.trim().parse().ok());
        let pid = pid.ok_or_else(|| other(format!("{} made a container and told no process", low_level.display())))?;
        Ok(Self { pid, _traces: traces })
    }
}

impl Drop for Traces<'_> {
    fn drop(&mut self) {
        let name = self.bundle.file_name().unwrap_or_default();
        let _ = finished(self.command().args(["delete", "--force"]).arg(name));
        for group in groups(name.to_str().unwrap_or(NAME)) {
            leave(&group);
        }
        let _ = fs::remove_dir_all(&self.bundle);
        if let Some(root) = self.root().to_str() {
            let _ = fs::remove_dir_all(Path::new(root).join(name));
        }
    }
}

impl Traces<'_> {
    fn root(&self) -> PathBuf {
        self.bundle.with_file_name("root")
    }

    /// The low-level runtime, with nothing of our environment.
    fn command(&self) -> Command {
        let mut command = Command::new(self.low_level);
        command.arg("--root").arg(self.root()).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

/// Removes what killed probes left. Only for whoever has the lock.
pub(super) fn sweep(folder: &Path, low_level: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(NAME) {
            drop(Traces { low_level, bundle: entry.path() });
        }
    }
}

/// What the low-level runtime calls itself, and its version: the first line of `--version`.
pub(super) fn calls_itself(folder: &Path, low_level: &Path) -> (String, String) {
    let answer = folder.join("version");
    let Ok(out) = fs::create_dir_all(folder).and_then(|()| File::create(&answer)) else { return Default::default() };
    let mut command = Command::new(low_level);
    command.arg("--version").env_clear().stdin(Stdio::null()).stdout(out).stderr(Stdio::null());
    let _ = finished(&mut command);
    let said = fs::read_to_string(&answer).unwrap_or_default();
    let mut words = said.lines().next().unwrap_or_default().split_ascii_whitespace();
    // `runc version 1.1.5`, `crun version 1.8.1`, `youki version 0.5.3`
    match (words.next(), words.next(), words.next()) {
        (Some(name), Some("version" | "version:"), Some(version)) => (name.to_owned(), version.to_owned()),
        _ => Default::default(),
    }
}

/// Waits for a program; whether it succeeded. One that was killed says nothing.
fn finished(command: &mut Command) -> Result<bool, String> {
    let program = command.get_program().to_owned();
    let failed = |cause| format!("cannot run {}: {cause}", program.display());
    let mut child = command.spawn().map_err(failed)?;
    let begin = Instant::now();
    loop {
        match child.try_wait().map_err(failed)? {
            Some(status) if status.code().is_none() => return Err(format!("{} was killed", program.display())),
            Some(status) => return Ok(status.success()),
            None if begin.elapsed() < PATIENCE => sleep(Duration::from_millis(2)),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{} did not end within {} s", program.display(), PATIENCE.as_secs()));
            }
        }
    }
}

/// The folders of a control group at the top of every hierarchy.
fn groups(name: &str) -> Vec<PathBuf> {
    let Ok(table) = node::mountinfo::own() else { return Vec::new() };
    let mounts = table.control_groups();
    mounts.iter().map(|mount| Path::new(mount.point.as_ref()).join(name)).filter(|group| group.is_dir()).collect()
}

/// Ends what is in a control group, and removes it.
fn leave(group: &Path) {
    let begin = Instant::now();
    while fs::remove_dir(group).is_err() && group.is_dir() && begin.elapsed() < LEAVING {
        let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for process in processes.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 1) {
            let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
        }
        sleep(Duration::from_millis(5));
    }
}

fn lay_out(bundle: &Path, name: &str, list: bool) -> std::io::Result<()> {
    for folder in ["dev", "proc"] {
        fs::create_dir_all(bundle.join("rootfs").join(folder))?;
    }
    // Runtimes look whether there is something to be executed.
    let program = bundle.join("rootfs/never");
    fs::write(&program, "")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let mount = |at: &str, kind: &str| json!({"destination": at, "type": kind, "source": kind, "options": ["nosuid"]});
    let rules = json!([
        {"allow": false, "access": "rwm"},
        {"allow": true, "type": "c", "major": ALLOWED.0, "minor": ALLOWED.1, "access": "rw"},
    ]);
    let namespaces = ["mount", "network", "uts", "pid", "ipc"].map(|kind| json!({"type": kind}));
    let spec = json!({
        "ociVersion": "1.0.2",
        // Without the key, runtimes on libcontainer give everything.
        "process": {
            "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["/never"], "env": ["PATH=/"], "capabilities": {},
        },
        "root": {"path": "rootfs"},
        "mounts": [mount("/proc", "proc"), mount("/dev", "tmpfs")],
        "linux": {
            "cgroupsPath": format!("/{name}"),
            "resources": {"devices": if list { rules } else { json!([]) }},
            "namespaces": namespaces,
        },
    });
    fs::write(bundle.join("config.json"), spec.to_string())
}
