//! A library with NVML's interface that tells what a JSON file says: the file that `FAKE_NVML` names in the environment,
//! else `fake-nvml.json` beside the library, since whoever loads NVML should do so with an environment of their own.
//!
//! It may fail, hang and lie as the file wants. It knows no hardware, opens no device and keeps no state but the file.

mod interface;
mod memory;
mod topology;

pub use topology::{BESIDE, Gpu, Instance, Live, Mig, NvLink, Process, Remapped, Topology, VARIABLE};
