//! The ledger: who has which GPU, as plain files under one lock.
//!
//! Every change is made of steps that each leave a state in which no GPU has two holders and no lease outlives its
//! holder unseen: leases come first and go last, and what dies in between is found by [`Ledger::reclaim`].

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use contract::inventory::{Gpu, Inventory};
use contract::key::Key;
use contract::request::Request;
use contract::{Code, Granted, Refusal};
use node::process::Process;

use crate::LedgerError;
use crate::allocate::{allocate, taken};
use crate::files::{self, Locked};
use crate::lease::{HeldBy, Lease, Name, Standing, standing, state_folder};
use crate::liveness::{Liveness, Machine};

/// Most bytes of a lease that are read.
const MAX_LEASE: u64 = 64 << 10;

/// The container that GPUs are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Digest of state root and container id.
    pub key: Key,
    /// The container's id.
    pub container: String,
    /// The low-level runtime's folder of states, absolute.
    pub state_root: String,
    /// Path of the low-level runtime.
    pub low_level: String,
    /// The container's cgroup as the spec names it. Without it, only a release frees the GPUs.
    pub cgroup: Option<String>,
    /// The process that creates the container.
    pub creator: Process,
}

impl Holder {
    pub(crate) fn held_by(&self) -> HeldBy {
        HeldBy::Container {
            container: self.container.clone(),
            state_root: self.state_root.clone(),
            low_level: self.low_level.clone(),
            cgroup: self.cgroup.clone(),
            pid: self.creator.pid,
            start: self.creator.start,
        }
    }
}

/// The key of something that holds GPUs by name.
#[must_use]
pub fn named_key(name: &str) -> Key {
    // State roots are absolute paths, so no container has such a key.
    Key::of("name", name)
}

/// A lease in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseStatus {
    /// PCI address of the GPU.
    pub pci: String,
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
    /// PCI address of the GPU.
    pub pci: String,
    /// The holder's key, or `r-` and a reservation's token.
    pub tag: String,
    /// Its record.
    pub lease: Lease,
    /// How it is known that the holder is gone, in words.
    pub gone_because: String,
}

/// The record of all leases of this node.
pub struct Ledger {
    folder: PathBuf,
    pub(crate) machine: Box<dyn Liveness + Send + Sync>,
    reclaimed: Mutex<Vec<Reclaimed>>,
}

impl Ledger {
    /// The ledger in this state folder, which is made (0700) when it does not exist.
    ///
    /// # Errors
    /// The folder cannot be made, or others than its owner may write there.
    pub fn open(state_dir: &Path) -> Result<Self, LedgerError> {
        Self::open_on(state_dir, Box::new(Machine))
    }

