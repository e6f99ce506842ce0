//! See `fuzz::proc_devices`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::proc_devices::run(data));
