//! Queues, owners and limits on a made-up machine: tables, and a model of all of it together.

use std::collections::{BTreeMap, BTreeSet};

use contract::config::Config;
use contract::gpu::{State, Unavailable};
use contract::owner::{Internal, Tables};
use contract::request::{Sharing, Terms};
use contract::{Code, Granted, Refusal};
use proptest::prelude::*;

use super::*;
use crate::testing::{World, count, holder, ids, inventory, ledger, pcis, state};

const GPU: [&str; 4] = ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"];

fn shared(request: Request) -> Request {
    Request { terms: Terms { sharing: Sharing::Owner, ..Terms::default() }, ..request }
}

fn owned(owner: Option<&str>, holder: Holder) -> Holder {
    Holder { owner: owner.map(str::to_owned), ..holder }
}

fn code(answer: Result<Vec<Granted>, Refusal>) -> String {
    answer.map_or_else(|refusal| format!("{}/{}", refusal.code.name(), refusal.rule), |gpus| pcis(&gpus).join(" "))
}

#[test]
fn who_came_first_is_served_first() {
    let (dir, world, node) = (state(), World::new(), inventory(2));
    let ledger = ledger(&dir, &world);
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(|id| holder(&world, id, u32::from(id.as_bytes()[0])));
    ledger.grant(&node, &count(2), &a).unwrap();
    ledger.queue(&count(2), &b, 30).unwrap();
    ledger.queue(&count(1), &c, 30).unwrap();
    let order: Vec<String> = ledger.waiters().unwrap().into_iter().map(|waiter| waiter.name().to_owned()).collect();
    assert_eq!(order, ["b", "c"]);
    ledger.release(&a.key).unwrap();
    // Two are free, and one who came first wants both.
    assert_eq!(code(ledger.grant(&node, &count(1), &c)), "CAPACITY_FULL/capacity");
    assert_eq!(code(ledger.grant(&node, &count(1), &d)), "CAPACITY_FULL/capacity");
    assert_eq!(code(ledger.acquire_named(&node, &count(1), "vm:x")), "CAPACITY_FULL/capacity");
    assert_eq!(code(ledger.grant(&node, &count(2), &b)), format!("{} {}", GPU[0], GPU[1]));
    ledger.leave_queue(&b).unwrap();
    ledger.release(&b.key).unwrap();
    // One stays aside for the next of the queue; the other is anybody's.
    assert_eq!(code(ledger.grant(&node, &count(1), &d)), GPU[1]);
    assert_eq!(code(ledger.grant(&node, &count(1), &e)), "CAPACITY_FULL/capacity");
    assert_eq!(code(ledger.grant(&node, &count(1), &c)), GPU[0]);
    ledger.leave_queue(&c).unwrap();
    assert!(ledger.waiters().unwrap().is_empty());
    assert_eq!(ledger.leases().unwrap().len(), 2);
}

/// An engine's service makes its containers all by itself: each of them is one who waits.
#[test]
fn one_process_waits_for_each_of_its_containers() {
    let (dir, world, node) = (state(), World::new(), inventory(2));
    let ledger = ledger(&dir, &world);
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|id| holder(&world, id, 7));
    ledger.grant(&node, &count(2), &a).unwrap();
    ledger.queue(&count(2), &b, 30).unwrap();
    ledger.queue(&count(1), &c, 30).unwrap();
    ledger.release(&a.key).unwrap();
    for later in [&c, &d] {
        assert_eq!(code(ledger.grant(&node, &count(1), later)), "CAPACITY_FULL/capacity", "{}", later.container);
    }
    ledger.leave_queue(&d).unwrap();
    ledger.leave_queue(&b).unwrap();
    let left: Vec<String> = ledger.waiters().unwrap().into_iter().map(|waiter| waiter.name().to_owned()).collect();
    assert_eq!(left, ["c"]);
    assert_eq!(code(ledger.grant(&node, &count(1), &c)), GPU[0]);
}

