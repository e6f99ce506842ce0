//! Reads a request out of a spec: annotations, and the environment where policy allows.

use std::path::Path;

use contract::config::{Config, RequestPolicy};
use contract::json::{Node, parse_data, pointer_token};
use contract::owner::Owner;
use contract::request::{Asked, KEYS, Source, Words};
use contract::{Code, Note, Refusal};
use guard::Workload;
use ledger::PodContainer;

use crate::injected::MADE_FOR;
use crate::named::{self, Whose};

const ANNOTATION: &str = "quilt.gpu/";
const GRANT_ANNOTATION: &str = "grant.quilt.gpu/";
const VARIABLE: &str = "QUILT_GPU_";
const STRICT_VARIABLE: &str = "QUILT_STRICT";
/// The variable of a reservation's token, and what is shown instead of one.
const TOKEN_VARIABLE: &str = "QUILT_GPU_CONTRACT";
const HIDDEN: &str = "(token)";
/// The key of a reservation's token, which in a pod only the node's agent writes.
const TOKEN: &str = "contract";

/// How an engine says where a container stands in a pod: its type, its name, the pod's UID, name and namespace. CRI-O
/// first: it copies every annotation of a pod, containerd's keys among them, and writes its own over them.
const ENGINES: [[&str; 5]; 2] = [
    [
        "io.kubernetes.cri-o.ContainerType",
        "io.kubernetes.container.name",
        "io.kubernetes.pod.uid",
        "io.kubernetes.pod.name",
        "io.kubernetes.pod.namespace",
    ],
    [
        "io.kubernetes.cri.container-type",
        "io.kubernetes.cri.container-name",
        "io.kubernetes.cri.sandbox-uid",
        "io.kubernetes.cri.sandbox-name",
        "io.kubernetes.cri.sandbox-namespace",
    ],
];
/// Most bytes of a name in a pod's place that are kept; Kubernetes takes none that is longer.
const MAX_POD_NAME: usize = 253;
/// Where CRI-O says which annotations are kubelet's, as a JSON object.
const CRIO_ANNOTATIONS: &str = "io.kubernetes.cri-o.Annotations";

/// Longest container name that fits into an annotation key behind `quilt.gpu/capabilities.` (63 characters in all).
const MAX_NAME: usize = 50;

/// Where a container says that it stands: enough to take rights from it, never to give it any (that is [`in_pod`]'s).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    /// No pod.
    Alone,
    /// The pod's own pause container.
    Sandbox,
    /// A container of a pod.
    InPod {
        /// Its name in the pod.
        name: &'a str,
    },
}

/// What the container asks for, and what is worth knowing of how it asked. `found` is what an engine put in for us,
/// `docker` what Docker's own option says.
///
/// # Errors
/// `INVALID_GPU_REQUEST` and its kin, with the place of the word that is wrong.
pub(crate) fn read(
    spec: &Node<'_>,
    config: &Config,
    found: Option<&Result<Words, Refusal>>,
    docker: Option<Words>,
    notes: &mut Vec<Note>,
) -> Result<Asked, Refusal> {
    let place = place(spec);
    if place == Place::Sandbox {
        return Ok(Asked::Nothing);
    }
    let mut annotated = annotations(spec, place)?;
    let in_pod = matches!(place, Place::InPod { .. });
    if in_pod && let Some(token) = annotated.take(TOKEN) {
        // The agent's token answers what the pod asks for, if it asks for anything.
        let asked = annotated.ask(Source::Annotation)?;
        let mut reserved = token.with_strict_of(&annotated).ask(Source::Annotation)?;
        if let (Asked::Reserved { request, .. }, Asked::Gpus(asked)) = (&mut reserved, asked) {
            *request = Some(asked);
        }
        return Ok(reserved);
    }
    let variables = if !in_pod && config.request.environment { environment(spec) } else { Words::default() };
    let whose = if in_pod { Whose::Pods } else { Whose::Alone };
    let kubelets = |key: &str, value: &str| is_kubelets(spec, key, value);
    let named = named::read(spec, whose, &kubelets, config, found, notes)?;
    // One source makes the request, annotations first; strict counts wherever it was said.
    let (words, source) = if annotated.ask_for_gpus() {
        (annotated.with_strict_of(&variables), Source::Annotation)
    } else {
        (variables.with_strict_of(&annotated), Source::Environment)
    };
    if let Some(docker) = docker.filter(Words::say_which) {
        if words.say_which() {
            let message = "GPUs are asked for twice: by Docker's --gpus, and in words of quilt-gpu";
            return Err(invalid(message, "/hooks/prestart", "", "drop one of the two"));
        }
        return named::bounded(words.filled_with(docker).ask(Source::VisibleDevices)?, config);
    }
    match named {
        Some((_, Source::Cdi)) if words.say_which() => {
            let message = "GPUs are asked for twice: as CDI devices, and in words of quilt-gpu";
            Err(invalid(message, "/annotations", "", "drop one of the two"))
        }
        Some((more, source)) if !words.say_which() => named::bounded(words.filled_with(more).ask(source)?, config),
        _ => words.ask(source),
    }
}

