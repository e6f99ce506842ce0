//! Steps 2 to 4: the spec read strictly, the request in it, and the guard's judgement. Decides, changes nothing.

use std::path::Path;

use contract::config::Profile;
use contract::json::{Node, Value};
use contract::request::Asked;
use contract::{Code, Note, Refusal};
use guard::{Case, Judgement, LowLevel, System};

use crate::docker_gpus;
use crate::injected::Judged;
use crate::lowlevel::Seen;
use crate::setup::Setup;
use crate::words;

/// What was found out about one spec.
pub(crate) struct Decision<'a> {
    /// The spec; `null` when it could not be read.
    pub(crate) spec: Node<'a>,
    /// What it asks for; nothing when the asking itself was refused.
    pub(crate) asked: Asked,
    /// Our own folders, links resolved.
    pub(crate) own: [String; 3],
    /// The guard's judgement.
    pub(crate) judgement: Judgement,
    /// Everything that is wrong; the first is the one nearest the tenant's words.
    pub(crate) refusals: Vec<Refusal>,
}

impl Decision<'_> {
    /// Whether GPUs were asked for.
    pub(crate) fn wants_gpu(&self) -> bool {
        self.asked != Asked::Nothing
    }
}

/// Judges a spec. `instead` is what it falls back to from what it asks for.
pub(crate) fn decide<'a>(
    judged: &'a Judged<'_>,
    bundle: &Path,
    low_level: &Seen,
    setup: &Setup,
    system: &dyn System,
    call: Option<guard::Call<'_>>,
    instead: Option<&Asked>,
) -> Decision<'a> {
    let spec = match judged.spec(setup) {
        Ok(spec) => spec,
        Err(error) => {
            let spec = Node { span: 0..0, value: Value::Null };
            return Decision {
                spec,
                asked: Asked::Nothing,
                own: <[String; 3]>::default(),
                judgement: Judgement::default(),
                refusals: vec![error.into()],
            };
        }
    };
    let mut notes = Vec::new();
    let replaced = docker_gpus::hooks(&spec, setup, system);
    let asked = match instead {
        Some(asked) => Ok(asked.clone()),
        None => {
            let docker = if replaced.is_empty() { Ok(None) } else { docker_gpus::words(&spec, setup).map(Some) };
            docker.and_then(|docker| words::read(&spec, &setup.config, judged.found(), docker, &mut notes))
        }
    };
    // A request that is malformed is still a request: the stricter column of the table counts.
    let gpu_asked = !matches!(asked, Ok(Asked::Nothing));
    let own = setup.own_paths();
    let by = By { bundle, ways: low_level.ways, program: low_level.program.as_deref(), call };
    let mut judgement = judgement(&spec, gpu_asked, &replaced, &own, &by, setup, system);
    let mut refusals = std::mem::take(&mut judgement.refusals);
    judgement.notes.extend(notes);
    judgement.notes.extend(words::unknown_variables(&spec, &setup.config.request));
    let asked = asked.unwrap_or_else(|refusal| {
        // What an engine put in for us says best why it is not taken: the guard sees a stranger's.
        let at = if refusal.code == Code::ForeignGpuInjection { 0 } else { refusals.len() };
        refusals.insert(at, refusal);
        Asked::Nothing
    });
    if gpu_asked {
        refusals.extend(setup.problem.clone());
        if !setup.rootless && !system.initial_user_namespace() {
            let message = "this runtime runs inside a user namespace, where no device filter can be attached, and has no \
                           XDG_RUNTIME_DIR to keep books in for the node's broker";
            let help = "start GPU containers as root on the node, or with that folder of the user's, or ask for none";
            refusals.push(Refusal::new(Code::Policy, "cgroup-no-filter", message, help));
        }
    }
    if let Some((message, fails)) = low_level.no_filter().filter(|_| !gpu_asked) {
        // A list that closes no GPU does no harm, unless it keeps the container from being made.
        if fails {
            judgement.changes.rules = None;
            judgement.notes.retain(|note| note.rule != "cgroup-canon");
        }
        judgement.notes.push(Note::new("no-device-filter", "", message));
    }
    Decision { spec, asked, own, judgement, refusals }
}

/// Where a spec lies, and what will run it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct By<'a> {
    pub(crate) bundle: &'a Path,
    pub(crate) ways: LowLevel,
    pub(crate) program: Option<&'a Path>,
    pub(crate) call: Option<guard::Call<'a>>,
}

/// The guard's judgement on a spec.
pub(crate) fn judgement(
    spec: &Node<'_>,
    gpu_asked: bool,
    replaced: &[usize],
    own: &[String; 3],
    by: &By<'_>,
    setup: &Setup,
    system: &dyn System,
) -> Judgement {
    let [_, log, _] = own;
    let case = Case {
        spec,
        bundle: &by.bundle.to_string_lossy(),
        gpu_asked,
        asking: &words::way_to_ask(spec, &setup.config.request),
        low_level: by.ways,
        policy: &setup.config.policy,
        own_paths: own,
        log_path: log,
        programs: &setup.programs(by.program),
        hooks: &hooks(setup),
        replaced,
        dev_root: &setup.config.host.dev_root(),
        exceptions: setup.config.allow.0.as_slice(),
        workload: words::attested(spec, by.bundle),
        call: by.call,
    };
    guard::judge(&case, system)
}

/// Programs that hooks may run: those that the operator names, and our own, which engines put in by themselves.
fn hooks(setup: &Setup) -> Vec<String> {
    if setup.config.policy.profile != Profile::Hardened {
        return Vec::new();
    }
    let named = setup.config.policy.allow_hooks.iter().cloned();
    named.chain([setup.hook().display().to_string()]).collect()
}
