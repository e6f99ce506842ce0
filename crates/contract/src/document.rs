//! The contract: everything that one container gets, and nothing else.

use serde::Serialize;

use crate::gpu::Gpu;
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

/// A granted GPU by all its names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Granted {
    /// PCI address, the key.
    pub pci: String,
    /// `GPU-…`, when known.
    pub uuid: Option<String>,
    /// Device minor, when there is one.
    pub minor: Option<u32>,
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
record!(Granted { pci, uuid, minor });

impl Contract {
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
    /// Whether this is one of its names: `nvidiaN`, the UUID or the beginning of it, the PCI address.
    fn is_named(&self, id: &str) -> bool {
        let lower = id.to_ascii_lowercase();
        self.minor.is_some_and(|minor| lower == format!("nvidia{minor}"))
            || self
                .uuid
                .as_ref()
                .is_some_and(|uuid| lower.len() > "gpu-".len() && uuid.to_ascii_lowercase().starts_with(&lower))
            || pci_address(&lower).is_some_and(|pci| pci == self.pci)
    }

    /// A GPU of the inventory, granted.
    #[must_use]
    pub fn of(gpu: &Gpu) -> Self {
        Self { pci: gpu.pci.clone(), uuid: gpu.uuid.clone(), minor: gpu.minor }
    }

    /// The name tenants know: `nvidiaN`, or the PCI address.
    #[must_use]
    pub fn name(&self) -> String {
        self.minor.map_or_else(|| self.pci.clone(), |minor| format!("nvidia{minor}"))
    }
}
