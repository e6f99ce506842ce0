//! From qualified names to what changes in a container's spec, in the Go library's order: the devices as they were asked
//! for, and before the first of a file what the file says for all its devices. All names or none.

use super::cache::Cache;
use super::name::{qualified, split};
use super::types::ContainerEdits;

/// What devices change in a container's spec.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Injection {
    /// The devices' qualified names: a name asked for twice counts once.
    pub devices: Vec<String>,
    /// The changes in their order.
    pub edits: ContainerEdits,
}

/// A name that means no device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolved {
    /// The name.
    pub name: String,
    /// Why, and what would be right.
    pub why: String,
}

impl std::fmt::Display for Unresolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot resolve the CDI device {:?}: {}", self.name, self.why)
    }
}

impl std::error::Error for Unresolved {}

impl Cache {
    /// What these devices change together.
    ///
    /// # Errors
    /// Every name that means no device.
    pub fn resolve<N: AsRef<str>>(&self, names: &[N]) -> Result<Injection, Vec<Unresolved>> {
        let mut injection = Injection::default();
        let (mut files, mut unresolved) = (Vec::new(), Vec::new());
        for name in names.iter().map(AsRef::as_ref) {
            if injection.devices.iter().any(|known| known == name) {
                continue;
            }
            let Some((file, device)) = self.device(name) else {
                unresolved.push(Unresolved { name: name.to_owned(), why: self.why_not(name) });
                continue;
            };
            if !files.contains(&&file.path) {
                files.push(&file.path);
                injection.edits.append(&file.spec.container_edits);
            }
            injection.edits.append(&device.container_edits);
            injection.devices.push(name.to_owned());
        }
        if unresolved.is_empty() { Ok(injection) } else { Err(unresolved) }
    }

    fn why_not(&self, name: &str) -> String {
        let kind = match split(name) {
            Ok((kind, _)) => kind,
            Err(why) => return why,
        };
        if let Some(conflict) = self.conflicts.iter().find(|conflict| conflict.device == name) {
            let paths = conflict.paths.iter().map(String::as_str).collect::<Vec<_>>().join(" and ");
            return format!("{paths} both have it; take it out of all but one");
        }
        let also = match self.problems.keys().next() {
            Some(path) => format!("; {path} could not be read and may have it"),
            None => String::new(),
        };
        let of_kind = self.files.iter().filter(|file| file.spec.kind == kind).flat_map(|file| &file.spec.devices);
        let mut there: Vec<&str> = of_kind.map(|device| device.name.as_str()).collect();
        there.sort_unstable();
        there.dedup();
        there.retain(|device| self.device(&qualified(kind, device)).is_some());
        if there.is_empty() {
            return format!("no CDI file is about the kind {kind}{also}");
        }
        let shown = there.iter().take(8).copied().collect::<Vec<_>>().join(", ");
        let more = if there.len() > 8 { format!(" and {} more", there.len() - 8) } else { String::new() };
        format!("the kind {kind} has {shown}{more}{also}")
    }
}

impl ContainerEdits {
    /// Puts other changes behind these; of two `intelRdt` the later one counts.
    pub(crate) fn append(&mut self, other: &Self) {
        self.env.extend_from_slice(&other.env);
        self.device_nodes.extend_from_slice(&other.device_nodes);
        self.net_devices.extend_from_slice(&other.net_devices);
        self.hooks.extend_from_slice(&other.hooks);
        self.mounts.extend_from_slice(&other.mounts);
        if other.intel_rdt.is_some() {
            self.intel_rdt.clone_from(&other.intel_rdt);
        }
        self.additional_gids.extend_from_slice(&other.additional_gids);
    }
}
