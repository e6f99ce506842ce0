//! What is known of leases by their names alone: a node may have more than a hundred, and to open each is most of a create.
//!
//! A name tells which GPU is taken. What stands in the file matters to who shares, to limits of the operator's, to who waits, and in
//! three ways to everybody: the holder's control group, the group of a virtual machine, and the device number that the holder was
//! given, which may be another GPU's by now. That no number is says `leases/numbers-<digest>`, a file without content: every
//! lease here agrees with the addresses and numbers of which this is the digest. It is made by who read all of them, and removed
//! before a lease is written by other numbers.

use contract::inventory::Inventory;
use contract::key::Key;
use contract::request::{Request, Sharing};

use crate::LedgerError;
use crate::files::Locked;
use crate::lease::{HeldBy, Name};
use crate::sharing::Other;
use crate::slot::{Take, within};
use crate::store::{Ledger, Taker};
use crate::waiting::Waiter;

const PREFIX: &str = "numbers-";
/// So many leases are read sooner than anything is asked instead.
pub(crate) const FEW: usize = 4;

/// What the files beside the leases say of their numbers.
pub(crate) struct Numbers {
    /// The file for those of the inventory.
    name: String,
    /// Whether it is there.
    agreed: bool,
    /// Those for others.
    former: Vec<String>,
}

impl Numbers {
    /// Nothing where there are few leases and no such file.
    pub(crate) fn of(inventory: &Inventory, listing: &[String]) -> Option<Self> {
        let mut former: Vec<String> = listing.iter().filter(|name| name.starts_with(PREFIX)).cloned().collect();
        if former.is_empty() && listing.len() <= FEW {
            return None;
        }
        let mut text = String::new();
        for gpu in &inventory.gpus {
            text.push_str(&gpu.pci);
            text.push_str(&gpu.minor.map_or_else(String::new, |minor| format!(" {minor}")));
            text.push('\n');
        }
        let name = format!("{PREFIX}{}", Key::of("numbers", &text));
        let all = former.len();
        former.retain(|other| *other != name);
        Some(Self { agreed: former.len() < all, name, former })
    }

    /// Before a lease is written by the inventory's numbers.
    pub(crate) fn begin(&self, locked: &Locked) -> Result<(), LedgerError> {
        self.former.iter().try_for_each(|name| locked.remove(&format!("leases/{name}")).map(|_| ()))
    }

    /// After it: keeps that all leases agree, as who read the others found. What cannot be kept is found again.
    pub(crate) fn keep(&self, locked: &Locked, others_agree: bool) {
        if others_agree && !self.agreed {
            let _ = locked.place(&format!("leases/{}", self.name), b"");
        }
    }
}

/// Whether these leases, which were read, agree with the inventory's numbers.
pub(crate) fn agree(inventory: &Inventory, others: &[Other<'_>]) -> bool {
    let agrees = |other: &Other<'_>| {
        let take = Take::of(&other.name.slot, other.lease.as_ref());
        let there = || inventory.gpus.iter().any(|gpu| within(take.slot, &gpu.pci) && gpu.minor == take.minor);
        other.lease.is_some() && (take.minor.is_none() || there())
    };
    others.len() > FEW && others.iter().all(agrees)
}

impl Ledger {
    /// Whether an answer would be the same if every other lease were read.
    pub(crate) fn names_tell(
        &self,
        numbers: Option<&Numbers>,
        ahead: &[Waiter],
        inventory: &Inventory,
        request: &Request,
        taker: &Taker<'_>,
    ) -> bool {
        let alone = || match taker.holder {
            HeldBy::Container { cgroup: Some(cgroup), .. } => self.is_alone_in(cgroup),
            _ => true,
        };
        numbers.is_some_and(|numbers| numbers.agreed)
            && request.terms.sharing == Sharing::Exclusive
            && ahead.is_empty()
            && self.limits.count_nothing()
            && !inventory.gpus.iter().any(contract::gpu::Gpu::is_for_machines)
            && alone()
    }

    /// The leases of others than this tag, by their names.
    pub(crate) fn named<'n>(leases: &'n [Name], tag: &str) -> Vec<Other<'n>> {
        leases.iter().filter(|lease| lease.tag != tag).map(|name| Other { name, lease: None }).collect()
    }

    /// Whether a control group has nobody in it and none above it: whatever a lease's group is, who has it is in no way to it.
    pub(crate) fn is_alone_in(&self, cgroup: &str) -> bool {
        let mut parts = cgroup.split('/').filter(|part| !part.is_empty() && *part != ".");
        // Without a slash before it, it is looked for wherever any way to write it may lead.
        let only = parts.next().filter(|_| parts.next().is_none());
        only.is_some_and(|only| self.machine.cgroup_is_empty(only) == Ok(true))
    }
}

#[cfg(test)]
mod tests;
