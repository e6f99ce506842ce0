//! Puts what the sources told into the inventory that the kernel's files make. No I/O.
//!
//! The bus alone says which GPUs there are. A name comes from the driver's procfs before NVML before `nvidia-smi`; two that
//! disagree on one make the GPU ambiguous, which is never granted. What a source does not tell this time is kept from the
//! inventory before, as long as it is about the same GPU, and a source that failed is a finding.

use contract::gpu::{Gpu, State, Unavailable};
use contract::inventory::{Finding, Inventory};
use node::driver::Information;

use super::gpus;
use super::told::{Answer, Kind, NVML, Silence, Told, ToldGpu};

const PROCFS: &str = "procfs";
const EARLIER: &str = "earlier";
/// How many GPUs that are gone are remembered: as many as a machine is likely to have.
const MOST_FORMER: usize = 32;

/// The sources that answered, the more trusted first.
pub(super) fn told(answers: &[Answer]) -> Vec<&Told> {
    let mut told: Vec<&Told> = answers.iter().flatten().collect();
    told.sort_by_key(|told| (told.source != NVML, told.source.as_str()));
    told
}

/// What the driver tells of each GPU, with what only another source tells: a node is looked for by its minor.
pub(super) fn completed(held: &[(String, Information)], answers: &[Answer]) -> Vec<(String, Information)> {
    let mut held = held.to_vec();
    for (pci, information) in &mut held {
        for gpu in told(answers).into_iter().filter_map(|told| of(told, pci)) {
            information.uuid = information.uuid.take().or_else(|| gpu.uuid.clone());
            information.minor = information.minor.or(gpu.minor);
            information.model = information.model.take().or_else(|| gpu.model.clone());
        }
    }
    held
}

pub(super) fn of<'a>(told: &'a Told, pci: &str) -> Option<&'a ToldGpu> {
    told.gpus.iter().find(|gpu| gpu.pci == pci)
}

/// Adds what was told and what was known before; says what does not fit together. `held` is the driver's own word.
pub(super) fn merge(
    inventory: &mut Inventory,
    held: &[(String, Information)],
    answers: &[Answer],
    earlier: Option<&Inventory>,
) -> Vec<Finding> {
    let told = told(answers);
    let mut findings: Vec<Finding> =
        answers.iter().filter_map(|answer| failed(answer.as_ref().err()?, inventory)).collect();
    for gpu in &mut inventory.gpus {
        let held = held.iter().find(|(pci, _)| *pci == gpu.pci).map(|(_, information)| information);
        let of_gpu: Vec<(&str, &ToldGpu)> =
            told.iter().filter_map(|told| Some((told.source.as_str(), of(told, &gpu.pci)?))).collect();
        named(gpu, held, &of_gpu);
        described(gpu, &of_gpu);
        findings.extend(disagreement(gpu, held, &of_gpu));
    }
    for told in &told {
        findings.extend(strange(told, inventory));
        inventory.cuda_version = inventory.cuda_version.take().or_else(|| told.cuda_version.clone());
        if inventory.links.is_empty() {
            inventory.links = told.links.clone();
        }
    }
    if let Some(earlier) = earlier {
        remember(inventory, earlier, &told, told.len() < answers.len());
    }
    for gpu in &mut inventory.gpus {
        state(gpu, &told.iter().filter_map(|told| of(told, &gpu.pci)).collect::<Vec<_>>());
    }
    one_gpu_for_each_name(&mut inventory.gpus);
    gpus::settle(&mut inventory.gpus);
    findings
}

