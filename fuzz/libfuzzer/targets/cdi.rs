//! See `fuzz::cdi`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::cdi::run(data));
