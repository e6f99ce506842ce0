//! `quilt-gpu configure` on engines that run: each is told in its own folder, told once more, starts a container with a
//! GPU by a name or by default, and is as it was, byte for byte, when that is taken back. Formats and refusals are tables
//! in the helper's own tests.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use integration::engine::{Ask, Cri, Engine, Ground, Kit, PodAsk, Podman};
use integration::{
    Docker, DockerOptions, Error, Groups, PROBE_ALL, QuiltOptions, Ran, Result, Rootfs, Scratch, Seen, Site, root_for,
    run, runc_that_gets_along, say,
};
use serde_json::Value;

const RUNC: &str = "/usr/sbin/runc";
const PROBE: &str = env!("CARGO_BIN_EXE_quilt-probe");
const IMAGE: &str = "deb:1";
const CALL: Duration = Duration::from_secs(60);

/// An engine's folder as a node of its own: what configure reads and writes is below it.
struct Told<'a> {
    site: &'a Site,
    folder: PathBuf,
    engine: &'static str,
    more: Vec<String>,
    file: PathBuf,
    before: Option<String>,
}

impl<'a> Told<'a> {
    fn new(site: &'a Site, folder: &Path, engine: &'static str, file: &str, more: &[&str]) -> Result<Self> {
        let program = site.quilt.runtime();
        let inside = folder.join(program.strip_prefix("/").unwrap_or(&program));
        fs::create_dir_all(inside.parent().unwrap()).unwrap();
        fs::copy(&program, &inside).unwrap();
        let file = folder.join(file);
        let before = fs::read_to_string(&file).ok();
        let more = more.iter().map(|word| (*word).to_owned()).collect();
        Ok(Self { site, folder: folder.to_owned(), engine, more, file, before })
    }

    fn call(&self, words: &[&str]) -> Result<Value> {
        let (root, program) = (self.folder.to_string_lossy(), self.site.quilt.runtime());
        let program = program.to_string_lossy();
        let first = ["configure", self.engine, "--host-root", &root, "--runtime", &program, "--format", "json"];
        let more: Vec<&str> = self.more.iter().map(String::as_str).collect();
        let ran = self.site.quilt.cli(&[&first[..], &more, words].concat())?.checked()?;
        serde_json::from_str(&ran.stdout).map_err(|cause| Error::new(format!("{cause}: {}", ran.stdout)))
    }

    /// Tells the engine; a second time there is nothing to do.
    fn tell(&self) -> Result<()> {
        assert_eq!(self.call(&["--default"])?["changed"], true, "{}", self.engine);
        let now = fs::read_to_string(&self.file).unwrap();
        assert_ne!(Some(&now), self.before.as_ref(), "{}", self.engine);
        assert_eq!(self.call(&["--default"])?["changed"], false, "{}", self.engine);
        Ok(())
    }

    /// Takes it back; gives the command that makes the engine notice.
    fn take_back(&self) -> Result<Value> {
        let undone = self.call(&["--undo"])?;
        assert_eq!(undone["changed"], true, "{}", self.engine);
        assert_eq!(fs::read_to_string(&self.file).ok(), self.before, "{}: not as it was", self.engine);
        Ok(undone["restart"].clone())
    }
}

/// What a container saw that asked for one GPU.
fn has_one(ran: Ran, what: &str) -> Result<()> {
    let seen = Seen::of(&ran.checked()?.stdout)?;
    assert_eq!(seen.gpus()?.len(), 1, "{what}");
    Ok(())
}

/// A node with one GPU, and runc that works on this machine.
fn node() -> Result<(Scratch, Site, PathBuf)> {
    let tools = Scratch::new()?;
    let low_level = runc_that_gets_along(tools.path(), Path::new(RUNC))?;
    let options = QuiltOptions { low_level: vec![low_level.clone()], ..QuiltOptions::default() };
    Ok((tools, Site::with(|host| host.gpus(1), &options)?, low_level))
}

