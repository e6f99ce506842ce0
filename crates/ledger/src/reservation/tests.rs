use contract::Code;
use tempfile::TempDir;

use super::*;
use crate::files::crash;
use crate::testing::{World, contract_for, count, holder, ids, inventory, ledger, pcis, state};

/// A node with two GPUs, and one way to reserve both.
struct Stage {
    _dir: TempDir,
    world: World,
    node: Inventory,
    ledger: Ledger,
}

impl Stage {
    /// Reservations are trusted only when they are root's.
    fn new() -> Option<Self> {
        let (dir, world) = (state(), World::new());
        if std::os::unix::fs::MetadataExt::uid(&dir.path().metadata().unwrap()) != 0 {
            println!("skipped: redeeming needs files of root's, and this is not root");
            return None;
        }
        let ledger = ledger(&dir, &world);
        Some(Self { _dir: dir, world, node: inventory(2), ledger })
    }

    fn reserve(&self, n: u32) -> Result<Reserved, Refusal> {
        let request = count(n);
        self.ledger.reserve(&self.node, &request, &Reserving { seconds: 60, ..Reserving::default() }, &mut |gpus| {
            contract_for(&self.node, gpus, &request, None)
        })
    }

    fn holder(&self, id: &str, pid: u32) -> Holder {
        holder(&self.world, id, pid)
    }

    fn tags(&self) -> Vec<String> {
        self.ledger.names().unwrap().into_iter().map(|name| name.tag).collect()
    }
}

fn refused(result: Result<Contract, Refusal>, rule: &str) {
    let refusal = result.unwrap_err();
    assert_eq!((refusal.code, refusal.rule), (Code::ContractUntrusted, rule), "{refusal}");
}

#[test]
fn once_and_for_one_container() {
    let Some(stage) = Stage::new() else { return };
    let reserved = stage.reserve(2).unwrap();
    assert_eq!(reserved.contract.key, None);
    assert_eq!(stage.tags(), [format!("r-{}", reserved.token), format!("r-{}", reserved.token)]);
    let [a, b] = ["a", "b"].map(|id| stage.holder(id, u32::from(id.as_bytes()[0])));
    assert_eq!(stage.ledger.grant(&stage.node, &count(1), &b).unwrap_err().code, Code::CapacityFull);
    let contract = stage.ledger.redeem(&reserved.token, &a).unwrap();
    assert_eq!(contract, Contract { key: Some(a.key.to_string()), ..reserved.contract });
    assert_eq!(stage.tags(), [a.key.as_str(), a.key.as_str()]);
    refused(stage.ledger.redeem(&reserved.token, &b), "reservation-unknown");
    refused(stage.ledger.redeem("../../etc/passwd", &b), "reservation-unknown");
    assert_eq!(stage.ledger.release(&a.key).unwrap().len(), 2);
    assert!(stage.tags().is_empty());
}

/// Q63, H11: whoever comes at the same moment with the same token, one gets it; a thousand times.
#[test]
fn q63_two_at_once_and_one_token_a_thousand_times() {
    let Some(stage) = Stage::new() else { return };
    let [a, b] = ["a", "b"].map(|id| stage.holder(id, u32::from(id.as_bytes()[0])));
    let folder = stage.ledger.path("");
    let mut firsts = 0;
    for round in 0..1000 {
        let token = stage.reserve(1).unwrap().token;
        let together = std::sync::Barrier::new(2);
        // As two processes: each opens the ledger, and its lock, for itself.
        let redeem = |holder: &Holder| {
            let ledger = Ledger::open_on(&folder, Box::new(stage.world.clone())).unwrap();
            together.wait();
            ledger.redeem(&token, holder)
        };
        let (one, other) = std::thread::scope(|scope| {
            let one = scope.spawn(|| redeem(&a));
            let other = redeem(&b);
            (one.join().unwrap(), other)
        });
        assert_ne!(one.is_ok(), other.is_ok(), "round {round}: {one:?} {other:?}");
        firsts += usize::from(one.is_ok());
        let winner = if one.is_ok() { &a } else { &b };
        refused(if one.is_ok() { other } else { one }, "reservation-unknown");
        assert_eq!(stage.tags(), [winner.key.as_str()], "round {round}");
        stage.ledger.release(&winner.key).unwrap();
    }
    println!("the first of two won {firsts} of 1000 rounds");
}

