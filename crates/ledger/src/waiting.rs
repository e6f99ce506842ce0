//! Who waits for GPUs, and in which order: files beside the leases, so that the look at the leases finds them too.
//!
//! `leases/wait-<number>` is one who waits; the lowest number came first. A waiter holds nothing, no lock either: it tries
//! again when something changed. Whoever takes GPUs leaves those aside that waiters before him can take, or, where there
//! are not enough for one of them, all that this one could use: later ones do not live on what an earlier one is short of.
//! A waiter that died, or whose time is over, is out of the way.

use std::time::{Duration, Instant};

use contract::gpu::Gpu;
use contract::inventory::Inventory;
use contract::request::Request;
use contract::{Code, Refusal, read, record};
use node::process::Process;
use serde::Serialize;

use crate::LedgerError;
use crate::allocate::{One, allocate_where, candidates};
use crate::files::{self, Locked};
use crate::lease::{HeldBy, Made};
use crate::limits::Limits;
use crate::sharing::{Other, Party};
use crate::slot;
use crate::store::{Holder, Ledger};

const PREFIX: &str = "wait-";
/// How many containers of one owner may wait, or of those that nobody names an owner of: everybody looks at all of them.
const MOST_WAITING: usize = 64;
/// Most bytes of a waiter's file that are read.
const MAX_WAITER: u64 = 64 << 10;
/// How often a waiter looks whether something changed, and when it tries anyway: a holder that died changed no file.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);

/// One who waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiter {
    /// Who.
    holder: HeldBy,
    /// The boot in which it waits.
    boot_id: String,
    /// Until when, in seconds since that boot.
    until: u64,
    /// What it waits for.
    pub request: Request,
}

record!(open Waiter { holder, boot_id, until, request });

/// A place in the queue.
#[derive(Debug)]
pub struct Place {
    number: u64,
    ticket: Vec<u8>,
}

impl Place {
    fn path(&self) -> String {
        format!("leases/{PREFIX}{:010}", self.number)
    }
}

/// What the folder of leases was like at a time; another value means that something changed.
pub type Mark = Option<contract::inventory::FileId>;

impl Ledger {
    /// Puts a container at the end of the queue, for so many seconds. Gives its place.
    ///
    /// # Errors
    /// `CAPACITY_FULL` when too many of its owner's wait already; the state folder fails.
    pub fn queue(&self, request: &Request, holder: &Holder, seconds: u64) -> Result<Place, Refusal> {
        let unknown = |e: String| LedgerError::new("wait in", &self.path("leases"), &e);
        let locked = self.lock()?;
        let waiting = self.ahead(&locked, &files::names(&self.path("leases"))?, None)?;
        let of_owner = waiting.iter().filter(|waiter| waiter.holder.owner() == holder.owner.as_deref()).count();
        if of_owner >= MOST_WAITING {
            let message = format!("no GPU is free, and {of_owner} containers of this owner wait already");
            let help = "try again when some of them have started";
            return Err(Refusal::new(Code::CapacityFull, "queue-full", message, help)
                .at(request.place("wait"), format!("{}s", request.terms.wait)));
        }
        let number = behind(&files::names(&self.path("leases"))?);
        let boot_id = self.machine.boot_id().map_err(unknown)?;
        // The clock's seconds are whole ones: it must not be over before the waiter's own is.
        let until = self.machine.boot_seconds().map_err(unknown)?.saturating_add(seconds).saturating_add(1);
        let waiter = Waiter { holder: holder.held_by(&*self.machine), boot_id, until, request: request.clone() };
        let ticket = serde_json::to_vec(&waiter).map_err(|e| unknown(e.to_string()))?;
        let place = Place { number, ticket };
        locked.place(&place.path(), &place.ticket)?;
        Ok(place)
    }

    /// Takes a place once more that somebody removed the file of; behind all where another has its number by now. Best effort:
    /// the next turn tries again, and until then all count as before this one.
    pub fn keep(&self, place: &mut Place) {
        if files::read(&self.path(&place.path()), MAX_WAITER).is_ok_and(|bytes| bytes == place.ticket) {
            return;
        }
        if let (Ok(locked), Ok(names)) = (self.lock(), files::names(&self.path("leases"))) {
            if self.path(&place.path()).exists() {
                place.number = behind(&names);
            }
            let _ = locked.place(&place.path(), &place.ticket);
        }
    }

    /// Takes a container out of the queue, as its creator put it there.
    ///
    /// # Errors
    /// The state folder fails.
    pub fn leave_queue(&self, holder: &Holder) -> Result<(), LedgerError> {
        let me = holder.held_by(&*self.machine);
        let locked = self.lock()?;
        for (_, name) in tickets(&files::names(&self.path("leases"))?) {
            if self.waiter(name).is_some_and(|waiter| waiter.is(&me)) {
                locked.remove(&format!("leases/{name}"))?;
            }
        }
        Ok(())
    }

    /// Who waits, in order.
    ///
    /// # Errors
    /// The state folder fails.
    pub fn waiters(&self) -> Result<Vec<Waiter>, LedgerError> {
        let locked = self.lock()?;
        self.ahead(&locked, &files::names(&self.path("leases"))?, None)
    }

    /// What the leases are like now.
    #[must_use]
    pub fn mark(&self) -> Mark {
        node::file_id(&self.path("leases")).ok()
    }

