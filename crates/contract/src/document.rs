//! The contract: everything that one container gets, and nothing else.

use serde::Serialize;

use crate::inventory::{Binary, DeviceNode, Facts, Gpu, Library};
use crate::record;
use crate::request::Request;

/// Version of the contract's layout; another version is not read.
pub const SCHEMA: u32 = 1;

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
    /// Host programs.
    pub binaries: Vec<Binary>,
    /// Environment, in order.
    pub env: Vec<(String, String)>,
    /// The inventory facts it rests on.
    pub facts: Facts,
    /// When it was made, in seconds since 1970.
    pub created: u64,
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

record!(Contract { schema, id, key, request, gpus, nodes, libraries, binaries, env, facts, created });
record!(Granted { pci, uuid, minor });

impl Granted {
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