#[test]
fn for_a_time_and_for_this_boot() {
    let Some(stage) = Stage::new() else { return };
    let a = stage.holder("a", 1);
    let reserved = stage.reserve(1).unwrap();
    stage.world.with(|w| w.seconds += 59);
    assert_eq!(stage.ledger.leases().unwrap()[0].held_because, "reserved for 1 s more");
    stage.world.with(|w| w.seconds += 1);
    refused(stage.ledger.redeem(&reserved.token, &a), "reservation-expired");
    assert_eq!(stage.ledger.reclaim().unwrap().len(), 1);
    refused(stage.ledger.redeem(&reserved.token, &a), "reservation-unknown");
    assert!(files::names(&stage.ledger.path("reservations")).unwrap().is_empty());

    let reserved = stage.reserve(1).unwrap();
    stage.world.with(|w| w.boot = Ok("boot-2".into()));
    refused(stage.ledger.redeem(&reserved.token, &a), "reservation-expired");
    // An expired one is out of the way when room is short, without anyone asking.
    assert_eq!(stage.ledger.grant(&stage.node, &count(2), &a).unwrap().len(), 2);
}

#[test]
fn given_up_or_never_made() {
    let Some(stage) = Stage::new() else { return };
    let reserved = stage.reserve(2).unwrap();
    assert_eq!(stage.ledger.cancel(&reserved.token).unwrap().len(), 2);
    assert!(stage.ledger.cancel(&reserved.token).unwrap().is_empty());
    assert!(stage.ledger.cancel("no token").unwrap().is_empty());
    refused(stage.ledger.redeem(&reserved.token, &stage.holder("a", 1)), "reservation-unknown");
    let no = || Err(Refusal::new(Code::DriverNotReady, "x", "no", ""));
    assert_eq!(
        stage
            .ledger
            .reserve(&stage.node, &count(1), &Reserving { seconds: 60, ..Reserving::default() }, &mut |_| no())
            .unwrap_err()
            .code,
        Code::DriverNotReady
    );
    assert!(stage.tags().is_empty());
}

#[test]
fn a_reserved_device_number_is_taken_wherever_it_moves() {
    let Some(mut stage) = Stage::new() else { return };
    stage.reserve(1).unwrap();
    let [first, second] = &mut stage.node.gpus[..] else { panic!() };
    std::mem::swap(&mut first.minor, &mut second.minor);
    let asked = stage.ledger.grant(&stage.node, &count(1), &stage.holder("a", 1));
    assert_eq!(asked.unwrap_err().code, Code::CapacityFull);
    assert_eq!(stage.tags().len(), 1);
}

#[test]
fn one_id_names_one_contract() {
    let Some(stage) = Stage::new() else { return };
    let reserved = stage.reserve(1).unwrap();
    assert_eq!(stage.ledger.reservations().unwrap(), std::slice::from_ref(&reserved));
    let again = |stage: &Stage| stage.reserve(1).map(|_| ()).map_err(|refusal| (refusal.code, refusal.rule));
    assert_eq!(again(&stage), Err((Code::InvalidGpuRequest, "contract-id")));
    assert_eq!(stage.tags().len(), 1, "the second one left nothing");
    let a = stage.holder("a", 1);
    let contract = stage.ledger.redeem(&reserved.token, &a).unwrap();
    stage.ledger.put_contract(&contract, &a.key).unwrap();
    assert!(stage.ledger.reservations().unwrap().is_empty());
    assert_eq!(again(&stage), Err((Code::InvalidGpuRequest, "contract-id")));
    stage.ledger.release(&a.key).unwrap();
    assert_eq!(again(&stage), Ok(()));
}

