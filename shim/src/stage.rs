//! The OCI hook's stages. `precreate` does what the runtime does; the others grant nothing: they judge, verify and release.

use std::io::Read;
use std::path::{Path, PathBuf};

use contract::json::{self, MAX_BYTES, Node as Json};
use contract::key::Key;
use contract::request::Asked;
use contract::{Code, Refusal};
use guard::Numbers;
use ledger::{Ledger, Original};
use node::{Node, mountinfo};

use crate::broker;
use crate::bundle::{self, Bundle};
use crate::container::key_for_hook;
use crate::create::numbers;
use crate::decide::{Decision, decide};
use crate::edits;
use crate::fallback;
use crate::injected::Judged;
use crate::lowlevel::Seen;
use crate::made::placed;
use crate::precreate;
use crate::record;
use crate::restore;
use crate::setup::Setup;
use crate::verify::{self, Created, Wrong};

/// Most bytes of container state that are read.
pub(crate) const MAX_STATE: u64 = 1 << 20;

/// What the hook was called for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The stage: `precreate`, `prestart`, `createRuntime` or `poststop`.
    pub stage: String,
    /// The configuration file, when one was named.
    pub config: Option<PathBuf>,
    /// The key of the container, when the runtime put the hook there.
    pub key: Option<Key>,
    /// The folder of the user without root whose runtime that was: hooks have no environment.
    pub user: Option<String>,
}

impl Call {
    /// Reads the hook's words, its own name first.
    ///
    /// # Errors
    /// What is wrong with them, for stderr.
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let mut words = words.iter().skip(1);
        let stage = words.next().map(String::as_str).unwrap_or_default();
        if !matches!(stage, "precreate" | "prestart" | "createRuntime" | "poststop") {
            return Err(format!("unknown stage {stage:?}; a stage is precreate, prestart, createRuntime or poststop"));
        }
        let mut call = Self { stage: stage.to_owned(), config: None, key: None, user: None };
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} has no value"))?;
            match word.as_str() {
                "--config" => call.config = Some(value.into()),
                "--key" => call.key = Some(Key::parse(value).ok_or_else(|| format!("--key {value:?} is not a key"))?),
                "--user" => call.user = Some(value.clone()),
                _ => {
                    return Err(format!(
                        "unknown option {word}; options are --config FILE, --key KEY and --user FOLDER"
                    ));
                }
            }
        }
        Ok(call)
    }
}

/// What the runtime tells a hook about its container.
pub(crate) struct State {
    id: String,
    /// None once it is stopped.
    pid: Option<u32>,
    bundle: PathBuf,
}

/// To be done before anything else, once the words are read.
pub fn harden() {
    node::harden(None);
}

