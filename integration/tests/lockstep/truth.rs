//! Whether a contract, and the spec that carries it out, say what is true of a node.

use std::collections::{BTreeMap, BTreeSet};

use integration::{Error, Held, Instance, NodeState, Result};
use serde_json::Value;

use crate::model::Grant;

/// The driver's libraries by path: what a file is, in two numbers.
pub(crate) type Files = BTreeMap<String, (u64, i64)>;

/// What a container was given.
pub(crate) struct Given {
    pub(crate) contract: Value,
    pub(crate) config: Value,
    pub(crate) grants: BTreeSet<Grant>,
}

/// Compares everything in a contract and a spec that the node decides.
pub(crate) fn holds(given: &Given, node: &NodeState, now: &Files) -> Result<()> {
    let Given { contract, config, grants } = given;
    facts(&contract["facts"], node)?;
    devices(config, grants, node)?;
    names(config, grants, node)?;
    files(contract, config, now)
}

/// The facts of a contract or an inventory.
pub(crate) fn facts(facts: &Value, node: &NodeState) -> Result<()> {
    same("driver version", &facts["driver_version"], &node.version.as_str().into())?;
    let uvm: Vec<&Value> = list(&facts["majors"]).filter(|major| major[0] == "nvidia-uvm").collect();
    same("nvidia-uvm", &Value::from(uvm.len()), &1.into())?;
    same("major of nvidia-uvm", &uvm[0][1], &node.uvm.into())?;
    let mut expected: Vec<Value> =
        held(node).map(|gpu| serde_json::json!({"pci": gpu.pci, "uuid": gpu.uuid, "minor": gpu.minor})).collect();
    expected.sort_by_key(|gpu| gpu["pci"].to_string());
    same("GPUs of the driver", &facts["driver_gpus"], &expected.into())
}

/// The MIG instances of an inventory.
pub(crate) fn instances(facts: &Value, node: &NodeState) -> Result<()> {
    let shown = node.instances.iter().filter(|instance| held(node).any(|gpu| gpu.minor == instance.gpu));
    let expected: BTreeSet<String> = shown.map(|one| format!("gpu{}/gi{}/ci{}", one.gpu, one.gi, one.ci)).collect();
    let seen: BTreeSet<String> = list(&facts["instances"]).map(text).collect();
    if seen == expected { Ok(()) } else { Err(Error::new(format!("instances {seen:?}, not {expected:?}"))) }
}

fn held(node: &NodeState) -> impl Iterator<Item = &integration::FakeGpu> {
    node.gpus.iter().filter(|(_, held)| *held == Held::Nvidia).map(|(gpu, _)| gpu)
}

/// The device entries: each under its own number, the granted GPUs and no other.
fn devices(config: &Value, grants: &BTreeSet<Grant>, node: &NodeState) -> Result<()> {
    let mut expected: BTreeMap<String, (u64, u64)> = [
        ("/dev/nvidiactl".into(), (195, 255)),
        ("/dev/nvidia-uvm".into(), (node.uvm, 0)),
        ("/dev/nvidia-uvm-tools".into(), (node.uvm, 1)),
    ]
    .into();
    for Grant { pci, minor, part } in grants {
        if !held(node).any(|gpu| gpu.pci == *pci && gpu.minor == *minor) {
            return Err(Error::new(format!("the driver has no {pci} with the minor {minor}")));
        }
        expected.insert(format!("/dev/nvidia{minor}"), (195, *minor));
        let instance = part.map(|(gi, ci)| Instance { gpu: *minor, gi, ci });
        if instance.is_some_and(|instance| !node.instances.contains(&instance)) {
            return Err(Error::new(format!("there is no {instance:?}")));
        }
        let caps = instance.into_iter().flat_map(Instance::capabilities);
        expected.extend(caps.map(|cap| (format!("/dev/nvidia-caps/nvidia-cap{cap}"), (236, cap))));
    }
    let number = |device: &Value, of: &str| device[of].as_u64().unwrap_or(u64::MAX);
    let seen: BTreeMap<String, (u64, u64)> = list(&config["linux"]["devices"])
        .map(|device| (text(&device["path"]), (number(device, "major"), number(device, "minor"))))
        .collect();
    if seen == expected { Ok(()) } else { Err(Error::new(format!("device entries {seen:?}, not {expected:?}"))) }
}

/// The UUIDs that the container is told.
fn names(config: &Value, grants: &BTreeSet<Grant>, node: &NodeState) -> Result<()> {
    let told = list(&config["process"]["env"]).filter_map(Value::as_str);
    let told: Vec<&str> = told.filter_map(|entry| entry.strip_prefix("NVIDIA_VISIBLE_DEVICES=")).collect();
    let seen: BTreeSet<String> = told.iter().flat_map(|entry| entry.split(',')).map(str::to_owned).collect();
    let name = |grant: &Grant| {
        let uuid = held(node).find(|gpu| gpu.pci == grant.pci).map_or("", |gpu| gpu.uuid.as_str());
        grant.part.map_or_else(|| uuid.to_owned(), |(gi, ci)| format!("MIG-{uuid}/{gi}/{ci}"))
    };
    let expected: BTreeSet<String> = grants.iter().map(name).collect();
    if seen == expected {
        Ok(())
    } else {
        Err(Error::new(format!("NVIDIA_VISIBLE_DEVICES {seen:?}, not {expected:?}")))
    }
}

/// Libraries: of the loaded version, and the very files that lie there.
fn files(contract: &Value, config: &Value, now: &Files) -> Result<()> {
    let mounts: BTreeSet<String> = list(&config["mounts"]).map(|mount| text(&mount["source"])).collect();
    let mut many = 0;
    for library in list(&contract["libraries"]) {
        let path = text(&library["host_path"]);
        let id = library["id"]["ino"].as_u64().zip(library["id"]["ctime_nsec"].as_i64());
        if id.is_none() || id.as_ref() != now.get(&path) {
            return Err(Error::new(format!("{path} is {:?}, not {id:?}", now.get(&path))));
        }
        if !mounts.contains(&path) {
            return Err(Error::new(format!("{path} is not mounted")));
        }
        many += 1;
    }
    if many > 2 { Ok(()) } else { Err(Error::new(format!("only {many} libraries"))) }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn same(what: &str, seen: &Value, expected: &Value) -> Result<()> {
    if seen == expected { Ok(()) } else { Err(Error::new(format!("{what}: {seen}, not {expected}"))) }
}
