//! Whether the source of a mount may be another file by the time the low-level runtime looks at it.

use contract::json::Node;

/// What engines mount into containers by themselves, `*` for any one name. The last folder on the way is the engine's, and what
/// lies there is no tenant's to replace: further in, or in the volumes that Docker's users make of whatever they like, it is.
const ENGINES: [&str; 15] = [
    "/var/lib/docker/containers/*/*",
    "/var/lib/docker/containers/*/mounts/shm",
    "/var/lib/docker/*/containers/*/*",
    "/var/lib/docker/*/containers/*/mounts/shm",
    "/var/lib/containerd/*/sandboxes/*/*",
    "/run/containerd/*/sandboxes/*/*",
    "/var/lib/containers/storage/overlay-containers/*/userdata/*",
    "/var/lib/containers/storage/overlay-containers/*/userdata/run/secrets",
    "/run/containers/storage/overlay-containers/*/userdata/*",
    "/run/containers/storage/overlay-containers/*/userdata/run/secrets",
    "/var/lib/kubelet/pods/*/etc-hosts",
    "/var/lib/kubelet/pods/*/containers/*/*",
    "/var/lib/kubelet/pods/*/volumes/*/*",
    "/var/lib/kubelet/pods/*/volumes/*/*/mount",
    "/var/lib/kubelet/pods/*/volume-subpaths/*/*/*",
];
/// The kernel's own folders, and what in them is anybody's.
const KERNELS: [&str; 3] = ["/dev", "/sys", "/proc"];
const ANYBODYS: [&str; 4] = ["/dev/shm", "/dev/mqueue", "/dev/hugepages", "/sys/fs/bpf"];

/// Where engines have a root file system that does not lie in its bundle.
const ROOTS: [&str; 6] = [
    "/var/lib/docker/*/*/merged",
    "/var/lib/docker/*/*/*/merged",
    "/var/lib/docker/*/*/*",
    "/var/lib/containers/storage/*/*/merged",
    "/var/lib/containers/storage/*/*/*",
    "/run/containerd/*/*/*/rootfs",
];

/// Whether whoever can write in a folder on the way could have put something else behind a source that was judged.
pub(crate) fn may_change(spec: &Node<'_>, bundle: &str) -> bool {
    let mounts = spec.get("mounts").map(Node::items).unwrap_or_default();
    let is_overlay = |mount: &Node<'_>| mount.get("type").and_then(Node::as_str) == Some("overlay");
    changeable(spec, bundle).next().is_some() || mounts.iter().any(is_overlay) || root_may_change(spec, bundle)
}

/// The same of the root file system. In a bundle of root's its name is nobody else's to replace; in another bundle everything is.
fn root_may_change(spec: &Node<'_>, bundle: &str) -> bool {
    let Some(path) = spec.path(&["root", "path"]).and_then(Node::as_str) else { return false };
    let in_bundle = match path.strip_prefix(bundle.trim_end_matches('/')) {
        Some(rest) => rest.strip_prefix('/'),
        None => Some(path),
    };
    let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('/');
    let plain = !path.split('/').any(|part| matches!(part, "." | ".."));
    !(in_bundle.is_some_and(is_name) || plain && ROOTS.iter().any(|place| is_at(path, place)))
}

/// The binds of which that is so, with their positions and sources.
pub(crate) fn changeable<'n>(spec: &'n Node<'_>, bundle: &str) -> impl Iterator<Item = (usize, &'n str)> {
    let mounts = spec.get("mounts").map(Node::items).unwrap_or_default();
    mounts.iter().enumerate().filter_map(move |(index, mount)| {
        let text = |key| mount.get(key).and_then(Node::as_str).unwrap_or_default();
        let options = mount.get("options").map(Node::items).unwrap_or_default();
        let bind = options.iter().any(|option| matches!(option.as_str(), Some("bind" | "rbind")));
        let changes = (bind || text("type") == "bind") && !is_engines(text("source"), bundle);
        changes.then(|| (index, text("source")))
    })
}

