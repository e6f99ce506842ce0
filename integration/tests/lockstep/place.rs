//! The real node below the model: a fixture host, an installation over the stub, containers with a process each. It does
//! what it is told and reads what is there; what must be true is not its business.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use integration::{
    Binaries, Change, DriverFiles, Error, FakeHost, NodeState, Quilt, QuiltOptions, Ran, Result, Runc, Scratch,
};
use integration::{Layout, Spec, run};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde_json::Value;

use crate::model::{Grant, VERSIONS, is_owned};
use crate::random::{CONTAINERS, GPUS};
use crate::truth::Files;

const STUB: &str = env!("CARGO_BIN_EXE_quilt-stub");
const LIMIT: Duration = Duration::from_secs(30);
/// Stands in the spec where the request belongs.
const REQUEST: &str = "QUILT_GPU_REQUEST=";

pub(crate) struct Place {
    pub(crate) containers: Vec<Container>,
    host: FakeHost,
    pub(crate) quilt: Quilt,
    /// Where the containers of one owner are, and where the others'.
    runtimes: [Runc; 2],
    spare: Option<Process>,
    began: NodeState,
    now: NodeState,
    scratch: Scratch,
}

/// A bundle, and the process that its container would have.
pub(crate) struct Container {
    pub(crate) id: String,
    bundle: PathBuf,
    template: String,
    /// What the tenant wrote.
    pub(crate) original: String,
    group: PathBuf,
    process: Option<Process>,
}

/// A process that waits, and is gone with this value.
struct Process(Child);

impl Process {
    fn start() -> Result<Self> {
        let mut sleep = Command::new("/bin/sleep");
        let child = sleep.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        child.map(Self).map_err(|cause| Error::new(format!("cannot start sleep: {cause}")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Place {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let scratch = Scratch::new()?;
        set_child_subreaper(true).map_err(|cause| Error::new(format!("cannot adopt orphans: {cause}")))?;
        // What is made and removed here by the thousand waits for no disk.
        let at = scratch.path();
        mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))
            .map_err(|cause| told("mount", at, cause))?;
        let [loaded, other] = VERSIONS.map(DriverFiles::stand_in);
        let builder = FakeHost::builder(scratch.join("host")).gpus(GPUS);
        let host = builder.stale(&other?).driver(&loaded?).build()?;
        let root = |name: &str| scratch.join(name).join("root");
        let more = format!(
            "[request]\nmax_wait_seconds = 60\nreservation_seconds = 3600\n[[owners]]\nname = \"red\"\nstate_root = {:?}\n",
            root("red")
        );
        let options = QuiltOptions { verify: false, low_level: vec![STUB.into()], more };
        let quilt = Quilt::install(scratch.join("quilt"), &host, &Binaries::locate()?, &options)?;
        let runtimes = [quilt.runc(scratch.join("red"))?, quilt.runc(scratch.join("nobody"))?];
        if runtimes[0].root() != root("red") {
            return Err(Error::new(format!("containers are in {}", runtimes[0].root().display())));
        }
        let hierarchy = hierarchy()?;
        let container = |n: u64| Container::new(n, &scratch, &hierarchy, &format!("quilt-gpu-lockstep-{name}-c{n}"));
        let containers = (0..CONTAINERS).map(container).collect::<Result<_>>()?;
        let began = host.state(VERSIONS[0]);
        Ok(Self { containers, host, quilt, runtimes, spare: None, now: began.clone(), began, scratch })
    }

    /// As it was before anything happened; the node's state is the model's beginning.
    pub(crate) fn reset(&mut self) -> Result<NodeState> {
        for container in &mut self.containers {
            container.process = None;
            container.original = String::new();
        }
        let [red, nobody] = &self.runtimes;
        for folder in [self.quilt.state(), self.quilt.folder.join("log"), red.root(), nobody.root()] {
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).map_err(|cause| told("create", &folder, cause))?;
        }
        let began = self.began.clone();
        self.drafted(&began)?.map_or(Ok(()), Change::apply)?;
        Ok(began)
    }

    /// The node is about to become another; nothing where it stays what it is.
    pub(crate) fn drafted(&mut self, node: &NodeState) -> Result<Option<Change>> {
        if *node == self.now {
            return Ok(None);
        }
        self.now = node.clone();
        self.host.draft(node).map(Some)
    }

    fn container(&self, c: u64) -> &Container {
        &self.containers[c as usize]
    }

    pub(crate) fn config(&self, c: u64) -> PathBuf {
        self.container(c).bundle.join("config.json")
    }

    /// Whether the low-level runtime knows it.
    pub(crate) fn is_known(&self, c: u64) -> bool {
        self.folder(c).exists()
    }

    fn runtime(&self, c: u64) -> &Runc {
        &self.runtimes[usize::from(!is_owned(c))]
    }

    fn folder(&self, c: u64) -> PathBuf {
        self.runtime(c).root().join(&self.container(c).id)
    }

