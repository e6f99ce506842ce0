//! Gives back what a key holds: the tenant's own `config.json` first, then leases, contract and original.

use std::path::Path;

use contract::key::{Key, sha256};
use ledger::{Forced, Ledger, LedgerError, Original, slot};

use crate::broker;
use crate::bundle::Bundle;
use crate::record;
use crate::setup::Setup;
use crate::view;

/// Releases everything of a key. Says which slots became free.
///
/// # Errors
/// The ledger's files cannot be changed; its leases are still there then, and a second call mends it.
pub fn give_back(ledger: &Ledger, key: &Key) -> Result<Vec<String>, LedgerError> {
    if let Some(original) = ledger.original(key) {
        put_back(&original);
    }
    ledger.release(key)
}

/// Releases everything of a key at once, whatever of it still runs, and records it with the reason.
///
/// # Errors
/// The ledger's files cannot be changed, or the log cannot be written.
pub fn force(ledger: &Ledger, setup: &Setup, key: &Key, why: &str) -> Result<Forced, LedgerError> {
    if let Some(original) = ledger.original(key) {
        put_back(&original);
    }
    let forced = ledger.release_forced(key)?;
    if !forced.gpus.is_empty() {
        let left = forced.left_in.as_ref().map_or_else(String::new, |cgroup| format!("; {}", left_in(cgroup)));
        let why = format!("{why}{left}");
        record::ended(setup, key, forced.holder.as_ref(), &forced.gpus, &why)?;
    }
    Ok(forced)
}

/// What an operator must know of a GPU that was freed by force.
#[must_use]
pub fn left_in(cgroup: &str) -> String {
    format!("processes may be left in its cgroup {cgroup} with the GPU open: end them")
}

/// Gives back what a key holds because its container ended, and records that once: what holds nothing has ended before.
///
/// # Errors
/// As [`give_back`]; a log that cannot be written keeps no GPU.
pub fn end(ledger: &Ledger, setup: &Setup, key: &Key, why: &str) -> Result<(), LedgerError> {
    let (holder, had) = (ledger.holder(key), ledger.holdings(key));
    let free = give_back(ledger, key);
    if had.is_empty() {
        return free.map(|_| ());
    }
    let (list, why) = match &free {
        Ok(free) => {
            let list: Vec<_> = had.iter().filter(|gpu| free.contains(&slot::of(gpu))).cloned().collect();
            let left = "processes of it are left, its other GPUs stay leased until they end";
            let why = if list.len() < had.len() { format!("{why}; {left}") } else { why.to_owned() };
            (list, why)
        }
        Err(error) => (Vec::new(), format!("{why}; {error}")),
    };
    let _ = record::ended(setup, key, holder.as_ref(), &list, &why);
    if setup.rootless {
        broker::release(setup, key);
    }
    free.map(|_| ())
}

/// Records what this ledger took back from holders that are gone, and puts their specs back.
///
/// # Errors
/// The log cannot be written; the leases are free all the same.
pub fn settle(ledger: &Ledger, setup: &Setup) -> Result<(), LedgerError> {
    let list = ledger.take_reclaimed();
    if list.is_empty() {
        return Ok(());
    }
    orphans(ledger)?;
    record::reclaimed(setup, &list)
}

/// Puts back the specs of containers that were reclaimed, by whomever.
///
/// # Errors
/// The ledger cannot be read or changed.
pub fn orphans(ledger: &Ledger) -> Result<(), LedgerError> {
    ledger.orphans(&mut |_, original| {
        put_back(original);
        true
    })
}

/// Puts the original back where it lay, if what lies there is still exactly what we wrote.
///
/// Best effort: an engine usually removes the bundle, and a later create recognises our own work anyway.
fn put_back(original: &Original) {
    let config = Path::new(&original.config_path);
    let Some(folder) = config.parent() else { return };
    view::forget(folder);
    if let Ok(Some(bundle)) = Bundle::read(&folder.to_string_lossy())
        && original.is_ours(&sha256(&bundle.bytes))
    {
        let _ = node::write_atomic(config, &original.bytes, bundle.mode, false);
    }
}

#[cfg(test)]
mod tests {
    use contract::gpu::{Gpu, Partition};
    use contract::inventory::Inventory;
    use contract::request::{Asked, Source, Words};
    use ledger::Holder;
    use serde_json::Value;

    use super::*;

    /// The record of a release names instances as it names whole GPUs.
    #[test]
    fn what_became_free_is_recorded() {
        let part = |gi: u32| Partition {
            kind: "mig".into(),
            index: gi - 7,
            gi,
            ci: 0,
            profile: "1g.10gb".into(),
            uuid: None,
            memory_mb: None,
            nodes: Vec::new().into(),
            unavailable: None,
        };
        let gpu = |n: u32, parts: &[u32]| Gpu {
            pci: format!("0000:0{n}:00.0"),
            minor: Some(n),
            index: Some(n),
            partitions: parts.iter().map(|gi| part(*gi)).collect(),
            ..Gpu::default()
        };
        let inventory = Inventory { gpus: vec![gpu(0, &[7, 8]), gpu(1, &[])], ..Inventory::default() };
        for (ids, name) in [("0:1", "nvidia0:1"), ("nvidia1", "nvidia1")] {
            let folder = tempfile::tempdir().unwrap();
            let mut setup = Setup::read(&folder.path().join("none.toml"));
            let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
            (setup.config.paths.state_dir, setup.config.paths.log_dir) = (path("state"), path("log"));
            let ledger = Ledger::open(setup.state_dir()).unwrap();
            let key = Key::of("/run/low", "c");
            let creator = node::process::me();
            let holder = Holder {
                key: key.clone(),
                container: "c".into(),
                state_root: path("low"),
                low_level: "/usr/bin/runc".into(),
                cgroup: None,
                pod: None,
                owner: None,
                creator,
            };
            let mut words = Words::default();
            words.set("ids", "ids".into(), ids.into());
            let Ok(Asked::Gpus(request)) = words.ask(Source::Environment) else { panic!("{ids}") };
            ledger.grant(&inventory, &request, &holder).unwrap();
            end(&ledger, &setup, &key, "it was deleted").unwrap();
            let log = std::fs::read_to_string(folder.path().join("log/audit.jsonl")).unwrap();
            let last: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
            let said = (&last["kind"], &last["gpus"][0]["name"], &last["message"]);
            assert_eq!(said, (&"release".into(), &name.into(), &"it was deleted".into()), "{last}");
        }
    }
}
