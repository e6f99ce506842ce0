//! The runtime's decision run dry: what would happen to this spec on this node now. Changes nothing.

use std::path::Path;

use contract::inventory::Inventory;
use contract::key::Key;
use contract::request::Asked;
use contract::{Contract, Note, Refusal};
use ledger::{Ledger, Recipient};
use node::Node;

use crate::bundle::{self, Bundle};
use crate::compat;
use crate::create::numbers;
use crate::cuda;
use crate::decide::{Decision, decide};
use crate::edits;
use crate::fallback;
use crate::grant;
use crate::injected::Judged;
use crate::joined;
use crate::lowlevel::Seen;
use crate::managing;
use crate::precreate::wrote;
use crate::setup::Setup;
use crate::words;

/// What would happen.
#[derive(Debug)]
pub struct Verdict {
    /// Why there would be no container; empty when it would start.
    pub refusals: Vec<Refusal>,
    /// What is worth knowing.
    pub notes: Vec<Note>,
    /// What it would get.
    pub grant: Option<Contract>,
    /// What would be changed in the spec.
    pub patch: Vec<cdi::Op>,
}

/// Judges a `config.json`, or the one of a bundle, as `create` would now. `inventory` gives the node as it is.
///
/// # Errors
/// When there is nothing to judge.
pub fn check(
    path: &Path,
    setup: &Setup,
    inventory: impl Fn() -> Result<Inventory, Refusal>,
) -> Result<Verdict, Refusal> {
    let (verdict, asked) = judged(path, setup, &inventory, None)?;
    // Whoever would wait is told what is true now; what happens then is what happens without waiting.
    let instead = match (&asked, verdict.refusals.as_slice()) {
        (Asked::Gpus(request), [refusal]) => fallback::instead(request, refusal),
        _ => None,
    };
    let (Some(instead), Asked::Gpus(request), Some(refusal)) = (instead, &asked, verdict.refusals.first()) else {
        return Ok(verdict);
    };
    let note = fallback::note(request, refusal, &instead);
    let (mut verdict, _) = judged(path, setup, &inventory, Some(&instead))?;
    verdict.notes.push(note);
    Ok(verdict)
}

