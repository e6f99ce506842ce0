//! The contract that a grant becomes: a pure choice among what the inventory has.

use contract::capability::{Capabilities, Capability};
use contract::config::{CudaVisibleDevices, Policy, Socket};
use contract::gpu::Gpu;
use contract::inventory::{DeviceNode, Facts, FileKind, Instances, Inventory, Marks, Role};
use contract::key::Key;
use contract::request::Request;
use contract::{Code, Contract, Granted, Products, Refusal, SCHEMA};

/// Control nodes of a GPU on the bus by name; which of these capabilities needs them (an empty list: every GPU container does); and, where
/// nothing works without the node, the inventory's finding when it is missing. Tools and modesetting are missed by few.
const CONTROL: [(&str, &[Capability], Option<&str>); 4] = [
    ("nvidiactl", &[], Some("ctl-missing")),
    ("nvidia-uvm", &[Capability::Compute], Some("uvm-missing")),
    ("nvidia-uvm-tools", &[Capability::Compute], None),
    ("nvidia-modeset", &[Capability::Graphics, Capability::Display], None),
];

/// Whom a contract is for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Recipient<'a> {
    /// The container; absent for a reservation.
    pub key: Option<&'a Key>,
    /// Whose it is, by the word of engine or operator.
    pub owner: Option<&'a str>,
}

/// Writes the contract for granted GPUs. `id` is its name, `now` in seconds since 1970.
///
/// # Errors
/// `CONTRACT_STALE` when the inventory no longer has a granted GPU, `DRIVER_NOT_READY` when a node that every such
/// container needs is not there.
pub fn draft(
    inventory: &Inventory,
    gpus: &[Granted],
    request: &Request,
    policy: &Policy,
    id: &str,
    recipient: Recipient<'_>,
    now: u64,
) -> Result<Contract, Refusal> {
    let wanted = &request.capabilities;
    let (mut nodes, mut products) = (Vec::new(), Products::default());
    for granted in gpus {
        let gone = || {
            let message = format!("{} is no longer in this node's inventory", granted.name());
            Refusal::new(Code::ContractStale, "gpu-gone", message, "ask again")
        };
        let gpu = inventory.gpus.iter().find(|gpu| gpu.pci == granted.pci).ok_or_else(gone)?;
        let mut own = gpu_nodes(gpu, granted, wanted)?;
        if let Some(of) = &granted.partition {
            let part = gpu.partitions.iter().find(|part| (part.gi, part.ci) == (of.gi, of.ci)).ok_or_else(gone)?;
            let unread = |why| {
                let why = format!("the nodes of {} cannot be read in this node's inventory: {why}", granted.name());
                not_ready(why, "run `quilt-gpu inventory refresh` on the node and try again")
            };
            own.extend(part.nodes.read().map_err(unread)?.into_owned());
        }
        // Instances share their GPU's node, and compute instances their GPU instance's.
        own.retain(|node| !nodes.iter().any(|known: &DeviceNode| known.path == node.path));
        nodes.extend(own);
        products.add(gpu);
    }
    nodes.extend(control_nodes(inventory, request)?);
    nodes.extend(inventory.control.iter().filter(|node| may_manage(node.role, policy, recipient.owner)).cloned());
    let needed = |of: &[Capability]| of.iter().any(|capability| wanted.has(*capability));
    Ok(Contract {
        schema: SCHEMA,
        id: id.to_owned(),
        key: recipient.key.map(|key| key.as_str().to_owned()),
        request: request.clone(),
        gpus: gpus.to_vec(),
        nodes,
        libraries: inventory
            .libraries
            .iter()
            .filter(|l| needed(&l.capabilities) && (l.bits == 64 || wanted.has(Capability::Compat32)))
            .cloned()
            .collect(),
        files: inventory.files.iter().filter(|f| needed(&f.capabilities) && allowed(f.kind, policy)).cloned().collect(),
        env: environment(gpus, wanted, policy.cuda_visible_devices),
        // Of the instances its own count, and these stand in the grant.
        facts: Facts { instances: Instances::default(), marks: Marks::default(), ..inventory.facts.clone() },
        created: now,
        products,
    })
}

/// Whether the operator lets this owner have a node that says something of all instances. A driver without MIG has none.
fn may_manage(role: Role, policy: &Policy, owner: Option<&str>) -> bool {
    let owners = match role {
        Role::MigConfig => &policy.mig_config,
        Role::MigMonitor => &policy.mig_monitor,
        _ => return false,
    };
    owners.iter().any(|listed| Some(listed.as_str()) == owner)
}

