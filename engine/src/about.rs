//! What the engine says of itself: version, features, and a document to begin with. Nothing is looked at.

use std::path::Path;

use libcontainer::syscall::linux::MountOption;
use serde_json::json;

use crate::args::Call;
use crate::life::print;

/// Of the OCI runtime specification, what libcontainer was written for.
const SPEC: &str = libcontainer::oci_spec::runtime::VERSION;

/// `--version`, in the shape of runc's first lines.
pub(crate) fn version() -> Result<i32, String> {
    print(&format!(
        "quilt-gpu-engine version {}\nlibcontainer: 0.7.0\nspec: {SPEC}\nlibseccomp: compiled in",
        env!("CARGO_PKG_VERSION")
    ))
}

/// `features`, in the fields of the specification.
pub(crate) fn features() -> Result<i32, String> {
    let shown = json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": SPEC,
        "hooks": ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"],
        "mountOptions": MountOption::known_options(),
        "linux": {
            "namespaces": ["cgroup", "ipc", "mount", "network", "pid", "time", "user", "uts"],
            "cgroup": { "v1": true, "v2": true, "systemd": true, "systemdUser": false, "rdma": false },
            "seccomp": {
                "enabled": true,
                "actions": ["SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS",
                    "SCMP_ACT_KILL_THREAD", "SCMP_ACT_LOG", "SCMP_ACT_TRACE", "SCMP_ACT_TRAP"],
                "operators": ["SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_LE", "SCMP_CMP_LT",
                    "SCMP_CMP_MASKED_EQ", "SCMP_CMP_NE"],
            },
            "apparmor": { "enabled": true },
            "selinux": { "enabled": false },
            "mountExtensions": { "idmap": { "enabled": false } },
        },
        "annotations": { "org.opencontainers.runc.checkpoint.enabled": "false" },
    });
    print(&serde_json::to_string_pretty(&shown).map_err(|cause| cause.to_string())?)
}

/// `spec`: a bundle's document to begin with.
///
/// # Errors
/// That there is one already, or none can be written.
pub(crate) fn spec(call: &Call) -> Result<i32, String> {
    if call.flags.is("rootless") {
        return Err("spec --rootless: this engine is for root".into());
    }
    let path = Path::new(call.flags.value("bundle").unwrap_or(".")).join("config.json");
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
    let written = file.and_then(|mut file| std::io::Write::write_all(&mut file, include_bytes!("spec.json")));
    written.map(|()| 0).map_err(|cause| format!("cannot write {}: {cause}", path.display()))
}