    /// What the node's agent asks: `contract prepare`.
    pub(crate) fn reserve(&self, many: u64) -> Result<Ran> {
        let request = self.scratch.join("request.json");
        let document = format!(r#"{{"name":"job","image":"i","gpu_count":{many},"command":["x"]}}"#);
        fs::write(&request, document).map_err(|cause| told("write", &request, cause))?;
        self.quilt.cli(&["contract", "prepare", "--request", &request.to_string_lossy()])
    }

    /// Whether a token can still be used.
    pub(crate) fn is_promised(&self, token: &str) -> bool {
        self.quilt.state().join(format!("reservations/{token}.json")).exists()
    }

    /// The processes that stand in the queue.
    pub(crate) fn queue(&self) -> Vec<u64> {
        let folder = self.quilt.state().join("leases");
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let tickets = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("wait-"));
        tickets.filter_map(|entry| read_json(&entry.path()).ok()?["holder"]["container"]["pid"].as_u64()).collect()
    }

    /// Whether its process runs.
    pub(crate) fn runs(&self, c: u64) -> bool {
        self.container(c).process.is_some()
    }

    /// An engine writes a bundle; the same request is a second start of the one that is there.
    pub(crate) fn ask(&mut self, c: u64, words: &str) -> Result<()> {
        let config = self.config(c);
        let container = &mut self.containers[c as usize];
        let original = container.template.replace(REQUEST, words);
        if container.original == original {
            return Ok(());
        }
        fs::write(&config, &original).map_err(|cause| told("write", &config, cause))?;
        container.original = original;
        Ok(())
    }

    /// A create, with a process at hand for the container.
    pub(crate) fn create(&mut self, c: u64) -> Result<Command> {
        let spare = match self.spare.take() {
            Some(spare) => spare,
            None => Process::start()?,
        };
        let container = self.container(c);
        let mut command = self.runtime(c).command(&container.id);
        command.arg("create").arg("--bundle").arg(&container.bundle);
        command.arg("--pid-file").arg(container.bundle.join("init.pid")).arg(&container.id);
        command.env("QUILT_STUB_INIT", spare.0.id().to_string()).env("QUILT_STUB_CGROUP", &container.group);
        self.spare = Some(spare);
        Ok(command)
    }

    /// The process of a create that came to something is its container's.
    pub(crate) fn adopt(&mut self, c: u64) -> Result<()> {
        let procs = self.container(c).group.join("cgroup.procs");
        let inside = fs::read_to_string(&procs).map_err(|cause| told("read", &procs, cause))?;
        let of_spare = self.spare.as_ref().map(|spare| spare.0.id().to_string());
        if of_spare.is_some_and(|pid| inside.lines().any(|line| line == pid)) {
            self.containers[c as usize].process = self.spare.take();
        }
        Ok(())
    }

    pub(crate) fn delete(&self, c: u64) -> Command {
        let id = &self.container(c).id;
        let mut command = self.runtime(c).command(id);
        command.args(["delete", "--force", id]);
        command
    }

    pub(crate) fn end_process(&mut self, c: u64) {
        self.containers[c as usize].process = None;
    }

    pub(crate) fn forget(&self, c: u64) {
        let _ = fs::remove_dir(self.folder(c));
    }

    fn libraries(&self) -> PathBuf {
        self.host.root.join(Layout::Debian.library_folder())
    }

    /// What the files of this driver version are: inode, and the nanoseconds of the last change.
    pub(crate) fn files(&self, version: &str) -> Result<Files> {
        let folder = self.libraries();
        let mut files = Files::new();
        for entry in fs::read_dir(&folder).map_err(|cause| told("list", &folder, cause))?.flatten() {
            if entry.file_name().to_string_lossy().ends_with(version) {
                let facts = entry.metadata().map_err(|cause| told("look at", &entry.path(), cause))?;
                files.insert(entry.path().to_string_lossy().into_owned(), (facts.ino(), facts.ctime_nsec()));
            }
        }
        Ok(files)
    }

    /// Replaces a library by a copy.
    pub(crate) fn replace_library(&self, version: &str) -> Result<()> {
        let (path, draft) = (self.libraries().join(format!("libcuda.so.{version}")), self.scratch.join("libcuda"));
        let copied = fs::copy(&path, &draft).and_then(|_| fs::rename(&draft, &path));
        copied.map_err(|cause| told("replace", &path, cause))
    }

    /// The leases on disk by the container that they name. Those of a deleted one count where it has no others: it may have
    /// been made anew before anybody looked whether the processes of its former life have ended.
    pub(crate) fn leases(&self) -> Result<BTreeMap<String, BTreeSet<Grant>>> {
        let [mut leases, draining] = self.leases_by_kind()?;
        for (holder, grants) in draining {
            leases.entry(holder).or_insert(grants);
        }
        Ok(leases)
    }

