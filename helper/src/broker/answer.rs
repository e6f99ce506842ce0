//! What a peer gets: leases in the node's ledger, under keys that each user has alone, and a record of it.

use contract::config::Unwritable;
use contract::key::Key;
use contract::owner::Owner;
use contract::request::Request;
use contract::{Code, Contract, Refusal};
use ledger::audit::{Kind, Record, gpus};
use ledger::{Holder, Ledger, users_root};
use node::process::{self, Process};
use serde_json::{Map, Value, json};
use shim::{Setup, restore};

use super::peer::Peer;
use super::question::{self, Question};
use super::share::Taken;

/// The answer to a question.
///
/// # Errors
/// The refusal that is one.
pub(crate) fn to(
    bytes: &[u8],
    peer: &Peer,
    admitted: Admitted,
    setup: &Setup,
    taken: &Taken,
) -> Result<Value, Refusal> {
    let question = question::read(bytes)?;
    if let Some(problem) = &setup.problem {
        return Err(problem.clone());
    }
    let ledger = Ledger::open(setup.state_dir())?.limited(&setup.config);
    match question {
        Question::Grant { key, container, state_root, request } => {
            let holder = holder(peer, admitted, &key, container, &state_root);
            let granted = granted(setup, &ledger, &request, &holder);
            // Free is free: a log that cannot be written refuses what is granted now, below.
            let _ = restore::settle(&ledger, setup);
            let recorded = |contract| recorded(setup, &ledger, &request, &holder, contract);
            let told = granted.and_then(recorded).inspect_err(|refusal| {
                if let Some(left_out) = taken.records(&holder.key, refusal) {
                    refused(setup, &holder, &request, refusal, left_out);
                }
            })?;
            Ok(json!({ "contract": told }))
        }
        Question::Started { key, pid, start } => {
            let key = own(peer, &key);
            let began = Process { pid, start };
            if !process::is_alive(pid, start) || !process::is_of(pid, peer.uid) {
                let message = format!("process {pid} is not there, or not this user's");
                let help = "name the container's first process";
                return Err(Refusal::new(Code::Policy, "broker-process", message, help).at("/pid", pid.to_string()));
            }
            ledger.started(&key, &held(&ledger, &key)?, began, None)?;
            Ok(json!({ "started": pid }))
        }
        Question::Release { key } => {
            let key = own(peer, &key);
            restore::end(&ledger, setup, &key, "its runtime gave it back")?;
            Ok(json!({ "released": true }))
        }
    }
}

/// What a key is here: no user can name another's, whatever they say.
fn own(peer: &Peer, key: &Key) -> Key {
    Key::of(&format!("uid:{}", peer.uid), key.as_str())
}

fn held(ledger: &Ledger, key: &Key) -> Result<Vec<contract::Granted>, Refusal> {
    let held = ledger.holdings(key);
    if held.is_empty() {
        let message = "this container has no GPU: its lease has ended, or another user's runtime asked for it";
        return Err(Refusal::new(Code::ContractUntrusted, "broker-nothing", message, "create the container again"));
    }
    Ok(held)
}

/// Who may ask: as whose owner, and the process that a lease ends with.
pub(crate) struct Admitted {
    owner: String,
    process: Process,
}

/// Whether a peer may ask anything: looked at before they have a share of the broker, and before they have said a word.
///
/// # Errors
/// They may not.
pub(crate) fn admitted(peer: &Peer, setup: &Setup) -> Result<Admitted, Refusal> {
    let policy = |rule, message: String, help: String| Refusal::new(Code::Policy, rule, message, help);
    if peer.uid == 0 {
        let message = "root needs no broker, and asks in the name of no user".to_owned();
        return Err(policy("broker-root", message, "start the container with quilt-gpu-runtime as root".to_owned()));
    }
    let (config, own) = (&setup.config, format!("uid:{}", peer.uid));
    let owner = Owner::of_user(&config.owners.0, peer.uid);
    // "*" means people: a user makes any number of ids that are nobody's.
    let is_known = peer.is_account || owner != own || config.broker.allow.contains(&own);
    if !is_known || !config.broker.lets(&owner) {
        let message = format!("user {} may have no GPUs on this node", peer.uid);
        let help = format!("have the operator add \"{owner}\" to [broker] allow in {}", setup.path.display());
        return Err(policy("broker-user", message, help));
    }
    // A lease must end with somebody; in a container's own pid namespace nobody here could tell.
    let process = peer.process.ok_or_else(|| {
        let message = "whoever asked has ended, or runs in a container, and its GPUs would be nobody's".to_owned();
        policy("broker-peer", message, "start the container on the node itself".to_owned())
    })?;
    Ok(Admitted { owner, process })
}

/// The container, as the kernel and the operator name its owner.
fn holder(peer: &Peer, admitted: Admitted, key: &Key, container: String, state_root: &str) -> Holder {
    Holder {
        key: own(peer, key),
        container,
        state_root: users_root(peer.uid, state_root),
        // Nobody runs as root what a user names.
        low_level: String::new(),
        cgroup: None,
        pod: None,
        owner: Some(admitted.owner),
        creator: admitted.process,
    }
}

fn granted(setup: &Setup, ledger: &Ledger, request: &Request, holder: &Holder) -> Result<Contract, Refusal> {
    let contract = shim::allocated(setup, ledger, request, holder)?;
    let kept = ledger.put_contract(&contract, &holder.key).map(|_| ());
    kept.map_err(|e| given_back(ledger, holder, Refusal::internal("contract-write", &e)))?;
    Ok(contract)
}

/// What cannot be given back now ends with the process that asked.
fn given_back(ledger: &Ledger, holder: &Holder, refusal: Refusal) -> Refusal {
    let _ = ledger.release(&holder.key);
    refusal
}

/// Records a grant before its container can run.
fn recorded(
    setup: &Setup,
    ledger: &Ledger,
    request: &Request,
    holder: &Holder,
    contract: Contract,
) -> Result<Contract, Refusal> {
    let mut fields = about(holder, request);
    fields.insert("contract".into(), contract.id.as_str().into());
    fields.insert("gpus".into(), gpus(&contract.gpus));
    let note = json!({"rule": "no-device-filter", "at": "", "message": "a user without root: nothing keeps the container to its GPUs"});
    fields.insert("notes".into(), json!([note]));
    match append(setup, Kind::Create, fields) {
        Err(error) if setup.config.audit.unwritable == Unwritable::Refuse => {
            Err(given_back(ledger, holder, Refusal::internal("audit", &error)))
        }
        _ => Ok(contract),
    }
}

fn refused(setup: &Setup, holder: &Holder, request: &Request, refusal: &Refusal, left_out: u32) {
    let mut fields = about(holder, request);
    fields.insert("refusals".into(), json!([refusal.to_json()]));
    if left_out > 0 {
        fields.insert("left_out".into(), left_out.into());
    }
    let _ = append(setup, Kind::Refuse, fields);
}

fn about(holder: &Holder, request: &Request) -> Map<String, Value> {
    let fields = [
        ("container", json!(holder.container)),
        ("key", json!(holder.key.as_str())),
        ("state_root", json!(holder.state_root)),
        ("verb", json!("create")),
        ("owner", json!(holder.owner)),
        ("request", json!(request)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn append(setup: &Setup, kind: Kind, fields: Map<String, Value>) -> Result<(), ledger::audit::AuditError> {
    setup.audit()?.append(&Record { kind, fields }).map(|_| ())
}
