//! The functions that programs call, by their C names. What they mean stands in NVIDIA's NVML reference.

#![allow(unsafe_code)] // a C interface: unmangled names, and memory of the caller's
#![allow(non_snake_case)] // the names are NVML's
#![allow(unreachable_pub)] // C reaches it
#![allow(clippy::missing_safety_doc)] // as NVML's: pointers are null or good for what the function writes

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::time::Duration;

use crate::memory::{
    Attributes, FieldValue, INVALID_ARGUMENT, Memory, PciInfo, ProcessInfo, Return, filled, put, put_list, put_text,
};
use crate::topology::{Gpu, Instance, NvLink, Topology, topology};

type Handle = *mut c_void;

const SUCCESS: Return = 0;
const UNINITIALIZED: Return = 1;
const NOT_SUPPORTED: Return = 3;
const NOT_FOUND: Return = 6;
const NO_ANSWER: Return = 999;
/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`
const RECOVERY_ACTION: c_uint = 230;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`
const UNSIGNED: c_uint = 1;

/// A handle is two numbers, no address: GPU and MIG device, each from 1.
fn handle(gpu: usize, instance: Option<usize>) -> Handle {
    std::ptr::without_provenance_mut((gpu + 1) << 8 | instance.map_or(0, |at| at + 1))
}

fn numbers(handle: Handle) -> Option<(usize, Option<usize>)> {
    let bits = handle.addr();
    Some(((bits >> 8).checked_sub(1)?, (bits & 0xff).checked_sub(1)))
}

/// Calls that concern no GPU.
fn system(call: &str, give: impl FnOnce(&Topology) -> Result<(), Return>) -> Return {
    let Some(topology) = topology() else {
        return if call.starts_with("nvmlInit") { NO_ANSWER } else { UNINITIALIZED };
    };
    if let Some(seconds) = topology.hang.get(call) {
        std::thread::sleep(Duration::from_secs(*seconds));
    }
    let code = topology.fail.get(call).or_else(|| topology.fail.get("*")).copied().unwrap_or(SUCCESS);
    if code != SUCCESS { code } else { give(topology).err().unwrap_or(SUCCESS) }
}

/// What a GPU answers to this call before anything is looked up.
fn ready(call: &str, gpu: &Gpu) -> Result<(), Return> {
    if let Some(seconds) = gpu.hang.get(call) {
        std::thread::sleep(Duration::from_secs(*seconds));
    }
    match gpu.fail.get(call).or_else(|| gpu.fail.get("*")) {
        Some(code) if *code != SUCCESS => Err(*code),
        _ => Ok(()),
    }
}

/// Calls that concern a GPU, or a MIG device of one.
fn device(call: &str, of: Handle, give: impl FnOnce(&Gpu, Option<&Instance>) -> Result<(), Return>) -> Return {
    system(call, |topology| {
        let (gpu, instance) = numbers(of).ok_or(INVALID_ARGUMENT)?;
        let gpu = topology.gpus.get(gpu).ok_or(INVALID_ARGUMENT)?;
        ready(call, gpu)?;
        let instance = match instance {
            None => None,
            Some(at) => Some(gpu.instances.get(at).and_then(Option::as_ref).ok_or(INVALID_ARGUMENT)?),
        };
        give(gpu, instance)
    })
}

/// Calls that concern a MIG device.
fn instance(call: &str, of: Handle, give: impl FnOnce(&Gpu, &Instance) -> Result<(), Return>) -> Return {
    device(call, of, |gpu, instance| give(gpu, instance.ok_or(INVALID_ARGUMENT)?))
}

/// Domain, bus and device of a PCI address.
fn address(pci: &str) -> Option<(u32, u32, u32)> {
    let mut parts = pci.split([':', '.']);
    let mut next = || u32::from_str_radix(parts.next()?, 16).ok();
    Some((next()?, next()?, next()?))
}