    /// The same: of containers, and of deleted ones.
    pub(crate) fn leases_by_kind(&self) -> Result<[BTreeMap<String, BTreeSet<Grant>>; 2]> {
        let folder = self.quilt.state().join("leases");
        let mut leases = [BTreeMap::new(), BTreeMap::new()];
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().contains('@') {
                let lease = read_json(&entry.path())?;
                if lease["holder"]["reservation"].is_object() {
                    continue;
                }
                let (holder, grant) = lease_of(&lease)?;
                let deleted = usize::from(lease["holder"]["container"].is_null());
                leases[deleted].entry(holder).or_insert_with(BTreeSet::new).insert(grant);
            }
        }
        Ok(leases)
    }

    /// The contract of a container: the file that bears its key.
    pub(crate) fn contract(&self, c: u64) -> Result<Value> {
        let folder = self.quilt.state().join("leases");
        let id = &self.container(c).id;
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some((_, key)) = name.split_once('@')
                && read_json(&entry.path())?["holder"]["container"]["container"] == id.as_str()
            {
                return read_json(&self.quilt.state().join("contracts").join(format!("{key}.json")));
            }
        }
        Err(Error::new(format!("{id} has no lease")))
    }
}

impl Container {
    fn new(n: u64, scratch: &Scratch, hierarchy: &Path, cgroup: &str) -> Result<Self> {
        let bundle = scratch.join(format!("c{n}"));
        let group = hierarchy.join(cgroup);
        for folder in [&bundle.join("rootfs"), &group] {
            fs::create_dir_all(folder).map_err(|cause| told("create", folder, cause))?;
        }
        let spec = Spec::new().env("QUILT_GPU_REQUEST", "").args(["sleep", "60"]).cgroup(&format!("/{cgroup}"));
        let (id, template) = (format!("c{n}"), spec.json().to_string());
        Ok(Self { id, bundle, template, original: String::new(), group, process: None })
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.process = None;
        if fs::remove_dir(&self.group).is_err() {
            // The kernel needs a moment to let go of the last process.
            std::thread::sleep(Duration::from_millis(20));
            let _ = fs::remove_dir(&self.group);
        }
    }
}

/// Runs a call to its end.
pub(crate) fn whole(command: &mut Command) -> Result<Ran> {
    run(command, None, LIMIT)
}

/// Starts a call, does something after this time, and waits for its end: status and what it said.
pub(crate) fn meanwhile(
    mut command: Command,
    after: Duration,
    then: impl FnOnce(&mut Child) -> Result<()>,
) -> Result<(Option<i32>, String)> {
    let words = tempfile::NamedTempFile::new().map_err(|cause| Error::new(format!("temporary file: {cause}")))?;
    let stderr = words.reopen().map_err(|cause| told("open", words.path(), cause))?;
    // A group of its own, by which its children are found.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    let mut child = command.spawn().map_err(|cause| Error::new(format!("cannot start {command:?}: {cause}")))?;
    std::thread::sleep(after);
    let done = then(&mut child);
    let status = child.wait().map_err(|cause| Error::new(format!("cannot wait for {command:?}: {cause}")))?;
    gone(child.id())?;
    done?;
    let said = fs::read_to_string(words.path()).map_err(|cause| told("read", words.path(), cause))?;
    Ok((status.code(), said))
}

/// Waits for everybody of this process group: children of a killed runtime's are told while it ends, and become ours.
fn gone(leader: u32) -> Result<()> {
    let group = Pid::from_raw(-i32::try_from(leader).unwrap_or(i32::MAX));
    loop {
        match waitpid(group, None) {
            Err(Errno::ECHILD) => return Ok(()),
            Err(cause) => return Err(Error::new(format!("cannot wait for children of {leader}: {cause}"))),
            Ok(_) => {}
        }
    }
}

/// The holder that a lease names, and what it holds.
fn lease_of(lease: &Value) -> Result<(String, Grant)> {
    let holder = ["container", "draining"].iter().find_map(|kind| lease["holder"][kind]["container"].as_str());
    let part = &lease["partition"];
    let part = part["gi"].as_u64().zip(part["ci"].as_u64());
    match (holder, lease["pci"].as_str(), lease["minor"].as_u64()) {
        (Some(holder), Some(pci), Some(minor)) => Ok((holder.into(), Grant { pci: pci.into(), minor, part })),
        _ => Err(Error::new(format!("no lease of a container: {lease}"))),
    }
}

pub(crate) fn read_json(path: &Path) -> Result<Value> {
    let bytes = fs::read(path).map_err(|cause| told("read", path, cause))?;
    serde_json::from_slice(&bytes).map_err(|cause| told("parse", path, cause))
}

fn told(what: &str, path: &Path, cause: impl std::fmt::Display) -> Error {
    Error::new(format!("cannot {what} {}: {cause}", path.display()))
}

/// A mounted hierarchy of control groups in which groups can be made.
fn hierarchy() -> Result<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = table.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((PathBuf::from(words.next()?), words.next()?, words.next()?))
    });
    // Of version 1 the pids controller: groups of others need settings before a process may enter.
    let fit = |(_, fs, options): &(PathBuf, &str, &str)| *fs == "cgroup2" || options.split(',').any(|o| o == "pids");
    let mut found: Vec<_> = mounts.filter(|mount| mount.1.starts_with("cgroup") && fit(mount)).collect();
    found.sort_by_key(|(_, fs, _)| *fs);
    found.into_iter().next().map(|(path, ..)| path).ok_or_else(|| Error::new("no control groups are mounted"))
}
