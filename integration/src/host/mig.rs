//! MIG instances of a node fixture: the driver's capability files and the nodes that belong to them.

use std::fs;

use super::tree::{CAPS, Tree};
use super::{FakeGpu, FakeHost};
use crate::error::{Context, Result};

/// Most GPU instances and compute instances that the driver's table has room for.
const GPU_INSTANCES: u64 = 15;
const COMPUTE_INSTANCES: u64 = 8;

/// The capability of an instance, by the formula behind the driver's table.
pub(super) fn capability(minor: u64, gi: u64, ci: Option<u64>) -> u64 {
    let each = 1 + COMPUTE_INSTANCES;
    3 + minor * GPU_INSTANCES * each + gi * each + ci.map_or(0, |ci| 1 + ci)
}

/// The driver's table: every capability that there could be.
pub(super) fn table(gpus: &[FakeGpu]) -> String {
    let mut text = String::from("config 1\nmonitor 2\n");
    let mut minors: Vec<u64> = gpus.iter().map(|gpu| gpu.minor).collect();
    minors.sort_unstable();
    for minor in minors {
        for gi in 0..GPU_INSTANCES {
            text.push_str(&format!("gpu{minor}/gi{gi}/access {}\n", capability(minor, gi, None)));
            for ci in 0..COMPUTE_INSTANCES {
                text.push_str(&format!("gpu{minor}/gi{gi}/ci{ci}/access {}\n", capability(minor, gi, Some(ci))));
            }
        }
    }
    text
}

impl FakeHost {
    /// Makes a GPU instance with one compute instance, and their nodes.
    ///
    /// # Errors
    /// The path that could not be made, and why.
    pub fn make_instance(&self, minor: u64, gi: u64) -> Result<()> {
        let tree = Tree(&self.root);
        let folder = self.instance_folder(minor, gi);
        for (place, ci) in [(folder.clone(), None), (format!("{folder}/ci0"), Some(0))] {
            let cap = capability(minor, gi, ci);
            let access = format!("DeviceFileMinor: {cap}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
            tree.file(&format!("{place}/access"), &access)?;
            tree.node(&format!("nvidia-caps/nvidia-cap{cap}"), CAPS, cap, 0o444)?;
        }
        Ok(())
    }

    /// Takes a GPU instance away, with all that belongs to it.
    ///
    /// # Errors
    /// The path that could not be removed, and why.
    pub fn remove_instance(&self, minor: u64, gi: u64) -> Result<()> {
        let folder = self.root.join(self.instance_folder(minor, gi));
        fs::remove_dir_all(&folder).cannot(|| format!("remove {}", folder.display()))?;
        for number in Self::capabilities(minor, gi) {
            let node = self.node(&format!("nvidia-caps/nvidia-cap{number}"));
            fs::remove_file(&node).cannot(|| format!("remove {}", node.display()))?;
        }
        Ok(())
    }

    /// The minors of the capability nodes of a GPU instance and of its compute instance.
    pub fn capabilities(minor: u64, gi: u64) -> [u64; 2] {
        [capability(minor, gi, None), capability(minor, gi, Some(0))]
    }

    fn instance_folder(&self, minor: u64, gi: u64) -> String {
        format!("proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gi}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of the driver's table as they were seen.
    #[test]
    fn the_formula_is_the_drivers() {
        for (minor, gi, ci, expected) in
            [(0, 0, None, 3), (0, 1, None, 12), (0, 7, Some(0), 67), (0, 11, None, 102), (31, 14, Some(7), 4322)]
        {
            assert_eq!(capability(minor, gi, ci), expected);
        }
    }
}