fn annotation<'a>(spec: &'a Node<'_>, key: &str) -> Option<&'a str> {
    spec.path(&["annotations", key]).and_then(Node::as_str)
}

pub(crate) fn place<'a>(spec: &'a Node<'_>) -> Place<'a> {
    let known = ENGINES.iter().find_map(|keys| Some((annotation(spec, keys[0])?, keys)));
    match known {
        None => Place::Alone,
        Some(("sandbox", _)) => Place::Sandbox,
        Some((_, [_, name, ..])) => Place::InPod { name: annotation(spec, name).unwrap_or("") },
    }
}

/// How this container could ask for a GPU: what a tenant is told who reached for one in another way.
pub(crate) fn way_to_ask(spec: &Node<'_>, policy: &RequestPolicy) -> String {
    match place(spec) {
        Place::InPod { name } => format!("the pod annotation {ANNOTATION}count.{name}"),
        _ if policy.environment => format!("{VARIABLE}COUNT=1 or the annotation {ANNOTATION}count"),
        _ => format!("the annotation {ANNOTATION}count"),
    }
}

/// Whether CRI-O made it: Podman has bundles in the same storage, and its users write any annotation, over its own too. But none
/// of them chooses what the control group is called: `crio-<id>`, or systemd's `<slice>:crio:<id>`.
fn is_crios(spec: &Node<'_>) -> bool {
    let path = spec.path(&["linux", "cgroupsPath"]).and_then(Node::as_str).unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    match name.split(':').collect::<Vec<_>>().as_slice() {
        [name] => name.starts_with("crio-"),
        [_, prefix, _] => *prefix == "crio",
        _ => false,
    }
}