#[test]
fn docker() -> Result<()> {
    let test = "docker";
    if !root_for(test) {
        return Ok(());
    }
    for release in ["20", "28"] {
        if let Err(why) = Kit::default().docker(release) {
            say(format_args!("SKIPPED {test} {release}: {why}"));
            continue;
        }
        let site = Site::new(1)?;
        let mut engine = Docker::up(&DockerOptions { release: release.into(), ..DockerOptions::default() })?;
        say(format_args!("{test}: {}", engine.versions()?));
        let rootfs = Rootfs::debian_like(site.join("debian"), Path::new(PROBE))?;
        engine.import(&rootfs, IMAGE, &[])?;
        let told = Told::new(&site, engine.folder(), "docker", "daemon.json", &["--engine-config", "/daemon.json"])?;
        assert!(!engine.run(&["--rm", "--runtime=quilt-gpu", IMAGE, "true"])?.ok(), "known before it was told");

        told.tell()?;
        reloaded(&engine, "quilt-gpu")?;
        let asking = ["--rm", "--env=QUILT_GPU_COUNT=1", IMAGE];
        has_one(engine.run(&[&asking[..], &PROBE_ALL].concat())?, "by default")?;
        let named = ["--rm", "--runtime=quilt-gpu", "--env=QUILT_GPU_COUNT=1", IMAGE];
        has_one(engine.run(&[&named[..], &PROBE_ALL].concat())?, "by name")?;

        // A signal would leave it with a default that it does not know.
        assert_eq!(told.take_back()?, serde_json::json!(["systemctl", "restart", "docker"]));
        Engine::crash(&mut engine).unwrap()?;
        assert!(!engine.run(&["--rm", "--runtime=quilt-gpu", IMAGE, "true"])?.ok(), "known still");
        engine.run(&["--rm", IMAGE, "true"])?.checked()?;
    }
    Ok(())
}

