//! A Docker daemon of the test's own: own folder, own socket, own network namespace.
//!
//! Debian's daemon and client by absolute path, whatever else is on PATH. Touches no other daemon
//! and no configuration of the machine; `docker-down` removes all of it, also after a crash.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Map, Value, json};

use crate::error::{Context, Error, Result};
use crate::process::{Ran, run, text, tool};
use crate::rootfs::Rootfs;
use crate::runc::script;
use crate::scratch::Scratch;

const DAEMON: &str = "/usr/sbin/dockerd";
const CLIENT: &str = "/usr/bin/docker";
const PATH: &str = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";

/// How long the daemon may take to answer, and one client call to end.
const UP: Duration = Duration::from_secs(30);
const CALL: Duration = Duration::from_secs(90);

/// What the daemon is to be like.
#[derive(Clone, Debug, Default)]
pub struct DockerOptions {
    /// Names for `docker run --runtime`, and the program behind each.
    pub runtimes: Vec<(String, PathBuf)>,
    /// The runtime of containers that name none; runc if not given.
    pub default_runtime: Option<String>,
    /// Further keys of daemon.json.
    pub daemon_json: Map<String, Value>,
}

/// A running daemon; it goes when this is dropped or the process ends.
#[derive(Debug)]
pub struct Docker {
    folder: PathBuf,
    daemon: Child,
    janitor: Janitor,
}

impl Docker {
    /// Starts a daemon and waits until it answers.
    ///
    /// # Errors
    /// Docker is missing (`setup.sh docker` installs it), or the daemon does not come up: its last
    /// words.
    pub fn up(options: &DockerOptions) -> Result<Self> {
        if !Path::new(DAEMON).is_file() || !Path::new(CLIENT).is_file() {
            return Err(Error::new(format!("no {DAEMON} or no {CLIENT}; `integration/setup.sh docker` installs them")));
        }
        let scratch = Scratch::new()?;
        let name = scratch.path().file_name().unwrap_or_default();
        let name = text(Path::new(name))?.to_owned();
        configure(scratch.path(), &name, options)?;
        let janitor = Janitor::start(scratch, &name)?;
        let docker = Self { folder: janitor.folder.clone(), daemon: start(&janitor.folder, &name)?, janitor };
        docker.wait_up()?;
        Ok(docker)
    }

