//! How leases end: released by whoever deletes the container, or taken back from holders that are plainly gone.

use contract::key::Key;

use crate::LedgerError;
use crate::files::Locked;
use crate::lease::{HeldBy, Lease, Name, Standing, Token, standing};
use crate::store::{Holder, Ledger, named_key};

/// A lease in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseStatus {
    /// PCI address of the GPU, and `:<gi>.<ci>` behind it for a part.
    pub slot: String,
    /// The holder's key, or `r-` and a reservation's token.
    pub tag: String,
    /// Its record, when that can be read.
    pub lease: Option<Lease>,
    /// Why it is still in force, in words.
    pub held_because: String,
}

/// A lease that was ended because its holder is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reclaimed {
    /// PCI address of the GPU, and `:<gi>.<ci>` behind it for a part.
    pub slot: String,
    /// The holder's key, or `r-` and a reservation's token.
    pub tag: String,
    /// Its record.
    pub lease: Lease,
    /// How it is known that the holder is gone, in words.
    pub gone_because: String,
}

impl Ledger {
    /// The same, for creators that may outlive what they make, as an engine's daemon does: a container that has no first
    /// process after so many seconds is not coming.
    #[must_use]
    pub fn within(mut self, seconds: u64) -> Self {
        self.patience = Some(seconds);
        self
    }

    /// The holder as it stands in leases.
    pub(crate) fn held_by(&self, holder: &Holder) -> HeldBy {
        let mut held_by = holder.held_by(&*self.machine);
        if let (Some(seconds), HeldBy::Container { made: Some(made), .. }) = (self.patience, &mut held_by) {
            made.until = self.machine.boot_seconds().ok().map(|now| now.saturating_add(seconds));
        }
        held_by
    }

    /// Ends leases of a tag: first what rests on them, then they themselves.
    pub(crate) fn end(&self, locked: &Locked, tag: &str, slots: &[String]) -> Result<(), LedgerError> {
        if let Some(key) = Key::parse(tag) {
            self.drop_contract(locked, &key)?;
        }
        slots.iter().try_for_each(|slot| locked.remove(&Name::path(slot, tag)).map(|_| ()))
    }

    /// What a deleted container's lease becomes while processes are left in its cgroup, or have the GPU open outside it. Not
    /// knowing is no reason here: the low-level runtime says that the container is gone.
    fn draining(&self, name: &Name) -> Option<Lease> {
        let lease = self.read(name).ok()?;
        let HeldBy::Container { container, cgroup: Some(cgroup), made, pod, owner, .. } = lease.holder.clone() else {
            return None;
        };
        let seen = made.as_ref().filter(|made| made.out_of_sight(&*self.machine).is_none());
        let left = self.machine.cgroup_is_empty(&cgroup) == Ok(false)
            || seen.is_some_and(|made| {
                made.runs(&*self.machine).or_else(|| made.holds(lease.minor, &*self.machine)).is_some()
            });
        left.then_some(Lease { holder: HeldBy::Draining { container, cgroup, made, pod, owner }, ..lease })
    }

    /// Ends all that a container has here: leases, contract, original. Says which slots became free.
    ///
    /// Idempotent. While processes are left in the container's cgroup its leases stay, draining.
    ///
    /// # Errors
    /// Something cannot be removed; then its leases are still there, and a second call mends it.
    pub fn release(&self, key: &Key) -> Result<Vec<String>, LedgerError> {
        let own = |ledger: &Self| -> Result<Vec<String>, LedgerError> {
            Ok(ledger.names()?.into_iter().filter(|name| name.tag == key.as_str()).map(|name| name.slot).collect())
        };
        // Most deletes are of containers that never had a GPU: they take no lock.
        if own(self)?.is_empty() && !self.has_original(key) {
            return Ok(Vec::new());
        }
        let locked = self.lock()?;
        let slots = own(self)?;
        self.forget_locked(&locked, key)?;
        let mut free = Vec::new();
        for slot in &slots {
            match self.draining(&Name { slot: slot.clone(), tag: key.as_str().to_owned() }) {
                // Under a name of its own, so that no later container of this key takes it for its own.
                Some(lease) => self.place_lease(&locked, &format!("d-{key}"), &lease)?,
                None => free.push(slot.clone()),
            }
        }
        self.end(&locked, key.as_str(), &slots)?;
        // What its owner's other containers have is not free.
        let left = if free.is_empty() { Vec::new() } else { self.names()? };
        free.retain(|slot| left.iter().all(|name| name.slot != *slot || name.token().is_some()));
        self.keep_for_pods(&locked, &slots);
        Ok(free)
    }

