//! GPUs reserved for a container that does not exist yet: a token, a time limit, one use. (For a container of a pod: as
//! many uses as it has restarts, see `pods`.)
//!
//! The token's file under `reservations/` is the promise: it is written last and removed first, so a lease `@r-<token>`
//! without it promises nothing and is reclaimed. Between two steps a GPU may have both the reservation's lease and the
//! container's, never none and never two holders who could both start.

use std::cell::OnceCell;

use contract::inventory::Inventory;
use contract::request::Request;
use contract::{Code, Contract, Granted, Refusal, SCHEMA, read, record};
use serde::Serialize;

use crate::LedgerError;
use crate::documents::{MAX_CONTRACT, trusted, untrusted};
use crate::files::{self, Locked};
use crate::lease::{HeldBy, Name, PodContainer};
use crate::rests;
use crate::sharing::Party;
use crate::slot;
use crate::store::{Holder, Ledger, Taker};

/// What a reservation gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// 128 random bits in hexadecimal: whoever brings them gets the GPUs.
    pub token: String,
    /// What that container will get; its key is still open.
    pub contract: Contract,
    /// The only container that may bring it.
    pub pod: Option<PodContainer>,
}

/// The file of a token.
#[derive(Serialize)]
pub(crate) struct Promise {
    version: u32,
    boot_id: String,
    /// In seconds since the boot.
    until: u64,
    pub(crate) pod: Option<PodContainer>,
    pub(crate) contract: Contract,
}

record!(Promise { version, boot_id, until, pod, contract });

impl Promise {
    /// The contract, for the container it was promised to.
    pub(crate) fn for_container(self, pod: Option<&PodContainer>) -> Result<Contract, Refusal> {
        if self.pod.is_none() || self.pod.as_ref() == pod {
            return Ok(self.contract);
        }
        Err(untrusted("reservation-binding", "this reservation is for another container"))
    }
}

pub(crate) fn tag(token: &str) -> String {
    format!("r-{token}")
}

fn promise_path(token: &str) -> String {
    format!("reservations/{token}.json")
}

/// For whom GPUs are reserved, and how long.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reserving<'a> {
    /// How long the token can be used, in seconds.
    pub seconds: u64,
    /// The only container of a pod that may use it.
    pub pod: Option<&'a PodContainer>,
    /// Whose the container will be, by the word of who reserves. An engine that attests another refuses it.
    pub owner: Option<&'a str>,
    /// The contract's id, when that was given.
    pub id: Option<&'a str>,
}

impl Ledger {
    /// Reserves GPUs, for anybody or for one container of a pod. `build` makes the contract (without a key)
    /// from what was granted. Who reserves the same for the same container of a pod again gets the same, for as long again;
    /// and so does who names a contract's `id` of its own again.
    ///
    /// # Errors
    /// As [`Ledger::grant`], or what `build` refuses, or `INVALID_GPU_REQUEST` when another contract has the id that it
    /// gave, or the container has a reservation for something else; nothing new is left reserved then.
    pub fn reserve(
        &self,
        inventory: &Inventory,
        request: &Request,
        whose: &Reserving<'_>,
        build: &mut dyn FnMut(&[Granted]) -> Result<Contract, Refusal>,
    ) -> Result<Reserved, Refusal> {
        let &Reserving { seconds, pod, owner, id } = whose;
        let internal = |e: &dyn std::fmt::Display| Refusal::internal("ledger", e);
        let token = node::random_hex128().map_err(|e| internal(&e))?;
        let until = self.machine.boot_seconds().map_err(|e| internal(&e))?.saturating_add(seconds);
        let boot_id = self.machine.boot_id().map_err(|e| internal(&e))?;
        let locked = self.lock()?;
        if let Some(pod) = pod
            && let Some(earlier) = self.reserved_for(&locked, pod, request)?
        {
            return Ok(earlier);
        }
        if let Some(earlier) = id.map_or(Ok(None), |id| self.reserved_as(&locked, id, pod, request, until))? {
            return Ok(earlier);
        }
        let owner = owner.map(str::to_owned);
        let holder = HeldBy::Reservation { until, pod: pod.cloned(), seconds: Some(seconds), owner };
        let open = self.open_to(pod, request)?;
        let tag = tag(&token);
        let taker =
            Taker { tag: &tag, memory: &tag, holder: &holder, history: OnceCell::new(), still: &rests::compared };
        let gpus = self.lease_out(&locked, self.listing()?, &open, inventory, request, &taker)?;
        let promised = build(&gpus).and_then(|contract| {
            self.refuse_known(&contract.id)?;
            let promise = Promise { version: 1, boot_id, until, pod: pod.cloned(), contract };
            let bytes = serde_json::to_vec(&promise).map_err(|e| internal(&e))?;
            locked.place(&promise_path(&token), &bytes)?;
            Ok(promise.contract)
        });
        if promised.is_err() {
            self.drop_reserved(&locked, &token)?;
        }
        Ok(Reserved { token, contract: promised?, pod: pod.cloned() })
    }

