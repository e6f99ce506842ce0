use contract::Contract;
use contract::inventory::Inventory;
use tempfile::TempDir;

use super::*;
use crate::Holder;
use crate::files::crash;
use crate::testing::{World, contract_for, count, holder, ids, inventory, ledger, pcis, state};

/// A node with two GPUs, and pods on it.
struct Stage {
    _dir: TempDir,
    world: World,
    node: Inventory,
    ledger: Ledger,
}

fn of(uid: &str, container: &str) -> PodContainer {
    PodContainer::new(uid, container)
}

impl Stage {
    fn new() -> Option<Self> {
        let (dir, world) = (state(), World::new());
        if std::os::unix::fs::MetadataExt::uid(&dir.path().metadata().unwrap()) != 0 {
            println!("skipped: redeeming needs files of root's, and this is not root");
            return None;
        }
        let ledger = ledger(&dir, &world);
        Some(Self { _dir: dir, world, node: inventory(2), ledger })
    }

    fn reserve(&self, request: &Request, pod: &PodContainer) -> Result<Reserved, Refusal> {
        // Ids differ, as random ones do.
        let id = format!("{:032x}", self.ledger.names().unwrap().len());
        self.ledger.reserve(
            &self.node,
            request,
            &crate::Reserving { seconds: 60, pod: Some(pod), ..crate::Reserving::default() },
            &mut |gpus| Ok(Contract { id: id.clone(), ..contract_for(&self.node, gpus, request, None)? }),
        )
    }

    /// A container of this id whose create runs.
    fn container(&self, id: &str, pod: &PodContainer) -> Holder {
        Holder { pod: Some(pod.clone()), ..holder(&self.world, id, 1) }
    }

    fn later(&self, seconds: u64) {
        self.world.with(|w| w.seconds += seconds);
    }

    fn tags(&self) -> Vec<String> {
        self.ledger.names().unwrap().into_iter().map(|name| name.tag).collect()
    }
}

fn rule<T: std::fmt::Debug>(result: Result<T, Refusal>) -> (Code, &'static str) {
    let refusal = result.unwrap_err();
    (refusal.code, refusal.rule)
}

const FOREIGN: (Code, &str) = (Code::ContractUntrusted, "reservation-binding");
const EXPIRED: (Code, &str) = (Code::ContractUntrusted, "reservation-expired");

#[test]
fn it_serves_every_restart_of_its_container_and_no_other() {
    let Some(stage) = Stage::new() else { return };
    let main = of("pod-1", "main");
    let reserved = stage.reserve(&count(2), &main).unwrap();
    for other in [of("pod-1", "side"), of("pod-2", "main")] {
        assert_eq!(rule(stage.ledger.redeem(&reserved.token, &stage.container("x", &other))), FOREIGN);
        assert_eq!(rule(stage.ledger.reservation(&reserved.token, Some(&other))), FOREIGN);
    }
    let alone = holder(&stage.world, "x", 1);
    assert_eq!(rule(stage.ledger.redeem(&reserved.token, &alone)), FOREIGN);

    for id in ["first", "second", "third"] {
        let container = stage.container(id, &main);
        let contract = stage.ledger.redeem(&reserved.token, &container).unwrap();
        assert_eq!(contract, Contract { key: Some(container.key.to_string()), ..reserved.contract.clone() });
        // A container that runs for long keeps the reservation as well.
        stage.later(1000);
        assert_eq!(stage.ledger.leases().unwrap().len(), 4, "{id}");
        assert_eq!(
            rule(stage.ledger.redeem(&reserved.token, &stage.container("early", &main))),
            (Code::CapacityFull, "reservation-in-use")
        );
        assert_eq!(rule(stage.ledger.grant(&stage.node, &count(1), &alone)).0, Code::CapacityFull);
        stage.ledger.release(&container.key).unwrap();
        // Between two of them it is the pod's, for as long as was said.
        stage.later(59);
        assert_eq!(rule(stage.ledger.grant(&stage.node, &count(1), &alone)).0, Code::CapacityFull, "{id}");
    }
    stage.later(1);
    assert_eq!(rule(stage.ledger.redeem(&reserved.token, &stage.container("late", &main))), EXPIRED);
    assert_eq!(stage.ledger.grant(&stage.node, &count(2), &alone).unwrap().len(), 2);
}

#[test]
fn an_unused_one_and_one_of_another_boot_end() {
    let Some(stage) = Stage::new() else { return };
    let main = of("pod-1", "main");
    stage.reserve(&count(2), &main).unwrap();
    stage.later(60);
    assert_eq!(stage.ledger.leases().unwrap(), []);
    let reserved = stage.reserve(&count(2), &main).unwrap();
    stage.ledger.redeem(&reserved.token, &stage.container("a", &main)).unwrap();
    stage.world.with(|w| w.boot = Ok("boot-2".into()));
    assert_eq!(rule(stage.ledger.redeem(&reserved.token, &stage.container("b", &main))), EXPIRED);
    assert_eq!(stage.ledger.leases().unwrap(), []);
}

