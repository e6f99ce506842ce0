//! The operator's configuration, `/etc/quilt-gpu/config.toml`, as types with defaults.

mod audit;
mod broker;
mod table;

use toml::de::DeTable;

use crate::capability::Capabilities;
use crate::cuda;
use crate::exception::{Exceptions, GuardedCapability};
use crate::json::Node;
use crate::owner::{Capacity, Internal, Owner, Tables, names_a_kind};
use crate::read::{FromJson, ReadError, Settings};
use crate::{settings, word};
pub use audit::{AuditPolicy, FileMode, Unwritable};
pub use broker::Broker;
use table::{before_the_line, line_of, table_node};

/// Where the configuration lies unless the engine's environment says otherwise.
pub const DEFAULT_PATH: &str = "/etc/quilt-gpu/config.toml";
/// Environment variable of the engine that names another configuration file.
pub const PATH_VARIABLE: &str = "QUILT_GPU_CONFIG";
/// Name of the link beside the configuration file that names the low-level runtime for verbs that are not ours.
pub const LOW_LEVEL_LINK: &str = "low-level-runtime";

/// The whole file. Every key has a default; an unknown key is an error.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// Where our own files lie.
    pub paths: Paths,
    /// Where the node's files lie.
    pub host: Host,
    /// What is allowed.
    pub policy: Policy,
    /// Which words count as a request.
    pub request: RequestPolicy,
    /// The low-level runtimes.
    pub runtime: Runtime,
    /// How decisions are recorded.
    pub audit: AuditPolicy,
    /// How users without root come by GPUs.
    pub broker: Broker,
    /// What the node is said to have.
    pub capacity: Capacity,
    /// Exceptions, one `[[allow]]` table each.
    pub allow: Exceptions,
    /// Whose workloads are, one `[[owners]]` table each.
    pub owners: Tables<Owner>,
    /// GPUs that are kept for some, one `[[internal]]` table each.
    pub internal: Tables<Internal>,
}

/// `[paths]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// Inventory, leases and contracts; best on a tmpfs.
    pub state_dir: String,
    /// The audit log.
    pub log_dir: String,
    /// The `quilt-gpu` program; empty means: beside the running program, else `/usr/bin/quilt-gpu`.
    pub helper: String,
    /// The `quilt-gpu-hook` program; empty means: beside the running program.
    pub hook: String,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            state_dir: "/run/quilt-gpu".into(),
            log_dir: "/var/log/quilt-gpu".into(),
            helper: String::new(),
            hook: String::new(),
        }
    }
}

/// `[host]`: the whole node under another root, for driver containers and tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Where `/proc`, `/sys` of the node are.
    pub root: String,
    /// Where the driver's libraries and programs are; empty means `root`.
    pub driver_root: String,
    /// The folder that holds `nvidia0` and the like; empty means `dev` under `root`.
    pub dev_root: String,
    /// Folders in the driver's root that are searched for its libraries before all others, by absolute path there.
    pub driver_folders: Vec<String>,
    /// `auto` or `off`.
    pub nvml: Nvml,
}

/// Whether the driver's own libraries and programs are asked about the GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Nvml {
    /// NVML where it can be loaded, else `nvidia-smi`; only while the driver is loaded.
    #[default]
    Auto,
    /// Neither: only what the kernel shows counts.
    Off,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            root: "/".into(),
            driver_root: String::new(),
            dev_root: String::new(),
            driver_folders: Vec::new(),
            nvml: Nvml::default(),
        }
    }
}

impl Host {
    /// The root with the driver's files.
    #[must_use]
    pub fn driver_root(&self) -> &str {
        if self.driver_root.is_empty() { &self.root } else { &self.driver_root }
    }

    /// The folder with the device nodes.
    #[must_use]
    pub fn dev_root(&self) -> String {
        if self.dev_root.is_empty() { under(&self.root, "dev") } else { self.dev_root.clone() }
    }

    /// A path of the node: `path` is relative.
    #[must_use]
    pub fn path(&self, path: &str) -> String {
        under(&self.root, path)
    }
}

