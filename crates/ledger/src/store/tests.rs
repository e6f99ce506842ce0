//! Grants, releases and reclaims on a made-up machine, killed after every step of each.

use std::collections::BTreeMap;

use contract::gpu::{State, Unavailable};
use proptest::prelude::*;

use super::*;
use crate::files::crash;
use crate::testing::{World, contract_for, count, cut, holder, ids, inventory, ledger, pcis, state};

const GPU0: &str = "0000:01:00.0";
const GPU1: &str = "0000:02:00.0";

/// The process that creates `holder` ends.
fn dies(world: &World, holder: &Holder) {
    world.with(|w| w.alive.remove(&holder.creator.pid));
}

/// How many leases each GPU has.
fn taken(ledger: &Ledger) -> BTreeMap<String, usize> {
    let mut taken = BTreeMap::new();
    for name in ledger.names().unwrap() {
        *taken.entry(name.slot).or_insert(0) += 1;
    }
    taken
}

#[test]
fn a_gpu_has_one_holder_until_it_is_released() {
    let (dir, world, node) = (state(), World::new(), inventory(2));
    let ledger = ledger(&dir, &world);
    let [a, b, c] = ["a", "b", "c"].map(|id| holder(&world, id, u32::from(id.as_bytes()[0])));
    assert_eq!(pcis(&ledger.grant(&node, &count(1), &a).unwrap()), [GPU0]);
    assert_eq!(pcis(&ledger.grant(&node, &count(1), &b).unwrap()), [GPU1]);
    let full = ledger.grant(&node, &count(1), &c).unwrap_err();
    assert_eq!(full.code, Code::CapacityFull);
    assert!(full.message.contains("2 present, 0 free") && !full.to_string().contains(a.key.as_str()), "{full}");
    assert_eq!(ledger.release(&a.key).unwrap(), [GPU0]);
    assert!(ledger.release(&a.key).unwrap().is_empty(), "releasing twice is fine");
    assert_eq!(pcis(&ledger.grant(&node, &ids(&["nvidia0"]), &c).unwrap()), [GPU0]);
    let names: Vec<String> = std::fs::read_dir(ledger.path("leases"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.contains(&format!("{GPU0}@{}", c.key)), "{names:?}");
}

#[test]
fn a_restarted_container_gets_its_previous_gpu() {
    let (dir, world, node) = (state(), World::new(), inventory(3));
    let ledger = ledger(&dir, &world);
    let [a, b] = ["a", "b"].map(|id| holder(&world, id, 1));
    ledger.grant(&node, &ids(&["nvidia1"]), &a).unwrap();
    ledger.release(&a.key).unwrap();
    assert_eq!(pcis(&ledger.grant(&node, &count(1), &b).unwrap()), [GPU0]);
    assert_eq!(pcis(&ledger.grant(&node, &count(1), &a).unwrap()), [GPU1]);
    // However it ended.
    dies(&world, &a);
    assert_eq!(ledger.reclaim().unwrap().len(), 2);
    assert_eq!(pcis(&ledger.grant(&node, &count(1), &a).unwrap()), [GPU1]);
}

#[test]
fn a_pods_container_gets_its_previous_gpu_under_another_id() {
    let (dir, world, node) = (state(), World::new(), inventory(3));
    let ledger = ledger(&dir, &world);
    let of_pod = |id: &str, uid: &str| Holder { pod: Some(PodContainer::new(uid, "main")), ..holder(&world, id, 1) };
    let (first, again, other) = (of_pod("a1", "u-1"), of_pod("a2", "u-1"), of_pod("b1", "u-2"));
    ledger.grant(&node, &ids(&["nvidia1"]), &first).unwrap();
    ledger.release(&first.key).unwrap();
    assert_eq!(pcis(&ledger.grant(&node, &count(1), &other).unwrap()), [GPU0]);
    assert_eq!(pcis(&ledger.grant(&node, &count(1), &again).unwrap()), [GPU1]);
}

#[test]
fn what_is_left_in_a_deleted_containers_cgroup_keeps_its_gpu() {
    let (dir, world, node) = (state(), World::new(), inventory(1));
    let ledger = ledger(&dir, &world);
    let [a, b] = ["a", "b"].map(|id| holder(&world, id, 1));
    ledger.grant(&node, &count(1), &a).unwrap();
    dies(&world, &a);
    let cgroup = a.cgroup.clone().unwrap();
    world.with(|w| w.busy_cgroups.insert(cgroup.clone()));
    assert!(ledger.release(&a.key).unwrap().is_empty(), "nothing is free yet");
    assert_eq!(ledger.grant(&node, &count(1), &b).unwrap_err().code, Code::CapacityFull);
    // Not even a new container of the same id gets it, and its end frees nothing.
    let again = holder(&world, "a", 2);
    assert_eq!(ledger.grant(&node, &count(1), &again).unwrap_err().rule, "cgroup-path");
    assert!(ledger.release(&a.key).unwrap().is_empty());
    dies(&world, &again);
    let why = &ledger.leases().unwrap()[0].held_because;
    assert!(why.contains("its container is deleted, but processes are left in its cgroup"), "{why}");
    // Not knowing later is no reason to give it away.
    world.with(|w| w.blind = true);
    assert_eq!(ledger.leases().unwrap().len(), 1);
    world.with(|w| (w.blind, w.busy_cgroups) = (false, Default::default()));
    assert_eq!(pcis(&ledger.grant(&node, &count(1), &b).unwrap()), [GPU0]);
}

#[test]
fn equal_ids_under_two_state_roots_are_two_containers() {
    let (dir, world, node) = (state(), World::new(), inventory(2));
    let ledger = ledger(&dir, &world);
    let a = holder(&world, "same", 1);
    let b = Holder { key: Key::of("/run/other", "same"), state_root: "/run/other".into(), ..holder(&world, "same", 2) };
    ledger.grant(&node, &count(1), &a).unwrap();
    ledger.grant(&node, &count(1), &b).unwrap();
    assert_eq!(ledger.release(&a.key).unwrap(), [GPU0]);
    assert_eq!(ledger.names().unwrap(), [Name { slot: GPU1.into(), tag: b.key.to_string() }]);
    // One is gone, the other is not: the state root tells them apart for reclaim as well.
    ledger.grant(&node, &count(1), &a).unwrap();
    dies(&world, &a);
    dies(&world, &b);
    world.with(|w| w.folders.insert("/run/other/same".into()));
    let reclaimed = ledger.reclaim().unwrap();
    assert_eq!(reclaimed.iter().map(|r| r.tag.as_str()).collect::<Vec<_>>(), [a.key.as_str()]);
}

#[test]
fn dead_holders_make_room_only_when_it_is_short() {
    let (dir, world, node) = (state(), World::new(), inventory(2));
    let ledger = ledger(&dir, &world);
    let [a, b, c] = ["a", "b", "c"].map(|id| holder(&world, id, u32::from(id.as_bytes()[0])));
    ledger.grant(&node, &count(1), &a).unwrap();
    ledger.put_contract(&contract_for(&node, &[], &count(1), Some(&a.key)).unwrap(), &a.key).unwrap();
    dies(&world, &a);
    assert_eq!(pcis(&ledger.grant(&node, &count(1), &b).unwrap()), [GPU1]);
    assert!(ledger.take_reclaimed().is_empty());
    assert_eq!(pcis(&ledger.grant(&node, &count(1), &c).unwrap()), [GPU0]);
    let reclaimed = ledger.take_reclaimed();
    assert_eq!(reclaimed.len(), 1);
    assert_eq!((reclaimed[0].lease.holder.name(), reclaimed[0].slot.as_str()), ("a", GPU0));
    assert!(reclaimed[0].gone_because.contains("cgroup is empty"));
    assert!(ledger.contracts().unwrap().is_empty());
}

/// One GPU in use outside leases, or without its node, changes nothing about what the dead have.
#[test]
fn dead_holders_make_room_whatever_else_is_the_matter() {
    for state_of_first in [State::Busy, State::NodeMissing, State::Lost] {
        let (dir, world, mut node) = (state(), World::new(), inventory(3));
        node.gpus[0].unavailable = Some(Unavailable::new(state_of_first, "why"));
        let ledger = ledger(&dir, &world);
        let [a, b, c] = ["a", "b", "c"].map(|id| holder(&world, id, u32::from(id.as_bytes()[0])));
        ledger.grant(&node, &count(1), &a).unwrap();
        ledger.grant(&node, &count(1), &b).unwrap();
        assert_eq!(ledger.grant(&node, &count(1), &c).unwrap_err().code, Code::CapacityFull, "{state_of_first:?}");
        dies(&world, &a);
        assert_eq!(pcis(&ledger.grant(&node, &count(1), &c).unwrap()), [GPU1], "{state_of_first:?}");
    }
}

#[test]
fn list_says_why_each_is_held_and_takes_what_it_cannot_read_for_held() {
    let (dir, world, node) = (state(), World::new(), inventory(4));
    let ledger = ledger(&dir, &world);
    let [a, b] = ["a", "b"].map(|id| holder(&world, id, u32::from(id.as_bytes()[0])));
    ledger.grant(&node, &count(1), &a).unwrap();
    ledger.grant(&node, &count(1), &b).unwrap();
    ledger.acquire_named(&node, &count(1), "vm:big").unwrap();
    std::fs::write(ledger.path("leases/0000:04:00.0@someone"), b"").unwrap();
    dies(&world, &b);
    let list = ledger.leases().unwrap();
    let why: Vec<(&str, &str)> = list.iter().map(|l| (l.slot.as_str(), l.held_because.as_str())).collect();
    assert_eq!(why.len(), 3, "{why:?}");
    assert!(why[0].1.contains("its create still runs"));
    assert!(why[1].1.contains("vm:big"));
    assert!(why[2].1.contains("cannot be read") && list[2].lease.is_none(), "{why:?}");
    assert_eq!(ledger.grant(&node, &count(2), &b).unwrap_err().code, Code::CapacityFull);
}

#[test]
fn holders_by_name() {
    let (dir, world, node) = (state(), World::new(), inventory(2));
    let ledger = ledger(&dir, &world);
    assert_eq!(pcis(&ledger.acquire_named(&node, &count(1), "vm:a").unwrap()), [GPU0]);
    assert_eq!(pcis(&ledger.acquire_named(&node, &count(1), "vm:a").unwrap()), [GPU0], "the same again");
    let other = ledger.acquire_named(&node, &ids(&["nvidia1"]), "vm:a").unwrap_err();
    assert_eq!((other.code, other.rule), (Code::InvalidGpuRequest, "holder-name"));
    for name in ["", "vm", "vm:", ":a", "vm:a/b", "vm:.."] {
        assert_eq!(ledger.acquire_named(&node, &count(1), name).unwrap_err().rule, "holder-name", "{name:?}");
    }
    assert!(ledger.reclaim().unwrap().is_empty());
    assert_eq!(ledger.release_named("vm:a").unwrap(), [GPU0]);
    ledger.acquire_named(&node, &count(2), "vm:a").unwrap();
    world.with(|w| w.boot = Ok("boot-2".into()));
    assert_eq!(ledger.reclaim().unwrap().len(), 2);
}

#[test]
fn a_second_create_of_one_container() {
    let (dir, world, node) = (state(), World::new(), inventory(3));
    let ledger = ledger(&dir, &world);
    let first = holder(&world, "a", 1);
    ledger.grant(&node, &ids(&["nvidia1"]), &first).unwrap();
    let second = holder(&world, "a", 2);
    let refused = |words: &str| {
        let refusal = ledger.grant(&node, &count(1), &second).unwrap_err();
        assert_eq!(refusal.rule, "container-exists");
        assert!(refusal.message.contains(words), "{refusal}");
        assert_eq!(taken(&ledger), BTreeMap::from([(GPU1.to_owned(), 1)]));
    };
    refused("its create still runs");
    dies(&world, &first);
    world.with(|w| w.folders.insert("/run/low/a".into()));
    refused("state folder");
    world.with(|w| (w.folders.clear(), w.busy_cgroups.insert("/box/a".into())));
    refused("processes are left");
    // The first died half-way: the second gets the same GPU, and the lease is now its own.
    world.with(|w| w.busy_cgroups.clear());
    assert_eq!(pcis(&ledger.grant(&node, &count(1), &second).unwrap()), [GPU1]);
    assert!(ledger.reclaim().unwrap().is_empty());
    // It asks for something else: what it had is free again.
    assert_eq!(pcis(&ledger.grant(&node, &ids(&["nvidia2", "nvidia0"]), &second).unwrap()), ["0000:03:00.0", GPU0]);
    assert_eq!(taken(&ledger).keys().collect::<Vec<_>>(), [GPU0, "0000:03:00.0"]);
}

#[test]
fn a_folder_that_others_can_write_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, world) = (state(), World::new());
    let path = dir.path().join("state");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = Ledger::open_on(&path, Box::new(world)).err().unwrap();
    assert!(error.to_string().contains("mode 0777"), "{error}");
}