#[test]
fn nobody_waits_for_what_he_does_not_want() {
    let (dir, world, mut node) = (state(), World::new(), inventory(4));
    node.gpus[3].model = Some("NVIDIA L4".into());
    let ledger = ledger(&dir, &world);
    let [a, b, c] = ["a", "b", "c"].map(|id| holder(&world, id, u32::from(id.as_bytes()[0])));
    ledger.grant(&node, &ids(&["nvidia0", "nvidia1"]), &a).unwrap();
    // It waits for two of three; what is there of them is its own, and the fourth is of another kind.
    ledger.queue(&Request { kind: Some("a100".into()), ..count(3) }, &b, 30).unwrap();
    assert_eq!(code(ledger.grant(&node, &ids(&["nvidia2"]), &c)), "CAPACITY_FULL/capacity");
    assert_eq!(code(ledger.grant(&node, &count(1), &c)), GPU[3]);
    // What can never be had keeps nobody from anything.
    ledger.leave_queue(&b).unwrap();
    ledger.queue(&count(9), &b, 30).unwrap();
    ledger.queue(&ids(&["nvidia0"]), &b, 30).unwrap();
    ledger.release(&c.key).unwrap();
    assert_eq!(code(ledger.grant(&node, &count(2), &c)), format!("{} {}", GPU[2], GPU[3]));
}

/// Who is short of what others have keeps his place although a GPU is in use outside leases.
#[test]
fn a_busy_gpu_costs_nobody_his_place() {
    let (dir, world, mut node) = (state(), World::new(), inventory(4));
    let ledger = ledger(&dir, &world);
    let [a, b, c] = ["a", "b", "c"].map(|id| holder(&world, id, u32::from(id.as_bytes()[0])));
    ledger.grant(&node, &count(1), &a).unwrap();
    node.gpus[3].unavailable = Some(Unavailable::new(State::Busy, "why"));
    assert_eq!(code(ledger.grant(&node, &count(3), &b)), "CAPACITY_FULL/capacity");
    ledger.queue(&count(3), &b, 30).unwrap();
    assert_eq!(code(ledger.grant(&node, &count(1), &c)), "CAPACITY_FULL/capacity");
    ledger.release(&a.key).unwrap();
    assert_eq!(code(ledger.grant(&node, &count(3), &b)), GPU[..3].join(" "));
}

#[test]
fn the_dead_and_the_late_leave_the_queue() {
    let node = inventory(1);
    for (what, end) in [
        ("died", (|world: &World| world.with(|w| w.alive.remove(&98))) as fn(&World) -> bool),
        ("too late", |world| world.with(|w| std::mem::replace(&mut w.seconds, 1032) > 0)),
        ("another boot", |world| world.with(|w| std::mem::replace(&mut w.boot, Ok("boot-2".into())).is_ok())),
    ] {
        let (dir, world) = (state(), World::new());
        let ledger = ledger(&dir, &world);
        let [b, c] = ["b", "c"].map(|id| holder(&world, id, u32::from(id.as_bytes()[0])));
        ledger.queue(&count(1), &b, 30).unwrap();
        assert_eq!(code(ledger.grant(&node, &count(1), &c)), "CAPACITY_FULL/capacity", "{what}");
        assert!(end(&world), "{what}");
        assert_eq!(code(ledger.grant(&node, &count(1), &c)), GPU[0], "{what}");
        let names = std::fs::read_dir(ledger.path("leases")).unwrap().count();
        assert_eq!(names, 1, "{what}");
    }
    let (dir, world) = (state(), World::new());
    let ledger = ledger(&dir, &world);
    let (b, c) = (holder(&world, "b", 98), holder(&world, "c", 99));
    ledger.queue(&count(1), &b, 30).unwrap();
    std::fs::write(ledger.path("leases").join("wait-0000000000"), "{").unwrap();
    std::fs::write(ledger.path("leases").join("wait-x"), "{").unwrap();
    ledger.leave_queue(&b).unwrap();
    assert_eq!(code(ledger.grant(&node, &count(1), &c)), GPU[0], "what cannot be read is nobody");
}

/// D24: whoever shares the state folder and sees other processes can say of no waiter that it is gone.
#[test]
fn who_sees_another_world_ends_no_waiting() {
    let (dir, world, node) = (state(), World::new(), inventory(1));
    let ledger = ledger(&dir, &world);
    let [b, c] = ["b", "c"].map(|id| holder(&world, id, u32::from(id.as_bytes()[0])));
    ledger.queue(&count(1), &b, 30).unwrap();
    world.with(|w| (w.namespaces, w.alive) = ((8, 8), [c.creator.pid].into()));
    assert_eq!(code(ledger.grant(&node, &count(1), &c)), "CAPACITY_FULL/capacity");
    world.with(|w| w.seconds = 1032);
    assert_eq!(code(ledger.grant(&node, &count(1), &c)), GPU[0], "its time is over");
}

