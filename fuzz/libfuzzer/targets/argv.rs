//! See `fuzz::argv`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::argv::run(data));
