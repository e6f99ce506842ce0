//! See `fuzz::contract`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::contract::run(data));
