use std::cell::OnceCell;
use std::os::unix::fs::PermissionsExt;

use contract::key::sha256;
use contract::{Granted, SCHEMA};
use tempfile::TempDir;

use super::*;
use crate::lease::HeldBy;
use crate::testing::{World, contract_for, count, inventory, ledger, state};

fn key(name: &str) -> Key {
    Key::of("/run/low", name)
}

fn contract(key: &Key) -> Contract {
    let node = inventory(1);
    let gpus = [Granted { pci: "0000:01:00.0".into(), uuid: None, minor: Some(0), partition: None }];
    contract_for(&node, &gpus, &count(1), Some(key)).unwrap()
}

fn fresh() -> (TempDir, Ledger) {
    let dir = state();
    let ledger = ledger(&dir, &World::new());
    (dir, ledger)
}

/// Contracts are read only when root alone could have written them, so these tests are root's.
fn is_root(dir: &TempDir) -> bool {
    let root = std::os::unix::fs::MetadataExt::uid(&dir.path().metadata().unwrap()) == 0;
    if !root {
        println!("skipped: reading contracts needs files of root's, and this is not root");
    }
    root
}

#[test]
fn a_contract_comes_back_as_it_was_put() {
    let (dir, ledger) = fresh();
    if !is_root(&dir) {
        return;
    }
    let (a, b) = (key("a"), key("b"));
    assert_eq!(ledger.contract(&a), Ok(None));
    ledger.put_contract(&contract(&a), &a).unwrap();
    ledger.put_contract(&contract(&b), &b).unwrap();
    assert_eq!(ledger.contract(&a), Ok(Some(contract(&a))));
    assert_eq!(ledger.contracts().unwrap().len(), 2);
    let mode = ledger.path(&contract_path(&a)).metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    ledger.forget(&a).unwrap();
    ledger.forget(&a).unwrap();
    assert_eq!(ledger.contract(&a), Ok(None));
    assert_eq!(ledger.contracts().unwrap(), [(b.clone(), Ok(contract(&b)))]);
}

#[test]
fn a_contract_that_could_be_anothers_is_refused() {
    let (dir, ledger) = fresh();
    if !is_root(&dir) {
        return;
    }
    let a = key("a");
    let path = ledger.path(&contract_path(&a));
    let good = serde_json::to_string(&contract(&a)).unwrap();
    let refused = |rule: &str| {
        let refusal = ledger.contract(&a).unwrap_err();
        assert_eq!((refusal.code, refusal.rule), (Code::ContractUntrusted, rule), "{refusal}");
    };
    ledger.put_contract(&contract(&key("b")), &a).unwrap();
    refused("contract-binding");
    let schema = |number: u32| format!("\"schema\":{number}");
    for (text, what) in [
        (good.replacen('{', "{\"extra\":1,", 1), "unknown field"),
        (good.replacen('{', "{\"schema\":1,", 1), "a field twice"),
        (format!("{good} x"), "something after its end"),
        (good.replacen(&schema(SCHEMA), &schema(SCHEMA + 1), 1), "another layout"),
        (good.replacen(&format!("\"{a}\""), "null", 1), "no key"),
        (String::new(), "nothing"),
    ] {
        std::fs::write(&path, &text).unwrap();
        assert_eq!(ledger.contract(&a).unwrap_err().code, Code::ContractUntrusted, "{what}");
    }
    std::fs::write(&path, &good).unwrap();
    assert!(ledger.contract(&a).is_ok());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o620)).unwrap();
    refused("contract-file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let other = dir.path().join("other");
    std::fs::hard_link(&path, &other).unwrap();
    refused("contract-file");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&other, &path).unwrap();
    refused("contract-file");
}

#[test]
fn originals_know_all_that_was_written_over_them() {
    let (dir, ledger) = fresh();
    if !is_root(&dir) {
        return;
    }
    let a = key("a");
    let bytes = b"{\"x\":\n\xff}\n".as_slice();
    assert_eq!(ledger.original(&a), None);
    ledger.keep_original(&a, None, bytes, "w1", "/b/config.json").unwrap();
    ledger.keep_original(&a, None, bytes, "w2", "/b/config.json").unwrap();
    let kept = ledger.original(&a).unwrap();
    assert_eq!((kept.bytes.as_slice(), kept.config_path.as_str()), (bytes, "/b/config.json"));
    assert!(kept.is_ours("w1") && kept.is_ours("w2") && !kept.is_ours(&sha256(bytes)));
    for n in 0..20 {
        ledger.keep_original(&a, None, bytes, &format!("v{n}"), "/b/config.json").unwrap();
    }
    let kept = ledger.original(&a).unwrap();
    assert_eq!((kept.written.len(), kept.is_ours("v19"), kept.is_ours("w1")), (MAX_WRITTEN, true, false));
    // Another spec, or another place, is another story.
    ledger.keep_original(&a, None, b"other", "w3", "/b/config.json").unwrap();
    assert_eq!(ledger.original(&a).unwrap().written, ["w3"]);
    ledger.keep_original(&a, None, b"other", "w4", "/c/config.json").unwrap();
    assert_eq!(ledger.original(&a).unwrap().written, ["w4"]);
}

#[test]
fn history_is_bounded_and_the_newest_stays() {
    let (_dir, ledger) = fresh();
    let name = |n: usize| format!("{n:032x}");
    let holder = HeldBy::Name { name: "vm:a".into() };
    let taker = |memory| Taker { tag: "t", memory, holder: &holder, history: OnceCell::new(), still: &crate::compared };
    let names: Vec<String> = (0..10_000).map(name).collect();
    let previous = |n: usize| ledger.previous(&taker(&names[n]));
    let remember = |n: usize, slots: &[String]| {
        ledger.remember(&ledger.lock().unwrap(), &taker(&names[n]), slots).unwrap();
    };
    assert!(previous(0).is_empty());
    for n in 0..MAX_HISTORY + 10 {
        remember(n, &[format!("0000:{n:04x}"), "b".into()]);
    }
    let count = || std::fs::read_to_string(ledger.path(HISTORY)).unwrap().lines().count();
    assert_eq!(count(), MAX_HISTORY);
    assert!(previous(9).is_empty());
    assert_eq!(previous(10), ["0000:000a", "b"]);
    // A key remembered again is new again, and stands there once.
    remember(10, &["z".into()]);
    remember(9999, &["y".into()]);
    assert_eq!((count(), previous(10)), (MAX_HISTORY, vec!["z".to_owned()]));
    assert!(previous(11).is_empty());
}
