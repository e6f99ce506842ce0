use contract::gpu::{State, UNKNOWN_PROFILE, Unavailable};
use proptest::prelude::*;

use crate::allocate::allocate;
use crate::slot::{self, Take, taken};
use crate::testing::{count, cut, ids, inventory};

use super::*;

/// GPU 0 whole; 1 and 2 cut; instance 2:1 has no node; GPU 3 lost and cut; nobody told the profile of 2:2.
fn node() -> Inventory {
    let mut node = inventory(4);
    cut(&mut node.gpus[1], &["1g.10gb", "1g.10gb", "3g.40gb"]);
    cut(&mut node.gpus[2], &["1g.10gb+me", "1g.10gb", UNKNOWN_PROFILE]);
    cut(&mut node.gpus[3], &["7g.80gb"]);
    node.gpus[2].partitions[1].unavailable = Some(Unavailable::new(State::NodeMissing, "its node is missing"));
    node.gpus[3].unavailable = Some(Unavailable::new(State::Lost, "it fell off the bus"));
    node
}

fn of(profile: &str, n: u32) -> Request {
    Request { profile: Some(profile.into()), ..count(n) }
}

/// Slots of the answer, with the address' start and end left out: `2:7.0` is on bus 2.
fn ask(node: &Inventory, leased: &[&str], request: &Request, previous: &[&str]) -> Result<String, Refusal> {
    let long = |short: &&str| {
        let (bus, part) = short.split_once(':').map_or((*short, None), |(bus, part)| (bus, Some(part)));
        format!("0000:{bus:0>2}:00.0{}", part.map(|part| format!(":{part}")).unwrap_or_default())
    };
    let leased: Vec<String> = leased.iter().map(long).collect();
    let taken = taken(node, leased.iter().map(|slot| Take { slot, minor: None, named: false }));
    let previous: Vec<String> = previous.iter().map(long).collect();
    let granted = allocate(node, &|slot| taken.iter().any(|taken| taken == slot), request, &previous)?;
    let short = |granted: &Granted| slot::of(granted).replace("0000:0", "").replace(":00.0", "");
    Ok(granted.iter().map(short).collect::<Vec<_>>().join(" "))
}

#[test]
fn grants() {
    let node = node();
    for (request, leased, previous, granted) in [
        (of("1g.10gb", 1), vec![], vec![], "2:7.0"),
        (of("1g.10gb", 1), vec!["2:7.0"], vec![], "2:8.0"),
        (of("1g.10gb", 2), vec![], vec![], "2:7.0 2:8.0"),
        (of("1G.10GB", 1), vec![], vec!["2:8.0"], "2:8.0"),
        (of("1g.10gb+me", 1), vec![], vec!["2:8.0"], "3:7.0"),
        (of("3g.40gb", 1), vec!["2:7.0", "1"], vec![], "2:9.0"),
        (Request { kind: Some("a100".into()), ..of("3g.40gb", 1) }, vec![], vec![], "2:9.0"),
        // By count only the whole one.
        (count(1), vec![], vec![], "1"),
        (count(1), vec!["2:7.0"], vec!["2"], "1"),
        // D20: by every name; the request's order.
        (ids(&["MIG-00010000-aaaa-bbbb-cccc-0123456789ab"]), vec![], vec![], "2:7.0"),
        (ids(&["mig-00010001"]), vec!["2:7.0"], vec![], "2:8.0"),
        (ids(&["MIG-GPU-abcd0001-aaaa-bbbb-cccc-000000000001/9/0", "1:0"]), vec![], vec![], "2:9.0 2:7.0"),
        (
            ids(&["nvidia1:1", "0000:03:00.0:0", "GPU-abcd0002-aaaa-bbbb-cccc-000000000002:2"]),
            vec![],
            vec![],
            "2:8.0 3:7.0 3:9.0",
        ),
        (Request { profile: Some("3g.40gb".into()), ..ids(&["1:2"]) }, vec![], vec![], "2:9.0"),
        (ids(&["nvidia0", "1:0"]), vec!["2:9.0"], vec![], "1 2:7.0"),
    ] {
        assert_eq!(ask(&node, &leased, &request, &previous).unwrap(), granted, "{request:?} {leased:?} {previous:?}");
    }
}

