//! Namespaces, the cgroup's place and the rest of `linux` that decides whether the container is one at all.

use contract::json::{Node, pointer_token};
use contract::{Code, Refusal};

use crate::findings::{Findings, MOST_ITEMS};
use crate::processes;
use crate::setting::Setting;

const AT: &str = "/linux/namespaces";

/// Judges them.
pub(crate) fn judge(setting: &Setting<'_>, out: &mut Findings) {
    let (mut own_mounts, mut own_pids) = (false, false);
    let list = out.list(setting.case.spec.path(&["linux", "namespaces"]), MOST_ITEMS, &AT);
    for (index, namespace) in list.iter().enumerate() {
        let at = format!("{AT}/{index}");
        let kind = out.text(namespace, "type", &at).unwrap_or_default();
        let path = out.text(namespace, "path", &at).unwrap_or_default();
        own_mounts |= kind == "mount";
        own_pids |= kind == "pid";
        if !path.is_empty() {
            joined(setting, kind, path, &format!("{at}/path"), out);
        }
    }
    let missing = |rule, kind: &str| {
        let message = format!("the container has no {kind} namespace of its own, so it is in the host's");
        let help = format!("add a namespace of type {kind}");
        Refusal::new(Code::UnsafeSpec, rule, message, help)
    };
    if !own_mounts {
        out.refuse(missing("ns-hostmnt", "mount").at(AT, ""));
    }
    if setting.hardened() && !own_pids && !setting.privileged {
        out.add(setting.weigh(missing("ns-hostpid", "pid")), &AT, "");
    } else if !own_pids && !setting.sys_admin {
        let of_nobody = "the container sees the host's processes";
        out.note("ns-hostpid", AT, if processes::lead_out(setting) { processes::NO_BOUNDARY } else { of_nobody });
    }
    cgroup(setting, out);
    cache_class(setting, out);
    mount_label(setting, out);
    if let Some(resources) = setting.case.spec.path(&["linux", "resources"]) {
        out.refusals.extend(unified(resources, "/linux/resources"));
    }
    if setting.hardened() {
        hardened(setting, out);
    }
}

/// A namespace that others are in. A pod's sandbox is joined in its network, IPC, UTS, PID and user namespace, a container of
/// Docker's or Podman's in the network of another; never in these.
fn joined(setting: &Setting<'_>, kind: &str, path: &str, at: &str, out: &mut Findings) {
    let always = matches!(kind, "mount" | "cgroup");
    let hardened = setting.hardened() && kind != "network" && setting.case.workload.is_none() && !setting.privileged;
    if !always && !hardened {
        return;
    }
    let message = format!("the container would join a {kind} namespace that is not its own");
    let help = "leave the path out, so that the container gets its own";
    let refusal = Refusal::new(Code::UnsafeSpec, "ns-path", message, help);
    // In another's mounts nothing holds that was judged.
    let verdict = if kind == "mount" { Err(refusal) } else { setting.weigh(refusal) };
    out.add(verdict, &at, path);
}

/// Whether the container sees no processes but its own and its pod's.
pub(crate) fn has_own_processes(setting: &Setting<'_>) -> bool {
    let list = setting.case.spec.path(&["linux", "namespaces"]).map(Node::items).unwrap_or_default();
    let text =
        |namespace: &Node<'_>, key: &str| namespace.get(key).and_then(Node::as_str).unwrap_or_default().to_owned();
    let pids = list.iter().find(|namespace| text(namespace, "type") == "pid");
    pids.is_some_and(|pids| text(pids, "path").is_empty() || setting.case.workload.is_some())
}

/// A path that climbs, or is the top, is another container's cgroup or everybody's.
fn cgroup(setting: &Setting<'_>, out: &mut Findings) {
    let Some(linux) = setting.case.spec.get("linux") else {
        return;
    };
    let Some(path) = out.text(linux, "cgroupsPath", &"/linux") else {
        return;
    };
    let mut parts = path.split(['/', ':']);
    let climbs = parts.clone().any(|part| part == "..");
    let by_id = path.is_empty() && !setting.case.low_level.takes_an_empty_path();
    let is_top = !by_id && parts.all(|part| part.is_empty() || part == ".");
    if climbs || is_top {
        let message = "the container's cgroup would not be its own";
        let refusal = Refusal::new(
            Code::UnsafeSpec,
            "cgroup-path",
            message,
            "give it a path of its own, without .., or leave it out",
        );
        out.refuse(refusal.at("/linux/cgroupsPath", path));
        return;
    }
    // Engines end it with the container's id; one that does not may be anybody's.
    let last = path.trim_end_matches('/').rsplit(['/', ':']).next().unwrap_or_default();
    let Some(call) = setting.case.call.filter(|_| setting.hardened() && !path.is_empty()) else { return };
    if !last.contains(call.id) {
        let message = "the last part of the path does not hold the container's id, so it may be another's cgroup";
        let help = "let the engine choose it, or end it with the container's id";
        let refusal = Refusal::new(Code::UnsafeSpec, "cgroup-path", message, help);
        out.add(setting.weigh(refusal), &"/linux/cgroupsPath", path);
    }
}

