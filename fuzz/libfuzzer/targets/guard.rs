//! See `fuzz::guard`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::guard::run(data));
