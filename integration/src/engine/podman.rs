//! Podman of any release, with storage of the test's own. There is no daemon: a room holds the namespaces, so that each
//! call finds the mounts of the calls before it.
//!
//! Debian 12's own runs in the machine's root file system; newer ones in theirs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::janitor::Janitor;
use super::{Ask, Engine, Ground, Kit, Source, Through, low_level};
use crate::error::{Context, Error, Result};
use crate::process::{Ran, run, text};
use crate::room::{Groups, Room, Root};
use crate::rootfs::Rootfs;
use crate::scratch::Scratch;

/// How long one call may take.
const CALL: Duration = Duration::from_secs(90);

/// Where low-level runtimes keep their state when nobody says otherwise, as Podman does not. The command line of
/// quilt-gpu looks there from outside the room.
const STATES: [&str; 3] = ["/run/runc", "/run/crun", "/run/youki"];

/// `/etc/cdi`, from which alone every release reads, is the folder `$2`. Where `/etc` is the machine's, it is changed in `$1`.
const CDI: &str = r#"
set -e
if [ "$3" = machine ]; then
  mkdir -p "$1"
  mount -t tmpfs tmpfs "$1"
  mkdir -p "$1/upper" "$1/work"
  mount -t overlay -o "lowerdir=/etc,upperdir=$1/upper,workdir=$1/work" overlay /etc
fi
mkdir -p /etc/cdi
mount --bind "$2" /etc/cdi
"#;

/// Podman with storage of its own; it goes, with everything in it, when this is dropped or the process ends.
#[derive(Debug)]
pub struct Podman {
    // First: its containers may hold the folder that the janitor removes.
    room: Room,
    janitor: Janitor,
    plain: PathBuf,
    groups: Groups,
    remapped: bool,
    hooks: Option<PathBuf>,
}

impl Podman {
    /// Podman of this release on that ground: `4.3`, `5.4` or `5.8`.
    ///
    /// # Errors
    /// It is missing, or no room can be made for it.
    pub fn on(release: &str, ground: &Ground) -> Result<Self> {
        let kit = Kit::default();
        let root = kit.podman(release).map_err(Error::new)?;
        let janitor = Janitor::start(Scratch::new()?)?;
        configure(janitor.folder(), ground)?;
        for state in STATES {
            fs::create_dir_all(state).cannot(|| format!("create {state}"))?;
        }
        let root = root.map(|path| {
            let mut shown = ground.shown.clone();
            shown.push(janitor.folder().to_owned());
            shown.push(ground.plain.clone());
            shown.extend(STATES.map(PathBuf::from));
            shown.extend(kit.low_level_parts().into_iter().filter(|part| part.is_dir()));
            Root { path, shown }
        });
        let room = Room::new(ground.groups, root.as_ref())?;
        // Its locks are one file for all that live on one machine.
        let mut locks = room.command("mount", None);
        run(locks.args(["-t", "tmpfs", "tmpfs", "/dev/shm"]), None, CALL)?.checked()?;
        let cdi = janitor.folder().join("cdi");
        fs::create_dir(&cdi).cannot(|| format!("create {}", cdi.display()))?;
        let mut bound = room.command("sh", None);
        bound.args(["-c", CDI, "cdi"]).arg(janitor.folder().join("etc")).arg(cdi);
        bound.arg(if root.is_some() { "own" } else { "machine" });
        run(&mut bound, None, CALL)?.checked()?;
        let Ground { plain, groups, remapped, hooks, .. } = ground.clone();
        Ok(Self { room, janitor, plain, groups, remapped, hooks })
    }

    /// Any call.
    ///
    /// # Errors
    /// It cannot be started or does not end in time. That it failed is in the result.
    pub fn call(&self, args: &[&str]) -> Result<Ran> {
        run(self.command().args(args), None, CALL)
    }

    /// Podman with its folders, for calls that a test makes by itself.
    pub fn command(&self) -> Command {
        let folder = self.janitor.folder();
        let mut command = self.room.command("env", None);
        command.arg(format!("CONTAINERS_CONF={}", folder.join("containers.conf").display()));
        // Newer ones warn of version 1 in every call.
        command.args(["PODMAN_IGNORE_CGROUPSV1_WARNING=1", "podman", "--cgroup-manager=cgroupfs"]);
        for (flag, leaf) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
            command.arg(flag).arg(folder.join(leaf));
        }
        command
    }

    /// Another program where it lives, for files that only it sees.
    pub fn in_room(&self, program: &str) -> Command {
        self.room.command(program, None)
    }

    /// Everything it has on disk.
    pub fn folder(&self) -> &Path {
        self.janitor.folder()
    }

    fn create(&self, ask: &Ask, more: &[&str]) -> Result<Ran> {
        let mut command = self.command();
        let runtime = match (ask.through, &self.hooks) {
            (Through::Quilt, None) => "quilt-gpu",
            (Through::Quilt, Some(_)) | (Through::Plain, None) => "plain",
            (Through::Plain, Some(_)) => {
                // Instead of the folder that its configuration names.
                command.arg("--hooks-dir").arg(self.folder().join("tmp"));
                "plain"
            }
        };
        command.args(["--runtime", runtime, "run"]).args(more);
        command.args(["--pull=never", "--network=none", "--name", &ask.name]);
        // Its own, so that what it leaves there can be told from another's.
        command.arg(format!("--cgroup-parent=/{}", self.janitor.name()));
        if ask.user_namespace || self.remapped {
            command.arg("--uidmap=0:100000:65536");
        }
        ask.flags(&mut command);
        run(command.arg(&ask.image).args(&ask.args), None, CALL)
    }
}