/// Runs a stage and gives what it has to say. Exit status 0 lets the container start.
///
/// # Errors
/// Why it must not.
pub fn run(call: &Call, mut stdin: impl Read) -> Result<Vec<u8>, Vec<Refusal>> {
    let setup =
        call.config.as_deref().map_or_else(|| Setup::read(Path::new(contract::config::DEFAULT_PATH)), Setup::read);
    let setup = match &call.user {
        Some(folder) => setup.of_user(folder),
        None => setup,
    };
    // To the end, whatever it is for: a runtime that cannot write it all may be ended by that (crun).
    let mut text = Vec::new();
    let most = if call.stage == "precreate" { MAX_BYTES as u64 + 1 } else { MAX_STATE };
    let read = stdin.by_ref().take(most).read_to_end(&mut text);
    let unread = |what: &str, why: String| {
        vec![Refusal::internal("hook-input", &format_args!("the container's {what} cannot be read: {why}"))]
    };
    if call.stage == "precreate" {
        read.map_err(|e| unread("spec", e.to_string()))?;
        return precreate::answer(&setup, text);
    }
    let state = read.map_err(|e| e.to_string()).and_then(|_| read_state(&text));
    let ledger = Ledger::open_existing(setup.state_dir());
    if call.stage == "poststop" {
        let key = call.key.clone().or_else(|| key_for_hook(&setup, &state.ok()?.id));
        if let (Some(key), Some(ledger)) = (&key, ledger) {
            // The stage comes after the container's state is gone. A lease that stays is reclaimed later.
            if ledger.state_folder(key).is_none_or(|folder| !folder.exists()) {
                let _ = restore::end(&ledger, &setup, key, "its process ended");
            }
        }
        return Ok(Vec::new());
    }
    let state = state.map_err(|why| unread("state", why))?;
    let pid = state.pid.ok_or_else(|| unread("state", "it names no process".to_owned()))?;
    let bundle = bundle_of(&state).map_err(|refusal| vec![refusal])?;
    let known = |ledger| prepared(&setup, ledger, &state.id, &bundle).or_else(|| elsewhere(ledger, &state.id, &bundle));
    let key = call.key.clone().or_else(|| known(ledger.as_ref()?));
    let told = judge(key.as_ref(), &setup, (&state.id, pid), &bundle, ledger.as_ref());
    if let (Some(key), Some(first)) = (&key, told.as_ref().err().and_then(|refusals| refusals.first())) {
        record::failed_check(&setup, key, &state.id, &first.message);
    }
    told.map(|()| Vec::new())
}

/// The key of a container that `precreate` or the runtime had in hand.
fn prepared(setup: &Setup, ledger: &Ledger, id: &str, bundle: &Bundle) -> Option<Key> {
    let key = key_for_hook(setup, id)?;
    let is_known = !matches!(ledger.contract(&key), Ok(None)) || original_of(ledger, &key, bundle).is_some();
    is_known.then_some(key)
}

/// The key of a container that the runtime made under another state root than its own default: CRI-O has one for each class,
/// and calls its hooks in all of them.
fn elsewhere(ledger: &Ledger, id: &str, bundle: &Bundle) -> Option<Key> {
    let is_it = |key: &Key| {
        let named = ledger.state_folder(key).is_some_and(|folder| folder.file_name().is_some_and(|name| name == id));
        named && original_of(ledger, key, bundle).is_some_and(|own| Path::new(&own.config_path) == bundle.config())
    };
    ledger.keys().ok()?.into_iter().find(is_it)
}

/// The original of what we wrote, or what an engine wrote that was given it.
fn original_of(ledger: &Ledger, key: &Key, bundle: &Bundle) -> Option<Original> {
    ledger.original(key).filter(|original| precreate::wrote(original, &bundle.bytes))
}

pub(crate) fn bundle_of(state: &State) -> Result<Bundle, Refusal> {
    let named = state.bundle.to_string_lossy();
    match Bundle::read(&named) {
        Ok(Some(bundle)) => Ok(bundle),
        Ok(None) => Err(Refusal::internal("hook-bundle", &format_args!("{named} holds no readable config.json"))),
        Err(mut refusal) => {
            // In a user namespace root is somebody else to whatever lies outside it.
            if let Some(mapped) = node::process::mapped() {
                refusal.message = format!("{}; this hook runs in a user namespace, as {mapped}", refusal.message);
                refusal.help =
                    "let the engine run its hooks as root on the node, or let this user read the bundle".into();
            }
            Err(refusal)
        }
    }
}

pub(crate) fn read_state(text: &[u8]) -> Result<State, String> {
    let state = json::parse_data(text).map_err(|e| e.to_string())?;
    let bundle = state.get("bundle").and_then(Json::as_str).ok_or("it names no bundle")?;
    let pid = state.get("pid").and_then(Json::as_i64).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
    let id = state.get("id").and_then(Json::as_str).ok_or("it names no container")?.to_owned();
    Ok(State { id, pid, bundle: bundle.into() })
}

