//! `configure`: makes the runtime known to an engine, and takes that back.
//!
//! An engine's file plans (`docker`, `containerd`, `crio`, `podman`, `kubernetes`): from texts to texts, without
//! touching anything. `format` edits a text of each kind and leaves what is not ours byte for byte. `on_node` and
//! `record` are the edge. Nothing here starts, stops or asks an engine.

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
mod units;

pub(crate) use apply::{Action, Ask, Outcome, configure, configured, undo};
pub(crate) use low_level::link;

use plan::{Files, Plan, Stop, Wanted};

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
