//! A GPU: by all its names, with its nodes, its state and its partitions. Keyed by the PCI address.

use serde::{Serialize, Serializer};

use crate::inventory::{DeviceNode, pci_address};
pub use crate::nodes::Nodes;
use crate::{record, word};

/// The key and the node of the one GPU that a machine under WSL has: what is behind it has no address there.
pub const DXG: &str = "dxg";

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Gpu {
    /// Who made it: `nvidia`.
    pub vendor: String,
    /// PCI address as sysfs writes it, lower case: `0000:41:00.0`, or [`DXG`]. The key of this GPU everywhere.
    pub pci: String,
    /// Position among the usable GPUs by PCI address, from 0: what CUDA's PCI order and `nvidia-smi` call the index.
    pub index: Option<u32>,
    /// `GPU-…`, when the driver tells it.
    pub uuid: Option<String>,
    /// The driver's device minor: the N of `/dev/nvidiaN`. Not the index.
    pub minor: Option<u32>,
    /// Product name, when the driver tells it.
    pub model: Option<String>,
    /// PCI device id, as in `0x20b0`.
    pub device_id: String,
    /// The kernel driver that holds it: `nvidia`, `vfio-pci` …
    pub driver: Option<String>,
    /// NUMA node, when the machine has more than one.
    pub numa: Option<i32>,
    /// Its own device nodes: `/dev/nvidiaN`, and DRM nodes with their role.
    pub nodes: Vec<DeviceNode>,
    /// Why it cannot be granted now; absent when it can.
    pub unavailable: Option<Unavailable>,
    /// Memory in MiB, when known.
    pub memory_mb: Option<u64>,
    /// CUDA compute capability, as in `8.0`, when known.
    pub compute_capability: Option<String>,
    /// How it is virtualised, in NVML's words: `none`, `passthrough`, `vgpu`, `host-vgpu`, `host-vsga`.
    pub virtualization: Option<String>,
    /// IOMMU group, where the machine has IOMMUs.
    pub iommu_group: Option<u32>,
    /// Whether it is cut into instances; absent when it cannot be.
    pub mig: Option<MigMode>,
    /// Its partitions, by their position. With one of them granted the whole is not, and the other way round.
    pub partitions: Vec<Partition>,
    /// Which source told what: (`model`, `nvml`). What stands in sysfs is not named.
    pub sources: Vec<(String, String)>,
}

/// Why something cannot be granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unavailable {
    /// For programs, and for the rule of the refusal: `gpu-lost`.
    pub state: State,
    /// What is true and what would mend it.
    pub why: String,
}

/// What state a GPU or a partition is in that cannot be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// No kernel driver holds it.
    Unbound,
    /// Bound to vfio-pci, for a virtual machine.
    Vfio,
    /// The same, in an IOMMU group that no virtual machine can have, or in none.
    VfioGroup,
    /// Held by another kernel driver (nouveau …).
    OtherDriver,
    /// The NVIDIA kernel module is not loaded.
    DriverMissing,
    /// Its device node, or a capability node, is missing.
    NodeMissing,
    /// Its device node is not the device that it should be.
    NodeMismatch,
    /// The driver does not list it, or says that it fell off the bus.
    Lost,
    /// It answers, and reports errors that need a reset or a replacement.
    Failing,
    /// Excluded by an option of the kernel module.
    Excluded,
    /// Sources disagree on what it is.
    Ambiguous,
    /// In MIG mode without instances.
    MigEmpty,
    /// Processes outside any lease hold it open.
    Busy,
}

/// Whether a GPU is cut into instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MigMode {
    /// Now.
    pub enabled: bool,
    /// After the next reset.
    pub pending: bool,
}

/// The profile of a partition whose profile no source told.
pub const UNKNOWN_PROFILE: &str = "unknown";

/// A part of a GPU that can be granted by itself: a MIG compute instance. With its nodes as a text it is written as a list, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(remote = "Self")]
pub struct Partition {
    /// What kind of partition: `mig`.
    pub kind: String,
    /// Position among the partitions of its GPU, from 0: the M of `0:M`.
    pub index: u32,
    /// GPU instance.
    pub gi: u32,
    /// Compute instance in it.
    pub ci: u32,
    /// `1g.10gb`, `1c.2g.20gb`, `1g.10gb+me`, or [`UNKNOWN_PROFILE`].
    pub profile: String,
    /// `MIG-…`, when the driver tells it.
    pub uuid: Option<String>,
    /// Memory in MiB, when known.
    pub memory_mb: Option<u64>,
    /// Capability nodes of the GPU instance and the compute instance.
    pub nodes: Nodes,
    /// Why it cannot be granted now; absent when it can.
    pub unavailable: Option<Unavailable>,
}

