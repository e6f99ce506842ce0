//! The kernel's side: control groups, security modules, the clock.

use super::{Facts, Finding};

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut list = Vec::new();
    if !facts.cgroup_devices {
        let cause = "no control group can hold a device filter: neither version 2 nor version 1's devices is mounted";
        let mend = "mount -t cgroup2 cgroup2 /sys/fs/cgroup";
        list.push(Finding::stops("cgroup", cause, facts.host.path("proc/mounts"), mend));
    }
    if facts.selinux_enforcing {
        let cause = "SELinux enforces: a container's processes need a domain that may use the driver's nodes and files";
        let mend = "setsebool -P container_use_devices 1";
        let enforce = facts.host.path("sys/fs/selinux/enforce");
        list.push(Finding::warns("selinux", cause, enforce, mend));
    }
    if let Some(profile) = &facts.apparmor {
        let cause = "an AppArmor profile confines our programs or the low-level runtime: what it forbids fails";
        let mend = "journalctl -k -g apparmor shows what it denied; aa-complain for a trial";
        list.push(Finding::warns("apparmor", cause, profile, mend));
    }
    if let Some(last) = facts.last_record.as_deref().filter(|last| *last > facts.now.as_str()) {
        let cause = "the clock is behind the audit log: times in it, and the end of reservations, cannot be relied on";
        let evidence = format!("now {}, last record {last}", facts.now);
        list.push(Finding::warns("clock", cause, evidence, "timedatectl set-ntp true"));
    }
    list
}
