//! Steps 5 and 6: a contract for the request, and whether the live node still agrees with it.

use std::path::Path;

use contract::config::Config;
use contract::inventory::{Inventory, SCHEMA};
use contract::request::{Asked, Request, Sharing};
use contract::{Code, Contract, Granted, Refusal};
use ledger::{Holder, Ledger, Recipient};

use crate::broker;
use crate::exec::{self, Output};
use crate::looked;
use crate::lowlevel::{self, c_string};
use crate::setup::Setup;

/// Name of the stored inventory in the state folder.
pub const INVENTORY: &str = "inventory.json";
/// Largest inventory that is read, in bytes.
const MAX_INVENTORY: usize = 4 << 20;

/// The stored inventory, if the live node still agrees with it.
///
/// # Errors
/// `DRIVER_NOT_READY` or `CONTRACT_STALE`.
pub fn read_inventory(setup: &Setup) -> Result<Inventory, Refusal> {
    let inventory = stored(setup)?;
    instances_are(&inventory, setup, None).map(|()| inventory)
}

/// The same, without a look at MIG instances: [`instances_are`] is for those that matter.
fn stored(setup: &Setup) -> Result<Inventory, Refusal> {
    let path = setup.state_dir().join(INVENTORY);
    let not_ready = |message: String| {
        Refusal::new(
            Code::DriverNotReady,
            "inventory",
            message,
            "run `quilt-gpu inventory refresh` on the node and read what it finds",
        )
    };
    let trusted = node::read_trusted(&path, MAX_INVENTORY)
        .map_err(|e| not_ready(format!("the node's inventory cannot be used: {e}")))?;
    let inventory =
        Inventory::read(&trusted.bytes).map_err(|e| not_ready(format!("the node's inventory cannot be read: {e}")))?;
    if inventory.schema != SCHEMA {
        return Err(not_ready(format!(
            "the node's inventory has layout {}, this runtime reads {SCHEMA}",
            inventory.schema
        )));
    }
    let live = node::facts_but_instances(&setup.config.host)
        .map_err(|e| not_ready(format!("the node's facts cannot be read: {e}")))?;
    if !inventory.facts.is_but_instances(&live) {
        let what = inventory.facts.changed(&live);
        let what = what.unwrap_or_else(|| "the driver tells names of GPUs that it did not tell then".to_owned());
        return Err(changed(&what));
    }
    match inventory.findings.iter().any(|finding| finding.stops) {
        true => instances_are(&inventory, setup, None).and_then(|()| ready(inventory)),
        false => Ok(inventory),
    }
}

fn changed(what: &str) -> Refusal {
    stale("facts", &format!("the node changed since its inventory was made: {what}"))
}

/// Whether the MIG instances on these GPUs, or all, are those of the inventory.
fn instances_are(inventory: &Inventory, setup: &Setup, on: Option<&[Granted]>) -> Result<(), Refusal> {
    let (facts, minors) = (&inventory.facts, on.map(minors));
    let now = node::instances(&setup.config.host, facts, minors.as_deref())
        .map_err(|e| stale("facts", &format!("the node's facts cannot be read: {e}")))?;
    facts.instances_changed(&now, minors.as_deref()).map_or(Ok(()), |what| Err(changed(&what)))
}

/// The numbers by which the driver's folders name these GPUs.
fn minors(gpus: &[Granted]) -> Vec<u32> {
    gpus.iter().filter_map(|gpu| gpu.minor).collect()
}

/// All or nothing: a node that lacks a part of the driver grants nothing.
///
/// # Errors
/// `DRIVER_NOT_READY` with the first finding that stops.
pub fn ready(inventory: Inventory) -> Result<Inventory, Refusal> {
    match inventory.findings.iter().find(|finding| finding.stops) {
        Some(finding) => Err(Refusal::new(
            Code::DriverNotReady,
            "driver-not-ready",
            &finding.message,
            "mend that on the node; `quilt-gpu inventory` shows whether it is",
        )),
        None => Ok(inventory),
    }
}

fn stale(rule: &'static str, message: &str) -> Refusal {
    Refusal::new(Code::ContractStale, rule, message, "run `quilt-gpu inventory refresh` on the node and try again")
}

