//! How a runtime that is not the node's root comes by GPUs: the node's broker has the ledger, and is asked over a socket. One
//! question a connection, a line of JSON each way. Decides nothing, and grants nothing by itself.
//!
//! No device filter can be had there, so nothing of this is a boundary: it is the node's record of who has which GPU.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use contract::inventory::DeviceNode;
use contract::json::{self, Node as Json};
use contract::key::Key;
use contract::read::{self, FromJson};
use contract::request::{Asked, Request};
use contract::{Code, Contract, Refusal};
use ledger::{Holder, Ledger};
use nix::sys::socket::{MsgFlags, getsockopt, send, sockopt::PeerCredentials};
use nix::unistd::{AccessFlags, access};
use node::process::Process;
use serde_json::{Value, json};

use crate::setup::Setup;

/// How long an answer may take: the broker may have to look at the node's GPUs anew.
const PATIENCE: Duration = Duration::from_secs(40);
/// How often what must be heard is said to a broker that has too much to do, and the time between.
const TURNS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);
/// Most bytes of an answer: a contract, and what is around it.
const MAX_ANSWER: u64 = 2 << 20;

/// A contract of the broker's, kept in the user's own ledger as the contract of this container.
pub(crate) fn contract(
    setup: &Setup,
    ledger: &Ledger,
    asked: &Asked,
    holder: &Holder,
) -> Result<Option<Contract>, Refusal> {
    let request = match asked {
        Asked::Nothing => return Ok(None),
        Asked::Gpus(request) => request,
        Asked::Reserved { .. } => {
            let message = "a reservation is for containers that the node's root starts";
            return Err(Refusal::new(Code::Policy, "rootless-reserved", message, "ask for GPUs by number or name"));
        }
    };
    let answer = ask(setup, &grant(request, holder))?;
    let mut contract: Contract = part(&answer, "contract")?;
    // The broker's own name for it is told apart by the user.
    contract.key = Some(holder.key.as_str().to_owned());
    match usable(&contract.nodes).and_then(|()| ledger.adopt(&contract.gpus, holder)) {
        Ok(()) => Ok(Some(contract)),
        Err(refusal) => {
            release(setup, &holder.key);
            Err(refusal)
        }
    }
}

fn grant(request: &Request, holder: &Holder) -> Value {
    json!({
        "ask": "grant", "key": holder.key.as_str(), "container": holder.container, "state_root": holder.state_root,
        "request": request,
    })
}

/// A bind of a node changes nothing about its mode, and no group can be given that the user does not have.
fn usable(nodes: &[DeviceNode]) -> Result<(), Refusal> {
    nodes.iter().try_for_each(|node| {
        access(Path::new(&node.host_path), AccessFlags::R_OK | AccessFlags::W_OK).map_err(|errno| {
            // In the C library's words: nix would bring a table of its own.
            let error = io::Error::from(errno);
            let message = format!("{} cannot be opened by the user who starts the container: {error}", node.host_path);
            let help = "have the operator put this user into the node's group, or set NVreg_DeviceFileMode";
            Refusal::new(Code::GpuUnavailable, "device-mode", message, help)
        })
    })
}

/// Tells the broker which process the container began with: its lease goes with that process.
///
/// # Errors
/// The lease is gone, or nobody answers.
pub(crate) fn started(setup: &Setup, key: &Key, init: Process) -> Result<(), String> {
    let question = json!({"ask": "started", "key": key.as_str(), "pid": init.pid, "start": init.start});
    while_busy(PAUSE, || ask(setup, &question)).map(|_| ()).map_err(|refusal| refusal.to_string())
}

/// Gives back what a container has. What nobody is told of ends with the container's process.
pub(crate) fn release(setup: &Setup, key: &Key) {
    let question = json!({"ask": "release", "key": key.as_str()});
    let _ = while_busy(PAUSE, || ask(setup, &question));
}

