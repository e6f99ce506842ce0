//! Section A once more: what of the machine is no GPU's node and leads to one all the same. Files of the kernel, sockets of
//! those who make containers, other containers' folders, nodes of other drivers.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use integration::{Bundle, Result, Spec};
use serde_json::json;

use crate::case::{Bare, Case, Verdict, case, mount, tree, without};
use crate::elsewhere::{Mounted, odd, shown_as};
use crate::life::{Outcome, Run};
use crate::mounts::{ESCAPE, of_node};
use crate::world::Place;

const UNSAFE: &str = "UNSAFE_SPEC";
const SYSFS: &str = "mount-sysfs-rw";
const STATE: &str = "mount-runtime-state";
const SOCKET: &str = "mount-control-socket";

pub(crate) fn cases() -> Vec<Case> {
    [nodes(), kernel(), pci(), sockets(), others(), types()].into_iter().flatten().collect()
}

/// Nodes that are whole devices, whole memory, or a way to either.
fn nodes() -> Vec<Case> {
    vec![
        of_node("A28", "VFIO's node", |run| run.tenant("vfio")),
        of_node("A28", "the IOMMU's node", |run| run.tenant("iommu")),
        of_node("A28", "the machine's memory", |run| run.tenant("mem")),
        of_node("A28", "the kernel's memory", |run| run.tenant("kmem")),
        of_node("A28", "the machine's ports", |run| run.tenant("port")),
        of_node("A33", "the display's mode setting", |run| run.node("nvidia-modeset")),
        of_node("A33", "the tools of the memory node", |run| run.node("nvidia-uvm-tools")),
        of_node("A33", "a MIG capability", |run| run.node("nvidia-caps/nvidia-cap1")),
        of_node("A33", "an IMEX channel", |run| run.tenant("nvidia-caps-imex-channels")),
        of_node("A33", "an NVSwitch", |run| run.tenant("nvidia-nvswitch")),
        of_node("A33", "an NVLink", |run| run.tenant("nvidia-nvlink")),
        of_node("A33", "memory of GPUs for others, gdrdrv", |run| run.tenant("gdrdrv")),
        of_node("A33", "Tegra's engines, nvhost", |run| run.tenant("nvhost-ctrl")),
        of_node("A33", "Tegra's memory, nvmap", |run| run.tenant("nvmap")),
        of_node("A33", "WSL's GPU, dxg", |run| run.tenant("dxg")),
    ]
}

fn kernel() -> Vec<Case> {
    vec![
        case("A26 Q22", "the host's /sys, writable", |_| tree("/sys", &[]))
            .script("(: >>/t/kernel/mm/transparent_hugepage/enabled) 2>/dev/null && echo LEAK it can be written")
            .exposes()
            .refused(UNSAFE, "mount-sysfs-rw"),
        case("A26 Q22 L", "the host's /sys, read-only", |_| tree("/sys", &["ro"]))
            .script("(: >>/t/kernel/mm/transparent_hugepage/enabled) 2>/dev/null && echo LEAK it can be written; [ -d /t/class/net ] || exit 1"),
        case("A27", "the host's /proc, writable", |_| tree("/proc", &[]))
            .script("(: >>/t/sys/kernel/core_pattern) 2>/dev/null && echo LEAK programs of the host can be named")
            .exposes()
            .refused(UNSAFE, "mount-procfs-rw"),
        case("A27", "its own /proc, with the kernel's settings writable", |_| {
            Spec::new().edit(|spec| spec["linux"]["readonlyPaths"] = json!([]))
        })
        .script("(: >>/proc/sys/kernel/core_pattern) 2>/dev/null || exit 1")
        .always(Verdict::Noted("mount-procfs-rw"))
        .hardened(Verdict::Refused(UNSAFE, "mount-procfs-rw")),
        case("A31 CVE-2023-25809", "the host's control groups, writable", |_| tree("/sys/fs/cgroup", &[]))
            .script(ESCAPE)
            .exposes()
            .on(Place::Runc2, Bare::Exposes)
            .on(Place::Crun, Bare::Exposes)
            .always(Verdict::Noted("mount-cgroup"))
            .hardened(Verdict::Refused(UNSAFE, "mount-sysfs-rw")),
        case("A31", "the host's control groups in a read-only /sys", |_| tree("/sys", &["ro"]))
            .script(ESCAPE)
            .exposes()
            .on(Place::Runc2, Bare::Exposes),
    ]
}

