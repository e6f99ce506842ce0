//! What the tests of this crate share: a made-up node, and a made-up machine whose processes live and die as told.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use contract::capability::Capabilities;
use contract::config::Policy;
use contract::gpu::{Gpu, MigMode, Partition};
use contract::inventory::{DeviceNode, Inventory, Role};
use contract::key::Key;
use contract::request::{Places, Request, Source};
use contract::{Contract, Granted, Refusal};
use node::process::Process;
use tempfile::TempDir;

use crate::{Holder, Ledger, Liveness, Recipient, draft};

/// What is true on the made-up machine.
pub(crate) struct Facts0 {
    pub(crate) boot: Result<String, String>,
    pub(crate) seconds: u64,
    pub(crate) alive: BTreeSet<u32>,
    pub(crate) folders: BTreeSet<PathBuf>,
    pub(crate) busy_cgroups: BTreeSet<String>,
    pub(crate) blind: bool,
    pub(crate) namespaces: (u64, u64),
    /// The mount namespace of every process, and who in it has which GPU open.
    pub(crate) mounts: Option<u64>,
    pub(crate) open: Option<(u32, u32)>,
}

#[derive(Clone)]
pub(crate) struct World(Arc<Mutex<Facts0>>);

impl World {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Facts0 {
            boot: Ok("boot-1".into()),
            seconds: 1000,
            alive: BTreeSet::new(),
            folders: BTreeSet::new(),
            busy_cgroups: BTreeSet::new(),
            blind: false,
            namespaces: (1, 2),
            mounts: None,
            open: None,
        })))
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Facts0) -> T) -> T {
        act(&mut self.0.lock().unwrap())
    }
}

impl Liveness for World {
    fn boot_id(&self) -> Result<String, String> {
        self.with(|w| w.boot.clone())
    }

    fn boot_seconds(&self) -> Result<u64, String> {
        self.with(|w| Ok(w.seconds))
    }

    fn is_alive(&self, process: Process) -> bool {
        self.with(|w| w.alive.contains(&process.pid))
    }

    fn namespaces(&self) -> (u64, u64) {
        self.with(|w| w.namespaces)
    }

    fn mounts_among_ours(&self, _: u32) -> Option<u64> {
        self.with(|w| w.mounts)
    }

    fn with_open(&self, mounts: u64, minor: u32) -> Option<u32> {
        self.with(|w| w.open.filter(|(_, open)| w.mounts == Some(mounts) && *open == minor).map(|(pid, _)| pid))
    }

    fn exists(&self, path: &Path) -> Result<bool, String> {
        self.with(|w| if w.blind { Err("blind".into()) } else { Ok(w.folders.contains(path)) })
    }

    fn cgroup_is_empty(&self, cgroup: &str) -> Result<bool, String> {
        self.with(|w| if w.blind { Err("blind".into()) } else { Ok(!w.busy_cgroups.contains(cgroup)) })
    }
}

/// A state folder that only root can write, as contracts need it (`/tmp` is open to all), or any when we are not root.
pub(crate) fn state() -> TempDir {
    tempfile::Builder::new().prefix("quilt-gpu-test-").tempdir_in("/run").or_else(|_| tempfile::tempdir()).unwrap()
}

pub(crate) fn ledger(dir: &TempDir, world: &World) -> Ledger {
    Ledger::open_on(&dir.path().join("state"), Box::new(world.clone())).unwrap()
}

/// Container `id` under `/run/low`, created by process `pid`, which lives from now on.
pub(crate) fn holder(world: &World, id: &str, pid: u32) -> Holder {
    world.with(|w| w.alive.insert(pid));
    Holder {
        key: Key::of("/run/low", id),
        container: id.into(),
        state_root: "/run/low".into(),
        low_level: "/usr/bin/runc".into(),
        cgroup: Some(format!("/box/{id}")),
        pod: None,
        owner: None,
        creator: Process { pid, start: 7 },
    }
}

