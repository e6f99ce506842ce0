//! What the helper adds to the audit log: reservations, leases by name, refreshes, and leases that were reclaimed.

use contract::Granted;
use contract::key::Key;
use ledger::audit::{Audit, Kind, Record};
use ledger::{Ledger, Original};
use serde_json::{Map, Value, json};
use shim::Setup;

use crate::exit::Failure;

/// Appends one record.
///
/// # Errors
/// The log cannot be written.
pub(crate) fn append<const N: usize>(setup: &Setup, kind: Kind, fields: [(&str, Value); N]) -> Result<(), Failure> {
    let fields: Map<String, Value> = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Audit::open(setup.log_dir())
        .and_then(|audit| audit.append(&Record { kind, fields }))
        .map(|_| ())
        .map_err(Failure::internal)
}

/// GPUs by all their names.
pub(crate) fn gpus(gpus: &[Granted]) -> Value {
    gpus.iter().map(|gpu| json!({ "name": gpu.name(), "pci": gpu.pci, "uuid": gpu.uuid })).collect()
}

/// Records what this ledger reclaimed, and puts back the specs that those containers had.
///
/// # Errors
/// The log cannot be written.
pub(crate) fn reclaimed(setup: &Setup, ledger: &Ledger) -> Result<(), Failure> {
    let gone = ledger.take_reclaimed();
    if gone.is_empty() {
        return Ok(());
    }
    let put_back = |_: &Key, original: &Original| {
        shim::restore::put_back(original);
        true
    };
    ledger.orphans(&mut { put_back }).map_err(Failure::internal)?;
    for gone in gone {
        let holder = gone.lease.holder.name();
        append(
            setup,
            Kind::Reclaim,
            [
                ("container", holder.into()),
                ("gpus", json!([{ "pci": gone.pci, "uuid": gone.lease.uuid }])),
                ("message", gone.gone_because.as_str().into()),
            ],
        )?;
    }
    Ok(())
}
