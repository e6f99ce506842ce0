//! Containers of the demonstration: bundles with one static program, driven through the runtime as an engine does.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fixture;

/// Tells what the container can see and open, then stays.
const LOOK: &str = r#"
open_it() {
  (exec 3<>"$1") 2>/tmp/e && { echo "may open"; return; }
  case "$(cat /tmp/e)" in
    *"No such device or address") echo "may open (no driver answers)" ;;
    *) echo "may not open:$(sed 's/.*://' /tmp/e)" ;;
  esac
}
for d in /dev/nvidia*; do [ -e "$d" ] && echo "$d  $(open_it "$d")"; done
for n in 0 1 2 3; do
  [ -e /dev/nvidia$n ] || { mknod /tmp/n$n c 195 $n && echo "a node of its own for nvidia$n  $(open_it /tmp/n$n)"; }
done
ls /usr/lib64 | grep -q . && echo "libraries  "$(ls /usr/lib64)
echo end
exec sleep 600
"#;

/// How long a container may take to tell what it sees.
const PATIENCE: Duration = Duration::from_secs(10);

/// The runtime with a state root of its own.
pub(super) struct Runtime {
    pub(super) program: PathBuf,
    pub(super) config: PathBuf,
    pub(super) folder: PathBuf,
    busybox: PathBuf,
    made: Vec<String>,
}

/// How an attempt to make a container ended.
pub(super) enum Outcome {
    /// It runs, and printed this.
    Runs(Vec<String>),
    /// It was refused with these words.
    Refused(String),
}

impl Runtime {
    /// # Errors
    /// The machine has no static busybox, which is all that the containers contain.
    pub(super) fn new(program: PathBuf, config: PathBuf, folder: PathBuf) -> Result<Self, String> {
        let places = ["/bin/busybox", "/usr/bin/busybox", "/usr/local/bin/busybox"].map(Path::new);
        let busybox = places.into_iter().find(|path| is_static(path)).ok_or("no static busybox in /bin, /usr/bin or /usr/local/bin; the demonstration's containers need it (Debian: busybox-static)")?;
        Ok(Self { program, config, folder, busybox: busybox.to_owned(), made: Vec::new() })
    }

    /// Makes and starts a container whose spec is the plain one after `change`.
    pub(super) fn start(&mut self, id: &str, change: impl FnOnce(&mut Value)) -> Result<Outcome, String> {
        let bundle = self.bundle(id, change).map_err(|cause| format!("cannot make the bundle {id}: {cause}"))?;
        self.made.push(id.to_owned());
        let printed = bundle.join("stdout");
        let out = File::create(&printed).map_err(|cause| format!("cannot create {}: {cause}", printed.display()))?;
        let created = self.call(
            &[OsStr::new("create"), OsStr::new("--bundle"), bundle.as_os_str(), OsStr::new(id)],
            out,
            &bundle,
        )?;
        if let Some(words) = created {
            return Ok(Outcome::Refused(words));
        }
        if !self.folder.join("root").join(id).exists() {
            let program = self.program.display();
            return Err(format!(
                "{program} says that it made the container {id}, and there is none: is it a quilt-gpu-runtime?"
            ));
        }
        let quiet = File::create(bundle.join("start"))
            .map_err(|cause| format!("cannot write in {}: {cause}", bundle.display()))?;
        if let Some(words) = self.call(&["start".as_ref(), id.as_ref()], quiet, &bundle)? {
            return Err(format!("the container {id} was created and does not start: {words}"));
        }
        lines(&printed).map(Outcome::Runs).ok_or_else(|| {
            format!("the container {id} was started and did not print what it sees within {} s", PATIENCE.as_secs())
        })
    }

    /// The spec as it is now.
    pub(super) fn spec(&self, id: &str) -> Vec<u8> {
        fs::read(self.folder.join(id).join("config.json")).unwrap_or_default()
    }