fn judge(
    key: Option<&Key>,
    setup: &Setup,
    (id, pid): (&str, u32),
    bundle: &Bundle,
    ledger: Option<&Ledger>,
) -> Result<(), Vec<Refusal>> {
    let one = |refusal| vec![refusal];
    let held = key.zip(ledger);
    let original = held.and_then(|(key, ledger)| original_of(ledger, key, bundle));
    let contract = match held {
        Some((key, ledger)) => ledger.contract(key).map_err(one)?,
        None => None,
    };
    // The same bundle under another id would be another container with this one's GPU.
    let own = held.is_none_or(|(key, ledger)| {
        ledger.state_folder(key).and_then(|folder| folder.file_name().map(|name| name == id)) == Some(true)
    });
    let untrusted = || {
        let message = "config.json is not what was written for this container: something changed it since";
        let help = "let no other hook change the spec behind quilt-gpu's, and start the container again";
        one(Refusal::new(Code::ContractUntrusted, "hook-contract", message, help))
    };
    if key.is_some() && (original.is_none() || (contract.is_some() && !own)) {
        return Err(untrusted());
    }
    let low_level = held.and_then(|(key, ledger)| ledger.low_level(key));
    let low_level = Seen::of(setup, low_level.as_deref());
    let bytes = original.as_ref().map_or(bundle.bytes.as_slice(), |o| o.bytes.as_slice());
    let system = Node::new(&setup.config.host);
    let named = guard::Call { id, no_pivot: false };
    let spec = Judged::new(bytes);
    let judged = |instead| decide(&spec, &bundle.path, &low_level, setup, &system, Some(named), instead);
    let mut decision = judged(None);
    // The runtime let it start without one.
    if key.is_some() && contract.is_none() && fallback::is_cpu(&decision.asked) {
        decision = judged(Some(&Asked::Nothing));
    }
    if !decision.refusals.is_empty() {
        let mut refusals = decision.refusals;
        refusals.iter_mut().for_each(|refusal| spec.show(&decision.spec, refusal));
        return Err(refusals);
    }
    if key.is_some() && contract.is_none() && decision.wants_gpu() {
        return Err(untrusted());
    }
    if key.is_none() {
        // Nobody asked before it was made, as of a build.
        let cgroup = decision.spec.path(&["linux", "cgroupsPath"]).and_then(Json::as_str).unwrap_or_default();
        let held = |ledger: &Ledger| ledger.refuses_cgroup(cgroup, &Key::of("", id));
        if let Some(refusal) = ledger.filter(|_| !cgroup.is_empty()).and_then(held) {
            return Err(one(refusal));
        }
        return without_contract(&decision, bundle, pid, setup, &system).map_err(one);
    }
    if let Some(refusal) = contract.as_ref().and_then(|_| bundle.holds_no_gpu(&decision.spec, &system)) {
        return Err(one(refusal));
    }
    granted(&decision, bundle, pid, contract.as_ref(), setup, &system).map_err(one)?;
    let begun = held.zip(node::process::of(pid)).zip(contract.as_ref());
    let Some((((key, ledger), init), contract)) = begun else { return Ok(()) };
    ledger.started(key, &contract.gpus, init, None).map_err(|e| one(e.into()))?;
    if setup.rootless {
        broker::started(setup, key, init).map_err(|why| one(Refusal::internal("broker", &why)))?;
    }
    Ok(())
}

