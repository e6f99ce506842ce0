//! A containerd of the test's own, below both of its faces, `ctr` and CRI: own folder, own socket, own room.
//!
//! It knows runtimes by the names `quilt-gpu` and `plain` and nothing of what they do.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::image::{self, Words};
use super::janitor::Janitor;
use super::{Ground, Kit, low_level};
use crate::error::{Context, Error, Result};
use crate::process::{Ran, run, text};
use crate::room::Room;
use crate::rootfs::Rootfs;
use crate::scratch::Scratch;

/// How long the daemon may take to answer, and one call of `ctr` to end.
const UP: Duration = Duration::from_secs(30);
const CALL: Duration = Duration::from_secs(90);

/// The image of pods' own containers.
const PAUSE: &str = "pause:1";

/// A running daemon; it goes, with everything in it, when this is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct Containerd {
    room: Room,
    daemon: Child,
    janitor: Janitor,
    programs: PathBuf,
    images: AtomicU32,
}

impl Containerd {
    /// Starts a release, `1.6`, with CNI plugins where there are some, and waits until it answers.
    pub(crate) fn on(release: &str, ground: &Ground) -> Result<Self> {
        let kit = Kit::default();
        let (programs, cni) = (kit.containerd(release).map_err(Error::new)?, kit.cni().ok());
        if ground.remapped {
            return Err(Error::new("containerd has no words for user namespaces by default"));
        }
        let janitor = Janitor::start(Scratch::new()?)?;
        let folder = janitor.folder();
        for leaf in ["cni", "cdi", "logs", "run"] {
            fs::create_dir(folder.join(leaf)).cannot(|| format!("create a folder in {}", folder.display()))?;
        }
        let version = version(&programs)?;
        let config = Config { folder, cni: cni.as_deref(), ground, version: &version }.text()?;
        fs::write(folder.join("config.toml"), config).cannot(|| "write containerd's configuration".into())?;
        fs::write(folder.join("cni/net.conflist"), network(folder)).cannot(|| "write a CNI network".into())?;
        let room = Room::new(ground.groups, None)?;
        // Sockets and pipes that no key of the configuration places.
        let mut own_run = room.command("sh", None);
        own_run.args(["-c", "mkdir -p /run/containerd && mount --bind \"$0\" /run/containerd"]).arg(folder.join("run"));
        run(&mut own_run, None, CALL)?.checked()?;
        let daemon = start(&room, &programs, folder)?;
        let containerd = Self { room, daemon, janitor, programs, images: AtomicU32::new(0) };
        containerd.wait_up()?;
        Ok(containerd)
    }