/// How two GPUs are connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Link {
    /// PCI address of one, the lower.
    pub a: String,
    /// PCI address of the other.
    pub b: String,
    /// The best way between them.
    pub kind: LinkKind,
    /// How many NVLinks; 0 for other kinds.
    pub lanes: u32,
}

/// The ways between two GPUs, best first, in the words of `nvidia-smi topo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// NVLink.
    Nvlink,
    /// One PCIe switch.
    Pix,
    /// Several PCIe switches, no host bridge.
    Pxb,
    /// A PCIe host bridge.
    Phb,
    /// Several host bridges of one NUMA node.
    Node,
    /// Between NUMA nodes.
    Sys,
}

record!(Gpu {
    vendor,
    pci,
    index,
    uuid,
    minor,
    model,
    device_id,
    driver,
    numa,
    nodes,
    unavailable,
    memory_mb,
    compute_capability,
    virtualization,
    iommu_group,
    mig,
    partitions,
    sources,
});
record!(Unavailable { state, why });
record!(MigMode { enabled, pending });
record!(row Partition { kind, index, gi, ci, profile, uuid, memory_mb, nodes, unavailable });
record!(Link { a, b, kind, lanes });
word!(State {
    Unbound = "unbound",
    Vfio = "vfio",
    VfioGroup = "vfio-group",
    OtherDriver = "other-driver",
    DriverMissing = "driver-missing",
    NodeMissing = "node-missing",
    NodeMismatch = "node-mismatch",
    Lost = "lost",
    Failing = "failing",
    Excluded = "excluded",
    Ambiguous = "ambiguous",
    MigEmpty = "mig-empty",
    Busy = "busy",
});
word!(LinkKind { Nvlink = "nvlink", Pix = "pix", Pxb = "pxb", Phb = "phb", Node = "node", Sys = "sys" });

impl Serialize for Partition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { kind, index, gi, ci, profile, uuid, memory_mb, nodes, unavailable } = self;
        match nodes.are_folded() {
            true => (kind, index, gi, ci, profile, uuid, memory_mb, nodes, unavailable).serialize(serializer),
            false => Self::serialize(self, serializer),
        }
    }
}

impl Gpu {
    /// Whether it may be granted as a whole. One that is cut into partitions never is.
    #[must_use]
    pub fn usable(&self) -> bool {
        self.unavailable.is_none() && self.partitions.is_empty()
    }

    /// Whether `id` names it: `nvidiaN` (device minor), UUID, or PCI address in any of its spellings.
    #[must_use]
    pub fn is_named(&self, id: &str) -> bool {
        let lower = id.to_ascii_lowercase();
        self.minor.is_some_and(|minor| lower == format!("nvidia{minor}"))
            || is_uuid(id, self.uuid.as_deref())
            || pci_address(&lower).is_some_and(|pci| pci == self.pci)
    }

    /// Whether it is WSL's, which has a node of its own and none beside it.
    #[must_use]
    pub fn is_dxg(&self) -> bool {
        self.pci == DXG
    }

    /// Whether it is bound to vfio-pci.
    #[must_use]
    pub fn is_for_machines(&self) -> bool {
        self.unavailable.as_ref().is_some_and(|why| matches!(why.state, State::Vfio | State::VfioGroup))
    }

    /// Whether it is in this one's IOMMU group: a virtual machine has both or neither.
    #[must_use]
    pub fn is_grouped_with(&self, other: &Self) -> bool {
        self.iommu_group.is_some() && self.iommu_group == other.iommu_group
    }

