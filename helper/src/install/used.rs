//! Who needs programs that were installed: containers that run, by what engines keep of them on disk, and processes.
//! Reads only.
//!
//! A spec may name a version's own folder (hooks do), everything else names the link: so a path to a version keeps that
//! version, and one to anything of ours keeps the installation. What merely mentions such a path needs nothing: words of a
//! container's, an editor's file.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::Value;

use super::versions::Shelf;
use crate::configure::{Files, OnNode};

/// State folders of containerd: its own, k3s's and rke2's, Docker's, microk8s's.
const STATES: [&str; 4] = [
    "/run/containerd",
    "/run/k3s/containerd",
    "/run/docker/containerd/daemon",
    "/var/snap/microk8s/common/run/containerd",
];
const TASKS: &str = "io.containerd.runtime.v2.task";
/// Where CRI-O and Podman keep specs.
const STORAGE: &str = "/run/containers/storage/overlay-containers";
/// What of a bundle names a program: the spec's hooks, and the handler's options, which are the node's own words.
const FILES: [(&str, &str); 2] = [("config.json", "/hooks"), ("options.json", "")];
/// Programs that stay with a container and end it by the runtime in their command line: Podman's and CRI-O's.
const MONITORS: [&str; 2] = ["conmon", "conmonrs"];
const RUNTIME: [&str; 2] = ["-r", "--runtime"];
/// Most bytes of one file; a spec is refused far below.
const MOST: u64 = 16 << 20;

/// A container that needs something of ours, or a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    /// Where it is known from: a file of the node's.
    pub(super) place: String,
    /// What it may be that it needs: paths of the node's.
    paths: Vec<String>,
}

impl User {
    /// Whether something of it lies below a folder, by name or by what names lead to: a prefix may be a link.
    pub(super) fn names(&self, node: &OnNode, folder: &str) -> bool {
        let real = |path: &str| node.real(path).ok().flatten();
        let really = real(folder);
        let below = |path: &String| {
            let leads = || real(path).zip(really.as_ref()).is_some_and(|(path, folder)| path.starts_with(folder));
            Path::new(path).starts_with(folder) || leads()
        };
        self.paths.iter().any(below)
    }
}

/// Everybody who needs something of an installation. `states` are further state folders of containerd.
pub(super) fn by_name(shelf: &Shelf<'_>, states: &[String]) -> Vec<User> {
    let node = shelf.node;
    let states = STATES.iter().copied().chain(states.iter().map(String::as_str));
    let mut bundles: Vec<String> = Vec::new();
    for tasks in states.map(|state| format!("{state}/{TASKS}")) {
        for namespace in node.names(&tasks) {
            let folder = format!("{tasks}/{namespace}");
            bundles.extend(node.names(&folder).into_iter().map(|id| format!("{folder}/{id}")));
        }
    }
    bundles.extend(node.names(STORAGE).into_iter().map(|id| format!("{STORAGE}/{id}/userdata")));
    bundles.sort_unstable();
    bundles.dedup();
    let named = |bundle: &String| {
        FILES.map(|(name, part)| {
            let place = format!("{bundle}/{name}");
            User { paths: told(&text(node, &place), part, shelf.prefix), place }
        })
    };
    let mut users: Vec<User> = bundles.iter().flat_map(named).collect();
    users.extend(processes(shelf));
    users.retain(|user| user.names(node, shelf.prefix));
    users
}

/// The strings in a part of a document; where it is none, the folder itself if the text has it at all.
fn told(text: &str, part: &str, prefix: &str) -> Vec<String> {
    fn strings(value: &Value, list: &mut Vec<String>) {
        match value {
            Value::String(text) => list.push(text.clone()),
            Value::Array(values) => values.iter().for_each(|value| strings(value, list)),
            Value::Object(values) => values.values().for_each(|value| strings(value, list)),
            _ => {}
        }
    }
    let mut list = Vec::new();
    match serde_json::from_str::<Value>(text) {
        Ok(document) => document.pointer(part).into_iter().for_each(|value| strings(value, &mut list)),
        Err(_) if text.contains(prefix) => list.push(prefix.to_owned()),
        Err(_) => {}
    }
    list
}

/// Monitors, by the runtime that they end containers with, and whoever runs a program of ours, by which file that is.
fn processes(shelf: &Shelf<'_>) -> Vec<User> {
    let node = shelf.node;
    let id = |path: &Path| fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    let versions = shelf.all().into_iter().map(|id| shelf.folder(&id));
    let programs =
        versions.flat_map(|folder| node.names(&folder).into_iter().map(move |name| format!("{folder}/{name}")));
    let programs: Vec<_> = programs.filter_map(|path| Some((id(&node.real(&path).ok()??)?, path))).collect();
    // This is no reason to keep itself: whoever has no other copy takes it away with this one.
    let own = fs::read_link(node.place("/proc/self")).ok();
    let numbers = node.names("/proc").into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let numbers = numbers.filter(|number| own.as_deref() != Some(Path::new(number)));
    let needs = |number: String| {
        let place = format!("/proc/{number}/cmdline");
        let mut paths = if is_nodes(node, &number) { runtimes(&text(node, &place)) } else { Vec::new() };
        // The kernel says which file that is only to who may trace the process.
        let runs = id(&node.place(&format!("/proc/{number}/exe")));
        paths.extend(programs.iter().filter(|(id, _)| Some(*id) == runs).map(|(_, path)| path.clone()));
        User { place, paths }
    };
    numbers.map(needs).collect()
}

/// Whether a process has no second number in a namespace of its own: what has one is in a container, whatever it calls
/// itself.
fn is_nodes(node: &OnNode, number: &str) -> bool {
    let status = text(node, &format!("/proc/{number}/status"));
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_none_or(|numbers| numbers.split_whitespace().count() < 2)
}

