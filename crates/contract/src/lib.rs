//! The words of quilt-gpu as types: inventory, request, contract, refusal, configuration, and strict JSON over bytes.
//!
//! Nothing here touches the system. Every other crate speaks in these types.

pub mod capability;
pub mod config;
pub mod cuda;
mod document;
pub mod exception;
mod facts;
pub mod gpu;
pub mod inventory;
pub mod json;
pub mod key;
mod names;
mod nodes;
pub mod order;
pub mod owner;
pub mod read;
pub mod refusal;
pub mod request;
pub mod rule;
pub mod visible;

pub use document::{Contract, Granted, GrantedPartition, Products, SCHEMA};
pub use refusal::{Code, Note, Refusal};
