//! `docker run --gpus`, which every Docker before 29.2 turns into NVIDIA's hook: another injector by default; where our own hook
//! bears that name, or policy says so, an ordinary request.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::engine::Kit;
use integration::{
    Docker, DockerOptions, Error, PROBE_ALL, QuiltOptions, Ran, Result, Rootfs, Scratch, Seen, Site, root_for, run,
    runc_that_gets_along, say,
};

use crate::{IMAGE, PROBE};

/// The name that Docker looks for.
const HOOK: &str = "nvidia-container-runtime-hook";
/// Debian's, which speaks to any Docker.
const COMPOSE: &str = "/usr/bin/docker-compose";

struct Yard {
    // First: its containers use the node.
    docker: Docker,
    site: Site,
    _tools: Scratch,
}

impl Yard {
    /// A node of two GPUs and a daemon that finds what `install` puts into a folder. `None` where this release is not.
    fn new(
        test: &str,
        release: &str,
        more: &str,
        install: impl FnOnce(&Site, &Path) -> std::io::Result<()>,
    ) -> Result<Option<Self>> {
        if !root_for(test) {
            return Ok(None);
        }
        let kit = Kit::default();
        let low_level = match kit.docker(release).and_then(|_| kit.low_level("runc-1.1")) {
            Ok(low_level) => low_level,
            Err(absent) => {
                say(format_args!("{test}: skipped, {absent}"));
                return Ok(None);
            }
        };
        let tools = Scratch::new()?;
        let plain = runc_that_gets_along(tools.path(), &low_level)?;
        let options = QuiltOptions { low_level: vec![plain.clone()], more: more.into(), ..QuiltOptions::default() };
        let site = Site::with(|host| host.gpus(2), &options)?;
        let path = site.join("path");
        let made = fs::create_dir(&path).and_then(|()| install(&site, &path.join(HOOK)));
        made.map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
        let runtimes = vec![("quilt-gpu".into(), site.quilt.runtime()), ("plain".into(), plain)];
        let options = DockerOptions { release: release.into(), runtimes, path: Some(path), ..DockerOptions::default() };
        let docker = Docker::up(&options)?;
        say(format_args!("{test}: {}, {}", docker.versions()?, site.files));
        docker.import(&Rootfs::debian_like(site.join("debian"), Path::new(PROBE))?, IMAGE, &[])?;
        Ok(Some(Self { docker, site, _tools: tools }))
    }

    fn run(&self, runtime: &str, args: &[&str]) -> Result<Ran> {
        let runtime = format!("--runtime={runtime}");
        self.docker.run(&[&["--rm", "--network=none", &runtime], args, &[IMAGE], &PROBE_ALL].concat())
    }

    fn see(&self, args: &[&str]) -> Result<BTreeSet<u64>> {
        Seen::of(&self.run("quilt-gpu", args)?.checked()?.stdout)?.gpus()
    }

    /// What a service of Compose sees that asks for these devices. `None` where there is no Compose.
    fn composed(&self, devices: &str) -> Result<Option<BTreeSet<u64>>> {
        if !Path::new(COMPOSE).exists() {
            say(format_args!("Compose: skipped, no {COMPOSE} (`integration/setup.sh docker` installs it)"));
            return Ok(None);
        }
        let probe = PROBE_ALL.join(", ");
        let file = format!(
            "services:\n  job:\n    image: {IMAGE}\n    runtime: quilt-gpu\n    network_mode: none\n    command: [{probe}]\n    \
             deploy:\n      resources:\n        reservations:\n          devices:\n            - capabilities: [gpu]\n              \
             {devices}\n"
        );
        let path = self.site.join("compose.yaml");
        fs::write(&path, file).map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
        let client = self.docker.command();
        let mut compose = Command::new(COMPOSE);
        compose.args(client.get_args()).args(["--project-name", "job", "--file"]).arg(&path);
        compose.args(["run", "--rm", "-T", "job"]);
        let ran = run(&mut compose, None, Duration::from_secs(120))?.checked()?;
        Ok(Some(Seen::of(&ran.stdout)?.gpus()?))
    }

    fn refused(&self, runtime: &str, args: &[&str], words: &[&str]) -> Result<()> {
        let ran = self.run(runtime, args)?;
        assert!(!ran.ok() && ran.stdout.is_empty(), "{args:?}: {ran:?}");
        for word in words {
            assert!(ran.stderr.contains(word), "{args:?}: no {word} in {}", ran.stderr);
        }
        assert_eq!(self.site.leases_on_disk()?, BTreeSet::new(), "{args:?}");
        Ok(())
    }
}

