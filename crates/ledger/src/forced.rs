//! The operator's way out: a key's leases end at once, whatever still runs. Nothing else may call this.

use contract::Granted;
use contract::key::Key;

use crate::LedgerError;
use crate::lease::{HeldBy, Lease, Name};
use crate::slot;
use crate::store::Ledger;

/// What a forced release did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Forced {
    /// Who had the GPUs; nobody when the key held nothing.
    pub holder: Option<HeldBy>,
    /// The GPUs that are free now.
    pub gpus: Vec<Granted>,
    /// The cgroup that processes are left in, which may have the GPUs open.
    pub left_in: Option<String>,
}

impl Ledger {
    /// Ends the leases of a key, draining ones too. Others may get its GPUs while its processes still have them open.
    ///
    /// # Errors
    /// As [`Ledger::release`].
    pub fn release_forced(&self, key: &Key) -> Result<Forced, LedgerError> {
        let locked = self.lock()?;
        let tags = [key.to_string(), format!("d-{key}")];
        let own: Vec<Name> = self.names()?.into_iter().filter(|name| tags.contains(&name.tag)).collect();
        let leases: Vec<_> = own.iter().filter_map(|name| self.read(name).ok()).collect();
        let holder = leases.first().map(|lease| lease.holder.clone());
        let cgroups = leases.iter().filter_map(|lease| match &lease.holder {
            HeldBy::Container { cgroup, .. } => cgroup.clone(),
            HeldBy::Draining { cgroup, .. } => Some(cgroup.clone()),
            HeldBy::Name { .. } | HeldBy::Reservation { .. } => None,
        });
        let left_in = cgroups.into_iter().find(|cgroup| self.machine.cgroup_is_empty(cgroup) != Ok(true));
        self.forget_locked(&locked, key)?;
        let mut slots: Vec<String> = own.iter().map(|name| name.slot.clone()).collect();
        slots.dedup();
        for tag in &tags {
            let of: Vec<String> = own.iter().filter(|name| name.tag == *tag).map(|name| name.slot.clone()).collect();
            self.end(&locked, tag, &of)?;
        }
        self.keep_for_pods(&locked, &slots);
        // A lease that cannot be read is known by its file's name alone.
        let named = |slot: &String| {
            let lease = leases.iter().find(|lease| slot::of_lease(lease) == *slot).cloned();
            lease.map_or_else(|| Granted { pci: slot.clone(), ..Granted::default() }, Lease::granted)
        };
        Ok(Forced { holder, gpus: slots.iter().map(named).collect(), left_in })
    }
}
