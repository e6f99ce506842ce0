//! Reservations for a container of a pod: they serve every restart of it while the pod lives.
//!
//! Such a reservation keeps its own leases beside those of the container that uses it, so between two containers the GPU
//! stays the pod's. Containers of one pod may have reservations for the same GPU, as kubelet gives an init container's
//! devices on to the next; the container's own lease sees to it that they have it one after the other. When the pod is
//! gone nobody tells us: its agent releases, or the time after its last container runs out.

use contract::request::Request;
use contract::{Code, Refusal};

use crate::LedgerError;
use crate::files::Locked;
use crate::lease::{HeldBy, Lease, Name, PodContainer, Standing};
use crate::reservation::Reserved;
use crate::store::Ledger;

impl Ledger {
    /// Gives up all reservations of a pod. Says which slots became free; those that a container of it has
    /// become free with that container.
    ///
    /// # Errors
    /// Something cannot be removed; a second call mends it.
    pub fn cancel_pod(&self, uid: &str) -> Result<Vec<String>, LedgerError> {
        let locked = self.lock()?;
        let mut free = Vec::new();
        for lease in self.names()?.iter().filter(|lease| self.is_of_pod(lease, uid)) {
            // The second lease of a token finds nothing left.
            free.extend(self.drop_reserved(&locked, lease.token().unwrap_or_default())?);
        }
        Ok(free)
    }

    /// The reservation that this container of a pod has already, for as long again.
    pub(crate) fn reserved_for(
        &self,
        locked: &Locked,
        pod: &PodContainer,
        request: &Request,
    ) -> Result<Option<Reserved>, Refusal> {
        let names = self.names()?;
        let leases: Vec<(&Name, Lease)> = names
            .iter()
            .filter_map(|name| Some((name, self.read(name).ok()?)))
            .filter(|(_, lease)| matches!(&lease.holder, HeldBy::Reservation { pod: Some(of), .. } if of == pod))
            .collect();
        let Some(token) = leases.first().and_then(|(name, _)| name.token()) else { return Ok(None) };
        let Ok(promise) = self.promise(token) else {
            self.drop_reserved(locked, token)?;
            return Ok(None);
        };
        if !request.is_same(&promise.contract.request) {
            let message = format!("a reservation {pod} is there, for something else");
            let help = "release it first: `quilt-gpu lease release --token`, or `--pod` for all of the pod's";
            return Err(Refusal::new(Code::InvalidGpuRequest, "reservation-other", message, help));
        }
        let now = self.machine.boot_seconds().map_err(|e| Refusal::internal("ledger", &e))?;
        leases.into_iter().try_for_each(|(name, lease)| self.prolong(locked, lease, &name.tag, now))?;
        Ok(Some(Reserved { token: token.to_owned(), contract: promise.contract, pod: Some(pod.clone()) }))
    }

    /// Lets the time of a pod's reservation begin now.
    pub(crate) fn prolong(&self, locked: &Locked, mut lease: Lease, tag: &str, now: u64) -> Result<(), LedgerError> {
        if let HeldBy::Reservation { until, pod: Some(_), seconds: Some(seconds), .. } = &mut lease.holder {
            *until = now.saturating_add(*seconds);
            self.place_lease(locked, tag, &lease)?;
        }
        Ok(())
    }

    /// Whether a token's leases hold, all of them.
    pub(crate) fn is_kept(&self, token: &str) -> bool {
        let names = self.names().unwrap_or_default();
        let mut own = names.iter().filter(|name| name.token() == Some(token)).peekable();
        own.peek().is_some() && own.all(|name| matches!(self.judge(name, &names), (Some(_), Standing::Held(_))))
    }

    /// Whether a lease is a reservation for this pod.
    pub(crate) fn is_of_pod(&self, name: &Name, uid: &str) -> bool {
        let of = |lease: Lease| matches!(lease.holder, HeldBy::Reservation { pod: Some(pod), .. } if pod.uid == uid);
        name.token().is_some() && self.read(name).is_ok_and(of)
    }

    /// The slots that are open to a pod's container although they are leased, when it is named GPUs: its
    /// pod's.
    pub(crate) fn open_to(&self, pod: Option<&PodContainer>, request: &Request) -> Result<Vec<String>, LedgerError> {
        let Some(pod) = pod.filter(|_| !request.ids.is_empty()) else { return Ok(Vec::new()) };
        let names = self.names()?;
        Ok(names.into_iter().filter(|lease| self.is_of_pod(lease, &pod.uid)).map(|lease| lease.slot).collect())
    }

    /// The refusal for a restart that came too early.
    pub(crate) fn container_before(&self) -> Refusal {
        let message = "another container of this pod still has the GPUs that are reserved for this one";
        Refusal::new(Code::CapacityFull, "reservation-in-use", message, "try again when that container has ended")
    }
}

#[cfg(test)]
mod tests;
