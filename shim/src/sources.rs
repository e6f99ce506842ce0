//! Whether the source of a mount may be another file by the time the low-level runtime looks at it.

use contract::json::Node;

/// Where engines keep what they mount into containers: nobody but root can put something else there. `/dev`, `/proc` and
/// `/sys` are the kernel's.
const ENGINES: [&str; 11] = [
    "/var/lib/docker/containers/",
    "/run/docker/",
    "/var/lib/containerd/",
    "/run/containerd/",
    "/var/lib/containers/",
    "/run/containers/",
    "/var/lib/kubelet/pods/",
    "/dev/",
    "/sys/",
    "/proc/",
    "/var/run/docker/",
];
/// Anybody's, though below `/dev`.
const ANYBODYS: [&str; 2] = ["/dev/shm/", "/dev/mqueue/"];

/// Whether whoever can write in a folder on the way could have put something else behind a source that was judged.
pub(crate) fn may_change(spec: &Node<'_>, bundle: &str) -> bool {
    let mounts = spec.get("mounts").map(Node::items).unwrap_or_default();
    mounts.iter().any(|mount| {
        let text = |key| mount.get(key).and_then(Node::as_str).unwrap_or_default();
        let options = mount.get("options").map(Node::items).unwrap_or_default();
        let bind = options.iter().any(|option| matches!(option.as_str(), Some("bind" | "rbind")));
        text("type") == "overlay" || ((bind || text("type") == "bind") && !is_engines(text("source"), bundle))
    })
}

fn is_engines(source: &str, bundle: &str) -> bool {
    let within =
        |folder: &str| source.strip_prefix(folder.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/'));
    let climbs = source.split('/').any(|part| part == "..");
    let kernels = matches!(source, "/dev" | "/sys" | "/proc");
    !climbs
        && !ANYBODYS.iter().any(|folder| within(folder))
        && (kernels || !source.starts_with('/') || within(bundle) || ENGINES.iter().any(|folder| within(folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_engines_keep_stays_and_what_tenants_have_may_change() {
        for (mount, changes) in [
            (r#"{"type":"bind","source":"/var/lib/docker/containers/x/hosts"}"#, false),
            (r#"{"type":"bind","source":"/var/lib/kubelet/pods/u/volumes/v"}"#, false),
            (r#"{"type":"bind","source":"/b/rootfs"}"#, false),
            (r#"{"type":"bind","source":"rootfs/x"}"#, false),
            (r#"{"type":"bind","source":"/sys"}"#, false),
            (r#"{"type":"proc","source":"proc"}"#, false),
            (r#"{"type":"none","source":"/home/x","options":["rbind"]}"#, true),
            (r#"{"type":"bind","source":"/home/x"}"#, true),
            (r#"{"type":"bind","source":"/"}"#, true),
            (r#"{"type":"bind","source":"/run/docker/../../home/x"}"#, true),
            (r#"{"type":"bind","source":"../x"}"#, true),
            (r#"{"type":"bind","source":"/run/dockers"}"#, true),
            (r#"{"type":"bind","source":"/bundle"}"#, true),
            (r#"{"type":"bind","source":"/dev/shm/x"}"#, true),
            (r#"{"type":"overlay","source":"overlay","options":["lowerdir=/home/x"]}"#, true),
        ] {
            let spec = format!(r#"{{"mounts":[{mount}]}}"#);
            let spec = contract::json::parse_oci(spec.as_bytes()).unwrap();
            assert_eq!(may_change(&spec, "/b"), changes, "{mount}");
        }
    }
}
