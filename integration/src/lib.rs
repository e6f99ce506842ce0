//! Fixtures and engine harness: what every integration test and the demo stand on.
//!
//! Depends on none of the product's crates: the binaries under test are given by path, so that what
//! is tested is what is installed. Nothing here touches the machine's own `/dev`, its engines or
//! `/etc`; everything lives in a [`Scratch`] folder and goes with it.

mod apart;
mod binaries;
mod bundle;
pub mod cuda;
mod driver_files;
pub mod engine;
mod error;
mod fleet;
mod host;
mod must;
pub mod probe;
mod process;
mod quilt;
mod report;
mod room;
mod rootfs;
mod runc;
mod scratch;
mod seen;
mod site;
mod strace;
mod sys;

pub use apart::{VERSION_1, VERSION_2, apart};
pub use binaries::Binaries;
pub use bundle::{Bundle, Spec};
pub use driver_files::{DriverFiles, Kind};
pub use engine::{Docker, DockerOptions};
pub use error::{Error, Result};
pub use fleet::Fleet;
pub use host::{Builder, Change, FakeGpu, FakeHost, Held, Instance, Layout, NodeState};
pub use must::must;
pub use process::{Ran, Used, measured, run};
pub use quilt::{Quilt, QuiltOptions};
pub use report::{filter_words, root_for, say};
pub use room::{Groups, Room, Root};
pub use rootfs::Rootfs;
pub use runc::{Runc, runc_that_gets_along, runc_without_sys_resource};
pub use scratch::Scratch;
pub use seen::{PROBE_ALL, Seen};
pub use site::Site;
pub use strace::{Trace, strace};
pub use sys::{attribute, received};
