//! `quilt-gpu-runtime`: starts without Rust's own start-up code, which would reset SIGPIPE and open closed descriptors.
#![no_main]
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

// SAFETY: this program has no other `main`; the C start-up code calls it once with the kernel's words.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: the C start-up code passes `argc` NUL-ended words and a null pointer, which live as long as the process.
    let args = unsafe { shim::exec::RawArgs::new(argc, argv) };
    shim::main(args)
}