#[test]
fn a_failing_lease_takes_back_the_others() {
    let (dir, world, node) = (state(), World::new(), inventory(2));
    let ledger = ledger(&dir, &world);
    let a = holder(&world, "a", 1);
    // A folder in the way of the second lease: renaming a file onto it fails, for root too.
    std::fs::create_dir_all(ledger.path("leases")).unwrap();
    let granted = [
        Granted { pci: GPU0.into(), uuid: None, minor: None, partition: None },
        Granted { pci: GPU1.into(), uuid: None, minor: None, partition: None },
    ];
    std::fs::create_dir(ledger.path(&Name::path(GPU1, a.key.as_str()))).unwrap();
    let error = ledger
        .write_leases(&ledger.lock().unwrap(), &granted, a.key.as_str(), &a.held_by(&world), "boot-1")
        .unwrap_err();
    assert!(error.to_string().contains(GPU1), "{error}");
    assert_eq!(taken(&ledger).keys().collect::<Vec<_>>(), [GPU1], "only the folder in the way");
    assert!(ledger.grant(&node, &count(2), &a).is_err());
}

/// Kills a whole life (grant, contract, original, release) after each of its steps, with and without an original.
/// Afterwards `release`, or a reclaim, leaves nothing, and another container gets all GPUs.
#[test]
fn killed_after_every_step() {
    let node = inventory(2);
    let live = |ledger: &Ledger, holder: &Holder, edits: bool| -> Result<(), Refusal> {
        let gpus = ledger.grant(&node, &count(2), holder)?;
        ledger.put_contract(&contract_for(&node, &gpus, &count(2), Some(&holder.key))?, &holder.key)?;
        if edits {
            ledger.keep_original(&holder.key, None, b"spec", "digest", "/b/config.json")?;
        }
        ledger.release(&holder.key)?;
        Ok(())
    };
    for (released, edits) in [(true, true), (true, false), (false, true), (false, false)] {
        for steps in 0.. {
            let (dir, world) = (state(), World::new());
            let ledger = ledger(&dir, &world);
            let [a, b] = ["a", "b"].map(|id| holder(&world, id, u32::from(id.as_bytes()[0])));
            let (result, killed) = crash::after(steps, || live(&ledger, &a, edits));
            assert_eq!(result.is_err(), killed, "after {steps} steps: {result:?}");
            assert!(taken(&ledger).values().all(|n| *n == 1), "after {steps} steps");
            dies(&world, &a);
            if released {
                ledger.release(&a.key).unwrap();
            } else {
                ledger.reclaim().unwrap();
                ledger.orphans(&mut |key, original| key == &a.key && original.bytes == b"spec").unwrap();
            }
            for folder in ["leases", "contracts", "originals", "reservations"] {
                let left = files::names(&ledger.path(folder)).unwrap();
                assert!(left.is_empty(), "{folder} after {steps} steps: {left:?}");
            }
            ledger.grant(&node, &count(2), &b).unwrap();
            if !killed {
                assert!(steps > 10, "{steps} steps");
                break;
            }
        }
    }
}

