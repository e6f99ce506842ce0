//! Questions that change nothing and take no lock: most calls of the runtime are about containers without GPUs.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use contract::inventory::Inventory;
use contract::key::Key;
use contract::request::Request;
use contract::{Code, Contract, Granted, Refusal};
use node::process::Process;

use crate::LedgerError;
use crate::allocate::explain;
use crate::documents::Original;
use crate::files;
use crate::lease::{HeldBy, Lease, Name, PodContainer};
use crate::liveness::Machine;
use crate::numbers::FEW;
use crate::rests;
use crate::sharing::Other;
use crate::slot::{self, Take, taken};
use crate::store::{Holder, Ledger, Taker};

impl Ledger {
    /// The ledger of a state folder that is there already; nothing is made.
    #[must_use]
    pub fn open_existing(state_dir: &Path) -> Option<Self> {
        state_dir.is_dir().then(|| Self::open(state_dir).ok()).flatten()
    }

    /// The ledger of a state folder that need not be there, for questions only: nothing is made or checked.
    #[must_use]
    pub fn for_reading(state_dir: &Path) -> Self {
        Self::on(state_dir, Box::new(Machine))
    }

    /// What a new container of this owner would be granted now, dead holders' GPUs and those of waiters not counted in.
    ///
    /// # Errors
    /// As [`Ledger::grant`].
    pub fn foresee(
        &self,
        inventory: &Inventory,
        request: &Request,
        owner: Option<String>,
    ) -> Result<Vec<Granted>, Refusal> {
        let key = Key::of("check", "check");
        let creator = Process { pid: 0, start: 0 };
        let nobody = String::new;
        let holder = Holder {
            key,
            container: nobody(),
            state_root: nobody(),
            low_level: nobody(),
            cgroup: None,
            pod: None,
            owner,
            creator,
        };
        let held_by = holder.held_by(&*self.machine);
        let tag = holder.key.as_str();
        let taker = Taker { tag, memory: tag, holder: &held_by, history: OnceCell::new(), still: &rests::compared };
        let names = self.names()?;
        let (chosen, _) = self.choose(&names, &self.others(&names, tag), &[], inventory, request, &taker)?;
        Ok(chosen)
    }

    /// Why a request is answered with these GPUs, in words; whether they are leased to it already does not matter.
    #[must_use]
    pub fn explain(&self, inventory: &Inventory, request: &Request, chosen: &[Granted]) -> Vec<String> {
        let chosen: Vec<String> = chosen.iter().map(slot::of).collect();
        let taken = self.taken(inventory);
        let is_taken = |slot: &str| taken.iter().any(|taken| taken == slot) && !chosen.iter().any(|own| own == slot);
        explain(inventory, &is_taken, request, &[], &chosen)
    }

    /// The keys of all containers that have a contract or an original here.
    ///
    /// # Errors
    /// A folder cannot be listed.
    pub fn keys(&self) -> Result<Vec<Key>, LedgerError> {
        let contracts = files::names(&self.path("contracts"))?;
        let contracts = contracts.iter().filter_map(|name| name.strip_suffix(".json").map(str::to_owned));
        let mut names: Vec<String> = contracts.chain(files::names(&self.path("originals"))?).collect();
        contract::order::sort(&mut names);
        names.dedup();
        Ok(names.iter().filter_map(|name| Key::parse(name)).collect())
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
        match self.holder(key)? {
            HeldBy::Container { low_level, .. } => Some(low_level.into()),
            HeldBy::Draining { .. } | HeldBy::Name { .. } | HeldBy::Reservation { .. } => None,
        }
    }

    /// The folder that exists while the low-level runtime knows a key's container.
    #[must_use]
    pub fn state_folder(&self, key: &Key) -> Option<PathBuf> {
        match self.holder(key)? {
            HeldBy::Container { state_root, container, .. } => Some(Path::new(&state_root).join(container)),
            HeldBy::Draining { .. } | HeldBy::Name { .. } | HeldBy::Reservation { .. } => None,
        }
    }

    /// Why it cannot be told from here whether a key's container is gone: it was made in another pid namespace.
    #[must_use]
    pub fn out_of_sight(&self, key: &Key) -> Option<String> {
        match self.holder(key)? {
            HeldBy::Container { made, .. } => made?.out_of_sight(&*self.machine),
            HeldBy::Draining { .. } | HeldBy::Name { .. } | HeldBy::Reservation { .. } => None,
        }
    }

    /// Who holds what a key has leases on.
    #[must_use]
    pub fn holder(&self, key: &Key) -> Option<HeldBy> {
        let names = self.names().ok()?;
        let name = names.iter().find(|name| name.tag == key.as_str())?;
        Some(self.read(name).ok()?.holder)
    }

    /// The GPUs that a key has leases on.
    #[must_use]
    pub fn holdings(&self, key: &Key) -> Vec<Granted> {
        let names = self.names().unwrap_or_default();
        let own = names.iter().filter(|name| name.tag == key.as_str());
        own.filter_map(|name| self.read(name).ok().map(Lease::granted)).collect()
    }

    /// Every lease as it lies there, whether its holder lives or not.
    #[must_use]
    pub fn on_record(&self) -> Vec<Lease> {
        self.names().unwrap_or_default().iter().filter_map(|name| self.read(name).ok()).collect()
    }

