//! Injected devices as changes of a container's spec: the Go library's order and rules, on the document instead of on types.
//!
//! Done twice it is done once. The container's own mounts keep their order: an injected one goes behind every mount that is
//! not deeper than it, which in a list sorted by depth (engines sort) is where the Go library puts it. Only for a mount on `/`,
//! which no engine makes, the library's order would hide others.

use contract::json::{Node, Value};
use contract::rule::{Access, Kind, Rule};
use oci_spec::runtime::{LinuxDeviceBuilder, LinuxDeviceType, MountBuilder};

use super::resolve::Injection;
use super::types::{ContainerEdits, DeviceNode, IntelRdt, Mount, NodeKind};
use crate::change::{self, Change, Holds, Items, expected, last, list, members, one_per_key, some_items, wrong};
use crate::edits::{EditError, Edits, Hook, Op};
use crate::{entry, plan};

/// The spec with the devices injected; their nodes were completed before. `spec` is what the strict reader made of `bytes`.
///
/// # Errors
/// The spec has another shape than the OCI runtime spec where it would be changed, or a device node says too little.
pub fn apply(bytes: &[u8], spec: &Node<'_>, injection: &Injection) -> Result<Vec<u8>, EditError> {
    plan::made(bytes, spec, changes(spec, &injection.edits)?)
}

/// The same as RFC 6902 operations; none when the spec already is as wanted.
///
/// # Errors
/// As [`apply`].
pub fn patch(spec: &Node<'_>, injection: &Injection) -> Result<Vec<Op>, EditError> {
    Ok(plan::told(spec, changes(spec, &injection.edits)?))
}

fn changes<'k>(spec: &Node<'_>, edits: &'k ContainerEdits) -> Result<Option<Change<'k>>, EditError> {
    let plain = plain(edits)?;
    let resources = members([("devices", last(spec, &["linux", "resources", "devices"], rules(edits)?)?)]);
    Ok(members([
        (
            "process",
            members([
                ("env", change::env(spec, &["process", "env"], &plain.env)?),
                ("user", members([("additionalGids", change::gids(spec, &plain)?)])),
            ]),
        ),
        ("mounts", mounts(spec, &edits.mounts)?),
        (
            "linux",
            members([
                ("devices", devices(spec, &edits.device_nodes)?),
                ("resources", resources),
                ("netDevices", net_devices(spec, edits)?),
                ("intelRdt", rdt(spec, edits.intel_rdt.as_ref())?),
            ]),
        ),
        ("hooks", change::hooks(spec, &plain)?),
    ]))
}

