//! Who uses the GPUs now, and how much, as NVML tells it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::{devices, silence};
use crate::inventory::told::Silence;
use crate::stats::told::{Process, Usage, UsedGpu};

/// Loads the library that is open, which lies at this path, and asks it about these GPUs and all others that it lists.
pub(crate) fn usage(library: &Path, open: &File, asked: &[String]) -> Result<Usage, Silence> {
    let path = format!("/proc/self/fd/{}", open.as_raw_fd());
    let nvml = Nvml::builder().lib_path(path.as_ref()).init().map_err(|cause| silence(library, &cause))?;
    let (devices, _) = devices(&nvml, asked);
    let mut gpus: Vec<UsedGpu> = devices
        .iter()
        .map(|(pci, device)| {
            let memory = device.memory_info().ok();
            let compute = device.running_compute_processes().unwrap_or_default();
            let graphics = device.running_graphics_processes().unwrap_or_default();
            UsedGpu {
                pci: pci.clone(),
                busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
                memory_used_mb: memory.as_ref().map(|memory| memory.used >> 20),
                memory_total_mb: memory.as_ref().map(|memory| memory.total >> 20),
                processes: merged(compute.into_iter().chain(graphics)),
            }
        })
        .collect();
    contract::order::sort_by(&mut gpus, |a, b| a.pci.cmp(&b.pci));
    Ok(Usage { gpus })
}

/// Each process once: one that computes and draws is told twice.
fn merged(told: impl Iterator<Item = ProcessInfo>) -> Vec<Process> {
    let mut list: Vec<Process> = Vec::new();
    for ProcessInfo { pid, used_gpu_memory, gpu_instance_id, compute_instance_id } in told {
        let memory_mb = match used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes >> 20),
            UsedGpuMemory::Unavailable => None,
        };
        // Without MIG both are all ones.
        let part = |id: Option<u32>| id.filter(|id| *id != u32::MAX);
        let (gi, ci) = (part(gpu_instance_id), part(compute_instance_id));
        match list.iter_mut().find(|known| known.pid == pid && known.gi == gi && known.ci == ci) {
            Some(known) => known.memory_mb = known.memory_mb.max(memory_mb),
            None => list.push(Process { pid, memory_mb, gi, ci }),
        }
    }
    contract::order::sort_by(&mut list, |a, b| (a.pid, a.gi, a.ci).cmp(&(b.pid, b.gi, b.ci)));
    list
}
