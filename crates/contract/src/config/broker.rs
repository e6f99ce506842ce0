//! `[broker]`: where runtimes of users without root ask for GPUs, and who of them gets any.

use crate::settings;

/// `[broker]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// The socket of `quilt-gpu broker`.
    pub socket: String,
    /// Owners that may have GPUs through it: `uid:1000`, a name of `[[owners]]`, or `*` for everybody.
    pub allow: Vec<String>,
}

impl Default for Broker {
    fn default() -> Self {
        Self { socket: "/run/quilt-gpu-broker.sock".into(), allow: Vec::new() }
    }
}

settings!(Broker { socket, allow });

impl Broker {
    /// Whether this owner may have GPUs through the broker.
    #[must_use]
    pub fn lets(&self, owner: &str) -> bool {
        self.allow.iter().any(|one| one == owner || one == "*")
    }
}
