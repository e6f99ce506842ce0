//! What a container with GPUs is not to see of the node's other GPUs: masks over their folders in procfs and sysfs.
//!
//! No boundary: the device filter closes those GPUs. A tree of which nothing is masked stays so, since inside it a new one can
//! be mounted only where the old one hides nothing: nested containers rest on that.

use contract::Contract;
use contract::config::Config;
use contract::json::Node;

/// The paths to mask.
pub(crate) fn masks(spec: &Node<'_>, contract: &Contract, config: &Config) -> Vec<String> {
    let masked = spec.path(&["linux", "maskedPaths"]).map(Node::items).unwrap_or_default();
    let hides = |tree: &str| masked.iter().filter_map(Node::as_str).any(|path| path.starts_with(tree));
    let (proc, sys) = (hides("/proc/"), hides("/sys/"));
    if config.policy.show_other_gpus || !(proc || sys) {
        return Vec::new();
    }
    let mut paths = Vec::new();
    let granted = |pci: &str| contract.gpus.iter().any(|gpu| gpu.pci == pci);
    for other in contract.facts.driver_gpus.iter().filter(|gpu| !granted(&gpu.pci)) {
        if proc {
            paths.push(format!("/proc/driver/nvidia/gpus/{}", other.pci));
        }
        paths.extend(node::pci::sysfs_folder(&config.host, &other.pci).filter(|_| sys));
    }
    paths
}
