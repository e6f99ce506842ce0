//! Requests in words that are not ours: names of CDI devices, `NVIDIA_VISIBLE_DEVICES`, and what NVIDIA's device plugin hands
//! on in a pod. Which of them count is the operator's word.

use contract::config::{All, Config, DevicePlugin, NvidiaVisibleDevices, Profile};
use contract::json::{Node, pointer_token};
use contract::request::{ALL, Asked, MAX_IDS, Source, Words};
use contract::{Code, Note, Refusal, visible};

/// Annotations that engines read as names of CDI devices.
const CDI: &str = "cdi.k8s.io/";
/// Below it NVIDIA's device plugin has a mount for each device.
const MOUNTED: &str = "/var/run/nvidia-container-devices/";

/// Whose words they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// A container's outside pods.
    Alone,
    /// A container's in a pod.
    Pods,
}

/// What the spec asks for in such words, and where from.
///
/// # Errors
/// `FOREIGN_GPU_INJECTION` for NVIDIA's devices by a kind that the operator did not map; what is malformed.
pub(crate) fn read(
    spec: &Node<'_>,
    whose: Whose,
    kubelets: &dyn Fn(&str, &str) -> bool,
    config: &Config,
    found: Option<&Result<Words, Refusal>>,
    notes: &mut Vec<Note>,
) -> Result<Option<(Words, Source)>, Refusal> {
    let annotated = annotated(spec, whose, kubelets, config, notes)?;
    if let Some(found) = found {
        return Ok(Some((found.clone()?, Source::Cdi)));
    }
    if annotated.is_some() {
        return Ok(annotated.map(|words| (words, Source::Cdi)));
    }
    let plugins = whose == Whose::Pods && config.request.device_plugin == DevicePlugin::Trusted;
    let honoured = whose == Whose::Alone && config.request.nvidia_visible_devices == NvidiaVisibleDevices::Honour;
    let mut words = if plugins { mounts(spec) } else { None };
    if words.is_none() && (plugins || honoured) {
        let entries = spec.path(&["process", "env"]).map(Node::items).unwrap_or_default();
        let swarm = if plugins { &[] } else { config.request.swarm_resources.as_slice() };
        let said = visible::said(entries, swarm, &config.policy.capabilities.0)?;
        let ids = said.words.value("ids").unwrap_or_default();
        // A plugin names devices; `all`, and a path, are an image's word, or its own where it mounts.
        if !ids.is_empty() && !(plugins && (ids == ALL || ids.starts_with('/'))) {
            notes.extend(said.notes);
            words = Some(said.words);
        }
    }
    Ok(words.map(|words| (words, Source::VisibleDevices)))
}

/// The request, where its words name all: up to the most that one container may have.
///
/// # Errors
/// `POLICY` where the operator wants GPUs to be named.
pub(crate) fn bounded(mut asked: Asked, config: &Config) -> Result<Asked, Refusal> {
    if let Asked::Gpus(request) = &mut asked
        && request.wants_all()
    {
        if config.request.all == All::Refuse {
            let message = "all GPUs are asked for, and on this node they have to be named";
            let help = "name the GPUs, or ask for a number of them";
            return Err(Refusal::new(Code::Policy, "all-devices", message, help).at(request.place("ids"), ALL));
        }
        let most = config.request.max_per_container;
        request.count = if most > 0 { most } else { MAX_IDS };
    }
    Ok(asked)
}

/// Devices by NVIDIA's plugin's mounts.
fn mounts(spec: &Node<'_>) -> Option<Words> {
    let mut list = List::default();
    for (index, mount) in spec.get("mounts").map(Node::items).unwrap_or_default().iter().enumerate() {
        let text = |key| mount.get(key).and_then(Node::as_str).unwrap_or_default();
        let name = text("destination").strip_prefix(MOUNTED).and_then(visible::mounted);
        if let Some(name) = name.filter(|_| text("source") == "/dev/null") {
            list.add(name, || format!("/mounts/{index}/destination"));
        }
    }
    list.words()
}

/// Devices that annotations name. Engines that know CDI have put them in by now, and leave the annotation or take it out.
fn annotated(
    spec: &Node<'_>,
    whose: Whose,
    kubelets: &dyn Fn(&str, &str) -> bool,
    config: &Config,
    notes: &mut Vec<Note>,
) -> Result<Option<Words>, Refusal> {
    let mut list = List::default();
    let plugins = whose == Whose::Pods && config.request.device_plugin == DevicePlugin::Trusted;
    for member in spec.get("annotations").map(Node::members).unwrap_or_default() {
        let value = member.value.as_str().unwrap_or_default();
        // A pod's own word would be one about every container of it: engines do not hear it either.
        if !member.key.starts_with(CDI) || (whose == Whose::Pods && !kubelets(&member.key, value)) {
            continue;
        }
        let at = || format!("/annotations/{}", pointer_token(&member.key));
        for name in value.split(',').map(str::trim) {
            let Some((kind, device)) = name.split_once('=') else { continue };
            let mapped = config.request.cdi_kinds.iter().any(|mapped| mapped == kind);
            if mapped || kind == visible::OWN_KIND || plugins && kind == visible::NVIDIA_KIND {
                list.add(device, at);
            } else if let Some(found) = judge(kind, config) {
                let (code, rule, message, help) = found;
                let Some(code) = code else {
                    notes.push(Note::new(rule, at(), message));
                    continue;
                };
                return Err(Refusal::new(code, rule, message, help).at(at(), name));
            }
        }
    }
    Ok(list.words())
}

/// Code of a refusal or none for a note, rule, message and way out.
type Verdict = (Option<Code>, &'static str, &'static str, &'static str);

/// Devices of other kinds: NVIDIA's are GPUs, others are the engine's to give and the operator's to allow.
fn judge(kind: &str, config: &Config) -> Option<Verdict> {
    let vendor = kind.split('/').next().unwrap_or_default();
    if vendor == "nvidia.com" || vendor.ends_with(".nvidia.com") {
        let message = "NVIDIA's devices are named by a CDI kind that is no request on this node";
        let help = "name devices of the kind quilt.gpu/device, or have the operator name this kind in cdi_kinds";
        return Some((Some(Code::ForeignGpuInjection), "cdi-foreign", message, help));
    }
    if config.policy.allow_cdi.iter().any(|allowed| allowed == kind) {
        return None;
    }
    let message = "a CDI device of a kind that the node's policy does not name: only its effects are judged";
    let help = "leave the annotation out, or have the operator name the kind in allow_cdi";
    let code = (config.policy.profile == Profile::Hardened).then_some(Code::UnsafeSpec);
    Some((code, "cdi-kind", message, help))
}

/// Names, and where the first of them stands.
#[derive(Default)]
struct List {
    names: String,
    place: String,
}

impl List {
    fn add(&mut self, name: &str, place: impl Fn() -> String) {
        if self.names.is_empty() {
            self.place = place();
        }
        self.names.push_str(name);
        self.names.push(',');
    }

    fn words(self) -> Option<Words> {
        let ids = visible::Names::read(&self.names).ok()?.list()?;
        let mut words = Words::default();
        words.set("ids", self.place, ids);
        Some(words)
    }
}

#[cfg(test)]
mod tests;
