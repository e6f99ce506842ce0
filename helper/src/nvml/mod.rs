//! What NVML tells. It is loaded into this process, which must be one of its own (`crate::confine`): it may hang, crash, and
//! do more than it is asked. Nothing here changes a setting of a GPU.
//!
//! GPUs are asked for by the PCI addresses that the kernel shows: one that NVML cannot open is then told with its error.

mod gpu;
mod links;
mod mig;
mod usage;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use contract::gpu::{State, Unavailable};
use contract::inventory::pci_address;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};

pub(crate) use usage::usage;

use crate::inventory::told::{Answer, Kind, NVML, Silence, Told, ToldGpu};

/// Loads the open library, which is called so, and asks it about these GPUs and all others that it lists;
/// `live`: about what they do now too.
pub(crate) fn tell(library: &Path, open: &File, asked: &[String], live: bool) -> Answer {
    let path = format!("/proc/self/fd/{}", open.as_raw_fd());
    let nvml = Nvml::builder().lib_path(path.as_ref()).init().map_err(|cause| silence(library, &cause))?;
    let (devices, mut gpus) = devices(&nvml, asked);
    gpus.extend(devices.iter().map(|(pci, device)| gpu::told(&nvml, pci, device, live)));
    contract::order::sort_by(&mut gpus, |a, b| a.pci.cmp(&b.pci));
    let cuda = nvml.sys_cuda_driver_version().ok().filter(|version| *version > 0);
    Ok(Told {
        source: NVML.to_owned(),
        driver_version: nvml.sys_driver_version().ok(),
        cuda_version: cuda.map(|it| format!("{}.{}", cuda_driver_version_major(it), cuda_driver_version_minor(it))),
        links: links::between(&nvml, &devices),
        gpus,
    })
}

fn silence(library: &Path, cause: &NvmlError) -> Silence {
    let kind = if matches!(cause, NvmlError::LibRmVersionMismatch) { Kind::Mismatch } else { Kind::Failed };
    let what = if matches!(cause, NvmlError::LibloadingError(_) | NvmlError::FailedToLoadSymbol(_)) {
        "load"
    } else {
        "start"
    };
    Silence { source: NVML.to_owned(), kind, why: format!("cannot {what} {}: {}", library.display(), in_words(cause)) }
}

/// The GPUs that can be asked, by PCI address, and what there is to tell of those that cannot.
fn devices<'nvml>(nvml: &'nvml Nvml, asked: &[String]) -> (Vec<(String, Device<'nvml>)>, Vec<ToldGpu>) {
    let (mut devices, mut told) = (Vec::new(), Vec::new());
    for pci in asked {
        match nvml.device_by_pci_bus_id(pci.as_str()) {
            Ok(device) => devices.push((pci.clone(), device)),
            Err(cause) => {
                told.push(ToldGpu { pci: pci.clone(), unavailable: cannot_open(&cause), ..ToldGpu::default() })
            }
        }
    }
    for index in 0..nvml.device_count().unwrap_or(0) {
        let Ok(device) = nvml.device_by_index(index) else { continue };
        let pci = device.pci_info().ok().and_then(|info| pci_address(&info.bus_id));
        devices.extend(pci.filter(|pci| !asked.contains(pci)).map(|pci| (pci, device)));
    }
    (devices, told)
}

/// What it means that NVML does not open a GPU.
fn cannot_open(cause: &NvmlError) -> Option<Unavailable> {
    match cause {
        // About the one who asks, not about the GPU.
        NvmlError::NoPermission | NvmlError::OperatingSystem | NvmlError::InvalidArg => None,
        NvmlError::NotFound => Some(Unavailable::new(
            State::Failing,
            "the driver holds it and NVML does not list it: it could not be initialised; `dmesg` has the driver's reason",
        )),
        other => Some(trouble(other).unwrap_or_else(|| {
            Unavailable::new(State::Failing, format!("NVML cannot open it: {}; reset it, or reboot", in_words(other)))
        })),
    }
}

/// What an answer says about the health of the GPU that gave it.
fn trouble(cause: &NvmlError) -> Option<Unavailable> {
    match cause {
        NvmlError::GpuLost => Some(Unavailable::new(
            State::Lost,
            "NVML says that it fell off the bus; reboot, and if that does not mend it, look at its seat and power",
        )),
        NvmlError::ResetRequired => Some(Unavailable::new(
            State::Failing,
            "NVML says that it needs a reset: `nvidia-smi --gpu-reset` when nothing uses it, or reboot",
        )),
        _ => None,
    }
}

/// An error in words, with NVML's number where the crate has no words.
fn in_words(cause: &NvmlError) -> String {
    match cause {
        NvmlError::UnexpectedVariant(code) => format!("it answers with code {code}"),
        other => other.to_string(),
    }
}
