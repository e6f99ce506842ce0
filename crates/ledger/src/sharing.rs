//! Which leases are in whose way. Pure.
//!
//! A GPU is nobody else's while somebody has it, but containers of one attested owner that all ask for it may have it
//! together. Whose a lease is stands in it; what cannot be read is in everybody's way.

use contract::Granted;
use contract::inventory::Inventory;
use contract::request::{Request, Sharing};

use crate::lease::{HeldBy, Lease, Name};
use crate::slot::{self, Take, taken};

/// A lease of somebody else.
pub(crate) struct Other<'a> {
    pub(crate) name: &'a Name,
    /// Its record, when that can be read.
    pub(crate) lease: Option<Lease>,
}

impl Other<'_> {
    /// Whether it is something's known by name, and so no container's.
    pub(crate) fn is_by_name(&self) -> bool {
        matches!(self.lease.as_ref().map(|lease| &lease.holder), Some(HeldBy::Name { .. }))
    }
}

/// Whose a request is, as far as that changes what it can have.
#[derive(Clone, Copy)]
pub(crate) struct Party<'a> {
    pub(crate) owner: Option<&'a str>,
    pub(crate) sharing: Sharing,
}

impl<'a> Party<'a> {
    pub(crate) fn of(owner: Option<&'a str>, request: &Request) -> Self {
        Self { owner, sharing: request.terms.sharing }
    }

    /// Whether this lease is one to share with. One that drains is not: what still has its GPU open is no container.
    fn shares(&self, other: &Other<'_>) -> bool {
        let Some(HeldBy::Container { owner: Some(owner), sharing: Some(Sharing::Owner), .. }) =
            other.lease.as_ref().map(|lease| &lease.holder)
        else {
            return false;
        };
        self.sharing == Sharing::Owner && self.owner == Some(owner)
    }

    /// The slots that it cannot have because of these leases.
    pub(crate) fn taken(&self, inventory: &Inventory, others: &[Other<'_>]) -> Vec<String> {
        let in_the_way = others.iter().filter(|other| !self.shares(other));
        taken(inventory, in_the_way.map(|other| Take::of(&other.name.slot, other.lease.as_ref())))
    }

    /// The slots that its owner shares already.
    pub(crate) fn shared(&self, others: &[Other<'_>]) -> Vec<String> {
        let mut shared: Vec<String> =
            others.iter().filter(|other| self.shares(other)).map(|other| other.name.slot.clone()).collect();
        shared.dedup();
        shared
    }

    /// How many slots come to those of its owner with these.
    pub(crate) fn more(&self, others: &[Other<'_>], chosen: &[Granted]) -> usize {
        let owned = self.owned(others);
        chosen.iter().filter(|one| !owned.contains(&slot::of(one).as_str())).count()
    }

    /// How many come at least, whatever it is granted.
    pub(crate) fn least(&self, others: &[Other<'_>], request: &Request) -> usize {
        (request.count as usize).saturating_sub(self.shared(others).len())
    }

    /// The slots that its owner has, each once.
    pub(crate) fn owned<'o>(&self, others: &'o [Other<'_>]) -> Vec<&'o str> {
        let mut owned: Vec<&str> = Vec::new();
        for other in others {
            let owner = other.lease.as_ref().and_then(|lease| lease.holder.owner());
            let slot = other.name.slot.as_str();
            if owner.is_some() && self.owner == owner && !owned.contains(&slot) {
                owned.push(slot);
            }
        }
        owned
    }
}