/// Kills a reclaim of two containers after each of its steps; the next one ends what it left.
#[test]
fn a_reclaim_killed_after_every_step() {
    let node = inventory(3);
    for steps in 0.. {
        let (dir, world) = (state(), World::new());
        let ledger = ledger(&dir, &world);
        for (id, gpus) in [("a", 2), ("b", 1)] {
            let holder = holder(&world, id, 1);
            let granted = ledger.grant(&node, &count(gpus), &holder).unwrap();
            let contract = contract_for(&node, &granted, &count(gpus), Some(&holder.key)).unwrap();
            ledger.put_contract(&contract, &holder.key).unwrap();
        }
        world.with(|w| w.alive.clear());
        let (_, killed) = crash::after(steps, || ledger.reclaim());
        ledger.reclaim().unwrap();
        for folder in ["leases", "contracts"] {
            let left = files::names(&ledger.path(folder)).unwrap();
            assert!(left.is_empty(), "{folder} after {steps} steps: {left:?}");
        }
        if !killed {
            assert!(steps >= 5, "{steps} steps");
            break;
        }
    }
}

#[test]
fn originals_wait_for_whoever_puts_them_back() {
    let (dir, world, node) = (state(), World::new(), inventory(2));
    let ledger = ledger(&dir, &world);
    let [a, b] = ["a", "b"].map(|id| holder(&world, id, u32::from(id.as_bytes()[0])));
    for holder in [&a, &b] {
        ledger.grant(&node, &count(1), holder).unwrap();
        ledger.keep_original(&holder.key, None, holder.container.as_bytes(), "w", "/c").unwrap();
    }
    dies(&world, &a);
    ledger.reclaim().unwrap();
    let mut seen = Vec::new();
    ledger
        .orphans(&mut |key, original| {
            seen.push((key.clone(), original.bytes.clone()));
            false
        })
        .unwrap();
    assert_eq!(seen, [(a.key.clone(), b"a".to_vec())], "only the reclaimed one");
    assert!(ledger.original(&a.key).is_some(), "kept while it is not dealt with");
    ledger.orphans(&mut |_, _| true).unwrap();
    assert!(ledger.original(&a.key).is_none() && ledger.original(&b.key).is_some());
}

