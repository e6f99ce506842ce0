//! What a lease takes: a GPU, or a part of one. Its slot is the PCI address, and for a part `:<gi>.<ci>` behind it, so that a
//! look at the folder of leases answers most questions. A GPU and its parts exclude each other.

use contract::gpu::{Gpu, Partition};
use contract::inventory::Inventory;
use contract::{Granted, GrantedPartition};

use crate::lease::Lease;

impl Lease {
    /// What it is a lease on.
    #[must_use]
    pub fn granted(self) -> Granted {
        Granted { pci: self.pci, uuid: self.uuid, minor: self.minor, partition: self.partition }
    }
}

/// The slot of something granted.
#[must_use]
pub fn of(granted: &Granted) -> String {
    whose(&granted.pci, granted.partition.as_ref())
}

/// The slot that a lease takes.
pub(crate) fn of_lease(lease: &Lease) -> String {
    whose(&lease.pci, lease.partition.as_ref())
}

fn whose(pci: &str, part: Option<&GrantedPartition>) -> String {
    part.map_or_else(|| pci.to_owned(), |part| written(pci, part.gi, part.ci))
}

/// The slot of a part of a GPU.
#[must_use]
pub fn of_part(gpu: &Gpu, part: &Partition) -> String {
    written(&gpu.pci, part.gi, part.ci)
}

fn written(pci: &str, gi: u32, ci: u32) -> String {
    format!("{pci}:{gi}.{ci}")
}

/// Whether two slots cannot have two holders.
pub(crate) fn exclude(one: &str, other: &str) -> bool {
    within(one, other) || within(other, one)
}

/// Whether a slot is this one or a part of it.
fn within(part: &str, slot: &str) -> bool {
    part.strip_prefix(slot).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// The slots that leases take, each given by its slot and the device minor it was made with.
///
/// A device number can move to another address while its container, which was given the number, goes on: then the lease
/// takes both, and there the whole, since the driver numbers capabilities by the GPU's device minor.
pub(crate) fn taken<'l>(inventory: &Inventory, leases: impl Iterator<Item = (&'l str, Option<u32>)>) -> Vec<String> {
    // A minor may have to be read from a file.
    let leases: Vec<_> = leases.collect();
    let mut slots = Vec::new();
    for gpu in &inventory.gpus {
        let pci = gpu.pci.as_str();
        let (mut any, mut whole) = (false, false);
        for &(slot, minor) in &leases {
            let here = within(slot, pci);
            let moved = !here && minor.is_some() && minor == gpu.minor;
            any |= here || moved;
            whole |= moved || slot == pci;
        }
        if any {
            slots.push(pci.to_owned());
            let parts = gpu.partitions.iter().map(|part| of_part(gpu, part));
            slots.extend(parts.filter(|part| whole || leases.iter().any(|(slot, _)| slot == part)));
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cut, inventory};

    const GPU: &str = "0000:01:00.0";

    #[test]
    fn a_gpu_and_its_parts_exclude_each_other() {
        let part = |gi: u32, ci: u32| written(GPU, gi, ci);
        assert_eq!(part(11, 0), "0000:01:00.0:11.0");
        for (one, other, excluded) in [
            (GPU, GPU, true),
            (GPU, &part(1, 0), true),
            (&part(1, 0), &part(1, 0), true),
            (&part(1, 0), &part(1, 1), false),
            (&part(1, 0), &part(11, 0), false),
            // Whoever wrote that meant this GPU.
            (GPU, "0000:01:00.0:x", true),
            (&part(1, 0), "0000:02:00.0:1.0", false),
            (GPU, "0000:02:00.0", false),
            ("10000:01:00.0", GPU, false),
        ] {
            assert_eq!((exclude(one, other), exclude(other, one)), (excluded, excluded), "{one} {other}");
        }
    }

    #[test]
    fn what_leases_take() {
        let mut node = inventory(3);
        cut(&mut node.gpus[0], &["1g.5gb", "1g.5gb"]);
        cut(&mut node.gpus[1], &["1g.5gb", "1g.5gb"]);
        let [one, two] = ["0000:01:00.0", "0000:02:00.0"];
        for (leases, expected) in [
            (vec![], vec![]),
            (vec![("0000:01:00.0:7.0", Some(0))], vec![one, "0000:01:00.0:7.0"]),
            (vec![(one, Some(0))], vec![one, "0000:01:00.0:7.0", "0000:01:00.0:8.0"]),
            (vec![("0000:01:00.0:junk", None)], vec![one]),
            // An instance that is gone still has the GPU.
            (vec![("0000:01:00.0:3.0", Some(0))], vec![one]),
            // The device minor moved.
            (
                vec![("0000:01:00.0:7.0", Some(1))],
                vec![one, "0000:01:00.0:7.0", two, "0000:02:00.0:7.0", "0000:02:00.0:8.0"],
            ),
            (vec![("0000:09:00.0", Some(2))], vec!["0000:03:00.0"]),
        ] {
            assert_eq!(taken(&node, leases.iter().copied()), expected, "{leases:?}");
        }
    }
}
