//! PCI devices as sysfs shows them (`Documentation/ABI/testing/sysfs-bus-pci`).

use std::fs;

use contract::config::Host;
use contract::inventory::pci_address;

use crate::boot::text;
use crate::error::{NodeError, found};
use crate::file;

/// PCI vendor id of NVIDIA.
pub const NVIDIA: u32 = 0x10de;

/// One PCI function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Device {
    /// Its address, as in `0000:41:00.0`.
    pub address: String,
    /// Vendor id.
    pub vendor: u32,
    /// Device id.
    pub device: u32,
    /// Class, subclass and interface: 0x030200 is a 3D controller.
    pub class: u32,
    /// The kernel driver that holds it.
    pub driver: Option<String>,
    /// NUMA node, when the machine tells one.
    pub numa: Option<i32>,
    /// IOMMU group.
    pub iommu_group: Option<u32>,
    /// It is a virtual function of another.
    pub is_virtual: bool,
}

impl Device {
    /// Whether it is an NVIDIA GPU: a display controller; its audio function and NVSwitches are none.
    #[must_use]
    pub fn is_gpu(&self) -> bool {
        self.vendor == NVIDIA && self.class >> 16 == 0x03
    }
}

/// The PCI devices of the node, sorted by address as numbers; none without a PCI bus.
///
/// # Errors
/// The bus is there and cannot be read.
pub fn devices(host: &Host) -> Result<Vec<Device>, NodeError> {
    let folder = host.path("sys/bus/pci/devices");
    let failed = |e| NodeError::new("list", folder.as_str(), e);
    let Some(entries) = found(fs::read_dir(&folder).map_err(failed))? else {
        return Ok(Vec::new());
    };
    let mut devices = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let Some(address) = pci_address(&name.to_string_lossy()) else {
            continue;
        };
        devices.extend(device(&format!("{folder}/{}", name.to_string_lossy()), address)?);
    }
    // An address with a longer domain comes after all shorter ones.
    contract::order::sort_by(&mut devices, |a, b| (a.address.len(), &a.address).cmp(&(b.address.len(), &b.address)));
    Ok(devices)
}

/// The folder that a device has below `/sys/devices`, as every mount of sysfs shows it; none when there is no such device.
#[must_use]
pub fn sysfs_folder(host: &Host, address: &str) -> Option<String> {
    let target = fs::read_link(host.path(&format!("sys/bus/pci/devices/{address}"))).ok()?;
    let path = target.to_str()?.trim_start_matches("../");
    (path.starts_with("devices/") && !path.contains("..")).then(|| format!("/sys/{path}"))
}

/// `None` when it was taken out meanwhile.
fn device(folder: &str, address: String) -> Result<Option<Device>, NodeError> {
    let Some(vendor) = hexadecimal(folder, "vendor")? else {
        return Ok(None);
    };
    let numa = found(file::read(&format!("{folder}/numa_node")))?.and_then(|bytes| text(&bytes).parse().ok());
    Ok(Some(Device {
        address,
        vendor,
        device: hexadecimal(folder, "device")?.unwrap_or_default(),
        class: hexadecimal(folder, "class")?.unwrap_or_default(),
        driver: link(folder, "driver"),
        numa: numa.filter(|&node| node >= 0),
        iommu_group: link(folder, "iommu_group").and_then(|group| group.parse().ok()),
        is_virtual: fs::symlink_metadata(format!("{folder}/physfn")).is_ok(),
    }))
}

/// A number that sysfs writes as `0x10de`.
pub(crate) fn hexadecimal(folder: &str, name: &str) -> Result<Option<u32>, NodeError> {
    let bytes = found(file::read(&format!("{folder}/{name}")))?;
    Ok(bytes.and_then(|bytes| u32::from_str_radix(text(&bytes).strip_prefix("0x")?, 16).ok()))
}

/// The last part of where a link leads.
fn link(folder: &str, name: &str) -> Option<String> {
    let target = fs::read_link(format!("{folder}/{name}")).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}