    /// Removes every container, running or not.
    pub(super) fn clear(&mut self) {
        for id in std::mem::take(&mut self.made) {
            // Some never came to be; what else goes wrong shows in the leases that are listed afterwards.
            let _ = self
                .command(&["delete".as_ref(), "--force".as_ref(), id.as_ref()])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
        }
    }

    fn command(&self, words: &[&OsStr]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(self.folder.join("root")).args(words);
        command.env("QUILT_GPU_CONFIG", &self.config).stdin(Stdio::null());
        command
    }

    /// Runs the runtime; its complaint when it fails. A container keeps `out` and the file of errors as its own.
    fn call(&self, words: &[&OsStr], out: File, bundle: &Path) -> Result<Option<String>, String> {
        let errors = bundle.join("stderr");
        let run = File::create(&errors).and_then(|err| self.command(words).stdout(out).stderr(err).status());
        let status = run.map_err(|cause| format!("cannot run {}: {cause}", self.program.display()))?;
        let said = fs::read_to_string(&errors).unwrap_or_default();
        Ok((!status.success()).then(|| said.lines().next().unwrap_or("it gave no reason").to_owned()))
    }

    fn bundle(&self, id: &str, change: impl FnOnce(&mut Value)) -> std::io::Result<PathBuf> {
        let bundle = self.folder.join(id);
        for folder in ["bin", "dev", "proc", "sys", "tmp", "usr/lib64", "usr/bin"] {
            fs::create_dir_all(bundle.join("rootfs").join(folder))?;
        }
        fs::copy(&self.busybox, bundle.join("rootfs/bin/busybox"))?;
        for name in ["sh", "cat", "grep", "ls", "mknod", "sed", "sleep"] {
            symlink("busybox", bundle.join("rootfs/bin").join(name))?;
        }
        let mut spec = spec();
        change(&mut spec);
        fixture::file(&bundle, "config.json", spec.to_string().as_bytes())?;
        Ok(bundle)
    }
}

/// What the container printed before its `end`.
fn lines(path: &Path) -> Option<Vec<String>> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        let text = fs::read_to_string(path).unwrap_or_default();
        if let Some((said, _)) = text.split_once("end\n") {
            return Some(said.lines().map(str::to_owned).collect());
        }
        sleep(Duration::from_millis(20));
    }
    None
}

fn is_static(path: &Path) -> bool {
    fs::read(path).ok().and_then(|bytes| linker::elf::inspect(&bytes).ok()).is_some_and(|elf| elf.interp.is_none())
}

/// A container as Docker would ask for it, with Docker's device rules and CAP_MKNOD.
fn spec() -> Value {
    let mount = |at: &str, kind: &str, options: &[&str]| json!({"destination": at, "type": kind, "source": kind, "options": options});
    let number =
        |major: u32, minor: u32| json!({"allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm"});
    let namespaces = ["mount", "network", "uts", "pid", "ipc"].map(|kind| json!({"type": kind}));
    let capabilities = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_MKNOD"];
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["/bin/sh", "-c", LOOK], "capabilities": {},
            "env": ["PATH=/bin:/usr/bin"],
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
        },
        "root": {"path": "rootfs"},
        "hostname": "demo",
        "mounts": [
            mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        ],
        "linux": {
            "resources": {"devices": [{"allow": false, "access": "rwm"}, number(1, 3), number(1, 5), number(1, 8), number(1, 9), number(5, 0), number(5, 1)]},
            "namespaces": namespaces,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_no_runtime_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let [program, config, folder] = [Path::new("/bin/true"), Path::new("/none"), folder.path()].map(Path::to_owned);
        let mut runtime = Runtime { busybox: program.clone(), program, config, folder, made: Vec::new() };
        let Err(why) = runtime.start("red", |_| {}) else { panic!("/bin/true makes no container") };
        assert_eq!(why, "/bin/true says that it made the container red, and there is none: is it a quilt-gpu-runtime?");
    }
}
