//! The caller's memory: the structures that NVML fills, and how they and strings are written.

#![allow(unsafe_code)] // pointers of the caller's
#![allow(unreachable_pub)] // parts of C's functions

use std::ffi::{CStr, OsStr, c_char, c_longlong, c_uint, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

pub(crate) type Return = c_uint;

pub(crate) const INVALID_ARGUMENT: Return = 2;
const INSUFFICIENT_SIZE: Return = 7;

#[repr(C)]
pub struct PciInfo {
    pub(crate) bus_id_legacy: [c_char; 16],
    pub(crate) domain: c_uint,
    pub(crate) bus: c_uint,
    pub(crate) device: c_uint,
    pub(crate) device_id: c_uint,
    pub(crate) sub_system_id: c_uint,
    pub(crate) bus_id: [c_char; 32],
}

#[repr(C)]
pub struct Memory {
    pub(crate) version: c_uint,
    pub(crate) total: c_ulonglong,
    pub(crate) reserved: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessInfo {
    pub(crate) pid: c_uint,
    pub(crate) used_memory: c_ulonglong,
    pub(crate) gpu_instance: c_uint,
    pub(crate) compute_instance: c_uint,
}

#[repr(C)]
#[derive(Default)]
pub struct Attributes {
    pub(crate) multiprocessors: c_uint,
    pub(crate) copy_engines: c_uint,
    pub(crate) decoders: c_uint,
    pub(crate) encoders: c_uint,
    pub(crate) jpegs: c_uint,
    pub(crate) ofas: c_uint,
    pub(crate) gpu_slices: c_uint,
    pub(crate) compute_slices: c_uint,
    pub(crate) memory_mb: c_ulonglong,
}

#[repr(C)]
pub struct FieldValue {
    pub(crate) field: c_uint,
    pub(crate) scope: c_uint,
    pub(crate) timestamp: c_longlong,
    pub(crate) latency: c_longlong,
    pub(crate) value_type: c_uint,
    pub(crate) answer: Return,
    pub(crate) value: c_ulonglong,
}

/// The file that this code was loaded from.
pub(crate) fn own_path() -> Option<PathBuf> {
    // SAFETY: all zeros is a valid `Dl_info`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is a function's, and `info` is ours.
    if unsafe { libc::dladdr(own_path as *const c_void, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr found the object, so its name is a string that lives as long as the object.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    // It may have been loaded by an open descriptor.
    std::fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()
}

pub(crate) fn put<T>(to: *mut T, value: T) -> Result<(), Return> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, so the caller says that it is good for one `T`.
    unsafe { to.write(value) };
    Ok(())
}

/// A list of at most `count` items: how many there are is written there, and with too little room nothing else is.
pub(crate) fn put_list<T: Copy>(count: *mut c_uint, to: *mut T, items: &[T]) -> Result<(), Return> {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, so the caller says that it is good for one number.
    let room = unsafe { count.read() } as usize;
    put(count, c_uint::try_from(items.len()).unwrap_or(c_uint::MAX))?;
    if items.is_empty() {
        return Ok(());
    }
    if to.is_null() || room < items.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: not null, and the caller says that it is good for `room` items, which is enough.
    unsafe { to.copy_from_nonoverlapping(items.as_ptr(), items.len()) };
    Ok(())
}

pub(crate) fn put_text(to: *mut c_char, length: c_uint, text: &str) -> Result<(), Return> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: not null, and the caller says that it is good for `length`, which is more than the text.
    unsafe {
        to.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

pub(crate) fn filled<const N: usize>(text: &str) -> [c_char; N] {
    let mut bytes = text.bytes().take(N - 1).map(|byte| byte.cast_signed());
    std::array::from_fn(|_| bytes.next().unwrap_or(0))
}
