//! `quilt-gpu stats`: who uses which GPU, and how much: the processes that NVML tells, through control groups to containers, names
//! and owners, held against the leases.

mod containers;
pub(crate) mod show;
pub(crate) mod told;

use std::fs;
use std::path::Path;

use contract::config::{Host, Nvml};
use contract::inventory::Inventory;
use contract::{Code, Refusal};
use ledger::{HeldBy, Lease, Ledger};
use serde::Serialize;
use shim::Setup;

use crate::exit::Failure;
use crate::inventory;
use crate::table;
use told::{Usage, UsedGpu};

/// One GPU, and who uses it.
#[derive(Debug, Serialize)]
pub(crate) struct Gpu {
    pub(crate) pci: String,
    /// `nvidia0`, where it has a minor.
    pub(crate) name: String,
    pub(crate) uuid: Option<String>,
    pub(crate) busy_percent: Option<u32>,
    pub(crate) memory_used_mb: Option<u64>,
    pub(crate) memory_total_mb: Option<u64>,
    /// Who has it by the leases.
    pub(crate) holders: Vec<String>,
    pub(crate) processes: Vec<User>,
}

/// A process that uses a GPU.
#[derive(Debug, Serialize)]
pub(crate) struct User {
    pub(crate) pid: u32,
    /// What it is called; absent where it is gone already, or in another pid namespace.
    pub(crate) command: Option<String>,
    pub(crate) memory_mb: Option<u64>,
    pub(crate) gi: Option<u32>,
    pub(crate) ci: Option<u32>,
    /// Its container's id; absent where it is in none.
    pub(crate) container: Option<String>,
    pub(crate) engine: Option<&'static str>,
    /// What people call its container.
    pub(crate) name: Option<String>,
    pub(crate) owner: Option<String>,
    /// Whether its container has a lease on this GPU.
    pub(crate) leased: bool,
}

/// Asks, and puts together.
///
/// # Errors
/// `DRIVER_NOT_READY` where the driver tells nothing; the configuration that keeps from asking it.
pub(crate) fn gather(setup: &Setup) -> Result<Vec<Gpu>, Failure> {
    let host = &setup.config.host;
    if host.nvml == Nvml::Off {
        return Err(Failure::Usage("the driver is not to be asked: [host] nvml = \"off\"".to_owned()));
    }
    let inventory = inventory::look(setup).map_err(Failure::Internal)?;
    let not_ready = |why| {
        let help = "run `quilt-gpu doctor`, and mend what it finds of the driver";
        Failure::Refused(Box::new(Refusal::new(Code::DriverNotReady, "driver-not-ready", why, help)))
    };
    let usage = inventory::usage(&inventory).map_err(not_ready)?;
    let leases = Ledger::for_reading(setup.state_dir()).on_record();
    Ok(joined(host, &inventory, &usage, &leases))
}

fn joined(host: &Host, inventory: &Inventory, usage: &Usage, leases: &[Lease]) -> Vec<Gpu> {
    usage.gpus.iter().map(|used| gpu(host, inventory, used, leases)).collect()
}

fn gpu(host: &Host, inventory: &Inventory, used: &UsedGpu, leases: &[Lease]) -> Gpu {
    let known = inventory.gpus.iter().find(|gpu| gpu.pci == used.pci);
    let of_gpu: Vec<&Lease> = leases.iter().filter(|lease| lease.pci == used.pci).collect();
    let processes = used.processes.iter().map(|process| {
        let proc = |file: &str| fs::read_to_string(host.path(&format!("proc/{}/{file}", process.pid))).ok();
        let groups = proc("cgroup").unwrap_or_default();
        let container = containers::of(&groups);
        let lease = of_gpu.iter().find(|lease| is_in(&groups, container.as_ref(), &lease.holder));
        let holder = lease.map(|lease| &lease.holder);
        let named = |holder: &HeldBy| table::in_pod(Some(&serde_json::json!(holder.pod())));
        let by_lease = || holder.map(|holder| holder.name().to_owned());
        let name = holder.and_then(named).or_else(|| containers::name(host, container.as_ref()?)).or_else(by_lease);
        User {
            pid: process.pid,
            command: proc("comm").map(|text| text.trim_end().to_owned()),
            memory_mb: process.memory_mb,
            gi: process.gi,
            ci: process.ci,
            container: container.as_ref().map(|container| container.id.clone()).or_else(by_lease),
            engine: container.as_ref().map(|container| container.engine).filter(|engine| !engine.is_empty()),
            name,
            owner: holder.and_then(owner),
            leased: lease.is_some(),
        }
    });
    Gpu {
        pci: used.pci.clone(),
        name: known.and_then(|gpu| gpu.minor).map_or(used.pci.clone(), |minor| format!("nvidia{minor}")),
        uuid: known.and_then(|gpu| gpu.uuid.clone()),
        busy_percent: used.busy_percent,
        memory_used_mb: used.memory_used_mb,
        memory_total_mb: used.memory_total_mb,
        holders: of_gpu.iter().map(|lease| lease.holder.name().to_owned()).collect(),
        processes: processes.collect(),
    }
}

/// Whether a process with these groups is of a lease's holder: by the container's id, or by the group that the lease names.
fn is_in(groups: &str, container: Option<&containers::Container>, holder: &HeldBy) -> bool {
    let (id, cgroup) = match holder {
        HeldBy::Container { container, cgroup, .. } => (container, cgroup.as_deref()),
        HeldBy::Draining { container, cgroup, .. } => (container, Some(cgroup.as_str())),
        HeldBy::Name { .. } | HeldBy::Reservation { .. } => return false,
    };
    if container.is_some_and(|container| container.id == *id) {
        return true;
    }
    let Some(wanted) = cgroup.map(Path::new).filter(|path| path.is_absolute() && path.parent().is_some()) else {
        return false;
    };
    groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|path| Path::new(path).starts_with(wanted))
}

fn owner(holder: &HeldBy) -> Option<String> {
    let HeldBy::Container { owner, pod, .. } = holder else { return None };
    let namespace = pod.as_ref().and_then(|pod| pod.namespace.as_ref()).map(|name| format!("namespace:{name}"));
    owner.clone().or(namespace)
}
