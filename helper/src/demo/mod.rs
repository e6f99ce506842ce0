//! The main job on a made-up node, told as it happens: real containers and a real runtime, no GPU and no engine needed.
//!
//! It changes nothing outside a folder of its own, which it removes, whether it ends well, badly or by ctrl-c.

mod container;
pub(crate) mod fixture;

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::{Value, json};
use shim::Setup;

use crate::commands;
use crate::exit::Failure;
use crate::inventory;
use container::{Outcome, Runtime};

/// Folders that may hold what the runtime trusts and run programs: only root can write them.
const PARENTS: [&str; 4] = ["/var/lib", "/srv", "/opt", "/run"];

/// Runs the demonstration with this runtime.
///
/// # Errors
/// What is missing on this machine, or the first step that did not do what it shows.
pub(crate) fn run(runtime: &Path, out: &mut dyn Write) -> Result<(), Failure> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::Usage("the demonstration makes device nodes and containers: run it as root".into()));
    }
    // Blocked, so that ctrl-c ends the story between two steps and everything is still removed.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block().map_err(Failure::internal)?;
    let interrupted =
        SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).map_err(Failure::internal)?;
    let folder = Folder::make()?;
    let setup = prepare(&folder.0)?;
    let engine = runtime.with_file_name("quilt-gpu-engine");
    if setup.low_level().is_err() && engine.is_file() {
        // As installed: the engine that was built beside the runtime serves where there is neither runc nor crun.
        let link = setup.path.with_file_name(contract::config::LOW_LEVEL_LINK);
        std::os::unix::fs::symlink(&engine, &link)
            .map_err(|cause| Failure::Internal(format!("cannot make the link {}: {cause}", link.display())))?;
    }
    let runtime =
        Runtime::new(runtime.to_owned(), setup.path.clone(), folder.0.join("bundles")).map_err(Failure::Internal)?;
    let mut story = Story { runtime, setup: &setup, interrupted, out, step: 0 };
    let told = story.tell();
    story.runtime.clear();
    told
}

