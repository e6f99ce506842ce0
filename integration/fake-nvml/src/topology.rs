//! What the library tells: the file's form, and where the file is.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// Environment variable with the file's path.
pub const VARIABLE: &str = "FAKE_NVML";
/// The file's name beside the library, where the variable is not set.
pub const BESIDE: &str = "fake-nvml.json";

/// A node as NVML shows it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Topology {
    /// Version of the loaded driver.
    pub driver_version: String,
    /// Highest CUDA version, as in `12.4`.
    pub cuda_version: String,
    /// GPUs in NVML's order.
    pub gpus: Vec<Gpu>,
    /// `nvmlGpuTopologyLevel_t` between any two.
    pub level: u32,
    /// The same for single pairs, by PCI address, in either order.
    pub levels: Vec<(String, String, u32)>,
    /// Return codes of calls by their C name; `*` stands for every call.
    pub fail: BTreeMap<String, u32>,
    /// Seconds that calls take, by their C name.
    pub hang: BTreeMap<String, u64>,
    /// A file that initialising makes, as NVML makes device nodes; for tests of what keeps it from that.
    pub makes: Option<String>,
}

/// A GPU.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    /// As sysfs writes it.
    pub pci: String,
    /// `GPU-…`
    pub uuid: String,
    /// N of `/dev/nvidiaN`.
    pub minor: u32,
    /// Product name.
    pub name: String,
    /// Memory in MiB.
    pub memory_mb: u64,
    /// As in `8.9`.
    pub compute_capability: String,
    /// `nvmlGpuVirtualizationMode_t`
    pub virtualization: u32,
    /// Absent: it has no MIG.
    pub mig: Option<Mig>,
    /// MIG devices; `null` is an empty slot.
    pub instances: Vec<Option<Instance>>,
    /// NVLinks by number.
    pub nvlinks: Vec<NvLink>,
    /// Row remapping; absent: not supported.
    pub remapped: Option<Remapped>,
    /// Page retirement is pending; absent: not supported.
    pub retirement_pending: Option<bool>,
    /// `nvmlDeviceGpuRecoveryAction_t`; absent: not supported.
    pub recovery_action: Option<u32>,
    /// What it does now; absent: none of it is supported, and nothing of its memory is used.
    pub live: Option<Live>,
    /// Processes that have it open.
    pub processes: Vec<Process>,
    /// As in [`Topology::fail`], for this GPU alone.
    pub fail: BTreeMap<String, u32>,
    /// As in [`Topology::hang`], for this GPU alone.
    pub hang: BTreeMap<String, u64>,
}

/// What a GPU does at this moment.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Live {
    /// Percent.
    pub utilization: u32,
    /// In MiB.
    pub memory_used_mb: u64,
    /// Degrees Celsius.
    pub temperature: u32,
    /// Milliwatts.
    pub power: u32,
}

/// A process that uses a GPU.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// GPU memory in MiB.
    pub memory_mb: u64,
    /// Whether it draws instead of computing.
    pub graphics: bool,
}

/// MIG mode.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mig {
    /// Now.
    pub enabled: bool,
    /// After the next reset.
    pub pending: bool,
}

/// A MIG device.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Instance {
    /// GPU instance.
    pub gi: u32,
    /// Compute instance.
    pub ci: u32,
    /// `MIG-…`
    pub uuid: String,
    /// Slices of the GPU instance.
    pub gpu_slices: u32,
    /// Slices of the compute instance.
    pub compute_slices: u32,
    /// Memory in MiB.
    pub memory_mb: u64,
    /// Optical flow engines.
    pub ofa: u32,
    /// What the driver calls it; empty: it has no name.
    pub name: String,
}

/// Where an NVLink leads.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NvLink {
    /// Nowhere.
    Down,
    /// To an NVSwitch.
    Switch,
    /// To the GPU at this PCI address.
    Gpu(String),
}

/// Row remapping.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Remapped {
    /// A row is remapped with the next reset.
    pub pending: bool,
    /// There was no spare row.
    pub failed: bool,
}

/// What the file says; `None` when it cannot be read, which it tells on stderr.
#[allow(clippy::print_stderr)] // whoever writes a test has to see why his library does not work
pub(crate) fn topology() -> Option<&'static Topology> {
    static READ: OnceLock<Option<Topology>> = OnceLock::new();
    let read = || -> Result<Topology, String> {
        let path = path().ok_or("no path")?;
        let failed = |cause: &dyn std::fmt::Display| format!("{}: {cause}", path.display());
        let text = std::fs::read(&path).map_err(|cause| failed(&cause))?;
        serde_json::from_slice(&text).map_err(|cause| failed(&cause))
    };
    READ.get_or_init(|| read().inspect_err(|why| eprintln!("fake-nvml: cannot read the topology: {why}")).ok()).as_ref()
}

fn path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return Some(path.into());
    }
    Some(crate::memory::own_path()?.with_file_name(BESIDE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topology_here_is_read() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("topologies");
        let mut read = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let topology: Topology = serde_json::from_slice(&std::fs::read(&path).unwrap())
                .unwrap_or_else(|cause| panic!("{}: {cause}", path.display()));
            let mut addresses: Vec<_> = topology.gpus.iter().map(|gpu| gpu.pci.clone()).collect();
            addresses.sort();
            addresses.dedup();
            assert_eq!(addresses.len(), topology.gpus.len(), "{}", path.display());
            read.push((path.file_stem().unwrap().to_string_lossy().into_owned(), topology.gpus.len()));
        }
        read.sort();
        let expected = [
            ("a100-mig", 8),
            ("gb200", 4),
            ("h100", 8),
            ("l4", 1),
            ("lost", 2),
            ("mismatch", 1),
            ("rtx4090", 4),
            ("vgpu", 1),
        ];
        assert_eq!(read, expected.map(|(name, gpus)| (name.to_owned(), gpus)));
    }
}