/// Files of PCI devices: their memory, and who drives them. No device list covers a file.
fn pci() -> Vec<Case> {
    let written = |what, source: &'static str, script: &'static str| {
        case("A26", what, move |_| tree(source, &[])).script(script).exposes().refused(UNSAFE, SYSFS)
    };
    let read = |what, source: &'static str, script: &'static str| {
        case("A26 L", what, move |_| tree(source, &["ro"])).script(script).hardened(Verdict::Refused(UNSAFE, SYSFS))
    };
    // Opening writes nothing.
    let bus = "[ -d /t/devices ] || exit 1; (: >>/t/rescan) 2>/dev/null && echo LEAK it can be written";
    let devices = "for file in /t/0*/driver_override; do (: >>$file) 2>/dev/null && echo LEAK it can be written; done; [ -e $file ] || exit 1";
    vec![
        written("the PCI bus, writable", "/sys/bus/pci", bus),
        written("the folder of PCI devices, writable", "/sys/devices/pci0000:00", devices),
        read("the PCI bus, read-only", "/sys/bus/pci", bus),
        read("the folder of PCI devices, read-only", "/sys/devices/pci0000:00", devices),
    ]
}

/// Who answers there makes containers or works on GPUs for others.
fn sockets() -> Vec<Case> {
    vec![
        case("A29", "the folder of the sockets of those who make containers", |_| tree("/run", &["ro"]))
            .always(Verdict::Noted("mount-control-socket"))
            .hardened(Verdict::Refused(UNSAFE, "mount-control-socket")),
        case("A29", "the socket of a daemon that works on GPUs", |run| Spec::new().bind(&socket(run), "/x", &[]))
            .script("quilt-probe connect /x && echo LEAK a daemon of the host answers")
            .drive(answered)
            .exposes()
            .always(Verdict::Passes(SOCKET))
            .hardened(Verdict::Refused(UNSAFE, SOCKET)),
    ]
}

/// In a folder of NVIDIA's own daemons, none of which is there.
fn socket(run: &Run<'_>) -> PathBuf {
    Path::new("/run/nvidia-persistenced").join(&run.id)
}

/// Somebody listens while the container lives.
fn answered(run: &Run<'_>, bundle: &Bundle) -> Result<Outcome> {
    let path = socket(run);
    let folder = path.parent().unwrap_or(&path);
    odd(folder, fs::create_dir_all(folder))?;
    let listener = odd(&path, UnixListener::bind(&path))?;
    let outcome = run.live(bundle);
    drop(listener);
    odd(&path, fs::remove_file(&path))?;
    // Others may have theirs there.
    let _ = fs::remove_dir(folder);
    outcome
}

/// Other containers' folders: data of other tenants, no way to a GPU. Nodes that are in them stay closed.
fn others() -> Vec<Case> {
    vec![
        // runc's own folder, when nothing else is said.
        case("A14", "where a low-level runtime keeps its containers", |_| tree("/run/runc", &["ro"]))
            .hardened(Verdict::Refused(UNSAFE, STATE)),
        case("A14", "the root of a container with a GPU", |run| tree(neighbour(run), &[]))
            .script("[ -e /t/secret ] && echo LEAK files of another tenant")
            .drive(beside)
            .brings_a_node()
            .always(Verdict::Passes(""))
            .hardened(Verdict::Refused(UNSAFE, STATE)),
    ]
}

/// Where it is shown as an engine would have it.
fn neighbour(run: &Run<'_>) -> PathBuf {
    Path::new("/run/runc").join(&run.id).join("rootfs")
}

/// Lets one that has a GPU be there, with a node left in its root.
fn beside(run: &Run<'_>, bundle: &Bundle) -> Result<Outcome> {
    run.world.holder(run.by)?;
    let at = neighbour(run);
    odd(&at, fs::create_dir_all(&at))?;
    let outcome = {
        let _mounted = Mounted::root_of_holder(run, &at)?;
        run.live(bundle)
    };
    for folder in [Some(at.as_path()), at.parent()].into_iter().flatten() {
        odd(folder, fs::remove_dir(folder))?;
    }
    outcome
}

/// File systems that may hold device nodes: as mounts of the spec, and mounted on the host by an engine.
fn types() -> Vec<Case> {
    let foreign = |what, kind: &'static str, source: &'static str| {
        case("A16", what, move |_| mount(kind, source, &[]))
            .bare(Bare::Fails)
            .standard(Verdict::Fails)
            .hardened(Verdict::Refused(UNSAFE, "mount-fstype"))
    };
    vec![
        foreign("a block device's file system", "ext4", "/dev/loop7"),
        foreign("a compressed file system", "squashfs", "/dev/loop7"),
        foreign("a server's file system", "nfs", "127.0.0.1:/"),
        foreign("a virtual machine's file system", "9p", "host"),
        foreign("the same by another protocol", "virtiofs", "host"),
        foreign("a process's file system", "fuse", "none"),
        shown_as("A16", "a file system with nodes, mounted as a volume", "volumes/v/_data", "tmpfs", &[("n", 195, 2)])
            .brings_a_node()
            .hardened(Verdict::Noted("mount-nodev")),
        without(
            "A16",
            "the same of nfs, 9p, virtiofs, squashfs and FUSE: a node is the same object to the filter whichever file system \
             it lies on; no server of these is here, and the kernel gives FUSE mounts of others than root no nodes",
            "a_gpu_by_any_name_is_a_gpu",
        ),
    ]
}
