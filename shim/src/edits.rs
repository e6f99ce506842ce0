//! Step 7: from judgement and contract to the edits on the spec.

use std::num::NonZeroU32;
use std::path::Path;

use cdi::{Edits, Hook, Mount, Stage};
use contract::inventory::DeviceNode;
use contract::json::Node;
use contract::{Code, Contract, Note, Refusal};
use guard::{Judgement, Numbers};
use node::InRoot;

use crate::groups;
use crate::others::masks;
use crate::profile::{self, Profile};
use crate::setup::Setup;
use crate::targets::refuse_covered;
use crate::view::{self, Cache};

const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// What carries out what was decided.
#[derive(Default)]
pub(crate) struct Planned {
    /// On the spec.
    pub(crate) edits: Edits,
    /// On the image's list of libraries.
    pub(crate) cache: Option<Cache>,
    /// Beside the spec.
    pub(crate) profile: Option<Profile>,
    /// What is worth knowing.
    pub(crate) notes: Vec<Note>,
}

/// The edits that carry out what was decided for a bundle and its image, and what is worth knowing about them.
///
/// # Errors
/// `UNSAFE_SPEC` when a volume of the tenant covers a place that something granted must go to; `GPU_UNAVAILABLE` when the
/// container's user could not open what it is granted.
pub(crate) fn edits(
    spec: &Node<'_>,
    (folder, root): (&Path, Option<&InRoot>),
    judgement: &Judgement,
    numbers: &Numbers,
    contract: Option<&Contract>,
    setup: &Setup,
) -> Result<Planned, Refusal> {
    let (changes, config) = (&judgement.changes, &setup.config);
    let mut edits = Edits {
        drop_devices: changes.drop_devices.clone(),
        drop_prestart: changes.drop_prestart.clone(),
        drop_capabilities: changes.drop_capabilities.clone(),
        options: changes.nodev.iter().map(|mount| (*mount, "nodev")).collect(),
        rules: changes.rules.clone(),
        ..Edits::default()
    };
    if !changes.read_only.is_empty() {
        let at_once = node::has_mount_attributes();
        let mount = |one: &guard::ReadOnly| match &one.source {
            Some(source) => Mount::read_only(source, &one.destination, at_once),
            None => Mount::hiding(&one.destination, &guard::HIDING),
        };
        edits.inserted = changes.read_only.iter().map(|one| (one.before, mount(one))).collect();
    }
    let Some(contract) = contract else {
        if changes.void_visible_devices {
            edits.env.push((VISIBLE.to_owned(), "void".to_owned()));
        }
        return Ok(Planned { edits, ..Planned::default() });
    };
    let granted: Vec<(u32, u32)> = contract.nodes.iter().map(|n| (n.major, n.minor)).collect();
    edits.env.clone_from(&contract.env);
    edits.masked = masks(spec, contract, config);
    // A list that nobody enforces would say what is not so.
    edits.rules = (!setup.rootless).then(|| guard::granted_rules(&judgement.rules, &granted, numbers));
    if setup.rootless || has_user_namespace(spec) {
        // mknod is not allowed there, and runc would bind a node of the same path, which a driver root does not have.
        edits.mounts.extend(contract.nodes.iter().map(|n| Mount::node(&n.host_path, &n.path)));
    } else {
        edits.nodes.clone_from(&contract.nodes);
    }
    if !setup.rootless {
        edits.gids = groups::needed(spec, &contract.nodes, config.policy.refuse_device_groups)?;
    }
    let view::Placed { binds, cache, notes } = view::place(root, spec, folder, contract)?;
    edits.mounts.extend(binds.iter().map(|(host, dest)| Mount::library(host, dest)));
    let bound = cache.as_ref().and_then(|cache| cache.bound.as_ref());
    edits.mounts.extend(bound.map(|file| Mount::library(file.to_string_lossy(), view::CACHE)));
    let profile = profile::of(root, spec, folder, contract, config);
    edits.mounts.extend(profile.iter().map(|one| Mount::library(one.file.to_string_lossy(), profile::PLACE)));
    refuse_taken(spec, &changes.drop_devices, &contract.nodes)?;
    let nodes: Vec<&str> = contract.nodes.iter().map(|n| n.path.as_str()).collect();
    let targets: Vec<&str> =
        edits.mounts.iter().map(|m| m.destination.as_str()).filter(|d| !nodes.contains(d)).collect();
    refuse_covered(spec, root, &targets, &nodes)?;
    Ok(Planned { edits, cache, profile, notes })
}

