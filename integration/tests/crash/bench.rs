//! The bench of the crash tests: one container whose processes are killed, and a fleet that afterwards takes every GPU. It
//! says what must hold after a kill; where to kill is the tests' to say.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use integration::{Bundle, Error, Fleet, QuiltOptions, Ran, Result, Rootfs, Runc, Site, Spec, run, say};
use serde_json::Value;

use crate::{LIMIT, VICTIM};

/// What changes files, makes or waits for processes, or ends. Between two of these nothing changes that could be seen.
const CALLS: &str = "write,pwrite64,writev,rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat,rmdir,\
    truncate,ftruncate,chmod,fchmod,chown,fchown,fsetxattr,flock,clone,clone3,fork,vfork,execve,wait4,exit_group";

/// What the helper found out about the node.
const KNOWN: [&str; 2] = ["inventory.json", "low-level.json"];

/// A node, a container whose processes are killed, and a fleet that afterwards takes every GPU.
pub(crate) struct Bench {
    // Dropped in this order: what runs before what it stands on.
    fleet: Fleet,
    pub(crate) runtime: Runc,
    pub(crate) victim: Bundle,
    original: Vec<u8>,
    asks: bool,
    gpus: usize,
    pub(crate) site: Site,
}

/// What happens between the kill and the look at the GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Then {
    /// The engine cleans up, as it does after a create that failed.
    Delete,
    /// Nothing: the ledger itself must find out.
    Nothing,
}

impl Bench {
    pub(crate) fn new(gpus: usize, options: &QuiltOptions, spec: &Spec) -> Result<Self> {
        let site = Site::with(|host| host.gpus(gpus as u64), options)?;
        site.quilt.cli(&["inventory", "refresh"])?.checked()?;
        let rootfs = Rootfs::busybox(site.join("rootfs"))?;
        let others = Spec::new().env("QUILT_GPU_COUNT", "1").args(["sleep", "60"]);
        let runtime = site.quilt.runc(site.join("fleet-runtime"))?;
        let fleet = Fleet::new(runtime, &site.join("bundles"), "c", gpus + 1, &others, &rootfs)?;
        let runtime = site.quilt.runc(site.join("runtime"))?;
        // Without a cgroup's name in the spec the ledger could not tell that nobody is left; another bench's would not do.
        let folder = site.quilt.folder.parent().and_then(Path::file_name).unwrap();
        let cgroup = format!("/{}", folder.display());
        let victim = Bundle::sharing(site.join(VICTIM), &spec.clone().cgroup(&cgroup), &rootfs)?;
        let original = fs::read(victim.config()).unwrap();
        let strace = run(Command::new("strace").arg("--version"), None, LIMIT)?.checked()?.stdout;
        say(format_args!("{}; {}", strace.lines().next().unwrap_or_default(), site.files));
        let asks = spec.json().to_string().contains("QUILT_GPU_COUNT");
        Ok(Self { fleet, runtime, victim, original, asks, gpus, site })
    }

    /// A call about the victim, as an engine makes it.
    pub(crate) fn command(&self, verb: &str) -> Command {
        let mut command = self.runtime.command(VICTIM);
        command.arg(verb);
        if verb == "delete" {
            command.arg("--force");
        } else {
            command.arg("--bundle").arg(&self.victim.path);
        }
        if verb == "create" {
            command.arg("--pid-file").arg(self.victim.path.join("init.pid"));
        }
        command.arg(VICTIM);
        command
    }

    pub(crate) fn call(&self, verb: &str) -> Result<Ran> {
        run(&mut self.command(verb), None, LIMIT)
    }

    /// The same call below strace.
    pub(crate) fn traced(&self, verb: &str, options: &[&str]) -> Result<Ran> {
        let plain = self.command(verb);
        let mut command = Command::new("strace");
        command.args(["-qq", "-o"]).arg(self.trace()).args(options);
        command.arg("--").arg(plain.get_program()).args(plain.get_args());
        command.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
        run(&mut command, None, LIMIT)
    }

    fn trace(&self) -> PathBuf {
        self.site.join("trace")
    }

    pub(crate) fn exists(&self) -> bool {
        self.runtime.root().join(VICTIM).exists()
    }