#[test]
fn refusals() {
    let node = node();
    let whole = inventory(2);
    for (node, request, leased, code, rule, words) in [
        (
            &node,
            of("1g.10gb", 4),
            vec![],
            Code::UnknownGpu,
            "request-count",
            "4 MIG instances of 1g.10gb asked, this node has 3",
        ),
        (&node, of("1g.10gb", 3), vec![], Code::DriverNotReady, "node-missing", "3 present, 2 free: 1 "),
        (&node, of("1g.10gb", 1), vec!["2:7.0", "2:8.0"], Code::CapacityFull, "capacity", "3 present, 0 free: 1 "),
        // A lease on the whole: whoever has it got it before it was cut.
        (&node, of("3g.40gb", 1), vec!["2"], Code::CapacityFull, "capacity", "1 present, 0 free"),
        (&node, of("1g.10", 1), vec![], Code::UnknownGpu, "request-profile", "no MIG instances of profile \"1g.10\""),
        (&node, of("7g.80gb", 1), vec![], Code::GpuUnavailable, "gpu-lost", "1 present, 0 free: 1 "),
        (&node, of(UNKNOWN_PROFILE, 1), vec![], Code::UnknownGpu, "request-profile", "no MIG instances of profile"),
        (
            &node,
            Request { kind: Some("l4".into()), ..of("1g.10gb", 1) },
            vec![],
            Code::UnknownGpu,
            "request-profile",
            "of kind \"l4\"",
        ),
        (&whole, of("1g.10gb", 1), vec![], Code::UnknownGpu, "request-profile", "this node has no MIG instances"),
        (
            &node,
            count(2),
            vec![],
            Code::GpuUnavailable,
            "gpu-unavailable",
            "2 GPUs asked, 4 present, 1 free: 1 lost, 2 in MIG mode",
        ),
        (&node, ids(&["nvidia1"]), vec![], Code::GpuUnavailable, "mig-enabled", "nvidia1 is in MIG mode"),
        (&node, ids(&["3:0"]), vec![], Code::GpuUnavailable, "gpu-lost", "3:0 cannot be used now: it fell off the bus"),
        (
            &node,
            ids(&["2:1"]),
            vec![],
            Code::DriverNotReady,
            "node-missing",
            "2:1 cannot be used now: its node is missing",
        ),
        (
            &node,
            ids(&["1:0"]),
            vec!["2:7.0"],
            Code::CapacityFull,
            "capacity",
            "1 MIG instance asked by name, 1 of them taken; 7 present, 4 free",
        ),
        (&node, ids(&["1:0", "MIG-00010000"]), vec![], Code::InvalidGpuRequest, "request-ids", "are the same GPU"),
        (&node, ids(&["MIG-0001"]), vec![], Code::InvalidGpuRequest, "request-ids", "the beginning of 3 UUIDs"),
        (&node, ids(&["1:3"]), vec![], Code::UnknownGpu, "request-ids", "none of that name"),
        (&node, ids(&["0:0"]), vec![], Code::UnknownGpu, "request-ids", "none of that name"),
        (
            &node,
            ids(&["MIG-GPU-abcd0001-aaaa-bbbb-cccc-000000000001/9/1"]),
            vec![],
            Code::UnknownGpu,
            "request-ids",
            "7 MIG instances and none",
        ),
        (
            &node,
            ids(&["MIG-GPU-abcd0002-aaaa-bbbb-cccc-00000000000/9/0"]),
            vec![],
            Code::UnknownGpu,
            "request-ids",
            "none of that name",
        ),
        (&whole, ids(&["MIG-0001"]), vec![], Code::UnknownGpu, "request-ids", "this node has no MIG instances"),
        (
            &node,
            Request { profile: Some("3g.40gb".into()), ..ids(&["1:1"]) },
            vec![],
            Code::UnknownGpu,
            "request-profile",
            "1:1 is not of profile",
        ),
        (
            &node,
            Request { profile: Some("3g.40gb".into()), ..ids(&["nvidia0"]) },
            vec![],
            Code::UnknownGpu,
            "request-profile",
            "nvidia0 is not of profile",
        ),
    ] {
        let refusal = ask(node, &leased, &request, &[]).unwrap_err();
        assert_eq!((refusal.code, refusal.rule), (code, rule), "{request:?}: {refusal}");
        assert!(refusal.message.contains(words), "{request:?}: {refusal}");
    }
}

#[test]
fn the_way_out_is_named() {
    let node = node();
    let help = |request: &Request| ask(&node, &[], request, &[]).unwrap_err().help;
    assert_eq!(help(&ids(&["nvidia1"])), "name one of 1:0 (1g.10gb), 1:1 (1g.10gb), 1:2 (3g.40gb)");
    assert_eq!(help(&count(2)), "ask for MIG instances by profile, or for fewer");
    assert!(help(&of("2g.20gb", 1)).starts_with("ask for one of 1g.10gb, "));
}

proptest! {
    /// Requests and ends in any order, while GPUs are cut and mended: no instance has two holders, and none together with
    /// its GPU.
    #[test]
    fn never_twice_and_never_a_whole_with_its_parts(
        steps in prop::collection::vec((0_u8..5, 0_usize..3, 1_u32..4, any::<prop::sample::Index>()), 1..60),
    ) {
        let layouts: [&[&str]; 3] = [&[], &["1g.10gb", "1g.10gb", "3g.40gb"], &["3g.40gb", "1g.10gb+me"]];
        let mut node = inventory(3);
        let mut held: Vec<String> = Vec::new();
        for (what, n, many, pick) in steps {
            let request = match what {
                0 => count(many),
                1 => of(["1g.10gb", "3g.40gb", "1g.10gb+me"][n], many),
                2 => ids(&[["nvidia0", "1:0", "nvidia2:1"][n]]),
                3 => {
                    // An operator may cut what is leased, too; the lease stays.
                    cut(&mut node.gpus[n], layouts[many as usize - 1]);
                    continue;
                }
                _ => {
                    if !held.is_empty() {
                        held.swap_remove(pick.index(held.len()));
                    }
                    continue;
                }
            };
            let leases: Vec<(String, Option<u32>)> = held.iter().map(|slot| (slot.clone(), None)).collect();
            let taken = taken(&node, leases.iter().map(|(slot, minor)| Take { slot, minor: *minor, named: false }));
            let granted = allocate(&node, &|slot| taken.iter().any(|taken| taken == slot), &request, &[]);
            for slot in granted.iter().flatten().map(slot::of) {
                prop_assert!(!held.iter().any(|other| slot::exclude(other, &slot)), "{slot} beside {held:?}");
                held.push(slot);
            }
        }
    }
}
