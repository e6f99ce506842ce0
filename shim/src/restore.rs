//! Gives back what a key holds: the tenant's own `config.json` first, then leases, contract and original.

use std::path::Path;

use contract::key::{Key, sha256};
use ledger::{Ledger, LedgerError, Original};

use crate::bundle::Bundle;
use crate::record;
use crate::setup::Setup;

/// Releases everything of a key. Says which GPUs (PCI addresses) became free.
///
/// # Errors
/// The ledger's files cannot be changed; its leases are still there then, and a second call mends it.
pub fn give_back(ledger: &Ledger, key: &Key) -> Result<Vec<String>, LedgerError> {
    if let Some(original) = ledger.original(key) {
        put_back(&original);
    }
    ledger.release(key)
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
    if let Ok(Some(bundle)) = Bundle::read(&folder.to_string_lossy())
        && original.is_ours(&sha256(&bundle.bytes))
    {
        let _ = node::write_atomic(config, &original.bytes, bundle.mode, false);
    }
}