/// One thing that happens to the node. Containers are numbered; so are steps after which a process is killed.
#[derive(Debug, Clone)]
enum Act {
    Grant {
        who: u32,
        count: u32,
        kill: Option<u32>,
    },
    Release {
        who: u32,
        kill: Option<u32>,
    },
    /// The container's processes end without anyone releasing.
    Vanish {
        who: u32,
    },
    Reclaim {
        kill: Option<u32>,
    },
    /// A GPU is cut anew, or made whole again, whoever has it.
    Cut {
        gpu: usize,
        layout: usize,
    },
}

const LAYOUTS: [&[&str]; 3] = [&[], &["1g.10gb", "3g.40gb", "1g.10gb"], &["3g.40gb", "1g.10gb"]];

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let kill = || proptest::option::weighted(0.4, 0_u32..8);
    let act = prop_oneof![
        4 => (0_u32..6, 1_u32..4, kill()).prop_map(|(who, count, kill)| Act::Grant { who, count, kill }),
        2 => (0_u32..6, kill()).prop_map(|(who, kill)| Act::Release { who, kill }),
        2 => (0_u32..6).prop_map(|who| Act::Vanish { who }),
        1 => kill().prop_map(|kill| Act::Reclaim { kill }),
        2 => (0_usize..4, 0_usize..3).prop_map(|(gpu, layout)| Act::Cut { gpu, layout }),
    ];
    proptest::collection::vec(act, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever happens in whatever order, with processes killed at any step: no GPU or instance has two holders, none has
    /// one together with its GPU, a running container keeps what it was given, and in the end every GPU can be granted again.
    #[test]
    fn never_twice_and_never_lost(acts in acts()) {
        let (dir, world, mut node) = (state(), World::new(), inventory(4));
        let ledger = ledger(&dir, &world);
        let mut running: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        let mut pid = 100;
        for act in acts {
            pid += 1;
            match act {
                Act::Grant { who, count: n, kill } => {
                    let holder = holder(&world, &who.to_string(), pid);
                    // Half of them want whole GPUs.
                    let profile = [None, Some("1g.10gb".to_owned())][who as usize % 2].clone();
                    let create = || ledger.grant(&node, &Request { profile: profile.clone(), ..count(n) }, &holder);
                    let (result, killed) = kill.map_or_else(|| (create(), false), |steps| crash::after(steps, create));
                    if let (Ok(gpus), false) = (&result, killed) {
                        prop_assert!(!running.contains_key(&who), "a running container was granted anew");
                        prop_assert_eq!(gpus.len(), n as usize);
                        running.insert(who, gpus.iter().map(slot::of).collect());
                        world.with(|w| w.folders.insert(format!("/run/low/{who}").into()));
                    }
                    dies(&world, &holder);
                }
                Act::Release { who, kill } => {
                    // As `delete` does: the low-level runtime's part first.
                    world.with(|w| w.folders.remove(&PathBuf::from(format!("/run/low/{who}"))));
                    running.remove(&who);
                    let key = Key::of("/run/low", &who.to_string());
                    match kill {
                        None => { ledger.release(&key).unwrap(); }
                        Some(steps) => { let _ = crash::after(steps, || ledger.release(&key)); }
                    }
                }
                Act::Vanish { who } => {
                    world.with(|w| w.folders.remove(&PathBuf::from(format!("/run/low/{who}"))));
                    running.remove(&who);
                }
                Act::Reclaim { kill } => match kill {
                    None => { ledger.reclaim().unwrap(); }
                    Some(steps) => { let _ = crash::after(steps, || ledger.reclaim()); }
                },
                Act::Cut { gpu, layout } => cut(&mut node.gpus[gpu], LAYOUTS[layout]),
            }
            let held = ledger.names().unwrap();
            for (at, name) in held.iter().enumerate() {
                prop_assert!(held.iter().skip(at + 1).all(|other| !slot::exclude(&name.slot, &other.slot)), "{:?}", held);
            }
            for (who, gpus) in &running {
                let key = Key::of("/run/low", &who.to_string());
                for gpu in gpus {
                    prop_assert!(held.contains(&Name { slot: gpu.clone(), tag: key.to_string() }), "{} lost {}", who, gpu);
                }
            }
        }
        world.with(|w| w.folders.clear());
        let last = holder(&world, "last", 99);
        prop_assert_eq!(ledger.grant(&inventory(4), &count(4), &last).unwrap().len(), 4);
        prop_assert_eq!(ledger.leases().unwrap().len(), 4);
    }
}

