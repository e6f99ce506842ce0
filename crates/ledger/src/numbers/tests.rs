use std::fs;

use contract::Code;
use contract::inventory::Inventory;
use tempfile::TempDir;

use super::*;
use crate::store::Holder;
use crate::testing::{World, holder, ids, inventory, ledger, state};

/// A holder in a control group of one name.
fn by(world: &World, id: &str) -> Holder {
    Holder { cgroup: Some(format!("/{id}")), ..holder(world, id, 1) }
}

/// A node of 12 GPUs, of which the first `many` have holders.
fn held(many: u32) -> (TempDir, World, Inventory, Ledger) {
    let (dir, world, node) = (state(), World::new(), inventory(12));
    let ledger = ledger(&dir, &world);
    for n in 0..many {
        take(&ledger, &world, &node, n).unwrap();
    }
    (dir, world, node, ledger)
}

fn take(ledger: &Ledger, world: &World, node: &Inventory, n: u32) -> Result<(), Code> {
    let holder = by(world, &format!("c{n}"));
    ledger.grant(node, &ids(&[&format!("nvidia{n}")]), &holder).map(|_| ()).map_err(|refusal| refusal.code)
}

fn kept(ledger: &Ledger) -> Vec<String> {
    let mut names = ledger.listing().unwrap();
    names.retain(|name| name.starts_with(PREFIX));
    names
}

/// Makes all leases say nothing: whoever opens one finds no number in it.
fn spoil(ledger: &Ledger) {
    for name in ledger.names().unwrap() {
        fs::write(ledger.path(&Name::path(&name.slot, &name.tag)), "{").unwrap();
    }
}

#[test]
fn that_all_agree_is_kept_once_there_are_more_than_a_few() {
    let (_dir, world, node, ledger) = held(FEW as u32 + 1);
    assert!(kept(&ledger).is_empty());
    take(&ledger, &world, &node, 5).unwrap();
    assert_eq!(kept(&ledger).len(), 1);
    for n in 6..9 {
        take(&ledger, &world, &node, n).unwrap();
    }
    assert_eq!(kept(&ledger).len(), 1);
    let other = by(&world, "other");
    assert_eq!(ledger.grant(&node, &ids(&["nvidia3"]), &other).unwrap_err().code, Code::CapacityFull);
}

/// One whose record cannot be read agrees with nothing.
#[test]
fn what_cannot_be_read_is_no_agreement() {
    let (_dir, world, node, ledger) = held(FEW as u32 + 1);
    spoil(&ledger);
    take(&ledger, &world, &node, 7).unwrap();
    assert!(kept(&ledger).is_empty());
}

/// A device number moves to another address while its holder goes on.
#[test]
fn a_number_that_moved_is_found_among_many() {
    let (_dir, world, node, ledger) = held(8);
    let before = kept(&ledger);
    assert_eq!(before.len(), 1);
    let mut moved = node.clone();
    moved.gpus[7].minor = Some(10);
    moved.gpus[10].minor = Some(7);
    let new = by(&world, "new");
    let at = |n: usize| ids(&[node.gpus[n].pci.as_str()]);
    assert_eq!(ledger.grant(&moved, &at(10), &new).unwrap_err().code, Code::CapacityFull);
    assert_eq!(kept(&ledger), before, "nothing was taken");
    ledger.grant(&moved, &at(11), &new).unwrap();
    assert!(kept(&ledger).is_empty(), "the last holder of nvidia7 has what is nvidia10 now");
}

/// What was true of other numbers is no more, once there is a lease by these.
#[test]
fn numbers_that_come_back_are_asked_again() {
    let (_dir, world, node, ledger) = held(8);
    let mut moved = node.clone();
    moved.gpus[9].minor = Some(10);
    moved.gpus[10].minor = Some(9);
    ledger.grant(&moved, &ids(&[node.gpus[9].pci.as_str()]), &by(&world, "a")).unwrap();
    assert_eq!(kept(&ledger).len(), 1, "all agree with these: nobody had those two");
    let refused = ledger.grant(&node, &ids(&[node.gpus[10].pci.as_str()]), &by(&world, "b")).unwrap_err();
    assert_eq!(refused.code, Code::CapacityFull, "whoever has number 10 has this GPU now");
}

/// However many there are: the group of a container with a GPU is no other's, nor is one in it.
#[test]
fn groups_are_found_among_many() {
    let (_dir, world, node, ledger) = held(8);
    let asks = |cgroup: &str| {
        let holder = Holder { cgroup: Some(cgroup.to_owned()), ..by(&world, "new") };
        let (key, refused) =
            (holder.key.clone(), ledger.refuses_cgroup(cgroup, &holder.key).map(|refusal| refusal.code));
        let granted = ledger.grant(&node, &ids(&["nvidia11"]), &holder).map(|_| ()).map_err(|refusal| refusal.code);
        ledger.release(&key).unwrap();
        assert_eq!(granted.err(), refused);
        refused
    };
    for cgroup in ["/c3", "c3/", "/c3/inner"] {
        assert_eq!(asks(cgroup), None, "{cgroup}: nobody is there");
    }
    world.with(|world| world.busy_cgroups.extend(["/c3", "c3"].map(str::to_owned)));
    for cgroup in ["/c3", "c3/", "/c3/inner"] {
        assert_eq!(asks(cgroup), Some(Code::UnsafeSpec), "{cgroup}");
    }
    assert_eq!(asks("/new"), None);
    assert_eq!(kept(&ledger).len(), 1);
}

/// No lease is opened where names tell; one is where they do not.
#[test]
fn what_names_tell() {
    let (_dir, world, node, ledger) = held(8);
    let (new, mut request) = (by(&world, "new"), ids(&["nvidia11"]));
    let held_by = ledger.held_by(&new);
    let tell = |ledger: &Ledger, node: &Inventory, request: &Request| {
        let still = &crate::compared;
        let history = std::cell::OnceCell::new();
        let taker = Taker { tag: new.key.as_str(), memory: "m", holder: &held_by, history, still };
        let numbers = Numbers::of(node, &ledger.listing().unwrap());
        ledger.names_tell(numbers.as_ref(), &[], node, request, &taker)
    };
    assert!(tell(&ledger, &node, &request));
    let mut moved = node.clone();
    moved.gpus[11].minor = Some(12);
    assert!(!tell(&ledger, &moved, &request), "other numbers");
    request.terms.sharing = Sharing::Owner;
    assert!(!tell(&ledger, &node, &request), "who shares");
    request.terms.sharing = Sharing::Exclusive;
    world.with(|world| world.blind = true);
    assert!(!tell(&ledger, &node, &request), "not knowing");
}
