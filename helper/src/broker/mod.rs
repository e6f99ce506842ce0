//! `quilt-gpu broker`: gives GPUs to containers of users without root, who cannot write the node's ledger. The kernel says who
//! asks; what they say of themselves only names their container.
//!
//! Bookkeeping, no boundary: no device filter holds such containers. Every user of the node may connect, so nothing here waits
//! for one longer than a moment, and nobody gets more than their share of it.

mod answer;
mod peer;
mod question;
mod share;
mod users;

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use contract::{Code, Refusal};
use serde_json::{Value, json};
use shim::Setup;

use answer::Admitted;
use peer::Peer;
use share::{Shares, Taken};
use users::Users;

/// How long a question may take to arrive, from the first byte to the last, and an answer to leave.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most bytes of a question: one with 256 names of GPUs is a quarter of it.
const MAX_QUESTION: usize = 64 << 10;

/// Serves until the process ends.
pub(crate) fn serve(listener: &UnixListener, setup: &Setup) -> io::Error {
    let shares = Arc::new(Mutex::new(Shares::default()));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // What one connection met says nothing of the next; what the process lacks is there again when others end.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if is_passing(&error) => {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            Err(error) => return error,
        };
        let Ok(peer) = Peer::of(&stream, &Users::read()) else { continue };
        // The configuration may have changed since the broker began.
        let setup = current(setup);
        let take = |admitted| {
            let mut shares = shares.lock().unwrap_or_else(PoisonError::into_inner);
            shares.take(peer.uid, Instant::now()).map(|()| admitted)
        };
        // Whoever may have nothing takes nobody's place.
        let admitted = match answer::admitted(&peer, &setup).and_then(take) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                refuse_at_once(&stream, &refusal);
                continue;
            }
        };
        let taken = Taken { shares: Arc::clone(&shares), uid: peer.uid };
        // A thread that cannot be had ends the connection, and gives its share back.
        let _ = std::thread::Builder::new().spawn(move || {
            attend(stream, &peer, admitted, &setup, &taken);
        });
    }
}

fn is_passing(error: &io::Error) -> bool {
    use nix::libc::{ECONNABORTED, EMFILE, ENFILE, ENOBUFS, ENOMEM, EPERM, EPROTO};
    let passing = [ECONNABORTED, EMFILE, ENFILE, ENOBUFS, ENOMEM, EPERM, EPROTO];
    error.raw_os_error().is_some_and(|number| passing.contains(&number))
}

/// Whoever may not ask, or asks too much, gets what fits into the socket's buffer, and nobody waits for them.
fn refuse_at_once(mut stream: &UnixStream, refusal: &Refusal) {
    let _ = stream.set_nonblocking(true);
    let _ = stream.write_all(told(refusal).to_string().as_bytes());
}

fn attend(mut stream: UnixStream, peer: &Peer, admitted: Admitted, setup: &Setup, taken: &Taken) {
    let answer = match question(&mut stream) {
        Ok(bytes) => answer::to(&bytes, peer, admitted, setup, taken).unwrap_or_else(|refusal| told(&refusal)),
        Err(refusal) => told(&refusal),
    };
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let _ = stream.write_all(answer.to_string().as_bytes());
}

fn told(refusal: &Refusal) -> Value {
    json!({ "refusal": refusal.to_json() })
}

/// The configuration as it is now, on the node that the broker was begun for.
fn current(setup: &Setup) -> Setup {
    let mut now = Setup::read(&setup.path);
    now.config.host = setup.config.host.clone();
    now
}

/// All that a peer says, up to its end of the connection.
fn question(stream: &mut UnixStream) -> Result<Vec<u8>, Refusal> {
    let wrong = |why: String| {
        let help = "send one JSON object, and close that side of the connection";
        Refusal::new(Code::InvalidGpuRequest, "broker-question", why, help)
    };
    let deadline = Instant::now() + PATIENCE;
    let mut bytes = Vec::new();
    let mut part = [0_u8; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Each read has what is left of the whole: who sends a byte at a time wins nothing.
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Err(wrong(format!("the question did not end within {} s", PATIENCE.as_secs())));
        }
        match stream.read(&mut part) {
            Ok(0) => return Ok(bytes),
            Ok(many) => bytes.extend_from_slice(part.get(..many).unwrap_or_default()),
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(wrong(format!("the question cannot be read: {error}"))),
        }
        if bytes.len() > MAX_QUESTION {
            return Err(wrong(format!("the question is larger than {MAX_QUESTION} bytes")));
        }
    }
}
