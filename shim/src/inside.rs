//! What a created container sees, against what was decided: nodes, files, mounts, masks, namespaces.

use std::path::Path;

use contract::Contract;
use contract::json::Node;
use guard::{Object, System};
use node::cgroup::Groups;
use node::{Inside, Places, mountinfo};

use crate::moved;
use crate::verify::{Created, Wrong, confined, unknown};

/// Looks at everything but the device filter.
///
/// # Errors
/// The first difference.
pub(crate) fn judged(created: &Created<'_>, table: &mountinfo::Table, groups: &Groups<'_>) -> Result<(), Wrong> {
    let inside = Inside::of(table, created.pid, created.base).map_err(unknown)?;
    let judgement = &created.decision.judgement;
    // Hooks run before masks are made, and before crun makes `ro` of a mount true.
    let complete = created.base == Path::new("/");
    if let Some(contract) = created.contract {
        let mut places = Places::of(inside.root());
        nodes(&mut places, contract)?;
        files(created, &mut places)?;
    }
    if created.fresh && judgement.sealed {
        working_folder(created, &inside)?;
    }
    if created.changed {
        foreign_nodes(created, &inside)?;
        namespaces(created)?;
        if complete {
            masks(created, &inside)?;
        }
    }
    if let Some(by) = created.by.as_ref().filter(|_| judgement.sealed) {
        moved::judged(created, by, &inside, groups.own())?;
    }
    if judgement.sealed
        && let Some(place) = inside.shows(&created.decision.own, groups.own()).map_err(unknown)?
    {
        return Err(differs(format!(
            "the node's own record of who has which GPU is seen in the container, at {place}"
        )));
    }
    // Inside a user namespace nothing filters, and control groups are other users' files.
    let may_leave = complete && judgement.sealed && judgement.writes_groups;
    if judgement.changes.covers_groups() || may_leave && created.system.initial_user_namespace() {
        confined(groups, table, created.base)?;
    }
    Ok(())
}

fn differs(why: String) -> Wrong {
    Wrong::Differs(why)
}

/// The contract's nodes are where they must be.
fn nodes(places: &mut Places<'_>, contract: &Contract) -> Result<(), Wrong> {
    for item in &contract.nodes {
        match places.device(Path::new(&item.path)) {
            Ok(number) if number == (item.major, item.minor) => {}
            Ok((major, minor)) => {
                let (path, wanted) = (&item.path, format!("{}:{}", item.major, item.minor));
                return Err(differs(format!("{path} is {major}:{minor}, the contract says {wanted}")));
            }
            Err(error) => return Err(differs(format!("{} is not the contract's device: {error}", item.path))),
        }
    }
    Ok(())
}

/// The host's files are where they must be.
fn files(created: &Created<'_>, places: &mut Places<'_>) -> Result<(), Wrong> {
    for item in &created.placed {
        match places.file_id(Path::new(item.path)) {
            Ok(id) if (id.dev, id.ino) == item.file => {}
            Ok(_) => return Err(differs(format!("{} is not the host's file", item.path))),
            Err(error) => return Err(differs(format!("{} is missing: {error}", item.path))),
        }
    }
    Ok(())
}

/// The first process works in the container: a link of its image's, or of a volume's, may have led through `/proc` to what the
/// low-level runtime has open, or inherited (CVE-2024-21626). What a path says does not tell.
fn working_folder(created: &Created<'_>, inside: &Inside<'_>) -> Result<(), Wrong> {
    let cwd = created.decision.spec.path(&["process", "cwd"]).and_then(Node::as_str);
    if matches!(cwd, None | Some("/")) || inside.has_at_work(created.pid).map_err(unknown)? {
        return Ok(());
    }
    Err(differs(format!("the container's working folder, {}, lies outside of it", cwd.unwrap_or_default())))
}

