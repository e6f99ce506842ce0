//! What `quilt-gpu doctor` looks at. Reads only; what cannot be read is itself a fact.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use contract::config::{Config, Host};
use contract::inventory::{Inventory, SCHEMA};
use ledger::Ledger;
use ledger::audit::{self, Verified};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use shim::Setup;

use crate::audit::string;
use crate::configure::units::{enabled, file, start, value};
use crate::configure::{Files, OnNode};
use crate::install::{self, Status};
use crate::inventory;

/// Everything that is judged.
pub(crate) struct Facts {
    pub(super) host: Host,
    pub(super) root: bool,
    pub(super) config: Config,
    pub(super) config_path: String,
    /// Why the configuration does not count, and what mends it.
    pub(super) config_problem: Option<(String, String)>,
    /// The node as it is.
    pub(super) inventory: Result<Inventory, String>,
    pub(super) inventory_path: String,
    pub(super) stored: Stored,
    pub(super) low_level: Result<PathBuf, String>,
    pub(super) hook: PathBuf,
    pub(super) helper: PathBuf,
    pub(super) state: Folder,
    pub(super) log: Folder,
    /// Contracts that do not hold, by key, and why.
    pub(super) contracts: Result<Vec<(String, String)>, String>,
    pub(super) log_check: Result<Verified, String>,
    /// Whether any container was ever made through us.
    pub(super) used: bool,
    pub(super) last_record: Option<String>,
    pub(super) now: String,
    pub(super) engines: Vec<Engine>,
    /// What an installer put here.
    pub(super) installed: Result<Option<Status>, String>,
    /// The digest of each program of ours that engines are told to run, by its path.
    pub(super) told: Vec<(String, String)>,
    /// Files by which others bring GPUs into containers.
    pub(super) injectors: Vec<String>,
    /// Units of ours that lie here, where systemd runs.
    pub(super) units: Vec<Unit>,
    /// Labels that kubelet gives this node, by the file that tells.
    pub(super) labels: Vec<(String, String)>,
    pub(super) cgroup_devices: bool,
    pub(super) selinux_enforcing: bool,
    /// A profile that confines one of us.
    pub(super) apparmor: Option<String>,
}

/// What is stored of the node.
pub(super) enum Stored {
    Missing,
    Bad(String),
    There(Box<Inventory>),
}

/// A folder of ours.
#[derive(Default)]
pub(super) struct Folder {
    pub(super) path: String,
    pub(super) is_there: bool,
    pub(super) is_dir: bool,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) is_tmpfs: bool,
    pub(super) free: u64,
}

/// A unit of systemd's.
pub(super) struct Unit {
    pub(super) name: String,
    /// Its file.
    pub(super) path: String,
    pub(super) enabled: bool,
    /// What it starts.
    pub(super) program: Option<String>,
}

/// An engine that is installed.
pub(super) struct Engine {
    pub(super) name: &'static str,
    /// Its configuration files that are there, or the first that would be.
    pub(super) places: Vec<String>,
    /// All that stands in them.
    pub(super) text: String,
    /// Programs of ours that it names.
    pub(super) programs: Vec<String>,
    /// What it wrote of its own template before the template named us.
    pub(super) unread: Option<String>,
}

/// Engines: a program that tells that it is there, and where its configuration lies; a folder means all files in it.
const ENGINES: [(&str, &str, &[&str]); 7] = [
    ("docker", "dockerd", &["etc/docker/daemon.json"]),
    ("containerd", "containerd", &["etc/containerd/config.toml", "etc/containerd/conf.d"]),
    ("crio", "crio", &["etc/crio/crio.conf", "etc/crio/crio.conf.d"]),
    ("podman", "podman", &["etc/containers/containers.conf", "etc/containers/containers.conf.d"]),
    ("k3s", "k3s", &["var/lib/rancher/k3s/agent/etc/containerd"]),
    ("rke2", "rke2", &["var/lib/rancher/rke2/agent/etc/containerd"]),
    (
        "microk8s",
        "microk8s",
        &["var/snap/microk8s/current/args/containerd-template.toml", "var/snap/microk8s/current/args/containerd.toml"],
    ),
];
const FOLDERS: [&str; 4] = ["usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin"];
/// Where other injectors have their files, and the word that tells one.
const INJECTORS: [(&str, &str); 4] = [
    ("etc/cdi", "nvidia.com/"),
    ("var/run/cdi", "nvidia.com/"),
    ("usr/share/containers/oci/hooks.d", "nvidia"),
    ("etc/containers/oci/hooks.d", "nvidia"),
];
/// Units of ours that a boot or a user waits for, and their kinds. Whether the one for CDI runs is the operator's to say.
const UNITS: [(&str, &str); 2] = [("quilt-gpu-inventory", "service"), ("quilt-gpu-broker", "socket")];
/// Most bytes of a file that are read.
const MOST: u64 = 1 << 20;
/// The same of an inventory: a large node's with all libraries is a tenth of it.
const MOST_INVENTORY: usize = 8 << 20;

