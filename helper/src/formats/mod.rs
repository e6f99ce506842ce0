//! The inventory as others read it: the node's agent, a control plane, Prometheus. Every form is written from one view of
//! each GPU; the two line formats are read as well. No I/O.

pub(crate) mod lines;
pub(crate) mod prometheus;
pub(crate) mod view;
