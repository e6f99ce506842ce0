//! The daemon of a [`super::Docker`]: its files, its room, its start and its violent end.

use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Map, Value, json};

use super::DockerOptions;
use crate::engine::janitor::Janitor;
use crate::error::{Context, Error, Result};
use crate::process::run;
use crate::room::Room;
use crate::scratch::Scratch;

/// How long the daemon may take to go.
const GONE: Duration = Duration::from_secs(10);

/// The user whose subordinate ids containers get, known in the daemon's own /etc only: `$1` is a folder for it.
const REMAPPED: &str = r#"
set -e
mkdir -p "$1/upper" "$1/work"
mount -t overlay -o "lowerdir=/etc,upperdir=$1/upper,workdir=$1/work" overlay /etc
echo dockremap:x:64999:64999::/:/usr/sbin/nologin >>/etc/passwd
echo dockremap:x:64999: >>/etc/group
echo dockremap:100000:65536 >/etc/subuid
echo dockremap:100000:65536 >/etc/subgid
"#;

/// A daemon, and all that goes with it.
#[derive(Debug)]
pub(super) struct Daemon {
    process: Child,
    programs: PathBuf,
    path: PathBuf,
    room: Room,
    janitor: Janitor,
}

impl Daemon {
    /// Starts `dockerd` of the folder `programs`, which does not answer yet.
    pub(super) fn start(programs: &Path, options: &DockerOptions) -> Result<Self> {
        let janitor = Janitor::start(Scratch::new()?)?;
        configure(&janitor, options)?;
        let room = Room::new(options.groups, None)?;
        if options.remapped {
            let mut command = room.command("sh", None);
            command.args(["-c", REMAPPED, "remap"]).arg(janitor.folder().join("etc"));
            run(&mut command, None, GONE)?.checked()?;
        }
        let first = options.path.iter().map(|folder| format!("{}:", folder.display())).collect::<String>();
        let path = PathBuf::from(format!("{first}{}", programs.display()));
        let process = spawn(&room, programs, &path, janitor.folder())?;
        Ok(Self { process, programs: programs.to_owned(), path, room, janitor })
    }

    /// Kills the daemon and its containerd, not its containers, and starts it again.
    pub(super) fn crash(&mut self) -> Result<()> {
        let file = self.folder().join("exec/containerd/containerd.pid");
        let text = fs::read_to_string(&file).cannot(|| format!("read {}", file.display()))?;
        let below = text.trim().parse().map(Pid::from_raw).cannot(|| format!("read {}", file.display()))?;
        for pid in [self.pid(), below] {
            kill(pid, Signal::SIGKILL).cannot(|| format!("kill {pid}"))?;
        }
        self.process.wait().cannot(|| "wait for dockerd".into())?;
        let deadline = Instant::now() + GONE;
        // Until somebody has waited for it: to dockerd 20 a zombie is a containerd that runs.
        while kill(below, None).is_ok() {
            if Instant::now() > deadline {
                return Err(Error::new(format!("containerd {below} does not end")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.process = spawn(&self.room, &self.programs, &self.path, self.folder())?;
        Ok(())
    }

    pub(super) fn alive(&self) -> bool {
        Path::new("/proc").join(self.process.id().to_string()).join("exe").exists()
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id().cast_signed())
    }

    pub(super) fn folder(&self) -> &Path {
        self.janitor.folder()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.janitor.call();
        // Reaped here, while the janitor waits for it to go.
        let _ = self.process.wait();
    }
}

fn spawn(room: &Room, programs: &Path, path: &Path, folder: &Path) -> Result<Child> {
    let log = super::log_of(folder);
    let file = OpenOptions::new().create(true).append(true).open(&log);
    let file: File = file.cannot(|| format!("create {}", log.display()))?;
    let too = file.try_clone().cannot(|| "duplicate a descriptor".into())?;
    let mut command = room.command(programs.join("dockerd"), Some(path));
    for (flag, leaf) in [
        ("--config-file", "daemon.json"),
        ("--data-root", "data"),
        ("--exec-root", "exec"),
        ("--pidfile", "docker.pid"),
    ] {
        command.arg(flag).arg(folder.join(leaf));
    }
    command.arg("--host").arg(super::socket_of(folder));
    // In a process group of its own: a Ctrl-C meant for the test must not reach it.
    command.process_group(0).stdin(Stdio::null()).stdout(file).stderr(too);
    command.spawn().cannot(|| "start dockerd".into())
}

fn configure(janitor: &Janitor, options: &DockerOptions) -> Result<()> {
    let mut config = options.daemon_json.clone();
    let named = options.runtimes.iter();
    let runtimes: Map<String, Value> =
        named.map(|(name, path)| (name.clone(), json!({"path": path.to_string_lossy()}))).collect();
    config.insert("runtimes".into(), runtimes.into());
    // Its own cgroup, so that what it leaves there can be told from another daemon's.
    config.entry("cgroup-parent").or_insert(format!("/{}", janitor.name()).into());
    if let Some(runtime) = &options.default_runtime {
        config.insert("default-runtime".into(), runtime.clone().into());
    }
    if options.release != "20" {
        let folder = janitor.folder().join("cdi");
        fs::create_dir(&folder).cannot(|| format!("create {}", folder.display()))?;
        config.entry("features").or_insert(json!({"cdi": true}));
        config.entry("cdi-spec-dirs").or_insert(json!([folder.to_string_lossy()]));
    }
    if options.remapped {
        config.insert("userns-remap".into(), "dockremap".into());
    }
    let path = janitor.folder().join("daemon.json");
    fs::write(&path, Value::from(config).to_string()).cannot(|| format!("write {}", path.display()))
}
