//! The paths of a CDI file below another root, as where a driver's root is mounted elsewhere. Moves whole names: what lies
//! below `/run/driver` is not below `/run/driver2`.

use super::needs::{lowest, place, stated};
use super::types::{ContainerEdits, Spec};

/// Which paths move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelativeTo {
    /// The paths on the host: of device nodes, mounts and hooks.
    Host,
    /// The paths in the container: of device nodes and mounts.
    Container,
}

/// Moves what lies below `from` to below `to`, and says how many paths moved. The stated version rises where the new
/// content needs it.
pub fn move_root(spec: &mut Spec, from: &str, to: &str, which: RelativeTo) -> usize {
    let mut moved = 0;
    let all = std::iter::once(&mut spec.container_edits);
    for edits in all.chain(spec.devices.iter_mut().map(|device| &mut device.container_edits)) {
        match which {
            RelativeTo::Host => host(edits, from, to, &mut moved),
            RelativeTo::Container => container(edits, from, to, &mut moved),
        }
    }
    if place(lowest(spec)) > place(stated(&spec.cdi_version)) {
        lowest(spec).clone_into(&mut spec.cdi_version);
    }
    moved
}

fn host(edits: &mut ContainerEdits, from: &str, to: &str, moved: &mut usize) {
    for node in &mut edits.device_nodes {
        if let Some(path) = below(node.host(), from, to) {
            node.host_path = Some(path).filter(|path| *path != node.path);
            *moved += 1;
        }
    }
    let mounts = edits.mounts.iter_mut().map(|mount| &mut mount.host_path);
    for path in mounts.chain(edits.hooks.iter_mut().map(|hook| &mut hook.path)) {
        change(path, from, to, moved);
    }
}

fn container(edits: &mut ContainerEdits, from: &str, to: &str, moved: &mut usize) {
    for node in &mut edits.device_nodes {
        if let Some(path) = below(&node.path, from, to) {
            let host = node.host().to_owned();
            node.host_path = Some(host).filter(|host| *host != path);
            node.path = path;
            *moved += 1;
        }
    }
    for mount in &mut edits.mounts {
        change(&mut mount.container_path, from, to, moved);
    }
}

fn change(path: &mut String, from: &str, to: &str, moved: &mut usize) {
    if let Some(new) = below(path, from, to) {
        *path = new;
        *moved += 1;
    }
}

/// The path below the other root; none when it does not lie below the first.
fn below(path: &str, from: &str, to: &str) -> Option<String> {
    let rest = path.strip_prefix(from.trim_end_matches('/'))?;
    if !rest.is_empty() && !rest.starts_with('/') || !path.starts_with('/') {
        return None;
    }
    let moved = format!("{}{rest}", to.trim_end_matches('/'));
    Some(if moved.is_empty() { "/".to_owned() } else { moved })
}