#[test]
fn a_name_has_what_is_bound_to_vfio_and_a_container_never() {
    let (dir, world) = (state(), World::new());
    let ledger = ledger(&dir, &world);
    let mut node = inventory(2);
    let pci = node.gpus[0].pci.clone();
    let asked = ids(&[&pci]);
    let acquire =
        |node: &Inventory, name: &str| ledger.acquire_named(node, &asked, name).map_err(|refusal| refusal.code);
    assert_eq!(pcis(&acquire(&node, "vm:a").unwrap()), [pci.as_str()]);
    for driver in [None, Some("vfio-pci")] {
        let gpu = &mut node.gpus[0];
        (gpu.driver, gpu.minor, gpu.uuid) = (driver.map(str::to_owned), None, None);
        gpu.nodes.clear();
        let state = if driver.is_some() { State::Vfio } else { State::OtherDriver };
        gpu.unavailable = Some(Unavailable::new(state, "another driver has it"));
        assert_eq!(pcis(&acquire(&node, "vm:a").unwrap()), [pci.as_str()], "{driver:?}: it has it");
        assert_eq!(acquire(&node, "vm:b").unwrap_err() == Code::CapacityFull, driver.is_some(), "{driver:?}");
    }
    ledger.release_named("vm:a").unwrap();
    let container = holder(&world, "c", 1);
    assert_eq!(ledger.grant(&node, &asked, &container).unwrap_err().code, Code::GpuUnavailable);
    assert_eq!(pcis(&acquire(&node, "vm:b").unwrap()), [pci.as_str()]);
}