#[test]
fn a_place_that_was_taken_away_is_taken_again() {
    let (dir, world, node) = (state(), World::new(), inventory(1));
    let ledger = ledger(&dir, &world);
    let [b, c] = ["b", "c"].map(|id| holder(&world, id, u32::from(id.as_bytes()[0])));
    let mut place = ledger.queue(&count(1), &b, 30).unwrap();
    ledger.queue(&count(1), &c, 30).unwrap();
    let order = || ledger.waiters().unwrap().iter().map(|waiter| waiter.name().to_owned()).collect::<Vec<_>>();
    std::fs::remove_file(ledger.path(&place.path())).unwrap();
    assert_eq!(order(), ["c"]);
    for _ in 0..2 {
        ledger.keep(&mut place);
        assert_eq!(order(), ["b", "c"]);
    }
    // Its number is another's: it is not taken from him.
    ledger.leave_queue(&b).unwrap();
    ledger.leave_queue(&c).unwrap();
    ledger.queue(&count(1), &c, 30).unwrap();
    ledger.keep(&mut place);
    assert_eq!(order(), ["c", "b"]);
    assert_eq!(code(ledger.grant(&node, &count(1), &c)), GPU[0]);
}

#[test]
fn a_change_wakes_and_no_change_does_not_sleep_for_ever() {
    let (dir, world, node) = (state(), World::new(), inventory(1));
    let ledger = ledger(&dir, &world);
    let a = holder(&world, "a", 1);
    let mark = ledger.mark();
    ledger.grant(&node, &count(1), &a).unwrap();
    assert_ne!(ledger.mark(), mark);
    ledger.sleep_on(mark, Duration::MAX);
    ledger.sleep_on(ledger.mark(), Duration::from_millis(60));
}

#[test]
fn one_owner_shares_and_nobody_else() {
    let node = inventory(2);
    for (first, second, expected) in [
        // What its owner shares already is preferred, and the other stays free.
        ((Some("red"), true), (Some("red"), true), GPU[0]),
        ((Some("red"), true), (Some("blue"), true), GPU[1]),
        ((Some("red"), true), (Some("red"), false), GPU[1]),
        ((Some("red"), false), (Some("red"), true), GPU[1]),
        ((None, true), (None, true), GPU[1]),
        ((None, true), (Some("red"), true), GPU[1]),
    ] {
        let (dir, world) = (state(), World::new());
        let ledger = ledger(&dir, &world);
        let [a, b] = [("a", first), ("b", second)].map(|(id, (owner, shares))| {
            (owned(owner, holder(&world, id, 1)), if shares { shared(count(1)) } else { count(1) })
        });
        assert_eq!(code(ledger.grant(&node, &a.1, &a.0)), GPU[0]);
        assert_eq!(code(ledger.grant(&node, &b.1, &b.0)), expected, "{first:?} {second:?}");
        // By name it is the same, without the preference.
        ledger.release(&b.0.key).unwrap();
        let named = Request { count: 1, ids: vec!["nvidia0".into()], ..b.1 };
        let expected = if expected == GPU[0] { GPU[0] } else { "CAPACITY_FULL/capacity" };
        assert_eq!(code(ledger.grant(&node, &named, &b.0)), expected, "{first:?} {second:?}");
    }
}

#[test]
fn a_shared_gpu_is_free_when_the_last_has_gone() {
    let (dir, world, node) = (state(), World::new(), inventory(1));
    let ledger = ledger(&dir, &world);
    let [a, b, c] = ["a", "b", "c"].map(|id| owned(Some("red"), holder(&world, id, 1)));
    for holder in [&a, &b] {
        assert_eq!(code(ledger.grant(&node, &shared(count(1)), holder)), GPU[0]);
    }
    assert!(ledger.release(&a.key).unwrap().is_empty());
    assert_eq!(code(ledger.grant(&node, &count(1), &c)), "CAPACITY_FULL/capacity");
    // While one of them drains nobody joins.
    world.with(|w| w.busy_cgroups.insert("/box/b".into()));
    ledger.grant(&node, &shared(count(1)), &a).unwrap();
    ledger.release(&b.key).unwrap();
    assert_eq!(code(ledger.grant(&node, &shared(count(1)), &c)), "CAPACITY_FULL/capacity");
    world.with(|w| w.busy_cgroups.clear());
    assert_eq!(code(ledger.grant(&node, &shared(count(1)), &c)), GPU[0]);
    ledger.release(&c.key).unwrap();
    assert_eq!(ledger.release(&a.key).unwrap(), [GPU[0]]);
}

