//! See `fuzz::ld_cache`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::ld_cache::run(data));