    /// Whether every word of a kind is a word of the model: `a10` is not an A100.
    #[must_use]
    pub fn is_kind(&self, kind: &str) -> bool {
        let words = |text: &str| {
            text.to_ascii_lowercase()
                .split(|c: char| !c.is_ascii_alphanumeric())
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let model = words(self.model.as_deref().unwrap_or_default());
        words(kind).iter().all(|word| model.contains(word))
    }

    /// The same where nobody tells the model: it may be any.
    #[must_use]
    pub fn may_be_kind(&self, kind: &str) -> bool {
        self.model.is_none() || self.is_kind(kind)
    }

    /// The name tenants know: `nvidiaN`, or the PCI address.
    #[must_use]
    pub fn name(&self) -> String {
        name(&self.pci, self.minor)
    }

    /// Why this partition cannot be granted now, itself or with its GPU; nothing when it can.
    #[must_use]
    pub fn without<'a>(&'a self, partition: &'a Partition) -> Option<&'a Unavailable> {
        self.unavailable.as_ref().or(partition.unavailable.as_ref())
    }

    /// The partition that `id` names: `MIG-<uuid>`, `MIG-GPU-<uuid>/<gi>/<ci>`, or a name of the GPU and a position, as in
    /// `0:1` and `nvidia3:1`.
    #[must_use]
    pub fn partition_named(&self, id: &str) -> Option<&Partition> {
        if self.partitions.is_empty() {
            return None;
        }
        let of_gpu = |word: &str| self.is_named(word) || word.parse().ok() == self.index.map(u64::from);
        let named = |part: &&Partition| {
            is_uuid(id, part.uuid.as_deref()) || names_part(id, &of_gpu, (part.gi, part.ci), part.index)
        };
        self.partitions.iter().find(named)
    }

    /// The short name of a partition: `0:1`; of a GPU without a position, `nvidia3:1`.
    #[must_use]
    pub fn short_name(&self, partition: &Partition) -> String {
        let gpu = self.index.map_or_else(|| self.name(), |index| index.to_string());
        format!("{gpu}:{}", partition.index)
    }
}

/// The name that tenants know a GPU by: `nvidiaN`, or the PCI address.
pub(crate) fn name(pci: &str, minor: Option<u32>) -> String {
    minor.map_or_else(|| pci.to_owned(), |minor| format!("nvidia{minor}"))
}

/// Whether a name means this part of a GPU: `MIG-GPU-<uuid>/<gi>/<ci>`, the only form before driver 470, or
/// `<gpu>:<position>`. `of_gpu` says whether a word names the GPU.
pub(crate) fn names_part(id: &str, of_gpu: &dyn Fn(&str) -> bool, (gi, ci): (u32, u32), position: u32) -> bool {
    // Most names are of other parts.
    let last = |number: u32| id.ends_with(char::from_digit(number % 10, 10).unwrap_or('/'));
    if !last(ci) && !last(position) {
        return false;
    }
    let end = format!("/{gi}/{ci}");
    if let Some((mig, uuid)) = id.strip_suffix(end.as_str()).and_then(|start| start.split_at_checked(4)) {
        return mig.eq_ignore_ascii_case("MIG-") && of_gpu(uuid);
    }
    id.strip_suffix(format!(":{position}").as_str()).is_some_and(of_gpu)
}

/// Whether a word is this UUID, in any case.
pub(crate) fn is_uuid(word: &str, uuid: Option<&str>) -> bool {
    uuid.is_some_and(|uuid| uuid.eq_ignore_ascii_case(word))
}

impl State {
    /// The rule of a refusal: `gpu-` and the state's word, except where the driver is what is not ready.
    #[must_use]
    pub fn rule(self) -> &'static str {
        match self {
            Self::Unbound => "gpu-unbound",
            Self::Vfio => "gpu-vfio",
            Self::VfioGroup => "gpu-vfio-group",
            Self::OtherDriver => "gpu-other-driver",
            Self::DriverMissing => "driver-not-ready",
            Self::NodeMissing => "node-missing",
            Self::NodeMismatch => "node-mismatch",
            Self::Lost => "gpu-lost",
            Self::Failing => "gpu-failing",
            Self::Excluded => "gpu-excluded",
            Self::Ambiguous => "gpu-ambiguous",
            Self::MigEmpty => "mig-empty",
            Self::Busy => "gpu-busy",
        }
    }

    /// What a number of GPUs is said to be: `2 lost`.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Unbound => "without a driver",
            Self::Vfio | Self::VfioGroup => "bound to vfio-pci",
            Self::OtherDriver => "held by another driver",
            Self::DriverMissing => "waiting for the driver",
            Self::NodeMissing => "without a device node",
            Self::NodeMismatch => "with a wrong device node",
            Self::Lost => "lost",
            Self::Failing => "failing",
            Self::Excluded => "excluded",
            Self::Ambiguous => "of doubtful identity",
            Self::MigEmpty => "in MIG mode without instances",
            Self::Busy => "in use outside any lease",
        }
    }

    /// Whether it ends by itself or with a command when the driver is ready: the GPU is not at fault.
    #[must_use]
    pub fn awaits_driver(self) -> bool {
        matches!(self, Self::DriverMissing | Self::NodeMissing)
    }

    /// Whether it can end without any fact changing that contracts rest on: only a new look tells.
    #[must_use]
    pub fn may_be_over(self) -> bool {
        matches!(self, Self::NodeMissing | Self::NodeMismatch | Self::Busy)
    }
}

impl Unavailable {
    /// A state and its reason.
    #[must_use]
    pub fn new(state: State, why: impl Into<String>) -> Self {
        Self { state, why: why.into() }
    }
}
