//! What differs between two inventories, in lines for people. No I/O.

use std::collections::BTreeMap;

use contract::inventory::{DeviceNode, FileId, Filter, Inventory, LowLevel};

/// One line for each difference: `+` came, `-` went, `~` changed.
#[must_use]
pub fn changes(old: Option<&Inventory>, new: &Inventory) -> Vec<String> {
    let (old, new) = (old.map(lines).unwrap_or_default(), lines(new));
    let mut out = Vec::new();
    for (what, was) in &old {
        match new.get(what) {
            None => out.push(format!("- {what}: {}", was.text)),
            Some(is) if is.text != was.text => out.push(format!("~ {what}: {} -> {}", was.text, is.text)),
            Some(is) if is.id != was.id => out.push(format!("~ {what}: {} was replaced", is.text)),
            Some(_) => {}
        }
    }
    out.extend(
        new.iter().filter(|(what, _)| !old.contains_key(*what)).map(|(what, is)| format!("+ {what}: {}", is.text)),
    );
    out
}

/// What is known about one thing.
struct Known {
    text: String,
    id: Option<FileId>,
}

fn lines(inventory: &Inventory) -> BTreeMap<String, Known> {
    let mut lines = BTreeMap::new();
    let mut add = |what: String, text: String, id: Option<FileId>| {
        lines.insert(what, Known { text, id });
    };
    if let Some(version) = &inventory.facts.driver_version {
        add("driver".into(), version.clone(), None);
    }
    for (name, major) in &inventory.facts.majors {
        add(format!("major {name} {major}"), "registered".into(), None);
    }
    for gpu in &inventory.gpus {
        let uuid = gpu.uuid.as_deref().unwrap_or("uuid unknown");
        let state = gpu.unavailable.as_ref().map_or("usable", |it| it.why.as_str());
        add(
            format!("gpu {}", gpu.pci),
            format!(
                "{}, {uuid}, {state}",
                gpu.minor.map_or_else(|| "no minor".to_owned(), |minor| format!("nvidia{minor}"))
            ),
            None,
        );
    }
    for (gpu, part) in inventory.gpus.iter().flat_map(|gpu| gpu.partitions.iter().map(move |part| (gpu, part))) {
        let (uuid, state) = (part.uuid.as_deref(), gpu.without(part).map(|it| it.why.as_str()));
        let text = format!("{}, {}, {}", part.profile, uuid.unwrap_or("uuid unknown"), state.unwrap_or("usable"));
        add(format!("mig instance {}/{} of {}", part.gi, part.ci, gpu.pci), text, None);
    }
    for node in inventory.nodes() {
        add(format!("node {}", node.path), described(&node), None);
    }
    for library in &inventory.libraries {
        add(format!("library {} ({}-bit)", library.soname, library.bits), library.host_path.clone(), Some(library.id));
    }
    for file in &inventory.files {
        add(format!("file {}", file.path), file.host_path.clone(), file.is_pinned().then_some(file.id));
    }
    if let Some(low_level) = &inventory.low_level {
        add(format!("low-level runtime {}", low_level.path), in_words(low_level), Some(low_level.id));
    }
    for (at, finding) in inventory.findings.iter().enumerate() {
        let same = inventory.findings.iter().take(at).filter(|other| other.code == finding.code).count();
        let number = if same == 0 { String::new() } else { format!(" {}", same + 1) };
        add(format!("finding {}{number}", finding.code), finding.message.clone(), None);
    }
    lines
}

/// What the low-level runtime does here.
#[must_use]
pub fn in_words(low_level: &LowLevel) -> String {
    let called = [low_level.name.as_str(), low_level.version.as_str()].join(" ");
    let called = if low_level.name.is_empty() { "unknown".to_owned() } else { called };
    let reason = low_level.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let filter = match low_level.filter {
        Filter::Enforced => "device filters hold",
        Filter::NotEnforced => "device filters do not hold",
        Filter::NotTried => "device filters could not be tried",
    };
    format!("{called}, cgroup v{}, {filter}{reason}", low_level.cgroup)
}

fn described(node: &DeviceNode) -> String {
    format!("{} {}:{}, mode {:04o}, owner {}:{}", node.host_path, node.major, node.minor, node.mode, node.uid, node.gid)
}
