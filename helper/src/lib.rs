//! `quilt-gpu`: the node's helper, which knows the hardware, and the operator's command line.
//!
//! Everything here may be slow and may link what it likes; nothing of it is linked into the runtime or the hook.

mod audit;
mod broker;
mod child;
pub mod cli;
mod commands;
mod configure;
mod confine;
mod demo;
mod doctor;
mod exit;
mod formats;
mod handover;
mod input;
mod install;
pub mod inventory;
mod judged;
mod nvml;
mod record;
mod smi;
mod stats;
mod table;

pub use exit::{Exit, Failure};
pub use handover::is_runtime_call;
