//! What a mount's options come to.

use contract::json::Node;

use crate::paths;

/// Whether nodes in the mount are no nodes already.
pub(crate) fn has_no_nodes(mount: &Node<'_>) -> bool {
    let mut options = mount.get("options").map(Node::items).unwrap_or_default().iter().filter_map(Node::as_str);
    options.rfind(|option| matches!(*option, "dev" | "nodev")) == Some("nodev")
}

/// What youki mounts there can be written, whatever is said.
pub(crate) fn is_dev(mount: &Node<'_>) -> bool {
    mount.get("destination").and_then(Node::as_str).is_some_and(is_at_dev)
}

/// The same of a place.
pub(crate) fn is_at_dev(place: &str) -> bool {
    paths::clean(place) == "/dev"
}

/// `rrw` makes the whole tree writable, whatever else is said.
pub(crate) fn is_writable<'o>(options: impl Iterator<Item = &'o str> + Clone) -> bool {
    let last = options.clone().filter(|o| matches!(*o, "ro" | "rw" | "rro")).last();
    last.is_none_or(|option| option == "rw") || options.into_iter().any(|option| option == "rrw")
}