impl Engine for Podman {
    fn versions(&self) -> Result<String> {
        let own = self.call(&["version", "--format", "{{.Client.Version}}"])?.checked()?.stdout;
        Ok(format!("podman {}, {}", own.trim(), low_level(self.room.command(&self.plain, None))?))
    }

    fn cdi(&self) -> Option<PathBuf> {
        Some(self.folder().join("cdi"))
    }

    fn keeps(&self) -> (&'static str, PathBuf) {
        ("var/lib/containers/storage", self.folder().join("root"))
    }

    fn sources(&self) -> &'static [Source] {
        &[Source::Environment, Source::Annotation]
    }

    fn import(&self, name: &str, rootfs: &Rootfs, env: &[(&str, &str)], labels: &[(&str, &str)]) -> Result<()> {
        let archive = self.folder().join("import.tar");
        rootfs.tar(&archive)?;
        let changes = super::changes(env, labels);
        let mut call = vec!["import", "--quiet"];
        call.extend(changes.iter().flat_map(|change| ["--change", change]));
        call.extend([text(&archive)?, name]);
        self.call(&call)?.checked()?;
        fs::remove_file(&archive).cannot(|| format!("remove {}", archive.display()))
    }

    fn run(&self, ask: &Ask) -> Result<Ran> {
        // The client that is attached may come later than the container's last words: its monitor logs them all.
        let log = self.folder().join("log");
        let path = format!("path={}", text(&log)?);
        let ran = self.create(ask, &["--rm", "--log-driver=k8s-file", "--log-opt", &path])?;
        let Ok(logged) = fs::read_to_string(&log) else { return Ok(ran) };
        fs::remove_file(&log).cannot(|| format!("remove {}", log.display()))?;
        Ok(Ran { stdout: written(&logged), ..ran })
    }

    fn start(&self, ask: &Ask) -> Result<Ran> {
        self.create(ask, &["--detach"])
    }

    fn exec(&self, name: &str, args: &[&str]) -> Result<Ran> {
        self.call(&[&["exec", name], args].concat())
    }

    fn stop(&self, name: &str) -> Result<Ran> {
        self.call(&["stop", "-t", "0", name])
    }

    fn restart(&self, name: &str) -> Result<Ran> {
        self.call(&["restart", "-t", "0", name])
    }

    fn remove(&self, name: &str) -> Result<Ran> {
        self.call(&["rm", "-f", "-t", "0", name])
    }

    fn update(&self, name: &str) -> Option<Result<Ran>> {
        // The share of the CPUs where there is one: its controller may be bound to version 1.
        let change = if self.groups == Groups::V2 { ["--pids-limit", "0"] } else { ["--cpu-shares", "512"] };
        Some(self.call(&[&["update"], &change[..], &[name]].concat()))
    }

    fn crash(&mut self) -> Option<Result<()>> {
        None
    }
}

/// What a container wrote to its standard output, by the log of its monitor: time, stream, whether the line ends (`F`) or
/// goes on (`P`), text.
fn written(log: &str) -> String {
    let lines = log.lines().filter_map(|line| line.split_once(" stdout ")?.1.split_once(' '));
    lines.map(|(end, text)| if end == "F" { format!("{text}\n") } else { text.to_owned() }).collect()
}

/// What newer releases give, and `MKNOD`, as older ones and Docker do: without it nobody can try what a device filter lets
/// through.
const CAPABILITIES: &str = r#"default_capabilities = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
  "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"]"#;

fn configure(folder: &Path, ground: &Ground) -> Result<()> {
    // What it would give by itself is above the hard limits of a machine without CAP_SYS_RESOURCE.
    let mut lines = vec!["[containers]", r#"default_ulimits = ["nofile=1024:4096", "nproc=1024:4096"]"#, CAPABILITIES];
    if ground.groups == Groups::V2 {
        // The controller may be bound to version 1.
        lines.push("pids_limit = 0");
    }
    let runtimes = format!("quilt-gpu = [\"{}\"]\nplain = [\"{}\"]", text(&ground.quilt)?, text(&ground.plain)?);
    lines.extend(["[engine]", r#"events_logger = "file""#, "[engine.runtimes]", &runtimes, ""]);
    let hooks = ground.hooks.as_deref().map(text).transpose()?.map(|folder| format!("hooks_dir = [\"{folder}\"]"));
    lines.insert(lines.len() - 3, hooks.as_deref().unwrap_or_default());
    let path = folder.join("containers.conf");
    fs::write(&path, lines.join("\n")).cannot(|| format!("write {}", path.display()))
}