fn under(root: &str, path: &str) -> String {
    format!("{}/{path}", root.trim_end_matches('/'))
}

/// How strict the guard is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// Refuses roads to GPUs, leaves everything else alone.
    #[default]
    Standard,
    /// Also refuses what could weaken the boundary.
    Hardened,
}

/// Whether the created container is checked against its contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// Before anything of the tenant's runs.
    #[default]
    Always,
    /// Never: for benchmarks and crash tests only.
    Off,
}

/// What `CUDA_VISIBLE_DEVICES` is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CudaVisibleDevices {
    /// `0..n-1`: only granted GPUs are visible anyway.
    #[default]
    Index,
    /// The GPUs' UUIDs.
    Uuid,
    /// Left as the image has it.
    Unset,
}

/// `[policy]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// `standard` or `hardened`.
    pub profile: Profile,
    /// `always` or `off`.
    pub verify: Verify,
    /// Ceiling of driver capabilities, as a comma list.
    pub capabilities: CapabilityList,
    /// `index`, `uuid` or `unset`.
    pub cuda_visible_devices: CudaVisibleDevices,
    /// `warn`, `refuse` or `off`: what an image means whose CUDA does not run here.
    pub cuda: cuda::Policy,
    /// Whether `restore` of a container with GPUs may pass.
    pub allow_restore: bool,
    /// Named exceptions, by absolute mount source that may be bound although it is the host's `/dev`.
    pub allow_dev_mounts: Vec<String>,
    /// Programs that hooks may run where the profile is `hardened`, by absolute path.
    pub allow_hooks: Vec<String>,
    /// CDI kinds of other devices that a container's annotations may name.
    pub allow_cdi: Vec<String>,
    /// Capabilities that the profile `hardened` leaves alone.
    pub allow_capabilities: Vec<GuardedCapability>,
    /// Whether containers with GPUs get the firmware files.
    pub firmware: bool,
    /// Whose sockets they get.
    pub sockets: Vec<Socket>,
    /// Whether the helper makes device nodes that the driver has and `/dev` lacks.
    pub make_nodes: bool,
    /// Whether containers with GPUs see the folders of others in `/proc/driver/nvidia` and `/sys`.
    pub show_other_gpus: bool,
    /// Whether a container is refused whose user would need the group of a device node, and gets it otherwise.
    pub refuse_device_groups: bool,
    /// What becomes of GPUs that processes outside leases hold open: `skip` or `warn`.
    pub busy: Busy,
    /// Owners whose containers with GPUs may make and remove MIG instances.
    pub mig_config: Vec<String>,
    /// Owners whose containers with GPUs may watch all MIG instances.
    pub mig_monitor: Vec<String>,
}

/// A daemon of the driver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Socket {
    /// nvidia-persistenced.
    Persistenced,
    /// nv-fabricmanager.
    Fabricmanager,
    /// The Multi-Process Service.
    Mps,
}

/// What becomes of a GPU that is in use without a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Busy {
    /// It is not granted.
    #[default]
    Skip,
    /// A finding names it.
    Warn,
}

/// A comma list of capabilities in the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CapabilityList(pub Capabilities);

impl FromJson for CapabilityList {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        let list = node.as_str().ok_or_else(|| ReadError::new("it must be a comma list in quotes"))?;
        Capabilities::parse(list).map(Self).map_err(|refusal| ReadError::new(refusal.to_string()))
    }
}

/// How `NVIDIA_VISIBLE_DEVICES` is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NvidiaVisibleDevices {
    /// Never a request.
    #[default]
    Ignore,
    /// A request outside pods, where no word of ours is one.
    Honour,
}

/// What asking for all GPUs means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum All {
    /// Those that are free.
    #[default]
    Free,
    /// A refusal.
    Refuse,
}

/// Whether what NVIDIA's device plugin hands on in a pod is a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DevicePlugin {
    /// It is not.
    #[default]
    Ignore,
    /// It is: an image can say the same.
    Trusted,
}

/// What NVIDIA's hook in a spec means, which Docker puts there for `--gpus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DockerGpus {
    /// Another injector.
    #[default]
    Refuse,
    /// A request: the hook goes.
    Request,
}

