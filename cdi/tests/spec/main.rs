//! CDI files: what is read and what is refused, in JSON and YAML, versions, folders, names, and what devices change in a
//! spec, against the Go library's behaviour.

#![cfg(test)]

mod apply;
mod documents;
mod go;
mod made;
mod properties;
mod resolve;
mod transform;
mod versions;
mod yaml;
