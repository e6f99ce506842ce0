//! Whose a workload is, which GPUs are kept for some, and how many there are for containers: `[[owners]]`, `[[internal]]` and
//! `[capacity]` of the configuration.
//!
//! An owner is never the tenant's word. What cannot be read here gives nobody anything.

use crate::gpu::Gpu;
use crate::inventory::pci_address;
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
    /// A user of this node, by number, as the kernel attests it to the broker; nobody else is then.
    pub uid: Option<u32>,
}

impl FromJson for Owner {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        only(node, &["name", "namespace", "state_root", "uid"])?;
        let owner = Self {
            name: field(node, "name")?,
            namespace: field(node, "namespace")?,
            state_root: field(node, "state_root")?,
            uid: field(node, "uid")?,
        };
        if !id_is_plain(&owner.name) {
            return Err(ReadError::new("its name must be letters, digits and . - _ +"));
        }
        // A table without a condition would make everybody one owner.
        match (&owner.namespace, &owner.state_root, owner.uid) {
            (None, None, None) => Err(ReadError::new("it must say namespace, state_root or uid")),
            (None, None, Some(_)) | (_, _, None) => Ok(owner),
            _ => Err(ReadError::new(
                "a user's containers have no namespace and no state_root that counts: write uid alone",
            )),
        }
    }
}

impl Owner {
    /// The owner of a workload: of an attested namespace, under a folder of states. A namespace that no table names is an
    /// owner by itself.
    #[must_use]
    pub fn of(owners: &[Self], namespace: Option<&str>, state_root: &str) -> Option<String> {
        let fits = |said: &Option<String>, is: Option<&str>| said.is_none() || said.as_deref() == is;
        let fits = |owner: &&Self| fits(&owner.namespace, namespace) && fits(&owner.state_root, Some(state_root));
        let named = owners.iter().filter(|owner| owner.uid.is_none()).find(fits);
        // No name of a table has a colon.
        named.map(|owner| owner.name.clone()).or_else(|| namespace.map(|namespace| format!("namespace:{namespace}")))
    }
}

impl Owner {
    /// The owner that a user of this node is to the broker. One that no table names is an owner by itself.
    #[must_use]
    pub fn of_user(owners: &[Self], uid: u32) -> String {
        let named = owners.iter().find(|owner| owner.uid == Some(uid));
        named.map_or_else(|| format!("uid:{uid}"), |owner| owner.name.clone())
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
        for (index, id) in internal.gpus.iter().enumerate() {
            if let Some(why) = no_gpu(id) {
                return Err(ReadError::new(format!("{id:?} {why}")).inside(&index.to_string()).inside("gpus"));
            }
        }
        if internal.kind.as_deref().is_some_and(|kind| !names_a_kind(kind)) {
            return Err(ReadError::new("it has no letter or digit").inside("kind"));
        }
        Ok(internal)
    }
}

/// Why this can be the name of no GPU; nothing when it can.
fn no_gpu(id: &str) -> Option<&'static str> {
    let lower = id.to_ascii_lowercase();
    if lower.starts_with("mig-") || lower.contains("mig") && lower.contains(':') {
        return Some("is a part of a GPU, which cannot be kept by itself; name the GPU");
    }
    let hexadecimal = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_uuid = |uuid: &str| uuid.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && uuid.split('-').all(hexadecimal);
    let is_minor = |minor: &str| minor.parse().is_ok_and(|number: u8| number.to_string() == minor);
    let is = lower.strip_prefix("gpu-").is_some_and(is_uuid)
        || lower.strip_prefix("nvidia").is_some_and(is_minor)
        || pci_address(&lower).is_some();
    (!is).then_some("is no PCI address, no GPU-… UUID in full and no nvidiaN")
}

/// Whether a kind says anything: one without a word would mean every GPU.
pub(crate) fn names_a_kind(kind: &str) -> bool {
    kind.bytes().any(|byte| byte.is_ascii_alphanumeric())
}

impl Internal {
    /// Whether a GPU is kept from somebody; `all` are the node's. One that nobody can tell from a GPU that is meant is kept
    /// as that one: the driver tells a UUID when the GPU was opened, and a minor while it holds it.
    #[must_use]
    pub fn keeps(&self, gpu: &Gpu, all: &[Gpu], from: Option<&str>) -> bool {
        let named = |id: &String| gpu.is_named(id) || may_be_named(gpu, id) && !is_one_of(all, id);
        let meant = self.gpus.iter().any(named) || self.kind.as_deref().is_some_and(|kind| gpu.may_be_kind(kind));
        meant && !self.only.iter().any(|who| Some(who.as_str()) == from)
    }