fn judged(
    path: &Path,
    setup: &Setup,
    inventory: &dyn Fn() -> Result<Inventory, Refusal>,
    instead: Option<&Asked>,
) -> Result<(Verdict, Asked), Refusal> {
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let missing =
        |why: &dyn std::fmt::Display| Refusal::internal("check", &format_args!("read {}: {why}", path.display()));
    let (bytes, bundle) = if path.is_dir() {
        let mut bundle =
            Bundle::read(&path.to_string_lossy())?.ok_or_else(|| missing(&"there is no readable config.json"))?;
        (std::mem::take(&mut bundle.bytes), Some(bundle))
    } else {
        (std::fs::read(path).map_err(|e| missing(&e))?, None)
    };
    let folder = std::path::absolute(folder).map_err(|e| missing(&e))?;
    // What we wrote for a container that is there is judged by what stood there before, as a second create would.
    let ledger = Ledger::open_existing(setup.state_dir());
    let original = ledger
        .as_ref()
        .and_then(|ledger| ledger.original_at(&folder.join("config.json").to_string_lossy()))
        .filter(|original| wrote(original, &bytes));
    let is_there = original.is_some();
    let bytes = original.map_or(bytes, |original| original.bytes);
    let system = Node::new(&setup.config.host);
    let low_level = Seen::of(setup, setup.low_level().ok().as_deref());
    let spec = Judged::dry(&bytes, inventory);
    let mut decision = decide(&spec, &folder, &low_level, setup, &system, None, instead);
    let mut notes = std::mem::take(&mut decision.judgement.notes);
    let mut verdict =
        Verdict { refusals: std::mem::take(&mut decision.refusals), notes: Vec::new(), grant: None, patch: Vec::new() };
    let key = Key::of("check", "check");
    verdict.refusals.extend(joined::judge(
        (setup, &key),
        ledger.as_ref(),
        &decision.spec,
        &folder,
        decision.wants_gpu(),
    ));
    let cgroup = decision.spec.path(&["linux", "cgroupsPath"]).and_then(|path| path.as_str());
    verdict
        .refusals
        .extend(cgroup.filter(|_| !is_there).and_then(|cgroup| ledger.as_ref()?.refuses_cgroup(cgroup, &key)));
    if decision.wants_gpu() {
        verdict.refusals.extend(bundle.and_then(|bundle| bundle.holds_no_gpu(&decision.spec, &system)));
        verdict.refusals.extend(low_level.enforces().err());
    }
    if verdict.refusals.is_empty() {
        match would_grant(setup, &decision, &folder, inventory) {
            Ok(grant) => verdict.grant = grant,
            Err(refusal) => verdict.refusals.push(refusal),
        }
    }
    if verdict.refusals.is_empty() {
        let root = verdict.grant.as_ref().and_then(|_| bundle::image(&decision.spec, &folder));
        if let Some(grant) = verdict.grant.as_mut() {
            notes.extend(managing::withhold(&decision.spec, grant));
            notes.extend(compat::choose(&decision.spec, root.as_ref(), grant));
        }
        let carried = numbers(&decision, &system).and_then(|numbers| {
            notes.extend(cuda::judge(&decision.spec, verdict.grant.as_ref(), &setup.config.policy)?);
            edits::edits(
                &decision.spec,
                (&folder, root.as_ref()),
                &decision.judgement,
                &numbers,
                verdict.grant.as_ref(),
                setup,
            )
        });
        match carried {
            Ok(planned) => {
                notes.extend(planned.notes);
                let patch = cdi::patch(&decision.spec, &planned.edits).map_err(|e| Refusal::internal("check", &e))?;
                verdict.patch = spec.removed().iter().cloned().chain(patch).collect();
            }
            Err(refusal) => verdict.refusals.push(refusal),
        }
    }
    verdict.refusals.iter_mut().for_each(|refusal| spec.show(&decision.spec, refusal));
    verdict.notes = notes;
    Ok((verdict, decision.asked))
}

/// The contract that would be made now, without taking anything.
fn would_grant(
    setup: &Setup,
    decision: &Decision<'_>,
    bundle: &Path,
    inventory: &dyn Fn() -> Result<Inventory, Refusal>,
) -> Result<Option<Contract>, Refusal> {
    match &decision.asked {
        Asked::Nothing => Ok(None),
        Asked::Reserved { token, request, .. } => {
            let nothing_there = "the node has no ledger yet, so nothing is reserved";
            let ledger =
                Ledger::open_existing(setup.state_dir()).ok_or_else(|| Refusal::internal("ledger", &nothing_there))?;
            let contract = ledger.reservation(token, words::in_pod(&decision.spec, bundle).as_ref())?;
            request.as_ref().map_or(Ok(()), |request| contract.answers(request))?;
            ledger::in_order(&inventory()?, &contract.gpus)?;
            Ok(Some(contract))
        }
        Asked::Gpus(request) => {
            grant::within_ceilings(request, &setup.config)?;
            let inventory = inventory()?;
            let owner = words::owner(&decision.spec, bundle, &setup.config.owners.0, Path::new(""));
            grant::may_share(request, owner.as_deref())?;
            let ledger = Ledger::for_reading(setup.state_dir()).limited(&setup.config);
            let granted = ledger.foresee(&inventory, request, owner.clone())?;
            let to = Recipient { key: Some(&Key::of("check", "check")), owner: owner.as_deref() };
            let contract =
                ledger::draft(&inventory, &granted, request, &setup.config.policy, "dry-run", to, node::now())?;
            grant::trusted(&contract, setup)?;
            Ok(Some(contract))
        }
    }
}

#[cfg(test)]
mod tests;
