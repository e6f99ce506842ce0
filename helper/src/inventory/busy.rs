//! Who has a GPU open without a lease. Every process is looked at, so this is for refreshes and never for a container's start.
//!
//! It is bookkeeping, not a boundary: what is not seen here is not refused.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use contract::config::Busy;
use contract::gpu::{DXG, Gpu, Partition, State, Unavailable};
use contract::inventory::{DeviceNode, Finding, Inventory, Role};
use ledger::{Ledger, slot};
use nix::sys::stat::{major, minor};
use shim::Setup;

/// The driver's own daemons and what watches GPUs, as the kernel shortens their names: they have all GPUs open, always.
const WATCHERS: [&str; 9] = [
    "dcgm-exporter",
    "dcgmi",
    "nv-fabricmanage",
    "nv-hostengine",
    "nvidia-device-p",
    "nvidia-imex",
    "nvidia-persiste",
    "nvidia-smi",
    // Ourselves, asking NVML.
    "quilt-gpu",
];

/// A process that has a device open.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Opener {
    pid: u32,
    name: String,
    number: (u32, u32),
}

/// Something that could be granted: a GPU, or the part at a position of its list, and the nodes that whoever uses it has
/// open and nobody else.
struct Place {
    gpu: usize,
    part: Option<usize>,
    numbers: Vec<(u32, u32)>,
}

/// Marks the GPUs and parts that somebody has open and nobody leased: what leases take is judged by them.
pub(super) fn judge(setup: &Setup, inventory: &mut Inventory) {
    let leased = Ledger::open_existing(setup.state_dir()).map(|ledger| ledger.taken(inventory)).unwrap_or_default();
    let free: Vec<Place> =
        inventory.gpus.iter().enumerate().flat_map(|(at, gpu)| free(at, gpu, &|slot| leased.contains(slot))).collect();
    if free.is_empty() {
        return;
    }
    let openers = openers(Path::new(&setup.config.host.path("proc")));
    for Place { gpu, part, numbers } in free {
        let mut by: Vec<&Opener> = openers.iter().filter(|opener| numbers.contains(&opener.number)).collect();
        by.dedup_by_key(|opener| opener.pid);
        let Some(gpu) = inventory.gpus.get_mut(gpu).filter(|_| !by.is_empty()) else { continue };
        let why = in_words(&by);
        let name = match part.and_then(|at| gpu.partitions.get(at)) {
            Some(part) => format!("{} ({} of {})", gpu.short_name(part), part.profile, gpu.pci),
            None => gpu.pci.clone(),
        };
        match setup.config.policy.busy {
            Busy::Skip => {
                let part = part.and_then(|at| gpu.partitions.get_mut(at));
                let unavailable = part.map_or(&mut gpu.unavailable, |part| &mut part.unavailable);
                *unavailable = Some(Unavailable::new(State::Busy, why));
            }
            Busy::Warn => {
                let message = format!("{name} is {why}; it is granted all the same");
                inventory.findings.push(Finding { code: "gpu-busy".into(), stops: false, message });
            }
        }
    }
}

/// What of a GPU could be granted and is not leased.
fn free(at: usize, gpu: &Gpu, leased: &dyn Fn(&String) -> bool) -> Vec<Place> {
    let numbers = |nodes: &[DeviceNode]| nodes.iter().map(|node| (node.major, node.minor)).collect::<Vec<_>>();
    if gpu.usable() && !leased(&gpu.pci) {
        let compute: Vec<DeviceNode> = gpu.nodes.iter().filter(|node| node.role == Role::Compute).cloned().collect();
        return vec![Place { gpu: at, part: None, numbers: numbers(&compute) }];
    }
    // The GPU's own node is open for every part, and that of a GPU instance for all compute instances in it.
    let known = |part: &Partition| part.nodes.read().unwrap_or_default().into_owned();
    let all: Vec<(u32, u32)> = gpu.partitions.iter().flat_map(|part| numbers(&known(part))).collect();
    let alone = |number: &(u32, u32)| all.iter().filter(|other| *other == number).count() == 1;
    let part = |(position, part): (usize, &Partition)| {
        let free = gpu.without(part).is_none() && !leased(&slot::of_part(gpu, part));
        let numbers = numbers(&known(part)).into_iter().filter(alone).collect();
        free.then_some(Place { gpu: at, part: Some(position), numbers })
    };
    gpu.partitions.iter().enumerate().filter_map(part).collect()
}

fn in_words(by: &[&Opener]) -> String {
    let first = by.iter().take(3).map(|opener| format!("{} (process {})", opener.name, opener.pid));
    let more = if by.len() > 3 { format!(" and {} more", by.len() - 3) } else { String::new() };
    format!("held open outside any lease by {}{more}", first.collect::<Vec<_>>().join(", "))
}

/// The processes that have a node of the driver's open. Ended ones, and those that may not be looked at, have none.
fn openers(proc: &Path) -> Vec<Opener> {
    let pid = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let mut openers = Vec::new();
    for (process, pid) in fs::read_dir(proc).into_iter().flatten().flatten().filter_map(|e| Some((e.path(), pid(&e)?)))
    {
        let mut numbers: Vec<(u32, u32)> = fs::read_dir(process.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|fd| device(&fd.path()))
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.is_empty() {
            continue;
        }
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_owned();
        if !WATCHERS.contains(&name.as_str()) {
            openers.extend(numbers.into_iter().map(|number| Opener { pid, name: name.clone(), number }));
        }
    }
    openers.sort_by_key(|opener| opener.pid);
    openers
}

/// The number of the device behind a descriptor whose name is one of the driver's. Others are not asked: a file on a dead
/// server would not answer.
fn device(descriptor: &Path) -> Option<(u32, u32)> {
    let leads = fs::read_link(descriptor).ok()?;
    leads.file_name()?.to_str().filter(|name| name.starts_with("nvidia") || *name == DXG)?;
    let there = fs::metadata(descriptor).ok()?;
    let narrow = |number: u64| u32::try_from(number).ok();
    there.file_type().is_char_device().then(|| Some((narrow(major(there.rdev()))?, narrow(minor(there.rdev()))?)))?
}

#[cfg(test)]
mod tests;
