//! Running containers against what was decided about them, long after they were made: for operators, never on an engine's way.
//!
//! The same judgement and the same look into the container as at its create, by what lies in the ledger now; what the audit log
//! recorded tells whether that is still the same. A container may end at any moment: what differs in one that is gone by then
//! says nothing. Changes nothing.

use std::path::Path;

use contract::json::{self, Node as Json};
use contract::key::{Key, sha256};
use contract::{Contract, Refusal};
use ledger::{HeldBy, Ledger, Original, PodContainer};
use node::Node;
use node::process::Process;

use crate::create::numbers;
use crate::decide::decide;
use crate::fallback;
use crate::grant::{read_inventory, trusted};
use crate::injected::Judged;
use crate::lowlevel::{self, Seen};
use crate::made;
use crate::precreate::wrote;
use crate::setup::Setup;
use crate::verify::{Created, Wrong};

/// What the audit log says of the container that a key stands for now.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    /// Its id.
    pub container: String,
    /// The low-level runtime's folder of states.
    pub state_root: String,
    /// The digest of its contract.
    pub contract_digest: Option<String>,
}

/// One container, looked at.
#[derive(Debug, Clone)]
pub struct Looked {
    /// Its key.
    pub key: Key,
    /// Its id, where lease or log tell it.
    pub container: String,
    /// Its place in a pod.
    pub pod: Option<PodContainer>,
    /// The names of the GPUs that its contract grants.
    pub gpus: Vec<String>,
    /// What was found.
    pub state: State,
}

/// How a container stands to what was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// As decided.
    Holds,
    /// Not as decided.
    Drift(Vec<Difference>),
    /// It does not run, or not any more.
    Gone,
    /// It cannot be told.
    Unknown(String),
}

/// Something that is not as it was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Where: `contract`, `lease`, `node`, `spec`, `policy` or `view`.
    pub what: &'static str,
    /// What.
    pub message: String,
}

/// Looks at every container that the ledger knows a contract or a changed spec of.
///
/// # Errors
/// The ledger cannot be read.
pub fn look(setup: &Setup, recorded: &dyn Fn(&Key) -> Option<Recorded>) -> Result<Vec<Looked>, ledger::LedgerError> {
    let Some(ledger) = Ledger::open_existing(setup.state_dir()) else { return Ok(Vec::new()) };
    let keys = ledger.keys()?;
    Ok(keys.into_iter().map(|key| one(setup, &ledger, &key, recorded(&key).unwrap_or_default())).collect())
}

fn one(setup: &Setup, ledger: &Ledger, key: &Key, recorded: Recorded) -> Looked {
    let holder = ledger.holder(key);
    let container = holder.as_ref().map_or(recorded.container.clone(), |holder| holder.name().to_owned());
    let pod = holder.as_ref().and_then(HeldBy::pod).cloned();
    let contract = ledger.contract(key);
    let gpus = contract.iter().flatten().flat_map(|contract| &contract.gpus).map(contract::Granted::name).collect();
    let looked = |state| Looked { key: key.clone(), container, pod, gpus, state };
    if holder.as_ref().is_some_and(HeldBy::is_rootless) {
        let why =
            "it is the container of a user without root: no device filter holds it, and the node keeps no spec of it";
        return looked(State::Unknown(why.to_owned()));
    }
    let init = match first_process(holder.as_ref(), &recorded) {
        Ok(Some(init)) => init,
        Ok(None) => return looked(State::Gone),
        Err(why) => return looked(State::Unknown(why)),
    };
    let subject = Subject { setup, ledger, key, init, recorded: &recorded };
    let told = subject.differences(contract);
    // Whatever was missing in a container that ended meanwhile was missing because it ended.
    looked(match told {
        _ if !node::process::is_alive(init.pid, init.start) || !ledger.knows(key) => State::Gone,
        (list, _) if !list.is_empty() => State::Drift(list),
        (_, Some(why)) => State::Unknown(why),
        _ => State::Holds,
    })
}

/// The container's first process, by its lease or else by the low-level runtime's state; `None` when there is none.
fn first_process(holder: Option<&HeldBy>, recorded: &Recorded) -> Result<Option<Process>, String> {
    match holder {
        Some(HeldBy::Container { made: Some(made), .. }) => {
            let alive = |(pid, start)| node::process::is_alive(pid, start).then_some(Process { pid, start });
            match made.pid_namespace == node::process::namespaces().0 {
                true => Ok(made.init.and_then(alive)),
                false => {
                    Err(format!("it was made in pid namespace {}, and is seen only from there", made.pid_namespace))
                }
            }
        }
        Some(_) => Ok(None),
        None if recorded.container.is_empty() => Ok(None),
        None => {
            let folder = Path::new(&recorded.state_root).join(&recorded.container);
            Ok(lowlevel::first_process(&folder).and_then(node::process::of))
        }
    }
}

