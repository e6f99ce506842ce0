//! The ledger: who has which GPU, as plain files under one lock.
//!
//! Every change is made of steps that each leave a state in which no GPU has two holders and no lease outlives its
//! holder unseen: leases come first and go last, and what dies in between is found by [`Ledger::reclaim`].

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use contract::config::Config;
use contract::gpu::{Gpu, State};
use contract::inventory::Inventory;
use contract::key::Key;
use contract::request::{Request, Sharing};
use contract::{Code, Granted, Refusal};
use node::process::Process;

use crate::LedgerError;
use crate::allocate::allocate_where;
use crate::ending::Reclaimed;
use crate::files::{self, Locked};
use crate::lease::{HeldBy, Lease, Made, Name, PodContainer, state_folder};
use crate::limits::Limits;
use crate::liveness::{Liveness, Machine};
use crate::numbers::{self, Numbers};
use crate::rests::{self, Still};
use crate::sharing::{Other, Party};
use crate::slot;
use crate::waiting::{Waiter, set_aside};

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
    /// Its place in a pod, as the engine tells it.
    pub pod: Option<PodContainer>,
    /// Whose it is, in the word of the engine or the operator; never the tenant's.
    pub owner: Option<String>,
    /// The process that creates the container.
    pub creator: Process,
}

impl Holder {
    /// Whether it is the container of a user without root, whom the broker gave GPUs: no device filter holds it.
    #[must_use]
    pub fn is_rootless(&self) -> bool {
        is_rootless(&self.state_root)
    }

    /// What its GPUs are remembered by. A pod's container that is restarted is another one to the engine.
    pub(crate) fn memory(&self) -> Key {
        self.pod.as_ref().map_or_else(|| self.key.clone(), |pod| Key::of(&pod.uid, &pod.container))
    }

    pub(crate) fn held_by(&self, machine: &dyn Liveness) -> HeldBy {
        HeldBy::Container {
            container: self.container.clone(),
            state_root: self.state_root.clone(),
            low_level: self.low_level.clone(),
            cgroup: self.cgroup.clone(),
            pid: self.creator.pid,
            start: self.creator.start,
            made: Some(Made::here(machine)),
            pod: self.pod.clone(),
            owner: self.owner.clone(),
            sharing: None,
        }
    }
}

/// A user's folder of states, as it stands in leases that the broker gave: no absolute path, as root looks at none of a user's.
#[must_use]
pub fn users_root(uid: u32, root: &str) -> String {
    format!("uid:{uid}:{root}")
}

pub(crate) fn is_rootless(state_root: &str) -> bool {
    !state_root.starts_with('/')
}

/// Who takes GPUs: the tag of its leases, and what it had before is remembered by.
pub(crate) struct Taker<'a> {
    pub(crate) tag: &'a str,
    pub(crate) memory: &'a str,
    pub(crate) holder: &'a HeldBy,
    /// Who had what, once it was read: under the lock it stays so.
    pub(crate) history: OnceCell<String>,
    /// Whether what the answer rests on is still there.
    pub(crate) still: Still<'a>,
}

/// The key of something that holds GPUs by name.
#[must_use]
pub fn named_key(name: &str) -> Key {
    // State roots are absolute paths, so no container has such a key.
    Key::of("name", name)
}

