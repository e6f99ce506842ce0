//! Which container a process is in, by its control groups, and what the container is called, by the files that engines keep. No
//! engine is asked: that needs rights, and an engine that hangs would stop everything.

use std::fs;
use std::path::PathBuf;

use contract::config::Host;
use serde_json::Value;

/// A container, as its engine knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) id: String,
    /// `docker`, `containerd`, `crio`, `podman`; empty where the group does not tell.
    pub(crate) engine: &'static str,
}

/// What engines put before the id in a scope of systemd's.
const SCOPES: [(&str, &str); 4] =
    [("docker-", "docker"), ("cri-containerd-", "containerd"), ("crio-", "crio"), ("libpod-", "podman")];
/// Digits of an id that engines make.
const DIGITS: usize = 64;

/// The container of a process by the text of its `/proc/<pid>/cgroup`.
pub(crate) fn of(groups: &str) -> Option<Container> {
    let paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    // The innermost group that is called after an id; below it a container may have groups of its own.
    paths.filter_map(|path| path.split('/').rev().find_map(|part| part_of(part, path))).next()
}

fn part_of(part: &str, path: &str) -> Option<Container> {
    // systemd's form without systemd: `kubepods-x.slice:cri-containerd:ID`.
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let part = part.rsplit(':').next().unwrap_or(part);
    let scope = SCOPES.iter().find_map(|(before, engine)| Some((part.strip_prefix(before)?, *engine)));
    let (id, engine) = scope.unwrap_or((part, ""));
    let is_id = id.len() == DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let by_path = [("/docker/", "docker"), ("/libpod", "podman"), ("/kubepods", "containerd")];
    let guess = || by_path.iter().find(|(word, _)| path.contains(word)).map_or("", |(_, engine)| *engine);
    is_id.then(|| Container { id: id.to_owned(), engine: if engine.is_empty() { guess() } else { engine } })
}

/// What its engine's files call it.
pub(crate) fn name(host: &Host, container: &Container) -> Option<String> {
    let id = &container.id;
    let of_docker = |root: String| docker(&document(host, &format!("{root}/containers/{id}/config.v2.json")));
    docker_roots(host)
        .find_map(of_docker)
        .or_else(|| podman(&document(host, "var/lib/containers/storage/overlay-containers/containers.json"), id))
        .or_else(|| {
            in_pod(&document(host, &format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}/config.json")))
        })
        .or_else(|| {
            in_pod(&document(host, &format!("var/lib/containers/storage/overlay-containers/{id}/userdata/config.json")))
        })
}

/// Docker's folders: with `userns-remap` it has one for each mapping, `100000.100000`, in its usual one.
fn docker_roots(host: &Host) -> impl Iterator<Item = String> {
    const USUAL: &str = "var/lib/docker";
    let is_mapping = |name: &String| name.contains('.') && name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let names = fs::read_dir(host.path(USUAL)).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_mapping);
    std::iter::once(USUAL.to_owned()).chain(names.map(|name| format!("{USUAL}/{name}")))
}

fn document(host: &Host, path: &str) -> Value {
    let path = PathBuf::from(host.path(path));
    fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

fn docker(config: &Value) -> Option<String> {
    Some(config.get("Name")?.as_str()?.trim_start_matches('/').to_owned())
}

fn podman(list: &Value, id: &str) -> Option<String> {
    let one = list.as_array()?.iter().find(|one| one.get("id").and_then(Value::as_str) == Some(id))?;
    Some(one.get("names")?.get(0)?.as_str()?.to_owned())
}

/// `NAMESPACE/POD/CONTAINER`, by the annotations of containerd or CRI-O.
fn in_pod(spec: &Value) -> Option<String> {
    let notes = spec.get("annotations")?;
    let text = |keys: [&str; 2]| keys.iter().find_map(|key| notes.get(*key)?.as_str()).map(str::to_owned);
    let namespace = text(["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"])?;
    let pod = text(["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"])?;
    let container = text(["io.kubernetes.cri.container-name", "io.kubernetes.container.name"])?;
    Some(format!("{namespace}/{pod}/{container}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_every_engine_and_driver() {
        let id = "5ea1".repeat(16);
        for (group, engine) in [
            ("0::/docker/ID", "docker"),
            ("0::/system.slice/docker-ID.scope", "docker"),
            ("0::/system.slice/docker-ID.scope/init", "docker"),
            ("0::/kubepods/burstable/pod1b2c/ID", "containerd"),
            ("0::/kubepods.slice/kubepods-pod1b2c.slice/cri-containerd-ID.scope", "containerd"),
            ("0::/kubepods.slice/kubepods-pod1b2c.slice/crio-ID.scope", "crio"),
            ("0::/machine.slice/libpod-ID.scope/container", "podman"),
            ("0::/libpod_parent/libpod-ID", "podman"),
            ("0::/system.slice/system.slice:docker:ID", ""),
            ("12:devices:/docker/ID\n0::/", "docker"),
        ] {
            assert_eq!(of(&group.replace("ID", &id)), Some(Container { id: id.clone(), engine }), "{group}");
        }
        let short = &id[..63];
        for group in ["", "0::/", "0::/user.slice/session-2.scope", "nonsense", &format!("0::/docker/{short}")] {
            assert_eq!(of(group), None, "{group}");
        }
    }

    #[test]
    fn names_as_engines_keep_them() {
        let root = tempfile::tempdir().unwrap();
        let host = Host { root: root.path().display().to_string(), ..Host::default() };
        let container = |digit: &str| Container { id: digit.repeat(64), engine: "" };
        let put = |path: String, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let [docker, podman, pod, none, mapped] = ["a", "b", "c", "d", "e"].map(container);
        put(format!("var/lib/docker/containers/{}/config.v2.json", docker.id), r#"{"Name": "/web"}"#);
        put(format!("var/lib/docker/100000.100000/containers/{}/config.v2.json", mapped.id), r#"{"Name": "/own"}"#);
        let list = format!(r#"[{{"id": "x"}}, {{"id": "{}", "names": ["trainer"]}}]"#, podman.id);
        put("var/lib/containers/storage/overlay-containers/containers.json".into(), &list);
        put(
            format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{}/config.json", pod.id),
            r#"{"annotations": {"io.kubernetes.cri.sandbox-namespace": "n", "io.kubernetes.cri.sandbox-name": "p",
                "io.kubernetes.cri.container-name": "c"}}"#,
        );
        let names = [&docker, &mapped, &podman, &pod, &none].map(|container| name(&host, container));
        assert_eq!(names.map(|name| name.unwrap_or_default()), ["web", "own", "trainer", "n/p/c", ""]);
    }
}