/// `[request]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestPolicy {
    /// Whether `QUILT_GPU_…` in the environment is a request (outside CRI; it cannot be told from an image's).
    pub environment: bool,
    /// Most GPUs that one request may have; 0 means no ceiling.
    pub max_per_container: u32,
    /// Most GPUs that the containers of one owner may have together; 0 means no ceiling.
    pub max_per_owner: u32,
    /// Most seconds that a request may wait for GPUs; with 0 nobody waits.
    pub max_wait_seconds: u64,
    /// `ignore` or `honour`.
    pub nvidia_visible_devices: NvidiaVisibleDevices,
    /// Variables of Docker Swarm that stand for it, `DOCKER_RESOURCE_GPU`.
    pub swarm_resources: Vec<String>,
    /// `free` or `refuse`: what `all` means where names of CDI or of this variable are a request.
    pub all: All,
    /// `ignore` or `trusted`.
    pub device_plugin: DevicePlugin,
    /// CDI kinds beside our own whose names are a request where an annotation has them.
    pub cdi_kinds: Vec<String>,
    /// `refuse` or `request`.
    pub docker_gpus: DockerGpus,
    /// Seconds that a reservation is kept for its container.
    pub reservation_seconds: u64,
    /// The same for a container of a pod, between its restarts too.
    pub pod_reservation_seconds: u64,
}

impl Default for RequestPolicy {
    fn default() -> Self {
        Self {
            environment: true,
            max_per_container: 0,
            max_per_owner: 0,
            max_wait_seconds: 0,
            nvidia_visible_devices: NvidiaVisibleDevices::Ignore,
            swarm_resources: Vec::new(),
            all: All::Free,
            device_plugin: DevicePlugin::Ignore,
            cdi_kinds: Vec::new(),
            docker_gpus: DockerGpus::Refuse,
            reservation_seconds: 60,
            pod_reservation_seconds: 600,
        }
    }
}

/// `[runtime]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Runtime {
    /// Candidates in order; a name without `/` is looked up in the standard folders. Empty: what [`LOW_LEVEL_LINK`] names.
    pub low_level: Vec<String>,
}

settings!(tables Config { paths, host, policy, request, runtime, audit, broker, capacity, allow, owners, internal });
settings!(Paths { state_dir, log_dir, helper, hook });
settings!(Host { root, driver_root, dev_root, driver_folders, nvml });
settings!(Policy {
    profile,
    verify,
    capabilities,
    cuda_visible_devices,
    cuda,
    allow_restore,
    allow_dev_mounts,
    allow_hooks,
    allow_cdi,
    allow_capabilities,
    firmware,
    sockets,
    make_nodes,
    show_other_gpus,
    refuse_device_groups,
    busy,
    mig_config,
    mig_monitor
});
settings!(RequestPolicy {
    environment,
    max_per_container,
    max_per_owner,
    max_wait_seconds,
    nvidia_visible_devices,
    swarm_resources,
    all,
    device_plugin,
    cdi_kinds,
    docker_gpus,
    reservation_seconds,
    pod_reservation_seconds
});
settings!(Runtime { low_level });
word!(Nvml { Auto = "auto", Off = "off" });
word!(Profile { Standard = "standard", Hardened = "hardened" });
word!(Verify { Always = "always", Off = "off" });
word!(Socket { Persistenced = "persistenced", Fabricmanager = "fabricmanager", Mps = "mps" });
word!(Busy { Skip = "skip", Warn = "warn" });
word!(CudaVisibleDevices { Index = "index", Uuid = "uuid", Unset = "unset" });
word!(NvidiaVisibleDevices { Ignore = "ignore", Honour = "honour" });
word!(All { Free = "free", Refuse = "refuse" });
word!(DevicePlugin { Ignore = "ignore", Trusted = "trusted" });
word!(DockerGpus { Refuse = "refuse", Request = "request" });

impl Config {
    /// What counts where nothing can be read of a file that is there: it may have said `hardened`.
    #[must_use]
    pub fn unknown() -> Self {
        Self { policy: Policy { profile: Profile::Hardened, ..Policy::default() }, ..Self::default() }
    }

