//! Who has which GPU: allocation, its record on disk, and the audit log.
//!
//! | module | question | touches |
//! | --- | --- | --- |
//! | [`mod@allocate`] | which GPUs answer this request | nothing |
//! | `sharing`, `limits` | which leases and which rules of the operator are in whose way | nothing |
//! | [`mod@draft`] | what does a container with these GPUs get | nothing |
//! | `lease` | what stands in a lease, and does its holder still live | the machine, through [`Liveness`] |
//! | [`mod@slot`] | what does a lease take, and what does that exclude | nothing |
//! | `numbers` | what do the names of leases tell without their content | the state folder |
//! | `rests` | which MIG instances does an answer rest on | nothing |
//! | `store` | grant | the state folder |
//! | `waiting` | who waits for GPUs, in which order | the state folder |
//! | `ending` | release, reclaim | the state folder |
//! | `forced` | release by the operator, whatever still runs | the state folder |
//! | `reservation` | GPUs for a container that does not exist yet | the state folder |
//! | `pods` | the same for a container of a pod and its restarts | the state folder |
//! | `documents` | contracts, original specs, who had what before | the state folder |
//! | `query` | what is known of a key | the state folder, reading |
//! | [`audit`] | what was decided, in a chain of digests | the log folder |
//!
//! Nothing here writes anywhere else, and nothing waits for capacity while it holds a lock.
//!
//! The state folder, all of it root's alone:
//!
//! | path | content |
//! | --- | --- |
//! | `lock` | held (`flock`) by whoever changes anything below |
//! | `lock.new` | a file being written; a crash leaves at most this one, and the next write takes it over |
//! | `leases/<slot>@<key>` | this holder has this GPU, or this part of it |
//! | `leases/<slot>@r-<token>` | this GPU waits for whoever brings the token |
//! | `leases/<slot>@d-<key>` | this GPU drains: its container is deleted, and processes of it are left |
//! | `leases/numbers-<digest>` | the device numbers in all leases are those of this inventory |
//! | `leases/wait-<number>` | this process waits for GPUs; lower numbers came first |
//! | `reservations/<token>.json` | what the token stands for |
//! | `contracts/<key>.json` | what the container gets |
//! | `originals/<key>` | the spec before our edits, and what we made of it |
//! | `history` | which GPUs a key had last, newest at the end |
//!
//! A lease is written first and removed last, so whatever else a crash leaves behind is found through it.

pub mod allocate;
pub mod audit;
mod documents;
pub mod draft;
mod ending;
mod files;
mod forced;
mod lease;
mod limits;
mod liveness;
mod numbers;
mod pods;
mod query;
mod reservation;
mod rests;
mod sharing;
pub mod slot;
mod store;
mod waiting;

pub use allocate::{allocate, in_order};
pub use documents::{Filed, Original};
pub use draft::{Recipient, draft};
pub use ending::{LeaseStatus, Reclaimed};
pub use files::read as read_plain;
pub use forced::Forced;
pub use lease::{HeldBy, Lease, Made, PodContainer};
pub use liveness::{Liveness, Machine};
pub use query::cgroup_refusal;
pub use reservation::{Reserved, Reserving};
pub use rests::{Still, compared};
pub use store::{Holder, Ledger, named_key, users_root};
pub use waiting::{Mark, Place, Waiter};

use contract::Refusal;

/// Something about the ledger's own files that was attempted and failed: what, where, why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerError(String);

impl LedgerError {
    fn new(attempt: &str, path: &std::path::Path, cause: &dyn std::fmt::Display) -> Self {
        Self(format!("cannot {attempt} {}: {cause}", path.display()))
    }
}

impl std::fmt::Display for LedgerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LedgerError {}

impl From<LedgerError> for Refusal {
    fn from(error: LedgerError) -> Self {
        Self::internal("ledger", &error)
    }
}

#[cfg(test)]
mod testing;
