//! Which GPUs, or parts of them, answer a request: a pure decision over the inventory and what is taken.
//!
//! It never says who holds what: a tenant reads these words.

mod all;
mod connected;
mod explain;
mod partitions;
mod standing;

use contract::gpu::{Gpu, State, Unavailable};
use contract::inventory::Inventory;
use contract::request::Request;
use contract::{Code, Granted, Refusal};

use crate::limits::{self, Closed};
use crate::slot;

pub(crate) use explain::explain;
pub(crate) use partitions::One;
use standing::Standing;

/// Chooses the GPUs, or the parts, for a request, all or none.
///
/// `taken` says of a slot whether another holder has it; `previous` are the slots that this holder had last. By ids the
/// answer keeps the request's order; by count it is in order of PCI address.
///
/// # Errors
/// `INVALID_GPU_REQUEST` (an ambiguous prefix, one GPU named twice, a count that is not the number of ids),
/// `UNKNOWN_GPU` (not on this node, or more than it has), `GPU_UNAVAILABLE`, `CAPACITY_FULL`.
pub fn allocate(
    inventory: &Inventory,
    taken: &dyn Fn(&str) -> bool,
    request: &Request,
    previous: &[String],
) -> Result<Vec<Granted>, Refusal> {
    allocate_where(inventory, taken, request, previous, &Gpu::usable, &[])
}