/// Which source a name is from; `gpus` has set the names already.
fn named(gpu: &mut Gpu, held: Option<&Information>, told: &[(&str, &ToldGpu)]) {
    let from = |by_driver: bool, by_told: &dyn Fn(&ToldGpu) -> bool| {
        let other = || told.iter().find(|(_, gpu)| by_told(gpu)).map(|(source, _)| *source);
        if by_driver { Some(PROCFS) } else { other() }
    };
    for (datum, source) in [
        ("uuid", from(held.is_some_and(|held| held.uuid.is_some()), &|gpu| gpu.uuid.is_some())),
        ("minor", from(held.is_some_and(|held| held.minor.is_some()), &|gpu| gpu.minor.is_some())),
        ("model", from(held.is_some_and(|held| held.model.is_some()), &|gpu| gpu.model.is_some())),
    ] {
        gpu.sources.extend(source.filter(|_| held.is_some()).map(|source| (datum.to_owned(), source.to_owned())));
    }
}

/// Takes a datum from the first source that has it.
fn first<T: Clone>(
    into: &mut Option<T>,
    sources: &mut Vec<(String, String)>,
    datum: &str,
    told: &[(&str, &ToldGpu)],
    get: impl Fn(&ToldGpu) -> Option<T>,
) {
    if let (None, Some((source, value))) = (&into, told.iter().find_map(|(source, gpu)| Some((source, get(gpu)?)))) {
        *into = Some(value);
        sources.push((datum.to_owned(), (*source).to_owned()));
    }
}

/// What only these sources know.
fn described(gpu: &mut Gpu, told: &[(&str, &ToldGpu)]) {
    let sources = &mut gpu.sources;
    first(&mut gpu.memory_mb, sources, "memory_mb", told, |gpu| gpu.memory_mb);
    first(&mut gpu.compute_capability, sources, "compute_capability", told, |gpu| gpu.compute_capability.clone());
    first(&mut gpu.virtualization, sources, "virtualization", told, |gpu| gpu.virtualization.clone());
    first(&mut gpu.mig, sources, "mig", told, |gpu| gpu.mig);
}

/// Two sources that call one GPU by different names: nobody knows which device a node would open.
fn disagreement(gpu: &mut Gpu, held: Option<&Information>, told: &[(&str, &ToldGpu)]) -> Option<Finding> {
    let uuids = held.and_then(|held| Some((PROCFS, held.uuid.clone()?))).into_iter();
    let uuids = uuids.chain(told.iter().filter_map(|(source, gpu)| Some((*source, gpu.uuid.clone()?))));
    let minors = held.and_then(|held| Some((PROCFS, held.minor?))).into_iter();
    let minors = minors.chain(told.iter().filter_map(|(source, gpu)| Some((*source, gpu.minor?))));
    let differ = [
        two(uuids, |a, b| a.eq_ignore_ascii_case(b)).map(|words| format!("UUID: {words}")),
        two(minors, |a, b| a == b).map(|words| format!("device minor: {words}")),
    ];
    let differ: Vec<String> = differ.into_iter().flatten().collect();
    if differ.is_empty() {
        return None;
    }
    let differ = differ.join("; ");
    if gpu.usable() {
        gpu.unavailable = Some(Unavailable::new(State::Ambiguous, format!("sources disagree on its {differ}")));
    }
    let message = format!(
        "sources disagree on {}'s {differ}; it is not granted; `quilt-gpu inventory refresh` when the driver has settled, or reload it",
        gpu.pci
    );
    Some(Finding { code: "source-conflict".into(), stops: false, message })
}

/// The first value and one that differs, with their sources.
fn two<'a, T: std::fmt::Display>(
    mut values: impl Iterator<Item = (&'a str, T)>,
    same: impl Fn(&T, &T) -> bool,
) -> Option<String> {
    let (source, value) = values.next()?;
    let (other_source, other) = values.find(|(_, other)| !same(&value, other))?;
    Some(format!("{value} ({source}), {other} ({other_source})"))
}

/// Whether the sources say that it cannot be used.
fn state(gpu: &mut Gpu, told: &[&ToldGpu]) {
    if !gpu.usable() {
        return;
    }
    gpu.unavailable = told.iter().find_map(|told| told.unavailable.clone());
    let cut = gpu.mig.is_some_and(|mig| mig.enabled);
    if gpu.usable() && cut && gpu.partitions.is_empty() && told.iter().all(|told| told.instances.is_empty()) {
        gpu.unavailable = Some(Unavailable::new(
            State::MigEmpty,
            "MIG mode is on and there are no instances; make some (`nvidia-smi mig -cgi … -C`), or turn MIG mode off",
        ));
    }
}