fn by_alias(test: &str, release: &str) -> Result<()> {
    let alias = |site: &Site, path: &Path| symlink(site.quilt.hook(), path);
    let Some(yard) = Yard::new(test, release, "", alias)? else { return Ok(()) };
    assert_eq!(yard.see(&["--gpus", "1"])?.len(), 1);
    assert_eq!(yard.see(&["--gpus", "all"])?, BTreeSet::from([0, 1]));
    let uuid = yard.site.host.by_minor(1).map(|gpu| gpu.uuid.clone()).unwrap_or_default();
    assert_eq!(yard.see(&["--gpus", &format!("device={uuid}")])?, BTreeSet::from([1]));
    assert_eq!(yard.see(&["-e", "QUILT_GPU_IDS=nvidia1"])?, BTreeSet::from([1]));
    assert_eq!(yard.see(&[])?, BTreeSet::new());
    yard.refused("quilt-gpu", &["--gpus", "3"], &["UNKNOWN_GPU"])?;
    // By address it is the second one, though its minor is 0.
    assert_eq!(yard.see(&["--gpus", "device=1"])?, BTreeSet::from([0]));
    yard.refused("quilt-gpu", &["--gpus", "1", "-e", "QUILT_GPU_COUNT=1"], &["INVALID_GPU_REQUEST", "twice"])?;
    yard.refused("quilt-gpu", &["--gpus", "1", "-e", "QUILT_STRICT=true"], &["STRICT_GPU_CONFLICT"])?;
    // The same words by Compose.
    for (devices, minors) in [("count: 1", 1), ("count: all", 2), ("device_ids: ['0', '1']", 2)] {
        let seen = yard.composed(devices)?;
        assert!(seen.is_none_or(|gpus| gpus.len() == minors), "{devices}");
    }
    // Under another runtime the alias is a hook that grants nothing.
    yard.refused("plain", &["--gpus", "1"], &["POLICY", "runtime quilt-gpu"])
}

#[test]
fn d30_docker_20_takes_our_hook_for_nvidias_and_gets_a_request() -> Result<()> {
    by_alias("d30_docker_20_takes_our_hook_for_nvidias_and_gets_a_request", "20")
}

#[test]
fn d30_docker_26_takes_our_hook_for_nvidias_and_gets_a_request() -> Result<()> {
    by_alias("d30_docker_26_takes_our_hook_for_nvidias_and_gets_a_request", "26")
}

#[test]
fn d30_docker_28_takes_our_hook_for_nvidias_and_gets_a_request() -> Result<()> {
    by_alias("d30_docker_28_takes_our_hook_for_nvidias_and_gets_a_request", "28")
}

/// A hook of somebody else's by that name; where it ran it says so.
fn others(site: &Site, path: &Path) -> std::io::Result<()> {
    let trace: PathBuf = site.join("hook-ran");
    fs::write(path, format!("#!/bin/sh\ntouch {}\n", trace.display()))?;
    fs::set_permissions(path, PermissionsExt::from_mode(0o755))
}

#[test]
fn d30_nvidias_hook_is_refused_or_replaced_and_never_runs() -> Result<()> {
    let test = "d30_nvidias_hook_is_refused_or_replaced_and_never_runs";
    let Some(yard) = Yard::new(test, "20", "", others)? else { return Ok(()) };
    let words = ["FOREIGN_GPU_INJECTION", HOOK, "drop one of the two", "--gpus"];
    yard.refused("quilt-gpu", &["--gpus", "1"], &words)?;
    yard.refused("quilt-gpu", &["--gpus", "all", "-e", "QUILT_GPU_COUNT=1"], &words)?;
    assert!(!yard.site.join("hook-ran").exists());
    // As a control: elsewhere it runs.
    yard.run("plain", &["--gpus", "1"])?.checked()?;
    assert!(yard.site.join("hook-ran").exists());
    drop(yard);
    let more = "[request]\ndocker_gpus = \"request\"\n";
    let Some(yard) = Yard::new(test, "20", more, others)? else { return Ok(()) };
    assert_eq!(yard.see(&["--gpus", "2"])?, BTreeSet::from([0, 1]));
    assert!(!yard.site.join("hook-ran").exists());
    Ok(())
}
