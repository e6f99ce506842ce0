//! Keeps what this process does from changing the node, before it lets NVIDIA's user-space code run in it.
//!
//! That code repairs what it misses, for whoever is root: it loads modules, makes device nodes or sets their owner and mode,
//! and renews links in `/dev/char` (`nvidia-modprobe-utils.c`). An inventory must not do that, so this process gets a mount
//! namespace where `/dev` is read-only and `/dev/char` an empty folder of its own, is told what NVIDIA tells containers (that
//! device files are not for it to modify), and loses the two capabilities. Opening devices stays possible.

use std::fs;
use std::path::Path;

use caps::{CapSet, Capability};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::{set_no_new_privs, set_pdeathsig};
use nix::sys::signal::Signal;

const NONE: Option<&str> = None;
const PARAMS: &str = "proc/driver/nvidia/params";
const MODIFY: &str = "ModifyDeviceFiles:";

/// Confines this process; `root` is the folder that will be its root. Only for a process of its own: there is no way back.
///
/// # Errors
/// What cannot be kept from happening, and why.
pub(crate) fn confine(root: &Path) -> Result<(), String> {
    let failed = |what: &'static str| move |cause: nix::Error| format!("cannot {what}: {cause}");
    set_pdeathsig(Signal::SIGKILL).map_err(failed("ask to end with the process that asks"))?;
    // Whoever is not root can change nothing, unless a set-user-id nvidia-modprobe does it for him.
    set_no_new_privs().map_err(failed("do without new privileges"))?;
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWNS).map_err(failed("make a mount namespace"))?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(NONE, "/", NONE, private, NONE).map_err(failed("keep mounts to this process"))?;
    close(root)?;
    for capability in [Capability::CAP_MKNOD, Capability::CAP_SYS_MODULE] {
        for set in [CapSet::Bounding, CapSet::Effective, CapSet::Inheritable, CapSet::Permitted] {
            caps::drop(None, set, capability).map_err(|cause| format!("cannot drop {capability}: {cause}"))?;
        }
    }
    Ok(())
}

/// Closes the device folder of this root, where it has one.
fn close(root: &Path) -> Result<(), String> {
    let dev = root.join("dev");
    if !dev.is_dir() {
        return Ok(());
    }
    let failed = |path: &Path, cause: &dyn std::fmt::Display| format!("cannot close {}: {cause}", path.display());
    let closed = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some(&dev), &dev, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)
        .and_then(|()| mount(NONE, &dev, NONE, closed, NONE))
        .map_err(|cause| failed(&dev, &cause))?;
    let links = dev.join("char");
    if !links.is_dir() {
        return Ok(());
    }
    let own = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), &links, Some("tmpfs"), own, Some("size=64k,mode=0755"))
        .map_err(|cause| failed(&links, &cause))?;
    let (params, draft) = (root.join(PARAMS), links.join("params"));
    let Ok(text) = fs::read_to_string(&params) else { return Ok(()) };
    fs::write(&draft, without_modification(&text)).map_err(|cause| failed(&params, &cause))?;
    mount(Some(&draft), &params, NONE, MsFlags::MS_BIND, NONE).map_err(|cause| failed(&params, &cause))
}

/// The driver's parameters as a process finds them that is not to touch device files.
fn without_modification(params: &str) -> String {
    let line = |line: &str| if line.starts_with(MODIFY) { format!("{MODIFY} 0\n") } else { format!("{line}\n") };
    params.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_forbid_to_modify_device_files_and_say_nothing_else_anew() {
        let params = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\nRegistryDwords: \"\"\n";
        assert_eq!(without_modification(params), params.replace("Files: 1", "Files: 0"));
    }
}