/// The keys under which an engine attests a container's place in a pod, if it was Kubernetes' engine that wrote this spec.
/// Anybody can write them as annotations of a container of Docker's; nobody but the engine says where the bundle lies:
/// containerd's in the namespace that its CRI alone uses, CRI-O's in storage that Docker has no part in.
fn attesting(spec: &Node<'_>, bundle: &Path) -> Option<&'static [&'static str; 5]> {
    let [crio, containerd] = &ENGINES;
    let namespace = bundle.parent().and_then(Path::file_name);
    let keys = if namespace.is_some_and(|name| name == "k8s.io") {
        containerd
    } else if bundle.file_name().is_some_and(|name| name == "userdata") && is_crios(spec) {
        crio
    } else {
        return None;
    };
    annotation(spec, keys[0]).is_some().then_some(keys)
}

/// The pod of a container, its sandbox too, as the engine attests it: all that decides what is one pod's and not another's
/// asks here.
pub(crate) fn pod_of<'a>(spec: &'a Node<'_>, bundle: &Path) -> Option<&'a str> {
    annotation(spec, attesting(spec, bundle)?[2]).filter(|uid| !uid.is_empty())
}

/// A container's place in a pod, as the engine attests it: for reservations that are bound to one, for what it had before,
/// and for whoever looks for the pod.
pub(crate) fn in_pod(spec: &Node<'_>, bundle: &Path) -> Option<PodContainer> {
    let [kind, name, uid, pod, namespace] = *attesting(spec, bundle)?;
    if annotation(spec, kind) == Some("sandbox") {
        return None;
    }
    let bounded = |text: &str| text[..text.floor_char_boundary(MAX_POD_NAME)].to_owned();
    let said = |key| annotation(spec, key).map(bounded);
    // Podman says that its pods are pods, and not which.
    let uid = said(uid).filter(|uid| !uid.is_empty())?;
    Some(PodContainer { uid, container: said(name).unwrap_or_default(), name: said(pod), namespace: said(namespace) })
}

/// Whose a container is: by the engine's word for its namespace and the operator's for the folder of states, never by its own.
pub(crate) fn owner(spec: &Node<'_>, bundle: &Path, owners: &[Owner], state_root: &Path) -> Option<String> {
    let namespace = attesting(spec, bundle).and_then(|keys| annotation(spec, keys[4]));
    Owner::of(owners, namespace.filter(|namespace| !namespace.is_empty()), &state_root.to_string_lossy())
}

/// Which container of a pod this is, by its engine's word alone: for exceptions that the operator made for one.
pub(crate) fn attested<'a>(spec: &'a Node<'_>, bundle: &Path) -> Option<Workload<'a>> {
    let [kind, name, _, _, namespace] = *attesting(spec, bundle)?;
    // A sandbox has no name of its own.
    let container = annotation(spec, name).unwrap_or_default();
    let sandbox = annotation(spec, kind) == Some("sandbox");
    Some(Workload { namespace: annotation(spec, namespace)?, container, sandbox })
}

fn annotations(spec: &Node<'_>, place: Place<'_>) -> Result<Words, Refusal> {
    let mut words = Words::default();
    for member in spec.get("annotations").map(Node::members).unwrap_or_default() {
        let granted = member.key.strip_prefix(GRANT_ANNOTATION);
        let Some(rest) = member.key.strip_prefix(ANNOTATION).or(granted) else { continue };
        let at = format!("/annotations/{}", pointer_token(&member.key));
        let value = member
            .value
            .as_str()
            .ok_or_else(|| invalid("an annotation is a string", &at, "", "write its value in quotes"))?;
        let key = match place {
            Place::InPod { name } if granted.is_none() => match rest.split_once('.') {
                None => {
                    return Err(invalid("the key names no container of the pod", &at, value, &bare(&member.key, name)));
                }
                Some((TOKEN, _)) => return Err(not_the_tenants(&at)),
                Some((key, container)) if container == name => key,
                Some(_) => continue,
            },
            Place::InPod { .. } if !is_kubelets(spec, &member.key, value) => return Err(not_the_tenants(&at)),
            _ => rest,
        };
        let known = KEYS.iter().find(|known| **known == key && (granted.is_none() || key == TOKEN));
        let Some(known) = known else {
            let help = if granted.is_some() {
                format!("the node's agent writes {GRANT_ANNOTATION}{TOKEN} alone")
            } else {
                format!("known keys are {}", KEYS.join(", "))
            };
            return Err(invalid("unknown request key", &at, value, &help));
        };
        words.set(known, at, value.to_owned());
    }
    Ok(words)
}

/// The way out for a key that would reach every container of a pod.
fn bare(key: &str, name: &str) -> String {
    if name.len() > MAX_NAME {
        return format!(
            "container names over {MAX_NAME} characters cannot be addressed: give the container a shorter name and write {key}.<name>"
        );
    }
    format!("a pod's annotations reach every container of it: name one, {key}.{name}")
}

/// Whether kubelet wrote an annotation, not the pod. containerd keeps the two apart by the handler's configuration.
fn is_kubelets(spec: &Node<'_>, key: &str, value: &str) -> bool {
    let [[crio, ..], _] = ENGINES;
    if annotation(spec, crio).is_none() {
        return true;
    }
    let list = annotation(spec, CRIO_ANNOTATIONS).unwrap_or("");
    parse_data(list.as_bytes()).is_ok_and(|list| list.get(key).and_then(Node::as_str) == Some(value))
}

fn not_the_tenants(at: &str) -> Refusal {
    let message = "in a pod, a reservation's token is the node agent's to bring, not the pod's";
    let help = "take the key out of the pod, and ask with quilt.gpu/count.<container>";
    Refusal::new(Code::Policy, "request-grant", message, help).at(at, "")
}

/// Later copies of a variable win, as in the container itself.
fn environment(spec: &Node<'_>) -> Words {
    let mut words = Words::default();
    for (index, item) in spec.path(&["process", "env"]).map(Node::items).unwrap_or_default().iter().enumerate() {
        let Some((name, value)) = item.as_str().and_then(|text| text.split_once('=')) else { continue };
        // The safety switch is the one without GPU in its name: whoever writes it in means it too.
        let key = if name == STRICT_VARIABLE { Some("STRICT") } else { name.strip_prefix(VARIABLE) };
        let Some(key) = key else { continue };
        if let Some(known) = known_variable(key) {
            words.set(known, format!("/process/env/{index}"), value.to_owned());
        }
    }
    words
}

fn known_variable(key: &str) -> Option<&'static str> {
    let known = KEYS.iter().find(|known| known.eq_ignore_ascii_case(key));
    known.copied().filter(|_| key.bytes().all(|b| b.is_ascii_uppercase()))
}

