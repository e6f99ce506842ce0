//! Whose a workload is, which GPUs are kept for some, and how many there are for containers: `[[owners]]`, `[[internal]]` and
//! `[capacity]` of the configuration.
//!
//! An owner is never the tenant's word. What cannot be read here gives nobody anything.

use crate::gpu::Gpu;
use crate::json::Node;
use crate::key::id_is_plain;
use crate::read::{FromJson, ReadError, Settings, field, only, replace};
use crate::settings;

/// All tables of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables<T>(pub Vec<T>);

impl<T> Default for Tables<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: FromJson> Settings for Tables<T> {
    fn take(&mut self, node: &Node<'_>, wrong: &mut Option<ReadError>) {
        replace(&mut self.0, node, wrong);
    }
}

/// One `[[owners]]` table: these workloads belong to this owner.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// What the owner is called.
    pub name: String,
    /// Kubernetes namespace of the pod, as the engine attests it.
    pub namespace: Option<String>,
    /// The low-level runtime's folder of states: an engine's, or a user's.
    pub state_root: Option<String>,
}

impl FromJson for Owner {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        only(node, &["name", "namespace", "state_root"])?;
        let owner = Self {
            name: field(node, "name")?,
            namespace: field(node, "namespace")?,
            state_root: field(node, "state_root")?,
        };
        if !id_is_plain(&owner.name) {
            return Err(ReadError::new("its name must be letters, digits and . - _ +"));
        }
        // A table without a condition would make everybody one owner.
        match (&owner.namespace, &owner.state_root) {
            (None, None) => Err(ReadError::new("it must say namespace or state_root")),
            _ => Ok(owner),
        }
    }
}

impl Owner {
    /// The owner of a workload: of an attested namespace, under a folder of states. A namespace that no table names is an
    /// owner by itself.
    #[must_use]
    pub fn of(owners: &[Self], namespace: Option<&str>, state_root: &str) -> Option<String> {
        let fits = |said: &Option<String>, is: Option<&str>| said.is_none() || said.as_deref() == is;
        let named =
            owners.iter().find(|owner| fits(&owner.namespace, namespace) && fits(&owner.state_root, Some(state_root)));
        // No name of a table has a colon.
        named.map(|owner| owner.name.clone()).or_else(|| namespace.map(|namespace| format!("namespace:{namespace}")))
    }
}

/// One `[[internal]]` table: these GPUs are only for these owners and holders.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Internal {
    /// GPUs by PCI address, UUID or `nvidiaN`.
    pub gpus: Vec<String>,
    /// All GPUs of a kind.
    pub kind: Option<String>,
    /// Owners (`team-a`, `namespace:ml`) and holders (`vm:build`) that may have them.
    pub only: Vec<String>,
}

impl FromJson for Internal {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        only(node, &["gpus", "kind", "only"])?;
        let gpus: Option<Vec<String>> = field(node, "gpus")?;
        let internal = Self { gpus: gpus.unwrap_or_default(), kind: field(node, "kind")?, only: field(node, "only")? };
        if internal.gpus.is_empty() && internal.kind.is_none() {
            return Err(ReadError::new("it must name gpus or a kind"));
        }
        Ok(internal)
    }
}

impl Internal {
    /// Whether a GPU is kept from somebody.
    #[must_use]
    pub fn keeps(&self, gpu: &Gpu, from: Option<&str>) -> bool {
        let meant =
            self.gpus.iter().any(|id| gpu.is_named(id)) || self.kind.as_deref().is_some_and(|kind| gpu.is_kind(kind));
        meant && !self.only.iter().any(|who| Some(who.as_str()) == from)
    }
}

/// `[capacity]`: what the operator says that the node has for containers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capacity {
    /// How many GPUs, of `kind` when that is said; 0 means that nothing is said.
    pub gpus: u32,
    /// Of what kind; empty means any.
    pub kind: String,
}

settings!(Capacity { gpus, kind });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_table_that_fits_names_the_owner() {
        let owner = |name: &str, namespace: Option<&str>, root: Option<&str>| Owner {
            name: name.into(),
            namespace: namespace.map(str::to_owned),
            state_root: root.map(str::to_owned),
        };
        let owners = [
            owner("both", Some("red"), Some("/run/a")),
            owner("red", Some("red"), None),
            owner("a", None, Some("/run/a")),
        ];
        for (namespace, root, expected) in [
            (Some("red"), "/run/a", Some("both")),
            (Some("red"), "/run/b", Some("red")),
            (Some("blue"), "/run/a", Some("a")),
            (None, "/run/a", Some("a")),
            (Some("blue"), "/run/b", Some("namespace:blue")),
            (None, "/run/b", None),
        ] {
            assert_eq!(Owner::of(&owners, namespace, root).as_deref(), expected, "{namespace:?} {root}");
        }
    }

    #[test]
    fn internal_gpus_are_kept_from_all_others() {
        let gpu = Gpu {
            pci: "0000:41:00.0".into(),
            uuid: Some("GPU-1".into()),
            minor: Some(3),
            model: Some("NVIDIA H100 PCIe".into()),
            ..Gpu::default()
        };
        for (gpus, kind, from, kept) in [
            (&["41:00.0"][..], None, None, true),
            (&["gpu-1"], None, Some("blue"), true),
            (&["nvidia3"], None, Some("red"), false),
            (&["nvidia1"], None, None, false),
            (&[], Some("h100"), Some("blue"), true),
            (&[], Some("h100"), Some("vm:a"), false),
            (&[], Some("a100"), None, false),
        ] {
            let internal = Internal {
                gpus: gpus.iter().map(|id| (*id).to_owned()).collect(),
                kind: kind.map(str::to_owned),
                only: vec!["red".into(), "vm:a".into()],
            };
            assert_eq!(internal.keeps(&gpu, from), kept, "{gpus:?} {kind:?} {from:?}");
        }
    }
}
