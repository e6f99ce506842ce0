use std::cell::RefCell;

use contract::config::Config;
use contract::request::Source;
use contract::{Code, Granted, Refusal};

use crate::Ledger;
use crate::testing::{World, count, cut, holder, ids, inventory, ledger, state};

/// What an answer was said to rest on: the slots granted, or everything.
fn asked(prepare: impl FnOnce(Ledger, &World) -> Ledger, request: &contract::request::Request) -> Vec<Option<String>> {
    let (dir, world, mut node) = (state(), World::new(), inventory(3));
    cut(&mut node.gpus[0], &["1g.5gb", "1g.5gb"]);
    let ledger = prepare(ledger(&dir, &world), &world);
    let asked = RefCell::new(Vec::new());
    let still = |on: Option<&[Granted]>| {
        let slots = |on: &[Granted]| on.iter().map(crate::slot::of).collect::<Vec<_>>().join(" ");
        asked.borrow_mut().push(on.map(slots));
        Err(Refusal::new(Code::ContractStale, "facts", "stale", "look again"))
    };
    let me = holder(&world, "me", 1);
    let refused = ledger.grant_while(&still, &node, request, &me).unwrap_err();
    assert_eq!(refused.code, Code::ContractStale, "whatever it would have been otherwise");
    assert!(ledger.holdings(&me.key).is_empty() && ledger.contract(&me.key).unwrap().is_none());
    asked.into_inner()
}

#[test]
fn an_answer_rests_on_what_is_granted_or_on_all() {
    let as_it_is = |ledger: Ledger, _: &World| ledger;
    let on = |request| asked(as_it_is, &request);
    assert_eq!(on(count(2)), [Some("0000:02:00.0 0000:03:00.0".to_owned())]);
    assert_eq!(on(ids(&["nvidia0:1"])), [Some("0000:01:00.0:8.0".to_owned())]);
    assert_eq!(on(count(3)), [None], "a refusal");
    assert_eq!(on(ids(&["nvidia0"])), [None], "a refusal");
    let mut node = inventory(3);
    cut(&mut node.gpus[0], &["1g.5gb", "1g.5gb"]);
    let uuid = node.gpus[0].partitions[1].uuid.clone().unwrap();
    assert_eq!(on(ids(&[uuid.as_str()])), [Some("0000:01:00.0:8.0".to_owned())]);
    assert_eq!(on(ids(&[&uuid[..uuid.len() - 1]])), [None], "the beginning of a name");
    let all = contract::request::Request { source: Source::VisibleDevices, ..ids(&["all"]) };
    assert_eq!(on(contract::request::Request { count: 9, ..all }), [None], "all");
}

#[test]
fn it_rests_on_all_where_others_count() {
    let queued = |ledger: Ledger, world: &World| {
        ledger.queue(&count(1), &holder(world, "other", 2), 30).unwrap();
        ledger
    };
    assert_eq!(asked(queued, &ids(&["nvidia2"])), [None], "somebody waits");
    let declared = |ledger: Ledger, _: &World| {
        let mut config = Config::default();
        config.capacity.gpus = 2;
        ledger.limited(&config)
    };
    assert_eq!(asked(declared, &ids(&["nvidia1"])), [None], "GPUs are counted");
}
