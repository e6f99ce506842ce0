//! Annotations that the low-level runtime acts on: those that undo the device filter, run or load something of the
//! tenant's choosing on the host, or write files there. Everything else is data and passes.

use contract::json::pointer_token;
use contract::{Code, Refusal};

use crate::findings::Findings;
use crate::setting::Setting;

/// Properties of the container's systemd unit (runc and crun pass them on), by how their names begin: what devices it
/// may open, what is run or mounted, which other units come or go with it, which processes and cgroup are its own, and what
/// the machine does when it ends.
const UNIT: &str = "org.systemd.property.";
const UNIT_UNSAFE: &[&str] = &[
    "BPF",
    "Bind",
    "Conflicts",
    "Delegate",
    "Device",
    "Exec",
    "Extension",
    "FailureAction",
    "IPEgressFilter",
    "IPIngressFilter",
    "JobTimeoutAction",
    "JoinsNamespace",
    "Load",
    "Mount",
    "OnFailure",
    "OnSuccess",
    "PID",
    "PartOf",
    "PrivateDevices",
    "PropagatesStopTo",
    "Requires",
    "Requisite",
    "Root",
    "SetCredential",
    "Slice",
    "Standard",
    "StartLimitAction",
    "SuccessAction",
    "Temporary",
    "Upholds",
    "Wants",
];
/// What Podman sets, and the harmless like of it: policy `hardened` knows no others.
const UNIT_PLAIN: &[&str] =
    &["CollectMode", "FinalKillSignal", "KillMode", "KillSignal", "SendSIGHUP", "SendSIGKILL", "TimeoutStop"];
/// runc's: where the bundle is, from which `exec` takes capabilities when it is given no process. crun's: a library that it loads, files that it opens for writing, sockets that it hands handles to, other handlers,
/// cgroups given away; and CRIU's configuration file.
const UNSAFE: &[&str] = &[
    "bundle",
    "run.oci.seccomp.plugins",
    "run.oci.seccomp.receiver",
    "run.oci.pidfd_receiver",
    "run.oci.handler",
    "run.oci.delegate-cgroup",
    "org.criu.config",
];
const CONTEXTS: &[&str] = &["context", "fscontext", "defcontext", "rootcontext"];
const UNSAFE_BELOW: &[&str] = &["run.oci.hooks.", "module.wasm.", "krun."];

/// Judges them, all but one by the key alone.
pub(crate) fn judge(setting: &Setting<'_>, out: &mut Findings) {
    let Some(annotations) = setting.case.spec.get("annotations") else {
        return;
    };
    for member in annotations.members() {
        let value = member.value.as_str().unwrap_or_default();
        let always = is_unsafe(&member.key, value, false);
        if always || (setting.hardened() && is_unsafe(&member.key, value, true)) {
            let message =
                "the low-level runtime acts on this annotation, and it can undo what keeps a container from GPUs";
            let refusal = Refusal::new(Code::UnsafeSpec, "annotation-low-level", message, "leave the annotation out");
            let verdict = if always { Err(refusal) } else { setting.weigh(refusal) };
            out.add(verdict, &format_args!("/annotations/{}", pointer_token(&member.key)), value);
        }
    }
}

fn is_unsafe(key: &str, value: &str, hardened: bool) -> bool {
    let begins = |text: &str, list: &[&str]| list.iter().any(|start| text.starts_with(start));
    match key.strip_prefix(UNIT) {
        Some(property) if hardened => !begins(property, UNIT_PLAIN),
        Some(property) => begins(property, UNIT_UNSAFE),
        // The word before a label among a file system's options: any other would be an option too.
        None if key == "run.oci.mount_context_type" => !CONTEXTS.contains(&value),
        // A version 1 hierarchy in the place of any mount, writable: kernels before 5.17 run programs for who writes there.
        None if key == "run.oci.systemd.force_cgroup_v1" => hardened,
        // A name for a cgroup below the container's own, unless it climbs.
        None if key == "run.oci.systemd.subgroup" => value.split('/').any(|part| part == ".."),
        // runc keeps them as `key=value`, so that a key ends for it at the first `=`.
        None => key.split('=').next().is_some_and(|key| UNSAFE.contains(&key)) || begins(key, UNSAFE_BELOW),
    }
}