    fn wait_up(&self) -> Result<()> {
        let deadline = Instant::now() + UP;
        while !self.ctr("default", &["version"])?.ok() {
            let alive = Path::new("/proc").join(self.daemon.id().to_string()).join("exe").exists();
            if !alive || Instant::now() > deadline {
                let log = self.log();
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                return Err(Error::new(format!("containerd did not come up: {}", last.join(" | "))));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// SIGKILL for the daemon, and a new one over the same folders.
    pub(crate) fn crash(&mut self) -> Result<()> {
        self.daemon.kill().cannot(|| "kill containerd".into())?;
        self.daemon.wait().cannot(|| "wait for containerd".into())?;
        self.daemon = start(&self.room, &self.programs, self.janitor.folder())?;
        self.wait_up()
    }

    /// Any call of `ctr` in a namespace.
    pub(crate) fn ctr(&self, namespace: &str, args: &[&str]) -> Result<Ran> {
        let mut command = self.room.command(self.programs.join("ctr"), Some(&self.programs));
        command.arg("--address").arg(self.socket()).args(["--namespace", namespace]).args(args);
        run(&mut command, None, CALL)
    }

    /// Makes an image in a namespace.
    pub(crate) fn import(&self, namespace: &str, name: &str, rootfs: &Rootfs, words: &Words<'_>) -> Result<()> {
        let folder = self.folder().join(format!("image-{}", self.images.fetch_add(1, Ordering::Relaxed)));
        let archive = image::archive(&folder, &reference(name), rootfs, words)?;
        self.ctr(namespace, &["images", "import", text(&archive)?])?.checked()?;
        fs::remove_dir_all(&folder).cannot(|| format!("remove {}", folder.display()))
    }

    /// Makes the image of pods' own containers.
    pub(crate) fn import_pause(&self) -> Result<()> {
        let rootfs = Rootfs::busybox(self.folder().join("pause"))?;
        let words = Words { env: &[], labels: &[], command: &["/bin/busybox", "sleep", "1000000"] };
        self.import("k8s.io", PAUSE, &rootfs, &words)
    }

    /// `containerd 1.6.20 by ctr, runc 1.1.5`.
    pub(crate) fn versions(&self, by: &str, plain: &Path) -> Result<String> {
        Ok(format!("containerd {} by {by}, {}", version(&self.programs)?, low_level(Command::new(plain))?))
    }

    /// Whether it reads CDI files.
    pub(crate) fn knows_cdi(&self) -> bool {
        version(&self.programs).is_ok_and(|version| !version.starts_with("1.6."))
    }

    pub(crate) fn folder(&self) -> &Path {
        self.janitor.folder()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder().join("containerd.sock")
    }

    /// The cgroup that containers are to be in.
    pub(crate) fn cgroup(&self) -> String {
        format!("/{}", self.janitor.name())
    }

    /// The state root of runtimes, as they are given it.
    pub(crate) fn runtime_root(&self) -> PathBuf {
        self.folder().join("runc")
    }

    /// The folder of a container's `config.json` and `log.json`.
    pub(crate) fn bundle(&self, namespace: &str, id: &str) -> PathBuf {
        self.folder().join("state/io.containerd.runtime.v2.task").join(namespace).join(id)
    }

    /// What the daemon and its shims logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder().join("containerd.log")).unwrap_or_default()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.janitor.call();
        // Reaped here, while the janitor waits for it to go.
        let _ = self.daemon.wait();
    }
}

/// The full name of one of our images: neither `ctr` nor CRI then looks for it elsewhere.
pub(crate) fn reference(name: &str) -> String {
    let tag = if name.contains(':') { "" } else { ":latest" };
    format!("localhost/{name}{tag}")
}

fn start(room: &Room, programs: &Path, folder: &Path) -> Result<Child> {
    let log = folder.join("containerd.log");
    let log = File::options().create(true).append(true).open(&log).cannot(|| format!("open {}", log.display()))?;
    let log_too = log.try_clone().cannot(|| "duplicate a descriptor".into())?;
    let mut command = room.command(programs.join("containerd"), Some(programs));
    command.arg("--config").arg(folder.join("config.toml"));
    command.process_group(0).stdin(Stdio::null()).stdout(log).stderr(log_too);
    command.spawn().cannot(|| "start containerd".into())
}

/// `1.6.20`, without what a distribution adds.
fn version(programs: &Path) -> Result<String> {
    let said = run(Command::new(programs.join("containerd")).arg("--version"), None, CALL)?.checked()?.stdout;
    let version = said.split(' ').nth(2).unwrap_or_default().trim_start_matches('v');
    Ok(version.split(['~', '+', '-']).next().unwrap_or_default().to_owned())
}

/// A bridge of the room's own for pods that ask for a network.
fn network(folder: &Path) -> String {
    serde_json::json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "dataDir": folder.join("cni-addresses"),
                "ranges": [[{"subnet": "10.88.99.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
    .to_string()
}

/// The daemon's configuration, in the version that each release writes itself.
struct Config<'a> {
    folder: &'a Path,
    cni: Option<&'a Path>,
    ground: &'a Ground,
    version: &'a str,
}

impl Config<'_> {
    fn text(&self) -> Result<String> {
        let below = |leaf: &str| quoted(&self.folder.join(leaf));
        let pause = Value::from(reference(PAUSE));
        let plugins = quoted(self.cni.unwrap_or(Path::new("/nonexistent")))?;
        let (version, plugin, own, cni) = if self.version.starts_with("2.") {
            let own = format!(
                "[plugins.\"io.containerd.cri.v1.images\".pinned_images]\nsandbox = {pause}\n\
                 [plugins.\"io.containerd.nri.v1.nri\"]\ndisable = true\n"
            );
            (3, "io.containerd.cri.v1.runtime", own, format!("bin_dirs = [{plugins}]"))
        } else {
            (2, "io.containerd.grpc.v1.cri", String::new(), format!("bin_dir = {plugins}"))
        };
        let mut cri = String::from("restrict_oom_score_adj = true\nnetns_mounts_under_state_dir = true\n");
        if version == 2 {
            cri += &format!("sandbox_image = {pause}\n");
        }
        if !self.version.starts_with("1.6.") {
            cri += &format!("enable_cdi = true\ncdi_spec_dirs = [{}]\n", below("cdi")?);
        }
        let head = format!(
            "version = {version}\nroot = {}\nstate = {}\n[grpc]\naddress = {}\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = {}\n{own}",
            below("root")?,
            below("state")?,
            below("containerd.sock")?,
            below("opt")?,
        );
        let tail = format!(
            "[plugins.\"{plugin}\"]\n{cri}[plugins.\"{plugin}\".cni]\n{cni}\nconf_dir = {}\n\
             [plugins.\"{plugin}\".containerd]\ndefault_runtime_name = \"plain\"\n",
            below("cni")?
        );
        let quilt = self.handler(plugin, "quilt-gpu", &self.ground.quilt)?;
        Ok(format!("{head}{tail}{quilt}{}", self.handler(plugin, "plain", &self.ground.plain)?))
    }

    fn handler(&self, plugin: &str, name: &str, program: &Path) -> Result<String> {
        let table = format!("plugins.\"{plugin}\".containerd.runtimes.{name}");
        Ok(format!(
            "[{table}]\nruntime_type = \"io.containerd.runc.v2\"\n\
             pod_annotations = [\"quilt.gpu/*\"]\ncontainer_annotations = [\"grant.quilt.gpu/*\"]\n\
             [{table}.options]\nBinaryName = {}\nRoot = {}\n",
            quoted(program)?,
            quoted(&self.folder.join("runc"))?
        ))
    }
}

/// A TOML basic string; JSON's escapes are a subset of TOML's.
fn quoted(path: &Path) -> Result<String> {
    Ok(Value::from(text(path)?).to_string())
}
