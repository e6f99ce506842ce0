//! A fixture host that becomes another: a driver of another version, other numbers, a GPU that is gone or handed to a
//! virtual machine.
//!
//! The new kernel's view is written beside the old one and exchanged with it, so that nobody reads half of a file. Driver
//! files under /usr stay as they are.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::mig;
use super::tree::{self, CAPS, Tree};
use super::{FakeGpu, FakeHost};
use crate::error::{Context, Result};

/// Which kernel driver holds a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// NVIDIA's.
    Nvidia,
    /// vfio-pci, for a virtual machine.
    Vfio,
    /// None: the GPU is not on the bus.
    Gone,
}

/// A MIG instance, where the driver shows its GPU: compute instance 0 comes before others of its GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instance {
    /// Device minor of its GPU.
    pub gpu: u64,
    /// GPU instance.
    pub gi: u64,
    /// Compute instance.
    pub ci: u64,
}

impl Instance {
    /// The minors of the capability nodes of its GPU instance and its own.
    pub fn capabilities(self) -> [u64; 2] {
        [mig::capability(self.gpu, self.gi, None), mig::capability(self.gpu, self.gi, Some(self.ci))]
    }
}

/// What of a node can change while containers run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// The version of the loaded kernel module.
    pub version: String,
    /// The major of nvidia-uvm.
    pub uvm: u64,
    /// Every GPU that was ever in this node.
    pub gpus: Vec<(FakeGpu, Held)>,
    /// MIG instances of GPUs that NVIDIA's driver has.
    pub instances: BTreeSet<Instance>,
}

/// A change that is written and not in force yet.
#[derive(Debug)]
pub struct Change {
    draft: PathBuf,
    root: PathBuf,
}

/// In the order of exchange: what the driver says, the bus, the nodes.
const PARTS: [&str; 3] = ["proc", "sys", "dev"];

impl FakeHost {
    /// The state in which the builder left this host.
    pub fn state(&self, version: &str) -> NodeState {
        let gpus = self.gpus.iter().map(|gpu| (gpu.clone(), Held::Nvidia)).collect();
        NodeState { version: version.into(), uvm: tree::UVM, gpus, instances: BTreeSet::new() }
    }

    /// Writes another state beside the one in force.
    ///
    /// # Errors
    /// The path that could not be made. Device nodes need root.
    pub fn draft(&self, state: &NodeState) -> Result<Change> {
        let draft = self.root.with_extension("draft");
        let below = Tree(&draft);
        for part in PARTS {
            let path = draft.join(part);
            fs::create_dir_all(&path).cannot(|| format!("create {}", path.display()))?;
        }
        let present = || state.gpus.iter().filter(|(_, held)| *held != Held::Gone);
        let driver = |held: &Held| Some(if *held == Held::Vfio { "vfio-pci" } else { "nvidia" });
        let held: Vec<FakeGpu> =
            present().filter(|(_, held)| *held == Held::Nvidia).map(|(gpu, _)| gpu.clone()).collect();
        let on_the_bus: Vec<_> = present().map(|(gpu, held)| (gpu, driver(held))).collect();
        tree::bus(&below, on_the_bus.iter().copied())?;
        tree::kernel(&below, true, Some(state.uvm))?;
        tree::driver(&below, &state.version, &held)?;
        tree::nodes(&below, &held, Some(state.uvm))?;
        let drafted = Self { root: draft.clone(), ..self.clone() };
        let is_held = |instance: &&Instance| held.iter().any(|gpu| gpu.minor == instance.gpu);
        state.instances.iter().filter(is_held).try_for_each(|instance| drafted.make(*instance))?;
        Ok(Change { draft, root: self.root.clone() })
    }

    fn make(&self, Instance { gpu, gi, ci }: Instance) -> Result<()> {
        if ci == 0 {
            return self.make_instance(gpu, gi);
        }
        // Another compute instance of a GPU instance that is there.
        let cap = mig::capability(gpu, gi, Some(ci));
        let access = format!("DeviceFileMinor: {cap}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
        let tree = Tree(&self.root);
        tree.file(&format!("proc/driver/nvidia/capabilities/gpu{gpu}/mig/gi{gi}/ci{ci}/access"), &access)?;
        tree.node(&format!("nvidia-caps/nvidia-cap{cap}"), CAPS, cap, 0o444)
    }
}

impl Change {
    /// Puts the drafted state in force.
    ///
    /// # Errors
    /// A folder cannot be exchanged; the old one cannot be removed.
    pub fn apply(self) -> Result<()> {
        for part in PARTS {
            let (new, old) = (self.draft.join(part), self.root.join(part));
            renameat2(AT_FDCWD, &new, AT_FDCWD, &old, RenameFlags::RENAME_EXCHANGE)
                .cannot(|| format!("exchange {} and {}", new.display(), old.display()))?;
        }
        fs::remove_dir_all(&self.draft).cannot(|| format!("remove {}", self.draft.display()))
    }
}