/// The same where `usable` says which of the GPUs that are named can be given, and `closed` which are kept from who asks.
pub(crate) fn allocate_where(
    inventory: &Inventory,
    taken: &dyn Fn(&str) -> bool,
    request: &Request,
    previous: &[String],
    usable: &dyn Fn(&Gpu) -> bool,
    closed: &[Closed<'_>],
) -> Result<Vec<Granted>, Refusal> {
    if request.wants_all() {
        return all::allocate(inventory, taken, request, closed);
    }
    if !request.ids.is_empty() {
        return by_ids(inventory, taken, request, usable, closed);
    }
    by_count(inventory, taken, request, previous, closed)
}

fn by_count(
    inventory: &Inventory,
    taken: &dyn Fn(&str) -> bool,
    request: &Request,
    previous: &[String],
    closed: &[Closed<'_>],
) -> Result<Vec<Granted>, Refusal> {
    let wanted = request.count as usize;
    let (kind, profile) = (request.kind.as_deref(), request.profile.as_deref());
    let refused = |code, rule, message: String, help: &str| {
        Err(Refusal::new(code, rule, message, help).at(request.place("count"), request.count.to_string()))
    };
    if wanted == 0 {
        let help = "ask for 1 or more, or leave the request out for no GPU";
        return refused(Code::InvalidGpuRequest, "request-count", "0 GPUs are asked for".to_owned(), help);
    }
    let mut matching = partitions::matching(inventory, kind, profile);
    let all = matching.len();
    matching.retain(|one| one.closed_by(closed).is_none());
    let present = matching.len();
    let kept = all - present;
    let of_kind = kind.map_or_else(String::new, |kind| format!(" of kind {kind:?}"));
    let asked = match profile {
        Some(profile) if present + kept == 0 => {
            return Err(partitions::no_profile(inventory, request, profile, &of_kind));
        }
        Some(profile) => format!("{} of {profile}", instances(wanted)),
        None => count(wanted),
    };
    if wanted > present
        && wanted <= present + kept
        && let Some((_, rule)) = closed.first()
    {
        let message =
            format!("{asked}{of_kind} asked, this node has {present}, and {kept} that are kept from this one");
        return refused(Code::Policy, rule, message, "ask for fewer, or have the operator change what is kept");
    }
    if wanted > present {
        let all = inventory.gpus.len();
        let others = kind.map_or_else(String::new, |_| format!(", among {} in all", count(all)));
        let message = format!("{asked} asked, this node has {present}{of_kind}{others}");
        let help = match present {
            0 => "ask on a node that has such a GPU".to_owned(),
            _ => format!("ask for at most {present}"),
        };
        return refused(Code::UnknownGpu, "request-count", message, &help);
    }
    let standing = Standing::of(&matching, taken);
    if let Some((code, rule, help)) = standing.lacks(wanted) {
        let refusal = refused(code, rule, format!("{asked}{of_kind} asked, {standing}"), help);
        return refusal.map_err(|it| Refusal { may_be_over: it.may_be_over || standing.may_do(wanted), ..it });
    }
    matching.retain(|one| one.usable() && !taken(&one.slot()));
    let had = |one: &One<'_>| previous.contains(&one.slot());
    if profile.is_none() {
        // An inventory is in order of addresses.
        let free: Vec<&Gpu> = matching.iter().map(|one| one.gpu).collect();
        let whole = |gpu: &Gpu| had(&One { gpu, part: None });
        return Ok(connected::best(&free, wanted, &inventory.links, &whole).into_iter().map(Granted::of).collect());
    }
    // What the holder had before comes first, then the lowest: the same question has the same answer.
    contract::order::sort_by(&mut matching, |a, b| (!had(a), a.key()).cmp(&(!had(b), b.key())));
    matching.truncate(wanted);
    contract::order::sort_by(&mut matching, |a, b| a.key().cmp(&b.key()));
    Ok(matching.iter().map(One::granted).collect())
}

/// What could answer a request, in whatever state and whosever: named ones that are there, else all of the kind.
pub(crate) fn candidates<'a>(inventory: &'a Inventory, request: &Request, closed: &[Closed<'_>]) -> Vec<One<'a>> {
    let mut meant = match request.ids.as_slice() {
        [] => partitions::matching(inventory, request.kind.as_deref(), request.profile.as_deref()),
        ids => ids.iter().filter_map(|id| find(inventory, id, request).ok()).collect(),
    };
    meant.retain(|one| one.closed_by(closed).is_none());
    meant
}

fn by_ids(
    inventory: &Inventory,
    taken: &dyn Fn(&str) -> bool,
    request: &Request,
    usable: &dyn Fn(&Gpu) -> bool,
    closed: &[Closed<'_>],
) -> Result<Vec<Granted>, Refusal> {
    let chosen = named_ones(inventory, request)?;
    let place = request.place("ids");
    let named = || request.ids.iter().zip(&chosen);
    if let Some((id, rule)) = named().find_map(|(id, one)| Some((id, one.closed_by(closed)?))) {
        return Err(limits::refusal(id, rule).at(place, id));
    }
    if let Some(refusal) = named().find_map(|(id, one)| Some(one.refusal(id, usable)?.at(place, id))) {
        return Err(refusal);
    }
    let held: Vec<&str> = named().filter(|(_, one)| taken(&one.slot())).map(|(id, _)| id.as_str()).collect();
    if !held.is_empty() {
        // Whoever named an instance is told of instances.
        let parts = chosen.iter().any(|one| one.part.is_some());
        let all = partitions::all(inventory, parts);
        let free = all.iter().filter(|one| one.usable() && !taken(&one.slot())).count();
        let (asked, held_count) = (if parts { instances(chosen.len()) } else { count(chosen.len()) }, held.len());
        let message = format!("{asked} asked by name, {held_count} of them taken; {} present, {free} free", all.len());
        let help = "try again when it is free, or ask by count";
        return Err(Refusal::new(Code::CapacityFull, "capacity", message, help).at(place, held.join(",")));
    }
    Ok(chosen.iter().map(One::granted).collect())
}

/// What a request names, each once, whatever state it is in.
fn named_ones<'a>(inventory: &'a Inventory, request: &Request) -> Result<Vec<One<'a>>, Refusal> {
    let named = request.ids.len();
    let place = request.place("ids");
    if request.count as usize != named {
        let message = format!("the count is {} and {named} ids are named", request.count);
        let help = "make both equal, or give one of them";
        return Err(invalid("request-count-ids", message, help).at(place, request.ids.join(",")));
    }
    let mut chosen: Vec<One<'a>> = Vec::with_capacity(named);
    for id in &request.ids {
        let one = find(inventory, id, request).map_err(|refusal| refusal.at(place, id))?;
        if let Some(at) = chosen.iter().position(|other| other.slot() == one.slot()) {
            if request.source.counts_gpus() {
                continue;
            }
            let earlier = request.ids.get(at).map_or("", String::as_str);
            let message = format!("{earlier} and {id} are the same GPU");
            return Err(invalid("request-ids", message, "name each GPU once").at(place, id));
        }
        let (kind, profile) = (request.kind.as_deref(), request.profile.as_deref());
        let other = if !is_kind(one.gpu, kind) {
            kind.map(|kind| ("request-kind", "kind", kind))
        } else {
            profile.filter(|profile| !one.has(profile)).map(|profile| ("request-profile", "profile", profile))
        };
        if let Some((rule, word, asked)) = other {
            let message = format!("{id} is not of {word} {asked:?}");
            let help = format!("leave the {word} out, or name another GPU");
            return Err(Refusal::new(Code::UnknownGpu, rule, message, help).at(place, id));
        }
        chosen.push(one);
    }
    Ok(chosen)
}

/// What an id means: a full name first, then a prefix of a UUID if it fits one GPU or part only. A bare number is an index
/// where the names are those of tools that count GPUs.
fn find<'a>(inventory: &'a Inventory, id: &str, request: &Request) -> Result<One<'a>, Refusal> {
    let index = id.parse::<u32>().ok().filter(|_| request.source.counts_gpus());
    if let Some(gpu) = index.and_then(|index| inventory.gpus.iter().find(|gpu| gpu.index == Some(index))) {
        return Ok(One { gpu, part: None });
    }
    let part_of = |gpu: &'a Gpu| Some(One { gpu, part: Some(gpu.partition_named(id)?) });
    let whole = |gpu: &'a Gpu| gpu.is_named(id).then_some(One { gpu, part: None });
    if let Some(one) = inventory.gpus.iter().find_map(|gpu| whole(gpu).or_else(|| part_of(gpu))) {
        return Ok(one);
    }
    let fits = |uuid: &Option<String>| uuid.as_deref().is_some_and(|uuid| is_prefix(id, uuid));
    let mut begin: Vec<One<'a>> = Vec::new();
    for gpu in &inventory.gpus {
        begin.extend(fits(&gpu.uuid).then_some(One { gpu, part: None }));
        begin.extend(gpu.partitions.iter().filter(|part| fits(&part.uuid)).map(|part| One { gpu, part: Some(part) }));
    }
    match begin.as_slice() {
        [one] => Ok(*one),
        [] => Err(unknown(inventory, id)),
        several => {
            let message = format!("{id} is the beginning of {} UUIDs", several.len());
            Err(invalid("request-ids", message, "give more of the UUID"))
        }
    }
}

