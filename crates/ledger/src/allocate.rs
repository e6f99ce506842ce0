//! Which GPUs answer a request: a pure decision over the inventory and what is taken.
//!
//! It never says who holds what: a tenant reads these words.

mod connected;
mod explain;
mod standing;

use contract::gpu::{Gpu, State, Unavailable};
use contract::inventory::Inventory;
use contract::request::Request;
use contract::{Code, Refusal};

use crate::limits::{self, Closed};

pub(crate) use explain::explain;
use standing::Standing;

/// Chooses the GPUs for a request, all or none.
///
/// `taken` says of a PCI address whether another holder has it; `previous` are the PCI addresses that this holder had
/// last. By ids the answer keeps the request's order; by count it is in order of PCI address.
///
/// # Errors
/// `INVALID_GPU_REQUEST` (an ambiguous prefix, one GPU named twice, a count that is not the number of ids),
/// `UNKNOWN_GPU` (not on this node, or more than it has), `GPU_UNAVAILABLE`, `CAPACITY_FULL`.
pub fn allocate<'a>(
    inventory: &'a Inventory,
    taken: &dyn Fn(&str) -> bool,
    request: &Request,
    previous: &[String],
) -> Result<Vec<&'a Gpu>, Refusal> {
    allocate_where(inventory, taken, request, previous, &Gpu::usable, &[])
}

/// The same where `usable` says which of the GPUs that are named can be given, and `closed` which are kept from who asks.
pub(crate) fn allocate_where<'a>(
    inventory: &'a Inventory,
    taken: &dyn Fn(&str) -> bool,
    request: &Request,
    previous: &[String],
    usable: &dyn Fn(&Gpu) -> bool,
    closed: &[Closed<'_>],
) -> Result<Vec<&'a Gpu>, Refusal> {
    if let Some(profile) = &request.profile {
        let help = "leave the profile out to get whole GPUs";
        let refusal = Refusal::new(Code::UnknownGpu, "request-profile", "this node has no MIG instances", help);
        return Err(refusal.at(request.place("profile"), profile));
    }
    if request.ids.is_empty() {
        by_count(inventory, taken, request, previous, closed)
    } else {
        by_ids(inventory, taken, request, usable, closed)
    }
}

/// The GPUs (PCI addresses) that leases take, each given by the address and device minor it was made with.
///
/// A device number can move to another address while its container, which was given the number, goes on: then the lease
/// takes both.
pub fn taken<'a, 'l>(
    inventory: &'a Inventory,
    leases: impl Iterator<Item = (&'l str, Option<u32>)> + Clone,
) -> Vec<&'a str> {
    let is_taken =
        |gpu: &&Gpu| leases.clone().any(|(pci, minor)| pci == gpu.pci || minor.is_some() && minor == gpu.minor);
    inventory.gpus.iter().filter(is_taken).map(|gpu| gpu.pci.as_str()).collect()
}

fn by_count<'a>(
    inventory: &'a Inventory,
    taken: &dyn Fn(&str) -> bool,
    request: &Request,
    previous: &[String],
    closed: &[Closed<'_>],
) -> Result<Vec<&'a Gpu>, Refusal> {
    let wanted = request.count as usize;
    let refused = |code, rule, message: String, help: &str| {
        Refusal::new(code, rule, message, help).at(request.place("count"), request.count.to_string())
    };
    if wanted == 0 {
        let help = "ask for 1 or more, or leave the request out for no GPU";
        return Err(refused(Code::InvalidGpuRequest, "request-count", "0 GPUs are asked for".to_owned(), help));
    }
    let kind = request.kind.as_deref();
    let mut matching = candidates(inventory, request, closed);
    let present = matching.len();
    let of_kind = kind.map_or_else(String::new, |kind| format!(" of kind {kind:?}"));
    let asked = count(wanted);
    let kept = candidates(inventory, request, &[]).len() - present;
    if wanted > present
        && wanted <= present + kept
        && let Some((_, rule)) = closed.first()
    {
        let message =
            format!("{asked}{of_kind} asked, this node has {present}, and {kept} that are kept from this one");
        return Err(refused(Code::Policy, rule, message, "ask for fewer, or have the operator change what is kept"));
    }
    if wanted > present {
        let all = inventory.gpus.len();
        let others = kind.map_or_else(String::new, |_| format!(", among {} in all", count(all)));
        let message = format!("{asked} asked, this node has {present}{of_kind}{others}");
        let help = match present {
            0 => "ask on a node that has such a GPU".to_owned(),
            _ => format!("ask for at most {present}"),
        };
        return Err(refused(Code::UnknownGpu, "request-count", message, &help));
    }
    let standing = Standing::of(&matching, taken);
    if let Some((code, rule, help)) = standing.lacks(wanted) {
        return Err(refused(code, rule, format!("{asked}{of_kind} asked, {standing}"), help));
    }
    matching.retain(|gpu| gpu.usable() && !taken(&gpu.pci));
    // An inventory is in order of addresses.
    Ok(connected::best(&matching, wanted, &inventory.links, &|gpu| previous.contains(&gpu.pci)))
}