fn is_engines(source: &str, bundle: &str) -> bool {
    if source.split('/').any(|part| matches!(part, "." | "..")) {
        return false;
    }
    let within =
        |folder: &&str| source.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if KERNELS.iter().any(within) {
        return !ANYBODYS.iter().any(|folder| source.starts_with(folder));
    }
    let in_bundle = match source.strip_prefix(bundle.trim_end_matches('/')) {
        Some(rest) => rest.strip_prefix('/'),
        None => Some(source),
    };
    // The root file system lies in it, and is the tenant's.
    in_bundle.is_some_and(|name| !name.is_empty() && !name.contains('/') && name != "rootfs")
        || ENGINES.iter().any(|place| is_at(source, place))
}

/// Whether a path has this form.
fn is_at(path: &str, form: &str) -> bool {
    path.split('/').count() == form.split('/').count()
        && path.split('/').zip(form.split('/')).all(|(part, name)| part == name || (name == "*" && !part.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_engines_keep_stays_and_what_tenants_have_may_change() {
        for (mount, changes) in [
            (r#"{"type":"bind","source":"/var/lib/docker/containers/x/hosts"}"#, false),
            (r#"{"type":"bind","source":"/var/lib/docker/containers/x/mounts/shm"}"#, false),
            (r#"{"type":"bind","source":"/var/lib/docker/100000.100000/containers/x/hosts"}"#, false),
            (r#"{"type":"bind","source":"/var/lib/docker/containers/x/mounts/shm/link"}"#, true),
            (r#"{"type":"bind","source":"/var/lib/docker/volumes/v/_data"}"#, true),
            (r#"{"type":"bind","source":"/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/v"}"#, false),
            (r#"{"type":"bind","source":"/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount"}"#, false),
            (r#"{"type":"bind","source":"/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/v/link"}"#, true),
            (r#"{"type":"bind","source":"/run/containerd/io.containerd.grpc.v1.cri/sandboxes/x/shm"}"#, false),
            (r#"{"type":"bind","source":"/run/containerd/io.containerd.runtime.v2.task/k8s.io/x/rootfs/link"}"#, true),
            (r#"{"type":"bind","source":"/b/hosts"}"#, false),
            (r#"{"type":"bind","source":"/b/rootfs"}"#, true),
            (r#"{"type":"bind","source":"rootfs/x"}"#, true),
            (r#"{"type":"bind","source":"hosts"}"#, false),
            (r#"{"type":"bind","source":"/dev/hugepages/x"}"#, true),
            (r#"{"type":"bind","source":"/dev/hugepages-1Gi/x"}"#, true),
            (r#"{"type":"bind","source":"/dev/snd"}"#, false),
            (r#"{"type":"bind","source":"/devices"}"#, true),
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
    #[test]
    fn a_root_may_change_where_others_can_write_on_the_way() {
        for (root, changes) in [
            ("rootfs", false),
            ("/b/rootfs", false),
            ("/b/../b/rootfs", true),
            ("rootfs/inner", true),
            ("..", true),
            ("/", true),
            ("/var/lib/docker/overlay2/x/merged", false),
            ("/var/lib/docker/100000.100000/overlay2/x/merged", false),
            ("/var/lib/docker/volumes/x/_data/link", true),
            ("/var/lib/docker/rootfs/overlayfs/x", false),
            ("/var/lib/containers/storage/overlay/x/merged", false),
            ("/var/lib/containers/storage/overlay/../x/merged", true),
            ("/home/x/rootfs", true),
        ] {
            let spec = format!(r#"{{"root":{{"path":"{root}"}}}}"#);
            let spec = contract::json::parse_oci(spec.as_bytes()).unwrap();
            assert_eq!(may_change(&spec, "/b"), changes, "{root}");
        }
    }
}