/// Has the helper make the inventory anew, with an environment of its own: ours is the engine's.
fn refresh(setup: &Setup) -> Result<(), Refusal> {
    let helper = setup.helper();
    let word = |text: &[u8]| c_string(text);
    let path = |p: &Path| word(p.as_os_str().as_encoded_bytes());
    let words = [path(&helper), word(b"--config"), path(&setup.path), word(b"inventory"), word(b"refresh")];
    let env = [word(b"PATH=/usr/sbin:/usr/bin:/sbin:/bin"), word(b"LC_ALL=C")];
    match exec::run(&path(&helper), &words, Some(&env), Output::Null) {
        Ok(0 | 3) => Ok(()),
        Ok(status) => Err(Refusal::new(
            Code::DriverNotReady,
            "inventory-refresh",
            format!("refreshing the inventory failed with status {status}"),
            "run `quilt-gpu inventory refresh` on the node and read what it says",
        )),
        Err(error) => Err(Refusal::internal("inventory-refresh", &format_args!("start {}: {error}", helper.display()))),
    }
}

/// Refuses what is above the operator's ceilings.
///
/// # Errors
/// `POLICY`.
pub fn within_ceilings(request: &Request, config: &Config) -> Result<(), Refusal> {
    let most = config.request.max_per_container;
    if most > 0 && request.count > most {
        return Err(Refusal::new(
            Code::Policy,
            "count-ceiling",
            format!("{} GPUs were asked for, one container may have {most}", request.count),
            "ask for fewer",
        )
        .at(request.place("count"), request.count.to_string()));
    }
    let most = config.request.max_wait_seconds;
    if request.terms.wait > most {
        let (message, help) = match most {
            0 => ("nobody waits for GPUs on this node".to_owned(), "leave the time out".to_owned()),
            _ => (format!("a container may wait {most} s for GPUs on this node"), format!("wait {most}s or less")),
        };
        return Err(Refusal::new(Code::Policy, "wait-ceiling", message, help)
            .at(request.place("wait"), format!("{}s", request.terms.wait)));
    }
    let beyond = request.capabilities.beyond(&config.policy.capabilities.0);
    if !beyond.is_empty() {
        return Err(Refusal::new(
            Code::Policy,
            "capability-ceiling",
            format!("the driver capabilities {} are above this node's ceiling", beyond.join(",")),
            format!("ask for {} or fewer", config.policy.capabilities.0.list()),
        )
        .at(request.place("capabilities"), beyond.join(",")));
    }
    Ok(())
}

/// Refuses to share on the word of a tenant.
pub(crate) fn may_share(request: &Request, owner: Option<&str>) -> Result<(), Refusal> {
    if request.terms.sharing == Sharing::Exclusive || owner.is_some() {
        return Ok(());
    }
    let message = "GPUs are shared with the containers of the same owner, and nobody says whose this one is";
    let help = "leave sharing out, or have the operator name the owner ([[owners]]); in a pod its namespace is one";
    Err(Refusal::new(Code::Policy, "owner-unattested", message, help).at(request.place("sharing"), "owner"))
}

/// Takes leases and drafts the contract, or redeems the reserved one. Checked against the live node; all or nothing.
///
/// What was stale is looked at anew through the helper, once, and not again and again (`looked`).
pub(crate) fn contract(
    setup: &Setup,
    ledger: &Ledger,
    asked: &Asked,
    holder: &Holder,
) -> Result<Option<Contract>, Refusal> {
    if setup.rootless {
        return broker::contract(setup, ledger, asked, holder);
    }
    match asked {
        Asked::Nothing => Ok(None),
        Asked::Reserved { token, request, .. } => {
            // A token that the first container of this id used up is not what is wrong with the second.
            let reserved = ledger
                .reservation(token, holder.pod.as_ref())
                .or_else(|refusal| ledger.refuse_second(holder).and(Err(refusal)))?;
            request.as_ref().map_or(Ok(()), |request| reserved.answers(request))?;
            fresh(setup, || {
                lowlevel::enforces(setup, Path::new(&holder.low_level))?;
                // A pod's reservation may be much older than what is wrong with its GPU now.
                let inventory = stored(setup)?;
                instances_are(&inventory, setup, Some(&reserved.gpus))?;
                ledger::in_order(&inventory, &reserved.gpus)
            })?;
            let contract = ledger.redeem(token, holder)?;
            kept_if(trusted(&contract, setup), ledger, contract, holder).map(Some)
        }
        Asked::Gpus(request) => allocated(setup, ledger, request, holder).map(Some),
    }
}

/// Takes leases now, and drafts the contract.
///
/// # Errors
/// Above a ceiling, or the node does not have it, or not now. Nothing is left of it.
pub fn allocated(setup: &Setup, ledger: &Ledger, request: &Request, holder: &Holder) -> Result<Contract, Refusal> {
    within_ceilings(request, &setup.config)?;
    may_share(request, holder.owner.as_deref())?;
    fresh(setup, || make(setup, ledger, request, holder))
}