    /// The reservation of this contract, from now on for as long again.
    fn reserved_as(
        &self,
        locked: &Locked,
        id: &str,
        pod: Option<&PodContainer>,
        request: &Request,
        until: u64,
    ) -> Result<Option<Reserved>, Refusal> {
        let earlier = self.reservations()?.into_iter().find(|reserved| reserved.contract.id == id);
        let Some(earlier) = earlier else { return Ok(None) };
        if earlier.pod.as_ref() != pod || !request.is_same(&earlier.contract.request) {
            let message = "a contract with this id is reserved for another request";
            let help = "repeat that request, or give another id";
            return Err(Refusal::new(Code::InvalidGpuRequest, "contract-id", message, help).at("", id));
        }
        let tag = tag(&earlier.token);
        for name in self.names()?.into_iter().filter(|name| name.tag == tag) {
            let Ok(mut lease) = self.read(&name) else { continue };
            if let HeldBy::Reservation { until: end, .. } = &mut lease.holder {
                *end = until;
                self.place_lease(locked, &tag, &lease)?;
            }
        }
        // Last: while the promise ends earlier than its leases nothing is lost.
        let promise = Promise { until, ..self.promise(&earlier.token)? };
        let bytes = serde_json::to_vec(&promise).map_err(|e| Refusal::internal("ledger", &e))?;
        locked.place(&promise_path(&earlier.token), &bytes)?;
        Ok(Some(earlier))
    }

    /// One id names one contract, reserved or in force.
    fn refuse_known(&self, id: &str) -> Result<(), Refusal> {
        let in_force = self.contracts()?.into_iter().filter_map(|(_, contract)| contract.ok());
        let reserved = self.reservations()?.into_iter().map(|reserved| reserved.contract);
        if !in_force.chain(reserved).any(|contract| contract.id == id) {
            return Ok(());
        }
        let help = "give another id, or none for a random one";
        let message = "a contract with this id is reserved or in force";
        Err(Refusal::new(Code::InvalidGpuRequest, "contract-id", message, help).at("", id))
    }

