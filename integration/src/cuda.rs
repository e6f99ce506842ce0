//! A small kernel on the first GPU that CUDA shows, through `libcuda.so.1` as programs load it. Nothing of a toolkit is
//! needed: the kernel is PTX, which the driver compiles.
//!
//! It says what it found as JSON; a step that fails is an error with the driver's own name for it.

use std::ffi::c_int;

use serde_json::{Value, json};

use crate::sys;

const LIBRARY: &str = "libcuda.so.1";
/// How many numbers the kernel works on, in one block.
const NUMBERS: usize = 256;
/// What the oldest and what the newest drivers compile.
const TARGETS: [(&str, &str); 2] = [("6.0", "sm_50"), ("6.3", "sm_75")];
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `…_MINOR`.
const CAPABILITY: [usize; 2] = [75, 76];

/// Each thread makes `3 * x + 1` of its number.
fn kernel(version: &str, target: &str) -> String {
    format!(
        "
.version {version}
.target {target}
.address_size 64
.visible .entry quilt(.param .u64 numbers)
{{
    .reg .u32 %r<3>;
    .reg .u64 %rd<4>;
    ld.param.u64 %rd1, [numbers];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    mad.lo.u32 %r2, %r2, 3, 1;
    st.global.u32 [%rd3], %r2;
    ret;
}}
\0"
    )
}

/// Runs it.
///
/// # Errors
/// The call that failed, and how.
pub fn run() -> Result<Value, String> {
    let path = sys::load_library(LIBRARY).map_err(|why| format!("cannot load {LIBRARY}: {why}"))?;
    call("cuInit", &[0])?;
    let (mut version, mut count, mut device): (c_int, c_int, c_int) = (0, 0, 0);
    call("cuDriverGetVersion", &[address(&mut version)])?;
    call("cuDeviceGetCount", &[address(&mut count)])?;
    call("cuDeviceGet", &[address(&mut device), 0])?;
    let number = usize::try_from(device).unwrap_or_default();
    let mut name = [0u8; 128];
    call("cuDeviceGetName", &[address(&mut name), name.len() - 1, number])?;
    let mut capability: [c_int; 2] = [0, 0];
    for (value, attribute) in capability.iter_mut().zip(CAPABILITY) {
        call("cuDeviceGetAttribute", &[address(value), attribute, number])?;
    }
    let target = compute(number)?;
    let name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
    Ok(json!({
        "library": path,
        "cuda": format!("{}.{}", version / 1000, version % 1000 / 10),
        "devices": count,
        "name": name,
        "capability": format!("{}.{}", capability[0], capability[1]),
        "kernel": target,
    }))
}

/// Has the kernel work on numbers, and looks at what it made of them. Gives what it was compiled for.
fn compute(device: usize) -> Result<&'static str, String> {
    let (mut context, mut module, mut function, mut memory) = (0usize, 0usize, 0usize, 0usize);
    call("cuCtxCreate_v2", &[address(&mut context), 0, device])?;
    let load = |(version, target): (&str, &'static str), module: &mut usize| {
        let text = kernel(version, target);
        call("cuModuleLoadData", &[address(module), text.as_ptr().addr()]).map(|()| target)
    };
    let [first, second] = TARGETS;
    let target = load(first, &mut module).or_else(|_| load(second, &mut module))?;
    call("cuModuleGetFunction", &[address(&mut function), module, c"quilt".as_ptr().addr()])?;
    let mut numbers: [u32; NUMBERS] = std::array::from_fn(|n| n as u32);
    let bytes = size_of_val(&numbers);
    call("cuMemAlloc_v2", &[address(&mut memory), bytes])?;
    call("cuMemcpyHtoD_v2", &[memory, address(&mut numbers), bytes])?;
    let mut parameters = [address(&mut memory)];
    call("cuLaunchKernel", &[function, 1, 1, 1, NUMBERS, 1, 1, 0, 0, address(&mut parameters), 0])?;
    call("cuCtxSynchronize", &[])?;
    let mut made = [0u32; NUMBERS];
    call("cuMemcpyDtoH_v2", &[address(&mut made), memory, bytes])?;
    call("cuMemFree_v2", &[memory])?;
    call("cuCtxDestroy_v2", &[context])?;
    match made.iter().zip(&numbers).position(|(made, from)| *made != 3 * from + 1) {
        None => Ok(target),
        Some(at) => Err(format!("the kernel made {} of {}", made[at], numbers[at])),
    }
}

/// Where a value lies, for a call that reads or writes it; the driver may write there.
fn address<T>(value: &mut T) -> usize {
    std::ptr::from_mut(value).expose_provenance()
}

fn call(function: &str, arguments: &[usize]) -> Result<(), String> {
    match sys::call(LIBRARY, function, arguments).map_err(|why| format!("cannot call {function}: {why}"))? {
        0 => Ok(()),
        status => Err(format!("{function} gave {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_the_library_is_what_is_missing() {
        if sys::load_library(LIBRARY).is_ok() {
            println!("skipped: this machine has {LIBRARY}");
            return;
        }
        assert!(run().is_err_and(|why| why.starts_with("cannot load libcuda.so.1: ")));
    }

    #[test]
    fn arguments_reach_a_function_and_more_than_it_has_do_no_harm() {
        let mut at = [7u8; 8];
        let copied = sys::call("libc.so.6", "memcmp", &[address(&mut at), address(&mut at.clone()), 8]);
        assert_eq!(copied, Ok(0));
        assert_eq!(sys::call("libc.so.6", "abs", &[usize::MAX - 4]), Ok(5));
        assert!(sys::call("libc.so.6", "abs", &[0; 12]).is_err());
        assert!(sys::call("libc.so.6", "no_such_function", &[]).is_err_and(|why| why.contains("no_such_function")));
    }

    #[test]
    fn the_kernel_is_one_text_that_ends() {
        for (version, target) in TARGETS {
            let text = kernel(version, target);
            assert!(text.ends_with('\0') && text.matches('\0').count() == 1);
            assert!(text.contains(&format!(".target {target}\n")) && text.contains("\n{\n"));
        }
    }
}