    /// Reads the file's bytes: everything in it that can be read, and what is wrong with the rest. Of a file that is no TOML
    /// what stands before the line of the mistake counts.
    ///
    /// Where something is wrong and no `profile` can be read, it is `hardened`, as in [`Config::unknown`].
    #[must_use]
    pub fn read(bytes: &[u8]) -> (Self, Option<String>) {
        let mut config = Self::unknown();
        let Ok(mut text) = std::str::from_utf8(bytes) else { return (config, Some("not UTF-8".to_owned())) };
        let mut problem = None;
        let table = loop {
            match DeTable::parse(text) {
                Ok(table) => break table,
                Err(error) => {
                    let at = error.span().map_or(0, |span| span.start);
                    problem.get_or_insert_with(|| error.to_string().trim_end().replace('\n', " "));
                    text = before_the_line(text, at);
                }
            }
        };
        let node = table_node(table.get_ref());
        let mut wrong = None;
        config.take(&node, &mut wrong);
        // A line that was cut off may have narrowed an exception.
        if problem.is_some() {
            (config.allow, config.owners) = Default::default();
        }
        let in_line = |error: ReadError| format!("line {}: {error}", line_of(text, error.place(&node)));
        let problem = problem.or(wrong.map(in_line)).or(config.mended());
        if problem.is_none() && node.path(&["policy", "profile"]).is_none() {
            config.policy.profile = Profile::default();
        }
        (config, problem)
    }

    /// What runs as root may not depend on the folder it was started in. The first that cannot be meant; all get defaults.
    fn mended(&mut self) -> Option<String> {
        let (mut wrong, default) = (None, Self::default());
        let (paths, host) = (&mut self.paths, &mut self.host);
        for (key, path, default) in [
            ("/paths/state_dir", &mut paths.state_dir, default.paths.state_dir),
            ("/paths/log_dir", &mut paths.log_dir, default.paths.log_dir),
            ("/paths/helper", &mut paths.helper, default.paths.helper),
            ("/paths/hook", &mut paths.hook, default.paths.hook),
            ("/host/root", &mut host.root, default.host.root),
            ("/host/driver_root", &mut host.driver_root, default.host.driver_root),
            ("/host/dev_root", &mut host.dev_root, default.host.dev_root),
            ("/audit/syslog", &mut self.audit.syslog, default.audit.syslog),
            ("/broker/socket", &mut self.broker.socket, default.broker.socket),
        ] {
            // Where the default is empty, empty says something.
            if !path.starts_with('/') && *path != default {
                wrong.get_or_insert(format!("{key}: {path:?} is not an absolute path"));
                *path = default;
            }
        }
        // A mount's source is compared as it stands, and no engine writes one with a slash at its end.
        let policy = &mut self.policy;
        for (key, list) in [("dev_mounts", &mut policy.allow_dev_mounts), ("hooks", &mut policy.allow_hooks)] {
            list.retain(|path| {
                let plain = path.starts_with('/') && !path.ends_with('/');
                if !plain {
                    let why = "is not an absolute path without a slash at its end";
                    wrong.get_or_insert(format!("/policy/allow_{key}: {path:?} {why}"));
                }
                plain
            });
        }
        if let Some(path) = host.driver_folders.iter().find(|path| !path.starts_with('/')) {
            wrong.get_or_insert(format!("/host/driver_folders: {path:?} is not an absolute path"));
            host.driver_folders.clear();
        }
        let kind = &mut self.capacity.kind;
        if !kind.is_empty() && !names_a_kind(kind) {
            wrong.get_or_insert(format!("/capacity/kind: {kind:?} has no letter or digit"));
            kind.clear();
        }
        if self.request.reservation_seconds == 0 || self.request.pod_reservation_seconds == 0 {
            let why = "with 0 every reservation is over at once";
            wrong.get_or_insert(format!("/request/reservation_seconds and pod_reservation_seconds: {why}"));
        }
        wrong
    }
}

#[cfg(test)]
mod tests;