    /// Sleeps until the leases are not as they were at the mark; no longer than this, and not long.
    pub fn sleep_on(&self, mark: Mark, most: Duration) {
        let end = Instant::now() + most.min(LONGEST);
        while self.mark() == mark {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(PAUSE));
        }
    }

    /// Who waits before a container that waits, or before one that does not: all. The dead leave the queue.
    pub(crate) fn ahead(
        &self,
        locked: &Locked,
        listing: &[String],
        me: Option<&HeldBy>,
    ) -> Result<Vec<Waiter>, LedgerError> {
        let mut ahead = Vec::new();
        for (_, name) in tickets(listing) {
            match self.waiter(name) {
                Some(waiter) if me.is_some_and(|me| waiter.is(me)) => break,
                Some(waiter) if self.waits(&waiter) => ahead.push(waiter),
                _ => {
                    locked.remove(&format!("leases/{name}"))?;
                }
            }
        }
        Ok(ahead)
    }

    fn waiter(&self, name: &str) -> Option<Waiter> {
        read::document(&files::read(&self.path("leases").join(name), MAX_WAITER).ok()?).ok()
    }

    /// Whether its process cannot be seen from here: then it waits until its time is over.
    fn is_elsewhere(&self, waiter: &Waiter) -> bool {
        waiter.made().is_some_and(|made| made.out_of_sight(&*self.machine).is_some())
    }

    fn waits(&self, waiter: &Waiter) -> bool {
        self.machine.boot_id().is_ok_and(|boot| boot == waiter.boot_id)
            && self.machine.boot_seconds().is_ok_and(|now| now <= waiter.until)
            && waiter.process().is_some_and(|process| self.machine.is_alive(process) || self.is_elsewhere(waiter))
    }
}

impl Waiter {
    /// Where it was made, as far as it says so.
    fn made(&self) -> Option<&Made> {
        match &self.holder {
            HeldBy::Container { made, .. } => made.as_ref(),
            _ => None,
        }
    }

    /// What people call it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.holder.name()
    }

    /// Whether it is this container, by the same creator: an engine's daemon creates many at a time.
    fn is(&self, other: &HeldBy) -> bool {
        match (&self.holder, other) {
            (
                HeldBy::Container { container, state_root, pid, start, .. },
                HeldBy::Container { container: id, state_root: root, pid: number, start: time, .. },
            ) => (container, state_root, pid, start) == (id, root, number, time),
            _ => false,
        }
    }

    fn process(&self) -> Option<Process> {
        match &self.holder {
            HeldBy::Container { pid, start, .. } => Some(Process { pid: *pid, start: *start }),
            _ => None,
        }
    }
}

/// The names of waiters' files, by number.
fn tickets(listing: &[String]) -> Vec<(u64, &str)> {
    let number = |name: &str| name.strip_prefix(PREFIX)?.parse().ok();
    let mut tickets: Vec<(u64, &str)> =
        listing.iter().filter_map(|name| Some((number(name)?, name.as_str()))).collect();
    contract::order::sort(&mut tickets);
    tickets
}

/// Whether somebody waits, or died waiting.
pub(crate) fn anybody(listing: &[String]) -> bool {
    listing.iter().any(|name| name.starts_with(PREFIX))
}

/// The number behind all.
fn behind(listing: &[String]) -> u64 {
    tickets(listing).last().map_or(1, |(number, _)| number.saturating_add(1))
}

/// What is left to those who wait.
#[derive(Default)]
pub(crate) struct Aside<'w> {
    pub(crate) slots: Vec<String>,
    /// How many of them to which owner's containers.
    owners: Vec<(Option<&'w str>, usize)>,
}

impl Aside<'_> {
    /// How many of them are left to an owner's containers.
    pub(crate) fn of(&self, owner: Option<&str>) -> usize {
        self.owners.iter().filter(|(of, _)| *of == owner).map(|(_, many)| many).sum()
    }
}

/// Leaves to each what it can take, or can use of it, but to nobody what his owner may not have.
pub(crate) fn set_aside<'w>(
    inventory: &Inventory,
    others: &[Other<'_>],
    limits: &Limits,
    waiters: &'w [Waiter],
) -> Aside<'w> {
    let mut aside = Aside::default();
    for waiter in waiters {
        let owner = waiter.holder.owner();
        let party = Party::of(owner, &waiter.request);
        if !limits.owner_fits(&party, others, aside.of(owner) + party.least(others, &waiter.request)) {
            continue;
        }
        let taken = party.taken(inventory, others);
        let closed = limits.closed(inventory, others, owner, false);
        let gone = |slot: &str| taken.iter().chain(&aside.slots).any(|gone| gone == slot);
        let left: Vec<String> = match allocate_where(inventory, &gone, &waiter.request, &[], &Gpu::usable, &closed) {
            Ok(chosen) => chosen.iter().map(slot::of).collect(),
            Err(refusal) if refusal.code == Code::CapacityFull => {
                let free = candidates(inventory, &waiter.request, &closed);
                free.iter().filter(|one| one.usable()).map(One::slot).filter(|slot| !gone(slot)).collect()
            }
            // What it waits for is not there any more.
            Err(_) => Vec::new(),
        };
        aside.owners.push((owner, left.len()));
        aside.slots.extend(left);
    }
    aside
}

#[cfg(test)]
mod tests;
