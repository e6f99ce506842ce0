//! `docker run --gpus` and Compose's `deploy … devices`: for these Docker, before 29.2, puts NVIDIA's hook into a spec and says in
//! variables which GPUs. Where the operator wants that, it is a request like any other, and the hook goes.

use contract::config::DockerGpus;
use contract::json::Node;
use contract::request::Words;
use contract::{Code, Refusal, visible};
use guard::System;

use crate::setup::Setup;
use crate::words::{Place, place};

/// What Docker says in it counts.
const VARIABLE: &str = "NVIDIA_VISIBLE_DEVICES=";

/// Names that Docker knows the hook by.
const NAMES: [&str; 2] = ["nvidia-container-runtime-hook", "nvidia-container-toolkit"];

/// Positions of such hooks in `hooks.prestart`, where they are a request: by policy, or because they are our own program
/// under that name, which only the operator can have put there.
pub(crate) fn hooks(spec: &Node<'_>, setup: &Setup, system: &dyn System) -> Vec<usize> {
    let list = spec.path(&["hooks", "prestart"]).map(Node::items).unwrap_or_default();
    let is_one = |hook: &Node<'_>| {
        let path = hook.get("path").and_then(Node::as_str).unwrap_or_default();
        let stage = hook.get("args").map(Node::items).unwrap_or_default().get(1).and_then(Node::as_str);
        stage == Some("prestart")
            && path.starts_with('/')
            && path.rsplit('/').next().is_some_and(|name| NAMES.contains(&name))
            && (setup.config.request.docker_gpus == DockerGpus::Request
                || system.same_file(path, &setup.hook().to_string_lossy()))
    };
    if list.is_empty() || place(spec) != Place::Alone {
        return Vec::new();
    }
    list.iter().enumerate().filter(|(_, hook)| is_one(hook)).map(|(index, _)| index).collect()
}

/// What Docker says in variables, behind those of the image: its own is the last. It writes a number of GPUs as the first so
/// many indexes, which name none.
///
/// # Errors
/// As [`visible::said`]; `INVALID_GPU_REQUEST` where it names nothing.
pub(crate) fn words(spec: &Node<'_>, setup: &Setup) -> Result<Words, Refusal> {
    let entries = spec.path(&["process", "env"]).map(Node::items).unwrap_or_default();
    let is_it = |entry: &Node<'_>| entry.as_str().is_some_and(|entry| entry.starts_with(VARIABLE));
    let last = entries.iter().rposition(is_it);
    let entries: Vec<Node<'_>> = entries
        .iter()
        .enumerate()
        .filter(|(at, entry)| !is_it(entry) || Some(*at) == last)
        .map(|(_, e)| e.clone())
        .collect();
    let said = visible::said(&entries, &[], &setup.config.policy.capabilities.0)?.words;
    if said.value("ids").is_none() {
        let message = "docker's --gpus names no GPU";
        let help = "ask for at least one, or leave the option out";
        return Err(Refusal::new(Code::InvalidGpuRequest, "docker-gpus", message, help).at("/process/env", ""));
    }
    let names = || said.value("ids").unwrap_or_default().split(',');
    let mut words = Words::default();
    if names().enumerate().all(|(index, name)| name.parse() == Ok(index)) {
        words.set("count", "/process/env".to_owned(), names().count().to_string());
        if let Some(capabilities) = said.value("capabilities") {
            words.set("capabilities", "/process/env".to_owned(), capabilities.to_owned());
        }
        return Ok(words);
    }
    Ok(said)
}

#[cfg(test)]
mod tests;
