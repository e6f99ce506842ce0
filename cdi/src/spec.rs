//! The Container Device Interface, version 1.1: what a file says, whether it may say it, which device of which file a name
//! means, and what that changes in a container's spec.
//!
//! Bytes and facts in, values and bytes out: nothing here opens a file, and what a host has is asked of the caller.

mod apply;
mod cache;
mod complete;
mod name;
mod needs;
mod problem;
mod read;
mod resolve;
mod transform;
mod types;
mod validate;
mod write;
#[cfg(feature = "yaml")]
mod yaml;

pub use apply::{apply, patch};
pub use cache::{Cache, Conflict, Found, Loaded, MAX_BYTES, MAX_FILES, Shadow};
pub use complete::{Seen, complete};
pub use name::{qualified, split};
pub use needs::{Need, VERSIONS, lowest, needs};
pub use problem::Problem;
pub use read::{Encoding, read};
pub use resolve::{Injection, Unresolved};
pub use transform::{RelativeTo, move_root};
pub use types::{ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, NodeKind, Spec};
pub use validate::validate;
pub use write::{to_json, to_yaml};
