//! What must hold for any input, as one function of bytes for each reader of hostile input. It panics where it does not.
//!
//! `fuzz/libfuzzer` drives these functions with new inputs (`make fuzz`, a nightly compiler), `tests/corpora.rs` with those
//! in `corpora/` on any compiler, so that what was found once is tried in every build. Nothing here touches the system.

pub mod argv;
pub mod cdi;
mod choices;
pub mod contract;
pub mod elf;
pub mod guard;
pub mod json;
pub mod ld_cache;
pub mod mountinfo;
pub mod proc_devices;

/// A target's name, which is its folder in `corpora/` too, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("argv", argv::run),
    ("cdi", cdi::run),
    ("contract", contract::run),
    ("elf", elf::run),
    ("guard", guard::run),
    ("json", json::run),
    ("ld_cache", ld_cache::run),
    ("mountinfo", mountinfo::run),
    ("proc_devices", proc_devices::run),
];
