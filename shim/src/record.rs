//! Step 9: what the audit log learns. Only our own words and edits: a container's environment can hold secrets.

use contract::key::{Key, sha256};
use contract::request::Asked;
use contract::{Code, Contract, Granted, Note, Refusal};
use ledger::audit::{AuditError, Kind, Record, gpus};
use ledger::{HeldBy, Ledger, PodContainer, Reclaimed};
use serde_json::{Map, Value, json};

use crate::bundle::Bundle;
use crate::container::Container;
use crate::setup::Setup;

/// A container about to be handed over.
pub(crate) struct Created<'a> {
    pub(crate) container: &'a Container<'a>,
    pub(crate) bundle: &'a Bundle,
    pub(crate) before: &'a [u8],
    pub(crate) written: Written,
    pub(crate) asked: &'a Asked,
    pub(crate) contract: Option<&'a Contract>,
    pub(crate) notes: &'a [Note],
    pub(crate) pod: Option<&'a PodContainer>,
}

/// What stands on disk for a container.
pub(crate) struct Written {
    /// Its `config.json`.
    pub(crate) spec: Vec<u8>,
    /// Digest of that, where somebody needed it.
    pub(crate) digest: Option<String>,
    /// Its contract; empty without one.
    pub(crate) contract: Vec<u8>,
    /// What was done to the spec that the engine wrote.
    pub(crate) patch: Vec<cdi::Op>,
}

/// Records a container before it can run.
///
/// # Errors
/// The log cannot be written; for a container with GPUs that refuses it.
pub(crate) fn created(entry: &Created<'_>) -> Result<(), AuditError> {
    let mut fields = about(entry.container, entry.pod);
    fields.insert("bundle".into(), entry.bundle.path.to_string_lossy().into());
    let before = sha256(entry.before);
    let Written { spec, digest, contract: document, patch } = &entry.written;
    if spec != entry.before {
        fields.insert("spec_after".into(), digest.clone().unwrap_or_else(|| sha256(spec)).into());
    }
    fields.insert("spec_before".into(), before.into());
    if let Asked::Gpus(request) = entry.asked {
        fields.insert("request".into(), serde_json::to_value(request).unwrap_or_default());
    } else if let Asked::Reserved { source, request, .. } = entry.asked {
        fields.insert("request".into(), json!({"reservation": true, "source": source, "asked": request}));
    }
    if let Some(contract) = entry.contract {
        fields.insert("contract".into(), contract.id.as_str().into());
        fields.insert("contract_digest".into(), sha256(document).into());
        fields.insert("policy_digest".into(), entry.container.setup.policy_digest().into());
        fields.insert("gpus".into(), gpus(&contract.gpus));
    }
    let operations: Vec<String> = patch.iter().map(cdi::Op::to_string).collect();
    let edits = if patch.is_empty() { String::new() } else { format!("[{}]", operations.join(",")) };
    if !entry.notes.is_empty() {
        fields.insert(
            "notes".into(),
            entry.notes.iter().map(|n| json!({"rule": n.rule, "at": n.at, "message": n.message})).collect(),
        );
    }
    if entry.container.setup.config.policy.verify == contract::config::Verify::Off {
        fields.insert("verify".into(), "off".into());
    }
    let audit = entry.container.setup.audit()?;
    // A container without GPUs does not wait for a log in trouble.
    let audit = if entry.contract.is_some() { audit } else { audit.hasty() };
    audit.append_with(&Record { kind: Kind::Create, fields }, &edits).map(|_| ())
}

/// Records that a container was refused. The refusal stands whether or not the log can be written.
pub(crate) fn refused(container: &Container<'_>, bundle: &Bundle, pod: Option<&PodContainer>, refusals: &[Refusal]) {
    let mut fields = about(container, pod);
    fields.insert("bundle".into(), bundle.path.to_string_lossy().into());
    fields.insert("spec_before".into(), sha256(&bundle.bytes).into());
    fields.insert("refusals".into(), refusals.iter().map(Refusal::to_json).collect());
    if refusals.iter().any(|refusal| refusal.code == Code::CapacityFull) {
        // The tenant is told how many, the operator who.
        let holders = Ledger::open_existing(container.setup.state_dir()).map(|ledger| ledger.holders());
        fields.insert("holders".into(), holders.unwrap_or_default().into());
    }
    let _ = append(container.setup, Kind::Refuse, fields);
}

