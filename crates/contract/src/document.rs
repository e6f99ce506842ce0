//! The contract: everything that one container gets, and nothing else.

use serde::Serialize;

use crate::gpu::{self, Gpu, Partition, is_uuid, names_part};
use crate::inventory::{DeviceNode, DriverFile, Facts, Library, pci_address};
use crate::json::Node;
use crate::read::{FromJson, ReadError};
use crate::record;
use crate::refusal::{Code, Refusal};
use crate::request::Request;

/// Version of the contract's layout; another version is not read.
pub const SCHEMA: u32 = 2;

/// What one container gets, complete, with the facts it rests on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Contract {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Its name: a 128-bit random number in hexadecimal.
    pub id: String,
    /// The container it is for, as [`crate::key::Key`]; absent in a reservation that no container took yet.
    pub key: Option<String>,
    /// The request it answers.
    pub request: Request,
    /// The granted GPUs.
    pub gpus: Vec<Granted>,
    /// Device nodes, the GPUs' own and control nodes.
    pub nodes: Vec<DeviceNode>,
    /// Host libraries.
    pub libraries: Vec<Library>,
    /// Other files of the driver.
    pub files: Vec<DriverFile>,
    /// Environment, in order.
    pub env: Vec<(String, String)>,
    /// The inventory facts it rests on.
    pub facts: Facts,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// What the granted GPUs are, each kind once.
    pub products: Products,
}

/// A granted GPU by all its names, or a granted part of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Granted {
    /// PCI address, the key.
    pub pci: String,
    /// `GPU-…`, when known.
    pub uuid: Option<String>,
    /// Device minor, when there is one.
    pub minor: Option<u32>,
    /// The part of it that was granted; the whole when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<GrantedPartition>,
}

/// The part of a GPU that was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GrantedPartition {
    /// Its position among the parts of its GPU, when it was granted.
    pub index: u32,
    /// GPU instance.
    pub gi: u32,
    /// Compute instance in it.
    pub ci: u32,
    /// `1g.10gb`.
    pub profile: String,
    /// `MIG-…`, when known.
    pub uuid: Option<String>,
}

/// Kinds of GPUs, each once: product name and CUDA compute capability, empty when not known. A contract of an earlier
/// version names none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Products(pub Vec<(String, String)>);

impl Products {
    /// One more GPU.
    pub fn add(&mut self, gpu: &Gpu) {
        let known = |text: &Option<String>| text.clone().unwrap_or_default();
        let kind = (known(&gpu.model), known(&gpu.compute_capability));
        if !self.0.contains(&kind) {
            self.0.push(kind);
        }
    }
}

impl FromJson for Products {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        Vec::from_json(node).map(Self)
    }

    fn absent() -> Option<Self> {
        Some(Self::default())
    }
}

record!(Contract { schema, id, key, request, gpus, nodes, libraries, files, env, facts, created, products });
record!(Granted { pci, uuid, minor, partition });
record!(GrantedPartition { index, gi, ci, profile, uuid });

impl Contract {
    /// What it rests on that is no longer true while `now` is, in words. Instances beside its own come and go.
    #[must_use]
    pub fn changed(&self, now: &Facts) -> Option<String> {
        let of_instances = |gpu: &Granted| {
            let minor = gpu.minor?;
            match &gpu.partition {
                Some(part) if !now.instances.has(minor, part.gi, part.ci) => {
                    Some(format!("MIG instance {}/{} of nvidia{minor} is gone", part.gi, part.ci))
                }
                None if now.instances.cut(minor) => Some(format!("nvidia{minor} is cut into MIG instances now")),
                _ => None,
            }
        };
        self.facts.changed(now).or_else(|| self.gpus.iter().find_map(of_instances))
    }