/// How a GPU is named, and how a part of one.
const GPU_NAMES: &str = "name a GPU as nvidia0, GPU-<uuid> or PCI address, or ask by count";
const PART_NAMES: &str =
    "name an instance as MIG-<uuid>, MIG-GPU-<uuid>/<gi>/<ci> or <gpu>:<position>, or ask by profile and count";

/// The refusal of a name that nothing here has, or nothing any more.
fn unknown(inventory: &Inventory, id: &str) -> Refusal {
    let mut former = inventory.former.iter().flatten();
    // Who knows half a name of it had it, and does not try letters to learn another's.
    if let Some((uuid, pci)) = former.rfind(|(uuid, _)| id.len() >= "GPU-12345678".len() && is_prefix(id, uuid)) {
        return Refusal::new(Code::UnknownGpu, "request-ids", gone(inventory, uuid, pci), GPU_NAMES);
    }
    let parts: usize = inventory.gpus.iter().map(|gpu| gpu.partitions.len()).sum();
    let means_part = id.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("MIG-"));
    let (has, help) = match (means_part, parts) {
        (true, 0) => return Refusal::new(Code::UnknownGpu, "request-ids", "this node has no MIG instances", GPU_NAMES),
        (true, n) => (instances(n), PART_NAMES),
        (false, _) => (count(inventory.gpus.len()), GPU_NAMES),
    };
    let message = format!("this node has {has} and none of that name");
    Refusal::new(Code::UnknownGpu, "request-ids", message, help)
}

/// What became of a GPU that was here: where it was, and what is there now.
fn gone(inventory: &Inventory, uuid: &str, pci: &str) -> String {
    let there = match inventory.gpus.iter().find(|gpu| gpu.pci == pci) {
        None => return format!("{uuid} is gone; {pci} holds no GPU now"),
        Some(gpu) => gpu,
    };
    let name = there.minor.map_or_else(String::new, |_| format!(" ({})", there.name()));
    let now = there.uuid.as_deref().unwrap_or("one that the driver does not name");
    format!("{uuid} is gone; {pci}{name} now holds {now}")
}

/// A prefix says something beyond `GPU-`.
fn is_prefix(id: &str, uuid: &str) -> bool {
    id.len() > "GPU-".len() && uuid.get(..id.len()).is_some_and(|start| start.eq_ignore_ascii_case(id))
}

fn is_kind(gpu: &Gpu, kind: Option<&str>) -> bool {
    kind.is_none_or(|kind| gpu.is_kind(kind))
}

/// Refuses GPUs that were promised and cannot be used any more, and instances that are others by now. That somebody had one open is no reason: while they are
/// promised, that is whoever they are promised to.
///
/// # Errors
/// `GPU_UNAVAILABLE`, `DRIVER_NOT_READY` or `CONTRACT_STALE`.
pub fn in_order(inventory: &Inventory, promised: &[Granted]) -> Result<(), Refusal> {
    for one in promised {
        let Some(gpu) = inventory.gpus.iter().find(|gpu| gpu.pci == one.pci) else { continue };
        let part = gpu.partitions.iter().find(|part| slot::of_part(gpu, part) == slot::of(one));
        let why = part.map_or(gpu.unavailable.as_ref(), |part| gpu.without(part));
        let help = "release the reservation and prepare another".to_owned();
        if let Some(why) = why.filter(|why| why.state != State::Busy) {
            return Err(Refusal { help, ..unavailable(&one.name(), why) });
        }
        if part.is_some_and(|part| partitions::is_another(part, one)) {
            let message = format!("{} was made anew since it was reserved", one.name());
            let refusal = Refusal::new(Code::ContractStale, "instance", message, help);
            return Err(Refusal { may_be_over: false, ..refusal });
        }
    }
    Ok(())
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

/// Instances in words.
fn instances(n: usize) -> String {
    format!("{n} MIG instance{}", if n == 1 { "" } else { "s" })
}

fn invalid(rule: &'static str, message: String, help: &str) -> Refusal {
    Refusal::new(Code::InvalidGpuRequest, rule, message, help)
}

fn count(n: usize) -> String {
    format!("{n} GPU{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