fn config(internal: &[(&[&str], &[&str])], capacity: u32, per_owner: u32) -> Config {
    let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
    let internal = internal.iter().map(|(gpus, only)| Internal { gpus: words(gpus), kind: None, only: words(only) });
    let mut config = Config { internal: Tables(internal.collect()), ..Config::default() };
    config.capacity.gpus = capacity;
    config.request.max_per_owner = per_owner;
    config
}

#[test]
fn what_the_operator_keeps_back() {
    let (node, red) = (inventory(3), Some("red"));
    let internal = config(&[(&["nvidia0"], &["red", "vm:a"])], 0, 0);
    let declared = config(&[], 2, 0);
    let (many, none) = (config(&[], 9, 0), config(&[], 0, 0));
    for (config, owner, request, expected) in [
        (&internal, None, count(1), GPU[1]),
        (&internal, red, count(1), GPU[0]),
        (&internal, Some("blue"), count(2), "0000:02:00.0 0000:03:00.0"),
        (&internal, None, count(3), "POLICY/internal-only"),
        (&internal, red, count(3), "0000:01:00.0 0000:02:00.0 0000:03:00.0"),
        (&internal, None, count(4), "UNKNOWN_GPU/request-count"),
        (&internal, None, ids(&["nvidia0"]), "POLICY/internal-only"),
        (&internal, red, ids(&["nvidia0"]), GPU[0]),
        (&declared, None, count(2), "0000:01:00.0 0000:02:00.0"),
        (&declared, None, count(3), "POLICY/capacity-declared"),
        (&declared, None, ids(&["nvidia2"]), "POLICY/capacity-declared"),
        (&declared, None, ids(&["nvidia1"]), GPU[1]),
        (&many, None, count(3), "0000:01:00.0 0000:02:00.0 0000:03:00.0"),
        (&none, None, count(1), GPU[0]),
    ] {
        let (dir, world) = (state(), World::new());
        let ledger = ledger(&dir, &world).limited(config);
        let answer = ledger.grant(&node, &request, &owned(owner, holder(&world, "a", 1)));
        assert_eq!(code(answer), expected, "{owner:?} {request:?}");
    }
    // What containers do not get can be had by name; what is kept for some, by the right name.
    for (config, name, expected) in
        [(&declared, "vm:b", "0000:03:00.0"), (&internal, "vm:a", GPU[0]), (&internal, "vm:b", "POLICY/internal-only")]
    {
        let (dir, world) = (state(), World::new());
        let ledger = ledger(&dir, &world).limited(config);
        let id = if expected == GPU[2] { "nvidia2" } else { "nvidia0" };
        assert_eq!(code(ledger.acquire_named(&node, &ids(&[id]), name)), expected, "{name}");
    }
}

/// A GPU that was not opened since boot has no UUID and no model: it is nobody's by mistake.
#[test]
fn what_is_not_known_of_a_gpu_opens_it_to_nobody() {
    let mut node = inventory(3);
    let known = node.gpus[0].uuid.clone().unwrap();
    let by_uuid = config(&[(&[&known], &["red"])], 0, 0);
    let mut by_kind = config(&[], 0, 0);
    by_kind.internal.0 = vec![Internal { gpus: vec![], kind: Some("a100".into()), only: vec!["red".into()] }];
    let mut declared = config(&[], 1, 0);
    declared.capacity.kind = "a100".into();
    (node.gpus[0].uuid, node.gpus[0].model, node.gpus[1].model) = (None, None, None);
    node.gpus[2].model = Some("NVIDIA L4".into());
    for (config, owner, request, expected) in [
        (&by_uuid, None, count(1), GPU[1]),
        (&by_uuid, None, ids(&["nvidia0"]), "POLICY/internal-only"),
        (&by_uuid, Some("red"), count(1), GPU[0]),
        (&by_kind, None, count(1), GPU[2]),
        (&by_kind, None, count(2), "POLICY/internal-only"),
        (&by_kind, Some("red"), count(1), GPU[0]),
        (&declared, None, count(2), "0000:01:00.0 0000:03:00.0"),
        (&declared, None, ids(&["nvidia1"]), "POLICY/capacity-declared"),
    ] {
        let (dir, world) = (state(), World::new());
        let ledger = ledger(&dir, &world).limited(config);
        let answer = ledger.grant(&node, &request, &owned(owner, holder(&world, "a", 1)));
        assert_eq!(code(answer), expected, "{owner:?} {request:?}");
    }
}

