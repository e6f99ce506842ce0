//! Machines as they are sold, and every choice on made-up ones against a search that leaves nothing out.

use contract::inventory::Inventory;
use proptest::prelude::*;

use super::*;
use crate::testing::inventory;

fn link(node: &mut Inventory, a: usize, b: usize, kind: LinkKind, lanes: u32) {
    let (a, b) = (node.gpus[a].pci.clone(), node.gpus[b].pci.clone());
    node.links.push(Link { a, b, kind, lanes });
}

/// Two halves of four behind a processor each, pairs under one switch.
fn eight_in_two_halves() -> Inventory {
    let mut node = inventory(8);
    for a in 0..8 {
        for b in a + 1..8 {
            let kind = match (a / 4 == b / 4, a / 2 == b / 2) {
                (_, true) => LinkKind::Pix,
                (true, _) => LinkKind::Node,
                _ => LinkKind::Sys,
            };
            link(&mut node, a, b, kind, 0);
        }
    }
    node
}

/// The same with bridges over pairs that no switch joins.
fn eight_with_bridges() -> Inventory {
    let mut node = eight_in_two_halves();
    for (a, b, lanes) in [(0, 3, 4), (1, 2, 4), (4, 7, 12), (5, 6, 4)] {
        let (a, b) = (node.gpus[a].pci.clone(), node.gpus[b].pci.clone());
        let link = node.links.iter_mut().find(|link| link.a == a && link.b == b).unwrap();
        (link.kind, link.lanes) = (LinkKind::Nvlink, lanes);
    }
    node
}

/// Only the processors are known.
fn by_numa(nodes: &[Option<i32>]) -> Inventory {
    let mut node = inventory(u32::try_from(nodes.len()).unwrap());
    for (gpu, numa) in node.gpus.iter_mut().zip(nodes) {
        gpu.numa = *numa;
    }
    node
}

fn chosen(node: &Inventory, taken: &[usize], wanted: usize, previous: &[usize]) -> Vec<u32> {
    let free: Vec<&Gpu> =
        node.gpus.iter().enumerate().filter(|(n, _)| !taken.contains(n)).map(|(_, gpu)| gpu).collect();
    let prefers = |gpu: &Gpu| previous.iter().any(|n| node.gpus[*n].pci == gpu.pci);
    best(&free, wanted, &node.links, &prefers).iter().filter_map(|gpu| gpu.minor).collect()
}

#[test]
fn the_best_connected_set() {
    let (halves, bridges) = (eight_in_two_halves(), eight_with_bridges());
    for (node, taken, wanted, previous, expected) in [
        (&halves, vec![], 2, vec![], vec![0, 1]),
        (&halves, vec![0], 2, vec![], vec![2, 3]),
        (&halves, vec![0, 2], 2, vec![], vec![4, 5]),
        (&halves, vec![], 4, vec![], vec![0, 1, 2, 3]),
        (&halves, vec![1], 4, vec![], vec![4, 5, 6, 7]),
        (&halves, vec![1, 5], 4, vec![], vec![2, 3, 6, 7]),
        // What it had before, when it is as good; not when it is worse.
        (&halves, vec![], 2, vec![6, 7], vec![6, 7]),
        (&halves, vec![], 2, vec![6], vec![6, 7]),
        (&halves, vec![], 2, vec![3, 4], vec![2, 3]),
        (&bridges, vec![], 2, vec![], vec![4, 7]),
        (&bridges, vec![4], 2, vec![], vec![0, 3]),
        (&bridges, vec![4], 2, vec![1], vec![1, 2]),
        (&bridges, vec![4], 2, vec![0, 1], vec![0, 3]),
        (&bridges, vec![], 4, vec![], vec![4, 5, 6, 7]),
        (&bridges, vec![], 8, vec![], vec![0, 1, 2, 3, 4, 5, 6, 7]),
        (&by_numa(&[Some(0), Some(1), Some(0), Some(1)]), vec![], 2, vec![], vec![0, 2]),
        (&by_numa(&[Some(0), Some(1), Some(0), Some(1)]), vec![0], 2, vec![], vec![1, 3]),
        (&by_numa(&[Some(-1), Some(1), Some(-1), Some(1)]), vec![], 2, vec![], vec![1, 3]),
        (&by_numa(&[None, None, None]), vec![], 2, vec![2], vec![0, 2]),
        (&inventory(0), vec![], 0, vec![], vec![]),
    ] {
        let of = node.links.len();
        assert_eq!(chosen(node, &taken, wanted, &previous), expected, "{of} links, {taken:?} {wanted} {previous:?}");
    }
}