impl Facts {
    /// Looks at everything.
    pub(crate) fn gather(setup: &Setup) -> Self {
        let host = setup.config.host.clone();
        let at = |path: &str| PathBuf::from(host.path(path));
        let (mut used, mut last_record) = (false, None);
        let _ = audit::read(setup.log_dir(), |entry| {
            used |= string(entry, "kind") == "create";
            last_record = Some(string(entry, "time").to_owned());
            false
        });
        let mounts = read(&at("proc/mounts")).unwrap_or_default();
        let profiles = read(&at("sys/kernel/security/apparmor/profiles")).unwrap_or_default();
        let confined =
            |line: &&str| line.ends_with("(enforce)") && ["quilt-gpu", "runc", "crun"].iter().any(|n| line.contains(n));
        let engines: Vec<Engine> =
            ENGINES.iter().filter_map(|(name, program, places)| engine(&host, name, program, places)).collect();
        let digest = |path: &String| {
            let bytes = fs::read(host.path(path.trim_start_matches('/'))).ok()?;
            Some((path.clone(), contract::key::sha256(&bytes)))
        };
        let mut told: Vec<(String, String)> =
            engines.iter().flat_map(|engine| &engine.programs).filter_map(digest).collect();
        told.sort_unstable();
        told.dedup();
        Self {
            root: nix::unistd::geteuid().is_root(),
            config: setup.config.clone(),
            config_path: setup.path.display().to_string(),
            config_problem: setup.problem.as_ref().map(|problem| (problem.message.clone(), problem.help.clone())),
            inventory: inventory::discover(&host),
            inventory_path: setup.state_dir().join(shim::INVENTORY).display().to_string(),
            stored: stored(setup),
            low_level: setup.low_level().map_err(|refusal| refusal.message),
            hook: setup.hook(),
            helper: setup.helper(),
            state: folder(setup.state_dir()),
            log: folder(setup.log_dir()),
            contracts: contracts(setup),
            log_check: audit::verify(setup.log_dir()).map_err(|error| error.to_string()),
            used,
            last_record,
            now: node::rfc3339(node::now()),
            engines,
            installed: install::status(&host.root).map_err(|failure| failure.to_string()),
            told,
            injectors: INJECTORS.iter().flat_map(|(folder, word)| files_with(&at(folder), word)).collect(),
            units: units(&host),
            labels: labels(&at("proc")),
            cgroup_devices: mounts.lines().any(|line| {
                let mut words = line.split(' ').skip(2);
                let (kind, options) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                kind == "cgroup2" || kind == "cgroup" && options.split(',').any(|option| option == "devices")
            }),
            selinux_enforcing: read(&at("sys/fs/selinux/enforce")).is_some_and(|text| text.trim() == "1"),
            apparmor: profiles.lines().find(confined).map(str::to_owned),
            host,
        }
    }

    /// Whether a path of the node is there.
    pub(super) fn exists(&self, path: &str) -> bool {
        Path::new(&self.host.path(path.trim_start_matches('/'))).exists()
    }
}

fn stored(setup: &Setup) -> Stored {
    let bytes = match node::read_trusted(&setup.state_dir().join(shim::INVENTORY), MOST_INVENTORY) {
        Ok(file) => file.bytes,
        Err(node::TrustError::Missing(_)) => return Stored::Missing,
        Err(error) => return Stored::Bad(error.to_string()),
    };
    match contract::read::document::<Inventory>(&bytes) {
        Ok(inventory) if inventory.schema == SCHEMA => Stored::There(Box::new(inventory)),
        Ok(inventory) => Stored::Bad(format!("it has layout {}, this version knows {SCHEMA}", inventory.schema)),
        Err(error) => Stored::Bad(error.to_string()),
    }
}