/// A tenant's device entry where a granted node must be: one of the two would be made, and runtimes differ in which.
fn refuse_taken(spec: &Node<'_>, dropped: &[usize], nodes: &[DeviceNode]) -> Result<(), Refusal> {
    let entries = spec.path(&["linux", "devices"]).map(Node::items).unwrap_or_default();
    let path = |entry: &Node<'_>| entry.get("path").and_then(Node::as_str).map(str::to_owned);
    let is_nodes = |path: &str| nodes.iter().any(|node| node.path == guard::clean(path));
    let taken = entries.iter().enumerate().filter(|(index, _)| !dropped.contains(index));
    let Some((index, path)) =
        taken.filter_map(|(index, entry)| Some((index, path(entry)?))).find(|(_, path)| is_nodes(path))
    else {
        return Ok(());
    };
    let message = "this device entry stands where a granted device must be";
    let help = "leave the entry out: a granted GPU brings its device nodes along";
    Err(Refusal::new(Code::UnsafeSpec, "device-path", message, help).at(format!("/linux/devices/{index}/path"), path))
}

pub(crate) fn has_user_namespace(spec: &Node<'_>) -> bool {
    let namespaces = spec.path(&["linux", "namespaces"]).map(Node::items).unwrap_or_default();
    namespaces.iter().any(|n| n.get("type").and_then(Node::as_str) == Some("user"))
}

/// The hooks that a `run` gets, since nobody stands by to verify and release.
pub(crate) fn run_hooks(setup: &Setup, key: &str) -> Vec<Hook> {
    let text = |path: &Path| path.display().to_string();
    let mut options = vec!["--config".to_owned(), text(&setup.path), "--key".to_owned(), key.to_owned()];
    if let Some(folder) = setup.users_folder() {
        options.extend(["--user".to_owned(), text(folder)]);
    }
    let hook_of = |stage: Stage| Hook {
        stage,
        path: text(&setup.hook()),
        args: ["quilt-gpu-hook", stage.key()].map(str::to_owned).into_iter().chain(options.iter().cloned()).collect(),
        // Without a variable some runtimes would hand the container's own environment to the hook.
        env: vec!["QUILT_GPU_HOOK=1".to_owned()],
        timeout: NonZeroU32::new(30),
    };
    vec![hook_of(Stage::CreateRuntime), hook_of(Stage::Poststop)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::tests::node;

    /// B10: the entry of a tenant would be made instead of the granted one, or beside it under another spelling.
    #[test]
    fn an_entry_of_the_tenants_is_not_where_a_granted_node_must_be() {
        let node = node(0o666, 0);
        for (path, dropped, expected) in [
            ("/dev/nvidia0", &[][..], "UNSAFE_SPEC /linux/devices/1/path"),
            ("//dev/./nvidia0", &[], "UNSAFE_SPEC /linux/devices/1/path"),
            ("/dev/nvidia0", &[1], "fine"),
            ("/dev/nvidia1", &[], "fine"),
        ] {
            let spec = format!(r#"{{"linux":{{"devices":[{{"path":"/dev/x"}},{{"path":"{path}","type":"p"}}]}}}}"#);
            let spec = contract::json::parse_oci(spec.as_bytes()).unwrap();
            let found = refuse_taken(&spec, dropped, std::slice::from_ref(&node));
            let found =
                found.map_or_else(|refusal| format!("{} {}", refusal.code.name(), refusal.at), |()| "fine".into());
            assert_eq!(found, expected, "{path} {dropped:?}");
        }
    }
}
