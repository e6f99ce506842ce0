//! A Docker daemon of the test's own, of any release: own folder, own socket, own room.
//!
//! Its daemon and client by absolute path, whatever else is on PATH. Touches no other daemon and no configuration of the
//! machine.

mod daemon;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Map, Value};

use self::daemon::Daemon;
use super::{Ask, Engine, Ground, Kit, Source, Through, low_level};
use crate::error::{Context, Error, Result};
use crate::process::{Ran, run, text};
use crate::report::say;
use crate::room::Groups;
use crate::rootfs::Rootfs;

/// How long the daemon may take to answer, and one client call to end.
const UP: Duration = Duration::from_secs(30);
const CALL: Duration = Duration::from_secs(90);

/// What the daemon is to be like.
#[derive(Clone, Debug)]
pub struct DockerOptions {
    /// Which release: `20`, `26` or `28`.
    pub release: String,
    /// Control groups around it.
    pub groups: Groups,
    /// Whether containers get a user namespace.
    pub remapped: bool,
    /// Names for `docker run --runtime`, and the program behind each.
    pub runtimes: Vec<(String, PathBuf)>,
    /// The runtime of containers that name none; runc if not given.
    pub default_runtime: Option<String>,
    /// A folder of programs that the daemon finds before all others.
    pub path: Option<PathBuf>,
    /// Further keys of daemon.json.
    pub daemon_json: Map<String, Value>,
}

impl Default for DockerOptions {
    fn default() -> Self {
        Self {
            release: "20".into(),
            groups: Groups::Hybrid,
            remapped: false,
            runtimes: Vec::new(),
            default_runtime: None,
            path: None,
            daemon_json: Map::new(),
        }
    }
}

/// A running daemon; it goes when this is dropped or the process ends.
#[derive(Debug)]
pub struct Docker {
    daemon: Daemon,
    client: PathBuf,
    plain: Option<PathBuf>,
    options: DockerOptions,
}

impl Docker {
    /// Starts a daemon and waits until it answers.
    ///
    /// # Errors
    /// This release is missing, or the daemon does not come up: its last words.
    pub fn up(options: &DockerOptions) -> Result<Self> {
        let programs = Kit::default().docker(&options.release).map_err(Error::new)?;
        // Debian's client is not where its daemon is.
        let found = [programs.join("docker"), PathBuf::from("/usr/bin/docker")].into_iter().find(|path| path.is_file());
        let client = found.ok_or_else(|| Error::new(format!("no docker beside {}/dockerd", programs.display())))?;
        let plain = options.runtimes.iter().find(|(name, _)| name == "plain").map(|(_, path)| path.clone());
        let daemon = Daemon::start(&programs, options)?;
        let docker = Self { daemon, client, plain, options: options.clone() };
        docker.wait_up()?;
        Ok(docker)
    }

    /// A daemon of this release on that ground, whose containers outlive it.
    ///
    /// # Errors
    /// As [`Docker::up`].
    pub fn on(release: &str, ground: &Ground) -> Result<Self> {
        Self::up(&DockerOptions {
            release: release.into(),
            groups: ground.groups,
            remapped: ground.remapped,
            runtimes: vec![("quilt-gpu".into(), ground.quilt.clone()), ("plain".into(), ground.plain.clone())],
            daemon_json: Map::from_iter([("live-restore".into(), true.into())]),
            ..DockerOptions::default()
        })
    }

