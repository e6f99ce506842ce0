//! One GPU as NVML tells it.

#![allow(unsafe_code)] // a call that the crate does not wrap

use contract::gpu::{MigMode, State, Unavailable};
use nvml_wrapper::enum_wrappers::device::{GpuVirtualizationMode, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::struct_wrappers::device::MemoryInfo;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};

use super::{mig, trouble};
use crate::inventory::told::{Live, ToldGpu};

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`, and what of it takes the GPU out of use.
const RECOVERY: u32 = 230;
const RESET: u64 = 1;
const REBOOT: u64 = 2;
const DRAIN_AND_RESET: u64 = 4;

/// Everything that it tells, `live`: what it does now too. What it does not tell is absent.
pub(super) fn told(nvml: &Nvml, pci: &str, device: &Device<'_>, live: bool) -> ToldGpu {
    let mut asked = Asked::default();
    let uuid = asked.take(device.uuid());
    let minor = asked.take(device.minor_number());
    let model = asked.take(device.name());
    let memory = asked.take(device.memory_info());
    let compute = asked.take(device.cuda_compute_capability());
    let virtualization = asked.take(device.virtualization_mode());
    let mode = asked.take(device.mig_mode());
    let mode = mode.map(|mode| MigMode { enabled: mode.current == 1, pending: mode.pending == 1 });
    let instances = if mode.is_some_and(|mode| mode.enabled) {
        let total = memory.as_ref().map_or(0, |memory| memory.total >> 20);
        mig::instances(nvml, device, total)
    } else {
        Vec::new()
    };
    let live = if live { at_this_moment(&mut asked, device, memory.as_ref()) } else { Live::default() };
    let needs = asked.trouble.take().or_else(|| needs_reset(nvml, device));
    ToldGpu {
        pci: pci.to_owned(),
        uuid,
        minor,
        model,
        memory_mb: memory.map(|memory| memory.total >> 20),
        compute_capability: compute.map(|version| format!("{}.{}", version.major, version.minor)),
        virtualization: virtualization.map(|mode| word(&mode).to_owned()),
        mig: mode,
        instances,
        unavailable: needs,
        live,
    }
}

fn at_this_moment(asked: &mut Asked, device: &Device<'_>, memory: Option<&MemoryInfo>) -> Live {
    Live {
        utilization_percent: asked.take(device.utilization_rates()).map(|rates| rates.gpu),
        memory_used_mb: memory.map(|memory| memory.used >> 20),
        temperature_c: asked.take(device.temperature(TemperatureSensor::Gpu)),
        power_mw: asked.take(device.power_usage()),
    }
}

/// What the answers of a GPU say about its health, beside what they tell.
#[derive(Default)]
struct Asked {
    trouble: Option<Unavailable>,
}

impl Asked {
    fn take<T>(&mut self, answer: Result<T, NvmlError>) -> Option<T> {
        answer.inspect_err(|cause| self.trouble = self.trouble.take().or_else(|| trouble(cause))).ok()
    }
}

fn word(mode: &GpuVirtualizationMode) -> &'static str {
    match mode {
        GpuVirtualizationMode::Bare => "none",
        GpuVirtualizationMode::PassThrough => "passthrough",
        GpuVirtualizationMode::Vgpu => "vgpu",
        GpuVirtualizationMode::HostVgpu => "host-vgpu",
        GpuVirtualizationMode::HostVsga => "host-vsga",
    }
}

/// Errors of the memory that only a reset or a replacement ends.
fn needs_reset(nvml: &Nvml, device: &Device<'_>) -> Option<Unavailable> {
    let failing = |why: &str| Some(Unavailable::new(State::Failing, why));
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    let rows = nvml.lib().nvmlDeviceGetRemappedRows.as_ref().map_err(|_| NvmlError::FunctionNotFound);
    // SAFETY: the handle is the library's own, and the four numbers are ours for the time of the call.
    let rows = rows.and_then(|call| unsafe {
        nvml_try(call(device.handle(), &raw mut corrected, &raw mut uncorrected, &raw mut pending, &raw mut failed))
    });
    match rows {
        Ok(()) if failed != 0 => return failing("a row of its memory could not be remapped: it has to be replaced"),
        Ok(()) if pending != 0 => {
            return failing("a row of its memory is remapped with the next reset: `nvidia-smi --gpu-reset`, or reboot");
        }
        Err(cause) => {
            if let found @ Some(_) = trouble(&cause) {
                return found;
            }
        }
        Ok(()) => {}
    }
    if device.are_pages_pending_retired().unwrap_or(false) {
        return failing("pages of its memory are retired with the next reset: `nvidia-smi --gpu-reset`, or reboot");
    }
    match recovery(device)? {
        RESET | DRAIN_AND_RESET => failing("the driver asks for a reset: `nvidia-smi --gpu-reset`, or reboot"),
        REBOOT => failing("the driver asks for a reboot of the node"),
        _ => None,
    }
}

/// What the driver wants done; drivers before 570 do not tell.
fn recovery(device: &Device<'_>) -> Option<u64> {
    let value = device.field_values_for(&[FieldId(RECOVERY)]).ok()?.pop()?.ok()?.value.ok()?;
    match value {
        SampleValue::U32(action) => Some(action.into()),
        SampleValue::U64(action) => Some(action),
        _ => None,
    }
}
