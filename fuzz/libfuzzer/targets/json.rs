//! See `fuzz::json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::json::run(data));