/// A source that told nothing.
fn failed(silence: &Silence, inventory: &Inventory) -> Option<Finding> {
    let version = inventory.facts.driver_version.as_deref().unwrap_or_default();
    let Silence { source, why, .. } = silence;
    Some(match silence.kind {
        Kind::Mismatch => Finding {
            code: "driver-version-mismatch".into(),
            stops: true,
            message: format!(
                "the loaded module is {version} and its libraries are not: {why}; reboot, or stop what uses GPUs and reload it: `rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia`"
            ),
        },
        Kind::Slow | Kind::Failed => Finding {
            code: "source-failed".into(),
            stops: false,
            message: format!("{source} tells nothing: {why}; what it told before is kept"),
        },
    })
}

/// What a source tells that cannot be about this node as the kernel shows it.
fn strange(told: &Told, inventory: &Inventory) -> Vec<Finding> {
    let (source, mut messages) = (&told.source, Vec::new());
    let held: Vec<&Gpu> = inventory.gpus.iter().filter(|gpu| gpu.driver.as_deref() == Some("nvidia")).collect();
    if told.gpus.is_empty() && !held.is_empty() {
        messages.push(("source-failed", format!("{source} lists no GPU, and the driver holds {}", held.len())));
    }
    for gpu in told.gpus.iter().filter(|gpu| !inventory.gpus.iter().any(|known| known.pci == gpu.pci)) {
        messages.push(("source-conflict", format!("{source} lists a GPU {}, and the PCI bus has none there", gpu.pci)));
    }
    if let (Some(told), Some(loaded)) = (&told.driver_version, &inventory.facts.driver_version)
        && told != loaded
    {
        let words = format!("{source} says that the driver is {told}, and the kernel that {loaded} is loaded");
        messages.push(("source-conflict", format!("{words}; run `quilt-gpu inventory refresh`")));
    }
    let finding = |(code, message): (&str, String)| Finding { code: code.into(), stops: false, message };
    messages.into_iter().map(finding).collect()
}

/// Keeps what was known. What a GPU is stays true while no source tells, as when it is bound to vfio-pci; what changes is kept
/// only where a source failed that would have told it, and nothing but this is known to have changed.
fn remember(inventory: &mut Inventory, earlier: &Inventory, told: &[&Told], failed: bool) {
    let same_boot = inventory.facts.boot_id == earlier.facts.boot_id;
    let same_driver = same_boot && inventory.facts.driver_version == earlier.facts.driver_version;
    let (now, before) = (&mut inventory.gpus, &earlier.gpus);
    for gpu in now.iter_mut() {
        let same = |old: &&Gpu| {
            let other = matches!((&old.uuid, &gpu.uuid), (Some(old), Some(new)) if !old.eq_ignore_ascii_case(new));
            old.pci == gpu.pci && old.device_id == gpu.device_id && !other
        };
        let Some(old) = before.iter().find(same) else { continue };
        let sources = &mut gpu.sources;
        keep(&mut gpu.uuid, old.uuid.as_ref().filter(|_| same_boot), sources, "uuid");
        keep(&mut gpu.model, old.model.as_ref(), sources, "model");
        keep(&mut gpu.memory_mb, old.memory_mb.as_ref(), sources, "memory_mb");
        keep(&mut gpu.compute_capability, old.compute_capability.as_ref(), sources, "compute_capability");
        let held = gpu.driver.as_deref() == Some("nvidia") && same_driver;
        let kept = held && failed;
        keep(&mut gpu.virtualization, old.virtualization.as_ref().filter(|_| kept), sources, "virtualization");
        keep(&mut gpu.mig, old.mig.as_ref().filter(|_| kept), sources, "mig");
        // A source that could look at the GPU says whether it is mended, and nobody else does: not one that fails, and not the
        // silence where none is asked. Without a minor the driver itself had given it up, and that can be seen now.
        let heard = told.iter().filter_map(|told| of(told, &gpu.pci)).any(ToldGpu::says_something);
        let given_up = |it: &&Unavailable| matches!(it.state, State::Lost | State::Failing) && old.minor.is_some();
        if gpu.usable() && held && !heard {
            gpu.unavailable = old.unavailable.as_ref().filter(given_up).cloned();
        }
    }
    if failed && same_driver {
        inventory.cuda_version = inventory.cuda_version.take().or_else(|| earlier.cuda_version.clone());
        if inventory.links.is_empty() {
            inventory.links = earlier.links.clone();
        }
    }
    forget_moved(&mut inventory.gpus);
    inventory.former = former(&inventory.gpus, earlier);
}