    fn wait_up(&self) -> Result<()> {
        let deadline = Instant::now() + UP;
        while !self.client(&["version"])?.ok() {
            if !self.daemon.alive() || Instant::now() > deadline {
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
        let mut command = Command::new(&self.client);
        command.env_remove("DOCKER_HOST").env_remove("DOCKER_CONTEXT");
        command.env("DOCKER_CONFIG", self.folder().join("client"));
        command.arg("--host").arg(socket_of(self.folder()));
        command
    }

    /// Makes an image from a root file system; `changes` are `docker import --change` lines.
    ///
    /// # Errors
    /// tar or docker fails.
    pub fn import(&self, rootfs: &Rootfs, name: &str, changes: &[&str]) -> Result<()> {
        let archive = self.folder().join("import.tar");
        rootfs.tar(&archive)?;
        let mut call = vec!["import"];
        for change in changes {
            call.extend(["--change", change]);
        }
        call.extend([text(&archive)?, name]);
        self.client(&call)?.checked()?;
        fs::remove_file(&archive).cannot(|| format!("remove {}", archive.display()))
    }

    /// For test output: `docker 20.10.24, containerd 1.6.20, runc 1.1.5`; the last is what `plain` names, if there is one.
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
        let named = |ours: &str, theirs: &str| {
            let version = of(theirs).unwrap_or("of unknown version");
            format!("{ours} {}", version.split(['~', '+']).next().unwrap_or(version))
        };
        let below = match &self.plain {
            Some(path) => low_level(Command::new(path))?,
            None => named("runc", "runc"),
        };
        Ok([named("docker", "Engine"), named("containerd", "containerd"), below].join(", "))
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
        self.daemon.pid()
    }

    /// Everything the daemon has on disk: `daemon.json`, `exec/` (bundles, runtime state), `data/`.
    pub fn folder(&self) -> &Path {
        self.daemon.folder()
    }

    /// What the daemon and its shims logged.
    pub fn log_file(&self) -> PathBuf {
        log_of(self.folder())
    }

    /// `docker run` of what was asked for.
    fn call(&self, ask: &Ask, more: &str) -> Result<Ran> {
        let has_annotations = self.options.release != "20";
        if !has_annotations && !ask.annotations.is_empty() {
            return Err(Error::new(format!("docker {} has no annotations", self.options.release)));
        }
        if ask.user_namespace && !self.options.remapped {
            return Err(Error::new("docker has user namespaces for all containers of a daemon or for none"));
        }
        let runtime = match ask.through {
            Through::Quilt => "quilt-gpu",
            Through::Plain => "plain",
        };
        let mut command = self.command();
        command.args(["run", more, "--network", "none", "--runtime", runtime, "--name", &ask.name]);
        ask.flags(&mut command);
        run(command.arg(&ask.image).args(&ask.args), None, CALL)
    }
}

impl Engine for Docker {
    fn versions(&self) -> Result<String> {
        self.versions()
    }

    fn cdi(&self) -> Option<PathBuf> {
        (self.options.release != "20").then(|| self.folder().join("cdi"))
    }

    fn keeps(&self) -> (&'static str, PathBuf) {
        ("var/lib/docker", self.folder().join("data"))
    }

    fn sources(&self) -> &'static [Source] {
        match self.options.release.as_str() {
            "20" => &[Source::Environment],
            _ => &[Source::Environment, Source::Annotation],
        }
    }

    fn import(&self, name: &str, rootfs: &Rootfs, env: &[(&str, &str)], labels: &[(&str, &str)]) -> Result<()> {
        let changes = super::changes(env, labels);
        self.import(rootfs, name, &changes.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn run(&self, ask: &Ask) -> Result<Ran> {
        let ran = self.call(ask, "--rm")?;
        // A probe always says something. Docker 26 over crun loses what a container says that ends at once, a few times in a
        // thousand.
        if ran.ok() && ran.stdout.is_empty() && ask.args.first().is_some_and(|program| program == "quilt-probe") {
            say(format_args!("what the probe said was lost; once more: {}", ran.command));
            return self.call(ask, "--rm");
        }
        Ok(ran)
    }

    fn start(&self, ask: &Ask) -> Result<Ran> {
        self.call(ask, "--detach")
    }

    fn exec(&self, name: &str, args: &[&str]) -> Result<Ran> {
        self.client(&[&["exec", name], args].concat())
    }

    fn stop(&self, name: &str) -> Result<Ran> {
        self.client(&["stop", "-t", "0", name])
    }

    fn restart(&self, name: &str) -> Result<Ran> {
        self.client(&["restart", "-t", "0", name])
    }

    fn remove(&self, name: &str) -> Result<Ran> {
        self.client(&["rm", "-f", name])
    }

    fn update(&self, name: &str) -> Option<Result<Ran>> {
        // A quota needs the controller, which may be bound to version 1.
        let limit = if self.options.groups == Groups::V2 { ["--cpu-shares", "512"] } else { ["--cpus", "0.5"] };
        Some(self.client(&["update", limit[0], limit[1], name]))
    }

    fn crash(&mut self) -> Option<Result<()>> {
        Some(self.daemon.crash().and_then(|()| self.wait_up()))
    }
}

fn socket_of(folder: &Path) -> String {
    format!("unix://{}", folder.join("docker.sock").display())
}

fn log_of(folder: &Path) -> PathBuf {
    folder.join("dockerd.log")
}