/// Records a call that was refused before there was a spec to judge, or about a container that is there.
pub(crate) fn refused_call(container: &Container<'_>, refusal: &Refusal) {
    let mut fields = about(container, None);
    fields.insert("refusals".into(), [refusal].iter().map(|refusal| refusal.to_json()).collect());
    let _ = append(container.setup, Kind::Refuse, fields);
}

/// Records the end of what a key held: the GPUs that became free, and why.
///
/// # Errors
/// The log cannot be written.
pub(crate) fn ended(
    setup: &Setup,
    key: &Key,
    holder: Option<&HeldBy>,
    list: &[Granted],
    why: &str,
) -> Result<(), AuditError> {
    let mut fields = held(Some(key), holder);
    fields.insert("gpus".into(), gpus(list));
    fields.insert("message".into(), why.into());
    append(setup, Kind::Release, fields)
}

/// Records leases that were taken back from holders that are gone.
///
/// # Errors
/// The log cannot be written.
pub(crate) fn reclaimed(setup: &Setup, list: &[Reclaimed]) -> Result<(), AuditError> {
    list.iter().try_for_each(|gone| {
        let lease = &gone.lease;
        let gpu = lease.clone().granted();
        // Of a reservation's tag nothing is told: it holds the token.
        let key = Key::parse(gone.tag.trim_start_matches("d-"));
        let mut fields = held(key.as_ref(), Some(&lease.holder));
        fields.insert("gpus".into(), gpus(&[gpu]));
        fields.insert("message".into(), gone.gone_because.as_str().into());
        append(setup, Kind::Reclaim, fields)
    })
}

/// Records something that happened to a container.
pub(crate) fn event(kind: Kind, container: &Container<'_>, message: &str) {
    let ledger = Ledger::open_existing(container.setup.state_dir());
    let holder = ledger.and_then(|ledger| ledger.holder(&container.key));
    let mut fields = about(container, holder.as_ref().and_then(HeldBy::pod));
    fields.insert("message".into(), message.into());
    let _ = append(container.setup, kind, fields);
}

/// Records that a container of the hook's is not what was decided, and will not start.
pub(crate) fn failed_check(setup: &Setup, key: &Key, container: &str, message: &str) {
    let ledger = Ledger::open_existing(setup.state_dir());
    let holder = ledger.and_then(|ledger| ledger.holder(key));
    let mut fields = held(Some(key), holder.as_ref());
    fields.insert("container".into(), container.into());
    fields.insert("message".into(), message.into());
    let _ = append(setup, Kind::VerifyFailed, fields);
}

/// The container of a call.
fn about(container: &Container<'_>, pod: Option<&PodContainer>) -> Map<String, Value> {
    let (root, low_level) = (container.root.to_string_lossy(), container.low_level.to_string_lossy());
    let mut fields = named(container.call.id, Some(&container.key), pod, &root, &low_level);
    fields.insert("verb".into(), container.call.verb.name().into());
    fields
}

/// The same of a holder, as its lease tells it.
fn held(key: Option<&Key>, holder: Option<&HeldBy>) -> Map<String, Value> {
    let (root, low_level) = match holder {
        Some(HeldBy::Container { state_root, low_level, .. }) => (state_root.as_str(), low_level.as_str()),
        _ => ("", ""),
    };
    named(holder.map_or("", HeldBy::name), key, holder.and_then(HeldBy::pod), root, low_level)
}

fn named(
    container: &str,
    key: Option<&Key>,
    pod: Option<&PodContainer>,
    root: &str,
    low_level: &str,
) -> Map<String, Value> {
    let mut fields = Map::new();
    let key = key.map_or("", Key::as_str);
    for (name, value) in [("container", container), ("key", key), ("state_root", root), ("low_level", low_level)] {
        if !value.is_empty() {
            fields.insert(name.to_owned(), value.into());
        }
    }
    if let Some(pod) = pod {
        fields.insert("pod".into(), serde_json::to_value(pod).unwrap_or_default());
    }
    fields
}

fn append(setup: &Setup, kind: Kind, fields: Map<String, Value>) -> Result<(), AuditError> {
    let audit = setup.audit()?;
    // Neither a probe nor a resize waits for a log in trouble.
    let audit = if matches!(kind, Kind::Exec | Kind::Update) { audit.hasty() } else { audit };
    audit.append(&Record { kind, fields }).map(|_| ())
}