pub(crate) fn node(name: &str, major: u32, minor: u32, role: Role) -> DeviceNode {
    DeviceNode {
        path: format!("/dev/{name}"),
        host_path: format!("/dev/{name}"),
        major,
        minor,
        mode: 0o666,
        uid: 0,
        gid: 0,
        role,
    }
}

/// GPU number `n`: bus `n + 1`, device minor `n`.
pub(crate) fn gpu(n: u32) -> Gpu {
    Gpu {
        vendor: "nvidia".into(),
        pci: format!("0000:{:02x}:00.0", n + 1),
        index: Some(n),
        uuid: Some(format!("GPU-{:08x}-aaaa-bbbb-cccc-{n:012x}", 0xabcd_0000 + n)),
        minor: Some(n),
        model: Some("NVIDIA A100-SXM4-40GB".into()),
        device_id: "0x20b0".into(),
        driver: Some("nvidia".into()),
        nodes: vec![
            node(&format!("nvidia{n}"), 195, n, Role::Compute),
            node(&format!("dri/renderD{}", 128 + n), 226, 128 + n, Role::Render),
            node(&format!("dri/card{n}"), 226, n, Role::Display),
        ],
        ..Gpu::default()
    }
}

/// Cuts a GPU into instances 7, 8 … of these profiles, with their capability nodes.
pub(crate) fn cut(gpu: &mut Gpu, profiles: &[&str]) {
    let minor = gpu.minor.unwrap();
    gpu.mig = Some(MigMode { enabled: true, pending: true });
    let part = |(index, profile): (u32, &&str)| {
        let gi = index + 7;
        let cap = 3 + 135 * minor + 9 * gi;
        let nodes = [cap, cap + 1].map(|cap| node(&format!("nvidia-caps/nvidia-cap{cap}"), 236, cap, Role::Caps));
        Partition {
            kind: "mig".into(),
            index,
            gi,
            ci: 0,
            profile: (*profile).into(),
            uuid: Some(format!("MIG-{minor:04x}{index:04x}-aaaa-bbbb-cccc-0123456789ab")),
            memory_mb: Some(4864),
            nodes: nodes.to_vec().into(),
            unavailable: None,
        }
    };
    gpu.partitions = (0..).zip(profiles).map(part).collect();
}

/// A node with `n` GPUs, and all control nodes.
pub(crate) fn inventory(n: u32) -> Inventory {
    Inventory {
        schema: contract::inventory::SCHEMA,
        gpus: (0..n).map(gpu).collect(),
        control: vec![
            node("nvidiactl", 195, 255, Role::Control),
            node("nvidia-modeset", 195, 254, Role::Control),
            node("nvidia-uvm", 511, 0, Role::Control),
            node("nvidia-uvm-tools", 511, 1, Role::Control),
        ],
        ..Inventory::default()
    }
}

pub(crate) fn count(count: u32) -> Request {
    Request {
        source: Source::CommandLine,
        count,
        ids: Vec::new(),
        kind: None,
        profile: None,
        capabilities: Capabilities::default(),
        terms: contract::request::Terms::default(),
        places: Places::default(),
    }
}

pub(crate) fn ids(ids: &[&str]) -> Request {
    Request { ids: ids.iter().map(|id| (*id).to_owned()).collect(), ..count(u32::try_from(ids.len()).unwrap()) }
}

pub(crate) fn contract_for(
    inventory: &Inventory,
    gpus: &[Granted],
    request: &Request,
    key: Option<&Key>,
) -> Result<Contract, Refusal> {
    draft(
        inventory,
        gpus,
        request,
        &Policy::default(),
        "00000000000000000000000000000001",
        Recipient { key, owner: None },
        5,
    )
}

pub(crate) fn pcis(gpus: &[Granted]) -> Vec<String> {
    gpus.iter().map(|gpu| gpu.pci.clone()).collect()
}