    /// The reservations that can still be redeemed, by token. A token is a secret: whoever has it gets the GPUs.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn reservations(&self) -> Result<Vec<Reserved>, LedgerError> {
        let mut tokens = files::names(&self.path("reservations"))?;
        contract::order::sort(&mut tokens);
        let reserved = |token: &str| {
            let Promise { contract, pod, .. } = self.promise(token).ok()?;
            Some(Reserved { token: token.to_owned(), contract, pod })
        };
        Ok(tokens.iter().filter_map(|name| reserved(name.strip_suffix(".json")?)).collect())
    }

    /// Turns a reservation into the container's own leases and gives its contract, now bound to the container. Once; but one
    /// for a container of a pod stays, and has the GPUs again when this one ends.
    ///
    /// # Errors
    /// `CONTRACT_UNTRUSTED` when the token is unknown, used, over its time, from another boot, or another container's;
    /// `CAPACITY_FULL` when the pod's container before this one still has the GPUs; `POLICY` when its owner has too many
    /// then; `UNSAFE_SPEC` when a container of this
    /// key is still there; `INTERNAL` when the state folder fails.
    pub fn redeem(&self, token: &str, holder: &Holder) -> Result<Contract, Refusal> {
        let locked = self.lock()?;
        self.refuse_living(&self.names()?, holder)?;
        let promise = self.promise(token)?;
        let key = holder.key.as_str();
        let (boot_id, pod) = (promise.boot_id.clone(), promise.pod.clone());
        let mut contract = promise.for_container(holder.pod.as_ref())?;
        let leases = self.reserved(&locked, token, key, &contract, pod.as_ref())?;
        let holder = &self.holder_of(token, &leases, holder)?;
        self.owner_may_redeem(&locked, &leases, &contract, holder)?;
        let own: Vec<&Name> = leases
            .iter()
            .filter(|lease| lease.tag == key && !contract.gpus.iter().any(|gpu| slot::of(gpu) == lease.slot))
            .collect();
        self.drop_contract(&locked, &holder.key)?;
        for lease in own {
            // Of an earlier create that died, and not part of this contract.
            locked.remove(&Name::path(&lease.slot, key))?;
        }
        // Until the next step has happened, a crash leaves the token usable, and leases here that name a dead creator.
        self.write_leases(&locked, &contract.gpus, key, &self.held_by(holder), &boot_id)?;
        contract.key = Some(key.to_owned());
        if pod.is_some() {
            return Ok(contract);
        }
        // From here on the token is used up.
        if let Err(error) = locked.remove(&promise_path(token)) {
            for gpu in &contract.gpus {
                let _ = locked.remove(&Name::path(&slot::of(gpu), key));
            }
            return Err(error.into());
        }
        for gpu in &contract.gpus {
            // One that stays promises nothing any more, and is reclaimed.
            let _ = locked.remove(&Name::path(&slot::of(gpu), &tag(token)));
        }
        Ok(contract)
    }

    /// The container with its owner: the engine's word, or that of who reserved, and both must agree.
    fn holder_of(&self, token: &str, leases: &[Name], holder: &Holder) -> Result<Holder, Refusal> {
        let own = leases.iter().filter(|lease| lease.token() == Some(token)).filter_map(|lease| self.read(lease).ok());
        let said = own.map(|lease| lease.holder).find_map(|holder| holder.owner().map(str::to_owned));
        if said.is_some() && holder.owner.is_some() && said != holder.owner {
            let message = "the contract is reserved for another owner's container than this one is";
            let help = "use the token that was prepared for this container";
            return Err(Refusal::new(Code::ContractUntrusted, "reservation-owner", message, help));
        }
        Ok(Holder { owner: holder.owner.clone().or(said), ..holder.clone() })
    }

    /// Refuses more than the container's owner may have: whoever reserved did not know whose it would be.
    fn owner_may_redeem(
        &self,
        locked: &Locked,
        leases: &[Name],
        contract: &Contract,
        holder: &Holder,
    ) -> Result<(), Refusal> {
        let party = Party::of(holder.owner.as_deref(), &contract.request);
        let may = |leases: &[Name]| {
            let others = self.others(leases, holder.key.as_str());
            self.limits.owner_may(&party, &others, party.more(&others, &contract.gpus), &contract.request)
        };
        match may(leases) {
            Err(_) if self.reclaim_locked(locked)? > 0 => may(&self.names()?),
            other => other,
        }
    }

    /// Gives a reservation up. Says which slots became free.
    ///
    /// # Errors
    /// Something cannot be removed; a second call mends it.
    pub fn cancel(&self, token: &str) -> Result<Vec<String>, LedgerError> {
        if !is_token(token) {
            return Ok(Vec::new());
        }
        self.drop_reserved(&self.lock()?, token)
    }

    pub(crate) fn drop_reserved(&self, locked: &Locked, token: &str) -> Result<Vec<String>, LedgerError> {
        locked.remove(&promise_path(token))?;
        let (mine, others): (Vec<Name>, Vec<Name>) =
            self.names()?.into_iter().partition(|lease| lease.token() == Some(token));
        mine.iter().try_for_each(|lease| locked.remove(&Name::path(&lease.slot, &lease.tag)).map(|_| ()))?;
        let free = |slot: &String| !others.iter().any(|lease| lease.slot == *slot);
        Ok(mine.into_iter().map(|lease| lease.slot).filter(free).collect())
    }

    /// The promise behind a token, if it still holds.
    pub(crate) fn promise(&self, token: &str) -> Result<Promise, Refusal> {
        let unknown = || {
            untrusted(
                "reservation-unknown",
                "no reservation has this token: it was used, given up, or its time is over",
            )
        };
        if !is_token(token) {
            return Err(unknown());
        }
        let path = self.path(&promise_path(token));
        let bytes = trusted(&path, MAX_CONTRACT)?.ok_or_else(unknown)?;
        let promise: Promise = read::document(&bytes)
            .map_err(|e| untrusted("contract-schema", format!("a reservation cannot be read: {e}")))?;
        if promise.version != 1 || promise.contract.schema != SCHEMA {
            return Err(untrusted("contract-schema", "a reservation was written by another version"));
        }
        let now = self.machine.boot_seconds().map_err(|e| Refusal::internal("ledger", &e))?;
        let boot = self.machine.boot_id().map_err(|e| Refusal::internal("ledger", &e))?;
        let over = match promise.pod {
            None => now >= promise.until,
            // Its leases were prolonged since.
            Some(_) => !self.is_kept(token),
        };
        if promise.boot_id != boot || over {
            return Err(untrusted("reservation-expired", "the reservation's time is over"));
        }
        Ok(promise)
    }

    /// All leases, after making sure that the reservation has all its GPUs, and nobody else has one of them.
    fn reserved(
        &self,
        locked: &Locked,
        token: &str,
        key: &str,
        contract: &Contract,
        pod: Option<&PodContainer>,
    ) -> Result<Vec<Name>, Refusal> {
        let mine = tag(token);
        let disputed = |leases: &[Name]| {
            leases.iter().any(|lease| {
                lease.tag != mine
                    && lease.tag != key
                    && contract.gpus.iter().any(|gpu| slot::exclude(&slot::of(gpu), &lease.slot))
                    && !pod.is_some_and(|pod| self.is_of_pod(lease, &pod.uid))
            })
        };
        let mut leases = self.names()?;
        if disputed(&leases) {
            // Another container began to redeem the same token. If it died before the token was used up, it is out of the way now.
            self.reclaim_locked(locked)?;
            leases = self.names()?;
        }
        let whole =
            contract.gpus.iter().all(|gpu| leases.iter().any(|lease| lease.tag == mine && lease.slot == slot::of(gpu)));
        if whole && !disputed(&leases) {
            Ok(leases)
        } else if whole && pod.is_some() {
            Err(self.container_before())
        } else {
            Err(untrusted("reservation-replay", "the reservation's GPUs are not its own any more"))
        }
    }

    /// Whether a token can still be used, as far as files tell.
    pub(crate) fn is_pending(&self, token: &str) -> bool {
        is_token(token) && self.path(&promise_path(token)).exists()
    }

    /// Removes promises whose leases are gone.
    pub(crate) fn sweep_reservations(&self, locked: &Locked) -> Result<(), LedgerError> {
        let promises = files::names(&self.path("reservations"))?;
        if promises.is_empty() {
            return Ok(());
        }
        let leases = self.names()?;
        for token in promises.iter().filter_map(|name| name.strip_suffix(".json")) {
            if !leases.iter().any(|lease| lease.token() == Some(token)) {
                locked.remove(&promise_path(token))?;
            }
        }
        Ok(())
    }
}

/// A token becomes part of a file's name.
fn is_token(token: &str) -> bool {
    contract::key::Key::parse(token).is_some()
}

#[cfg(test)]
mod tests;
