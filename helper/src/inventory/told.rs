//! What the driver's own interfaces tell beyond what the kernel does: one form for NVML and for `nvidia-smi -q -x`.
//!
//! Sources write it, and what puts the inventory together reads it; nothing here does I/O or judges.

use contract::gpu::{Link, MigMode, Unavailable};

/// What one source told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// Which: `nvml`, `nvidia-smi`.
    pub(crate) source: &'static str,
    /// Version of the driver.
    pub(crate) driver_version: Option<String>,
    /// Highest CUDA version that it serves, as in `12.4`.
    pub(crate) cuda_version: Option<String>,
    /// GPUs that the source lists.
    pub(crate) gpus: Vec<ToldGpu>,
    /// How they are connected.
    pub(crate) links: Vec<Link>,
}

/// What it told of one GPU; what it did not tell is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ToldGpu {
    /// PCI address as sysfs writes it; the one thing that must be told.
    pub(crate) pci: String,
    pub(crate) uuid: Option<String>,
    pub(crate) minor: Option<u32>,
    pub(crate) model: Option<String>,
    pub(crate) memory_mb: Option<u64>,
    pub(crate) compute_capability: Option<String>,
    pub(crate) virtualization: Option<String>,
    pub(crate) mig: Option<MigMode>,
    pub(crate) instances: Vec<ToldInstance>,
    /// Lost or failing, in the source's judgement.
    pub(crate) unavailable: Option<Unavailable>,
}

/// A MIG compute instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ToldInstance {
    /// Position among the MIG devices of its GPU.
    pub(crate) index: u32,
    pub(crate) gi: u32,
    pub(crate) ci: u32,
    pub(crate) uuid: Option<String>,
    /// `1g.10gb`, as the source names it or as its attributes say.
    pub(crate) profile: Option<String>,
    pub(crate) memory_mb: Option<u64>,
}