/// Has the daemon read its file again, and waits until it says that this is its default.
fn reloaded(engine: &Docker, default: &str) -> Result<()> {
    engine.reload()?;
    let deadline = Instant::now() + CALL;
    loop {
        let said = engine.client(&["info", "--format", "{{.DefaultRuntime}}"])?;
        if said.stdout.trim() == default {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::new(format!("the default never is {default}: {said:?}")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The fixture's file without the tables of ours, and with what is below as default.
fn without_ours(text: &str) -> String {
    let mut ours = false;
    let kept = text.split_inclusive('\n').filter(|line| {
        if line.starts_with('[') {
            ours = line.contains("runtimes.quilt-gpu");
        }
        !ours
    });
    kept.collect()
}

#[test]
fn containerd() -> Result<()> {
    let test = "containerd";
    if !root_for(test) {
        return Ok(());
    }
    for release in ["1.6", "1.7", "2.1"] {
        if let Err(why) = Kit::default().containerd(release) {
            say(format_args!("SKIPPED {test} {release}: {why}"));
            continue;
        }
        let (_tools, site, plain) = node()?;
        let groups = Groups::Hybrid;
        let ground =
            Ground { quilt: site.quilt.runtime(), plain, groups, shown: Vec::new(), remapped: false, hooks: None };
        let mut cri = Cri::on(release, &ground)?;
        say(format_args!("{test}: {}", cri.versions()?));
        let rootfs = Rootfs::debian_like(site.join("debian"), Path::new(PROBE))?;
        cri.import(IMAGE, &rootfs, &[], &[])?;
        let file = cri.folder().join("config.toml");
        fs::write(&file, without_ours(&fs::read_to_string(&file).unwrap())).unwrap();
        let again = |cri: &mut Cri| cri.crash().unwrap_or_else(|| Err(Error::new("it does not restart")));
        again(&mut cri)?;
        let ask = PodAsk::new("before");
        assert!(cri.pod(&ask).is_err(), "{release}: the handler is known before it was told");

        let more = ["--engine-config", "/config.toml"];
        let told = Told::new(&site, cri.folder(), "containerd", "config.toml", &more)?;
        told.tell()?;
        again(&mut cri)?;
        for (name, ask) in [("by-name", PodAsk::new("by-name")), ("by-default", by_default())] {
            let pod = cri.pod(&ask.annotated(&format!("quilt.gpu/count.{name}"), "1"))?;
            let container = cri.create(&pod, &Ask::new(name, IMAGE, PROBE_ALL), |_| ())?;
            cri.launch(&container)?.checked()?;
            has_one(cri.finish(&container)?, name)?;
            cri.drop_pod(&pod)?;
        }

        told.take_back()?;
        again(&mut cri)?;
        assert!(cri.pod(&PodAsk::new("after")).is_err(), "{release}: the handler is known still");
        let pod = cri.pod(&by_default())?;
        cri.drop_pod(&pod)?;
    }
    Ok(())
}

/// A pod that names no handler.
fn by_default() -> PodAsk {
    PodAsk { unnamed: true, ..PodAsk::new("by-default") }
}

#[test]
fn podman() -> Result<()> {
    let test = "podman";
    if !root_for(test) {
        return Ok(());
    }
    for release in ["4.3", "5.4"] {
        if let Err(why) = Kit::default().podman(release) {
            say(format_args!("SKIPPED {test} {release}: {why}"));
            continue;
        }
        let (tools, site, plain) = node()?;
        let mut shown = site.quilt.programs();
        shown.extend([site.folder().to_owned(), tools.path().to_owned()]);
        let groups = Groups::Hybrid;
        let ground = Ground { quilt: site.quilt.runtime(), plain, groups, shown, remapped: false, hooks: None };
        let engine = Podman::on(release, &ground)?;
        say(format_args!("{test}: {}", engine.versions()?));
        let rootfs = Rootfs::debian_like(site.join("debian"), Path::new(PROBE))?;
        Engine::import(&engine, IMAGE, &rootfs, &[], &[])?;
        // Its own /etc/containers, with what its file says beside the runtimes. Below another name than what the room's own
        // /etc is made of, which nobody sees from outside.
        let root = engine.folder().join("told");
        let etc = root.join("etc/containers");
        fs::create_dir_all(&etc).unwrap();
        let mut settle = engine.in_room("sh");
        let script = "cp -a /etc/containers/. \"$0\" && mount --bind \"$0\" /etc/containers";
        run(settle.args(["-c", script]).arg(&etc), None, CALL)?.checked()?;
        let text = fs::read_to_string(engine.folder().join("containers.conf")).unwrap();
        let kept: String = text.split_inclusive('\n').filter(|line| !line.starts_with("quilt-gpu = ")).collect();
        fs::write(etc.join("containers.conf"), kept).unwrap();
        let podman = |words: &[&str]| {
            let mut command = engine.in_room("podman");
            command.arg("--cgroup-manager=cgroupfs");
            for (flag, leaf) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
                command.arg(flag).arg(engine.folder().join(leaf));
            }
            run(command.args(words), None, CALL)
        };
        let own = ["run", "--rm", "--pull=never", "--network=none", "--env=QUILT_GPU_COUNT=1"];
        let group = format!("--cgroup-parent=/{}", engine.folder().file_name().unwrap_or_default().to_string_lossy());
        let own = [&own[..], &[&group, IMAGE]].concat();
        let name = [&["--runtime=quilt-gpu"], &own[..], &["true"]].concat();
        assert!(!podman(&name)?.ok(), "known before it was told");

        let file = "etc/containers/containers.conf.d/quilt-gpu.conf";
        let told = Told::new(&site, &root, "podman", file, &[])?;
        told.tell()?;
        has_one(podman(&[&own[..], &PROBE_ALL].concat())?, "by default")?;
        has_one(podman(&[&["--runtime=quilt-gpu"], &own[..], &PROBE_ALL].concat())?, "by name")?;

        told.take_back()?;
        assert!(!podman(&name)?.ok(), "known still");
    }
    Ok(())
}