#[test]
fn sets_are_counted() {
    for (n, k, expected) in [(8, 4, 70), (16, 8, 12_870), (4, 4, 1), (4, 0, 1), (3, 5, 1), (32, 16, 601_080_390)] {
        assert_eq!(sets(n, k), expected, "{n} {k}");
    }
    assert!(is_exact(16, 8) && !is_exact(18, 9));
    assert!(sets(1000, 500) > MOST);
}

#[test]
fn a_large_machine_gets_a_whole_island() {
    // Four islands of eight; the greedy search is all there is.
    let mut node = inventory(32);
    for a in 0..32 {
        for b in a + 1..32 {
            let kind = if a % 4 == b % 4 { LinkKind::Nvlink } else { LinkKind::Sys };
            link(&mut node, a, b, kind, 18);
        }
    }
    assert_eq!(chosen(&node, &[0], 8, &[]), [1, 5, 9, 13, 17, 21, 25, 29]);
    assert_eq!(chosen(&node, &[0], 8, &[3]), [3, 7, 11, 15, 19, 23, 27, 31]);
}

/// What a set is worth, and how much of it was had before.
fn worth(node: &Inventory, set: &[u32], previous: &[usize]) -> Worth {
    let gpus: Vec<&Gpu> = set.iter().map(|n| &node.gpus[*n as usize]).collect();
    let pairs = gpus.iter().enumerate().flat_map(|(n, a)| gpus[..n].iter().map(|b| pair(a, b, &node.links))).sum();
    let kept = set.iter().filter(|n| previous.contains(&(**n as usize))).count();
    (pairs, u32::try_from(kept).unwrap())
}

proptest! {
    /// No set is better than the answer, none before it in order is as good, and a second look gives the same.
    #[test]
    fn nothing_is_better(
        kinds in prop::collection::vec(0_u32..7, 21),
        taken in prop::collection::vec(0_usize..7, 0..4),
        wanted in 1_usize..5,
        previous in prop::collection::vec(0_usize..7, 0..3),
    ) {
        let mut node = inventory(7);
        let pairs = (0..7).flat_map(|a| (a + 1..7).map(move |b| (a, b)));
        for ((a, b), kind) in pairs.zip(&kinds) {
            let ways = [LinkKind::Nvlink, LinkKind::Pix, LinkKind::Pxb, LinkKind::Phb, LinkKind::Node, LinkKind::Sys];
            if let Some(way) = ways.get(*kind as usize) {
                link(&mut node, a, b, *way, kind % 3);
            }
        }
        let free: Vec<u32> = (0..7).filter(|n| !taken.contains(&(*n as usize))).collect();
        prop_assume!(free.len() >= wanted);
        let answer = chosen(&node, &taken, wanted, &previous);
        prop_assert_eq!(&answer, &chosen(&node, &taken, wanted, &previous));
        prop_assert_eq!(answer.len(), wanted);
        let mine = worth(&node, &answer, &previous);
        for mask in 0_u32..128 {
            let set: Vec<u32> = (0..7).filter(|n| mask >> n & 1 == 1).collect();
            if set.len() == wanted && set.iter().all(|n| free.contains(n)) {
                let other = worth(&node, &set, &previous);
                prop_assert!(other < mine || other == mine && answer <= set, "{:?} {:?}", set, other);
            }
        }
    }
}
