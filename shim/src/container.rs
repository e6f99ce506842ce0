//! Which container a call is about: its low-level runtime, where that keeps its state, and the key that follows.

use std::path::PathBuf;

use contract::Refusal;
use contract::key::Key;
use ledger::Ledger;

use crate::argv::Call;
use crate::handover;
use crate::setup::Setup;

/// The key of a container that an engine of the hook's starts: such engines name no state root.
pub(crate) fn key_for_hook(setup: &Setup, id: &str) -> Option<Key> {
    let root = handover::state_root(None, &setup.low_level().ok()?);
    Some(Key::of(&root.to_string_lossy(), id))
}

/// Everything about one container that does not change on the way.
pub(crate) struct Container<'a> {
    pub(crate) call: &'a Call<'a>,
    pub(crate) setup: &'a Setup,
    pub(crate) low_level: PathBuf,
    pub(crate) root: PathBuf,
    pub(crate) key: Key,
}

impl<'a> Container<'a> {
    /// Names the container of a call.
    ///
    /// # Errors
    /// `INTERNAL` when there is no low-level runtime.
    pub(crate) fn of(call: &'a Call<'a>, setup: &'a Setup) -> Result<Self, Refusal> {
        let low_level = setup.low_level()?;
        let root = handover::state_root(call.value("root"), &low_level);
        let key = Key::of(&root.to_string_lossy(), call.id);
        Ok(Self { call, setup, low_level, root, key })
    }

    /// The same where there is no low-level runtime, for who only judges.
    pub(crate) fn without_low_level(call: &'a Call<'a>, setup: &'a Setup) -> Self {
        let (low_level, root) = (PathBuf::new(), PathBuf::new());
        Self { key: Key::of("", call.id), call, setup, low_level, root }
    }

    /// The low-level runtime that made the container, which alone can read its state.
    pub(crate) fn made_by(&self) -> PathBuf {
        let ledger = Ledger::open_existing(self.setup.state_dir());
        let recorded = ledger.and_then(|ledger| ledger.low_level(&self.key));
        // One that was removed cannot be asked any more: its successor usually reads what it left.
        recorded.filter(|path| path.exists()).unwrap_or_else(|| self.low_level.clone())
    }

    /// Whether the low-level runtime knows a container of this id.
    pub(crate) fn exists(&self) -> bool {
        std::fs::symlink_metadata(self.root.join(self.call.id)).is_ok()
    }
}
