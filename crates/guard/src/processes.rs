//! The host's processes, where a container sees them: the kernel lets whoever has the ids of one, and no fewer capabilities,
//! into its folder of procfs, and the links there (`root`, `cwd`) lead into the machine's mounts.
//!
//! Capabilities of the container's own do not decide. Another user is had by SETUID, by a file of the image's that is set to
//! one, or by the command line; and who came in as nobody hands what it has open to a container that is root.

use contract::{Code, Refusal};

use crate::findings::Verdict;
use crate::mounts::unjudgeable;
use crate::setting::Setting;
use crate::system::{Dir, FileSystem, Object};

const RULE: &str = "mount-procfs";

/// What a procfs of the container's own is, too, where it has no processes of its own.
pub(crate) const NO_BOUNDARY: &str = "the container sees the host's processes, and its root leaves it by the folder of one \
    without more rights: this is not a boundary";

/// Judges what is bound of a procfs of the host's, by where it lies inside: elsewhere than in `/proc` any part may be shown.
pub(crate) fn bound(setting: &Setting<'_>, inside: Option<&str>) -> Verdict {
    let of_a_process = |inside: &str| inside.is_empty() || inside.starts_with(|first: char| first.is_ascii_digit());
    if inside.is_none_or(of_a_process) && lead_out(setting) {
        return shown(setting);
    }
    Ok(vec![(RULE, "the container sees the host's processes and drivers".to_owned())])
}

/// Judges a tree that may have a procfs inside. Only one that would be refused is worth reading the mount table for.
pub(crate) fn in_tree(setting: &Setting<'_>, real: &str) -> Verdict {
    let are_inside = real == "/" || setting.hardened() && has_procfs(setting, real)?;
    if are_inside && lead_out(setting) { shown(setting) } else { Ok(Vec::new()) }
}

fn has_procfs(setting: &Setting<'_>, real: &str) -> Result<bool, Refusal> {
    let system = setting.machine.system;
    let inside = system.kernels_inside(real).map_err(|why| unjudgeable(setting, real, &why))?;
    let is_procfs = |rest: &String| {
        let object = system.look(&format!("{real}/{rest}"));
        matches!(object, Object::Dir(Dir { fs: FileSystem::Proc, .. }) | Object::Unjudgeable(_))
    };
    Ok(inside.iter().any(is_procfs))
}

fn shown(setting: &Setting<'_>) -> Verdict {
    if !setting.hardened() {
        return Ok(vec![(RULE, NO_BOUNDARY.to_owned())]);
    }
    let message =
        "the host's processes are inside, and root leaves the container by the folder of one without more rights";
    let help = "bind only the files of /proc that are needed, or have the operator excuse it for this container";
    setting.weigh(Refusal::new(Code::UnsafeSpec, RULE, message, help))
}

/// Whether one who sees the host's processes is the machine's root. In a user namespace of its own nobody is, and nobody gets
/// into the folder of a process outside. Where a container has no boundary anyway its own row says so.
pub(crate) fn lead_out(setting: &Setting<'_>) -> bool {
    !setting.privileged && setting.is_machines_root()
}
