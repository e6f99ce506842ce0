//! GPUs from what the bus and the driver say about them. No I/O.

use contract::gpu::{DXG, Gpu, State, Unavailable};
use contract::inventory::{DeviceNode, Facts, Finding, Role};

use node::driver::Information;
use node::pci::Device;

use super::nodes::{DevRoot, Trouble, gpu_major, mismatch};
use super::vfio;

/// A GPU on the PCI bus.
#[derive(Debug, Clone, Default)]
pub(crate) struct Function {
    /// What sysfs says about it.
    pub(crate) device: Device,
    /// Its DRM devices: name, major, minor.
    pub(crate) drm: Vec<(String, u32, u32)>,
    /// The number of its node, where that is WSL's.
    pub(crate) dxg: Option<(u32, u32)>,
    /// The other devices of its IOMMU group.
    pub(crate) group: Vec<Device>,
}

/// What the driver says about the GPUs that it holds, by PCI address.
pub(crate) type Held = [(String, Information)];

/// Every GPU in the order of the bus, usable or not, and what is wrong with their nodes.
pub(crate) fn gpus(functions: &[Function], held: &Held, facts: &Facts, dev: &DevRoot<'_>) -> (Vec<Gpu>, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut gpus: Vec<Gpu> = Vec::with_capacity(functions.len());
    for function in functions {
        let device = &function.device;
        let held = held.iter().find(|(pci, _)| *pci == device.address).map(|(_, information)| information);
        let node = own_node(function, held, facts, dev, &mut findings);
        let (mut nodes, unavailable) = match node {
            Ok(node) => (vec![node], None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        if unavailable.is_none() {
            nodes.extend(drm_nodes(function, dev, &mut findings));
        }
        gpus.push(Gpu {
            vendor: "nvidia".into(),
            pci: device.address.clone(),
            index: None,
            uuid: held.and_then(|held| held.uuid.clone()),
            minor: held.and_then(|held| held.minor),
            model: held.and_then(|held| held.model.clone()),
            device_id: format!("0x{:04x}", device.device),
            driver: device.driver.clone(),
            numa: device.numa,
            iommu_group: device.iommu_group,
            nodes,
            unavailable,
            ..Gpu::default()
        });
    }
    (gpus, findings)
}

/// What follows from which of them are usable: they alone have an index, and nodes to give.
pub(super) fn settle(gpus: &mut [Gpu]) {
    let mut index = 0..;
    for gpu in gpus {
        gpu.index = if gpu.usable() { index.next() } else { None };
        if !gpu.usable() {
            gpu.nodes.clear();
        }
    }
}

/// A GPU's `/dev/nvidiaN`, or why it cannot be granted.
fn own_node(
    function: &Function,
    held: Option<&Information>,
    facts: &Facts,
    dev: &DevRoot<'_>,
    findings: &mut Vec<Finding>,
) -> Result<DeviceNode, Unavailable> {
    let no = |state, why: &str| Err(Unavailable::new(state, why));
    let pci = &function.device.address;
    if let Some(number) = function.dxg {
        let made = "the kernel makes it; start WSL again with `wsl --shutdown`";
        return node_or_why(
            dev.node(DXG, number, Role::Compute),
            |path| format!("{path} does not exist: {made}"),
            findings,
        );
    }
    match function.device.driver.as_deref() {
        Some("nvidia") => {}
        Some(driver) if vfio::is_driver(driver) => return no(vfio::state(function), &vfio::why(driver, function)),
        Some(other) => {
            let why = format!(
                "held by the kernel driver {other}, not by nvidia; keep {other} from loading, or write {pci} to /sys/bus/pci/drivers/{other}/unbind and then to /sys/bus/pci/drivers/nvidia/bind"
            );
            return no(State::OtherDriver, &why);
        }
        None if facts.driver_version.is_some() => {
            let why = format!("no kernel driver holds it; write {pci} to /sys/bus/pci/drivers/nvidia/bind");
            return no(State::Unbound, &why);
        }
        None => {}
    }
    if facts.driver_version.is_none() {
        return no(State::DriverMissing, "the nvidia kernel module is not loaded; run `modprobe nvidia`");
    }
    let Some(held) = held else {
        let why = "the driver holds it and does not list it: it fell off the bus, or was never initialised; `dmesg | grep NVRM` says more, and a reset or a reboot may bring it back";
        return no(State::Lost, why);
    };
    if held.excluded {
        return no(State::Excluded, "excluded by an option of the nvidia kernel module");
    }
    let Some(minor) = held.minor else {
        return no(State::NodeMissing, "the driver does not tell its device minor, so its node is unknown");
    };
    let of = held.uuid.as_ref().map_or_else(String::new, |uuid| format!(", the node of {uuid},"));
    let mend = format!("run `nvidia-modprobe -c {minor}`, or `quilt-gpu inventory refresh --make-nodes`");
    let node = dev.node(&format!("nvidia{minor}"), (gpu_major(facts), minor), Role::Compute);
    node_or_why(node, |path| format!("{path}{of} does not exist; {mend}"), findings)
}

fn node_or_why(
    node: Result<DeviceNode, Trouble>,
    missing: impl FnOnce(String) -> String,
    findings: &mut Vec<Finding>,
) -> Result<DeviceNode, Unavailable> {
    node.map_err(|trouble| match trouble {
        Trouble::Missing(path) => Unavailable::new(State::NodeMissing, missing(path)),
        Trouble::Mismatch(message) => {
            findings.push(mismatch(message.clone()));
            Unavailable::new(State::NodeMismatch, message)
        }
    })
}

/// The DRM nodes that exist; a missing one only means that `dri` has less to give.
fn drm_nodes(function: &Function, dev: &DevRoot<'_>, findings: &mut Vec<Finding>) -> Vec<DeviceNode> {
    let mut nodes = Vec::new();
    for (name, major, minor) in &function.drm {
        let role = if name.starts_with("render") { Role::Render } else { Role::Display };
        match dev.node(&format!("dri/{name}"), (*major, *minor), role) {
            Ok(node) => nodes.push(node),
            Err(Trouble::Missing(_)) => {}
            Err(Trouble::Mismatch(message)) => findings.push(mismatch(message)),
        }
    }
    nodes
}