    /// Every leased slot and its holder, for operators.
    #[must_use]
    pub fn holders(&self) -> Vec<String> {
        let names = self.names().unwrap_or_default();
        let line = |name: &Name| Some(format!("{} {}", name.slot, self.read(name).ok()?.holder.name()));
        names.iter().filter_map(line).collect()
    }

    /// Refuses a cgroup that is, contains or lies in that of a container with a GPU, other than `key`'s; both as specs name
    /// them. One filter serves a group, and those above it weigh in too. [`Ledger::grant`] asks this itself.
    #[must_use]
    pub fn refuses_cgroup(&self, cgroup: &str, key: &Key) -> Option<Refusal> {
        let names = self.names().unwrap_or_default();
        if names.len() > FEW && self.is_alone_in(cgroup) {
            return None;
        }
        self.held_cgroup(cgroup, &self.others(&names, key.as_str()))
    }

    pub(crate) fn held_cgroup(&self, cgroup: &str, others: &[Other<'_>]) -> Option<Refusal> {
        let of = |other: &'_ Other<'_>| match &other.lease.as_ref()?.holder {
            HeldBy::Container { cgroup, .. } => cgroup.clone(),
            HeldBy::Draining { cgroup, .. } => Some(cgroup.clone()),
            HeldBy::Name { .. } | HeldBy::Reservation { .. } => None,
        };
        let mut held = others.iter().filter_map(of).filter(|held| touch(held, cgroup));
        let message = "this cgroup is, contains or lies in that of a container with a GPU";
        held.any(|held| self.machine.cgroup_is_empty(&held) != Ok(true)).then(|| cgroup_refusal(cgroup, message))
    }

    /// The first processes of the containers other than `key`'s that have a GPU and run where this is asked, and their places
    /// in pods: who shares a namespace with one can take what it has open.
    #[must_use]
    pub fn at_work(&self, key: &Key) -> Vec<(u32, Option<PodContainer>)> {
        let names = self.names().unwrap_or_default();
        let others = names.iter().filter(|name| name.tag != key.as_str());
        let runs = |name: &Name| match self.read(name).ok()?.holder {
            HeldBy::Container { made: Some(made), pod, .. } => {
                let seen = made.out_of_sight(&*self.machine).is_none() && made.runs(&*self.machine).is_some();
                Some((made.init.filter(|_| seen)?.0, pod))
            }
            _ => None,
        };
        others.filter_map(runs).collect()
    }

    /// The spec that lay at this path before our edits, whosever it was.
    #[must_use]
    pub fn original_at(&self, config_path: &str) -> Option<Original> {
        let names = files::names(&self.path("originals")).ok()?;
        let mut originals = names.iter().filter_map(|name| self.original(&Key::parse(name)?));
        originals.find(|original| original.config_path == config_path)
    }

    /// The slots of this inventory that leases take, dead or alive.
    #[must_use]
    pub fn taken(&self, inventory: &Inventory) -> Vec<String> {
        let names = self.names().unwrap_or_default();
        taken(inventory, names.iter().map(|name| Take::of(&name.slot, self.read(name).ok().as_ref())))
    }

    /// Refuses a second container of a key whose first is there. Who grants or redeems asks this anyway.
    ///
    /// # Errors
    /// `UNSAFE_SPEC`, or `INTERNAL` when the state folder fails.
    pub fn refuse_second(&self, holder: &Holder) -> Result<(), Refusal> {
        self.refuse_living(&self.names()?, holder)
    }

    /// The contract of a reservation, left reserved.
    ///
    /// # Errors
    /// `CONTRACT_UNTRUSTED` when the token is unknown, used, over its time, from another boot, or another container's.
    pub fn reservation(&self, token: &str, pod: Option<&PodContainer>) -> Result<Contract, Refusal> {
        self.promise(token)?.for_container(pod)
    }
}

/// A cgroup that a container with a GPU cannot have to itself.
#[must_use]
pub fn cgroup_refusal(cgroup: &str, message: &str) -> Refusal {
    let help = "give the container a cgroup of its own: another cgroupsPath, or another id where none is named";
    Refusal::new(Code::UnsafeSpec, "cgroup-path", message, help).at("/linux/cgroupsPath", cgroup)
}

/// Whether one path of a cgroup is the other or lies in it, however many slashes they have.
fn touch(one: &str, other: &str) -> bool {
    let segments = |path: &str| {
        path.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned).collect::<Vec<_>>()
    };
    let (one, other) = (segments(one), segments(other));
    let common = one.len().min(other.len());
    common > 0 && one.iter().zip(&other).all(|(a, b)| a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_touch_when_one_is_in_the_other() {
        for (one, other, expected) in [
            ("/a/b", "a//b/", true),
            ("/a/b", "/a/b/c", true),
            ("/a", "/a/b", true),
            ("/a/b", "/a/bc", false),
            ("/a/b", "/c/a/b", false),
            ("system.slice:cri:x", "system.slice:cri:x", true),
            ("system.slice:cri:x", "system.slice:cri:y", false),
            ("", "/a", false),
        ] {
            assert_eq!((touch(one, other), touch(other, one)), (expected, expected), "{one} {other}");
        }
    }
}