/// What containers have stays of the declared number, whatever becomes of it: another is not put into service beside it.
#[test]
fn a_gpu_that_is_lost_while_leased_is_in_service() {
    let (dir, world, mut node) = (state(), World::new(), inventory(4));
    let ledger = ledger(&dir, &world).limited(&config(&[], 2, 0));
    let [a, b, c] = ["a", "b", "c"].map(|id| holder(&world, id, u32::from(id.as_bytes()[0])));
    ledger.grant(&node, &count(1), &a).unwrap();
    node.gpus[0].unavailable = Some(Unavailable::new(State::Lost, "why"));
    assert_eq!(code(ledger.grant(&node, &count(1), &b)), GPU[1]);
    assert_eq!(code(ledger.grant(&node, &count(1), &c)), "CAPACITY_FULL/capacity");
    assert_eq!(code(ledger.grant(&node, &ids(&["nvidia2"]), &c)), "POLICY/capacity-declared");
    // It is nobody's any more: another is in service, and the first is not when it is well again.
    ledger.release(&a.key).unwrap();
    assert_eq!(code(ledger.grant(&node, &count(1), &c)), GPU[2]);
    node.gpus[0].unavailable = None;
    assert_eq!(code(ledger.grant(&node, &ids(&["nvidia0"]), &a)), "POLICY/capacity-declared");
    // A machine's is not of the containers'.
    ledger.release(&c.key).unwrap();
    ledger.acquire_named(&node, &ids(&["nvidia3"]), "vm:a").unwrap();
    assert_eq!(code(ledger.grant(&node, &count(1), &c)), GPU[0]);
}

#[test]
fn an_owner_has_no_more_than_its_ceiling() {
    let (dir, world, node) = (state(), World::new(), inventory(4));
    let ledger = ledger(&dir, &world).limited(&config(&[], 0, 2));
    let of = |owner: Option<&str>, id: &str| owned(owner, holder(&world, id, 1));
    assert_eq!(code(ledger.grant(&node, &count(3), &of(Some("red"), "a"))), "POLICY/owner-ceiling");
    assert_eq!(code(ledger.grant(&node, &shared(count(1)), &of(Some("red"), "a"))), GPU[0]);
    // The same GPU once more is no other GPU.
    assert_eq!(code(ledger.grant(&node, &shared(count(1)), &of(Some("red"), "b"))), GPU[0]);
    assert_eq!(code(ledger.grant(&node, &count(1), &of(Some("red"), "c"))), GPU[1]);
    assert_eq!(code(ledger.grant(&node, &count(1), &of(Some("red"), "d"))), "POLICY/owner-ceiling");
    assert_eq!(code(ledger.grant(&node, &count(1), &of(Some("blue"), "e"))), GPU[2]);
    assert_eq!(code(ledger.grant(&node, &count(1), &of(None, "f"))), GPU[3]);
    ledger.release(&of(None, "c").key).unwrap();
    assert_eq!(code(ledger.grant(&node, &count(1), &of(Some("red"), "d"))), GPU[1]);
}