/// What may be over is looked at anew, once. A loop, so that what is attempted stands in the program once too.
pub(crate) fn fresh<T>(setup: &Setup, attempt: impl Fn() -> Result<T, Refusal>) -> Result<T, Refusal> {
    let mut before: Option<Refusal> = None;
    loop {
        let refusal = match attempt() {
            Err(refusal) if refusal.may_be_over => refusal,
            other => return other,
        };
        match before.take() {
            Some(before) => looked::in_vain(setup, &before, &refusal),
            None if looked::is_worth_it(setup, &refusal) => {
                refresh(setup).inspect_err(|_| looked::in_vain(setup, &refusal, &refusal))?;
                before = Some(refusal);
                continue;
            }
            None => {}
        }
        return Err(refusal);
    }
}

fn make(setup: &Setup, ledger: &Ledger, request: &Request, holder: &Holder) -> Result<Contract, Refusal> {
    let inventory = stored(setup)?;
    // A node without GPUs was not asked, and a user without root has no filter.
    if !inventory.gpus.is_empty() && !holder.is_rootless() {
        lowlevel::enforces(setup, Path::new(&holder.low_level))?;
    }
    let id = node::random_hex128().map_err(|e| Refusal::internal("random", &e))?;
    let gpus = ledger.grant_while(&|on| instances_are(&inventory, setup, on), &inventory, request, holder)?;
    let to = Recipient { key: Some(&holder.key), owner: holder.owner.as_deref() };
    match ledger::draft(&inventory, &gpus, request, &setup.config.policy, &id, to, node::now()) {
        // The facts of the inventory are the node's: these were compared a moment ago, unless others were waited for since.
        Ok(contract) if !ledger.waited() => kept_if(node_agrees(&contract, setup), ledger, contract, holder),
        Ok(contract) => kept_if(trusted(&contract, setup), ledger, contract, holder),
        Err(refusal) => Err(given_back(ledger, holder, refusal)),
    }
}

fn kept_if(
    agrees: Result<(), Refusal>,
    ledger: &Ledger,
    contract: Contract,
    holder: &Holder,
) -> Result<Contract, Refusal> {
    match agrees {
        Ok(()) => Ok(contract),
        Err(refusal) => Err(given_back(ledger, holder, refusal)),
    }
}

/// A refusal is on its way already; what cannot be released now is reclaimed later, since no container holds it. A spec that a
/// crash left as we wrote it becomes the tenant's again: its original goes too.
fn given_back(ledger: &Ledger, holder: &Holder, refusal: Refusal) -> Refusal {
    let _ = crate::restore::give_back(ledger, &holder.key);
    refusal
}

/// Whether the contract and the live node agree: driver, device numbers, files.
///
/// # Errors
/// `CONTRACT_STALE`, naming what differs.
pub fn trusted(contract: &Contract, setup: &Setup) -> Result<(), Refusal> {
    let unread = |e| stale("facts", &format!("the node's facts cannot be read: {e}"));
    let mut live = node::facts_but_instances(&setup.config.host).map_err(unread)?;
    (live.instances, live.marks) =
        node::instances(&setup.config.host, &live, Some(&minors(&contract.gpus))).map_err(unread)?;
    if let Some(what) = contract.changed(&live) {
        return Err(stale("facts", &format!("the node changed since the contract was made: {what}")));
    }
    node_agrees(contract, setup)
}

/// The same without the driver's own facts: device numbers and files.
fn node_agrees(contract: &Contract, setup: &Setup) -> Result<(), Refusal> {
    for item in &contract.nodes {
        node::check_node(item).map_err(|why| stale("device", &why))?;
    }
    let libraries = contract.libraries.iter().map(|l| (&l.host_path, &l.id));
    let files = contract.files.iter().filter(|f| f.is_pinned()).map(|f| (&f.host_path, &f.id));
    for (path, id) in libraries.chain(files) {
        let now = node::file_id(Path::new(path))
            .map_err(|e| stale("file", &format!("a driver file cannot be looked at: {e}")))?;
        if now != *id {
            // Which one: a file that was replaced once more is another change, and looked at again (`looked`).
            let which = format!("inode {}, changed at {}.{:09}", now.ino, now.ctime, now.ctime_nsec);
            return Err(stale("file", &format!("{path} is another file ({which}) than when the inventory was made")));
        }
    }
    // The low-level runtime opens them by their paths, later.
    let files = contract.files.iter().filter(|f| f.is_pinned()).map(|f| f.host_path.as_str());
    let files = contract.libraries.iter().map(|l| l.host_path.as_str()).chain(files);
    match node::exchangeable(files, setup.config.host.driver_root()) {
        Some(why) => Err(stale("file", &format!("the driver's files could be exchanged: {why}"))),
        None => Ok(()),
    }
}