    fn wait_up(&self) -> Result<()> {
        let deadline = Instant::now() + UP;
        while !self.client(&["version"])?.ok() {
            let alive = Path::new("/proc").join(self.daemon.id().to_string()).join("exe").exists();
            if !alive || Instant::now() > deadline {
                let log = fs::read_to_string(self.log_file()).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                return Err(Error::new(format!("dockerd did not come up: {}", last.join(" | "))));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Any client call.
    ///
    /// # Errors
    /// It cannot be started or does not end in time. That it failed is in the result.
    pub fn client(&self, args: &[&str]) -> Result<Ran> {
        run(self.command().args(args), None, CALL)
    }

    /// `docker run` with these arguments.
    ///
    /// # Errors
    /// As [`Docker::client`].
    pub fn run(&self, args: &[&str]) -> Result<Ran> {
        let call: Vec<&str> = ["run"].iter().chain(args).copied().collect();
        self.client(&call)
    }

    /// The client with its socket, for calls that a test makes by itself.
    pub fn command(&self) -> Command {
        let mut command = Command::new(CLIENT);
        command.env_remove("DOCKER_HOST").env_remove("DOCKER_CONTEXT");
        command.env("DOCKER_CONFIG", self.folder.join("client"));
        command.arg("--host").arg(socket(&self.folder));
        command
    }

    /// Makes an image from a root file system; `changes` are `docker import --change` lines.
    ///
    /// # Errors
    /// tar or docker fails.
    pub fn import(&self, rootfs: &Rootfs, name: &str, changes: &[&str]) -> Result<()> {
        let archive = self.folder.join("import.tar");
        rootfs.tar(&archive)?;
        let mut call = vec!["import"];
        for change in changes {
            call.extend(["--change", change]);
        }
        call.extend([text(&archive)?, name]);
        self.client(&call)?.checked()?;
        fs::remove_file(&archive).cannot(|| format!("remove {}", archive.display()))
    }

    /// For test output: `docker 20.10.24, containerd 1.6.20, runc 1.1.5`.
    ///
    /// # Errors
    /// As [`Docker::client`].
    pub fn versions(&self) -> Result<String> {
        let answer = self.client(&["version", "--format", "{{json .Server}}"])?.checked()?;
        let server: Value = serde_json::from_str(&answer.stdout).cannot(|| "read docker's version".into())?;
        let of = |name: &str| {
            let parts = server["Components"].as_array()?;
            parts.iter().find(|part| part["Name"] == name)?["Version"].as_str()
        };
        let names = [("docker", "Engine"), ("containerd", "containerd"), ("runc", "runc")];
        let found = names.map(|(ours, theirs)| {
            let version = of(theirs).unwrap_or("of unknown version");
            format!("{ours} {}", version.split(['~', '+']).next().unwrap_or(version))
        });
        Ok(found.join(", "))
    }

    /// Makes the daemon read daemon.json again; it applies `runtimes` and `default-runtime`.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn reload(&self) -> Result<()> {
        kill(self.pid(), Signal::SIGHUP).cannot(|| "signal dockerd".into())
    }

    /// The daemon's process.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.daemon.id().cast_signed())
    }

    /// Everything the daemon has on disk: `daemon.json`, `exec/` (bundles, runtime state), `data/`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the daemon and its shims logged.
    pub fn log_file(&self) -> PathBuf {
        self.folder.join("dockerd.log")
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        self.janitor.lifeline.take();
        // Reaped here, while the janitor waits for it to go.
        let _ = self.daemon.wait();
    }
}

/// `docker-down`, which acts when its standard input closes: on drop, or with this process.
#[derive(Debug)]
struct Janitor {
    folder: PathBuf,
    child: Child,
    lifeline: Option<ChildStdin>,
}

impl Janitor {
    /// Hands the folder over to it.
    fn start(scratch: Scratch, name: &str) -> Result<Self> {
        let program = script(&scratch.join("docker-down"), include_str!("../docker-down"))?;
        let mut command = detached(text(&program)?);
        command.arg(scratch.path()).arg(name);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().cannot(|| format!("start {}", program.display()))?;
        Ok(Self { folder: scratch.keep(), lifeline: child.stdin.take(), child })
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.lifeline.take();
        let _ = self.child.wait();
    }
}

/// Starts the daemon in a network namespace of its own.
fn start(folder: &Path, name: &str) -> Result<Child> {
    tool("ip", ["netns", "add", name])?;
    tool("ip", ["-n", name, "link", "set", "lo", "up"])?;
    let log = folder.join("dockerd.log");
    let log = File::create(&log).cannot(|| format!("create {}", log.display()))?;
    let log_too = log.try_clone().cannot(|| "duplicate a descriptor".into())?;
    let mut command = detached("nsenter");
    command.arg(format!("--net=/run/netns/{name}"));
    command.args(["env", "-i", PATH, "HOME=/root", DAEMON]);
    for (flag, leaf) in [
        ("--config-file", "daemon.json"),
        ("--data-root", "data"),
        ("--exec-root", "exec"),
        ("--pidfile", "docker.pid"),
    ] {
        command.arg(flag).arg(folder.join(leaf));
    }
    command.arg("--host").arg(socket(folder));
    command.stdin(Stdio::null()).stdout(log).stderr(log_too);
    command.spawn().cannot(|| "start dockerd".into())
}

fn configure(folder: &Path, name: &str, options: &DockerOptions) -> Result<()> {
    let mut config = options.daemon_json.clone();
    let named = options.runtimes.iter();
    let runtimes: Map<String, Value> =
        named.map(|(name, path)| (name.clone(), json!({"path": path.to_string_lossy()}))).collect();
    config.insert("runtimes".into(), runtimes.into());
    // Its own cgroup, so that what it leaves there can be told from another daemon's.
    config.entry("cgroup-parent").or_insert(format!("/{name}").into());
    if let Some(runtime) = &options.default_runtime {
        config.insert("default-runtime".into(), runtime.clone().into());
    }
    let path = folder.join("daemon.json");
    fs::write(&path, Value::from(config).to_string()).cannot(|| format!("write {}", path.display()))
}

/// In a process group of its own: a Ctrl-C meant for the test must not reach it.
fn detached(program: &str) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(program);
    command.current_dir("/").process_group(0);
    command
}

fn socket(folder: &Path) -> String {
    format!("unix://{}", folder.join("docker.sock").display())
}
