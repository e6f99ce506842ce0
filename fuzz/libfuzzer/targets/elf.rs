//! See `fuzz::elf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::elf::run(data));