/// A container that runs.
struct Subject<'a> {
    setup: &'a Setup,
    ledger: &'a Ledger,
    key: &'a Key,
    init: Process,
    recorded: &'a Recorded,
}

impl Subject<'_> {
    /// What differs, and why not everything could be told.
    fn differences(&self, contract: Result<Option<Contract>, Refusal>) -> (Vec<Difference>, Option<String>) {
        let mut list = Vec::new();
        let mut add = |what, message: String| list.push(Difference { what, message });
        let contract = contract.unwrap_or_else(|refusal| {
            add("contract", refusal.to_string());
            None
        });
        if let Some(contract) = &contract {
            if self.recorded.contract_digest.as_ref().is_some_and(|known| *known != digest(contract)) {
                add("contract", "it is not the contract that the audit log knows: it was changed since".to_owned());
            }
            let held = self.ledger.holdings(self.key);
            for gpu in contract.gpus.iter().filter(|gpu| !held.iter().any(|held| held.pci == gpu.pci)) {
                add("lease", format!("no lease says that {} is this container's", gpu.name()));
            }
            if let Err(refusal) = trusted(contract, self.setup) {
                add("node", refusal.to_string());
            }
        }
        let Some(original) = self.ledger.original(self.key) else {
            add("spec", "the spec as the engine wrote it is not kept any more, or cannot be trusted".to_owned());
            return (list, None);
        };
        let written = match std::fs::read(&original.config_path) {
            Ok(bytes) if wrote(&original, &bytes) => bytes,
            Ok(_) => {
                add("spec", format!("{} is not what was written for this container", original.config_path));
                Vec::new()
            }
            Err(error) => {
                add("spec", format!("{} cannot be read: {error}", original.config_path));
                Vec::new()
            }
        };
        let mut unknown = None;
        match self.view(contract.as_ref(), &original, &written) {
            Ok(()) => {}
            Err(Ok(Wrong::Unknown(why))) => unknown = Some(why),
            Err(Ok(wrong)) => add("view", wrong.to_string()),
            Err(Err(refusal)) => add("policy", format!("today it would be refused: {refusal}")),
        }
        (list, unknown)
    }

    /// The judgement once more, and the look into the container.
    fn view(
        &self,
        contract: Option<&Contract>,
        original: &Original,
        written: &[u8],
    ) -> Result<(), Result<Wrong, Refusal>> {
        let low_level = Seen::of(self.setup, self.ledger.low_level(self.key).as_deref());
        let bundle = Path::new(&original.config_path).parent().unwrap_or(Path::new("/"));
        let system = Node::new(&self.setup.config.host);
        let named = guard::Call { id: &self.recorded.container, no_pivot: false };
        let stored = || read_inventory(self.setup);
        let spec = Judged::dry(&original.bytes, &stored);
        let judged = |instead| decide(&spec, bundle, &low_level, self.setup, &system, Some(named), instead);
        let mut decision = judged(None);
        if contract.is_none() && fallback::is_cpu(&decision.asked) {
            decision = judged(Some(&contract::request::Asked::Nothing));
        }
        if let Some(refusal) = decision.refusals.into_iter().next() {
            return Err(Err(refusal));
        }
        decision.refusals = Vec::new();
        let mut numbers = numbers(&decision, &system).map_err(Err)?;
        if contract.is_none() && decision.judgement.gpus.is_none() {
            numbers = guard::Numbers::read(&system).unwrap_or(numbers);
        }
        let written = json::parse_oci(written).ok();
        let mounts: Vec<cdi::Mount> = written.iter().flat_map(mounts).collect();
        let masked: Vec<String> = written.iter().flat_map(masked).collect();
        let created = Created {
            pid: self.init.pid,
            base: Path::new("/"),
            decision: &decision,
            system: &system,
            numbers: &numbers,
            contract,
            placed: contract.map_or_else(Vec::new, |contract| made::placed(&mounts, contract)),
            masked: &masked,
            changed: true,
            fresh: false,
            by: None,
            setup: self.setup,
        };
        created.still().map_err(Ok)
    }
}

/// The digest of a contract, as the audit log records it.
fn digest(contract: &Contract) -> String {
    sha256(&serde_json::to_vec(contract).unwrap_or_default())
}

/// The mounts of a spec, as far as it matters which host file is where.
fn mounts(spec: &Json<'_>) -> Vec<cdi::Mount> {
    let text = |mount: &Json<'_>, key| mount.get(key).and_then(Json::as_str).map(str::to_owned);
    let items = spec.get("mounts").map(Json::items).unwrap_or_default();
    items.iter().filter_map(|m| Some(cdi::Mount::library(&text(m, "source")?, &text(m, "destination")?))).collect()
}

/// The paths that a spec masks.
fn masked(spec: &Json<'_>) -> Vec<String> {
    let items = spec.path(&["linux", "maskedPaths"]).map(Json::items).unwrap_or_default();
    items.iter().filter_map(Json::as_str).map(str::to_owned).collect()
}
