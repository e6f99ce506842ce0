//! Who is at the other end of a connection: the kernel's word, taken when they connected.

use std::io;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use node::process::{self, Process};

use super::users::Users;

/// A user, and the process that connected.
pub(crate) struct Peer {
    /// The user, also of who runs with one of their subordinate ids.
    pub(crate) uid: u32,
    /// The user has an account on the node.
    pub(crate) is_account: bool,
    /// `None` when it has ended already, or is not among the processes that are seen from here, as one of a container is.
    pub(crate) process: Option<Process>,
}

impl Peer {
    /// # Errors
    /// The kernel tells nothing.
    pub(crate) fn of(stream: &UnixStream, users: &Users) -> io::Result<Self> {
        let credentials = getsockopt(stream, PeerCredentials)?;
        let found = u32::try_from(credentials.pid()).ok().and_then(process::of);
        let process = found.filter(|found| process::mounts_among_ours(found.pid).is_some());
        let (uid, is_account) = users.of(credentials.uid());
        Ok(Self { uid, is_account, process })
    }
}
