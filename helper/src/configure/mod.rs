//! `configure`: makes the runtime known to an engine, and takes that back.
//!
//! An engine's file plans (`docker`, `containerd`, `crio`, `podman`, `kubernetes`): from texts to texts, without
//! touching anything. `format` edits a text of each kind and leaves what is not ours byte for byte. `on_node`,
//! `record` and `turn` are the edge. Nothing here starts, stops or asks an engine.

mod apply;
mod containerd;
mod crio;
mod diff;
mod docker;
mod format;
mod hooks;
mod json;
mod kubernetes;
mod low_level;
mod on_node;
mod plan;
mod podman;
mod record;
mod template;
#[cfg(test)]
mod tests;
mod text;
mod toml;
mod turn;
pub(crate) mod units;

pub(crate) use apply::{Ask, Outcome, configure, configured, undo};
pub(crate) use containerd::state;
pub(crate) use low_level::link;
pub(crate) use on_node::OnNode;
pub(crate) use plan::Files;
pub(crate) use turn::Turn;
#[cfg(test)]
pub(crate) use turn::tests::while_it_waits;

use plan::{Plan, Stop, Wanted};

/// What can be configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Engine {
    /// Docker, also as a snap
    Docker,
    /// containerd on its own, for ctr and Kubernetes
    Containerd,
    /// CRI-O
    Crio,
    /// Podman
    Podman,
    /// k3s
    K3s,
    /// RKE2
    Rke2,
    /// MicroK8s
    Microk8s,
}

/// What shows that an engine is there.
type Shown = (Engine, &'static [&'static str]);
/// Distributions of Kubernetes.
const NESTED: [Shown; 3] = [
    (Engine::K3s, &["/var/lib/rancher/k3s/agent"]),
    (Engine::Rke2, &["/var/lib/rancher/rke2/agent"]),
    (Engine::Microk8s, &["/var/snap/microk8s/current"]),
];
/// Engines on their own.
const PLAIN: [Shown; 2] = [
    (
        Engine::Containerd,
        &["/etc/containerd/config.toml", "/usr/bin/containerd", "/usr/local/bin/containerd", "/opt/bin/containerd"],
    ),
    (Engine::Crio, &["/etc/crio", "/usr/bin/crio", "/usr/local/bin/crio"]),
];

impl Engine {
    /// Its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Containerd => "containerd",
            Self::Crio => "crio",
            Self::Podman => "podman",
            Self::K3s => "k3s",
            Self::Rke2 => "rke2",
            Self::Microk8s => "microk8s",
        }
    }

    /// Those of Kubernetes that this node has, by their folders and programs.
    pub(crate) fn of_kubernetes(files: &dyn Files) -> Vec<Self> {
        let found =
            |(engine, places): &(Self, &[&str])| places.iter().any(|place| files.exists(place)).then_some(*engine);
        let nested: Vec<Self> = NESTED.iter().filter_map(found).collect();
        // These bring a containerd of their own; one beside it is Docker's.
        if nested.is_empty() { PLAIN.iter().filter_map(found).collect() } else { nested }
    }

    fn plan(self, files: &dyn Files, wanted: &Wanted) -> Result<Plan, Stop> {
        match self {
            Self::Docker => docker::plan(files, wanted),
            Self::Containerd => containerd::plan(files, wanted),
            Self::Crio => crio::plan(files, wanted),
            Self::Podman => podman::plan(files, wanted),
            Self::K3s | Self::Rke2 => kubernetes::rancher(files, wanted, self.name()),
            Self::Microk8s => kubernetes::microk8s(files, wanted),
        }
    }
}
