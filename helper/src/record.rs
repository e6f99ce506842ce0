//! What the helper adds to the audit log: reservations, leases by name, refreshes.

use ledger::audit::{Kind, Record};
use serde_json::{Map, Value};
use shim::Setup;

use crate::exit::Failure;

/// Appends one record.
///
/// # Errors
/// The log cannot be written.
pub(crate) fn append<const N: usize>(setup: &Setup, kind: Kind, fields: [(&str, Value); N]) -> Result<(), Failure> {
    let fields: Map<String, Value> = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    setup.audit().and_then(|audit| audit.append(&Record { kind, fields })).map(|_| ()).map_err(Failure::internal)
}