/// What our own edits can say as well.
fn plain(edits: &ContainerEdits) -> Result<Edits, EditError> {
    let variable = |text: &String| {
        let (name, value) = text.split_once('=').ok_or_else(|| odd(&format!("the variable {text:?} has no '='")))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    let hooks = edits.hooks.iter().map(|hook| Hook {
        stage: hook.hook_name,
        path: hook.path.clone(),
        args: hook.args.clone(),
        env: hook.env.clone(),
        timeout: hook.timeout,
    });
    Ok(Edits {
        env: edits.env.iter().map(variable).collect::<Result<_, EditError>>()?,
        hooks: hooks.collect(),
        // The specification says so of group 0, which every process of root has anyway.
        gids: edits.additional_gids.iter().copied().filter(|gid| *gid != 0).collect(),
        ..Edits::default()
    })
}

fn devices(spec: &Node<'_>, nodes: &[DeviceNode]) -> Result<Option<Change<'static>>, EditError> {
    if nodes.is_empty() {
        return Ok(None);
    }
    let items = list(spec, &["linux", "devices"], Holds::Objects)?;
    let wanted = nodes.iter().map(|node| Ok((node.path.as_str(), device(spec, node)?)));
    let is_copy = |item: &Node<'_>, path: &str| item.get("path").and_then(Node::as_str) == Some(path);
    Ok(one_per_key(items, &[], is_copy, wanted.collect::<Result<_, _>>()?))
}

fn device(spec: &Node<'_>, node: &DeviceNode) -> Result<String, EditError> {
    let fail = |cause: &dyn std::fmt::Display| odd(&format!("cannot write the device {:?}: {cause}", node.path));
    let (kind, major, minor) = numbers(node)?;
    let user = |key| spec.path(&["process", "user", key]).and_then(Node::as_i64).and_then(|id| u32::try_from(id).ok());
    let typ = match kind {
        NodeKind::Block => LinuxDeviceType::B,
        NodeKind::Char => LinuxDeviceType::C,
        NodeKind::Unbuffered => LinuxDeviceType::U,
        NodeKind::Fifo => LinuxDeviceType::P,
    };
    let mut entry = LinuxDeviceBuilder::default().path(node.path.as_str()).typ(typ).major(major).minor(minor);
    if let Some(mode) = node.file_mode {
        entry = entry.file_mode(mode);
    }
    // Who runs as somebody else than root could not open the node otherwise.
    if let Some(uid) = node.uid.or_else(|| user("uid").filter(|uid| *uid > 0)) {
        entry = entry.uid(uid);
    }
    if let Some(gid) = node.gid.or_else(|| user("gid").filter(|gid| *gid > 0)) {
        entry = entry.gid(gid);
    }
    let entry = entry.build().map_err(|e| fail(&e))?;
    serde_json::to_string(&entry).map_err(|e| fail(&e))
}

/// Type and numbers of a node that was completed.
fn numbers(node: &DeviceNode) -> Result<(NodeKind, u32, u32), EditError> {
    let minor = node.minor.unwrap_or_default();
    match (node.kind, node.major) {
        (Some(NodeKind::Fifo), major) => Ok((NodeKind::Fifo, major.unwrap_or_default(), minor)),
        (Some(kind), Some(major)) => Ok((kind, major, minor)),
        _ => Err(odd(&format!("nobody looked what the device node {:?} is", node.path))),
    }
}

fn rules(edits: &ContainerEdits) -> Result<Vec<String>, EditError> {
    let mut rules = Vec::new();
    for node in &edits.device_nodes {
        let (kind, major, minor) = numbers(node)?;
        let kind = match kind {
            NodeKind::Block => Kind::Block,
            NodeKind::Char | NodeKind::Unbuffered => Kind::Char,
            NodeKind::Fifo => continue,
        };
        let access = access(node.permissions.as_deref());
        rules.push(entry::rule(&Rule { allow: true, kind, major: Some(major), minor: Some(minor), access })?);
    }
    Ok(rules)
}

fn access(permissions: Option<&str>) -> Access {
    match permissions {
        None => Access::ALL,
        Some("none") => Access::default(),
        Some(letters) => {
            let has = |letter| letters.contains(letter);
            Access { read: has('r'), write: has('w'), make: has('m') }
        }
    }
}

fn mounts(spec: &Node<'_>, mounts: &[Mount]) -> Result<Option<Change<'static>>, EditError> {
    if mounts.is_empty() {
        return Ok(None);
    }
    let items = list(spec, &["mounts"], Holds::Objects)?;
    let mapped = has_user_namespace(spec)?;
    let there: Vec<&str> =
        items.iter().map(|item| item.get("destination").and_then(Node::as_str).unwrap_or_default()).collect();
    let (mut out, mut new): (_, Vec<(usize, &str)>) = (Items::default(), Vec::new());
    for mount in one_per_destination(mounts) {
        let text = mounted(mount, mapped)?;
        let place = parts(&mount.container_path);
        let hides = |path: &str| place.starts_with(&parts(path));
        let same = there.iter().rposition(|path| *path == mount.container_path);
        // Where a later mount hides what stands there, ours comes behind that; a new parent of ours may be one.
        let same = same.filter(|at| !there.iter().skip(at + 1).any(|path| hides(path)));
        let same = same.filter(|at| !new.iter().any(|(before, path)| before > at && hides(path)));
        let behind = || there.iter().rposition(|path| parts(path).len() <= place.len()).map_or(0, |at| at + 1);
        if let Some(at) = same {
            let stays = items.get(at).is_some_and(|item| change::is(item, &text));
            out.changed.extend((!stays).then_some((at, Some(Change::Value(text)))));
            continue;
        }
        let at = behind();
        new.push((at, mount.container_path.as_str()));
        if at < items.len() { out.inserted.push((at, text)) } else { out.added.push(text) }
    }
    out.changed.sort_by_key(|(at, _)| *at);
    out.inserted.sort_by_key(|(at, _)| *at);
    Ok(some_items(out))
}

/// Of two mounts with one destination the later counts; parents stand before what lies in them.
fn one_per_destination(mounts: &[Mount]) -> Vec<&Mount> {
    let mut one: Vec<&Mount> = Vec::new();
    for mount in mounts {
        one.retain(|other| parts(&other.container_path) != parts(&mount.container_path));
        one.push(mount);
    }
    one.sort_by_key(|mount| parts(&mount.container_path).len());
    one
}

/// The names on the way to a destination, as it is written: links are not known here.
fn parts(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts
}

/// In a user namespace the files of a bind mount belong to nobody unless its ids are mapped.
fn mounted(mount: &Mount, mapped: bool) -> Result<String, EditError> {
    let fail =
        |cause: &dyn std::fmt::Display| odd(&format!("cannot write the mount {:?}: {cause}", mount.container_path));
    let mut options = mount.options.clone();
    let said = options.iter().any(|option| matches!(option.as_str(), "idmap" | "ridmap"));
    if let Some(bind) = mount.bind().filter(|_| mapped && !said) {
        options.push(if bind == "rbind" { "ridmap" } else { "idmap" }.to_owned());
    }
    let mut entry = MountBuilder::default().destination(mount.container_path.as_str()).source(mount.host_path.as_str());
    if let Some(kind) = &mount.kind {
        entry = entry.typ(kind.as_str());
    }
    if !options.is_empty() {
        entry = entry.options(options);
    }
    let entry = entry.build().map_err(|e| fail(&e))?;
    serde_json::to_string(&entry).map_err(|e| fail(&e))
}

fn has_user_namespace(spec: &Node<'_>) -> Result<bool, EditError> {
    let spaces = list(spec, &["linux", "namespaces"], Holds::Objects)?;
    Ok(spaces.iter().any(|space| space.get("type").and_then(Node::as_str) == Some("user")))
}

fn net_devices<'k>(spec: &Node<'_>, edits: &'k ContainerEdits) -> Result<Option<Change<'k>>, EditError> {
    if edits.net_devices.is_empty() {
        return Ok(None);
    }
    let there = object(spec, &["linux", "netDevices"])?;
    let mut wanted: Vec<(&str, Option<Change<'k>>)> = Vec::new();
    for device in &edits.net_devices {
        let host = device.host_interface_name.as_str();
        let text = serde_json::json!({ "name": device.name }).to_string();
        let same = there.and_then(|node| node.get(host)).is_some_and(|node| change::is(node, &text));
        wanted.retain(|(other, _)| *other != host);
        wanted.push((host, (!same).then_some(Change::Value(text))));
    }
    Ok(members(wanted))
}

fn rdt(spec: &Node<'_>, rdt: Option<&IntelRdt>) -> Result<Option<Change<'static>>, EditError> {
    let Some(rdt) = rdt else { return Ok(None) };
    let there = object(spec, &["linux", "intelRdt"])?;
    let text = serde_json::to_string(rdt).map_err(|e| odd(&format!("cannot write intelRdt: {e}")))?;
    Ok((!there.is_some_and(|node| change::is(node, &text))).then_some(Change::Value(text)))
}

/// The object at `path`; none when it or something above it is absent or `null`.
fn object<'s, 'a>(spec: &'s Node<'a>, path: &[&str]) -> Result<Option<&'s Node<'a>>, EditError> {
    let mut node = spec;
    for depth in 0..=path.len() {
        if !matches!(node.value, Value::Object(_)) {
            return Err(wrong(path.get(..depth).unwrap_or(path), None, &expected("an object", node)));
        }
        match path.get(depth).map(|key| node.get(key)) {
            Some(Some(inner)) => node = inner,
            Some(None) => return Ok(None),
            None => {}
        }
    }
    Ok(Some(node))
}

fn odd(message: &str) -> EditError {
    EditError { at: String::new(), message: message.to_owned() }
}