    /// The same, with other means to tell whether holders live.
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub fn open_on(state_dir: &Path, machine: Box<dyn Liveness + Send + Sync>) -> Result<Self, LedgerError> {
        files::own_folder(state_dir)?;
        Ok(Self { folder: state_dir.to_owned(), machine, reclaimed: Mutex::new(Vec::new()) })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn lock(&self) -> Result<Locked, LedgerError> {
        Locked::take(&self.folder, "lock")
    }

    /// Names of all leases, in order.
    pub(crate) fn names(&self) -> Result<Vec<Name>, LedgerError> {
        let mut names: Vec<Name> =
            files::names(&self.path("leases"))?.iter().filter_map(|file| Name::parse(file)).collect();
        names.sort_unstable();
        Ok(names)
    }

    pub(crate) fn read(&self, name: &Name) -> Result<Lease, String> {
        let bytes = files::read(&self.path(&Name::path(&name.pci, &name.tag)), MAX_LEASE)
            .map_err(|e| format!("its record cannot be read: {e}"))?;
        Lease::parse(&bytes)
    }

    /// Gives a container its GPUs, all or none.
    ///
    /// A container whose create died earlier gets the same GPUs again when they still answer its request. When nothing is
    /// free, leases of dead holders are ended first: see [`Ledger::take_reclaimed`].
    ///
    /// # Errors
    /// As [`allocate()`]; `UNSAFE_SPEC` when a container of this key is still there (its GPUs stay its own: release
    /// nothing); `INTERNAL` when the state folder fails.
    pub fn grant(&self, inventory: &Inventory, request: &Request, holder: &Holder) -> Result<Vec<Granted>, Refusal> {
        let locked = self.lock()?;
        let leases = self.names()?;
        self.refuse_living(&leases, holder)?;
        self.lease_out(&locked, leases, inventory, request, holder.key.as_str(), &holder.held_by())
    }

    /// Gives GPUs to something known by name (`vm:NAME`), until [`Ledger::release_named`] or another boot.
    ///
    /// # Errors
    /// As [`allocate()`]; `INVALID_GPU_REQUEST` when the name holds other GPUs already.
    pub fn acquire_named(&self, inventory: &Inventory, request: &Request, name: &str) -> Result<Vec<Granted>, Refusal> {
        let help = "write a kind and a name of letters, digits, '.', '-', '_' or '+', as in vm:build-1";
        if !name
            .split_once(':')
            .is_some_and(|(kind, rest)| contract::key::id_is_plain(kind) && contract::key::id_is_plain(rest))
        {
            return Err(
                Refusal::new(Code::InvalidGpuRequest, "holder-name", "a holder's name is malformed", help).at("", name)
            );
        }
        let locked = self.lock()?;
        self.lease_out(
            &locked,
            self.names()?,
            inventory,
            request,
            named_key(name).as_str(),
            &HeldBy::Name { name: name.to_owned() },
        )
    }

    /// A second container of the same key must not take over the GPUs of the first.
    pub(crate) fn refuse_living(&self, leases: &[Name], holder: &Holder) -> Result<(), Refusal> {
        let own: Vec<&Name> = leases.iter().filter(|name| name.tag == holder.key.as_str()).collect();
        if own.is_empty() {
            return Ok(());
        }
        let folder = state_folder(&holder.state_root, &holder.container, &*self.machine);
        let why = folder.or_else(|| own.iter().find_map(|name| self.busy(&self.read(name).ok()?, holder.creator)));
        why.map_or(Ok(()), |why| {
            let message = format!("a container of this id is there and holds GPUs: {why}");
            Err(Refusal::new(Code::UnsafeSpec, "container-exists", message, "delete that container first")
                .at("", &holder.container))
        })
    }

    /// Who else works on this container: another create, or processes in its cgroup.
    fn busy(&self, lease: &Lease, me: Process) -> Option<String> {
        let HeldBy::Container { cgroup, pid, start, .. } = &lease.holder else { return None };
        let creator = Process { pid: *pid, start: *start };
        if creator != me && self.machine.is_alive(creator) {
            return Some(format!("its create still runs, process {pid}"));
        }
        let cgroup = cgroup.as_deref()?;
        (self.machine.cgroup_is_empty(cgroup) == Ok(false))
            .then(|| format!("processes are left in its cgroup {cgroup}"))
    }

    /// Allocates and writes leases with this tag. Nothing is left of it when it fails.
    pub(crate) fn lease_out(
        &self,
        locked: &Locked,
        leases: Vec<Name>,
        inventory: &Inventory,
        request: &Request,
        tag: &str,
        holder: &HeldBy,
    ) -> Result<Vec<Granted>, Refusal> {
        let boot = self.machine.boot_id().map_err(|e| Refusal::internal("ledger", &e))?;
        let (chosen, own) = match self.choose(&leases, inventory, request, tag) {
            Err(refusal) if refusal.code == Code::CapacityFull && self.reclaim_locked(locked)? > 0 => {
                self.choose(&self.names()?, inventory, request, tag)?
            }
            other => other?,
        };
        let gpus: Vec<Granted> = chosen.iter().map(|gpu| Granted::of(gpu)).collect();
        let same = own.len() == chosen.len() && chosen.iter().all(|gpu| own.contains(&gpu.pci));
        match holder {
            HeldBy::Name { .. } if same => return Ok(gpus),
            HeldBy::Name { name } if !own.is_empty() => {
                let message = format!("{name} holds other GPUs than these");
                return Err(
                    Refusal::new(Code::InvalidGpuRequest, "holder-name", message, "release it first").at("", name)
                );
            }
            // Left by a create that died. Its contract goes before its leases, and these before anything new is taken.
            _ if !same => self.end(locked, tag, &own)?,
            _ => {}
        }
        self.write_leases(locked, &gpus, tag, holder, &boot)?;
        Ok(gpus)
    }

    /// The GPUs for a tag, and those it has already.
    fn choose<'a>(
        &self,
        leases: &[Name],
        inventory: &'a Inventory,
        request: &Request,
        tag: &str,
    ) -> Result<(Vec<&'a Gpu>, Vec<String>), Refusal> {
        let own: Vec<String> = leases.iter().filter(|lease| lease.tag == tag).map(|lease| lease.pci.clone()).collect();
        let number = |lease: &Name| self.read(lease).ok().and_then(|lease| lease.minor);
        let others = leases.iter().filter(|lease| lease.tag != tag).map(|lease| (lease.pci.as_str(), number(lease)));
        let taken = taken(inventory, others);
        let previous = if own.is_empty() && request.ids.is_empty() { self.previous(tag) } else { own.clone() };
        allocate(inventory, &|pci| taken.contains(&pci), request, &previous).map(|chosen| (chosen, own))
    }

