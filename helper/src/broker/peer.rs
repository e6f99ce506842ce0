//! Who is at the other end of a connection: the kernel's word, taken when they connected.

use std::io;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use node::process::{self, Process};

/// A user, and the process that connected.
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// `None` when it has ended already, or is not among the processes that are seen from here, as one of a container is.
    pub(crate) process: Option<Process>,
}

impl Peer {
    /// # Errors
    /// The kernel tells nothing.
    pub(crate) fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = getsockopt(stream, PeerCredentials)?;
        let found = u32::try_from(credentials.pid()).ok().and_then(process::of);
        let process = found.filter(|found| process::mounts_among_ours(found.pid).is_some());
        Ok(Self { uid: credentials.uid(), process })
    }
}