/// A folder that is removed at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn make() -> Result<Self, Failure> {
        let fit =
            |path: &&str| fs::metadata(path).is_ok_and(|it| it.is_dir() && it.uid() == 0 && it.mode() & 0o022 == 0);
        let parent = PARENTS.iter().find(|path| fit(path)).ok_or_else(|| {
            Failure::Internal(format!("none of {} is a folder that only root can write", PARENTS.join(", ")))
        })?;
        let name = node::random_hex128().map_err(Failure::internal)?;
        let path = Path::new(parent).join(format!("quilt-gpu-demo.{name}"));
        fs::create_dir(&path)
            .map_err(|cause| Failure::Internal(format!("cannot create {}: {cause}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing is mounted in it: binds live in the containers' own namespaces.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The made-up node and a configuration that points at it. Its folder is its own: no container may lie in that.
pub(crate) fn prepare(folder: &Path) -> Result<Setup, Failure> {
    let failed =
        |cause: std::io::Error| Failure::Internal(format!("cannot lay out the node in {}: {cause}", folder.display()));
    fixture::lay_out(&folder.join("node")).map_err(failed)?;
    let own = std::env::current_exe().map_err(failed)?;
    let at = |name: &str| folder.join(name).display().to_string();
    let text = format!(
        "[paths]\nstate_dir = {:?}\nlog_dir = {:?}\nhelper = {:?}\n[host]\nroot = {:?}\nnvml = \"off\"\n",
        at("state"),
        at("log"),
        own.display().to_string(),
        at("node")
    );
    fixture::file(folder, "etc/config.toml", text.as_bytes()).map_err(failed)?;
    Ok(Setup::read(&folder.join("etc/config.toml")))
}

struct Story<'a> {
    runtime: Runtime,
    setup: &'a Setup,
    interrupted: SignalFd,
    out: &'a mut dyn Write,
    step: u32,
}

impl Story<'_> {
    fn tell(&mut self) -> Result<(), Failure> {
        self.say("a node with four GPUs, made up: its device nodes are real, and no driver answers behind them")?;
        let seen = inventory::refresh(self.setup, None).map_err(Failure::Internal)?;
        write!(self.out, "{}", commands::inventory::text(&seen.inventory, &[]))?;

        self.say("two containers side by side, each with one GPU: QUILT_GPU_COUNT=1")?;
        self.runs("red", |spec| env(spec, "QUILT_GPU_COUNT=1"))?;
        self.runs("blue", |spec| env(spec, "QUILT_GPU_COUNT=1"))?;
        self.say("one that wants a certain GPU: QUILT_GPU_IDS=nvidia0; and one that takes what is left")?;
        self.runs("green", |spec| env(spec, "QUILT_GPU_IDS=nvidia0"))?;
        self.runs("grey", |spec| env(spec, "QUILT_GPU_COUNT=1"))?;
        commands::lease::list(self.setup, self.out)?;

        self.say("a fifth finds the node full")?;
        self.refused("fifth", "CAPACITY_FULL", |spec| env(spec, "QUILT_GPU_COUNT=1"))?;
        self.say("a container that binds a GPU's node instead of asking")?;
        let source = Path::new(&self.setup.config.host.dev_root()).join("nvidia0");
        self.refused("thief", "TENANT_GPU_MOUNT", |spec| {
            push(
                spec,
                "/mounts",
                json!({"destination": "/dev/x", "type": "bind", "source": source, "options": ["rbind"]}),
            )
        })?;
        self.say("strict and a GPU at once")?;
        self.refused("torn", "STRICT_GPU_CONFLICT", |spec| {
            env(spec, "QUILT_GPU_COUNT=1");
            env(spec, "QUILT_STRICT=true");
        })?;
        self.say("a container without GPUs: its spec stays as the engine wrote it, byte for byte")?;
        self.untouched("plain")?;

        self.say("all containers are deleted, and so are their leases")?;
        self.runtime.clear();
        commands::lease::list(self.setup, self.out)?;
        self.say("what was decided, in a chain that shows any change")?;
        commands::audit::table(self.setup, self.out)?;
        self.say("done; nothing of it is left")
    }

    /// Begins the next part, unless somebody pressed ctrl-c.
    fn say(&mut self, what: &str) -> Result<(), Failure> {
        if matches!(self.interrupted.read_signal(), Ok(Some(_))) {
            return Err(Failure::Internal("interrupted; everything was removed".into()));
        }
        self.step += 1;
        writeln!(self.out, "\n{}. {what}\n", self.step)?;
        Ok(self.out.flush()?)
    }

    fn runs(&mut self, id: &str, change: impl FnOnce(&mut Value)) -> Result<(), Failure> {
        match self.runtime.start(id, change).map_err(Failure::Internal)? {
            Outcome::Runs(lines) => {
                writeln!(self.out, "   {id}")?;
                for line in lines {
                    writeln!(self.out, "      {line}")?;
                }
                Ok(())
            }
            Outcome::Refused(words) => {
                Err(Failure::Internal(format!("the container {id} should run and was refused: {words}")))
            }
        }
    }

    fn refused(&mut self, id: &str, code: &str, change: impl FnOnce(&mut Value)) -> Result<(), Failure> {
        match self.runtime.start(id, change).map_err(Failure::Internal)? {
            Outcome::Refused(words) if words.contains(code) => Ok(writeln!(self.out, "   {id}: {words}")?),
            Outcome::Refused(words) => Err(Failure::Internal(format!(
                "the container {id} should be refused with {code}, and the runtime says: {words}"
            ))),
            Outcome::Runs(_) => {
                Err(Failure::Internal(format!("the container {id} should be refused with {code}, and it runs")))
            }
        }
    }

    fn untouched(&mut self, id: &str) -> Result<(), Failure> {
        let mut before = String::new();
        self.runs(id, |spec| before = spec.to_string())?;
        if self.runtime.spec(id) != before.as_bytes() {
            return Err(Failure::Internal(format!("config.json of the container {id} was changed")));
        }
        Ok(writeln!(self.out, "      config.json is unchanged")?)
    }
}

fn env(spec: &mut Value, variable: &str) {
    push(spec, "/process/env", variable.into());
}

fn push(spec: &mut Value, pointer: &str, item: Value) {
    if let Some(list) = spec.pointer_mut(pointer).and_then(Value::as_array_mut) {
        list.push(item);
    }
}