/// Asks again where the user's other containers, which wait for GPUs, have asked all that this one may.
fn while_busy<T>(pause: Duration, ask: impl Fn() -> Result<T, Refusal>) -> Result<T, Refusal> {
    let mut turns = 1;
    loop {
        match ask() {
            Err(refusal) if refusal.rule == "broker-busy" && turns < TURNS => turns += 1,
            answer => return answer,
        }
        std::thread::sleep(pause);
    }
}

/// One question, and the answer that is no refusal.
fn ask(setup: &Setup, question: &Value) -> Result<Vec<u8>, Refusal> {
    let socket = &setup.config.broker.socket;
    let answer = exchange(Path::new(socket), question).map_err(|error| {
        let message = format!("a user without root gets GPUs of the node's broker alone, and it is not there: {socket}: {error}");
        let help = "have the operator start it (systemctl enable --now quilt-gpu-broker.socket), or start the container as root";
        Refusal::new(Code::Policy, "rootless-no-broker", message, help)
    })?;
    let document = json::parse_data(&answer).map_err(|e| odd(&e))?;
    match document.get("refusal") {
        Some(refusal) => Err(refused(refusal)),
        None => Ok(answer),
    }
}

fn exchange(path: &Path, question: &Value) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(path)?;
    let peer = getsockopt(&stream, PeerCredentials)?.uid();
    // In a user namespace root has no number of its own; it is whoever the socket belongs to there, too.
    if peer != 0 && (node::process::in_first_user_namespace() || peer != path.metadata()?.uid()) {
        return Err(io::Error::other(format!("user {peer} listens there, must be root")));
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // Whoever is asked too much answers before it has heard the question, and ends the connection.
    let said = say(&stream, question.to_string().as_bytes());
    let mut answer = Vec::new();
    let heard = (&mut stream).take(MAX_ANSWER).read_to_end(&mut answer);
    if answer.is_empty() {
        said.and(heard)?;
    }
    Ok(answer)
}

/// No signal: this program has the engine's ways with one, which is to end.
fn say(stream: &UnixStream, mut words: &[u8]) -> io::Result<()> {
    while !words.is_empty() {
        let sent = send(stream.as_raw_fd(), words, MsgFlags::MSG_NOSIGNAL)?;
        words = words.get(sent..).unwrap_or_default();
    }
    stream.shutdown(Shutdown::Write)
}

/// A part of the answer.
fn part<T: FromJson>(answer: &[u8], key: &str) -> Result<T, Refusal> {
    let document = json::parse_data(answer).map_err(|e| odd(&e))?;
    read::field(&document, key).map_err(|e| odd(&e))
}

fn odd(error: &dyn std::fmt::Display) -> Refusal {
    Refusal::internal("broker-answer", &format_args!("the broker's answer cannot be read: {error}"))
}

/// The broker's refusal as one of ours.
fn refused(node: &Json<'_>) -> Refusal {
    let text = |key| node.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
    let code = text("code");
    let code = Code::ALL.into_iter().find(|known| known.name() == code).unwrap_or(Code::Internal);
    // One refusal ends this process.
    let rule: &'static str = text("rule").leak();
    let refusal = Refusal::new(code, rule, text("message"), text("help")).at(text("at"), text("value"));
    // The broker looked at the node itself.
    Refusal { may_be_over: false, ..refusal }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_a_busy_broker_is_asked_again_and_not_for_ever() {
        for (rule, busy, ok, asked) in [
            ("broker-busy", 0, true, 1),
            ("broker-busy", 3, true, 4),
            ("broker-busy", TURNS, false, TURNS),
            ("broker-user", 1, false, 1),
        ] {
            let turns = Cell::new(0);
            let answer = while_busy(Duration::ZERO, || {
                turns.set(turns.get() + 1);
                if turns.get() > busy { Ok(()) } else { Err(Refusal::new(Code::CapacityFull, rule, "", "")) }
            });
            assert_eq!((answer.is_ok(), turns.get()), (ok, asked), "{rule} {busy}");
        }
    }
}