fn contracts(setup: &Setup) -> Result<Vec<(String, String)>, String> {
    let Some(ledger) = Ledger::open_existing(setup.state_dir()) else { return Ok(Vec::new()) };
    let filed = ledger.contracts().map_err(|error| error.to_string())?;
    let wrong = |(key, contract): ledger::Filed| {
        let refusal = contract.and_then(|contract| shim::trusted(&contract, setup)).err()?;
        Some((key.to_string(), refusal.to_string()))
    };
    Ok(filed.into_iter().filter_map(wrong).collect())
}

fn folder(path: &Path) -> Folder {
    let text = path.display().to_string();
    let Ok(meta) = fs::metadata(path) else { return Folder { path: text, ..Folder::default() } };
    let system = statfs(path).ok();
    Folder {
        path: text,
        is_there: true,
        is_dir: meta.is_dir(),
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        is_tmpfs: system.is_some_and(|system| system.filesystem_type() == TMPFS_MAGIC),
        free: system.map_or(u64::MAX, |system| {
            system.blocks_available().saturating_mul(u64::try_from(system.block_size()).unwrap_or(1))
        }),
    }
}

/// A text file, when it is there and of a size that somebody wrote.
fn read(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// A file, or the files of a folder.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let mut list: Vec<PathBuf> = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    list.retain(|path| path.is_file());
    list.sort_unstable();
    list
}

fn files_with(folder: &Path, word: &str) -> Vec<String> {
    let mut list = files(folder);
    list.retain(|path| path.to_string_lossy().contains(word) || read(path).is_some_and(|text| text.contains(word)));
    list.iter().map(|path| path.display().to_string()).collect()
}

/// What a unit's state was systemd alone knows; what it is to start stands on the disk.
fn units(host: &Host) -> Vec<Unit> {
    let node = OnNode::below(&host.root);
    if !node.exists("/run/systemd/system") {
        return Vec::new();
    }
    let unit = |(name, kind): &(&str, &str)| {
        let (whole, program) = (format!("{name}.{kind}"), start(&node, name).into_iter().next());
        Some(Unit { path: file(&node, &whole)?, enabled: enabled(&node, &whole), name: whole, program })
    };
    UNITS.iter().filter_map(unit).collect()
}

/// Labels in a kubelet's command line, which is the only file of the node's that has any.
fn labels(processes: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(processes).into_iter().flatten().flatten();
    let lines = entries.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    let labels = lines.flat_map(|entry| {
        let path = entry.path().join("cmdline");
        let line = read(&path).unwrap_or_default();
        let words: Vec<String> = line.split('\0').map(str::to_owned).collect();
        let is_kubelet = words.first().is_some_and(|word| word.rsplit('/').next() == Some("kubelet"));
        let labels = value(&words, &["--node-labels"]).filter(|_| is_kubelet).unwrap_or_default();
        let place = path.display().to_string();
        labels.split(',').map(|label| (place.clone(), label.to_owned())).collect::<Vec<_>>()
    });
    labels.collect()
}

fn engine(host: &Host, name: &'static str, program: &str, places: &[&str]) -> Option<Engine> {
    let at = |path: &str| PathBuf::from(host.path(path));
    let found: Vec<PathBuf> = places.iter().flat_map(|place| files(&at(place))).collect();
    if found.is_empty() && !FOLDERS.iter().any(|folder| at(&format!("{folder}/{program}")).exists()) {
        return None;
    }
    // What a comment says is not set.
    let code = |text: String| {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        lines.collect::<Vec<_>>().join("\n")
    };
    let texts: Vec<String> = found.iter().map(|path| code(read(path).unwrap_or_default())).collect();
    let text = texts.join("\n");
    let is_template =
        |path: &Path| path.to_string_lossy().ends_with(".tmpl") || path.ends_with("containerd-template.toml");
    let told = |template| {
        let of_kind = found.iter().zip(&texts).filter(move |(path, _)| is_template(path) == template);
        of_kind.map(|(path, text)| (path, text.contains("quilt-gpu")))
    };
    let written = told(false).find(|(_, knows)| !knows).map(|(path, _)| path.display().to_string());
    let unread = written.filter(|_| told(true).any(|(_, knows)| knows));
    let words = text.split(|c: char| c.is_whitespace() || "\"'[],=".contains(c));
    let programs = words.filter(|word| word.starts_with('/') && word.contains("quilt-gpu-runtime")).map(str::to_owned);
    let programs = programs.collect();
    let mut shown: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
    if shown.is_empty() {
        shown.extend(places.first().map(|place| host.path(place)));
    }
    Some(Engine { name, places: shown, text, programs, unread })
}
