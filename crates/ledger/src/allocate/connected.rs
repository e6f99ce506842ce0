//! Which of several free GPUs work best together. Pure: what is known is the inventory's links, else NUMA nodes.
//!
//! A set is worth the sum of what its pairs are worth, and a pair of NVLinks more than any pair without. Among sets that are
//! worth the same, more of what the holder had before wins, then the lower addresses: the same question has the same answer.
//! All sets are looked at while there are few; else each GPU gathers the best partners for itself, and the best gathering
//! counts.

use contract::gpu::{Gpu, Link, LinkKind};

/// Most sets that are all looked at: any choice out of 16.
const MOST: u64 = 12_870;

/// Chooses `wanted` of GPUs that are in order of their addresses; the answer is too. `prefers` says which are rather had.
pub(super) fn best<'a>(
    free: &[&'a Gpu],
    wanted: usize,
    links: &[Link],
    prefers: &dyn Fn(&Gpu) -> bool,
) -> Vec<&'a Gpu> {
    let worth: Vec<Vec<u32>> = free.iter().map(|a| free.iter().map(|b| pair(a, b, links)).collect()).collect();
    let mut search = Search {
        worth: &worth,
        preferred: free.iter().map(|gpu| u32::from(prefers(gpu))).collect(),
        wanted,
        best: None,
    };
    if is_exact(free.len(), wanted) {
        search.all(0, &mut Vec::with_capacity(wanted), (0, 0));
    } else {
        (0..free.len()).for_each(|seed| search.gathered(seed));
    }
    let (_, chosen) = search.best.unwrap_or_default();
    chosen.iter().filter_map(|index| free.get(*index).copied()).collect()
}

/// What a set is worth: its pairs, and how much of it is preferred.
type Worth = (u32, u32);

struct Search<'a> {
    worth: &'a [Vec<u32>],
    preferred: Vec<u32>,
    wanted: usize,
    best: Option<(Worth, Vec<usize>)>,
}

impl Search<'_> {
    /// Every set that begins with `chosen` and goes on at `next` or later, in order of addresses: of equals the first stays.
    fn all(&mut self, next: usize, chosen: &mut Vec<usize>, so_far: Worth) {
        if chosen.len() == self.wanted {
            self.offer(so_far, chosen);
            return;
        }
        let last = (self.preferred.len() + chosen.len()).saturating_sub(self.wanted);
        for index in next..=last {
            let (pairs, preferred) = self.with(chosen, index);
            chosen.push(index);
            self.all(index + 1, chosen, (so_far.0 + pairs, so_far.1 + preferred));
            chosen.pop();
        }
    }

    /// The set that a GPU gathers by taking the best partner that is left, again and again.
    fn gathered(&mut self, seed: usize) {
        let mut chosen = vec![seed];
        let mut total = self.with(&[], seed);
        while chosen.len() < self.wanted {
            let mut best: Option<(Worth, usize)> = None;
            for index in (0..self.preferred.len()).filter(|index| !chosen.contains(index)) {
                let worth = self.with(&chosen, index);
                if best.is_none_or(|(known, _)| worth > known) {
                    best = Some((worth, index));
                }
            }
            let Some((worth, index)) = best else { return };
            total = (total.0 + worth.0, total.1 + worth.1);
            chosen.push(index);
        }
        contract::order::sort(&mut chosen);
        self.offer(total, &chosen);
    }

    /// What one more is worth to a set.
    fn with(&self, chosen: &[usize], index: usize) -> Worth {
        let row = self.worth.get(index).map_or(&[][..], Vec::as_slice);
        let pairs = chosen.iter().filter_map(|other| row.get(*other)).sum();
        (pairs, self.preferred.get(index).copied().unwrap_or_default())
    }

    fn offer(&mut self, worth: Worth, chosen: &[usize]) {
        if self.best.as_ref().is_none_or(|(known, _)| worth > *known) {
            self.best = Some((worth, chosen.to_vec()));
        }
    }
}

/// What a pair is worth.
fn pair(a: &Gpu, b: &Gpu, links: &[Link]) -> u32 {
    match between(a, b, links) {
        // One lane outweighs what a set of sixteen gets out of PCI Express.
        Some((LinkKind::Nvlink, lanes)) => lanes.max(1) * 1000,
        Some((LinkKind::Pix, _)) => 5,
        Some((LinkKind::Pxb, _)) => 4,
        Some((LinkKind::Phb, _)) => 3,
        Some((LinkKind::Node, _)) => 2,
        Some((LinkKind::Sys, _)) => 1,
        None => 0,
    }
}

/// The best way between two GPUs that is known, with its NVLinks.
pub(super) fn between(a: &Gpu, b: &Gpu, links: &[Link]) -> Option<(LinkKind, u32)> {
    let is = |link: &&Link| (link.a == a.pci && link.b == b.pci) || (link.a == b.pci && link.b == a.pci);
    let told = links.iter().find(is).map(|link| (link.kind, link.lanes));
    told.or(match (a.numa, b.numa) {
        // The kernel says -1 where the firmware does not tell.
        (Some(one), Some(other)) if one >= 0 && other >= 0 => {
            Some((if one == other { LinkKind::Node } else { LinkKind::Sys }, 0))
        }
        _ => None,
    })
}

/// How many sets of `k` there are among `n`; no more than can be counted.
pub(super) fn sets(n: usize, k: usize) -> u64 {
    let k = k.min(n.saturating_sub(k));
    (0..k).fold(1_u64, |sets, i| sets.saturating_mul((n - i) as u64) / (i as u64 + 1))
}

/// Whether all sets of `k` among `n` are looked at.
pub(super) fn is_exact(n: usize, k: usize) -> bool {
    sets(n, k) <= MOST
}

#[cfg(test)]
mod tests;
