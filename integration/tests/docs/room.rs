//! Where the documents' commands run: a make-believe node with four GPUs, a Docker of its own, and folders of its own in the
//! places that commands name. Nothing of the machine is changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use integration::{Binaries, Docker, DockerOptions, Error, QuiltOptions, Ran, Result, Rootfs, Site, run, say};

const RUNC: &str = "/usr/sbin/runc";
const PROBE: &str = env!("CARGO_BIN_EXE_quilt-probe");
/// The newest that the tests have: annotations and CDI.
const RELEASE: &str = "28";
/// How long a block may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Images that the documents name, all one and the same here.
const IMAGES: [&str; 2] = ["nvidia/cuda:12.4.1-base-ubuntu22.04", "busybox:latest"];
/// Where commands write CDI files. Engines' own files lie below the node's root.
const CDI: &str = "/run/cdi";
/// Puts that folder and programs where commands look for them, in a mount namespace of its own.
const WITHIN: &str = r#"
set -eu
programs=$1 work=$2 block=$3
mount --bind "$4" "$5"
PATH=$programs:$PATH; export PATH
cd "$work"
exec bash -eu -o pipefail "$block"
"#;

pub(crate) struct Room {
    // First: its containers use the node.
    docker: Docker,
    site: Site,
    _place: Place,
}

/// How many rooms need the mount point, and whether the machine has none of its own.
static ROOMS: Mutex<(usize, bool)> = Mutex::new((0, false));

/// The mount point, while this lives.
struct Place;

impl Place {
    fn new() -> Self {
        let mut rooms = ROOMS.lock().unwrap_or_else(PoisonError::into_inner);
        rooms.0 += 1;
        rooms.1 |= fs::create_dir(CDI).is_ok();
        Self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut rooms = ROOMS.lock().unwrap_or_else(PoisonError::into_inner);
        rooms.0 -= 1;
        if *rooms == (0, true) {
            let _ = fs::remove_dir(CDI);
            rooms.1 = false;
        }
    }
}

impl Room {
    /// `None` where Docker of that release is not here.
    pub(crate) fn new(test: &str) -> Result<Option<Self>> {
        let options = QuiltOptions { low_level: vec![RUNC.into()], ..QuiltOptions::default() };
        let site = Site::with(|host| host.gpus(4), &options)?;
        // NVIDIA's own says that there is no driver, and ends so.
        write(&site.host.root.join("usr/bin/nvidia-smi"), "#!/bin/sh\necho GPUs: /dev/nvidia[0-9]*\n")?;
        site.quilt.cli(&["inventory", "refresh"])?.checked()?;
        let runtimes = vec![("quilt-gpu".into(), site.quilt.runtime())];
        let docker = match Docker::up(&DockerOptions { release: RELEASE.into(), runtimes, ..DockerOptions::default() })
        {
            Ok(docker) => docker,
            Err(absent) if !absent.to_string().contains("did not come up") => {
                say(format_args!("SKIPPED {test}: {absent}"));
                return Ok(None);
            }
            Err(why) => return Err(why),
        };
        let rootfs = Rootfs::debian_like(site.join("debian"), Path::new(PROBE))?.with_ld_cache()?;
        fs::copy("/sbin/ldconfig", rootfs.path.join("usr/bin/ldconfig")).map_err(|e| failed("ldconfig", &e))?;
        for image in IMAGES {
            docker.import(&rootfs, image, &[])?;
        }
        let room = Self { docker, site, _place: Place::new() };
        room.programs()?;
        Ok(Some(room))
    }

    /// What commands call: ours and Docker's client for this node, and what changes a machine by nothing.
    fn programs(&self) -> Result<()> {
        // Beside each other, as they are installed.
        let Binaries { runtime, hook, helper, .. } = Binaries::locate()?;
        for (program, name) in [(runtime, "quilt-gpu-runtime"), (hook, "quilt-gpu-hook"), (helper, "quilt-gpu")] {
            let to = self.site.join("bin").join(name);
            // Seen from the machine, and below the node's root, where `configure` looks for it.
            let node = self.site.host.root.join(to.strip_prefix("/").unwrap_or(&to));
            for to in [&to, &node] {
                let folder = to.parent().map_or(Ok(()), fs::create_dir_all);
                folder.and_then(|()| fs::copy(&program, to)).map_err(|e| failed(to, &e))?;
            }
        }
        let mut ours = Command::new(self.site.join("bin/quilt-gpu"));
        let (name, value) = self.site.quilt.env();
        ours.env(name, value);
        for (name, command) in [("quilt-gpu", ours), ("docker", self.docker.command())] {
            write(&self.site.join("programs").join(name), &script(&command))?;
        }
        write(&self.site.join("programs/sudo"), "#!/bin/sh\nexec \"$@\"\n")?;
        write(
            &self.site.join("programs/systemctl"),
            "#!/bin/sh\ncase $1 in reload|restart|enable) ;; *) exit 1 ;; esac\n",
        )
    }

    /// Makes an empty work folder, and no container of an earlier page.
    pub(crate) fn clear(&self) -> Result<()> {
        let _ = fs::remove_dir_all(self.site.join("work"));
        fs::create_dir_all(self.site.join("work")).map_err(|e| failed("work", &e))?;
        self.run("docker ps -aq | xargs -r docker rm --force")?.checked().map(drop)
    }

    /// Runs a block as a user types it in.
    pub(crate) fn run(&self, block: &str) -> Result<Ran> {
        let file = self.site.join("block.sh");
        fs::write(&file, block).map_err(|e| failed("block.sh", &e))?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "bash", "-c", WITHIN, "within"]);
        command.args([self.site.join("programs"), self.site.join("work"), file]);
        command.arg(self.docker.folder().join("cdi")).arg(CDI);
        run(&mut command, None, LIMIT)
    }
}

/// A program that is this command, with whatever words follow.
fn script(command: &Command) -> String {
    let quoted = |text: &std::ffi::OsStr| format!("'{}'", text.to_string_lossy().replace('\'', r"'\''"));
    let mut line = "#!/bin/sh\nexec env".to_owned();
    let (set, gone): (Vec<_>, Vec<_>) = command.get_envs().partition(|(_, value)| value.is_some());
    gone.iter().for_each(|(name, _)| line += &format!(" -u {}", name.to_string_lossy()));
    for (name, value) in set {
        line += &format!(" {}={}", name.to_string_lossy(), quoted(value.unwrap_or_default()));
    }
    for word in std::iter::once(command.get_program()).chain(command.get_args()) {
        line += &format!(" {}", quoted(word));
    }
    line + " \"$@\"\n"
}

fn write(path: &Path, text: &str) -> Result<()> {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, text));
    made.and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755))).map_err(|e| failed(path, &e))
}

fn failed(what: impl AsRef<Path>, cause: &std::io::Error) -> Error {
    Error::new(format!("cannot write {}: {cause}", what.as_ref().display()))
}