/// No node of a GPU and no `/dev` of the host's is mounted that nobody decided on.
fn foreign_nodes(created: &Created<'_>, inside: &Inside<'_>) -> Result<(), Wrong> {
    let granted = |point: &str, number: (u32, u32)| {
        let nodes = created.contract.iter().flat_map(|contract| &contract.nodes);
        nodes.into_iter().any(|node| (node.major, node.minor) == number && inside.holds(&node.path, point))
    };
    for (point, number) in inside.nodes().map_err(unknown)? {
        let (major, minor) = number;
        if created.numbers.is_gpu(major, minor)
            && !granted(point, number)
            && !is_in_a_judged_tree(created, inside, point)
        {
            return Err(differs(format!("a node of a GPU is mounted in the container: {point} is {major}:{minor}")));
        }
    }
    for point in inside.folders_of_dev().map_err(unknown)? {
        if !is_in_a_judged_tree(created, inside, point) {
            return Err(differs(format!("the host's /dev, or a part of it, is mounted in the container, at {point}")));
        }
    }
    Ok(())
}

/// Whether a mount point belongs to a mount of the spec that shows the host's `/dev`, or a part of it: that was judged, and
/// the device filter closes what is in it.
fn is_in_a_judged_tree(created: &Created<'_>, inside: &Inside<'_>, point: &str) -> bool {
    let system = created.system;
    let shows_dev = |mount: &&Node<'_>| {
        if mount.get("type").and_then(Node::as_str) == Some("devtmpfs") {
            return true;
        }
        let source = mount.get("source").and_then(Node::as_str).unwrap_or_default();
        match system.look(source) {
            Object::Dir(dir) => dir.on_dev || dir.in_driver_root || system.tree_has_dev(&dir.real).unwrap_or(false),
            _ => false,
        }
    };
    let holds = |mount: &&Node<'_>| {
        mount.get("destination").and_then(Node::as_str).is_some_and(|path| inside.holds(path, point))
    };
    items(created, &["mounts"]).iter().filter(holds).any(|mount| shows_dev(&mount))
}

/// `maskedPaths`, ours among them, and `readonlyPaths` are what they say.
fn masks(created: &Created<'_>, inside: &Inside<'_>) -> Result<(), Wrong> {
    let named = items(created, &["linux", "maskedPaths"]).iter().filter_map(Node::as_str);
    for path in named.chain(created.masked.iter().map(String::as_str)) {
        if let Some(why) = inside.unmasked(path).map_err(unknown)? {
            return Err(differs(format!("{path} must be masked: {why}")));
        }
    }
    for path in items(created, &["linux", "readonlyPaths"]).iter().filter_map(Node::as_str) {
        if inside.is_writable(path).map_err(unknown)? {
            return Err(differs(format!("{path} must be read-only, and is not")));
        }
    }
    Ok(())
}

/// Its mount and PID namespace are its own where it asked for one of its own, and the named one where it named one.
fn namespaces(created: &Created<'_>) -> Result<(), Wrong> {
    for (kind, file) in [("mount", "mnt"), ("pid", "pid")] {
        let list = items(created, &["linux", "namespaces"]);
        let Some(wanted) = list.iter().find(|one| one.get("type").and_then(Node::as_str) == Some(kind)) else {
            continue;
        };
        let path = wanted.get("path").and_then(Node::as_str).filter(|path| !path.is_empty());
        let of = |path: &str| node::file_id(Path::new(path)).map(|id| (id.dev, id.ino)).map_err(unknown);
        let its = of(&format!("/proc/{}/ns/{file}", created.pid))?;
        let other = path.map_or_else(|| of(&format!("/proc/self/ns/{file}")), of)?;
        if (its == other) != path.is_some() {
            return Err(differs(format!("the container's {kind} namespace is not the one that its spec names")));
        }
    }
    Ok(())
}

fn items<'n>(created: &'n Created<'_>, path: &[&str]) -> &'n [Node<'n>] {
    created.decision.spec.path(path).map(Node::items).unwrap_or_default()
}