/// Who may never have what he asks for neither waits nor has anything set aside, and his owner's stuck processes count.
#[test]
fn the_ceiling_comes_before_the_queue() {
    let (dir, world, node) = (state(), World::new(), inventory(4));
    let ledger = ledger(&dir, &world).limited(&config(&[], 0, 2));
    let [red, blue] = ["red", "blue"].map(Some);
    let of = |owner: Option<&str>, id: &str| owned(owner, holder(&world, id, u32::from(id.as_bytes()[0])));
    ledger.grant(&node, &count(2), &of(None, "a")).unwrap();
    assert_eq!(code(ledger.grant(&node, &count(3), &of(red, "b"))), "POLICY/owner-ceiling", "and not CAPACITY_FULL");
    // Waiters of before the policy, or whose owner got others meanwhile.
    ledger.queue(&count(3), &of(red, "b"), 30).unwrap();
    assert_eq!(code(ledger.grant(&node, &count(1), &of(blue, "c"))), GPU[2]);
    ledger.queue(&count(2), &of(red, "d"), 30).unwrap();
    ledger.queue(&count(2), &of(red, "e"), 30).unwrap();
    // One of red's keeps what is there aside, and its next nothing: of four, two are free now.
    ledger.release(&of(None, "a").key).unwrap();
    assert_eq!(code(ledger.grant(&node, &count(1), &of(blue, "f"))), GPU[3]);
    // The queue lets red have what is kept; then its others keep nothing, though it has ended but for a process.
    assert_eq!(code(ledger.grant(&node, &count(2), &of(red, "d"))), GPU[..2].join(" "));
    ledger.leave_queue(&of(red, "d")).unwrap();
    ledger.release(&of(blue, "c").key).unwrap();
    world.with(|w| w.busy_cgroups.insert("/box/d".into()));
    assert!(ledger.release(&of(red, "d").key).unwrap().is_empty());
    assert_eq!(code(ledger.grant(&node, &count(1), &of(red, "g"))), "POLICY/owner-ceiling");
    assert_eq!(code(ledger.grant(&node, &count(1), &of(None, "h"))), GPU[2]);
    world.with(|w| w.busy_cgroups.clear());
    // The dead are looked for before an owner is told that it has too many.
    assert_eq!(code(ledger.grant(&node, &count(1), &of(red, "e"))), GPU[0]);
}

#[test]
fn so_many_of_an_owner_wait_and_no_more() {
    let (dir, world) = (state(), World::new());
    let ledger = ledger(&dir, &world);
    let of = |owner, n: usize| owned(owner, holder(&world, &format!("c{n}"), u32::try_from(n).unwrap()));
    for n in 0..MOST_WAITING {
        ledger.queue(&count(1), &of(Some("red"), n), 30).unwrap();
    }
    let full = ledger.queue(&count(1), &of(Some("red"), 98), 30).unwrap_err();
    assert_eq!((full.code, full.rule), (Code::CapacityFull, "queue-full"));
    ledger.queue(&count(1), &of(Some("blue"), 98), 30).unwrap();
    ledger.queue(&count(1), &of(None, 99), 30).unwrap();
    world.with(|w| w.alive.remove(&7));
    ledger.queue(&count(1), &of(Some("red"), 100), 30).unwrap();
}

/// One step of the model: what a container does next, and how it asks when it asks.
#[derive(Debug, Clone)]
struct Step {
    who: usize,
    act: u8,
    many: u32,
    shares: bool,
}

fn step() -> impl Strategy<Value = Step> {
    (0_usize..6, 0_u8..4, 1_u32..3, any::<bool>()).prop_map(|(who, act, many, shares)| Step { who, act, many, shares })
}

/// Who waits, in the model: the container and its request.
type Queue = Vec<(usize, Request)>;

const OWNERS: [Option<&str>; 6] = [Some("red"), Some("red"), Some("blue"), Some("blue"), None, Some("red")];

