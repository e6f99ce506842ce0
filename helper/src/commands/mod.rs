//! One file for each command: its arguments, what it does, how it prints.

pub(crate) mod audit;
pub(crate) mod broker;
pub(crate) mod cdi;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod configure;
pub(crate) mod contracts;
pub(crate) mod cuda;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod install_node;
pub(crate) mod inventory;
pub(crate) mod lease;
pub(crate) mod manual;
pub(crate) mod report;
pub(crate) mod source;
pub(crate) mod stats;
pub(crate) mod version;

#[cfg(test)]
mod tests;
