//! Engines: whether they know our runtime, whether anything uses it, and what goes past it.
//!
//! By the words of their configuration files, without reading these as what they are: enough to tell "not there" from "there".

use contract::config::DevicePlugin;

use super::{Facts, Finding};

const RUNTIME: &str = "quilt-gpu";
/// Words of programs and of files that bring GPUs into containers by themselves.
const FOREIGN: [&str; 4] = ["nvidia-container-runtime", "nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-toolkit"];

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut list = Vec::new();
    if facts.engines.is_empty() {
        let cause = "no engine is known to be installed here";
        let evidence = "no dockerd, containerd, crio or podman in the usual folders";
        return vec![Finding::warns("engine-missing", cause, evidence, "install one; then quilt-gpu configure ENGINE")];
    }
    let registered: Vec<_> = facts.engines.iter().filter(|engine| engine.text.contains(RUNTIME)).collect();
    for engine in &facts.engines {
        let (name, place) = (engine.name, engine.places.join(", "));
        if !engine.text.contains(RUNTIME) {
            // One engine that knows us is enough for a node.
            let make = if registered.is_empty() { Finding::stops } else { Finding::warns };
            let cause = format!("{name} does not know the runtime {RUNTIME}: no container of it gets a GPU through us");
            let mend = format!("quilt-gpu configure {name}; then restart {name}");
            list.push(make("runtime-not-registered", cause, place, mend));
            continue;
        }
        for path in engine.programs.iter().filter(|path| !facts.exists(path)) {
            let cause = format!("{name} is told to run a runtime that is not there");
            list.push(Finding::stops(
                "runtime-program-missing",
                cause,
                format!("{place}: {path}"),
                "install the package again",
            ));
        }
        if let Some(path) = &engine.unread {
            let cause = format!("{name} was told, and has not read it: it writes its containerd's file when it starts");
            let mend = format!("restart {name}");
            list.push(Finding::warns("template-not-read", cause, path, mend));
        }
        let is_cri = ["containerd", "k3s", "rke2", "microk8s"].contains(&engine.name);
        if is_cri && !engine.text.contains("pod_annotations") {
            let cause = "containerd hands no annotations of pods to the runtime: no pod can ask for a GPU";
            let mend = "add pod_annotations = [\"quilt.gpu/*\"] to the runtime's table";
            list.push(Finding::warns("annotations-not-passed", cause, place.clone(), mend));
        }
        list.extend(bypass(engine.name, &engine.text, &place));
    }
    if !registered.is_empty() && !facts.used {
        let cause = "the runtime is registered, and no container ever came through it: under Kubernetes a pod needs \
                     runtimeClassName, under Docker --runtime or default-runtime";
        let mend = "kubectl get runtimeclass quilt-gpu; docker run --runtime=quilt-gpu …";
        list.push(Finding::warns("runtime-not-used", cause, "quilt-gpu audit --kind create", mend));
    }
    list.extend(installed(facts));
    for path in &facts.injectors {
        let cause = "another program brings GPUs into containers by itself: what it grants is in no lease of ours";
        let mend = format!("remove {path}, or the package that it belongs to");
        list.push(Finding::warns("foreign-injector", cause, path, mend));
    }
    for (place, label) in facts.labels.iter().filter(|(_, label)| is_anothers(label, facts)) {
        let cause = format!(
            "kubelet labels this node for NVIDIA's operator ({label}): what that hands out is in no lease of ours"
        );
        let mend = "take it out of kubelet's --node-labels and restart kubelet; then kubectl label node NODE KEY=false --overwrite";
        list.push(Finding::warns("node-label", cause, place, mend));
    }
    list
}

/// Whether a label of a node's brings another way to GPUs there: a runtime, a plugin that counts them without us, or GPUs for
/// virtual machines.
fn is_anothers(label: &str, facts: &Facts) -> bool {
    match label.split_once('=') {
        Some(("nvidia.com/gpu.deploy.container-toolkit", value)) => value == "true",
        Some(("nvidia.com/gpu.deploy.device-plugin", value)) => {
            value == "true" && facts.config.request.device_plugin == DevicePlugin::Ignore
        }
        Some(("nvidia.com/gpu.workload.config", value)) => value != "container",
        _ => false,
    }
}

/// Copies of our programs: whether what engines run is whole, one, and all that lies there.
fn installed(facts: &Facts) -> Vec<Finding> {
    let again = "run the installer again: quilt-gpu install-node, or its pod on this node";
    let mut list = Vec::new();
    match &facts.installed {
        Err(why) => {
            list.push(Finding::warns("installation-unreadable", "what an installer put here is not known", why, again));
        }
        Ok(Some(status)) => {
            if let Some(why) = &status.broken {
                let cause = format!(
                    "the installation in {} is not whole: what engines are told to run is not there",
                    status.prefix
                );
                list.push(Finding::stops("installation-broken", cause, why, again));
            }
            if !status.stale.is_empty() {
                let cause = "copies of older versions are left that no running container needs";
                list.push(Finding::warns("installation-stale", cause, status.stale.join(", "), again));
            }
        }
        Ok(None) => {}
    }
    let differs = facts.told.first().and_then(|(path, digest)| {
        facts.told.iter().find(|(_, other)| other != digest).map(|(other, _)| format!("{path}, {other}"))
    });
    if let Some(paths) = differs {
        let cause = "engines run different builds of ours over one ledger: what one writes the other may not know";
        let mend = "keep one: take the other back with quilt-gpu configure ENGINE --undo, or bring both to one version";
        list.push(Finding::warns("two-builds", cause, paths, mend));
    }
    list
}

/// Runtimes of the same engine that do not ask us.
fn bypass(name: &str, text: &str, place: &str) -> Option<Finding> {
    let foreign = FOREIGN.iter().find(|word| text.contains(**word))?;
    let cause = format!("{name} also has the runtime {foreign}: whoever may choose it gets every GPU past us");
    let mend =
        format!("take it out of {place}, or let an authorisation layer or admission policy keep tenants from it");
    Some(Finding::warns("runtime-bypass", cause, format!("{place}: {foreign}"), mend))
}