    /// Writes one lease after the other; those written are taken back when one fails. If this process dies half-way,
    /// they name a creator that is gone, and are reclaimed.
    pub(crate) fn write_leases(
        &self,
        locked: &Locked,
        gpus: &[Granted],
        tag: &str,
        holder: &HeldBy,
        boot: &str,
    ) -> Result<(), LedgerError> {
        for (done, gpu) in gpus.iter().enumerate() {
            let path = Name::path(&gpu.pci, tag);
            let lease = Lease::new(gpu, holder, boot, node::now());
            let written = serde_json::to_vec(&lease)
                .map_err(|e| LedgerError::new("write", &self.path(&path), &e))
                .and_then(|bytes| locked.place(&path, &bytes));
            if let Err(error) = written {
                for gpu in gpus.iter().take(done) {
                    // The first error is the one worth telling; what cannot be taken back is reclaimed.
                    let _ = locked.remove(&Name::path(&gpu.pci, tag));
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends leases of a tag: first what rests on them, then they themselves.
    fn end(&self, locked: &Locked, tag: &str, pcis: &[String]) -> Result<(), LedgerError> {
        if let Some(key) = Key::parse(tag) {
            self.drop_contract(locked, &key)?;
        }
        pcis.iter().try_for_each(|pci| locked.remove(&Name::path(pci, tag)).map(|_| ()))
    }

    /// What a deleted container's lease becomes while processes are left in its cgroup. Not knowing is no reason here: the
    /// low-level runtime says that the container is gone.
    fn draining(&self, name: &Name) -> Option<Lease> {
        let lease = self.read(name).ok()?;
        let (container, cgroup) = match &lease.holder {
            HeldBy::Container { container, cgroup: Some(cgroup), .. } | HeldBy::Draining { container, cgroup } => {
                (container.clone(), cgroup.clone())
            }
            _ => return None,
        };
        let left = self.machine.cgroup_is_empty(&cgroup) == Ok(false);
        left.then_some(Lease { holder: HeldBy::Draining { container, cgroup }, ..lease })
    }

    /// Ends all that a container has here: leases, contract, original. Says which GPUs (PCI addresses) became free.
    ///
    /// Idempotent. The GPUs are remembered: a container of the same key gets them again when they are free. While processes
    /// are left in the container's cgroup its leases stay, draining.
    ///
    /// # Errors
    /// Something cannot be removed; then its leases are still there, and a second call mends it.
    pub fn release(&self, key: &Key) -> Result<Vec<String>, LedgerError> {
        let own = |ledger: &Self| -> Result<Vec<String>, LedgerError> {
            Ok(ledger.names()?.into_iter().filter(|name| name.tag == key.as_str()).map(|name| name.pci).collect())
        };
        // Most deletes are of containers that never had a GPU: they take no lock.
        if own(self)?.is_empty() && !self.has_original(key) {
            return Ok(Vec::new());
        }
        let locked = self.lock()?;
        let pcis = own(self)?;
        if !pcis.is_empty() {
            // Advice for the next time: what cannot be remembered may not keep a GPU.
            let _ = self.remember(&locked, key.as_str(), &pcis);
        }
        self.forget_locked(&locked, key)?;
        let mut free = Vec::new();
        for pci in pcis {
            let name = Name { pci, tag: key.as_str().to_owned() };
            let path = Name::path(&name.pci, &name.tag);
            match self.draining(&name) {
                Some(lease) => {
                    let bytes = serde_json::to_vec(&lease).map_err(|e| LedgerError::new("write", &self.path(&path), &e))?;
                    locked.place(&path, &bytes)?;
                }
                None => free.push(name.pci),
            }
        }
        self.end(&locked, key.as_str(), &free)?;
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
        for name in self.names()? {
            let (lease, standing) = self.judge(&name);
            let (Standing::Held(held_because) | Standing::Gone(held_because)) = standing;
            list.push(LeaseStatus { pci: name.pci, tag: name.tag, lease, held_because });
        }
        Ok(list)
    }

    fn judge(&self, name: &Name) -> (Option<Lease>, Standing) {
        match self.read(name) {
            Err(why) => (None, Standing::Held(why)),
            Ok(lease) => {
                let pending = name.token().is_some_and(|token| self.is_pending(token));
                let standing = standing(&lease, pending, &*self.machine);
                (Some(lease), standing)
            }
        }
    }

    /// Ends dead leases; says how many.
    pub(crate) fn reclaim_locked(&self, locked: &Locked) -> Result<usize, LedgerError> {
        let mut gone: Vec<Reclaimed> = Vec::new();
        for name in self.names()? {
            if let (Some(lease), Standing::Gone(gone_because)) = self.judge(&name) {
                gone.push(Reclaimed { pci: name.pci, tag: name.tag, lease, gone_because });
            }
        }
        // One holder's leases stand together; they are ended together.
        gone.sort_unstable_by(|a, b| a.tag.cmp(&b.tag));
        for of_one in gone.chunk_by(|a, b| a.tag == b.tag) {
            let pcis: Vec<String> = of_one.iter().map(|lease| lease.pci.clone()).collect();
            let Some(first) = of_one.first() else { continue };
            if !matches!(first.lease.holder, HeldBy::Reservation { .. }) {
                // Advice for the next time, as in `release`.
                let _ = self.remember(locked, &first.tag, &pcis);
            }
            self.end(locked, &first.tag, &pcis)?;
        }
        self.sweep_reservations(locked)?;
        let count = gone.len();
        if let Ok(mut list) = self.reclaimed.lock() {
            list.extend(gone);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
