//! Live facts of this machine, and safe opens: what the kernel tells in `/proc`, `/sys` and `/dev`, files that only root
//! could have written, a container's root seen from outside. No NVML, no decisions: those are the guard's and the ledger's.

mod boot;
pub mod cgroup;
mod devices;
mod disks;
pub mod driver;
mod error;
mod file;
mod file_system;
pub mod folder;
mod in_root;
mod inside;
mod landmarks;
mod look;
pub mod mig;
pub mod mountinfo;
mod names;
mod node;
pub mod pci;
mod places;
pub mod process;
mod sys;
mod trust;
mod write;

pub use boot::{boot_id, now, rfc3339};
pub use devices::{check_node, majors};
pub use driver::{facts, facts_but_instances, instances};
pub use error::NodeError;
pub use file::{file_id, id, read_bounded, real_path};
pub use in_root::InRoot;
pub use inside::{At, Inside, NodeAt};
pub use node::Node;
pub use places::Places;
pub use sys::{handed_socket, harden, has_mount_attributes, label, random_hex128};
pub use trust::{TrustError, Trusted, exchangeable, fault, folder_fault, read_trusted};
pub use write::{Mode, write_atomic};