/// What changes the driver itself, or speaks to what serves all tenants, is given out only where the operator said so.
fn allowed(kind: FileKind, policy: &Policy) -> bool {
    let socket = match kind {
        FileKind::Program | FileKind::Data => return true,
        FileKind::Firmware => return policy.firmware,
        FileKind::Persistenced => Socket::Persistenced,
        FileKind::Fabricmanager => Socket::Fabricmanager,
        FileKind::Mps => Socket::Mps,
    };
    policy.sockets.contains(&socket)
}

fn gpu_nodes(gpu: &Gpu, granted: &Granted, wanted: &Capabilities) -> Result<Vec<DeviceNode>, Refusal> {
    if !gpu.nodes.iter().any(|node| node.role == Role::Compute) {
        return Err(not_ready(
            format!("the device node of {} is missing", granted.name()),
            "try again when the driver is ready; `quilt-gpu inventory` on the node says what it lacks",
        ));
    }
    // A DRM node is the whole GPU's.
    let whole = granted.partition.is_none();
    let given = |role| match role {
        Role::Compute => true,
        Role::Render => whole && wanted.has(Capability::Dri),
        Role::Display => whole && wanted.has(Capability::Display),
        Role::Control | Role::Caps | Role::MigConfig | Role::MigMonitor => false,
    };
    Ok(gpu.nodes.iter().filter(|node| given(node.role)).cloned().collect())
}

fn control_nodes(inventory: &Inventory, request: &Request) -> Result<Vec<DeviceNode>, Refusal> {
    let wanted = &request.capabilities;
    let mut nodes = Vec::new();
    if inventory.gpus.iter().any(Gpu::is_dxg) {
        return Ok(nodes);
    }
    for (name, capabilities, missing) in CONTROL {
        if !capabilities.is_empty() && !capabilities.iter().any(|capability| wanted.has(*capability)) {
            continue;
        }
        let node = inventory.control.iter().find(|node| node.path.rsplit('/').next() == Some(name));
        match (node, missing) {
            (Some(node), _) => nodes.push(node.clone()),
            (None, Some(code)) => return Err(without(inventory, request, name, capabilities, code)),
            (None, None) => {}
        }
    }
    Ok(nodes)
}

/// The refusal for a control node that is not there, in the words of the finding that says what would mend it.
fn without(inventory: &Inventory, request: &Request, name: &str, needed_by: &[Capability], code: &str) -> Refusal {
    let finding = inventory.findings.iter().find(|finding| finding.code == code);
    let what = finding.map_or_else(|| format!("the device node {name} is missing"), |finding| finding.message.clone());
    match needed_by {
        [] => not_ready(what, "mend that on the node; `quilt-gpu inventory` shows whether it is"),
        [first, ..] => {
            let help = format!("mend that on the node, or ask without the capability {}", first.name());
            not_ready(what, &help).at(request.place("capabilities"), request.capabilities.list())
        }
    }
}

fn not_ready(what: String, help: &str) -> Refusal {
    Refusal::new(Code::DriverNotReady, "node-missing", what, help)
}

fn environment(gpus: &[Granted], wanted: &Capabilities, cuda: CudaVisibleDevices) -> Vec<(String, String)> {
    let names: Vec<String> = gpus.iter().map(|gpu| gpu.driver_name().unwrap_or_else(|| gpu.name())).collect();
    let mut env = vec![
        ("NVIDIA_VISIBLE_DEVICES".to_owned(), names.join(",")),
        ("NVIDIA_DRIVER_CAPABILITIES".to_owned(), wanted.list()),
    ];
    // Positions do not name instances.
    let asked = cuda == CudaVisibleDevices::Uuid || gpus.iter().any(|gpu| gpu.partition.is_some());
    let by_uuid = asked && gpus.iter().all(|gpu| gpu.driver_name().is_some());
    match cuda {
        CudaVisibleDevices::Unset => {}
        // CUDA knows UUIDs and positions only: a GPU without a known UUID is named by its position.
        _ if by_uuid => env.push(("CUDA_VISIBLE_DEVICES".to_owned(), names.join(","))),
        _ => env.push((
            "CUDA_VISIBLE_DEVICES".to_owned(),
            (0..gpus.len()).map(|n| n.to_string()).collect::<Vec<_>>().join(","),
        )),
    }
    env
}

#[cfg(test)]
mod tests;
