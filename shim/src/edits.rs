//! Step 7: from judgement and contract to the edits on the spec.

use std::num::NonZeroU32;
use std::path::Path;

use cdi::{Edits, Hook, Mount, Stage};
use contract::json::Node;
use contract::{Code, Contract, Note, Refusal};
use guard::{Judgement, Numbers};

use crate::bundle;
use crate::view;

const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// The edits that carry out what was decided, and what is worth knowing about them.
///
/// # Errors
/// `UNSAFE_SPEC` when a volume of the tenant covers a place that something granted must go to.
pub(crate) fn edits(spec: &Node<'_>, folder: &Path, judgement: &Judgement, numbers: &Numbers, contract: Option<&Contract>) -> Result<(Edits, Vec<Note>), Refusal> {
    let changes = &judgement.changes;
    let mut edits = Edits { drop_devices: changes.drop_devices.clone(), rules: changes.rules.clone(), ..Edits::default() };
    if !changes.read_only.is_empty() {
        let at_once = node::has_mount_attributes();
        let mount = |one: &guard::ReadOnly| Mount::read_only(&one.source, &one.destination, at_once);
        edits.inserted = changes.read_only.iter().map(|one| (one.before, mount(one))).collect();
    }
    let mut notes = Vec::new();
    let Some(contract) = contract else {
        if changes.void_visible_devices {
            edits.env.push((VISIBLE.to_owned(), "void".to_owned()));
        }
        return Ok((edits, notes));
    };
    let granted: Vec<(u32, u32)> = contract.nodes.iter().map(|n| (n.major, n.minor)).collect();
    edits.env.clone_from(&contract.env);
    edits.rules = Some(guard::granted_rules(&judgement.rules, &granted, numbers));
    if has_user_namespace(spec) {
        // mknod is not allowed there, and runc would bind a node of the same path, which a driver root does not have.
        edits.mounts.extend(contract.nodes.iter().map(|n| Mount::node(&n.host_path, &n.path)));
    } else {
        edits.nodes.clone_from(&contract.nodes);
    }
    let rootfs = bundle::rootfs(spec, folder);
    let placed = view::place(rootfs.as_deref(), &contract.libraries);
    edits.mounts.extend(placed.binds.iter().map(|(host, dest)| Mount::library(host, dest)));
    edits.mounts.extend(contract.binaries.iter().map(|b| Mount::binary(&b.host_path, format!("/usr/bin/{}", b.name))));
    notes.extend(placed.notes);
    let targets = edits.mounts.iter().map(|m| m.destination.as_str()).chain(edits.nodes.iter().map(|n| n.path.as_str()));
    for target in targets {
        refuse_covered(spec, target)?;
    }
    Ok((edits, notes))
}

fn has_user_namespace(spec: &Node<'_>) -> bool {
    let namespaces = spec.path(&["linux", "namespaces"]).map(Node::items).unwrap_or_default();
    namespaces.iter().any(|n| n.get("type").and_then(Node::as_str) == Some("user"))
}

/// A mount point made inside a volume stays in the tenant's folder, and may propagate to the host: refuse instead.
fn refuse_covered(spec: &Node<'_>, target: &str) -> Result<(), Refusal> {
    for (index, mount) in spec.get("mounts").map(Node::items).unwrap_or_default().iter().enumerate() {
        let options = mount.get("options").map(Node::items).unwrap_or_default();
        let bind = options.iter().filter_map(Node::as_str).any(|o| o == "bind" || o == "rbind");
        let destination = mount.get("destination").and_then(Node::as_str).unwrap_or("").trim_end_matches('/');
        let inside = target.strip_prefix(destination).is_some_and(|rest| rest.starts_with('/'));
        if bind && inside {
            return Err(Refusal::new(
                Code::UnsafeSpec,
                "target-in-volume",
                format!("this volume covers {target}, where a part of the GPU's driver must go"),
                "mount the volume somewhere else",
            )
            .at(format!("/mounts/{index}/destination"), destination));
        }
    }
    Ok(())
}

/// The hooks that a `run` gets, since nobody stands by to verify and release.
pub(crate) fn run_hooks(hook: &Path, config: &Path, key: &str) -> Vec<Hook> {
    let hook_of = |stage: Stage| Hook {
        stage,
        path: hook.display().to_string(),
        args: ["quilt-gpu-hook", stage.key(), "--config", &config.display().to_string(), "--key", key].map(str::to_owned).to_vec(),
        // Without a variable some runtimes would hand the container's own environment to the hook.
        env: vec!["QUILT_GPU_HOOK=1".to_owned()],
        timeout: NonZeroU32::new(30),
    };
    vec![hook_of(Stage::CreateRuntime), hook_of(Stage::Poststop)]
}
