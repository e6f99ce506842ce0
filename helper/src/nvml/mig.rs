//! MIG devices as NVML tells them, and how their profiles are called.

#![allow(unsafe_code)] // two calls that the crate does not wrap

use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::struct_wrappers::device::DeviceAttributes;
use nvml_wrapper::{Device, Nvml};

use crate::inventory::told::ToldInstance;

/// What precedes the profile in the name of a MIG device.
const BEFORE_PROFILE: &str = " MIG ";

/// The MIG devices of a GPU with `total` MiB. An empty slot is none, and neither is one that cannot be told apart.
pub(super) fn instances(nvml: &Nvml, gpu: &Device<'_>, total: u64) -> Vec<ToldInstance> {
    let slots = gpu.mig_device_count().unwrap_or(0);
    (0..slots)
        .filter_map(|index| {
            let device = gpu.mig_device_by_index(index).ok()?;
            let (gi, ci) = ids(nvml, &device)?;
            let attributes = device.attributes().ok();
            let named = device.name().ok().and_then(|name| Some(name.split_once(BEFORE_PROFILE)?.1.trim().to_owned()));
            Some(ToldInstance {
                index,
                gi,
                ci,
                uuid: device.uuid().ok(),
                profile: named.or_else(|| profile(attributes.as_ref()?, total)),
                memory_mb: attributes.map(|it| it.memory_size_mb),
            })
        })
        .collect()
}

/// GPU instance and compute instance.
fn ids(nvml: &Nvml, device: &Device<'_>) -> Option<(u32, u32)> {
    let (mut gi, mut ci) = (0, 0);
    let gpu_instance = nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref().ok()?;
    let compute_instance = nvml.lib().nvmlDeviceGetComputeInstanceId.as_ref().ok()?;
    // SAFETY: the handle is the library's own, and the numbers are ours for the time of the calls.
    let answer: Result<(), NvmlError> = unsafe {
        nvml_try(gpu_instance(device.handle(), &raw mut gi))
            .and_then(|()| nvml_try(compute_instance(device.handle(), &raw mut ci)))
    };
    answer.ok().map(|()| (gi, ci))
}

/// `1g.5gb`, `1c.4g.20gb`, `1g.5gb+me`: the memory in eighths of the GPU's, of whole GiB.
fn profile(of: &DeviceAttributes, total: u64) -> Option<String> {
    let (gpu, compute) = (of.gpu_instance_slice_count, of.compute_instance_slice_count);
    if total == 0 || gpu == 0 || compute == 0 {
        return None;
    }
    let eighths = (of.memory_size_mb * 8).div_ceil(total).min(8);
    let memory = (eighths * total.div_ceil(1024) + 4) / 8;
    let part = if compute < gpu { format!("{compute}c.") } else { String::new() };
    // The profile with the media engines is the only one below a whole GPU that has optical flow.
    let media = if of.shared_ofa_count > 0 && eighths < 8 { "+me" } else { "" };
    Some(format!("{part}{gpu}g.{memory}gb{media}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_called_as_nvidia_calls_them() {
        for (gpu, compute, memory, ofa, total, expected) in [
            (1, 1, 4864, 0, 40960, "1g.5gb"),
            (1, 1, 4864, 1, 40960, "1g.5gb+me"),
            (1, 1, 9856, 0, 40960, "1g.10gb"),
            (2, 2, 9856, 0, 40960, "2g.10gb"),
            (3, 3, 19968, 0, 40960, "3g.20gb"),
            (4, 2, 20096, 0, 40960, "2c.4g.20gb"),
            (7, 7, 40320, 1, 40960, "7g.40gb"),
            (1, 1, 9728, 0, 81920, "1g.10gb"),
            (1, 1, 9984, 0, 81559, "1g.10gb"),
            (1, 1, 20096, 0, 81559, "1g.20gb"),
            (7, 7, 81024, 1, 81559, "7g.80gb"),
            (1, 1, 5952, 0, 24576, "1g.6gb"),
            (2, 2, 11968, 1, 24576, "2g.12gb+me"),
            (4, 4, 24128, 1, 24576, "4g.24gb"),
        ] {
            let attributes = DeviceAttributes {
                multiprocessor_count: 0,
                shared_copy_engine_count: 0,
                shared_decoder_count: 0,
                shared_encoder_count: 0,
                shared_jpeg_count: 0,
                shared_ofa_count: ofa,
                gpu_instance_slice_count: gpu,
                compute_instance_slice_count: compute,
                memory_size_mb: memory,
            };
            assert_eq!(profile(&attributes, total).as_deref(), Some(expected));
            assert_eq!(profile(&attributes, 0), None);
        }
    }
}
