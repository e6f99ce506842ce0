//! Which of the node's MIG instances an answer rests on. A node may have more than a hundred, and whoever is granted one rests
//! on those of its own GPU; whoever is refused, or would be by others, on all.

use contract::inventory::Inventory;
use contract::request::Request;
use contract::{Granted, Refusal};

use crate::limits::Limits;
use crate::waiting;

/// Says whether the inventory's MIG instances are still the node's: those of the GPUs that these are, or are on, or all. Asked
/// under the lock, before anything is taken.
pub type Still<'a> = &'a dyn Fn(Option<&[Granted]>) -> Result<(), Refusal>;

/// For an inventory of which all was compared already.
///
/// # Errors
/// None.
pub fn compared(_: Option<&[Granted]>) -> Result<(), Refusal> {
    Ok(())
}

/// Whether what is granted rests on instances that are not: `all` is all there are, a beginning of a name must not be that of
/// another, the declared number counts the GPUs that are not cut, and who waits is left what is there for him.
pub(crate) fn on_all(inventory: &Inventory, request: &Request, limits: &Limits, listing: &[String]) -> bool {
    let begins = |id: &String| {
        let named = || inventory.gpus.iter().any(|gpu| gpu.partition_named(id).is_some());
        id.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("MIG-")) && !named()
    };
    request.wants_all() || limits.count_gpus() || waiting::anybody(listing) || request.ids.iter().any(begins)
}

#[cfg(test)]
mod tests;