#[test]
fn a_container_that_died_without_a_word_counts_from_when_that_is_found() {
    let Some(stage) = Stage::new() else { return };
    let main = of("pod-1", "main");
    let reserved = stage.reserve(&count(1), &main).unwrap();
    stage.ledger.redeem(&reserved.token, &stage.container("a", &main)).unwrap();
    stage.later(500);
    stage.world.with(|w| w.alive.clear());
    // The one that follows finds it dead, and is not told that its own time is over.
    let next = stage.container("b", &main);
    stage.world.with(|w| w.alive = [2].into());
    let next = Holder { creator: node::process::Process { pid: 2, ..next.creator }, ..next };
    stage.ledger.redeem(&reserved.token, &next).unwrap();
    assert_eq!(stage.tags(), [next.key.to_string(), format!("r-{}", reserved.token)]);
}

#[test]
fn containers_of_one_pod_have_one_gpu_one_after_the_other() {
    let Some(stage) = Stage::new() else { return };
    let (init, main) = (of("pod-1", "init"), of("pod-1", "main"));
    let for_init = stage.reserve(&ids(&["nvidia0"]), &init).unwrap();
    let for_main = stage.reserve(&ids(&["nvidia0"]), &main).unwrap();
    assert_ne!(for_init.token, for_main.token);
    assert_eq!(for_init.contract.gpus, for_main.contract.gpus);
    // Nobody else, and nobody who is not named that very one.
    assert_eq!(rule(stage.reserve(&ids(&["nvidia0"]), &of("pod-2", "main"))).0, Code::CapacityFull);
    assert_ne!(stage.reserve(&count(1), &of("pod-1", "any")).unwrap().contract.gpus, for_main.contract.gpus);

    let first = stage.container("i", &init);
    stage.ledger.redeem(&for_init.token, &first).unwrap();
    let second = stage.container("m", &main);
    assert_eq!(rule(stage.ledger.redeem(&for_main.token, &second)), (Code::CapacityFull, "reservation-in-use"));
    assert_eq!(rule(stage.ledger.redeem(&for_init.token, &second)), FOREIGN);
    stage.later(1000);
    stage.ledger.release(&first.key).unwrap();
    stage.ledger.redeem(&for_main.token, &second).unwrap();
    assert_eq!(
        stage.ledger.cancel_pod("pod-1").unwrap(),
        ["0000:02:00.0"],
        "the other is free when its container is gone"
    );
    assert_eq!(stage.tags(), [second.key.as_str()]);
    assert_eq!(stage.ledger.release(&second.key).unwrap(), ["0000:01:00.0"]);
}

#[test]
fn whoever_reserves_the_same_again_has_it_for_longer() {
    let Some(stage) = Stage::new() else { return };
    let main = of("pod-1", "main");
    let reserved = stage.reserve(&count(1), &main).unwrap();
    stage.later(40);
    assert_eq!(stage.reserve(&count(1), &main).unwrap(), reserved);
    stage.later(40);
    assert_eq!(rule(stage.reserve(&count(2), &main)), (Code::InvalidGpuRequest, "reservation-other"));
    assert_eq!(stage.ledger.reservations().unwrap(), std::slice::from_ref(&reserved));
    stage.later(20);
    assert_ne!(stage.reserve(&count(2), &main).unwrap().token, reserved.token, "that one was over");
}

#[test]
fn a_crash_leaves_it_usable_and_nobody_else_with_its_gpus() {
    let Some(probe) = Stage::new() else { return };
    drop(probe);
    for steps in 0..40 {
        let stage = Stage::new().unwrap();
        let main = of("pod-1", "main");
        let (reserved, killed) = crash::after(steps, || stage.reserve(&count(2), &main));
        let Ok(reserved) = reserved else {
            stage.ledger.reclaim().unwrap();
            assert!(killed && stage.tags().is_empty(), "{steps}");
            continue;
        };
        let (result, killed) = crash::after(steps, || {
            let first = stage.container("a", &main);
            stage.ledger.redeem(&reserved.token, &first)?;
            stage.ledger.release(&first.key).map_err(Refusal::from)
        });
        stage.world.with(|w| w.alive.clear());
        let stranger = holder(&stage.world, "stranger", 9);
        assert_eq!(rule(stage.ledger.grant(&stage.node, &count(1), &stranger)).0, Code::CapacityFull, "{steps}");
        let contract = stage.ledger.redeem(&reserved.token, &stage.container("b", &main)).unwrap();
        assert_eq!(pcis(&contract.gpus).len(), 2);
        if !killed {
            return assert!(result.is_ok());
        }
    }
    panic!("more steps than were tried");
}
