//! Calls that engines make, each on a node that is as it was before: the same call can be made again and again.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use integration::{
    Binaries, Builder, Bundle, DriverFiles, Error, FakeHost, Quilt, QuiltOptions, Result, Rootfs, Scratch, Spec,
};

/// The driver of the node: always stand-ins, so that figures do not depend on what was downloaded.
pub const DRIVER: &str = "535.309.01";

/// The container of every scene.
pub const ID: &str = "bench";

/// What the helper finds out about the node, and what of the state folder stays between two runs of a scene.
const KNOWN: [&str; 2] = ["inventory.json", "low-level.json"];

/// What is at the end of the way to the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LowLevel {
    /// A program that ends at once.
    Ends,
    /// A file that cannot be started: who would become it goes on, so that what it did can be counted to the end.
    CannotStart,
}

/// A node with an installation, verification off: there is no container.
#[derive(Debug)]
pub struct Node {
    /// The installation.
    pub quilt: Quilt,
    /// The node.
    pub host: FakeHost,
    binaries: Binaries,
    /// What is at the end of the way to the container.
    pub low_level: PathBuf,
    scratch: Scratch,
}

/// A folder on a disk, which `make bench` names: everything else lies in memory, as on a node, but for the log.
const DISK: &str = "QUILT_BENCH_DISK";

/// Shows a new folder of the disk at this place, where there is one.
fn on_disk(place: &Path) -> Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let Some(disk) = std::env::var_os(DISK) else { return Ok(()) };
    let folder = PathBuf::from(disk).join(format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir(&folder).map_err(|e| failed("create", &folder, &e))?;
    let limit = std::time::Duration::from_secs(5);
    integration::run(Command::new("mount").arg("--bind").args([&folder, place]), None, limit)?.checked().map(|_| ())
}

impl Node {
    /// A node that `change` makes from one with one GPU.
    ///
    /// # Errors
    /// The programs were not built, or a part of the node could not be made.
    pub fn new(change: impl FnOnce(Builder) -> Builder) -> Result<Self> {
        Self::over(None, change)
    }

    /// The same over a real low-level runtime, where there is one, with verification on.
    ///
    /// # Errors
    /// As [`Node::new`].
    pub fn over(runtime: Option<&Path>, change: impl FnOnce(Builder) -> Builder) -> Result<Self> {
        let scratch = Scratch::new()?;
        let files = DriverFiles::stand_in(DRIVER)?;
        let host = change(FakeHost::builder(scratch.join("host")).driver(&files)).build()?;
        let low_level = runtime.map_or_else(|| scratch.join("low-level"), Path::to_owned);
        let options =
            QuiltOptions { verify: runtime.is_some(), low_level: vec![low_level.clone()], ..QuiltOptions::default() };
        let binaries = Binaries::locate()?;
        let quilt = Quilt::install(scratch.join("quilt"), &host, &binaries, &options)?;
        on_disk(&quilt.folder.join("log"))?;
        let node = Self { quilt, host, binaries, low_level, scratch };
        node.end_with(LowLevel::Ends)?;
        node.refresh()?;
        let nowhere = Rootfs { path: node.join("no-rootfs") };
        Bundle::sharing(node.join("other"), &Spec::new().env("QUILT_GPU_COUNT", "1"), &nowhere)?;
        Ok(node)
    }

    /// Has the helper look at the node again.
    ///
    /// # Errors
    /// It fails.
    pub fn refresh(&self) -> Result<()> {
        self.quilt.cli(&["inventory", "refresh"])?.checked().map(|_| ())
    }

