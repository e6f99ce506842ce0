//! What quilt-gpu costs. Counts of system calls and instructions are the same on every run, so tests hold them to a file;
//! times are not, so they are only ever measured by `make bench`, in pairs.
//!
//! Measures the installed programs from outside, and knows none of their insides.

mod budgets;
pub mod contests;
pub mod count;
pub mod figures;
pub mod grace;
pub mod growth;
pub mod peer;
pub mod plot;
pub mod race;
pub mod report;
pub mod scene;
