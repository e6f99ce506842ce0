//! Judges what in a tenant's spec could reach a GPU outside the contract. Pure: sees the machine through [`System`].
//!
//! Mounts are judged by what lies behind their source, device entries by type and number, device rules by every way that
//! runtimes read a list ([`openable`]). What cannot be told is refused. What is no road to a GPU is left alone, and the
//! machine is asked only what can change the verdict.

mod annotations;
mod capabilities;
mod devices;
mod disks;
mod findings;
mod groups;
mod image;
mod injectors;
mod layers;
mod low_level;
mod minors;
mod mounts;
mod namespaces;
mod numbers;
mod options;
mod paths;
mod places;
mod process;
mod processes;
mod programs;
mod readings;
mod root;
mod rules;
mod setting;
mod system;

use contract::config::Policy;
use contract::exception::Exception;
use contract::json::Node;
use contract::rule::Rule;
use contract::{Note, Refusal};

pub use capabilities::{Has, may_be_silent, may_gain};
pub use groups::{HIDING, ReadOnly};
pub use low_level::LowLevel;
pub use minors::stand_ins;
pub use numbers::Numbers;
pub use paths::clean;
pub use process::{has_capability, judge_cwd};
pub use programs::{open_to_programs, shut_by_programs};
pub use readings::{open_gpus, openable};
pub use rules::{granted_rules, parse_list_line};
pub use system::{Dir, FileSystem, Majors, Name, Object, System};

use findings::Findings;
use setting::{Machine, Setting};

/// What is judged, and by whose rules.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// The tenant's spec, read strictly.
    pub spec: &'a Node<'a>,
    /// The bundle's folder, absolute: relative mount sources start there.
    pub bundle: &'a str,
    /// Whether the container asked for GPUs.
    pub gpu_asked: bool,
    /// How this container would ask for one, in words: a pod's container does it otherwise.
    pub asking: &'a str,
    /// What will run the container.
    pub low_level: LowLevel,
    /// The operator's policy.
    pub policy: &'a Policy,
    /// Folders that no tenant may see: our state, log and configuration. Absolute, links resolved.
    pub own_paths: &'a [String],
    /// The one of them with the log: put in another's place it gives nobody a GPU.
    pub log_path: &'a str,
    /// Programs of ours and those that run as root for us: whoever writes one runs as root on the machine. Absolute, links
    /// resolved.
    pub programs: &'a [String],
    /// Programs that hooks may run where the policy is `hardened`, absolute.
    pub hooks: &'a [String],
    /// Positions in `hooks.prestart` of Docker's GPU hook where it is taken for a request: they go.
    pub replaced: &'a [usize],
    /// The folder with the node's device nodes, absolute; usually `/dev`.
    pub dev_root: &'a str,
    /// What the operator lets single containers do.
    pub exceptions: &'a [Exception],
    /// Which container of a pod this is, where the engine attests it: never by a tenant's word.
    pub workload: Option<Workload<'a>>,
    /// What the command line says, where there is one.
    pub call: Option<Call<'a>>,
}

/// A container of a pod, in its engine's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload<'a> {
    /// Kubernetes namespace of the pod.
    pub namespace: &'a str,
    /// Name of the container in the pod.
    pub container: &'a str,
    /// It is the pod's sandbox, whose program is the operator's choice.
    pub sandbox: bool,
}

/// What the command line of a `create` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// The container's id.
    pub id: &'a str,
    /// `--no-pivot`
    pub no_pivot: bool,
}

/// The verdict, and what it needs to become true.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Judgement {
    /// Everything that must not start, the one nearest the tenant's own words first. None: the container may start.
    pub refusals: Vec<Refusal>,
    /// What was neutralised or is worth knowing.
    pub notes: Vec<Note>,
    /// What must be changed in the spec of a container without a contract. With one, [`granted_rules`] makes the list, and
    /// the changes to other lists remain.
    pub changes: Changes,
    /// What counts of the tenant's device list.
    pub rules: Vec<Rule>,
    /// What is closed in its mounts stays closed: it has no CAP_SYS_ADMIN.
    pub sealed: bool,
    /// Its root is the machine's, who may write in control groups where they are shown.
    pub writes_groups: bool,
    /// The machine's GPU numbers, if they all had to be found out.
    pub gpus: Option<Numbers>,
}

/// Changes to the spec; without any its bytes stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Mounts to add, with a contract too.
    pub read_only: Vec<ReadOnly>,
    /// The whole list to write instead of `linux.resources.devices`.
    pub rules: Option<Vec<Rule>>,
    /// Indexes into `linux.devices` of entries to take out, ascending.
    pub drop_devices: Vec<usize>,
    /// Indexes into `hooks.prestart` of those to take out, ascending; with a contract too.
    pub drop_prestart: Vec<usize>,
    /// Indexes into `mounts` of those that get the option `nodev`, ascending; with a contract too.
    pub nodev: Vec<usize>,
    /// Capabilities that every set loses, without their prefix; with a contract too.
    pub drop_capabilities: Vec<&'static str>,
    /// `NVIDIA_VISIBLE_DEVICES` came with the image and is not already `void`.
    pub void_visible_devices: bool,
}

impl Changes {
    /// Whether the host's control groups are among the container's mounts, where its root could write in them.
    #[must_use]
    pub fn covers_groups(&self) -> bool {
        self.read_only.iter().any(|one| one.source.is_some())
    }
}

/// Judges a spec.
#[must_use]
pub fn judge(case: &Case<'_>, system: &dyn System) -> Judgement {
    // The device list and the capabilities decide what the rest of the spec may do, so they are read first and judged late.
    let mut shapes = Findings::default();
    let rules = rules::read(case.spec, &mut shapes);
    let sys_admin = has_capability(case.spec, "SYS_ADMIN") || process::has_all(case);
    let allows_all = rules::allows_all(&rules).is_some();
    let privileged = sys_admin && allows_all;
    let setting = Setting { case, machine: Machine::new(system), sys_admin, allows_all, privileged };

    let mut out = Findings::default();
    injectors::judge(&setting, &mut out);
    let environment = process::environment(&setting, &mut out);
    let first = out.refusals.len();
    let mounts::Outcome { read_only, nodev } = mounts::judge(&setting, &mut out);
    let devices = devices::judge(&setting, &mut out);
    if let Some(refusal) = injectors::without_hooks(&setting, environment.void, devices.refused) {
        out.refusals.insert(first, refusal);
    }
    out.refusals.append(&mut shapes.refusals);
    let mut written = rules::judge(&setting, &rules, &mut out);
    // With a contract the list is made later, from what counts of this one.
    let rules = if case.gpu_asked { written.take().unwrap_or(rules) } else { rules };
    let drop_capabilities = process::judge(&setting, &mut out);
    namespaces::judge(&setting, &mut out);
    image::judge(&setting, &mut out);
    annotations::judge(&setting, &mut out);

    let changes = Changes {
        read_only,
        rules: written,
        drop_devices: devices.drop,
        drop_prestart: case.replaced.to_vec(),
        nodev,
        drop_capabilities,
        void_visible_devices: environment.visible && !case.gpu_asked,
    };
    let Findings { refusals, notes } = out;
    let writes_groups = groups::can_write(case.spec);
    let gpus = setting.machine.into_numbers();
    Judgement { refusals, notes, changes, rules, sealed: !sys_admin, writes_groups, gpus }
}

/// What in the resources of an `update` would undo the judgement: its device list is left out, not judged.
#[must_use]
pub fn judge_update(resources: &Node<'_>) -> Option<Refusal> {
    namespaces::unified(resources, "")
}
