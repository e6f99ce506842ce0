//! GPUs that are set aside for virtual machines, and whether a virtual machine could have them. No I/O.

use contract::gpu::State;
use node::pci::Device;

use super::gpus::Function;

/// A bridge's class and subclass: it stays with the host whatever becomes of its group.
const PCI_BRIDGE: u32 = 0x0604;

/// Whether this kernel driver hands a device to virtual machines: vfio-pci, and its variants for some devices.
pub(crate) fn is_driver(driver: &str) -> bool {
    driver.ends_with("vfio-pci") || driver.ends_with("vfio_pci")
}

/// Whether a virtual machine could have a GPU that is bound to such a driver.
pub(crate) fn state(function: &Function) -> State {
    match function.device.iommu_group {
        Some(_) if function.group.iter().all(is_free) => State::Vfio,
        _ => State::VfioGroup,
    }
}

/// What is true of a GPU that is bound to such a driver.
pub(crate) fn why(driver: &str, function: &Function) -> String {
    let device = &function.device;
    let back =
        format!("unbind it there and write {} to /sys/bus/pci/drivers/nvidia/bind to have it back", device.address);
    let Some(number) = device.iommu_group else {
        return format!("bound to {driver}, for a virtual machine; no IOMMU group, so none can have it; {back}");
    };
    let members: Vec<String> = function.group.iter().map(described).collect();
    let members = if members.is_empty() { "alone".to_owned() } else { format!("with {}", members.join(", ")) };
    let held: Vec<&str> = function.group.iter().filter(|other| !is_free(other)).map(|other| &*other.address).collect();
    let viable = if held.is_empty() {
        "viable".to_owned()
    } else {
        format!("not viable until {} let go of", held.join(", ") + if held.len() == 1 { " is" } else { " are" })
    };
    format!("bound to {driver}, for a virtual machine; IOMMU group {number}, {members}: {viable}; {back}")
}

/// Whether a virtual machine may have a group with this member in it.
fn is_free(member: &Device) -> bool {
    let bridge = member.class >> 8 == PCI_BRIDGE;
    bridge || member.driver.as_deref().is_none_or(|driver| is_driver(driver) || driver == "pci-stub")
}

fn described(member: &Device) -> String {
    let by = match member.driver.as_deref() {
        _ if member.class >> 8 == PCI_BRIDGE => "bridge",
        Some(driver) => driver,
        None => "no driver",
    };
    format!("{} ({by})", member.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_viable_when_nobody_else_holds_a_member() {
        type Member = (&'static str, u32, Option<&'static str>);
        let table: [(Option<u32>, &[Member], &str); 7] = [
            (None, &[], "no IOMMU group, so none can have it"),
            (Some(12), &[], "IOMMU group 12, alone: viable;"),
            (Some(12), &[("41:00.1", 0x040300, Some("vfio-pci"))], "with 41:00.1 (vfio-pci): viable;"),
            (Some(12), &[("41:00.1", 0x040300, None)], "with 41:00.1 (no driver): viable;"),
            (Some(12), &[("40:01.0", 0x060400, Some("pcieport"))], "with 40:01.0 (bridge): viable;"),
            (Some(12), &[("41:00.1", 0x040300, Some("snd_hda_intel"))], "not viable until 41:00.1 is let go of;"),
            (
                Some(3),
                &[("41:00.1", 0x040300, Some("snd_hda_intel")), ("42:00.0", 0x030000, Some("nvidia"))],
                "with 41:00.1 (snd_hda_intel), 42:00.0 (nvidia): not viable until 41:00.1, 42:00.0 are let go of;",
            ),
        ];
        for (iommu_group, members, words) in table {
            let member = |(address, class, driver): &Member| Device {
                address: (*address).into(),
                class: *class,
                driver: driver.map(str::to_owned),
                ..Device::default()
            };
            let function = Function {
                device: Device { address: "41:00.0".into(), iommu_group, ..Device::default() },
                group: members.iter().map(member).collect(),
                ..Function::default()
            };
            let why = why("vfio-pci", &function);
            assert!(why.contains(words), "{words}: {why}");
            let viable = words.ends_with(": viable;");
            assert_eq!(state(&function), if viable { State::Vfio } else { State::VfioGroup }, "{words}");
            assert!(why.starts_with("bound to vfio-pci") && why.contains("write 41:00.0"), "{why}");
        }
    }
}
