//! Why a request is answered with these GPUs and no others, in words for operators. Pure; no part of a container's start.

use contract::gpu::{Gpu, LinkKind};
use contract::inventory::Inventory;
use contract::request::Request;

use super::{connected, count as gpus, is_kind};

/// Why `chosen` (slots) answers the request: one sentence a line.
///
/// `taken` and `previous` are those of [`super::allocate()`].
pub(crate) fn explain(
    inventory: &Inventory,
    taken: &dyn Fn(&str) -> bool,
    request: &Request,
    previous: &[String],
    chosen: &[String],
) -> Vec<String> {
    if !request.ids.is_empty() {
        return vec![format!("{} asked for by name: {}", gpus(request.ids.len()), request.ids.join(", "))];
    }
    if let Some(profile) = &request.profile {
        let asked = format!("{} of {profile} asked", super::instances(chosen.len()));
        return vec![format!("{asked}: what the holder had before, then the lowest addresses: {}", chosen.join(", "))];
    }
    let matching: Vec<&Gpu> = inventory.gpus.iter().filter(|gpu| is_kind(gpu, request.kind.as_deref())).collect();
    let free: Vec<&Gpu> = matching.iter().copied().filter(|gpu| gpu.usable() && !taken(&gpu.pci)).collect();
    let kind = request.kind.as_deref().map_or_else(String::new, |kind| format!(" of kind {kind:?}"));
    let mut lines =
        vec![format!("{}{kind} asked, {} present, {} of them free", gpus(chosen.len()), matching.len(), free.len())];
    let set: Vec<&Gpu> = inventory.gpus.iter().filter(|gpu| chosen.contains(&gpu.pci)).collect();
    lines.extend(set.iter().map(|gpu| of_one(gpu, previous)));
    for (at, a) in set.iter().enumerate() {
        let later = set.get(at + 1..).unwrap_or_default();
        lines.extend(later.iter().map(|b| format!("{} and {}: {}", a.name(), b.name(), way(a, b, inventory))));
    }
    lines.push(because(inventory, &free, chosen.len(), previous));
    lines
}

fn of_one(gpu: &Gpu, previous: &[String]) -> String {
    let numa = gpu.numa.filter(|numa| *numa >= 0).map_or_else(String::new, |numa| format!(", NUMA node {numa}"));
    let had = if previous.contains(&gpu.pci) { ", the holder had it before" } else { "" };
    format!("{} ({}){numa}{had}", gpu.name(), gpu.pci)
}

fn way(a: &Gpu, b: &Gpu, inventory: &Inventory) -> String {
    match connected::between(a, b, &inventory.links) {
        Some((LinkKind::Nvlink, lanes)) => format!("NVLink, {lanes} {}", if lanes == 1 { "link" } else { "links" }),
        Some((LinkKind::Pix, _)) => "one PCIe switch (PIX)".to_owned(),
        Some((LinkKind::Pxb, _)) => "several PCIe switches (PXB)".to_owned(),
        Some((LinkKind::Phb, _)) => "a PCIe host bridge (PHB)".to_owned(),
        Some((LinkKind::Node, _)) => "one NUMA node (NODE)".to_owned(),
        Some((LinkKind::Sys, _)) => "different NUMA nodes (SYS)".to_owned(),
        None => "nothing is known of the way between them".to_owned(),
    }
}

fn because(inventory: &Inventory, free: &[&Gpu], wanted: usize, previous: &[String]) -> String {
    let tie = if free.iter().any(|gpu| previous.contains(&gpu.pci)) {
        "what the holder had before, then the lowest addresses"
    } else {
        "the lowest addresses"
    };
    let known = |a: &&Gpu| free.iter().any(|b| a.pci != b.pci && connected::between(a, b, &inventory.links).is_some());
    if free.len() <= wanted {
        "there is no other choice".to_owned()
    } else if wanted < 2 || !free.iter().any(known) {
        format!("chosen by {tie}")
    } else {
        let looked = if connected::is_exact(free.len(), wanted) {
            format!("the best connected of {} sets", connected::sets(free.len(), wanted))
        } else {
            format!("the best connected set found from each of {} free GPUs", free.len())
        };
        format!("{looked}; among equals, {tie}")
    }
}

#[cfg(test)]
mod tests {
    use contract::gpu::Link;

    use super::*;
    use crate::testing::{count, ids, inventory};

    #[test]
    fn words() {
        let mut node = inventory(4);
        let pci = |n: usize| format!("0000:{:02x}:00.0", n + 1);
        let told = |node: &Inventory, request: &Request, previous: &[String]| {
            let chosen: Vec<String> = super::super::allocate(node, &|_| false, request, previous)
                .unwrap()
                .iter()
                .map(|gpu| gpu.pci.clone())
                .collect();
            explain(node, &|_| false, request, previous, &chosen).join("\n")
        };
        assert_eq!(told(&node, &ids(&["nvidia2"]), &[]), "1 GPU asked for by name: nvidia2");
        assert_eq!(
            told(&node, &count(1), &[pci(3)]),
            "1 GPU asked, 4 present, 4 of them free\nnvidia3 (0000:04:00.0), the holder had it before\n\
             chosen by what the holder had before, then the lowest addresses"
        );
        assert!(told(&node, &count(4), &[]).ends_with("there is no other choice"));
        node.gpus[1].numa = Some(1);
        node.links = vec![Link { a: pci(1), b: pci(2), kind: LinkKind::Nvlink, lanes: 4 }];
        assert_eq!(
            told(&node, &count(2), &[]),
            "2 GPUs asked, 4 present, 4 of them free\nnvidia1 (0000:02:00.0), NUMA node 1\nnvidia2 (0000:03:00.0)\n\
             nvidia1 and nvidia2: NVLink, 4 links\nthe best connected of 6 sets; among equals, the lowest addresses"
        );
    }
}
