//! Who has a GPU open without a lease. Every process is looked at, so this is for refreshes and never for a container's start.
//!
//! It is bookkeeping, not a boundary: what is not seen here is not refused.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use contract::config::Busy;
use contract::gpu::{Gpu, State, Unavailable};
use contract::inventory::{Finding, Inventory, Role};
use ledger::Ledger;
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

/// Marks the GPUs that somebody has open and nobody leased: what leases take is judged by them.
pub(super) fn judge(setup: &Setup, inventory: &mut Inventory) {
    let nodes =
        |gpu: &Gpu| gpu.nodes.iter().find(|node| node.role == Role::Compute).map(|node| (node.major, node.minor));
    let leased = Ledger::open_existing(setup.state_dir()).map(|ledger| ledger.taken(inventory)).unwrap_or_default();
    let free: Vec<usize> = (0..inventory.gpus.len())
        .filter(|at| inventory.gpus.get(*at).is_some_and(|gpu| gpu.usable() && !leased.contains(&gpu.pci)))
        .collect();
    if free.is_empty() {
        return;
    }
    let openers = openers(Path::new(&setup.config.host.path("proc")));
    for at in free {
        let Some(gpu) = inventory.gpus.get_mut(at) else { continue };
        let number = nodes(gpu);
        let by: Vec<&Opener> = openers.iter().filter(|opener| Some(opener.number) == number).collect();
        if by.is_empty() {
            continue;
        }
        let why = in_words(&by);
        match setup.config.policy.busy {
            Busy::Skip => gpu.unavailable = Some(Unavailable::new(State::Busy, why)),
            Busy::Warn => {
                let message = format!("{} is {why}; it is granted all the same", gpu.pci);
                inventory.findings.push(Finding { code: "gpu-busy".into(), stops: false, message });
            }
        }
    }
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
    leads.file_name()?.to_str()?.strip_prefix("nvidia")?;
    let there = fs::metadata(descriptor).ok()?;
    let narrow = |number: u64| u32::try_from(number).ok();
    there.file_type().is_char_device().then(|| Some((narrow(major(there.rdev()))?, narrow(minor(there.rdev()))?)))?
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use contract::config::Host;
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;
    use crate::demo::fixture;

    /// A node of the driver's name that can be opened without the driver: /dev/null's number.
    #[test]
    fn who_has_a_node_open_is_found_and_named() {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: making device nodes needs root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("nvidia0");
        mknod(&node, SFlag::S_IFCHR, Mode::S_IRUSR, makedev(1, 3)).unwrap();
        let input = || Stdio::from(fs::File::open(&node).unwrap());
        let mut child = Command::new("sleep").arg("60").stdin(input()).spawn().unwrap();
        let found: Vec<Opener> = openers(Path::new("/proc")).into_iter().filter(|it| it.pid == child.id()).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [Opener { pid: child.id(), name: "sleep".into(), number: (1, 3) }]);
        assert!(openers(Path::new("/proc")).iter().all(|it| it.pid != child.id()), "ended processes have nothing open");
    }

    /// The demonstration's node with a process table of its own: `fd` leads to real nodes.
    #[test]
    fn only_what_nobody_leased_is_judged_and_policy_says_how() {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: making device nodes needs root");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        fixture::lay_out(root.path()).unwrap();
        let process = |pid: u32, name: &str, node: &str| {
            let at = root.path().join(format!("proc/{pid}"));
            fs::create_dir_all(at.join("fd")).unwrap();
            fs::write(at.join("comm"), format!("{name}\n")).unwrap();
            std::os::unix::fs::symlink(root.path().join("dev").join(node), at.join("fd/3")).unwrap();
        };
        process(7, "python3", "nvidia0");
        process(8, "nvidia-persiste", "nvidia1");
        process(9, "python3", "nvidiactl");
        process(10, "python3", "nvidia2");
        let host = Host { root: root.path().to_str().unwrap().into(), ..Host::default() };
        let state = root.path().join("state");
        let setup = |busy| {
            let mut setup = Setup::read(&root.path().join("none.toml"));
            setup.config.host = host.clone();
            setup.config.paths.state_dir = state.to_str().unwrap().into();
            setup.config.policy.busy = busy;
            setup
        };
        let judged = |busy| {
            let mut inventory = crate::inventory::discover(&host).unwrap();
            judge(&setup(busy), &mut inventory);
            inventory
        };
        let states = |inventory: &Inventory| -> Vec<(u32, Option<State>)> {
            let mut states: Vec<_> = inventory
                .gpus
                .iter()
                .map(|gpu| (gpu.minor.unwrap(), gpu.unavailable.as_ref().map(|it| it.state)))
                .collect();
            states.sort_by_key(|(minor, _)| *minor);
            states
        };
        let skipped = judged(Busy::Skip);
        assert_eq!(states(&skipped), [(0, Some(State::Busy)), (1, None), (2, Some(State::Busy)), (3, None)]);
        let why = skipped.gpus.iter().find(|gpu| gpu.minor == Some(0)).unwrap().unavailable.clone().unwrap().why;
        assert_eq!(why, "held open outside any lease by python3 (process 7)");
        assert!(skipped.gpus.iter().all(|gpu| gpu.index.is_some()), "the driver still counts them");

        let warned = judged(Busy::Warn);
        assert!(states(&warned).iter().all(|(_, state)| state.is_none()));
        assert_eq!(warned.findings.iter().filter(|it| it.code == "gpu-busy" && !it.stops).count(), 2);

        let ledger = Ledger::open(&state).unwrap();
        let request = contract::request::Request {
            source: contract::request::Source::CommandLine,
            count: 1,
            ids: vec!["nvidia0".into()],
            kind: None,
            profile: None,
            capabilities: Default::default(),
            terms: Default::default(),
            places: Default::default(),
        };
        ledger.acquire_named(&crate::inventory::discover(&host).unwrap(), &request, "vm:a").unwrap();
        assert_eq!(states(&judged(Busy::Skip)), [(0, None), (1, None), (2, Some(State::Busy)), (3, None)]);
    }
}
