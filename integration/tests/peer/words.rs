//! What a container gets, as words that can be compared: whoever gives it out, and by whatever means.
//!
//! | word | meaning |
//! | --- | --- |
//! | `gpu UUID PATH`, `mig N:M PATH` | a device node that comes with this GPU or MIG instance |
//! | `control PATH` | a device node that comes with any |
//! | `file PATH` | a file of the host that can be read in the container, by any name |
//! | `name NAME FILE` | by this name a program in the container finds that library |
//! | `env NAME` | a variable that is set |
//! | `hook NAME` | a program that is run while the container is made |
//!
//! The driver's version reads `V`.

use std::collections::{BTreeMap, BTreeSet};

use integration::Result;
use serde_json::Value;

use crate::node::text;

pub(crate) type Words = BTreeSet<String>;

/// A document of NVIDIA's generator.
pub(crate) fn theirs(document: &Value, version: &str) -> Words {
    let mut words = Words::new();
    for device in list(&document["devices"]) {
        let name = text(&device["name"]);
        // By index a whole GPU is named a second time, and all at once a third time.
        let what = match name.as_str() {
            name if name.starts_with("GPU-") => format!("gpu {name}"),
            name if name.contains(':') => format!("mig {name}"),
            _ => continue,
        };
        words.extend(paths(&device["containerEdits"]["deviceNodes"]).map(|path| format!("{what} {path}")));
    }
    let edits = &document["containerEdits"];
    words.extend(paths(&edits["deviceNodes"]).map(|path| format!("control {path}")));
    let mounts = || list(&edits["mounts"]).map(|mount| (text(&mount["hostPath"]), text(&mount["containerPath"])));
    words.extend(mounts().map(|(host, _)| format!("file {host}")));
    let placed = mounts().map(|(host, path)| (path, base(&host).to_owned())).collect();
    words.extend(names(&placed, &links(edits)));
    words.extend(list(&edits["env"]).filter_map(Value::as_str).filter_map(variable));
    words.extend(list(&edits["hooks"]).map(|hook| format!("hook {}", text(&hook["args"][1]))));
    versionless(words, version)
}

/// Links that a hook makes: path and target.
fn links(edits: &Value) -> Vec<(String, String)> {
    let args = list(&edits["hooks"]).flat_map(|hook| list(&hook["args"])).filter_map(Value::as_str);
    args.filter_map(|arg| arg.split_once("::")).map(|(target, path)| (path.into(), target.into())).collect()
}

/// The names by which libraries are found: those that are mounted, and links that lead to one, over other links too.
fn names(placed: &BTreeMap<String, String>, links: &[(String, String)]) -> Words {
    let mut known = placed.clone();
    for _ in links {
        for (path, target) in links {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let beside = format!("{folder}/{}", base(target));
            let above = format!("{}/{}", folder.rsplit_once('/').map_or("", |(above, _)| above), base(target));
            let leads = if target.starts_with("../") { above } else { beside };
            if let Some(file) = known.get(&leads).cloned() {
                known.insert(path.clone(), file);
            }
        }
    }
    let library = |name: &str| name.contains(".so");
    let named = known.iter().filter(|(path, _)| library(base(path)));
    named.map(|(path, file)| format!("name {} {file}", base(path))).collect()
}

/// An inventory of ours, and the spec of a container that was given one GPU and everything that can be asked for.
pub(crate) fn ours(inventory: &Value, config: &Value, root: &str, topology: &Value) -> Result<Words> {
    let mut words = Words::new();
    for gpu in list(&inventory["gpus"]) {
        let own: Vec<String> = paths(&gpu["nodes"]).collect();
        if gpu["unavailable"].is_null() && list(&gpu["partitions"]).next().is_none() {
            words.extend(own.iter().map(|path| format!("gpu {} {path}", text(&gpu["uuid"]))));
        }
        for partition in list(&gpu["partitions"]).filter(|partition| partition["unavailable"].is_null()) {
            let name = theirs_of(topology, &text(&gpu["pci"]), partition);
            let nodes = own.iter().cloned().chain(paths(&partition["nodes"]));
            words.extend(nodes.map(|path| format!("mig {name} {path}")));
        }
    }
    words.extend(paths(&inventory["control"]).map(|path| format!("control {path}")));
    let mounts: BTreeMap<String, String> = list(&config["mounts"])
        .filter_map(|mount| Some((text(&mount["destination"]), mount["source"].as_str()?.strip_prefix(root)?.into())))
        .collect();
    words.extend(mounts.values().map(|host| format!("file {host}")));
    let placed = mounts.into_iter().map(|(path, host)| (path, base(&host).to_owned())).collect();
    words.extend(names(&placed, &[]));
    words.extend(list(&config["process"]["env"]).filter_map(Value::as_str).filter_map(variable));
    let stages = config["hooks"].as_object().into_iter().flat_map(|hooks| hooks.values());
    words.extend(stages.flat_map(list).map(|hook| format!("hook {}", text(&hook["path"]))));
    Ok(versionless(words, &text(&topology["driver_version"])))
}

/// What the other generator calls a MIG instance: the GPU's and the instance's place in NVML's order.
fn theirs_of(topology: &Value, pci: &str, partition: &Value) -> String {
    let place = |list: &Value, is: &dyn Fn(&Value) -> bool| list.as_array()?.iter().position(is);
    let gpu = place(&topology["gpus"], &|gpu| gpu["pci"] == pci);
    let same = |instance: &Value| instance["gi"] == partition["gi"] && instance["ci"] == partition["ci"];
    let instance = gpu.and_then(|gpu| place(&topology["gpus"][gpu]["instances"], &same));
    gpu.zip(instance).map_or_else(|| format!("unknown to NVML: {partition}"), |(gpu, at)| format!("{gpu}:{at}"))
}

fn variable(entry: &str) -> Option<String> {
    let (name, _) = entry.split_once('=')?;
    (name.starts_with("NVIDIA") || name.starts_with("CUDA")).then(|| format!("env {name}"))
}

fn paths(nodes: &Value) -> impl Iterator<Item = String> {
    list(nodes).map(|node| text(&node["path"]))
}

pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn versionless(words: Words, version: &str) -> Words {
    words.into_iter().map(|word| word.replace(version, "V")).collect()
}
