//! Who needs programs that were installed: containers that run, by what engines keep of them on disk. Reads only.
//!
//! A spec may name a version's own folder (hooks do), everything else names the link: so a text that names a version
//! keeps that version, and one that names anything of ours keeps the installation.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

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
/// What of a bundle may name a program: the spec, and the options of the handler.
const FILES: [&str; 2] = ["config.json", "options.json"];
/// Most bytes of one of them; a spec is refused far below.
const MOST: u64 = 16 << 20;

/// A container that needs something of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    /// Where it is known from: a file of the node's.
    pub(super) place: String,
    text: String,
}

impl User {
    /// Whether it names something below a folder.
    pub(super) fn names(&self, folder: &str) -> bool {
        self.text.contains(&format!("{folder}/"))
    }
}

/// Everybody who names something below `prefix`. `states` are further state folders of containerd.
pub(super) fn by_name(node: &OnNode, states: &[String], prefix: &str) -> Vec<User> {
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
    let files = bundles.iter().flat_map(|bundle| FILES.map(|name| format!("{bundle}/{name}")));
    // Monitors of Podman and CRI-O have the runtime in their command line.
    let numbers = node.names("/proc").into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let lines = numbers.map(|number| format!("/proc/{number}/cmdline"));
    let read = files.chain(lines).map(|place| User { text: text(node, &place), place });
    read.filter(|user| user.names(prefix)).collect()
}

/// Whoever has a GPU: the files of leases in a state folder of ours.
pub(super) fn by_lease(node: &OnNode, state_dir: &str) -> Vec<String> {
    let folder = format!("{state_dir}/leases");
    let lease = |name: &String| name.contains('@') && !name.starts_with('.');
    node.names(&folder).into_iter().filter(lease).map(|name| format!("{folder}/{name}")).collect()
}

fn text(node: &OnNode, place: &str) -> String {
    let read = |path: PathBuf| {
        let mut bytes = Vec::new();
        fs::File::open(Path::new(&path)).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    node.real(place).ok().flatten().and_then(read).unwrap_or_default()
}
