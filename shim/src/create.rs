//! `create` and `run` (and `restore`): the ten steps, in order. `precreate` has the first nine done for it.

mod early;

use cdi::Edits;
use contract::config::{Unwritable, Verify};
use contract::key::{Key, sha256};
use contract::{Code, Contract, Note, Refusal};
use guard::Numbers;
use ledger::{Ledger, Original};
use node::Node;

use crate::argv::Verb;
use crate::broker;
use crate::bundle::{self, Bundle};
use crate::compat;
use crate::container::Container;
use crate::cuda;
use crate::decide::{By, Decision, decide};
use crate::edits;
use crate::fallback::Turn;
use crate::grant;
use crate::handover::{self, Words};
use crate::injected::Judged;
use crate::joined;
use crate::lowlevel::Seen;
use crate::made::Made;
use crate::managing;
use crate::precreate::{Aside, PATIENCE};
use crate::record::{self, Written};
use crate::restore;
use crate::sources;
use crate::stops;
use crate::words;

/// Makes the container, or says why not. Gives the status to exit with.
///
/// # Errors
/// The refusals, the first nearest to the tenant's words.
pub(crate) fn make(container: &Container<'_>, argv: Words) -> Result<i32, Vec<Refusal>> {
    let one = |refusal| vec![refusal];
    let recorded = |refusal| {
        record::refused_call(container, &refusal);
        vec![refusal]
    };
    let Some(bundle) = Bundle::read(container.call.bundle()).map_err(recorded)? else {
        return Err(one(handover::become_runtime(&container.low_level, &argv)));
    };
    steps(container, &bundle, None, |made| match made {
        Some(made) => made.hand_over(argv),
        None => Err(one(handover::become_runtime(&container.low_level, &argv))),
    })
}

/// Steps 3 to 9, and then the last one.
pub(crate) fn steps<T>(
    container: &Container<'_>,
    bundle: &Bundle,
    aside: Option<&Aside>,
    last: impl FnOnce(Option<Made<'_>>) -> Result<T, Vec<Refusal>>,
) -> Result<T, Vec<Refusal>> {
    let ledger = Ledger::open(container.setup.state_dir()).map(|ledger| {
        let ledger = ledger.limited(&container.setup.config);
        if aside.is_some() { ledger.within(PATIENCE) } else { ledger }
    });
    // A config.json that is exactly what we wrote is judged by what stood there before.
    let original = ledger.as_ref().ok().and_then(|ledger| ours(ledger, &container.key, bundle));
    let tenant_bytes = original.as_ref().map_or(bundle.bytes.as_slice(), |o| o.bytes.as_slice());
    let judged = Judged::new(tenant_bytes);
    // The guard hides our folders in a tenant's mounts: they must be there before it looks.
    let _ = container.setup.audit();
    let system = Node::new(&container.setup.config.host);
    let low_level = Seen::of(container.setup, Some(&container.low_level));
    let call = guard::Call { id: container.call.id, no_pivot: container.call.has("no-pivot") };
    let mut turn = Turn::default();
    loop {
        // Whoever waited is judged anew: what it was judged by may have changed.
        let instead = turn.instead.as_ref();
        let mut decision = decide(&judged, &bundle.path, &low_level, container.setup, &system, Some(call), instead);
        decision.judgement.notes.extend(turn.note.take());
        stops::at("judged");
        let run = Making {
            container,
            bundle,
            tenant_bytes,
            judged: &judged,
            decision: &decision,
            system: &system,
            ways: low_level.ways,
            aside,
        };
        let mark = ledger.as_ref().ok().filter(|_| turn.waits(&decision.asked)).and_then(Ledger::mark);
        let mut made = run.decided(ledger.as_ref());
        if let (Err(refusals), Ok(ledger)) = (&mut made, &ledger)
            && turn.again(refusals, &decision.asked, ledger, &run.holder(), mark)
        {
            continue;
        }
        turn.end(ledger.as_ref().ok(), || run.holder());
        return match made {
            Ok(made) => last(made),
            Err(mut refusals) => {
                refusals.iter_mut().for_each(|refusal| judged.show(&decision.spec, refusal));
                record::refused(container, bundle, words::in_pod(&decision.spec, &bundle.path).as_ref(), &refusals);
                Err(refusals)
            }
        };
    }
}

/// The original of this bundle's `config.json`, when the file is exactly what we wrote into it.
fn ours(ledger: &Ledger, key: &Key, bundle: &Bundle) -> Option<Original> {
    ledger.original(key).filter(|original| original.is_ours(&sha256(&bundle.bytes)))
}

/// A container between judgement and hand-over.
struct Making<'a> {
    container: &'a Container<'a>,
    bundle: &'a Bundle,
    tenant_bytes: &'a [u8],
    judged: &'a Judged<'a>,
    decision: &'a Decision<'a>,
    system: &'a Node,
    ways: guard::LowLevel,
    aside: Option<&'a Aside>,
}

