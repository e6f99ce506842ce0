//! Who may open the granted nodes by their mode, and which groups that takes. Decides; touches nothing.

use contract::inventory::DeviceNode;
use contract::json::Node;
use contract::{Code, Refusal};

use crate::edits::has_user_namespace;

/// Groups that the container's user needs to open the granted nodes: some nodes are 0660 and belong to `video`. In a user
/// namespace even root is somebody else on the host, and only groups that are mapped can be given.
///
/// # Errors
/// `GPU_UNAVAILABLE` when no group would do, or none may be given.
pub(crate) fn needed(spec: &Node<'_>, nodes: &[DeviceNode], refused: bool) -> Result<Vec<u32>, Refusal> {
    let user = |key| spec.path(&["process", "user", key]).and_then(Node::as_i64).unwrap_or(0);
    let mapped = has_user_namespace(spec);
    let (uids, gids) = (Mapping::of(spec, "uidMappings"), Mapping::of(spec, "gidMappings"));
    // A namespace of somebody else's: how it maps is not told here.
    if mapped && uids.0.is_empty() {
        return Ok(Vec::new());
    }
    let on_host = |mapping: &Mapping, id| if mapped { mapping.outside(id) } else { Some(id) };
    let mut added = Vec::new();
    for node in nodes.iter().filter(|node| !node.lets(0)) {
        let is_owner = on_host(&uids, user("uid")) == Some(i64::from(node.uid)) && node.lets(6);
        if !mapped && user("uid") == 0 || is_owner {
            continue;
        }
        let inside = if mapped { gids.inside(node.gid.into()) } else { Some(node.gid.into()) };
        let Some(gid) = inside.filter(|_| node.lets(3)) else {
            return Err(closed(node, "no group that it could be given opens it"));
        };
        if gid == user("gid") || added.contains(&gid) {
            continue;
        }
        if refused {
            return Err(closed(node, "its group is not given ([policy] refuse_device_groups)"));
        }
        added.push(gid);
    }
    Ok(added.into_iter().filter_map(|gid| u32::try_from(gid).ok()).collect())
}

fn closed(node: &DeviceNode, why: &str) -> Refusal {
    let DeviceNode { path, mode, uid, gid, .. } = node;
    let message = format!(
        "{path} is mode {mode:04o} of user {uid} and group {gid} on this node: the container's user cannot open it, {why}"
    );
    let help = "run as root in the container, or have the operator set NVreg_DeviceFileMode";
    Refusal::new(Code::GpuUnavailable, "device-mode", message, help).at("/process/user/uid", "")
}

/// How a user namespace maps ids: first inside, first outside, how many.
struct Mapping(Vec<(i64, i64, i64)>);

impl Mapping {
    fn of(spec: &Node<'_>, key: &str) -> Self {
        let number = |entry: &Node<'_>, key| entry.get(key).and_then(Node::as_i64);
        let line =
            |entry: &Node<'_>| Some((number(entry, "containerID")?, number(entry, "hostID")?, number(entry, "size")?));
        Self(spec.path(&["linux", key]).map(Node::items).unwrap_or_default().iter().filter_map(line).collect())
    }

    fn outside(&self, id: i64) -> Option<i64> {
        let offset = |first: i64, size: i64| id.checked_sub(first).filter(|at| (0..size).contains(at));
        self.0.iter().find_map(|(inside, outside, size)| outside.checked_add(offset(*inside, *size)?))
    }

    fn inside(&self, id: i64) -> Option<i64> {
        Self(self.0.iter().map(|(inside, outside, size)| (*outside, *inside, *size)).collect()).outside(id)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn node(mode: u32, gid: u32) -> DeviceNode {
        DeviceNode {
            path: "/dev/nvidia0".into(),
            host_path: "/dev/nvidia0".into(),
            major: 195,
            minor: 0,
            mode,
            uid: 0,
            gid,
            role: contract::inventory::Role::Compute,
        }
    }

    /// D17, D39: who may open a node by its mode, and which group opens it to whom.
    #[test]
    fn the_group_of_a_node_is_given_to_who_needs_it() {
        const VIDEO: u32 = 44;
        let user = |uid: u32, gid: u32| format!(r#""process":{{"user":{{"uid":{uid},"gid":{gid}}}}}"#);
        let mapped = |uid: u32, maps: &str| {
            let maps =
                format!(r#""uidMappings":[{{"containerID":0,"hostID":{uid},"size":65536}}],"gidMappings":[{maps}]"#);
            format!(r#"{},"linux":{{"namespaces":[{{"type":"user"}}],{maps}}}"#, user(0, 0))
        };
        let high = r#"{"containerID":0,"hostID":100000,"size":65536}"#;
        let with_video = r#"{"containerID":0,"hostID":100000,"size":1000},{"containerID":1000,"hostID":44,"size":1}"#;
        let alien = format!(r#"{},"linux":{{"namespaces":[{{"type":"user","path":"/proc/1/ns/user"}}]}}"#, user(0, 0));
        for (spec, mode, refused, expected) in [
            (user(1000, 1000), 0o666, true, Ok(vec![])),
            (user(0, 0), 0o660, true, Ok(vec![])),
            (user(1000, 1000), 0o660, false, Ok(vec![VIDEO])),
            (user(1000, VIDEO), 0o660, true, Ok(vec![])),
            (user(1000, 1000), 0o660, true, Err("of user 0 and group 44 on this node")),
            (user(1000, 1000), 0o600, false, Err("mode 0600 of user 0 and group 44")),
            // Root in a user namespace is nobody on the host.
            (mapped(100_000, high), 0o666, true, Ok(vec![])),
            (mapped(100_000, high), 0o660, false, Err("no group that it could be given")),
            (mapped(100_000, with_video), 0o660, false, Ok(vec![1000])),
            (mapped(0, high), 0o660, false, Ok(vec![])),
            (alien, 0o660, false, Ok(vec![])),
        ] {
            let spec = format!("{{{spec}}}");
            let spec = contract::json::parse_oci(spec.as_bytes()).unwrap();
            let found = needed(&spec, &[node(mode, VIDEO), node(mode, VIDEO)], refused);
            match (found, expected) {
                (Err(refusal), Err(words)) => assert!(refusal.message.contains(words), "{}", refusal.message),
                (found, expected) => assert_eq!(found.map_err(|r| r.message), expected.map_err(str::to_owned)),
            }
        }
    }
}
