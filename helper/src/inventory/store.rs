//! The stored inventory: what the runtime reads, replaced whole or not at all.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use contract::Refusal;
use contract::inventory::Inventory;
use node::{Mode, write_atomic};
use shim::Setup;

/// What a refresh did.
#[derive(Debug)]
pub struct Refreshed {
    /// The inventory that is stored now.
    pub inventory: Inventory,
    /// What differs from the one before.
    pub changes: Vec<String>,
}

/// Looks at the node and stores what is there. The old inventory stays when the node cannot be read.
///
/// # Errors
/// What could not be read or written, and why.
pub fn refresh(setup: &Setup) -> Result<Refreshed, String> {
    let inventory = super::discover(&setup.config.host)?;
    let path = setup.state_dir().join(shim::INVENTORY);
    let before = std::fs::read(&path).ok();
    let old = before.as_deref().and_then(|bytes| contract::read::document(bytes).ok());
    let bytes = serde_json::to_vec_pretty(&inventory)
        .map_err(|cause| format!("cannot write the inventory as JSON: {cause}"))?;
    if before.as_deref() != Some(&bytes) {
        make_folder(setup.state_dir())?;
        write_atomic(&path, &bytes, Mode::root(0o644), false).map_err(|cause| cause.to_string())?;
    }
    let changes = super::changes(old.as_ref(), &inventory);
    Ok(Refreshed { inventory, changes })
}

/// The stored inventory, to grant from: made anew when it is missing, when the node has changed since, or when
/// something stopped GPUs then, which may have been mended.
///
/// # Errors
/// `DRIVER_NOT_READY` or `CONTRACT_STALE` when a fresh one does not serve either, `INTERNAL` when it cannot be made.
pub fn current(setup: &Setup) -> Result<Inventory, Refusal> {
    shim::read_inventory(setup).or_else(|_| {
        refresh(setup).map_err(|cause| Refusal::internal("inventory-refresh", &cause))?;
        shim::read_inventory(setup)
    })
}

/// The inventory that a container would be granted from now; nothing is stored.
///
/// # Errors
/// `DRIVER_NOT_READY` when the node lacks something, `INTERNAL` when it cannot be looked at.
pub fn seen(setup: &Setup) -> Result<Inventory, Refusal> {
    shim::read_inventory(setup).or_else(|_| {
        let inventory = super::discover(&setup.config.host).map_err(|why| Refusal::internal("inventory", &why))?;
        shim::ready(inventory)
    })
}

/// The state folder is nobody's business but root's.
fn make_folder(path: &Path) -> Result<(), String> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|cause| format!("cannot create {}: {cause}", path.display()))
}