/// Which GPUs are gone, so that who asks for one by name learns what became of it.
fn former(now: &[Gpu], earlier: &Inventory) -> Option<Vec<(String, String)>> {
    let here = |name: &String| now.iter().any(|gpu| uuid(gpu).is_some_and(|uuid| uuid.eq_ignore_ascii_case(name)));
    let just_gone = earlier.gpus.iter().filter_map(|gpu| Some((gpu.uuid.clone()?, gpu.pci.clone())));
    let mut all: Vec<_> = earlier.former.iter().flatten().cloned().chain(just_gone).collect();
    all.retain(|(name, _)| !here(name));
    // One that came back meanwhile counts by where it was last.
    let later = all.clone();
    let mut at = 0;
    all.retain(|(name, _)| {
        at += 1;
        !later.iter().skip(at).any(|(other, _)| other.eq_ignore_ascii_case(name))
    });
    all.drain(..all.len().saturating_sub(MOST_FORMER));
    Some(all).filter(|all| !all.is_empty())
}

fn keep<T: Clone>(now: &mut Option<T>, before: Option<&T>, sources: &mut Vec<(String, String)>, datum: &str) {
    if let (None, Some(before)) = (&now, before) {
        *now = Some(before.clone());
        sources.push((datum.to_owned(), EARLIER.to_owned()));
    }
}

/// A UUID that another GPU has now was not this one's for ever.
fn forget_moved(gpus: &mut [Gpu]) {
    let remembered = |gpu: &Gpu| gpu.sources.iter().any(|(datum, source)| datum == "uuid" && source == EARLIER);
    let live: Vec<String> = gpus.iter().filter(|gpu| !remembered(gpu)).filter_map(uuid).collect();
    for gpu in gpus.iter_mut().filter(|gpu| remembered(gpu)) {
        if uuid(gpu).is_some_and(|uuid| live.contains(&uuid)) {
            gpu.uuid = None;
            gpu.sources.retain(|(datum, _)| datum != "uuid");
        }
    }
}

fn uuid(gpu: &Gpu) -> Option<String> {
    gpu.uuid.as_ref().map(|uuid| uuid.to_ascii_lowercase())
}

/// Two GPUs with one name would be granted to two containers.
fn one_gpu_for_each_name(gpus: &mut [Gpu]) {
    let minor = |gpu: &Gpu| gpu.minor.map(|minor| format!("device minor {minor}"));
    let uuid = |gpu: &Gpu| uuid(gpu).map(|uuid| format!("the UUID {uuid}"));
    let names: Vec<String> =
        gpus.iter().filter(|gpu| gpu.usable()).flat_map(|gpu| [minor(gpu), uuid(gpu)]).flatten().collect();
    let shared = |name: &String| names.iter().filter(|other| *other == name).count() > 1;
    for gpu in gpus.iter_mut().filter(|gpu| gpu.usable()) {
        if let Some(name) = [minor(gpu), uuid(gpu)].into_iter().flatten().find(shared) {
            let why = format!("the driver gives {name} to several GPUs");
            gpu.unavailable = Some(Unavailable::new(State::Ambiguous, why));
        }
    }
}

#[cfg(test)]
mod tests;