    /// A path in the node's folder.
    pub fn join(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Has a container of its own hold each of these GPUs or instances, for good; says how many. So many are there already.
    ///
    /// # Errors
    /// One is not granted.
    pub fn hold(&self, names: impl IntoIterator<Item = String>, before: usize) -> Result<usize> {
        let mut held = 0;
        for name in names {
            let scene = self.scene("held", Verb::Create, &Spec::new().env("QUILT_GPU_IDS", &name), None)?;
            let id = format!("held-{}", before + held);
            scene.run_once(&scene.words(Verb::Create, &id, &scene.bundle))?;
            // What a real low-level runtime leaves.
            let state = self.join("root").join(id);
            fs::create_dir_all(&state).map_err(|e| failed("create", &state, &e))?;
            held += 1;
        }
        Ok(held)
    }

    /// Sets what stands for the low-level runtime.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end_with(&self, low_level: LowLevel) -> Result<()> {
        let bytes = match low_level {
            LowLevel::Ends => program_that_ends(),
            LowLevel::CannotStart => vec![0; 64],
        };
        // In place of the old file: a program that runs cannot be written.
        let (path, new) = (self.scratch.join("low-level"), self.scratch.join("low-level.new"));
        write(&new, &bytes)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))
            .map_err(|e| failed("make executable", &new, &e))?;
        fs::rename(&new, &path).map_err(|e| failed("write", &path, &e))
    }

    /// A scene whose call is `words` about the container of this spec; `rootfs` is an image, or none that is there.
    ///
    /// # Errors
    /// The bundle cannot be made.
    pub fn scene(&self, name: &str, call: Verb, spec: &Spec, rootfs: Option<&Rootfs>) -> Result<Scene<'_>> {
        let nowhere = Rootfs { path: self.scratch.join("no-rootfs") };
        let bundle = Bundle::sharing(self.scratch.join(name), spec, rootfs.unwrap_or(&nowhere))?;
        let original = fs::read(bundle.config()).map_err(|e| failed("read", &bundle.config(), &e))?;
        let (name, image) = (name.to_owned(), rootfs.is_some());
        Ok(Scene { node: self, name, verb: call, bundle, original, image, beside: false })
    }
}

/// The verbs that scenes are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Makes the container.
    Create,
    /// Asks about it: not ours, passed on.
    State,
    /// Sends it a signal: not ours, passed on.
    Kill,
    /// Starts a process in it.
    Exec,
    /// Removes it.
    Delete,
}

/// A call that can be repeated.
#[derive(Debug)]
pub struct Scene<'a> {
    /// What it is called in tables, and the folder of its bundle.
    pub name: String,
    verb: Verb,
    /// The bundle.
    pub bundle: Bundle,
    original: Vec<u8>,
    image: bool,
    beside: bool,
    node: &'a Node,
}

