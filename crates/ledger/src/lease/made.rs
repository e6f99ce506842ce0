//! Where a container was made, and what can be told of it from there.

use contract::record;
use node::process::Process;
use serde::Serialize;

use crate::liveness::Liveness;

/// Where a container was made. State folder, processes and cgroup of it are the same words elsewhere and other things: who
/// sees none of them from another place knows nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Made {
    /// The pid namespace of its creator, by its inode.
    pub pid_namespace: u64,
    /// The cgroup namespace of its creator.
    pub cgroup_namespace: u64,
    /// Number and start time of its first process, once there is one. Mounts hide state folders and cgroups, no process.
    pub init: Option<(u32, u64)>,
    /// The mount namespace of that process, where its processes do not all end with it: it has no pid namespace of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mounts: Option<u64>,
    /// Until when its creator counts, in seconds since the boot (`CLOCK_BOOTTIME`), where that is a process which goes on
    /// whether or not there is a container in the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
}

record!(open Made { pid_namespace, cgroup_namespace, init, mounts, until });

impl Made {
    pub(crate) fn here(machine: &dyn Liveness) -> Self {
        let (pid_namespace, cgroup_namespace) = machine.namespaces();
        Self { pid_namespace, cgroup_namespace, init: None, mounts: None, until: None }
    }

    /// Whether its creator tells nothing any more.
    pub(super) fn is_overdue(&self, machine: &dyn Liveness) -> bool {
        self.until.is_some_and(|until| machine.boot_seconds().is_ok_and(|now| now >= until))
    }

    /// Why its processes cannot be looked for from here.
    pub(crate) fn out_of_sight(&self, machine: &dyn Liveness) -> Option<String> {
        let here = machine.namespaces().0;
        (here == 0 || here != self.pid_namespace).then(|| {
            format!(
                "it was made in pid namespace {}, and only from there can be told whether it is gone",
                self.pid_namespace
            )
        })
    }

    /// Why it is there: its first process is.
    pub(crate) fn runs(&self, machine: &dyn Liveness) -> Option<String> {
        let (pid, start) = self.init?;
        machine.is_alive(Process { pid, start }).then(|| format!("its first process {pid} is there"))
    }

    /// Why the GPU of this number is not free although the container's cgroup is empty: a process that left the cgroup has it
    /// open.
    pub(crate) fn holds(&self, minor: Option<u32>, machine: &dyn Liveness) -> Option<String> {
        let pid = machine.with_open(self.mounts?, minor?)?;
        Some(format!("its process {pid}, which left its cgroup, has the GPU open"))
    }

    pub(super) fn other_groups(&self, machine: &dyn Liveness) -> Option<String> {
        let here = machine.namespaces().1;
        (here == 0 || here != self.cgroup_namespace).then(|| {
            format!(
                "it was made in cgroup namespace {}, and only from there can be told whether its cgroup is empty",
                self.cgroup_namespace
            )
        })
    }

    /// Why it may be there, or its processes may.
    pub(crate) fn may_run(&self, machine: &dyn Liveness) -> Option<String> {
        self.out_of_sight(machine).or_else(|| self.runs(machine))
    }
}