/// Binds a GPU to vfio-pci.
fn bound(node: &mut Inventory, n: usize, state: State, group: Option<u32>) {
    let gpu = &mut node.gpus[n];
    (gpu.driver, gpu.minor, gpu.iommu_group) = (Some("vfio-pci".into()), None, group);
    gpu.nodes.clear();
    gpu.unavailable = Some(Unavailable::new(state, "why"));
}

/// A virtual machine is given an address: whatever gets the device number that this one had is anybody's.
#[test]
fn a_name_has_no_device_number() {
    let (dir, world, mut node) = (state(), World::new(), inventory(2));
    let ledger = ledger(&dir, &world);
    ledger.acquire_named(&node, &ids(&["nvidia0"]), "vm:a").unwrap();
    bound(&mut node, 0, State::Vfio, Some(7));
    node.gpus[1].minor = Some(0);
    assert_eq!(ledger.taken(&node), [GPU0]);
    assert_eq!(pcis(&ledger.grant(&node, &count(1), &holder(&world, "c", 1)).unwrap()), [GPU1]);
}

/// A virtual machine has an IOMMU group whole: nobody else has a GPU of it, and one that no machine could open is none's.
#[test]
fn a_name_has_the_group() {
    let group_of = |mut node: Inventory, states: &[State]| {
        for (n, state) in states.iter().enumerate() {
            bound(&mut node, n, *state, Some(7));
        }
        node
    };
    let acquire = |ledger: &Ledger, node: &Inventory, name: &str, n: usize| {
        let answer = ledger.acquire_named(node, &ids(&[[GPU0, GPU1, "0000:03:00.0"][n]]), name);
        answer.map_or_else(|refusal| format!("{}: {}", refusal.rule, refusal.message), |gpus| pcis(&gpus).join(" "))
    };
    let world = World::new();
    let both = group_of(inventory(3), &[State::Vfio, State::Vfio]);
    let dir = state();
    let ledger = |dir| ledger(dir, &world);
    assert_eq!(acquire(&ledger(&dir), &both, "vm:a", 0), GPU0);
    let other = format!("capacity: {GPU1} is in IOMMU group 7 with {GPU0}, which another holder has");
    assert_eq!(acquire(&ledger(&dir), &both, "vm:b", 1), other);
    assert_eq!(acquire(&ledger(&dir), &both, "vm:b", 2), "0000:03:00.0", "it is in no group with them");
    // The second was a container's before both were bound.
    let dir = state();
    ledger(&dir).grant(&inventory(3), &ids(&["nvidia0"]), &holder(&world, "c", 1)).unwrap();
    assert_eq!(acquire(&ledger(&dir), &both, "vm:b", 1), other);
    // The machine's group has a GPU that came to nvidia later: a container does not get it.
    let dir = state();
    assert_eq!(acquire(&ledger(&dir), &both, "vm:a", 0), GPU0);
    let mut late = group_of(inventory(2), &[State::VfioGroup]);
    late.gpus[1].iommu_group = Some(7);
    let refusal = ledger(&dir).grant(&late, &count(1), &holder(&world, "c", 1)).unwrap_err();
    assert_eq!(refusal.code, Code::CapacityFull, "{refusal}");
    // No machine could open it.
    let dir = state();
    for node in [&late, &group_of(inventory(3), &[State::VfioGroup])] {
        assert_eq!(acquire(&ledger(&dir), node, "vm:a", 0), format!("gpu-vfio-group: {GPU0} cannot be used now: why"));
    }
    // One machine has both.
    let dir = state();
    let names = [GPU0, GPU1];
    assert_eq!(pcis(&ledger(&dir).acquire_named(&both, &ids(&names), "vm:a").unwrap()), names);
}