    /// Back to a node on which nothing was ever started, but for the audit log.
    pub(crate) fn reset(&self) {
        for entry in fs::read_dir(self.site.quilt.state()).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => fs::remove_dir_all(entry.path()).unwrap(),
                // What the node is stays known: a create that looked anew would be another create.
                false if KNOWN.iter().any(|known| entry.file_name() == *known) => {}
                false => fs::remove_file(entry.path()).unwrap(),
            }
        }
        for stray in temporaries(&self.victim.path) {
            fs::remove_file(stray).unwrap();
        }
        fs::write(self.victim.config(), &self.original).unwrap();
    }

    /// How often a call makes each of [`CALLS`], and what it leaves in `config.json`.
    pub(crate) fn count(&self, verb: &str) -> Result<(BTreeMap<String, usize>, Vec<u8>)> {
        self.traced(verb, &["-e", &format!("trace={CALLS}")])?.checked()?;
        let mut counts = BTreeMap::new();
        for line in fs::read_to_string(self.trace()).unwrap().lines() {
            if let Some((name, _)) = line.split_once('(') {
                *counts.entry(name.to_owned()).or_default() += 1;
            }
        }
        Ok((counts, fs::read(self.victim.config()).unwrap()))
    }

    /// Kills a call at its n-th `name` and checks everything that must hold then.
    pub(crate) fn killed_at(&self, verb: &str, name: &str, n: usize, edited: &[u8], then: Then) -> Result<()> {
        let what = format!("{verb}, killed at {name} {n}, then {then:?}");
        let inject = format!("inject={name}:signal=SIGKILL:when={n}");
        let ran = self.traced(verb, &["-e", &format!("trace={name}"), "-e", &inject])?;
        assert_eq!(ran.status.signal(), Some(9), "{what}: {ran:?}");
        if name == "wait4" {
            let_children_go();
        }
        self.whole(&[edited], &what)?;
        self.free_again(&what, then)
    }

    /// Every file is old or new.
    pub(crate) fn whole(&self, edited: &[&[u8]], what: &str) -> Result<()> {
        let config = fs::read(self.victim.config()).unwrap();
        let known = config == self.original || edited.contains(&config.as_slice());
        assert!(known, "{what}: config.json is {}", String::from_utf8_lossy(&config));
        assert!(temporaries(&self.victim.path).len() <= 1, "{what}");
        self.state_is_whole(what);
        let log = self.site.quilt.cli(&["audit", "--verify-log"])?;
        assert!(log.ok(), "{what}: {log:?}");
        Ok(())
    }

    fn state_is_whole(&self, what: &str) {
        let state = self.site.quilt.state();
        for path in files_below(&state) {
            let name = path.strip_prefix(&state).unwrap().to_str().unwrap();
            // What is being written is nobody's file yet.
            if name == "lock" || name == "lock.new" || is_temporary(&path) {
                continue;
            }
            let bytes = fs::read(&path).unwrap();
            let (folder, leaf) = name.split_once('/').unwrap_or(("", name));
            let json = |bytes: &[u8]| -> Value {
                serde_json::from_slice(bytes).unwrap_or_else(|e| panic!("{what}: {name}: {e}: {bytes:?}"))
            };
            match folder {
                "leases" => assert_eq!(json(&bytes)["pci"], leaf.split('@').next().unwrap(), "{what}: {name}"),
                "contracts" => assert!(json(&bytes)["gpus"].is_array(), "{what}: {name}"),
                "originals" => {
                    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
                    assert!(json(&bytes[..end]).is_object(), "{what}: {name}");
                    assert!(bytes[end + 1..] == self.original, "{what}: {name} is not the original");
                }
                _ if leaf == "low-level.json" => assert!(json(&bytes)["id"].is_object(), "{what}"),
                _ if leaf == "inventory.json" => assert!(json(&bytes)["gpus"].is_array(), "{what}"),
                _ if leaf == "history" => {
                    let text = String::from_utf8(bytes).unwrap();
                    assert!(text.ends_with('\n') && text.lines().all(|line| line.contains(' ')), "{what}: {text:?}");
                }
                _ => assert!(leaf.ends_with(".pid"), "{what}: an unknown file {name}"),
            }
        }
    }

    /// All GPUs can be granted, each once; the victim keeps one only while it exists.
    pub(crate) fn free_again(&self, what: &str, then: Then) -> Result<()> {
        if then == Then::Delete {
            self.call("delete")?.checked()?;
            assert!(!self.exists(), "{what}");
            self.drained(what)?;
        }
        let held = usize::from(self.asks && self.exists());
        let winners = self.fleet.create().map_err(|e| Error::new(format!("{what}: {e}")))?;
        if winners.len() != self.gpus - held {
            let leases = self.site.quilt.cli(&["lease", "list", "--format", "json"])?.stdout;
            panic!("{what}: {winners:?} beside {held}: {leases}");
        }
        assert_eq!(self.site.leases_on_disk()?.len(), self.gpus, "{what}");
        if self.asks && !self.exists() {
            // Whoever took its GPU back has put its spec back too.
            self.restored(what);
        }
        self.fleet.delete(&winners.into_values().collect::<Vec<_>>())?;
        self.call("delete")?.checked()?;
        assert!(self.site.leases_on_disk()?.is_empty(), "{what}: {:?}", self.site.leases_on_disk()?);
        for folder in ["contracts", "originals"] {
            assert!(files_below(&self.site.quilt.state().join(folder)).is_empty(), "{what}: {folder}");
        }
        Ok(())
    }

    /// Waits until nothing is leased: a process of a killed runtime's may still be ending, and a lease stays until it has.
    fn drained(&self, what: &str) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while !self.site.leases_on_disk()?.is_empty() {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.site.leases_on_disk()?);
            std::thread::sleep(Duration::from_millis(10));
            self.site.quilt.cli(&["lease", "list"])?.checked()?;
        }
        Ok(())
    }

    /// `config.json` is the tenant's again.
    pub(crate) fn restored(&self, what: &str) {
        assert!(fs::read(self.victim.config()).unwrap() == self.original, "{what}: config.json is still ours");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if self.exists() {
            let _ = self.call("delete");
        }
    }
}

/// A child that dies with its parent is told while the parent ends: it has a moment to go.
pub(crate) fn let_children_go() {
    std::thread::sleep(Duration::from_millis(10));
}

fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy();
    name.starts_with(".quilt-gpu.") && name.ends_with(".tmp")
}

fn temporaries(folder: &Path) -> Vec<PathBuf> {
    files_below(folder).into_iter().filter(|path| is_temporary(path)).collect()
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files_below(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}