    /// Whether this is what a pod asks for, whose node's agent brought the reservation.
    ///
    /// # Errors
    /// `POLICY`, with both sides and who has to change what.
    pub fn answers(&self, request: &Request) -> Result<(), Refusal> {
        let refused = |word: &str, asked: String, has: String| {
            let message =
                format!("the pod asks for {asked}, and the reservation that the node's agent brought is for {has}");
            let help = "the agent has to reserve what the pod asks for (`quilt-gpu contract prepare`), or the pod to ask for \
                        what is reserved";
            Refusal::new(Code::Policy, "reservation-other", message, help).at(request.place(word), "")
        };
        if request.count as usize != self.gpus.len() {
            return Err(refused("count", gpus(request.count as usize), gpus(self.gpus.len())));
        }
        if let Some(id) = request.ids.iter().find(|id| !self.gpus.iter().any(|gpu| gpu.is_named(id))) {
            let names: Vec<String> = self.gpus.iter().map(Granted::name).collect();
            return Err(refused("ids", id.clone(), names.join(",")));
        }
        if let Some(profile) = &request.profile
            && let Some(other) = self.gpus.iter().find(|gpu| gpu.profile() != Some(profile))
        {
            return Err(refused(
                "profile",
                profile.clone(),
                other.profile().map_or("whole GPUs", String::as_str).to_owned(),
            ));
        }
        let beyond = request.capabilities.beyond(&self.request.capabilities);
        if request.says("capabilities") && !beyond.is_empty() {
            return Err(refused("capabilities", beyond.join(","), self.request.capabilities.list()));
        }
        Ok(())
    }
}

fn gpus(n: usize) -> String {
    format!("{n} GPU{}", if n == 1 { "" } else { "s" })
}

impl Granted {
    /// Whether this is one of its names: `nvidiaN`, the UUID or the beginning of it, the PCI address; for a part its own UUID
    /// or the beginning of it, `MIG-GPU-<uuid>/<gi>/<ci>`, or a name of the GPU and a position.
    fn is_named(&self, id: &str) -> bool {
        let Some(part) = &self.partition else { return self.is_gpu_named(id) };
        begins(id, part.uuid.as_deref())
            || names_part(id, &|word| self.is_gpu_named(word), (part.gi, part.ci), part.index)
    }

    fn is_gpu_named(&self, id: &str) -> bool {
        let lower = id.to_ascii_lowercase();
        self.minor.is_some_and(|minor| lower == format!("nvidia{minor}"))
            || begins(id, self.uuid.as_deref())
            || pci_address(&lower).is_some_and(|pci| pci == self.pci)
    }

    /// A GPU of the inventory, granted.
    #[must_use]
    pub fn of(gpu: &Gpu) -> Self {
        Self { pci: gpu.pci.clone(), uuid: gpu.uuid.clone(), minor: gpu.minor, partition: None }
    }

    /// A part of it, granted.
    #[must_use]
    pub fn of_part(gpu: &Gpu, part: &Partition) -> Self {
        let Partition { index, gi, ci, .. } = *part;
        let (profile, uuid) = (part.profile.clone(), part.uuid.clone());
        Self { partition: Some(GrantedPartition { index, gi, ci, profile, uuid }), ..Self::of(gpu) }
    }

    /// The MIG profile of a part.
    #[must_use]
    pub fn profile(&self) -> Option<&String> {
        self.partition.as_ref().map(|part| &part.profile)
    }

    /// The name tenants know: `nvidiaN`, or the PCI address; of a part with its position behind, `nvidiaN:1`.
    #[must_use]
    pub fn name(&self) -> String {
        let gpu = gpu::name(&self.pci, self.minor);
        match &self.partition {
            Some(part) => format!("{gpu}:{}", part.index),
            None => gpu,
        }
    }

    /// The name that the driver's libraries know it by, where one is known: a UUID, or for a part `MIG-GPU-<uuid>/<gi>/<ci>`.
    #[must_use]
    pub fn driver_name(&self) -> Option<String> {
        match &self.partition {
            None => self.uuid.clone(),
            Some(part) if part.uuid.is_some() => part.uuid.clone(),
            Some(part) => self.uuid.as_ref().map(|uuid| format!("MIG-{uuid}/{}/{}", part.gi, part.ci)),
        }
    }
}

/// Whether a word is this UUID or the beginning of it, and says more than `GPU-`.
fn begins(word: &str, uuid: Option<&str>) -> bool {
    word.len() > "GPU-".len() && uuid.is_some_and(|uuid| is_uuid(word, uuid.get(..word.len())))
}
