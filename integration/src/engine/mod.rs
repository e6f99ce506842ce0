//! What every engine can be told, whatever its command line or protocol looks like: one interface, so that one table of
//! behaviours can be tried on all.
//!
//! An engine knows nothing of GPUs or of quilt-gpu: it starts containers through a runtime that it was given.

mod containerd;
mod cri;
mod ctr;
mod docker;
mod image;
mod janitor;
mod kit;
mod podman;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::error::Result;
use crate::process::{Ran, run};
use crate::room::Groups;
use crate::rootfs::Rootfs;

pub use cri::{Container, Cri, Pod, PodAsk};
pub use ctr::Ctr;
pub use docker::{Docker, DockerOptions};
pub use kit::Kit;
pub use podman::Podman;

/// What an engine is to live on.
#[derive(Clone, Debug)]
pub struct Ground {
    /// The program behind the runtime's name `quilt-gpu`.
    pub quilt: PathBuf,
    /// The program behind `plain`: what is below quilt-gpu.
    pub plain: PathBuf,
    /// Control groups around the engine.
    pub groups: Groups,
    /// Folders that must be seen by the engine at their own path, also where it has another root.
    pub shown: Vec<PathBuf>,
    /// Whether containers get a user namespace unless they say otherwise (Docker's `userns-remap`).
    pub remapped: bool,
    /// A folder of OCI hooks: then quilt-gpu is these alone, over the runtime `plain` (Podman).
    pub hooks: Option<PathBuf>,
}

/// Which runtime a container is started with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Through {
    /// quilt-gpu.
    #[default]
    Quilt,
    /// What is below it, as a control.
    Plain,
}

/// How a user of an engine can ask for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Variables of the container.
    Environment,
    /// Annotations of the container.
    Annotation,
    /// Annotations of the pod, which name the container: `quilt.gpu/count.<name>`.
    PodAnnotation,
}

/// One container, as its user describes it to an engine. What an engine has no words for is an error of the call.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// Its name, unique in the engine.
    pub name: String,
    /// Which image.
    pub image: String,
    /// Its command.
    pub args: Vec<String>,
    /// Variables.
    pub env: Vec<(String, String)>,
    /// Annotations, of the pod where the engine has pods.
    pub annotations: Vec<(String, String)>,
    /// Annotations that the node's own agent writes: of the container, also where the engine has pods.
    pub node_annotations: Vec<(String, String)>,
    /// Bind mounts: source and destination.
    pub binds: Vec<(PathBuf, String)>,
    /// Devices of the host, at the same place inside.
    pub devices: Vec<PathBuf>,
    /// CDI devices by their qualified names.
    pub cdi: Vec<String>,
    /// All capabilities and all devices.
    pub privileged: bool,
    /// A user namespace with other ids (Podman's `--userns`).
    pub user_namespace: bool,
    /// Which runtime.
    pub through: Through,
}

impl Ask {
    /// A container of this image with this command.
    pub fn new<S: AsRef<str>>(name: &str, image: &str, args: impl IntoIterator<Item = S>) -> Self {
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        Self { name: name.into(), image: image.into(), args, ..Self::default() }
    }

    /// The same with one more word of a request, `count` or `ids` or `strict`, said in this way.
    #[must_use]
    pub fn asking(mut self, source: Source, word: &str, value: &str) -> Self {
        let value = value.to_owned();
        match source {
            Source::Environment => {
                let name =
                    if word == "strict" { "QUILT_STRICT".into() } else { format!("QUILT_GPU_{}", word.to_uppercase()) };
                self.env.push((name, value));
            }
            Source::Annotation => self.annotations.push((format!("quilt.gpu/{word}"), value)),
            Source::PodAnnotation => self.annotations.push((format!("quilt.gpu/{word}.{}", self.name), value)),
        }
        self
    }

