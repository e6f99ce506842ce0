//! What the helper adds to the audit log: reservations, leases by name, refreshes.

use contract::Granted;
use ledger::audit::{Audit, Kind, Record};
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
    gpus.iter().map(|gpu| json!({ "name": gpu.name(), "pci": gpu.pci, "uuid": gpu.driver_name() })).collect()
}
