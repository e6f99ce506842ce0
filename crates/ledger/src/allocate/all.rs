//! What answers a request for all: every GPU and every instance that is free, in the inventory's order, up to the request's
//! count.

use contract::inventory::Inventory;
use contract::request::Request;
use contract::{Code, Granted, Refusal};

use super::One;
use crate::limits::Closed;

/// Chooses them.
///
/// # Errors
/// `CAPACITY_FULL` when all are taken, `GPU_UNAVAILABLE` when none could be used anyway.
pub(super) fn allocate(
    inventory: &Inventory,
    taken: &dyn Fn(&str) -> bool,
    request: &Request,
    closed: &[Closed<'_>],
) -> Result<Vec<Granted>, Refusal> {
    let mut ones: Vec<One<'_>> = Vec::new();
    for gpu in &inventory.gpus {
        if gpu.partitions.is_empty() {
            ones.push(One { gpu, part: None });
        }
        for part in &gpu.partitions {
            ones.push(One { gpu, part: Some(part) });
        }
    }
    ones.retain(|one| one.usable() && one.closed_by(closed).is_none());
    let there = ones.len();
    ones.retain(|one| !taken(&one.slot()));
    ones.truncate(request.count as usize);
    if !ones.is_empty() {
        return Ok(ones.iter().map(One::granted).collect());
    }
    let (code, rule, help) = if there > 0 {
        (Code::CapacityFull, "capacity", "try again when one is free, or name the GPUs")
    } else {
        (Code::GpuUnavailable, "all-devices", "name a GPU to be told what is wrong with it")
    };
    let message = format!("all GPUs asked, {there} can be used and none is free");
    Err(Refusal::new(code, rule, message, help).at(request.place("ids"), "all"))
}
