//! Namespaces, the cgroup's place and the rest of `linux` that decides whether the container is one at all.

use contract::json::{Node, pointer_token};
use contract::{Code, Refusal};

use crate::findings::{Findings, MOST_ITEMS};
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
        // A pod's sandbox is joined in its network, IPC, UTS, PID and user namespace, never in these.
        if matches!(kind, "mount" | "cgroup") && !path.is_empty() {
            let message = format!("the container would join a {kind} namespace that is not its own");
            let refusal = Refusal::new(
                Code::UnsafeSpec,
                "ns-path",
                message,
                "leave the path out, so that the container gets its own",
            );
            out.refuse(refusal.at(format!("{at}/path"), path));
        }
    }
    let mut missing = |rule, kind: &str| {
        let message = format!("the container has no {kind} namespace of its own, so it is in the host's");
        let help = format!("add a namespace of type {kind}");
        out.refuse(Refusal::new(Code::UnsafeSpec, rule, message, help).at(AT, ""));
    };
    if !own_mounts {
        missing("ns-hostmnt", "mount");
    }
    if setting.hardened() && !own_pids {
        missing("ns-hostpid", "pid");
    } else if !own_pids && !setting.sys_admin {
        let message =
            "the container sees the host's processes, and the files of those with no more rights than its own";
        out.note("ns-hostpid", AT, message);
    }
    cgroup(setting.case.spec, out);
    if let Some(resources) = setting.case.spec.path(&["linux", "resources"]) {
        out.refusals.extend(unified(resources, "/linux/resources"));
    }
    if setting.hardened() {
        hardened(setting.case.spec, out);
    }
}

/// A path that climbs, or is the top, is another container's cgroup or everybody's.
fn cgroup(spec: &Node<'_>, out: &mut Findings) {
    let Some(linux) = spec.get("linux") else {
        return;
    };
    let Some(path) = out.text(linux, "cgroupsPath", &"/linux") else {
        return;
    };
    let mut parts = path.split(['/', ':']);
    let climbs = parts.clone().any(|part| part == "..");
    let is_top = !path.is_empty() && parts.all(|part| part.is_empty() || part == ".");
    if climbs || is_top {
        let message = "the container's cgroup would not be its own";
        let refusal = Refusal::new(Code::UnsafeSpec, "cgroup-path", message, "give it a path of its own, without ..");
        out.refuse(refusal.at("/linux/cgroupsPath", path));
    }
}

/// Files of a control group that limit nothing but say who is in it, or lie in another group: `cgroup.procs` takes any process
/// of the machine in, with or without a GPU.
pub(crate) fn unified(resources: &Node<'_>, at: &str) -> Option<Refusal> {
    let members = resources.get("unified").map(Node::members).unwrap_or_default();
    let key = members.iter().map(|member| &*member.key).find(|key| key.starts_with("cgroup.") || key.contains('/'))?;
    let message = "this file of a control group is no limit: it moves, freezes or kills processes";
    let help = "leave it out; limits are files such as memory.high";
    let refusal = Refusal::new(Code::UnsafeSpec, "cgroup-unified", message, help);
    Some(refusal.at(format!("{at}/unified/{}", pointer_token(key)), key))
}

fn hardened(spec: &Node<'_>, out: &mut Findings) {
    let mut refuse = |rule, at: &str, value: &str, message: &str| {
        out.refuse(Refusal::new(Code::UnsafeSpec, rule, message, "leave it out").at(at, value));
    };
    if let Some(path) = spec.path(&["linux", "seccomp", "listenerPath"]).and_then(Node::as_str) {
        refuse(
            "seccomp-listener",
            "/linux/seccomp/listenerPath",
            path,
            "a seccomp agent can hand open devices to the container",
        );
    }
    if let Some(mode @ ("shared" | "rshared")) = spec.path(&["linux", "rootfsPropagation"]).and_then(Node::as_str) {
        refuse(
            "rootfs-propagation",
            "/linux/rootfsPropagation",
            mode,
            "mounts of the container would show on the host",
        );
    }
}