impl Scene<'_> {
    /// The same `create` beside what others hold, which stays when the scene is reset.
    #[must_use]
    pub fn beside_others(self) -> Self {
        Self { beside: true, ..self }
    }

    /// Puts back the bundle alone.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put_back(&self) -> Result<()> {
        write(&self.bundle.config(), &self.original)
    }

    /// Makes this the bundle's `config.json` from now on.
    ///
    /// # Errors
    /// As [`Scene::put_back`].
    pub fn replace(&mut self, spec: &serde_json::Value) -> Result<()> {
        self.original = spec.to_string().into_bytes();
        self.put_back()
    }

    /// A call of this scene, made by another program.
    pub fn by(&self, program: &Path, verb: Verb) -> Command {
        let mut command = Command::new(program);
        command.args(self.words(verb, ID, &self.bundle)).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.envs([self.node.quilt.env()]).current_dir("/");
        command
    }

    /// The scene's own call, made by another program.
    pub fn made_by(&self, program: &Path) -> Command {
        self.by(program, self.verb)
    }

    /// The runtime.
    pub fn runtime(&self) -> &Path {
        &self.node.binaries.runtime
    }

    /// Puts node and bundle back to before the call. For what comes after a `create`, that is made first.
    ///
    /// # Errors
    /// A file cannot be written, or the `create` fails.
    pub fn reset(&self) -> Result<()> {
        if self.beside {
            self.run_once(&self.words(Verb::Delete, ID, &self.bundle))?;
            return self.put_back();
        }
        let state = self.node.quilt.state();
        for entry in fs::read_dir(&state).map_err(|e| failed("list", &state, &e))?.flatten() {
            let path = entry.path();
            let removed = match path.is_dir() {
                true => fs::remove_dir_all(&path),
                false if KNOWN.iter().any(|known| entry.file_name() == *known) => Ok(()),
                false => fs::remove_file(&path),
            };
            removed.map_err(|e| failed("remove", &path, &e))?;
        }
        for name in ["audit.jsonl", "audit.head"] {
            let _ = fs::remove_file(self.node.quilt.folder.join("log").join(name));
        }
        // On a node in use folders and log are there.
        let other = Bundle { path: self.node.join("other") };
        self.run_once(&self.words(Verb::Create, "other", &other))?;
        self.run_once(&self.words(Verb::Delete, "other", &other))?;
        write(&self.bundle.config(), &self.original)?;
        match self.verb {
            Verb::Exec | Verb::Delete => self.run_once(&self.words(Verb::Create, ID, &self.bundle)),
            _ => Ok(()),
        }
    }

    fn run_once(&self, words: &[OsString]) -> Result<()> {
        let mut command = Command::new(&self.node.binaries.runtime);
        let limit = std::time::Duration::from_secs(20);
        integration::run(command.args(words).envs([self.node.quilt.env()]), None, limit)?.checked().map(|_| ())
    }

    /// The call's words, without the program.
    pub fn call(&self) -> Vec<OsString> {
        self.words(self.verb, ID, &self.bundle)
    }

    fn words(&self, verb: Verb, id: &str, bundle: &Bundle) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["--root".into(), self.node.join("root").into()];
        match verb {
            Verb::Create => {
                words.extend(["create".into(), "--bundle".into(), bundle.path.clone().into()]);
                words.extend(["--pid-file".into(), bundle.path.join("init.pid").into(), id.into()]);
            }
            Verb::State => words.extend(["state", id].map(Into::into)),
            Verb::Kill => words.extend(["kill", id, "TERM"].map(Into::into)),
            Verb::Exec => words.extend(["exec", id, "true"].map(Into::into)),
            Verb::Delete => words.extend(["delete", "--force", id].map(Into::into)),
        }
        words
    }

    /// The call, made through the runtime.
    pub fn command(&self) -> Command {
        self.under(&[])
    }

    /// The call through the runtime, which runs under another program.
    pub fn under(&self, tracer: &[OsString]) -> Command {
        let runtime = self.node.binaries.runtime.clone().into_os_string();
        let words: Vec<OsString> = tracer.iter().cloned().chain([runtime]).chain(self.call()).collect();
        let mut command = Command::new(words.first().cloned().unwrap_or_default());
        command.args(words.iter().skip(1)).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.envs([self.node.quilt.env()]).current_dir("/");
        command
    }

    /// Whether its container has an image.
    pub fn has_image(&self) -> bool {
        self.image
    }

    /// The node.
    pub fn node(&self) -> &Node {
        self.node
    }
}

/// An ELF program of this machine whose only instructions are those of `exit_group(0)`.
fn program_that_ends() -> Vec<u8> {
    const HEAD: usize = 64 + 56;
    let (machine, code): (u16, &[u8]) = if cfg!(target_arch = "aarch64") {
        // mov x8, #94; mov x0, #0; svc #0
        (183, &[0xc8, 0x0b, 0x80, 0xd2, 0x00, 0x00, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4])
    } else {
        // mov eax, 231; xor edi, edi; syscall
        (62, &[0xb8, 0xe7, 0x00, 0x00, 0x00, 0x31, 0xff, 0x0f, 0x05])
    };
    let (base, size) = (0x40_0000_u64, (HEAD + code.len()) as u64);
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend([2_u16.to_le_bytes(), machine.to_le_bytes()].concat());
    elf.extend(1_u32.to_le_bytes());
    elf.extend([base + HEAD as u64, 64, 0].map(u64::to_le_bytes).concat());
    elf.extend(0_u32.to_le_bytes());
    elf.extend([64_u16, 56, 1, 0, 0, 0].map(u16::to_le_bytes).concat());
    // One segment, the whole file, read and executed.
    elf.extend([1_u32, 5].map(u32::to_le_bytes).concat());
    elf.extend([0, base, base, size, size, 0x1000].map(u64::to_le_bytes).concat());
    elf.extend_from_slice(code);
    elf
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(|e| failed("write", path, &e))
}

pub(crate) fn failed(what: &str, path: &Path, cause: &dyn std::fmt::Display) -> Error {
    Error::new(format!("cannot {what} {}: {cause}", path.display()))
}