/// A container that the runtime made: what stands in its spec was granted or changed by us.
fn granted(
    decision: &Decision<'_>,
    bundle: &Bundle,
    pid: u32,
    contract: Option<&contract::Contract>,
    setup: &Setup,
    system: &Node,
) -> Result<(), Refusal> {
    let numbers = match &decision.judgement.gpus {
        None if contract.is_none() => Numbers::read(system).unwrap_or_default(),
        _ => numbers(decision, system)?,
    };
    let root = contract.and_then(|_| bundle::image(&decision.spec, &bundle.path));
    let edits::Planned { edits, .. } =
        edits::edits(&decision.spec, (&bundle.path, root.as_ref()), &decision.judgement, &numbers, contract, setup)?;
    let created = Created {
        pid,
        base: &rootfs(decision, bundle),
        decision,
        system,
        numbers: &numbers,
        contract,
        placed: contract.map_or_else(Vec::new, |contract| placed(&edits.mounts, contract)),
        masked: &edits.masked,
        changed: true,
        fresh: false,
        by: None,
        setup,
    };
    created.verify().or_else(|wrong| match wrong {
        Wrong::Unknown(_) if contract.is_none() => Ok(()),
        wrong => Err(Refusal::new(Code::VerifyFailed, "verify", wrong.to_string(), "look at the node's audit log")),
    })
}

/// Where the container's root file system is seen while hooks run.
fn rootfs(decision: &Decision<'_>, bundle: &Bundle) -> PathBuf {
    let base = bundle::rootfs(&decision.spec, &bundle.path).unwrap_or_else(|| "/".into());
    base.canonicalize().unwrap_or(base)
}

/// Under a plain low-level runtime there is no contract: nothing may reach a GPU, and a request cannot be served.
fn without_contract(
    decision: &Decision<'_>,
    bundle: &Bundle,
    pid: u32,
    setup: &Setup,
    system: &Node,
) -> Result<(), Refusal> {
    if decision.wants_gpu() {
        return Err(Refusal::new(
            Code::Policy,
            "hook-grants-nothing",
            "the container asks for a GPU, and the hook precreate, which grants one, was not called",
            "install all files of share/quilt-gpu/hooks.d, or start it with the runtime quilt-gpu",
        ));
    }
    let numbers = Numbers::read(system).map_err(|e| Refusal::internal("devices", &e))?;
    let changes = &decision.judgement.changes;
    if !changes.drop_devices.is_empty() {
        return Err(Refusal::new(
            Code::TenantGpuDevice,
            "device-gpu",
            "the container has device entries of GPUs, and a hook cannot take them out",
            "start it with the runtime quilt-gpu",
        ));
    }
    if changes.read_only.iter().any(|one| one.source.is_none()) {
        return Err(Refusal::new(
            Code::UnsafeSpec,
            "mount-reserved-source",
            "a mount shows the node's own record of who has which GPU, and a hook cannot hide it",
            "start it with the runtime quilt-gpu",
        ));
    }
    let help = "start it with the runtime quilt-gpu";
    let base = rootfs(decision, bundle);
    let groups = verify::groups_of(pid, system);
    let groups = groups.as_ref().map_err(Wrong::clone);
    if changes.covers_groups() {
        let mounts = mountinfo::of(pid).map_err(verify::unknown);
        groups
            .clone()
            .and_then(|groups| verify::confined(groups, &mounts?, &base))
            .map_err(|why| Refusal::new(Code::UnsafeSpec, "mount-cgroup", why.to_string(), help))?;
    }
    match groups.and_then(|groups| verify::judged(groups, &[], &numbers, Some(setup.state_dir()))) {
        // The list in the spec closes GPUs: where no filter is attached, as in rootless containers, nothing was promised.
        Err(Wrong::Absent | Wrong::Unknown(_)) if changes.rules.is_none() => {}
        told => told.map_err(|wrong| Refusal::new(Code::TenantGpuRule, "cgroup-wildcard", wrong.to_string(), help))?,
    }
    let created = Created {
        pid,
        base: &base,
        decision,
        system,
        numbers: &numbers,
        contract: None,
        placed: Vec::new(),
        masked: &[],
        changed: true,
        fresh: false,
        by: None,
        setup,
    };
    created.look().or_else(|wrong| match wrong {
        Wrong::Unknown(_) => Ok(()),
        wrong => Err(Refusal::new(Code::VerifyFailed, "verify", wrong.to_string(), help)),
    })
}