    /// What it names and no GPU is known by now, and the GPUs that are kept as it.
    pub fn unmatched<'a>(&'a self, all: &'a [Gpu]) -> impl Iterator<Item = (&'a str, Vec<&'a Gpu>)> {
        let ids = self.gpus.iter().filter(|id| !is_one_of(all, id));
        let by_id = ids.map(|id| (id.as_str(), all.iter().filter(|gpu| may_be_named(gpu, id)).collect()));
        let kind = self.kind.as_deref().filter(|kind| !all.iter().any(|gpu| gpu.model.is_some() && gpu.is_kind(kind)));
        by_id.chain(kind.map(|kind| (kind, all.iter().filter(|gpu| gpu.may_be_kind(kind)).collect())))
    }
}

fn is_one_of(all: &[Gpu], id: &str) -> bool {
    all.iter().any(|gpu| gpu.is_named(id))
}

/// Whether a GPU lacks the name that tells it from this one.
fn may_be_named(gpu: &Gpu, id: &str) -> bool {
    let begins = |with: &str| id.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    begins("GPU-") && gpu.uuid.is_none() || begins("nvidia") && gpu.minor.is_none()
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
            uid: None,
        };
        let user = Owner { name: "alice".into(), uid: Some(1000), ..Owner::default() };
        let owners = [
            user,
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
        assert_eq!([1000, 1001].map(|uid| Owner::of_user(&owners, uid)), ["alice", "uid:1001"]);
    }

    fn internal(gpus: &[&str], kind: Option<&str>) -> Internal {
        Internal {
            gpus: gpus.iter().map(|id| (*id).to_owned()).collect(),
            kind: kind.map(str::to_owned),
            only: vec!["red".into(), "vm:a".into()],
        }
    }

    fn gpu(uuid: Option<&str>, minor: Option<u32>, model: Option<&str>) -> Gpu {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Gpu { pci: "0000:41:00.0".into(), uuid: owned(uuid), minor, model: owned(model), ..Gpu::default() }
    }

    #[test]
    fn internal_gpus_are_kept_from_all_others() {
        let gpu = gpu(Some("GPU-1"), Some(3), Some("NVIDIA H100 PCIe"));
        for (gpus, kind, from, kept) in [
            (&["41:00.0"][..], None, None, true),
            (&["gpu-1"], None, Some("blue"), true),
            (&["nvidia3"], None, Some("red"), false),
            (&["nvidia1"], None, None, false),
            (&["GPU-2"], None, None, false),
            (&[], Some("h100"), Some("blue"), true),
            (&[], Some("h100"), Some("vm:a"), false),
            (&[], Some("a100"), None, false),
        ] {
            let all = [gpu.clone()];
            assert_eq!(internal(gpus, kind).keeps(&gpu, &all, from), kept, "{gpus:?} {kind:?} {from:?}");
        }
    }

    /// A GPU that was not opened since boot has no UUID yet, one of a virtual machine no minor.
    #[test]
    fn what_is_not_known_of_a_gpu_keeps_it_as_long_as_it_could_be_the_one() {
        let model = Some("NVIDIA H100 PCIe");
        // What is not known of the GPU, what is kept, of whom the rest of the node is, whether the GPU is kept.
        for (unknown, gpus, kind, other, kept) in [
            (gpu(None, Some(0), model), &["GPU-1"][..], None, gpu(Some("GPU-2"), Some(1), model), true),
            (gpu(None, Some(0), model), &["gpu-1"], None, gpu(Some("GPU-1"), Some(1), model), false),
            (gpu(None, Some(0), model), &["nvidia1"], None, gpu(Some("GPU-2"), Some(2), model), false),
            (gpu(Some("GPU-1"), None, model), &["nvidia0"], None, gpu(Some("GPU-2"), Some(1), model), true),
            (gpu(Some("GPU-1"), None, model), &["nvidia1"], None, gpu(Some("GPU-2"), Some(1), model), false),
            (gpu(None, None, model), &["0000:42:00.0"], None, gpu(None, None, model), false),
            (gpu(None, Some(0), None), &[], Some("a100"), gpu(None, Some(1), Some("NVIDIA A100")), true),
            (gpu(None, Some(0), model), &[], Some("a100"), gpu(None, Some(1), None), false),
        ] {
            let all = [unknown.clone(), other];
            let internal = internal(gpus, kind);
            assert_eq!(internal.keeps(&unknown, &all, None), kept, "{gpus:?} {kind:?} {unknown:?}");
            assert!(!internal.keeps(&unknown, &all, Some("red")), "{gpus:?} {kind:?}");
        }
    }

    #[test]
    fn what_no_gpu_is_known_by_is_told_with_those_that_are_kept_for_it() {
        let model = Some("NVIDIA H100 PCIe");
        let all = [gpu(Some("GPU-1"), Some(0), model), gpu(None, Some(1), None)];
        let internal = internal(&["GPU-1", "GPU-2", "nvidia1", "nvidia9", "41:00.0", "0000:99:00.0"], Some("a100"));
        let told: Vec<_> = internal.unmatched(&all).map(|(id, kept)| (id, kept.len())).collect();
        assert_eq!(told, [("GPU-2", 1), ("nvidia9", 0), ("0000:99:00.0", 0), ("a100", 1)]);
    }
}
