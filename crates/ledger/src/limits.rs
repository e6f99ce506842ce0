//! What the operator keeps back: GPUs beyond the declared number, GPUs of some only, more than an owner may have. Pure.

use contract::config::Config;
use contract::gpu::Gpu;
use contract::inventory::Inventory;
use contract::owner::{Capacity, Internal};
use contract::request::Request;
use contract::{Code, Refusal};

use crate::sharing::{Other, Party};

/// The operator's limits; by default there are none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    capacity: Capacity,
    internal: Vec<Internal>,
    max_per_owner: u32,
}

/// A GPU that is kept from somebody, by its address, and the rule that keeps it.
pub(crate) type Closed<'i> = (&'i str, &'static str);

pub(crate) const INTERNAL: &str = "internal-only";
pub(crate) const DECLARED: &str = "capacity-declared";

impl Limits {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            capacity: config.capacity.clone(),
            internal: config.internal.0.clone(),
            max_per_owner: config.request.max_per_owner,
        }
    }

    /// Whether GPUs are counted that are not cut.
    pub(crate) fn count_gpus(&self) -> bool {
        self.capacity.gpus != 0
    }

    /// Whether nothing depends on how much anybody has.
    pub(crate) fn count_nothing(&self) -> bool {
        !self.count_gpus() && self.max_per_owner == 0
    }

    /// The GPUs that are kept from an owner, or from what takes GPUs by name, while others have these leases.
    pub(crate) fn closed<'i>(
        &self,
        inventory: &'i Inventory,
        others: &[Other<'_>],
        who: Option<&str>,
        by_name: bool,
    ) -> Vec<Closed<'i>> {
        let kept = |gpu: &&Gpu| self.internal.iter().any(|internal| internal.keeps(gpu, &inventory.gpus, who));
        let mut closed: Vec<Closed<'i>> =
            inventory.gpus.iter().filter(kept).map(|gpu| (gpu.pci.as_str(), INTERNAL)).collect();
        // What containers do not get is there for what is taken by name.
        if !by_name {
            closed.extend(beyond(&self.capacity, inventory, others).map(|gpu| (gpu.pci.as_str(), DECLARED)));
        }
        closed
    }

    /// Whether an owner may have so many more.
    pub(crate) fn owner_fits(&self, party: &Party<'_>, others: &[Other<'_>], more: usize) -> bool {
        let most = self.max_per_owner as usize;
        most == 0 || party.owner.is_none() || party.owned(others).len() + more <= most
    }

    /// Refuses what would be more than an owner may have together.
    pub(crate) fn owner_may(
        &self,
        party: &Party<'_>,
        others: &[Other<'_>],
        more: usize,
        request: &Request,
    ) -> Result<(), Refusal> {
        if self.owner_fits(party, others, more) {
            return Ok(());
        }
        let message = format!(
            "{more} more asked, containers of this owner have {} already and may have {} together",
            party.owned(others).len(),
            self.max_per_owner
        );
        let help = "try again when another of the owner's containers has ended, or ask for fewer";
        Err(Refusal::new(Code::Policy, "owner-ceiling", message, help)
            .at(request.place("count"), request.count.to_string()))
    }
}

/// The GPUs beyond the declared number: in service are those that containers have, whatever became of them, and then of
/// those that can be used the first by address.
fn beyond<'i>(capacity: &Capacity, inventory: &'i Inventory, others: &[Other<'_>]) -> impl Iterator<Item = &'i Gpu> {
    // Every GPU is of the kind that is no word; a part is no GPU, and one whose model
    // nobody tells may be of it.
    let of_kind: Vec<&Gpu> =
        inventory.gpus.iter().filter(|gpu| gpu.partitions.is_empty() && gpu.may_be_kind(&capacity.kind)).collect();
    let has = |other: &Other<'_>, gpu: &Gpu| other.name.slot == gpu.pci && !other.is_by_name();
    let (held, rest): (Vec<&Gpu>, Vec<&Gpu>) =
        of_kind.into_iter().partition(|gpu| others.iter().any(|other| has(other, gpu)));
    let number = if capacity.gpus == 0 { usize::MAX } else { capacity.gpus as usize };
    rest.into_iter().filter(|gpu| gpu.usable()).skip(number.saturating_sub(held.len()))
}

/// Why a GPU that was named is kept from whoever named it.
pub(crate) fn refusal(id: &str, rule: &'static str) -> Refusal {
    let why = match rule {
        INTERNAL => "is kept for workloads that the operator named",
        _ => "is beyond the number of GPUs that the operator declared for containers",
    };
    Refusal::new(Code::Policy, rule, format!("{id} {why}"), "name another GPU, or ask by count")
}