/// A class of resctrl by its name. crun goes where the name leads, out of resctrl too, and moves the first process into the group
/// that it finds there: the one of version 1 that nothing filters.
fn cache_class(setting: &Setting<'_>, out: &mut Findings) {
    let Some(name) = setting.case.spec.path(&["linux", "intelRdt", "closID"]).and_then(Node::as_str) else { return };
    // `/` alone is the class of everybody.
    if matches!(name, "." | "..") || (name != "/" && name.contains('/')) {
        let message =
            "the name of the class is a path, and the container's first process would be moved to where it leads";
        let refusal = Refusal::new(Code::UnsafeSpec, "cgroup-path", message, "name a class without . and /");
        out.refuse(refusal.at("/linux/intelRdt/closID", name));
    }
}

/// Files of a control group that limit nothing but say who is in it, or lie in another group: `cgroup.procs` takes any process
/// of the machine in, with or without a GPU. The size of a page is a part of such a name too.
pub(crate) fn unified(resources: &Node<'_>, at: &str) -> Option<Refusal> {
    let members = resources.get("unified").map(Node::members).unwrap_or_default().iter();
    let mut files = members.map(|member| (format!("unified/{}", pointer_token(&member.key)), &*member.key));
    let file = files.find(|(_, key)| key.starts_with("cgroup.") || key.contains('/'));
    let pages = resources.get("hugepageLimits").map(Node::items).unwrap_or_default().iter().enumerate();
    let size = |(index, page): (usize, &Node<'_>)| {
        let size = page.get("pageSize").and_then(Node::as_str).filter(|size| size.contains('/'))?;
        Some((format!("hugepageLimits/{index}/pageSize"), size.to_owned()))
    };
    let (place, name) =
        file.map(|(place, key)| (place, key.to_owned())).or_else(|| pages.into_iter().find_map(size))?;
    let message =
        "this file of a control group is no limit: it moves, freezes or kills processes, or is another group's";
    let help = "leave it out; limits are files such as memory.high";
    let refusal = Refusal::new(Code::UnsafeSpec, "cgroup-unified", message, help);
    Some(refusal.at(format!("{at}/{place}"), &name))
}

/// A label stands between quotes among a file system's options: one that ends them there goes on with options of its own, the
/// layers of an overlay for one.
fn mount_label(setting: &Setting<'_>, out: &mut Findings) {
    let Some(linux) = setting.case.spec.get("linux") else { return };
    let Some(label) = out.text(linux, "mountLabel", &"/linux").filter(|label| label.contains('"')) else { return };
    let message =
        "the label ends its own quotes, and what follows would be options of every file system that is mounted";
    let refusal = Refusal::new(Code::UnsafeSpec, "mount-label", message, "write a label without quotes");
    out.refuse(refusal.at("/linux/mountLabel", label));
}

fn hardened(setting: &Setting<'_>, out: &mut Findings) {
    let spec = setting.case.spec;
    let mut refuse = |rule, at: &str, value: &str, message: &str| {
        let refusal = Refusal::new(Code::UnsafeSpec, rule, message, "leave it out");
        out.add(setting.weigh(refusal), &at, value);
    };
    if let Some(path) = spec.path(&["linux", "seccomp", "listenerPath"]).and_then(Node::as_str) {
        let message = "a seccomp agent can hand open devices to the container";
        refuse("seccomp-listener", "/linux/seccomp/listenerPath", path, message);
    }
    if let Some(mode @ ("shared" | "rshared")) = spec.path(&["linux", "rootfsPropagation"]).and_then(Node::as_str) {
        let message = "mounts of the container would show on the host";
        refuse("rootfs-propagation", "/linux/rootfsPropagation", mode, message);
    }
    let devices = spec.path(&["linux", "netDevices"]).map(Node::members).unwrap_or_default();
    if let Some(device) = devices.first() {
        let message = "a network device of the host would be moved into the container";
        refuse("net-devices", "/linux/netDevices", &device.key, message);
    }
    if setting.case.call.is_some_and(|call| call.no_pivot) {
        let message = "without pivot_root the host's files stay within the container's reach";
        refuse("args-no-pivot", "argv/--no-pivot", "", message);
    }
}
