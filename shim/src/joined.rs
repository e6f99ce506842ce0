//! Namespaces that a container joins instead of having its own: who shares one with a container that has a GPU takes what that
//! has open (ptrace, `pidfd_getfd`), or becomes its root. The engine of a pod joins the containers of one pod, and no others.

use std::path::Path;

use contract::config::Profile;
use contract::json::Node;
use contract::key::Key;
use contract::{Code, Refusal};
use ledger::Ledger;

use crate::setup::Setup;
use crate::words;

/// What one container shares, and with whom.
struct Joined<'a> {
    setup: &'a Setup,
    key: &'a Key,
    /// Its pod, as the engine attests it.
    pod: Option<&'a str>,
    gpu_asked: bool,
}

/// Refuses a namespace of a container that has a GPU, and to one that asks for a GPU any that others have already. Asks nobody
/// anything where none is joined.
pub(crate) fn judge(
    (setup, key): (&Setup, &Key),
    ledger: Option<&Ledger>,
    spec: &Node<'_>,
    bundle: &Path,
    gpu_asked: bool,
) -> Option<Refusal> {
    let joined = Joined { setup, key, pod: words::pod_of(spec, bundle), gpu_asked };
    named(spec).find_map(|(index, kind, path)| {
        let why = joined.wrong_with(ledger, kind, path)?;
        let help = match kind {
            "pid" => {
                "give it a pid namespace of its own (docker: leave --pid out), or put both into one pod of Kubernetes"
            }
            _ => "leave the path out, so that the container gets its own",
        };
        let refusal = Refusal::new(Code::UnsafeSpec, "ns-path", why, help);
        Some(refusal.at(format!("/linux/namespaces/{index}/path"), path))
    })
}

/// The namespaces that the spec names by a path: position, kind and path.
fn named<'n>(spec: &'n Node<'_>) -> impl Iterator<Item = (usize, &'n str, &'n str)> {
    let list = spec.path(&["linux", "namespaces"]).map(Node::items).unwrap_or_default();
    let text = |namespace: &'n Node<'_>, key| namespace.get(key).and_then(Node::as_str).unwrap_or_default();
    let all = list.iter().enumerate().map(move |(index, one)| (index, text(one, "type"), text(one, "path")));
    all.filter(|(_, _, path)| !path.is_empty())
}

/// Whether a path may lead to another namespace by the time the low-level runtime follows it: one that is not a process's own, as
/// engines name it.
pub(crate) fn may_change(spec: &Node<'_>) -> bool {
    let of_a_process = |path: &str| {
        let rest = path.strip_prefix("/proc/").and_then(|rest| rest.split_once("/ns/"));
        rest.is_some_and(|(pid, file)| pid.bytes().all(|b| b.is_ascii_digit()) && !file.contains('/'))
    };
    named(spec).any(|(_, kind, path)| matches!(kind, "pid" | "user" | "ipc") && !of_a_process(path))
}

/// Why a container that was made may not be in the namespaces that it is in by now, by its first process.
pub(crate) fn of_made(
    (setup, key): (&Setup, &Key),
    spec: &Node<'_>,
    bundle: &Path,
    gpu_asked: bool,
    pid: u32,
) -> Option<String> {
    let ledger = Ledger::open_existing(setup.state_dir());
    let joined = Joined { setup, key, pod: words::pod_of(spec, bundle), gpu_asked };
    named(spec).find_map(|(_, kind, _)| joined.wrong_with(ledger.as_ref(), kind, &format!("/proc/{pid}/ns/{kind}")))
}

impl Joined<'_> {
    fn wrong_with(&self, ledger: Option<&Ledger>, kind: &str, path: &str) -> Option<String> {
        let hardened = self.setup.config.policy.profile == Profile::Hardened;
        let reaches = match kind {
            "pid" | "user" => true,
            // No device is taken through it: what one has there of another's GPU, one has from a GPU.
            "ipc" => self.gpu_asked || hardened,
            _ => false,
        };
        if !reaches {
            return None;
        }
        let there = node::process::namespace(path)?;
        let is = |pid: &str| node::process::namespace(&format!("/proc/{pid}/ns/{kind}")) == Some(there);
        if is("self") {
            let hosts = format!("the container would join the host's {kind} namespace by its path");
            return (hardened && kind == "pid").then_some(hosts);
        }
        if self.gpu_asked && kind != "ipc" && self.pod.is_none() {
            return Some(format!(
                "whoever is in this {kind} namespace could take the GPU from the container that asks for it"
            ));
        }
        let holders = ledger.map(|ledger| ledger.at_work(self.key)).unwrap_or_default();
        let foreign = |pod: Option<&str>| self.pod.is_none() || pod != self.pod;
        let held = holders.iter().any(|(pid, pod)| foreign(pod.as_ref().map(|pod| &*pod.uid)) && is(&pid.to_string()));
        held.then(|| {
            format!("this is the {kind} namespace of another container, which has a GPU that could be taken there")
        })
    }
}