#[test]
fn not_for_a_container_that_is_there() {
    let Some(stage) = Stage::new() else { return };
    let a = stage.holder("a", 1);
    stage.ledger.grant(&stage.node, &count(1), &a).unwrap();
    let reserved = stage.reserve(1).unwrap();
    let again = stage.holder("a", 2);
    assert_eq!(stage.ledger.redeem(&reserved.token, &again).unwrap_err().rule, "container-exists");
    stage.world.with(|w| w.alive.remove(&1));
    // The earlier create died: what it had is not part of this contract.
    let contract = stage.ledger.redeem(&reserved.token, &again).unwrap();
    assert_eq!(pcis(&contract.gpus), ["0000:02:00.0"]);
    assert_eq!(stage.tags(), [again.key.as_str()]);
}

#[test]
fn leases_that_were_taken_away_cannot_be_redeemed() {
    let Some(stage) = Stage::new() else { return };
    let reserved = stage.reserve(2).unwrap();
    stage.ledger.lock().unwrap().remove(&Name::path("0000:02:00.0", &tag(&reserved.token))).unwrap();
    refused(stage.ledger.redeem(&reserved.token, &stage.holder("a", 1)), "reservation-replay");
    assert_eq!(stage.tags().len(), 1);
}

#[test]
fn a_gpu_that_someone_else_holds_cannot_be_redeemed() {
    let Some(stage) = Stage::new() else { return };
    let reserved = stage.reserve(2).unwrap();
    let other = stage.holder("other", 5);
    let gpu = &reserved.contract.gpus[..1];
    let locked = stage.ledger.lock().unwrap();
    stage.ledger.write_leases(&locked, gpu, other.key.as_str(), &other.held_by(&stage.world), "boot-1").unwrap();
    drop(locked);
    refused(stage.ledger.redeem(&reserved.token, &stage.holder("a", 1)), "reservation-replay");
    // Once that one is gone, the reservation is as good as it was.
    stage.world.with(|w| w.alive.remove(&5));
    assert_eq!(stage.ledger.redeem(&reserved.token, &stage.holder("a", 1)).unwrap().gpus.len(), 2);
}

/// Kills a redeem after each of its steps. At every instant both GPUs are taken. Afterwards the token is either still
/// good, for this or another container, or used up; in the end nothing stays behind.
#[test]
fn a_redeem_killed_after_every_step() {
    for other_takes_over in [false, true] {
        for steps in 0.. {
            let Some(stage) = Stage::new() else { return };
            let reserved = stage.reserve(2).unwrap();
            let a = stage.holder("a", 1);
            let (result, killed) = crash::after(steps, || stage.ledger.redeem(&reserved.token, &a));
            assert_eq!(
                stage.ledger.names().unwrap().iter().map(|n| &n.slot).collect::<std::collections::BTreeSet<_>>().len(),
                2
            );
            let usable = stage.ledger.is_pending(&reserved.token);
            assert!(!(usable && result.is_ok()), "after {steps} steps");
            if !killed {
                break;
            }
            stage.world.with(|w| w.alive.remove(&1));
            let next = if other_takes_over { stage.holder("b", 2) } else { stage.holder("a", 2) };
            let again = stage.ledger.redeem(&reserved.token, &next);
            assert_eq!(again.is_ok(), usable, "after {steps} steps: {again:?}");
            let last = stage.holder("last", 3);
            if usable {
                assert_eq!(stage.tags(), [next.key.as_str(), next.key.as_str()], "after {steps} steps");
                stage.ledger.release(&next.key).unwrap();
            }
            stage.world.with(|w| w.alive.remove(&2));
            assert_eq!(stage.ledger.grant(&stage.node, &count(2), &last).unwrap().len(), 2, "after {steps} steps");
            assert!(files::names(&stage.ledger.path("reservations")).unwrap().is_empty());
        }
    }
}

