//! Judges what in a tenant's spec could reach a GPU outside the contract. Pure: sees the machine through [`System`].

mod system;

pub use system::{Dir, Majors, Object, System};
