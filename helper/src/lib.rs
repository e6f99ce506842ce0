//! `quilt-gpu`: the node's helper, which knows the hardware, and the operator's command line.
//!
//! Everything here may be slow and may link what it likes; nothing of it is linked into the runtime or the hook.

pub mod cli;
mod commands;
mod demo;
mod exit;
mod handover;
pub mod inventory;
mod record;
mod table;

pub use exit::{Exit, Failure};
pub use handover::is_runtime_call;