/// No GPU is anybody's beside an exclusive holder's, or a stranger's; no owner has more than two.
fn sound(granted: &BTreeMap<usize, (Vec<String>, bool)>) {
    for pci in GPU {
        let has: Vec<_> = granted.iter().filter(|(_, (gpus, _))| gpus.iter().any(|gpu| gpu == pci)).collect();
        let owners: BTreeSet<_> = has.iter().map(|(who, _)| OWNERS[**who]).collect();
        let exclusive = has.iter().any(|(_, (_, shares))| !shares);
        assert!(has.len() < 2 || !exclusive && owners.len() == 1 && !owners.contains(&None), "{pci}: {granted:?}");
    }
    for owner in ["red", "blue"] {
        let of = granted.iter().filter(|(who, _)| OWNERS[**who] == Some(owner));
        let gpus: BTreeSet<&String> = of.flat_map(|(_, (gpus, _))| gpus).collect();
        assert!(gpus.len() <= 2, "{owner}: {granted:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Containers come, wait, go and die in any order. Leases on disk are what was granted and not ended; and who is granted
    /// something while others wait longer leaves the first of them everything that one could have had a moment before.
    #[test]
    fn model(steps in prop::collection::vec(step(), 1..40)) {
        let (dir, world, node) = (state(), World::new(), inventory(4));
        let ledger = ledger(&dir, &world).limited(&config(&[], 0, 2));
        let people: Vec<Holder> = OWNERS.iter().enumerate().map(|(n, owner)| {
            owned(*owner, holder(&world, &format!("c{n}"), u32::try_from(n).unwrap() + 10))
        }).collect();
        let mut granted: BTreeMap<usize, (Vec<String>, bool)> = BTreeMap::new();
        let mut queue: Queue = Vec::new();
        for Step { who, act, many, shares } in steps {
            let me = &people[who];
            let waiting = queue.iter().position(|(other, _)| *other == who);
            match act {
                0 | 1 if !granted.contains_key(&who) => {
                    world.with(|w| w.alive.insert(me.creator.pid));
                    let asked = if shares { shared(count(many)) } else { count(many) };
                    let request = waiting.map_or(asked, |at| queue[at].1.clone());
                    let before = waiting.unwrap_or(queue.len());
                    let first = queue.first().filter(|_| before > 0).cloned();
                    let could = |first: &(usize, Request)| ledger.dry(&node, &first.1, &people[first.0]);
                    let had = first.as_ref().map(could);
                    match ledger.grant(&node, &request, me) {
                        Ok(gpus) => {
                            granted.insert(who, (pcis(&gpus), request.terms.sharing == Sharing::Owner));
                            queue.retain(|(other, _)| *other != who);
                            ledger.leave_queue(me).unwrap();
                            if let (Some(first), Some(true)) = (&first, had) {
                                prop_assert!(could(first), "{:?} was overtaken by {}", first, who);
                            }
                        }
                        Err(refusal) if refusal.code == Code::CapacityFull && waiting.is_none() && act == 1 => {
                            ledger.queue(&request, me, 30).unwrap();
                            queue.push((who, request));
                        }
                        Err(refusal) => prop_assert!(matches!(refusal.code, Code::CapacityFull | Code::Policy), "{}", refusal),
                    }
                }
                2 if granted.remove(&who).is_some() => {
                    ledger.release(&me.key).unwrap();
                }
                3 => {
                    // Its process ends: nothing of it is left.
                    world.with(|w| w.alive.remove(&me.creator.pid));
                    queue.retain(|(other, _)| *other != who);
                    granted.remove(&who);
                    ledger.reclaim().unwrap();
                }
                _ => {}
            }
            sound(&granted);
            let waits: Vec<String> = ledger.waiters().unwrap().into_iter().map(|waiter| waiter.name().to_owned()).collect();
            prop_assert_eq!(waits, queue.iter().map(|(who, _)| format!("c{who}")).collect::<Vec<_>>());
            let on_disk: BTreeSet<(String, String)> = ledger.names().unwrap().into_iter().map(|n| (n.slot, n.tag)).collect();
            let expected: BTreeSet<(String, String)> = granted
                .iter()
                .flat_map(|(who, (gpus, _))| gpus.iter().map(|gpu| (gpu.clone(), people[*who].key.to_string())))
                .collect();
            prop_assert_eq!(on_disk, expected);
        }
    }
}

impl Ledger {
    /// Whether a request could be granted if nobody waited.
    fn dry(&self, node: &Inventory, request: &Request, holder: &Holder) -> bool {
        let names = self.names().unwrap();
        let others: Vec<Other<'_>> = names.iter().map(|name| Other { name, lease: self.read(name).ok() }).collect();
        let party = Party::of(holder.owner.as_deref(), request);
        let taken = party.taken(node, &others);
        let fits = |chosen: Vec<Granted>| self.limits.owner_fits(&party, &others, party.more(&others, &chosen));
        let previous = party.shared(&others);
        crate::allocate(node, &|slot| taken.iter().any(|taken| taken == slot), request, &previous).is_ok_and(fits)
    }
}