/// Runtimes in a monitor's command line; nothing in anybody else's.
fn runtimes(line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split('\0').collect();
    let program = words.first().and_then(|word| word.rsplit('/').next());
    if !program.is_some_and(|name| MONITORS.contains(&name)) {
        return Vec::new();
    }
    let split = words.iter().filter_map(|word| word.split_once('='));
    let pairs = words.windows(2).filter_map(|pair| Some((*pair.first()?, *pair.get(1)?)));
    pairs.chain(split).filter(|(flag, _)| RUNTIME.contains(flag)).map(|(_, path)| path.to_owned()).collect()
}

/// Whoever has a GPU: the files of leases in a state folder of ours.
pub(super) fn by_lease(node: &OnNode, state_dir: &str) -> Vec<String> {
    let folder = format!("{state_dir}/leases");
    let lease = |name: &String| name.contains('@') && !name.starts_with('.');
    node.names(&folder).into_iter().filter(lease).map(|name| format!("{folder}/{name}")).collect()
}

fn text(node: &OnNode, place: &str) -> String {
    let read = |path| {
        let mut bytes = Vec::new();
        fs::File::open(path).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    node.real(place).ok().flatten().and_then(read).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const BUNDLE: &str = "run/containerd/io.containerd.runtime.v2.task/k8s.io/a";

    /// Files of a node, where a text that begins with `-> ` is a link.
    fn users(files: &[(&str, &str)], prefix: &str) -> Vec<User> {
        let root = tempfile::tempdir().unwrap();
        let program = ("srv/q/versions/1/quilt-gpu", "program");
        for (path, text) in files.iter().chain([&program]) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match text.strip_prefix("-> ") {
                Some(target) => symlink(target, path).unwrap(),
                None => fs::write(path, text).unwrap(),
            }
        }
        symlink("/srv/q", root.path().join("link")).unwrap();
        let node = OnNode::below(root.path().to_str().unwrap());
        by_name(&Shelf { node: &node, prefix }, &[])
    }

    #[test]
    fn who_needs_a_program_keeps_it_and_who_mentions_it_does_not() {
        let config = &format!("{BUNDLE}/config.json");
        let options = &format!("{BUNDLE}/options.json");
        let podman = "run/containers/storage/overlay-containers/a/userdata/config.json";
        let (line, status, exe) = ("proc/7/cmdline", "proc/7/status", "proc/7/exe");
        let runs = (exe, "-> ../../srv/q/versions/1/quilt-gpu");
        let monitor = (line, "/usr/bin/conmon\0-c\0x\0-r\0/srv/q/current/quilt-gpu-runtime\0-b\0/x\0");
        let cases: [(&[(&str, &str)], bool); 21] = [
            (&[monitor], true),
            (&[(line, "conmonrs\0--runtime=/srv/q/current/quilt-gpu-runtime\0")], true),
            (&[(line, "conmon\0--runtime\0/link/versions/1/quilt-gpu\0")], true),
            (&[(line, "conmon\0-r\0/usr/bin/runc\0--exit-command-arg\0/srv/q/current/quilt-gpu\0")], false),
            (&[(line, "conmon\0-r\0/srv/q-2/quilt-gpu-runtime\0")], false),
            (&[(line, "vim\0-r\0/srv/q/versions/1/quilt-gpu\0")], false),
            (&[(line, "sh\0-c\0conmon -r /srv/q/current/quilt-gpu-runtime\0")], false),
            (&[(line, "")], false),
            // A container's process may call itself as it likes.
            (&[monitor, (status, "Name:\tconmon\nNSpid:\t7\t1\n")], false),
            (&[monitor, (status, "Name:\tconmon\nNSpid:\t7\n")], true),
            (&[(line, "x\0"), runs], true),
            (&[(line, "x\0"), (exe, "-> ../../etc/other"), ("etc/other", "program")], false),
            // This process itself.
            (&[(line, "x\0"), runs, ("proc/self", "-> 7")], false),
            (&[(line, "x\0"), runs, ("proc/self", "-> 8")], true),
            (&[(config, r#"{"hooks":{"poststop":[{"path":"/srv/q/versions/1/quilt-gpu-hook"}]}}"#)], true),
            // A specification has what a prefix leads to, and a version that is gone only its name.
            (&[(config, r#"{"hooks":{"poststop":[{"path":"/link/versions/1/quilt-gpu"}]}}"#)], true),
            (&[(podman, r#"{"hooks":{"poststop":[{"path":"/srv/q/versions/0/quilt-gpu-hook"}]}}"#)], true),
            (&[(config, r#"{"process":{"args":["cat","/srv/q/versions/1/quilt-gpu"]},"hooks":{}}"#)], false),
            (&[(config, r#"{"hooks": "/srv/q/versions/1"#)], true),
            (&[(options, r#"{"binary_name":"/srv/q/current/quilt-gpu-runtime"}"#)], true),
            (&[(options, r#"{"binary_name":"/usr/bin/runc"}"#)], false),
        ];
        let known = |(files, _): &(&[(&str, &str)], bool)| -> Vec<String> {
            users(files, "/srv/q").into_iter().map(|user| user.place.trim_start_matches('/').to_owned()).collect()
        };
        let right = |case: &&(&[(&str, &str)], bool)| known(case) == [case.0[0].0][..usize::from(case.1)];
        let wrong: Vec<_> = cases.iter().filter(|case| !right(case)).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        let hook = r#"{"hooks":{"poststop":[{"path":"/srv/q/versions/1/quilt-gpu"}]}}"#;
        assert_eq!(
            users(&[(config, hook)], "/link").len(),
            1,
            "the prefix is a link, and the kernel told its program where it is"
        );
    }
}