    /// What Docker and Podman have the same words for.
    fn flags(&self, command: &mut Command) {
        for (key, value) in &self.env {
            command.arg(format!("--env={key}={value}"));
        }
        for (key, value) in &self.annotations {
            command.arg(format!("--annotation={key}={value}"));
        }
        for (source, destination) in &self.binds {
            command.arg(format!("--volume={}:{destination}", source.display()));
        }
        for device in &self.devices {
            command.arg(format!("--device={}", device.display()));
        }
        for name in &self.cdi {
            command.arg(format!("--device={name}"));
        }
        if self.privileged {
            command.arg("--privileged");
        }
    }
}

/// `import --change` of Docker and Podman.
fn changes(env: &[(&str, &str)], labels: &[(&str, &str)]) -> Vec<String> {
    let line = |word: &'static str| move |(key, value): &(&str, &str)| format!("{word} {key}={value}");
    env.iter().map(line("ENV")).chain(labels.iter().map(line("LABEL"))).collect()
}

/// The name and version of a low-level runtime, `runc 1.1.5`, from its first line.
fn low_level(mut program: Command) -> Result<String> {
    let said = run(program.arg("--version"), None, Duration::from_secs(10))?.checked()?.stdout;
    // `runc version 1.1.5+ds1`, `crun version 1.8.1`, `youki version: 0.7.0`.
    let mut words = said.split_whitespace().filter(|word| word.trim_end_matches(':') != "version");
    let (name, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    Ok(format!("{name} {}", version.split(['~', '+']).next().unwrap_or_default()))
}

/// An engine that is up. It stops, with everything in it, when it is dropped.
///
/// Calls that fail give a `Ran` whose status is not 0 and whose `stderr` is what the engine's user is shown; an `Err` is
/// for calls that could not be made at all.
pub trait Engine: Send + Sync {
    /// For tables: `docker 26.1.5, containerd 1.7.24, runc 1.1.5`.
    ///
    /// # Errors
    /// The engine does not answer.
    fn versions(&self) -> Result<String>;

    /// The folder that its CDI files are read from; none where it knows no CDI.
    fn cdi(&self) -> Option<PathBuf>;

    /// The folder, below `/`, where a node has what such an engine keeps, and where this one keeps it.
    fn keeps(&self) -> (&'static str, PathBuf);

    /// In which ways its users can ask.
    fn sources(&self) -> &'static [Source];

    /// Makes an image `name` from a root file system, with these variables and labels.
    ///
    /// # Errors
    /// The engine does not take it.
    fn import(&self, name: &str, rootfs: &Rootfs, env: &[(&str, &str)], labels: &[(&str, &str)]) -> Result<()>;

    /// Runs a container to its end and removes it: its own status and output.
    ///
    /// # Errors
    /// See above.
    fn run(&self, ask: &Ask) -> Result<Ran>;

    /// Starts a container in the background.
    ///
    /// # Errors
    /// See above.
    fn start(&self, ask: &Ask) -> Result<Ran>;

    /// Runs a command in a running container.
    ///
    /// # Errors
    /// See above.
    fn exec(&self, name: &str, args: &[&str]) -> Result<Ran>;

    /// Stops a container, at once. It can be started again.
    ///
    /// # Errors
    /// See above.
    fn stop(&self, name: &str) -> Result<Ran>;

    /// Stops a container and starts it again.
    ///
    /// # Errors
    /// See above.
    fn restart(&self, name: &str) -> Result<Ran>;

    /// Removes a container, running or not.
    ///
    /// # Errors
    /// See above.
    fn remove(&self, name: &str) -> Result<Ran>;

    /// Gives a running container another limit, of a kind that this machine has.
    ///
    /// # Errors
    /// See above; `None` where the engine has no such call.
    fn update(&self, name: &str) -> Option<Result<Ran>>;

    /// Kills the engine's daemon with SIGKILL, leaves its containers, and starts it again. `None` where there is none.
    ///
    /// # Errors
    /// It does not come up again.
    fn crash(&mut self) -> Option<Result<()>>;
}
