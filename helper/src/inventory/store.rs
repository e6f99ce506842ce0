//! The stored inventory: what the runtime reads, replaced whole or not at all.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use contract::Refusal;
use contract::gpu::Gpu;
use contract::inventory::{Finding, Inventory};
use node::{Mode, TrustError, read_trusted, write_atomic};
use shim::Setup;

use super::probe::{self, Turn};
use super::{Lives, busy, capacity};

/// Largest stored inventory that is compared with, in bytes.
const MAX_INVENTORY: usize = 4 << 20;

/// What a refresh did.
#[derive(Debug)]
pub struct Refreshed {
    /// The inventory that is stored now.
    pub inventory: Inventory,
    /// What differs from the one before.
    pub changes: Vec<String>,
}

/// Looks at the node and stores what is there. The old inventory stays when the node cannot be read. One that the runtime
/// would not trust is replaced, whatever stands in it. `more` is found wrong already.
///
/// # Errors
/// What could not be read or written, and why.
pub fn refresh(setup: &Setup, more: Option<Finding>) -> Result<Refreshed, String> {
    make_folder(setup.state_dir())?;
    let turn = Turn::wait(setup)?;
    let path = setup.state_dir().join(shim::INVENTORY);
    let before = read_trusted(&path, MAX_INVENTORY);
    let old: Option<Inventory> = before.as_ref().ok().and_then(|file| contract::read::document(&file.bytes).ok());
    let (mut inventory, _) = in_use(setup, old.clone(), false)?;
    inventory.findings.extend(more);
    // Without a GPU there is nothing to close.
    if !inventory.gpus.is_empty() {
        inventory.low_level = probe::low_level(setup, &turn)?;
    }
    let bytes = serde_json::to_vec(&inventory.clone().folded())
        .map_err(|cause| format!("cannot write the inventory as JSON: {cause}"))?;
    if !before.as_ref().is_ok_and(|file| file.bytes == bytes) {
        write_atomic(&path, &bytes, Mode::root(0o644), false).map_err(|cause| cause.to_string())?;
        // A folder that others can write is not mended by a new file in it.
        read_trusted(&path, MAX_INVENTORY).map_err(|why| format!("the runtime will not use what was stored: {why}"))?;
    }
    let mut changes = super::changes(old.as_ref(), &inventory);
    if let Err(why) = before.as_ref()
        && !matches!(why, TrustError::Missing(_))
    {
        changes.insert(0, format!("~ stored inventory: not used, {why}; written anew"));
    }
    Ok(Refreshed { inventory, changes })
}

/// Looks at the node and stores nothing. What the low-level runtime does is taken from the last refresh.
///
/// # Errors
/// What could not be read, and why.
pub fn look(setup: &Setup) -> Result<Inventory, String> {
    looked(setup, false).map(|(inventory, _)| inventory)
}

/// The same, and what each GPU does at this moment.
///
/// # Errors
/// As [`look`].
pub(crate) fn look_live(setup: &Setup) -> Result<(Inventory, Lives), String> {
    looked(setup, true)
}

fn looked(setup: &Setup, live: bool) -> Result<(Inventory, Lives), String> {
    let low_level = setup.low_level().ok().and_then(|path| probe::current(setup, &path));
    in_use(setup, stored(setup), live).map(|(inventory, lives)| (Inventory { low_level, ..inventory }, lives))
}

/// The stored inventory, to grant from: made anew when it is missing, when the node has changed since, or when something
/// kept GPUs from being granted then that may be over.
///
/// # Errors
/// `DRIVER_NOT_READY` or `CONTRACT_STALE` when a fresh one does not serve either, `INTERNAL` when it cannot be made.
pub fn current(setup: &Setup) -> Result<Inventory, Refusal> {
    let may_be_over = |gpu: &Gpu| {
        let of_parts = gpu.partitions.iter().filter_map(|part| part.unavailable.as_ref());
        gpu.unavailable.iter().chain(of_parts).any(|why| why.state.may_be_over())
    };
    match shim::read_inventory(setup) {
        Ok(inventory) if !inventory.gpus.iter().any(may_be_over) => Ok(inventory),
        _ => renewed(setup),
    }
}

/// The same, made anew whatever is stored.
///
/// # Errors
/// As [`current`].
pub(crate) fn renewed(setup: &Setup) -> Result<Inventory, Refusal> {
    refresh(setup, None).map_err(|cause| Refusal::internal("inventory-refresh", &cause))?;
    shim::read_inventory(setup)
}

/// The inventory that a container would be granted from now; nothing is stored.
///
/// # Errors
/// `DRIVER_NOT_READY` when the node lacks something, `INTERNAL` when it cannot be looked at.
pub fn seen(setup: &Setup) -> Result<Inventory, Refusal> {
    shim::read_inventory(setup).or_else(|_| {
        let (inventory, _) = in_use(setup, stored(setup), false).map_err(|why| Refusal::internal("inventory", &why))?;
        shim::ready(inventory)
    })
}

/// What the node has, who uses it without a lease, and what differs from what was declared.
fn in_use(setup: &Setup, earlier: Option<Inventory>, live: bool) -> Result<(Inventory, Lives), String> {
    let (mut inventory, lives) = super::asked(&setup.config.host, earlier, live)?;
    busy::judge(setup, &mut inventory);
    inventory.findings.extend(capacity::findings(&setup.config, &inventory));
    Ok((inventory, lives))
}

/// What the last refresh stored, fresh or not.
fn stored(setup: &Setup) -> Option<Inventory> {
    let file = read_trusted(&setup.state_dir().join(shim::INVENTORY), MAX_INVENTORY).ok()?;
    contract::read::document(&file.bytes).ok()
}

/// The state folder is nobody's business but root's.
fn make_folder(path: &Path) -> Result<(), String> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|cause| format!("cannot create {}: {cause}", path.display()))
}