/// The GPUs that could answer a request, in whatever state and whosever: named ones that are there, else all of the kind.
pub(crate) fn candidates<'a>(inventory: &'a Inventory, request: &Request, closed: &[Closed<'_>]) -> Vec<&'a Gpu> {
    let open = |gpu: &&Gpu| !closed.iter().any(|(pci, _)| *pci == gpu.pci);
    let meant = |gpu: &&Gpu| match request.ids.as_slice() {
        [] => is_kind(gpu, request.kind.as_deref()),
        ids => ids.iter().any(|id| find(inventory, id).is_ok_and(|named| named.pci == gpu.pci)),
    };
    inventory.gpus.iter().filter(meant).filter(open).collect()
}

fn by_ids<'a>(
    inventory: &'a Inventory,
    taken: &dyn Fn(&str) -> bool,
    request: &Request,
    usable: &dyn Fn(&Gpu) -> bool,
    closed: &[Closed<'_>],
) -> Result<Vec<&'a Gpu>, Refusal> {
    let chosen = named_gpus(inventory, request)?;
    let place = request.place("ids");
    let named = || request.ids.iter().zip(&chosen);
    let kept = |(id, gpu): (_, &&Gpu)| Some((id, closed.iter().find(|(pci, _)| *pci == gpu.pci)?.1));
    if let Some((id, rule)) = named().find_map(kept) {
        return Err(limits::refusal(id, rule).at(place, id));
    }
    if let Some((id, why)) =
        named().filter(|(_, gpu)| !usable(gpu)).find_map(|(id, gpu)| gpu.unavailable.as_ref().map(|why| (id, why)))
    {
        return Err(unavailable(id, why).at(place, id));
    }
    let held: Vec<&str> = named().filter(|(_, gpu)| taken(&gpu.pci)).map(|(id, _)| id.as_str()).collect();
    if !held.is_empty() {
        let free = inventory.gpus.iter().filter(|gpu| gpu.usable() && !taken(&gpu.pci)).count();
        let (asked, held_count, present) = (count(chosen.len()), held.len(), inventory.gpus.len());
        let message = format!("{asked} asked by name, {held_count} of them taken; {present} present, {free} free");
        let help = "try again when it is free, or ask by count";
        return Err(Refusal::new(Code::CapacityFull, "capacity", message, help).at(place, held.join(",")));
    }
    Ok(chosen)
}

/// The GPUs that a request names, each once, whatever state they are in.
fn named_gpus<'a>(inventory: &'a Inventory, request: &Request) -> Result<Vec<&'a Gpu>, Refusal> {
    let named = request.ids.len();
    let place = request.place("ids");
    if request.count as usize != named {
        let message = format!("the count is {} and {named} ids are named", request.count);
        let help = "make both equal, or give one of them";
        return Err(invalid("request-count-ids", message, help).at(place, request.ids.join(",")));
    }
    let mut chosen: Vec<&Gpu> = Vec::with_capacity(named);
    for id in &request.ids {
        let gpu = find(inventory, id).map_err(|refusal| refusal.at(place, id))?;
        if let Some(at) = chosen.iter().position(|other| other.pci == gpu.pci) {
            let earlier = request.ids.get(at).map_or("", String::as_str);
            let message = format!("{earlier} and {id} are the same GPU");
            return Err(invalid("request-ids", message, "name each GPU once").at(place, id));
        }
        let kind = request.kind.as_deref();
        if !is_kind(gpu, kind) {
            let message = format!("{id} is not of kind {:?}", kind.unwrap_or_default());
            let help = "leave the kind out, or name another GPU";
            return Err(Refusal::new(Code::UnknownGpu, "request-kind", message, help).at(place, id));
        }
        chosen.push(gpu);
    }
    Ok(chosen)
}

/// The GPU that an id means: a full name first, then a prefix of a UUID if it fits one GPU only.
fn find<'a>(inventory: &'a Inventory, id: &str) -> Result<&'a Gpu, Refusal> {
    if let Some(gpu) = inventory.gpus.iter().find(|gpu| gpu.is_named(id)) {
        return Ok(gpu);
    }
    let fits: Vec<&Gpu> =
        inventory.gpus.iter().filter(|gpu| gpu.uuid.as_deref().is_some_and(|uuid| is_prefix(id, uuid))).collect();
    match fits.as_slice() {
        [gpu] => Ok(gpu),
        [] => {
            let has = match (id.to_ascii_lowercase().starts_with("mig-"), inventory.gpus.len()) {
                (true, _) => "this node has no MIG instances".to_owned(),
                (false, n) => format!("this node has {} and none of that name", count(n)),
            };
            let help = "name a GPU as nvidia0, GPU-<uuid> or PCI address, or ask by count";
            Err(Refusal::new(Code::UnknownGpu, "request-ids", has, help))
        }
        several => {
            let message = format!("{id} is the beginning of {} UUIDs", several.len());
            Err(invalid("request-ids", message, "give more of the UUID"))
        }
    }
}

/// A prefix says something beyond `GPU-`.
fn is_prefix(id: &str, uuid: &str) -> bool {
    id.len() > "GPU-".len() && uuid.get(..id.len()).is_some_and(|start| start.eq_ignore_ascii_case(id))
}

fn is_kind(gpu: &Gpu, kind: Option<&str>) -> bool {
    kind.is_none_or(|kind| gpu.is_kind(kind))
}

/// The refusal of a GPU that is named and cannot be granted.
fn unavailable(id: &str, why: &Unavailable) -> Refusal {
    let code = if why.state.awaits_driver() { Code::DriverNotReady } else { Code::GpuUnavailable };
    // Whose program that is, no tenant needs to know.
    let told = match why.state {
        State::Busy => "in use outside any lease; `quilt-gpu inventory` on the node says by whom",
        _ => &why.why,
    };
    let message = format!("{id} cannot be used now: {told}");
    Refusal::new(code, why.state.rule(), message, "name another GPU, or ask by count")
}

fn invalid(rule: &'static str, message: String, help: &str) -> Refusal {
    Refusal::new(Code::InvalidGpuRequest, rule, message, help)
}

fn count(n: usize) -> String {
    format!("{n} GPU{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
