//! What a lease takes: a GPU, or a part of one. Its slot is the PCI address, and for a part `:<gi>.<ci>` behind it, so that a
//! look at the folder of leases answers most questions. A GPU and its parts exclude each other.

use contract::gpu::{Gpu, Partition};
use contract::inventory::Inventory;
use contract::request::Request;
use contract::{Code, Granted, GrantedPartition, Refusal};

use crate::lease::{HeldBy, Lease};

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

/// GPU instance and compute instance of the part of this GPU that a slot is, written as [`of_part`] does.
fn numbers(slot: &str, pci: &str) -> Option<(u32, u32)> {
    let (gi, ci) = slot.strip_prefix(pci)?.strip_prefix(':')?.split_once('.')?;
    let number = |text: &str| text.parse().ok().filter(|_| text == "0" || !text.starts_with(['0', '+']));
    Some((number(gi)?, number(ci)?))
}

/// Whether two slots cannot have two holders.
pub(crate) fn exclude(one: &str, other: &str) -> bool {
    within(one, other) || within(other, one)
}

/// Whether a slot is this one or a part of it.
pub(crate) fn within(part: &str, slot: &str) -> bool {
    part.strip_prefix(slot).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// What a lease takes, as far as that is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Take<'l> {
    /// By its file's name.
    pub(crate) slot: &'l str,
    /// The device minor that its holder was given.
    pub(crate) minor: Option<u32>,
    /// Whether it is by name: such a holder has the address, whatever is bound to it and however that is numbered.
    pub(crate) named: bool,
}

impl<'l> Take<'l> {
    pub(crate) fn of(slot: &'l str, lease: Option<&Lease>) -> Self {
        let named = lease.is_some_and(|lease| matches!(lease.holder, HeldBy::Name { .. }));
        Self { slot, minor: lease.and_then(|lease| lease.minor).filter(|_| !named), named }
    }

    /// Whether its holder has a virtual machine's group with this GPU in it.
    fn has_group_of(&self, gpu: &Gpu, inventory: &Inventory) -> bool {
        let here = |other: &&Gpu| within(self.slot, &other.pci) && other.is_for_machines();
        self.named && inventory.gpus.iter().find(here).is_some_and(|other| other.is_grouped_with(gpu))
    }
}

/// The slots that leases take.
///
/// A device number can move to another address while its container, which was given the number, goes on: then the lease
/// takes both, and there the whole, since the driver numbers capabilities by the GPU's device minor. And whoever has a GPU
/// that is bound to vfio-pci has its IOMMU group.
pub(crate) fn taken<'l>(inventory: &Inventory, leases: impl Iterator<Item = Take<'l>>) -> Vec<String> {
    let leases: Vec<_> = leases.collect();
    let mut slots = Vec::new();
    for gpu in &inventory.gpus {
        let pci = gpu.pci.as_str();
        let (mut here, mut whole) = (Vec::new(), false);
        for take in &leases {
            let is_here = within(take.slot, pci);
            let moved = !is_here && take.minor.is_some() && take.minor == gpu.minor;
            whole |= moved || take.has_group_of(gpu, inventory) || take.slot == pci;
            here.extend(is_here.then(|| (take.slot, numbers(take.slot, pci))));
        }
        if whole || !here.is_empty() {
            slots.push(pci.to_owned());
            for part in &gpu.partitions {
                // By numbers: to write a slot of each part would be most of this.
                let named = here.iter().find(|(_, numbers)| *numbers == Some((part.gi, part.ci)));
                match named {
                    Some((slot, _)) => slots.push((*slot).to_owned()),
                    None if whole => slots.push(of_part(gpu, part)),
                    None => {}
                }
            }
        }
    }
    slots
}

/// Refuses a virtual machine a GPU with one of its IOMMU group that somebody else has.
pub(crate) fn groups_are_free(inventory: &Inventory, taken: &[String], request: &Request) -> Result<(), Refusal> {
    let place = request.place("ids");
    for id in &request.ids {
        let asked = |gpu: &&Gpu| gpu.is_for_machines() && gpu.is_named(id);
        let Some(gpu) = inventory.gpus.iter().find(asked) else { continue };
        let had = |other: &&Gpu| other.pci != gpu.pci && other.is_grouped_with(gpu) && taken.contains(&other.pci);
        if let (Some(other), Some(group)) = (inventory.gpus.iter().find(had), gpu.iommu_group) {
            let message = format!("{id} is in IOMMU group {group} with {}, which another holder has", other.pci);
            let help = "one machine has a whole group: try again when that one is released";
            return Err(Refusal::new(Code::CapacityFull, "capacity", message, help).at(place, id));
        }
    }
    Ok(())
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
            let takes = leases.iter().map(|(slot, minor)| Take { slot, minor: *minor, named: false });
            assert_eq!(taken(&node, takes), expected, "{leases:?}");
        }
    }
}