    /// Ends what [`Ledger::acquire_named`] took.
    ///
    /// # Errors
    /// As [`Ledger::release`].
    pub fn release_named(&self, name: &str) -> Result<Vec<String>, LedgerError> {
        self.release(&named_key(name))
    }

    /// Ends the leases whose holders are plainly gone, and says which and why. Their specs are then in
    /// [`Ledger::orphans`].
    ///
    /// # Errors
    /// The state folder fails.
    pub fn reclaim(&self) -> Result<Vec<Reclaimed>, LedgerError> {
        self.reclaim_locked(&self.lock()?)?;
        Ok(self.take_reclaimed())
    }

    /// What this ledger has reclaimed since it was last asked, [`Ledger::grant`]'s included: for the audit.
    #[must_use]
    pub fn take_reclaimed(&self) -> Vec<Reclaimed> {
        self.reclaimed.lock().map(|mut list| std::mem::take(&mut *list)).unwrap_or_default()
    }

    /// The leases in force and why each is, after the dead ones were ended ([`Ledger::take_reclaimed`]).
    ///
    /// # Errors
    /// The state folder fails.
    pub fn leases(&self) -> Result<Vec<LeaseStatus>, LedgerError> {
        let locked = self.lock()?;
        self.reclaim_locked(&locked)?;
        let mut list = Vec::new();
        let names = self.names()?;
        for name in names.iter().cloned() {
            let (lease, standing) = self.judge(&name, &names);
            let (Standing::Held(held_because) | Standing::Gone(held_because)) = standing;
            list.push(LeaseStatus { slot: name.slot, tag: name.tag, lease, held_because });
        }
        Ok(list)
    }

    /// A lease and its standing among all leases.
    pub(crate) fn judge(&self, name: &Name, all: &[Name]) -> (Option<Lease>, Standing) {
        match self.read(name) {
            Err(why) => (None, Standing::Held(why)),
            Ok(lease) => {
                let token = match name.token() {
                    Some(token) if self.is_pending(token) => {
                        let used = all.iter().any(|other| other.slot == name.slot && other.token().is_none());
                        if used { Token::InUse } else { Token::Open }
                    }
                    _ => Token::Void,
                };
                let standing = standing(&lease, token, &*self.machine);
                (Some(lease), standing)
            }
        }
    }

    /// GPUs that a container gave back stay reserved for its pod, from now on for as long as was said.
    pub(crate) fn keep_for_pods(&self, locked: &Locked, slots: &[String]) {
        // What cannot be told or written ends earlier than it could; freeing needs nothing.
        let (Ok(names), Ok(now)) = (self.names(), self.machine.boot_seconds()) else { return };
        for name in names.iter().filter(|name| name.token().is_some() && slots.contains(&name.slot)) {
            let _ = self.read(name).map(|lease| self.prolong(locked, lease, &name.tag, now));
        }
    }

    /// Ends dead leases; says how many.
    pub(crate) fn reclaim_locked(&self, locked: &Locked) -> Result<usize, LedgerError> {
        let mut gone: Vec<Reclaimed> = Vec::new();
        let names = self.names()?;
        for name in names.iter().cloned() {
            if let (Some(lease), Standing::Gone(gone_because)) = self.judge(&name, &names) {
                gone.push(Reclaimed { slot: name.slot, tag: name.tag, lease, gone_because });
            }
        }
        // One holder's leases stand together; they are ended together.
        contract::order::sort_by(&mut gone, |a, b| a.tag.cmp(&b.tag));
        for of_one in gone.chunk_by(|a, b| a.tag == b.tag) {
            let slots: Vec<String> = of_one.iter().map(|lease| lease.slot.clone()).collect();
            let Some(first) = of_one.first() else { continue };
            self.end(locked, &first.tag, &slots)?;
            self.keep_for_pods(locked, &slots);
        }
        self.sweep_reservations(locked)?;
        let count = gone.len();
        if let Ok(mut list) = self.reclaimed.lock() {
            list.extend(gone);
        }
        Ok(count)
    }
}
