//! How GPUs are connected, as NVML tells it.

#![allow(unsafe_code)] // a call that the crate wraps wrongly: its answer is always "unknown"

use contract::gpu::{Link, LinkKind};
use contract::inventory::pci_address;
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::error::nvml_try;
use nvml_wrapper::{Device, Nvml};

/// As many NVLinks as a GPU may have, with room for the next generation.
const MOST: u32 = 36;
/// `NVML_NVLINK_DEVICE_TYPE_…`
const TO_GPU: u32 = 0;
const TO_SWITCH: u32 = 2;

/// The NVLinks of a GPU that are up.
#[derive(Default)]
struct NvLinks {
    /// To NVSwitches: every GPU on one reaches every other.
    switch: u32,
    /// To other GPUs, by PCI address.
    gpus: Vec<String>,
}

/// The best way between any two.
pub(super) fn between(nvml: &Nvml, devices: &[(String, Device<'_>)]) -> Vec<Link> {
    let nvlinks: Vec<NvLinks> = devices.iter().map(|(_, device)| nvlinks(nvml, device)).collect();
    let all: Vec<_> = devices.iter().zip(&nvlinks).collect();
    let mut links = Vec::new();
    for (at, (first, of_first)) in all.iter().enumerate() {
        for (second, of_second) in all.iter().skip(at + 1) {
            let direct = of_first.gpus.iter().filter(|pci| **pci == second.0).count();
            let lanes = match u32::try_from(direct).unwrap_or(0) {
                0 => of_first.switch.min(of_second.switch),
                direct => direct,
            };
            let kind = if lanes > 0 { Some(LinkKind::Nvlink) } else { ancestor(nvml, &first.1, &second.1) };
            let (a, b) = if first.0 < second.0 { (&first.0, &second.0) } else { (&second.0, &first.0) };
            links.extend(kind.map(|kind| Link { a: a.clone(), b: b.clone(), kind, lanes }));
        }
    }
    links
}

fn nvlinks(nvml: &Nvml, device: &Device<'_>) -> NvLinks {
    let mut found = NvLinks::default();
    for number in 0..MOST {
        let link = device.link_wrapper_for(number);
        if !link.is_active().unwrap_or(false) {
            continue;
        }
        match leads_to(nvml, device, number) {
            Some(TO_SWITCH) => found.switch += 1,
            Some(TO_GPU) => {
                found.gpus.extend(link.remote_pci_info().ok().and_then(|info| pci_address(&info.bus_id)));
            }
            _ => {}
        }
    }
    found
}

fn leads_to(nvml: &Nvml, device: &Device<'_>, link: u32) -> Option<u32> {
    let mut kind = 0;
    let call = nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref().ok()?;
    // SAFETY: the handle is the library's own, and the number is ours for the time of the call.
    unsafe { nvml_try(call(device.handle(), link, &raw mut kind)) }.ok().map(|()| kind)
}

fn ancestor(nvml: &Nvml, first: &Device<'_>, second: &Device<'_>) -> Option<LinkKind> {
    Some(match nvml.topology_common_ancestor(first, second).ok()? {
        TopologyLevel::Internal | TopologyLevel::Single => LinkKind::Pix,
        TopologyLevel::Multiple => LinkKind::Pxb,
        TopologyLevel::HostBridge => LinkKind::Phb,
        TopologyLevel::Node => LinkKind::Node,
        TopologyLevel::System => LinkKind::Sys,
    })
}
