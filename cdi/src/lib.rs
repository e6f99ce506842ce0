//! Edits on an OCI spec document: what a contract changes in `config.json`, as bytes and as RFC 6902 operations. [`spec`]
//! is the Container Device Interface, whose devices become the same kind of changes.
//!
//! Bytes and edits in, bytes out: nothing here touches the system, and nothing here judges. What was not edited stays
//! byte for byte; a spec type that would lose unknown fields is never read into or written from.

mod change;
mod edits;
mod entry;
mod plan;
pub mod spec;

pub use edits::{EditError, Edits, Hook, Mount, Op, Stage, Without};
pub use plan::{Plan, apply, apply_process, patch, without};
