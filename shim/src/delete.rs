//! `delete`: the low-level runtime removes the container, then its key gives back what it held.

use contract::Refusal;
use ledger::Ledger;

use crate::container::Container;
use crate::handover::{self, Words};
use crate::restore;

/// Removes the container of a call. Gives the status to exit with.
///
/// # Errors
/// When the low-level runtime could not be started.
pub(crate) fn delete(container: &Container<'_>, words: Words) -> Result<i32, Refusal> {
    let ledger = Ledger::open_existing(container.setup.state_dir());
    let held = ledger.filter(|ledger| ledger.knows(&container.key));
    let Some(ledger) = held else {
        return Err(handover::become_runtime(&container.low_level, &words));
    };
    // The runtime that made the container keeps its state in a form of its own: it alone can remove it.
    let low_level = container.made_by();
    let status = handover::run_runtime(&low_level, &words)?;
    // `delete --force` of an id that is gone succeeds: only an absent state folder says that the container is gone.
    // And only to whoever is where it was made.
    if ledger.out_of_sight(&container.key).is_none()
        && std::fs::symlink_metadata(container.root.join(container.call.id)).is_err()
    {
        let _ = restore::end(&ledger, container.setup, &container.key, "deleted");
    }
    Ok(status)
}