impl<'a> Making<'a> {
    /// Steps 5 to 9. `None`: nothing of ours is in the way, hand over as it came.
    fn decided(&self, ledger: Result<&Ledger, &ledger::LedgerError>) -> Result<Option<Made<'a>>, Vec<Refusal>> {
        if !self.decision.refusals.is_empty() {
            return Err(self.decision.refusals.clone());
        }
        self.may_start(ledger.ok()).map_err(|refusal| vec![refusal])?;
        let wants_gpu = self.decision.wants_gpu();
        let ledger = match ledger {
            Ok(ledger) => Some(ledger),
            Err(error) if wants_gpu => return Err(vec![Refusal::internal("ledger", error)]),
            Err(_) => None,
        };
        let contract = match ledger {
            Some(ledger) if wants_gpu => {
                let contract = grant::contract(self.container.setup, ledger, &self.decision.asked, &self.holder());
                // Free is free: a log that cannot be written refuses this container further down.
                let _ = restore::settle(ledger, self.container.setup);
                contract.map_err(|refusal| vec![refusal])?
            }
            _ => None,
        };
        self.carried_out(ledger, contract).map_err(|refusal| {
            if let Some(ledger) = ledger
                && wants_gpu
            {
                // What is not released here is reclaimed later: no container of this key exists.
                let _ = restore::give_back(ledger, &self.container.key);
                if self.container.setup.rootless {
                    broker::release(self.container.setup, &self.container.key);
                }
            }
            vec![refusal]
        })
    }

    /// Steps 7 to 9: edits, `config.json`, audit.
    fn carried_out(
        &self,
        ledger: Option<&Ledger>,
        mut contract: Option<Contract>,
    ) -> Result<Option<Made<'a>>, Refusal> {
        let Self { container, bundle, tenant_bytes, decision, system, .. } = *self;
        let withheld = contract.as_mut().and_then(|contract| managing::withhold(&decision.spec, contract));
        let root = contract.as_ref().and_then(|_| bundle::image(&decision.spec, &bundle.path));
        let chosen = contract.as_mut().and_then(|contract| compat::choose(&decision.spec, root.as_ref(), contract));
        let numbers = numbers(decision, system)?;
        let edits::Planned { mut edits, cache, profile, mut notes } = edits::edits(
            &decision.spec,
            (&bundle.path, root.as_ref()),
            &decision.judgement,
            &numbers,
            contract.as_ref(),
            container.setup,
        )?;
        notes.extend(decision.judgement.notes.iter().cloned());
        notes.extend(withheld.into_iter().chain(chosen));
        notes.extend(cuda::judge(&decision.spec, contract.as_ref(), &container.setup.config.policy)?);
        let verb = container.call.verb;
        notes.extend(bundle.loose_to(&decision.spec, system).map(|loose| Note::new("bundle", "", loose.told())));
        let changed = self.changes(&edits);
        // Whom nobody grants anything is only looked at where everything is there to do so.
        let looks = changed && ledger.is_some() && self.verifies() && container.setup.hook().exists();
        if verb != Verb::Create && (contract.is_some() || (looks && verb == Verb::Run)) {
            edits.hooks = edits::run_hooks(container.setup, container.key.as_str());
        }
        stops::at("writing");
        notes.extend(cache.map(|cache| cache.write(&decision.spec, &bundle.path)).transpose()?);
        profile.map_or(Ok(()), |profile| profile.write(&decision.spec))?;
        let written = self.written(ledger, contract.as_ref(), &mut edits)?;
        stops::at("written");
        let pod = words::in_pod(&decision.spec, &bundle.path);
        let entry = record::Created {
            container,
            bundle,
            before: tenant_bytes,
            written,
            asked: &decision.asked,
            contract: contract.as_ref(),
            notes: &notes,
            pod: pod.as_ref(),
        };
        match record::created(&entry) {
            Err(error) if contract.is_some() && container.setup.config.audit.unwritable == Unwritable::Refuse => {
                return Err(Refusal::internal("audit", &error));
            }
            _ => {}
        }
        let may_change =
            sources::may_change(&decision.spec, &bundle.path.to_string_lossy()) || joined::may_change(&decision.spec);
        let watched = contract.is_some()
            || (verb == Verb::Create
                && self.verifies()
                && ledger.is_some()
                && (changed || bundle.loose.is_some() || may_change));
        let Edits { mounts: placed, masked, .. } = edits;
        let whole = changed || bundle.loose.is_some();
        let numbers = match &decision.judgement.gpus {
            None if watched && whole && contract.is_none() => Numbers::read(system).unwrap_or(numbers),
            _ => numbers,
        };
        let by = By {
            bundle: &bundle.path,
            ways: self.ways,
            program: Some(&container.low_level),
            call: Some(guard::Call { id: container.call.id, no_pivot: container.call.has("no-pivot") }),
        };
        let by = (may_change || bundle.loose.is_some()).then_some(by);
        Ok(watched.then_some(Made {
            container,
            decision,
            system,
            contract,
            numbers,
            placed,
            masked,
            changed: whole,
            by,
        }))
    }

    /// Whether something is opened or closed; a variable alone does neither.
    fn changes(&self, edits: &Edits) -> bool {
        !self.judged.removed().is_empty() || Edits { env: edits.env.clone(), ..Edits::default() } != *edits
    }

    fn verifies(&self) -> bool {
        self.container.setup.config.policy.verify != Verify::Off
    }

    /// Contract and original first: whatever a crash leaves, `delete` finds what belongs to this key.
    fn written(
        &self,
        ledger: Option<&Ledger>,
        contract: Option<&Contract>,
        edits: &mut Edits,
    ) -> Result<Written, Refusal> {
        let key = &self.container.key;
        let (mut plan, mut spec) = self.edited(edits)?;
        let written = |plan: cdi::Plan, spec, digest, contract| {
            let mut patch = self.judged.removed().to_vec();
            patch.extend(plan.into_patch());
            Written { spec, digest, contract, patch }
        };
        // What a crash left, written by us in the very same words, may have been put back meanwhile, and its original given up.
        if spec == self.bundle.bytes && spec == self.tenant_bytes {
            let put = ledger.zip(contract).map(|(ledger, contract)| ledger.put_contract(contract, key)).transpose();
            let document = put.map_err(|e| Refusal::internal("contract-write", &e))?;
            return Ok(written(plan, spec, None, document.unwrap_or_default()));
        }
        let config = self.bundle.config();
        // Beyond a variable, the edits are there to close or to open something.
        let only_variables = !self.changes(edits);
        if !only_variables && self.container.exists() {
            return Err(self.already_there());
        }
        let (mut digest, mut document) = (None, Vec::new());
        if let (Some(ledger), false) = (ledger, only_variables) {
            let ours = self.aside.map_or_else(|| sha256(&spec), |aside| (aside.meaning)(&spec));
            match ledger.keep_original(key, contract, self.tenant_bytes, &ours, &config.to_string_lossy()) {
                Ok(kept) => (digest, document) = (Some(ours).filter(|_| self.aside.is_none()), kept),
                Err(e) if contract.is_some() => return Err(Refusal::internal("contract-write", &e)),
                // Without GPUs a ledger in trouble is nobody's trouble: the spec is then not put back, and judged as it is. The
                // hooks would not find it.
                Err(_) if !edits.hooks.is_empty() => {
                    edits.hooks.clear();
                    (plan, spec) = self.edited(edits)?;
                }
                Err(_) => {}
            }
        }
        if let Some(aside) = self.aside {
            aside.edited.replace(spec.clone());
            return Ok(written(plan, spec, digest, document));
        }
        match node::write_atomic(&config, &spec, self.bundle.mode, false) {
            Err(e) if contract.is_some() || !only_variables => Err(Refusal::internal("config-write", &e)),
            _ => Ok(written(plan, spec, digest, document)),
        }
    }

    /// What the edits do, and the spec with them.
    fn edited(&self, edits: &Edits) -> Result<(cdi::Plan, Vec<u8>), Refusal> {
        let plan = cdi::Plan::new(&self.decision.spec, edits);
        let edited = plan.and_then(|plan| plan.apply(self.judged.bytes()).map(|bytes| (plan, bytes)));
        edited.map_err(|e| {
            let help = "write the spec as the OCI runtime spec has it";
            Refusal::new(Code::UnsafeSpec, "spec-shape", e.message, help).at(e.at, "")
        })
    }
}

/// The node's GPU numbers; the guard needed them or it did not.
pub(crate) fn numbers(decision: &Decision<'_>, system: &Node) -> Result<Numbers, Refusal> {
    match &decision.judgement.gpus {
        Some(numbers) => Ok(numbers.clone()),
        None if decision.wants_gpu() => Numbers::read(system)
            .map_err(|e| Refusal::new(Code::DriverNotReady, "devices", e, "look at /proc/devices on the node")),
        None => Ok(Numbers::default()),
    }
}