#[test]
fn a_reserve_killed_after_every_step() {
    for steps in 0.. {
        let Some(stage) = Stage::new() else { return };
        let (_, killed) = crash::after(steps, || stage.reserve(2));
        if !killed {
            assert!(steps >= 6, "{steps} steps");
            break;
        }
        let a = stage.holder("a", 1);
        // Nobody learnt the token: whatever was written is free at once.
        assert_eq!(stage.ledger.grant(&stage.node, &count(2), &a).unwrap().len(), 2, "after {steps} steps");
        assert_eq!(stage.tags().len(), 2);
    }
}

/// Whoever reserved did not know whose container it would be; the node does when the container comes.
#[test]
fn an_owner_redeems_no_more_than_it_may_have() {
    let Some(Stage { _dir, world, node, ledger }) = Stage::new() else { return };
    let mut config = contract::config::Config::default();
    config.request.max_per_owner = 1;
    let stage = Stage { _dir, world, node, ledger: ledger.limited(&config) };
    let owned = |id: &str| Holder { owner: Some("red".into()), ..stage.holder(id, 1) };
    let reserved = stage.reserve(1).unwrap();
    stage.ledger.grant(&stage.node, &count(1), &owned("a")).unwrap();
    let refusal = stage.ledger.redeem(&reserved.token, &owned("b")).unwrap_err();
    assert_eq!((refusal.code, refusal.rule), (Code::Policy, "owner-ceiling"));
    // The token is as good as before, and the dead are looked for first.
    stage.world.with(|w| w.alive.remove(&1));
    let last = Holder { owner: Some("red".into()), ..stage.holder("c", 2) };
    assert_eq!(pcis(&stage.ledger.redeem(&reserved.token, &last).unwrap().gpus).len(), 1);
}

/// The operator's word counts where no engine says whose a container is: for what is kept, for the ceiling, and from then on.
#[test]
fn a_reservation_has_the_owner_that_the_operator_says() {
    // It says why where this is not root.
    if Stage::new().is_none() {
        return;
    }
    let (dir, world) = (state(), World::new());
    let node = inventory(3);
    let mut config = contract::config::Config::default();
    config.request.max_per_owner = 1;
    let only = vec!["red".to_owned()];
    config.internal.0 = vec![contract::owner::Internal { gpus: vec!["nvidia0".into()], kind: None, only }];
    let ledger = ledger(&dir, &world).limited(&config);
    let reserve = |owner: Option<&str>, request: &Request| {
        let whose = Reserving { seconds: 60, owner, ..Reserving::default() };
        ledger.reserve(&node, request, &whose, &mut |gpus| contract_for(&node, gpus, request, None))
    };
    let first = |reserved: Result<Reserved, Refusal>| match reserved {
        Ok(reserved) => reserved.contract.gpus[0].name(),
        Err(refusal) => refusal.rule.to_owned(),
    };
    assert_eq!(first(reserve(None, &ids(&["nvidia0"]))), "internal-only");
    assert_eq!(first(reserve(Some("blue"), &ids(&["nvidia0"]))), "internal-only");
    let reserved = reserve(Some("red"), &count(1)).unwrap();
    assert_eq!(reserved.contract.gpus[0].name(), "nvidia0");
    assert_eq!(first(reserve(Some("red"), &count(1))), "owner-ceiling");
    // An engine that says whose it is says the same, or the token is not for it.
    let blue = Holder { owner: Some("blue".into()), ..holder(&world, "b", 8) };
    refused(ledger.redeem(&reserved.token, &blue), "reservation-owner");
    // It stays red's when it is used by a container that nobody attests.
    ledger.redeem(&reserved.token, &holder(&world, "a", 7)).unwrap();
    assert_eq!(first(reserve(Some("red"), &count(1))), "owner-ceiling");
    let of_blue = reserve(Some("blue"), &count(1)).unwrap();
    ledger.redeem(&of_blue.token, &blue).unwrap();
    assert_eq!(first(reserve(Some("green"), &count(1))), "nvidia2");
}