fn pci_info(pci: &str) -> Result<PciInfo, Return> {
    let (domain, bus, device) = address(pci).ok_or(NO_ANSWER)?;
    Ok(PciInfo {
        bus_id_legacy: filled(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        device_id: 0,
        sub_system_id: 0,
        bus_id: filled(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
    })
}

/// Two numbers of a version as in `12.4`.
fn version(text: &str) -> Option<(c_int, c_int)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInit_v2() -> Return {
    system("nvmlInit_v2", |topology| {
        if let Some(path) = &topology.makes {
            let _ = std::fs::write(path, "");
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Return {
    // SAFETY: it takes nothing.
    unsafe { nvmlInit_v2() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlShutdown() -> Return {
    system("nvmlShutdown", |_| Ok(()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlErrorString(_code: Return) -> *const c_char {
    c"an error that was asked for".as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, length: c_uint) -> Return {
    system("nvmlSystemGetDriverVersion", |topology| put_text(to, length, &topology.driver_version))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(to: *mut c_int) -> Return {
    system("nvmlSystemGetCudaDriverVersion", |topology| {
        let (major, minor) = version(&topology.cuda_version).ok_or(NOT_SUPPORTED)?;
        put(to, major * 1000 + minor * 10)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(to: *mut c_int) -> Return {
    // SAFETY: the caller's promise is handed on.
    unsafe { nvmlSystemGetCudaDriverVersion(to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(to: *mut c_uint) -> Return {
    system("nvmlDeviceGetCount_v2", |topology| put(to, u32::try_from(topology.gpus.len()).unwrap_or(0)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: *mut Handle) -> Return {
    system("nvmlDeviceGetHandleByIndex_v2", |topology| {
        let at = index as usize;
        ready("nvmlDeviceGetHandleByIndex_v2", topology.gpus.get(at).ok_or(INVALID_ARGUMENT)?)?;
        put(to, handle(at, None))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(pci: *const c_char, to: *mut Handle) -> Return {
    system("nvmlDeviceGetHandleByPciBusId_v2", |topology| {
        if pci.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so the caller says that it is a string.
        let asked = unsafe { CStr::from_ptr(pci) }.to_str().ok().and_then(address).ok_or(INVALID_ARGUMENT)?;
        let at = topology.gpus.iter().position(|gpu| address(&gpu.pci) == Some(asked)).ok_or(NOT_FOUND)?;
        ready("nvmlDeviceGetHandleByPciBusId_v2", topology.gpus.get(at).ok_or(NOT_FOUND)?)?;
        put(to, handle(at, None))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, to: *mut Handle) -> Return {
    system("nvmlDeviceGetHandleByUUID", |topology| {
        if uuid.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so the caller says that it is a string.
        let asked = unsafe { CStr::from_ptr(uuid) }.to_str().map_err(|_| INVALID_ARGUMENT)?;
        let of = |gpu: &Gpu| gpu.instances.iter().flatten().any(|mig| mig.uuid == asked);
        let at = topology.gpus.iter().position(|gpu| gpu.uuid == asked || of(gpu)).ok_or(NOT_FOUND)?;
        let mut instances = topology.gpus.get(at).into_iter().flat_map(|gpu| &gpu.instances);
        put(to, handle(at, instances.position(|mig| mig.as_ref().is_some_and(|mig| mig.uuid == asked))))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(of: Handle, to: *mut c_char, length: c_uint) -> Return {
    device("nvmlDeviceGetUUID", of, |gpu, mig| put_text(to, length, mig.map_or(&gpu.uuid, |mig| &mig.uuid)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMinorNumber(of: Handle, to: *mut c_uint) -> Return {
    device("nvmlDeviceGetMinorNumber", of, |gpu, _| put(to, gpu.minor))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(of: Handle, to: *mut c_char, length: c_uint) -> Return {
    device("nvmlDeviceGetName", of, |gpu, mig| put_text(to, length, mig.map_or(&gpu.name, |mig| &mig.name)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetBrand(of: Handle, to: *mut c_uint) -> Return {
    device("nvmlDeviceGetBrand", of, |_, _| put(to, 14))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetArchitecture(of: Handle, to: *mut c_uint) -> Return {
    device("nvmlDeviceGetArchitecture", of, |_, _| put(to, c_uint::MAX))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    of: Handle,
    major: *mut c_int,
    minor: *mut c_int,
) -> Return {
    device("nvmlDeviceGetCudaComputeCapability", of, |gpu, _| {
        let (is_major, is_minor) = version(&gpu.compute_capability).ok_or(NOT_SUPPORTED)?;
        put(major, is_major).and(put(minor, is_minor))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetVirtualizationMode(of: Handle, to: *mut c_uint) -> Return {
    device("nvmlDeviceGetVirtualizationMode", of, |gpu, _| put(to, gpu.virtualization))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(of: Handle, to: *mut PciInfo) -> Return {
    device("nvmlDeviceGetPciInfo_v3", of, |gpu, _| put(to, pci_info(&gpu.pci)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(of: Handle, to: *mut Memory) -> Return {
    device("nvmlDeviceGetMemoryInfo_v2", of, |gpu, mig| {
        let total = mig.map_or(gpu.memory_mb, |mig| mig.memory_mb) << 20;
        let version = u32::try_from(size_of::<Memory>()).unwrap_or(0) | 2 << 24;
        let used = gpu.live.map_or(0, |live| live.memory_used_mb << 20);
        put(to, Memory { version, total, reserved: 0, free: total.saturating_sub(used), used })
    })
}

/// `nvmlUtilization_t`: two numbers, of the processors and of the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(of: Handle, to: *mut [c_uint; 2]) -> Return {
    device("nvmlDeviceGetUtilizationRates", of, |gpu, _| put(to, [gpu.live.ok_or(NOT_SUPPORTED)?.utilization, 0]))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(of: Handle, _sensor: c_uint, to: *mut c_uint) -> Return {
    device("nvmlDeviceGetTemperature", of, |gpu, _| put(to, gpu.live.ok_or(NOT_SUPPORTED)?.temperature))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerUsage(of: Handle, to: *mut c_uint) -> Return {
    device("nvmlDeviceGetPowerUsage", of, |gpu, _| put(to, gpu.live.ok_or(NOT_SUPPORTED)?.power))
}

fn processes(gpu: &Gpu, graphics: bool, count: *mut c_uint, to: *mut ProcessInfo) -> Result<(), Return> {
    let listed = gpu.processes.iter().filter(|process| process.graphics == graphics);
    let listed = listed.map(|process| ProcessInfo {
        pid: process.pid,
        used_memory: process.memory_mb << 20,
        gpu_instance: c_uint::MAX,
        compute_instance: c_uint::MAX,
    });
    put_list(count, to, &listed.collect::<Vec<_>>())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    of: Handle,
    count: *mut c_uint,
    to: *mut ProcessInfo,
) -> Return {
    device("nvmlDeviceGetComputeRunningProcesses_v3", of, |gpu, _| processes(gpu, false, count, to))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    of: Handle,
    count: *mut c_uint,
    to: *mut ProcessInfo,
) -> Return {
    device("nvmlDeviceGetGraphicsRunningProcesses_v3", of, |gpu, _| processes(gpu, true, count, to))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(of: Handle, current: *mut c_uint, pending: *mut c_uint) -> Return {
    device("nvmlDeviceGetMigMode", of, |gpu, _| {
        let mode = gpu.mig.ok_or(NOT_SUPPORTED)?;
        put(current, mode.enabled.into()).and(put(pending, mode.pending.into()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(of: Handle, to: *mut c_uint) -> Return {
    device("nvmlDeviceGetMaxMigDeviceCount", of, |gpu, _| put(to, if gpu.mig.is_some() { 7 } else { 0 }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(of: Handle, index: c_uint, to: *mut Handle) -> Return {
    device("nvmlDeviceGetMigDeviceHandleByIndex", of, |gpu, _| {
        let at = index as usize;
        gpu.instances.get(at).and_then(Option::as_ref).ok_or(NOT_FOUND)?;
        let (number, _) = numbers(of).ok_or(INVALID_ARGUMENT)?;
        put(to, handle(number, Some(at)))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(of: Handle, to: *mut Handle) -> Return {
    instance("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", of, |_, _| {
        let (number, _) = numbers(of).ok_or(INVALID_ARGUMENT)?;
        put(to, handle(number, None))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceIsMigDeviceHandle(of: Handle, to: *mut c_uint) -> Return {
    device("nvmlDeviceIsMigDeviceHandle", of, |_, mig| put(to, mig.is_some().into()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceId(of: Handle, to: *mut c_uint) -> Return {
    instance("nvmlDeviceGetGpuInstanceId", of, |_, mig| put(to, mig.gi))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeInstanceId(of: Handle, to: *mut c_uint) -> Return {
    instance("nvmlDeviceGetComputeInstanceId", of, |_, mig| put(to, mig.ci))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetAttributes_v2(of: Handle, to: *mut Attributes) -> Return {
    instance("nvmlDeviceGetAttributes_v2", of, |_, mig| {
        let Instance { ofa: ofas, gpu_slices, compute_slices, memory_mb, .. } = *mig;
        put(to, Attributes { ofas, gpu_slices, compute_slices, memory_mb, ..Attributes::default() })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTopologyCommonAncestor(a: Handle, b: Handle, to: *mut c_uint) -> Return {
    system("nvmlDeviceGetTopologyCommonAncestor", |topology| {
        let pci = |handle| Some(&topology.gpus.get(numbers(handle)?.0)?.pci);
        let (a, b) = (pci(a).ok_or(INVALID_ARGUMENT)?, pci(b).ok_or(INVALID_ARGUMENT)?);
        let own = topology.levels.iter().find(|(x, y, _)| (x == a && y == b) || (x == b && y == a));
        put(to, own.map_or(topology.level, |(_, _, level)| *level))
    })
}

fn nvlink(call: &str, of: Handle, link: c_uint, give: impl FnOnce(&NvLink) -> Result<(), Return>) -> Return {
    device(call, of, |gpu, _| match gpu.nvlinks.get(link as usize) {
        Some(link) => give(link),
        None if gpu.nvlinks.is_empty() => Err(NOT_SUPPORTED),
        None => Err(INVALID_ARGUMENT),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkState(of: Handle, link: c_uint, to: *mut c_uint) -> Return {
    nvlink("nvmlDeviceGetNvLinkState", of, link, |link| put(to, (!matches!(link, NvLink::Down)).into()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(of: Handle, link: c_uint, to: *mut c_uint) -> Return {
    nvlink("nvmlDeviceGetNvLinkRemoteDeviceType", of, link, |link| match link {
        NvLink::Down => Err(NOT_SUPPORTED),
        NvLink::Gpu(_) => put(to, 0),
        NvLink::Switch => put(to, 2),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(of: Handle, link: c_uint, to: *mut PciInfo) -> Return {
    nvlink("nvmlDeviceGetNvLinkRemotePciInfo_v2", of, link, |link| match link {
        NvLink::Gpu(pci) => put(to, pci_info(pci)?),
        NvLink::Switch => put(to, pci_info("0000:c0:00.0")?),
        NvLink::Down => Err(NOT_SUPPORTED),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    of: Handle,
    correctable: *mut c_uint,
    uncorrectable: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> Return {
    device("nvmlDeviceGetRemappedRows", of, |gpu, _| {
        let rows = gpu.remapped.ok_or(NOT_SUPPORTED)?;
        put(correctable, 0).and(put(uncorrectable, 0))?;
        put(pending, rows.pending.into()).and(put(failed, rows.failed.into()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRetiredPagesPendingStatus(of: Handle, to: *mut c_uint) -> Return {
    device("nvmlDeviceGetRetiredPagesPendingStatus", of, |gpu, _| {
        put(to, gpu.retirement_pending.ok_or(NOT_SUPPORTED)?.into())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(of: Handle, count: c_int, values: *mut FieldValue) -> Return {
    device("nvmlDeviceGetFieldValues", of, |gpu, _| {
        if values.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        for at in 0..usize::try_from(count).map_err(|_| INVALID_ARGUMENT)? {
            // SAFETY: not null, and the caller says that it is good for `count`.
            let value = unsafe { &mut *values.add(at) };
            value.value_type = UNSIGNED;
            match gpu.recovery_action.filter(|_| value.field == RECOVERY_ACTION) {
                Some(action) => (value.answer, value.value) = (SUCCESS, action.into()),
                None => value.answer = NOT_SUPPORTED,
            }
        }
        Ok(())
    })
}
