//! Questions that change nothing and take no lock: most calls of the runtime are about containers without GPUs.

use std::path::{Path, PathBuf};

use contract::key::Key;
use contract::{Contract, Granted, Refusal};

use crate::lease::{HeldBy, Lease};
use crate::store::Ledger;

impl Ledger {
    /// The ledger of a state folder that is there already; nothing is made.
    #[must_use]
    pub fn open_existing(state_dir: &Path) -> Option<Self> {
        state_dir.is_dir().then(|| Self::open(state_dir).ok()).flatten()
    }

    /// Whether a key has anything here: leases, a contract, an original.
    #[must_use]
    pub fn knows(&self, key: &Key) -> bool {
        self.has_original(key)
            || self.has_contract(key)
            || self.names().is_ok_and(|names| names.iter().any(|name| name.tag == key.as_str()))
    }

    /// The low-level runtime that a key's container was created with.
    #[must_use]
    pub fn low_level(&self, key: &Key) -> Option<PathBuf> {
        let names = self.names().ok()?;
        let name = names.iter().find(|name| name.tag == key.as_str())?;
        match self.read(name).ok()?.holder {
            HeldBy::Container { low_level, .. } => Some(low_level.into()),
            HeldBy::Draining { .. } | HeldBy::Name { .. } | HeldBy::Reservation { .. } => None,
        }
    }

    /// The GPUs that a key has leases on.
    #[must_use]
    pub fn holdings(&self, key: &Key) -> Vec<Granted> {
        let names = self.names().unwrap_or_default();
        let own = names.iter().filter(|name| name.tag == key.as_str());
        let granted = |lease: Lease| Granted { pci: lease.pci, uuid: lease.uuid, minor: lease.minor };
        own.filter_map(|name| self.read(name).ok().map(granted)).collect()
    }

    /// PCI addresses that have a lease, dead or alive.
    #[must_use]
    pub fn taken(&self) -> Vec<String> {
        self.names().map(|names| names.into_iter().map(|name| name.pci).collect()).unwrap_or_default()
    }

    /// The contract of a reservation, left reserved.
    ///
    /// # Errors
    /// `CONTRACT_UNTRUSTED` when the token is unknown, used, over its time, or from another boot.
    pub fn reservation(&self, token: &str) -> Result<Contract, Refusal> {
        self.promise(token).map(|promise| promise.contract)
    }
}
