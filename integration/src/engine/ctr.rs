//! containerd through `ctr`, its own client: no pods, no policy, nothing between the words and the daemon.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, Ordering};

use super::containerd::{Containerd, reference};
use super::image::Words;
use super::{Ask, Engine, Ground, Source, Through};
use crate::error::{Error, Result};
use crate::process::{Ran, text};
use crate::rootfs::Rootfs;

/// The namespace that `ctr` takes by itself.
const NAMESPACE: &str = "default";

/// A containerd with its client.
#[derive(Debug)]
pub struct Ctr {
    daemon: Containerd,
    ground: Ground,
    execs: AtomicU32,
}

impl Ctr {
    /// Starts a release: `1.6`.
    ///
    /// # Errors
    /// It is missing, or does not come up: its last words.
    pub fn on(release: &str, ground: &Ground) -> Result<Self> {
        let daemon = Containerd::on(release, ground)?;
        Ok(Self { daemon, ground: ground.clone(), execs: AtomicU32::new(0) })
    }

    /// Everything that it has on disk.
    pub fn folder(&self) -> &Path {
        self.daemon.folder()
    }

    fn call(&self, args: &[&str]) -> Result<Ran> {
        self.daemon.ctr(NAMESPACE, args)
    }

    /// `ctr run` with this in front.
    fn run_with(&self, first: &[&str], ask: &Ask) -> Result<Ran> {
        let binary = match ask.through {
            Through::Quilt => &self.ground.quilt,
            Through::Plain => &self.ground.plain,
        };
        let root = self.daemon.runtime_root();
        let cgroup = format!("{}/{}", self.daemon.cgroup(), ask.name);
        let mut call: Vec<&str> = [&["run"], first].concat();
        call.extend(["--runtime", "io.containerd.runc.v2", "--runc-binary", text(binary)?]);
        call.extend(["--runc-root", text(&root)?, "--cgroup", &cgroup]);
        let words = words(ask)?;
        call.extend(words.iter().flat_map(|(flag, value)| [*flag, value.as_str()]));
        if ask.privileged {
            call.push("--privileged");
        }
        let image = reference(&ask.image);
        call.extend([image.as_str(), &ask.name]);
        call.extend(ask.args.iter().map(String::as_str));
        self.call(&call)
    }

    fn running(&self, name: &str) -> Result<bool> {
        let list = self.call(&["task", "ls"])?.checked()?.stdout;
        Ok(list.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(name) && words.nth(1) != Some("STOPPED")
        }))
    }
}

/// Flags and their values.
fn words(ask: &Ask) -> Result<Vec<(&'static str, String)>> {
    let mut words = Vec::new();
    words.extend(ask.env.iter().map(|(key, value)| ("--env", format!("{key}={value}"))));
    let annotations = ask.annotations.iter().chain(&ask.node_annotations);
    words.extend(annotations.map(|(key, value)| ("--annotation", format!("{key}={value}"))));
    for (source, target) in &ask.binds {
        words.push(("--mount", format!("type=bind,src={},dst={target},options=rbind:rw", text(source)?)));
    }
    for device in &ask.devices {
        words.push(("--device", text(device)?.to_owned()));
    }
    if ask.user_namespace {
        // Options of the task then replace those of the container, and any runc on PATH is taken.
        return Err(Error::new("with --uidmap, ctr forgets --runc-binary"));
    }
    Ok(words)
}

impl Engine for Ctr {
    fn versions(&self) -> Result<String> {
        self.daemon.versions("ctr", &self.ground.plain)
    }

    fn cdi(&self) -> Option<PathBuf> {
        None
    }

    fn keeps(&self) -> (&'static str, PathBuf) {
        ("run/containerd", self.daemon.folder().join("state"))
    }

    fn sources(&self) -> &'static [Source] {
        &[Source::Environment, Source::Annotation]
    }

    fn import(&self, name: &str, rootfs: &Rootfs, env: &[(&str, &str)], labels: &[(&str, &str)]) -> Result<()> {
        self.daemon.import(NAMESPACE, name, rootfs, &Words { env, labels, command: &["sh"] })
    }

    fn run(&self, ask: &Ask) -> Result<Ran> {
        self.run_with(&["--rm"], ask)
    }

    fn start(&self, ask: &Ask) -> Result<Ran> {
        self.run_with(&["--detach", "--null-io"], ask)
    }

    fn exec(&self, name: &str, args: &[&str]) -> Result<Ran> {
        let id = format!("exec-{}", self.execs.fetch_add(1, Ordering::Relaxed));
        self.call(&[&["task", "exec", "--exec-id", &id, name], args].concat())
    }

    /// What is stopped keeps a state at the low-level runtime until its task is deleted: other engines do both.
    fn stop(&self, name: &str) -> Result<Ran> {
        let deleted = self.call(&["task", "delete", "--force", name])?;
        // One that was killed is not 0 here either: its own status.
        let gone = !self.running(name)?;
        Ok(if gone { Ran { status: ExitStatus::default(), ..deleted } } else { deleted })
    }

    fn restart(&self, name: &str) -> Result<Ran> {
        self.stop(name)?.checked()?;
        self.call(&["task", "start", "--detach", "--null-io", name])
    }

    fn remove(&self, name: &str) -> Result<Ran> {
        if self.running(name)? {
            self.stop(name)?;
        }
        self.call(&["task", "delete", "--force", name])?;
        self.call(&["container", "delete", name])
    }

    fn update(&self, _: &str) -> Option<Result<Ran>> {
        None
    }

    fn crash(&mut self) -> Option<Result<()>> {
        Some(self.daemon.crash())
    }
}
