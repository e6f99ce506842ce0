//! The edits as a whole: exact bytes, an independent reading of the operations, a model, and what engines really write.

#![cfg(test)]

mod documents;
mod exact;
mod model;
mod properties;
mod rfc6902;
mod samples;