/// The record of all leases of this node.
pub struct Ledger {
    folder: PathBuf,
    pub(crate) machine: Box<dyn Liveness + Send + Sync>,
    pub(crate) reclaimed: Mutex<Vec<Reclaimed>>,
    pub(crate) limits: Limits,
    waited: AtomicBool,
    /// How many seconds a creator counts as one that is at work.
    pub(crate) patience: Option<u64>,
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
        Ok(Self::on(state_dir, machine))
    }

    pub(crate) fn on(state_dir: &Path, machine: Box<dyn Liveness + Send + Sync>) -> Self {
        let (reclaimed, limits) = (Mutex::new(Vec::new()), Limits::default());
        Self {
            folder: state_dir.to_owned(),
            machine,
            reclaimed,
            limits,
            waited: AtomicBool::new(false),
            patience: None,
        }
    }

    /// The same, under the operator's limits.
    #[must_use]
    pub fn limited(self, config: &Config) -> Self {
        Self { limits: Limits::of(config), ..self }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn lock(&self) -> Result<Locked, LedgerError> {
        let locked = Locked::take(&self.folder, "lock")?;
        self.waited.fetch_or(locked.waited, Ordering::Relaxed);
        Ok(locked)
    }

    /// Whether a lock was waited for since this ledger was opened: what was known before may be so no more.
    #[must_use]
    pub fn waited(&self) -> bool {
        self.waited.load(Ordering::Relaxed)
    }

    /// Names of all leases, in order.
    pub(crate) fn names(&self) -> Result<Vec<Name>, LedgerError> {
        let mut names = leases(&self.listing()?);
        contract::order::sort(&mut names);
        Ok(names)
    }

    /// Names of all files of leases and of who waits for them.
    pub(crate) fn listing(&self) -> Result<Vec<String>, LedgerError> {
        files::names(&self.path("leases"))
    }

    pub(crate) fn read(&self, name: &Name) -> Result<Lease, String> {
        let bytes = files::read(&self.path(&Name::path(&name.slot, &name.tag)), MAX_LEASE)
            .map_err(|e| format!("its record cannot be read: {e}"))?;
        Lease::parse(&bytes)
    }

    /// Gives a container its GPUs, all or none.
    ///
    /// A container whose create died earlier gets the same GPUs again when they still answer its request. When nothing is
    /// free, leases of dead holders are ended first: see [`Ledger::take_reclaimed`].
    ///
    /// # Errors
    /// As [`crate::allocate()`]; `UNSAFE_SPEC` when a container of this key is still there (its GPUs stay its own: release
    /// nothing), or the cgroup is another holder's; `INTERNAL` when the state folder fails.
    pub fn grant(&self, inventory: &Inventory, request: &Request, holder: &Holder) -> Result<Vec<Granted>, Refusal> {
        self.grant_while(&rests::compared, inventory, request, holder)
    }

    /// The same where MIG instances were not compared yet.
    ///
    /// # Errors
    /// As [`Ledger::grant`], and what `still` says, instead of any other refusal too.
    pub fn grant_while(
        &self,
        still: Still<'_>,
        inventory: &Inventory,
        request: &Request,
        holder: &Holder,
    ) -> Result<Vec<Granted>, Refusal> {
        let locked = self.lock()?;
        let listing = self.listing()?;
        let own = |file: &&String| file.ends_with(holder.key.as_str());
        let own: Vec<Name> = listing.iter().filter(own).filter_map(|file| Name::parse(file)).collect();
        self.refuse_living(&own, holder)?;
        let (tag, memory) = (holder.key.as_str(), holder.memory());
        let mut held_by = self.held_by(holder);
        if let HeldBy::Container { sharing, .. } = &mut held_by {
            *sharing = Some(request.terms.sharing).filter(|sharing| *sharing == Sharing::Owner);
        }
        let taker = Taker { tag, memory: memory.as_str(), holder: &held_by, history: OnceCell::new(), still };
        let gpus = self.lease_out(&locked, listing, &[], inventory, request, &taker)?;
        // Advice for the next time: what cannot be remembered keeps nobody from a GPU.
        let _ = self.remember(&locked, &taker, &gpus.iter().map(slot::of).collect::<Vec<_>>());
        Ok(gpus)
    }

    /// Keeps in the leases of a key, which are on these GPUs, which process its container began with. `creator`: who took them,
    /// where that is known.
    ///
    /// # Errors
    /// A lease is gone, or another's by now: somebody took the creator for dead, or deleted what it was making. Or they cannot be
    /// written; what they said before still stands there.
    pub fn started(
        &self,
        key: &Key,
        gpus: &[Granted],
        init: Process,
        creator: Option<Process>,
    ) -> Result<(), LedgerError> {
        let locked = self.lock()?;
        let tag = key.as_str();
        let mut own = Vec::new();
        for gpu in gpus {
            let lease = self.read(&Name { slot: slot::of(gpu), tag: tag.to_owned() }).ok();
            own.push(lease.filter(|lease| lease.is_by(creator)).ok_or_else(|| {
                LedgerError(format!("the lease on {} was taken back while the container was made", gpu.name()))
            })?);
        }
        for mut lease in own {
            if let HeldBy::Container { made: Some(made), .. } = &mut lease.holder {
                made.init = Some((init.pid, init.start));
                made.mounts = self.machine.mounts_among_ours(init.pid);
                self.place_lease(&locked, tag, &lease)?;
            }
        }
        Ok(())
    }

    /// Keeps what the node's broker granted, in a ledger that is a user's own: its leases keep no GPU from anybody.
    ///
    /// # Errors
    /// As [`Ledger::grant`], but for what the GPUs are about.
    pub fn adopt(&self, gpus: &[Granted], holder: &Holder) -> Result<(), Refusal> {
        let locked = self.lock()?;
        let names = self.names()?;
        self.refuse_living(&names, holder)?;
        let tag = holder.key.as_str();
        let own: Vec<String> = names.into_iter().filter(|name| name.tag == tag).map(|name| name.slot).collect();
        self.end(&locked, tag, &own)?;
        let boot = self.machine.boot_id().map_err(|e| Refusal::internal("ledger", &e))?;
        Ok(self.write_leases(&locked, gpus, tag, &self.held_by(holder), &boot)?)
    }

    /// Gives GPUs to something known by name (`vm:NAME`), until [`Ledger::release_named`] or another boot.
    ///
    /// # Errors
    /// As [`crate::allocate()`], but that a GPU bound to vfio-pci can be had by its PCI address; `INVALID_GPU_REQUEST` when the name holds other GPUs already.
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
        let key = named_key(name);
        let (tag, holder) = (key.as_str(), HeldBy::Name { name: name.to_owned() });
        let taker = Taker { tag, memory: tag, holder: &holder, history: OnceCell::new(), still: &rests::compared };
        self.lease_out(&locked, self.listing()?, &[], inventory, request, &taker)
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
        let HeldBy::Container { cgroup, pid, start, made, .. } = &lease.holder else { return None };
        if let Some(why) = made.as_ref().and_then(|made| made.may_run(&*self.machine)) {
            return Some(why);
        }
        let creator = Process { pid: *pid, start: *start };
        if creator != me && self.machine.is_alive(creator) {
            return Some(format!("its create still runs, process {pid}"));
        }
        let cgroup = cgroup.as_deref()?;
        (self.machine.cgroup_is_empty(cgroup) == Ok(false))
            .then(|| format!("processes are left in its cgroup {cgroup}"))
    }

    /// Allocates and writes leases; `listing` is what lies beside them now. Leases on the slots in `open` are not in the way. Nothing is left of it
    /// when it fails.
    pub(crate) fn lease_out(
        &self,
        locked: &Locked,
        listing: Vec<String>,
        open: &[String],
        inventory: &Inventory,
        request: &Request,
        taker: &Taker<'_>,
    ) -> Result<Vec<Granted>, Refusal> {
        let Taker { tag, holder, .. } = *taker;
        let boot = self.machine.boot_id().map_err(|e| Refusal::internal("ledger", &e))?;
        let numbers = Numbers::of(inventory, &listing);
        let mut others_agree = false;
        let mut choose = |listing: &[String]| {
            let ahead = self.ahead(locked, listing, Some(holder))?;
            let mut leases = leases(listing);
            leases.retain(|lease| !open.contains(&lease.slot));
            let others = if self.names_tell(numbers.as_ref(), &ahead, inventory, request, taker) {
                Self::named(&leases, tag)
            } else {
                contract::order::sort(&mut leases);
                let others = self.others(&leases, tag);
                others_agree = open.is_empty() && numbers::agree(inventory, &others);
                others
            };
            self.choose(&leases, &others, &ahead, inventory, request, taker)
        };
        let answer = match choose(&listing) {
            Err(refusal) if may_be_the_deads(&refusal) && self.reclaim_locked(locked)? > 0 => choose(&self.listing()?),
            other => other,
        };
        let on_all = answer.is_err() || rests::on_all(inventory, request, &self.limits, &listing);
        (taker.still)(answer.as_ref().ok().map(|(gpus, _)| gpus.as_slice()).filter(|_| !on_all))?;
        let (gpus, own) = answer?;
        let same = own.len() == gpus.len() && gpus.iter().all(|gpu| own.contains(&slot::of(gpu)));
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
        numbers.as_ref().map_or(Ok(()), |numbers| numbers.begin(locked))?;
        self.write_leases(locked, &gpus, tag, holder, &boot)?;
        numbers.iter().for_each(|numbers| numbers.keep(locked, others_agree));
        Ok(gpus)
    }

    /// The GPUs for a taker, and the slots it has already.
    pub(crate) fn choose(
        &self,
        leases: &[Name],
        others: &[Other<'_>],
        ahead: &[Waiter],
        inventory: &Inventory,
        request: &Request,
        taker: &Taker<'_>,
    ) -> Result<(Vec<Granted>, Vec<String>), Refusal> {
        let (tag, limits) = (taker.tag, &self.limits);
        let owner = taker.holder.owner();
        let name = match taker.holder {
            HeldBy::Name { name } => Some(name.as_str()),
            _ => None,
        };
        let own: Vec<String> = leases.iter().filter(|lease| lease.tag == tag).map(|lease| lease.slot.clone()).collect();
        if let HeldBy::Container { cgroup: Some(cgroup), .. } = taker.holder
            && let Some(refusal) = self.held_cgroup(cgroup, others)
        {
            return Err(refusal);
        }
        let party = Party::of(owner, request);
        // Who may never have it does not wait for it.
        limits.owner_may(&party, others, party.least(others, request), request)?;
        let mut taken = party.taken(inventory, others);
        let aside = set_aside(inventory, others, limits, ahead);
        let before = aside.of(owner);
        taken.extend(aside.slots);
        if name.is_some() {
            slot::groups_are_free(inventory, &taken, request)?;
        }
        let closed = limits.closed(inventory, others, name.or(owner), name.is_some());
        let mut previous = if own.is_empty() { party.shared(others) } else { own.clone() };
        if previous.is_empty() && request.ids.is_empty() {
            previous = self.previous(taker);
        }
        // What is bound to vfio-pci is for a virtual machine, and what a machine has stays its own whatever it is bound to.
        let for_machine = |gpu: &Gpu| gpu.unavailable.as_ref().is_some_and(|why| why.state == State::Vfio);
        let fits = |gpu: &Gpu| name.is_some() && (for_machine(gpu) || own.contains(&gpu.pci));
        let usable = |gpu: &Gpu| gpu.usable() || fits(gpu);
        let is_taken = |slot: &str| taken.iter().any(|taken| taken == slot);
        let chosen = allocate_where(inventory, &is_taken, request, &previous, &usable, &closed)?;
        let more = party.more(others, &chosen);
        limits.owner_may(&party, others, more, request)?;
        if !limits.owner_fits(&party, others, before + more) {
            let message = "what this owner may still have is left to containers of it that wait already";
            let refusal = Refusal::new(Code::CapacityFull, "owner-waits", message, "wait too, or try again later");
            return Err(refusal.at(request.place("count"), request.count.to_string()));
        }
        Ok((chosen, own))
    }

    /// The leases of others than this tag, read.
    pub(crate) fn others<'n>(&self, leases: &'n [Name], tag: &str) -> Vec<Other<'n>> {
        let read = |name| Other { name, lease: self.read(name).ok() };
        leases.iter().filter(|lease| lease.tag != tag).map(read).collect()
    }

    /// Writes one lease.
    pub(crate) fn place_lease(&self, locked: &Locked, tag: &str, lease: &Lease) -> Result<(), LedgerError> {
        let path = Name::path(&slot::of_lease(lease), tag);
        let bytes = serde_json::to_vec(lease).map_err(|e| LedgerError::new("write", &self.path(&path), &e))?;
        locked.place(&path, &bytes)
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
            if let Err(error) = self.place_lease(locked, tag, &Lease::new(gpu, holder, boot, node::now())) {
                for gpu in gpus.iter().take(done) {
                    // The first error is the one worth telling; what cannot be taken back is reclaimed.
                    let _ = locked.remove(&Name::path(&slot::of(gpu), tag));
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Whether leases of dead holders may be why: they count as what is taken, and as what an owner has.
fn may_be_the_deads(refusal: &Refusal) -> bool {
    matches!(refusal.code, Code::CapacityFull | Code::Policy | Code::GpuUnavailable | Code::DriverNotReady)
}

/// The leases among the names in their folder, in its order.
fn leases(listing: &[String]) -> Vec<Name> {
    listing.iter().filter_map(|file| Name::parse(file)).collect()
}

#[cfg(test)]
mod tests;