/// Variables that look like words of a request and are none: a mistyped one asks for nothing, and nobody would know why.
/// They may be anybody's, so they are only noted.
pub(crate) fn unknown_variables(spec: &Node<'_>, policy: &RequestPolicy) -> Vec<Note> {
    let mut notes = Vec::new();
    if place(spec) != Place::Alone || !policy.environment {
        return notes;
    }
    for (index, item) in spec.path(&["process", "env"]).map(Node::items).unwrap_or_default().iter().enumerate() {
        let text = item.as_str().filter(|text| !text.starts_with(MADE_FOR)).unwrap_or_default();
        let name = text.split_once('=').map_or("", |(name, _)| name);
        if name.strip_prefix(VARIABLE).is_some_and(|key| known_variable(key).is_none()) {
            let message = format!("{name} is no variable of a request");
            notes.push(Note::new("request-variable", format!("/process/env/{index}"), message));
        }
    }
    notes
}

/// What stands at a variable's place is the whole entry: people know the variable by its name, not by its position. But a
/// token is a secret, wherever among the words of a request it was written.
pub(crate) fn show_entry(spec: &Node<'_>, refusal: &mut Refusal) {
    let index = refusal.at.strip_prefix("/process/env/").and_then(|index| index.parse::<usize>().ok());
    let items = spec.path(&["process", "env"]).map(Node::items).unwrap_or_default();
    if let Some(entry) = index.and_then(|index| items.get(index)).and_then(Node::as_str) {
        refusal.value = entry.to_owned();
    }
    let at_variable = [VARIABLE, STRICT_VARIABLE].iter().any(|name| refusal.value.starts_with(name));
    let ours = [ANNOTATION, GRANT_ANNOTATION].map(|prefix| format!("/annotations/{}", pointer_token(prefix)));
    if index.is_some() && at_variable || ours.iter().any(|place| refusal.at.starts_with(place)) {
        refusal.value = without_tokens(&refusal.value);
        refusal.message = without_tokens(&refusal.message);
    }
    if let Some((name, _)) = refusal.value.split_once('=').filter(|(name, _)| *name == TOKEN_VARIABLE) {
        refusal.value = format!("{name}={HIDDEN}");
    }
}

/// A text with every word that could be a token hidden: 32 hexadecimal digits on their own.
fn without_tokens(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        let (run, after) = rest.split_at(digits);
        out.push_str(if run.len() == 32 { HIDDEN } else { run });
        let others = after.find(|c: char| c.is_ascii_hexdigit()).unwrap_or(after.len());
        let (between, next) = after.split_at(others);
        out.push_str(between);
        rest = next;
    }
    out
}

fn invalid(message: &str, at: &str, value: &str, help: &str) -> Refusal {
    Refusal::new(Code::InvalidGpuRequest, "request-key", message, help).at(at, value)
}

#[cfg(test)]
mod tests;
