//! See `fuzz::mountinfo`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::mountinfo::run(data));