#[test]
fn force_frees_what_drains() {
    let (dir, world) = (state(), World::new());
    let (ledger, node) = (ledger(&dir, &world), inventory(2));
    let container = holder(&world, "c", 1);
    for drains in [false, true] {
        let gpus = ledger.grant(&node, &count(2), &container).unwrap();
        world.with(|w| w.busy_cgroups.insert("/box/c".into()));
        if drains {
            assert_eq!(ledger.release(&container.key).unwrap(), [""; 0]);
        }
        let forced = ledger.release_forced(&container.key).unwrap();
        assert_eq!((pcis(&forced.gpus), forced.left_in.as_deref()), (pcis(&gpus), Some("/box/c")));
        assert_eq!(ledger.names().unwrap(), []);
        assert_eq!(ledger.release_forced(&container.key).unwrap(), crate::Forced::default());
        world.with(|w| w.busy_cgroups.clear());
    }
}

#[test]
fn a_gpu_that_a_process_outside_the_cgroup_has_open_drains() {
    let (dir, world, node) = (state(), World::new(), inventory(2));
    let ledger = ledger(&dir, &world);
    let a = holder(&world, "a", 1);
    world.with(|w| (w.mounts, w.open) = (Some(77), Some((99, 0))));
    let gpus = ledger.grant(&node, &count(2), &a).unwrap();
    ledger.started(&a.key, &gpus, Process { pid: 5, start: 7 }, None).unwrap();
    // The one that is open stays; the other is free.
    assert_eq!(ledger.release(&a.key).unwrap(), [GPU1]);
    let left = ledger.leases().unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    let why = "its container is deleted, but its process 99, which left its cgroup, has the GPU open";
    assert_eq!(left[0].held_because, why);
    assert_eq!(ledger.grant(&node, &ids(&["nvidia0"]), &holder(&world, "b", 2)).unwrap_err().code, Code::CapacityFull);
    // Until that process is gone.
    world.with(|w| w.open = None);
    let gpus = ledger.grant(&node, &ids(&["nvidia0"]), &holder(&world, "b", 2)).unwrap();
    assert_eq!(pcis(&gpus), [GPU0]);
    // Processes of a container that had a pid namespace of its own ended with its first: nobody looks for any.
    world.with(|w| (w.mounts, w.open) = (None, Some((99, 0))));
    ledger.started(&holder(&world, "b", 2).key, &gpus, Process { pid: 6, start: 7 }, None).unwrap();
    assert_eq!(ledger.release(&holder(&world, "b", 2).key).unwrap(), [GPU0]);
}

/// Somebody took the creator for dead meanwhile: the container would run beside the next one with its GPU.
#[test]
fn a_container_starts_only_with_all_its_leases() {
    let (dir, world, node) = (state(), World::new(), inventory(2));
    let ledger = ledger(&dir, &world);
    let a = holder(&world, "a", 1);
    let gpus = ledger.grant(&node, &count(2), &a).unwrap();
    let init = Process { pid: 5, start: 7 };
    let begins = |creator| ledger.started(&a.key, &gpus, init, creator).map_err(|error| error.to_string());
    begins(None).unwrap();
    begins(Some(a.creator)).unwrap();
    ledger.release(&a.key).unwrap();
    assert!(begins(None).unwrap_err().contains("was taken back"));
    ledger.grant(&node, &count(1), &a).unwrap();
    assert!(begins(None).is_err(), "one of two is not all");
    ledger.release(&a.key).unwrap();
    // The same container by another creator: it was deleted and made anew meanwhile.
    let other = holder(&world, "a", 9);
    assert_eq!(ledger.grant(&node, &count(2), &other).unwrap(), gpus);
    assert!(begins(Some(a.creator)).unwrap_err().contains("was taken back"));
    begins(Some(other.creator)).unwrap();
}
