//! What a bind shows of the host besides device nodes, by where its source lies once links are followed: programs that run as
//! root, files of the kernel that reach devices past every device list, other containers, and sockets of those who command
//! them.
//!
//! `/` itself is not refused here: its own row decides (`mounts`), and what is inside is noted.

use contract::json::Node;
use contract::{Code, Refusal};

use crate::findings::Verdict;
use crate::groups::OWN;
use crate::layers;
use crate::mounts::{Bind, Source, unjudgeable};
use crate::paths;
use crate::processes;
use crate::setting::Setting;
use crate::system::FileSystem;

/// Folders whose files make engines inject devices.
const CDI: &[&str] = &["/etc/cdi", "/run/cdi", "/var/run/cdi"];
/// Where engines and low-level runtimes keep containers.
const STATE: &[&str] = &[
    "/run/containerd",
    "/run/containers",
    "/run/crio",
    "/run/crun",
    "/run/docker",
    "/run/k3s",
    "/run/libpod",
    "/run/runc",
    "/run/quilt-gpu-engine",
    "/run/youki",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/crio",
    "/var/lib/docker",
];
/// What engines bind out of these into the container that it is for, below the container's or sandbox's own folder.
const OF_A_CONTAINER: &[&str] = &[
    ".containerenv",
    "group",
    "hostname",
    "hosts",
    "mounts",
    "passwd",
    "resolv.conf",
    "run",
    "secrets",
    "shm",
    "volumes",
];
/// Who answers here makes containers, hands out devices or works on GPUs for others.
const SOCKETS: &[&str] = &[
    "/run/containerd/containerd.sock",
    "/run/cri-dockerd.sock",
    "/run/crio/crio.sock",
    "/run/dbus/system_bus_socket",
    "/run/docker.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/nri",
    "/run/nvidia-fabricmanager",
    "/run/nvidia-persistenced",
    "/run/nvidia/mps",
    "/run/podman/podman.sock",
    "/run/systemd/private",
    "/tmp/nvidia-mps",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet/pod-resources",
];

/// Judges what lies behind a bind.
pub(crate) fn judge(setting: &Setting<'_>, source: &Source<'_>, fs: &FileSystem) -> Verdict {
    let mut notes = layers::bound(setting, source.real, fs)?;
    for row in [sysfs, procfs] {
        notes.extend(row(setting, source.real, fs, source.how)?);
    }
    notes.extend(all_of_ours(setting, source)?);
    for (rest, real, how) in source.parts() {
        if rest.is_empty() {
            notes.extend(sockets(setting, real, how)?);
            notes.extend(state(setting, real, how)?);
        }
    }
    notes.dedup();
    Ok(notes)
}

/// The same of what is written as a root file system: files of other containers are an image's own there.
pub(crate) fn written(setting: &Setting<'_>, source: &Source<'_>, fs: &FileSystem) -> Verdict {
    let mut notes = sysfs(setting, source.real, fs, source.how)?;
    if *fs == FileSystem::Proc || paths::below(source.real, "/proc").is_some() {
        notes.extend(procfs(setting, source.real, fs, source.how)?);
    }
    notes.extend(all_of_ours(setting, source)?);
    Ok(notes)
}

/// Whether a name is one that judges what is mounted inside a source: on the way to a folder or program of ours, or in one.
pub(crate) fn is_near(setting: &Setting<'_>, name: &str) -> bool {
    let near = |place: &str| paths::below(place, name).is_some() || paths::below(name, place).is_some();
    let programs = || setting.case.programs.iter().any(|program| near(program));
    CDI.iter().any(|folder| near(folder)) || programs() || setting.own_folders().any(|folder| near(&folder))
}

/// What is ours in any part. Who has the whole host has its parts, and is told so once.
fn all_of_ours(setting: &Setting<'_>, source: &Source<'_>) -> Verdict {
    let is_host = source.parts().any(|(rest, real, _)| rest.is_empty() && real == "/");
    let mut notes = Vec::new();
    for (_, real, how) in source.parts().filter(|(rest, ..)| rest.is_empty() || !is_host) {
        notes.extend(ours(setting, real, how)?);
    }
    Ok(notes)
}

/// Writing what runs as root is being root. Where containers have no boundary anyway their own row says so.
fn ours(setting: &Setting<'_>, real: &str, how: Bind) -> Verdict {
    if !how.writable || setting.privileged {
        return Ok(Vec::new());
    }
    if real == "/" {
        let message = "the container can write the node's own files: this is not a boundary";
        return Ok(vec![(OWN, message.to_owned())]);
    }
    let message = if holds_program(setting, real, how.recursive).map_err(|why| unjudgeable(setting, real, &why))? {
        "programs that run as root on this node are inside, and the container could write them"
    } else if CDI.iter().any(|folder| paths::below(real, folder).is_some()) {
        "files in this folder make engines put devices into containers, and the container could write them"
    } else if can_be_replaced(setting, real) {
        "the node's own record of who has which GPU is inside, and the container could put another in its place"
    } else {
        return Ok(Vec::new());
    };
    // In a user namespace of its own nobody is the machine's root.
    if !setting.machine.filters() {
        return Ok(Vec::new());
    }
    let help = "bind it read-only, or only the folders that the container writes";
    Err(Refusal::new(Code::UnsafeSpec, OWN, message, help))
}

fn holds_program(setting: &Setting<'_>, real: &str, recursive: bool) -> Result<bool, String> {
    let own = |program: &str| setting.own_folders().any(|folder| paths::below(program, &folder).is_some());
    for program in setting.case.programs {
        let inside = paths::below(program, real).is_some() && !own(program);
        if inside && (recursive || !setting.machine.system.mounted_between(real, program)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the container could rename a folder of ours, or one on the way to it: a mount goes with its place. What hides it is no
/// hindrance, as from a tree that was taken out of all its mounts (`pivot_root`, `umount -l` in a user namespace) everything can
/// be renamed. Another log gives nobody a GPU, and who collects logs writes beside it.
fn can_be_replaced(setting: &Setting<'_>, real: &str) -> bool {
    let log = paths::clean(setting.case.log_path);
    setting.outer_folders().iter().any(|folder| {
        let rest = paths::below(folder, real).unwrap_or_default();
        rest.contains('/') || (!rest.is_empty() && *folder != log)
    })
}

/// The files of a PCI device in sysfs reach its memory, and those of its bus give it to another driver. No device list covers
/// them.
fn sysfs(setting: &Setting<'_>, real: &str, fs: &FileSystem, how: Bind) -> Verdict {
    // Mounted elsewhere any part of it may be shown.
    let inside = match (paths::below(real, "/sys"), fs) {
        (Some(inside), _) => inside,
        (None, FileSystem::Sysfs) => "bus/pci",
        (None, FileSystem::KernelFiles) => "kernel",
        _ => return Ok(Vec::new()),
    };
    if setting.privileged {
        return Ok(Vec::new());
    }
    let below = inside.starts_with("bus/pci") || (inside.starts_with("devices/") && inside.contains("pci"));
    let above = matches!(inside, "" | "bus" | "devices" | "devices/platform");
    let refused = if setting.hardened() {
        how.writable || below
    } else {
        how.writable && (below || above) && setting.is_machines_root()
    };
    if refused { setting.weigh(writable_sysfs()) } else { Ok(Vec::new()) }
}

/// The sandbox of a privileged pod has it writable, and runs what the operator chose.
pub(crate) fn own_sysfs(setting: &Setting<'_>) -> Verdict {
    if setting.case.workload.is_some_and(|workload| workload.sandbox) {
        return Ok(Vec::new());
    }
    setting.weigh(writable_sysfs())
}

/// Why sysfs is refused, as a bind or as a file system.
fn writable_sysfs() -> Refusal {
    let message = "files of PCI devices are inside, and reach their memory past every device list";
    let help = "mount /sys read-only, or the files that are needed";
    Refusal::new(Code::UnsafeSpec, "mount-sysfs-rw", message, help)
}

/// The host's own view of processes: `core_pattern` and its like run programs as root of the machine.
fn procfs(setting: &Setting<'_>, real: &str, fs: &FileSystem, how: Bind) -> Verdict {
    if *fs == FileSystem::BinfmtMisc {
        return binfmt_misc(setting, how.writable);
    }
    let inside = paths::below(real, "/proc");
    if inside.is_none() && *fs != FileSystem::Proc {
        return if how.recursive { processes::in_tree(setting, real) } else { Ok(Vec::new()) };
    }
    // The network's settings run nothing; what configures it has them.
    let of_network = inside.is_some_and(|inside| paths::below(inside, "sys/net").is_some());
    let runs_programs = setting.hardened() || !of_network;
    if how.writable && runs_programs && !setting.privileged && setting.is_machines_root() {
        return setting.weigh(writable_procfs("bind it read-only"));
    }
    processes::bound(setting, inside)
}

/// Who registers a program there has the kernel run it for others, on the host too.
pub(crate) fn binfmt_misc(setting: &Setting<'_>, writable: bool) -> Verdict {
    if writable && !setting.privileged && setting.is_machines_root() {
        return setting.weigh(writable_procfs("mount it read-only"));
    }
    Ok(Vec::new())
}

fn writable_procfs(help: &str) -> Refusal {
    let message = "the kernel's settings are writable in it, and some of them run programs on the host";
    Refusal::new(Code::UnsafeSpec, "mount-procfs-rw", message, help)
}

/// A procfs of the container's own has the machine's settings all the same; engines make them read-only. Whoever runs
/// containers in this one needs that undone, so only `hardened` refuses it.
pub(crate) fn own_procfs(setting: &Setting<'_>, mount: &Node<'_>) -> Verdict {
    let place = mount.get("destination").and_then(Node::as_str).unwrap_or_default();
    let settings = format!("{}/sys", paths::clean(place).trim_end_matches('/'));
    let closed = ["readonlyPaths", "maskedPaths"].into_iter().any(|list| {
        let list = setting.case.spec.path(&["linux", list]).map(Node::items).unwrap_or_default();
        list.iter().filter_map(Node::as_str).any(|path| paths::below(&settings, &paths::clean(path)).is_some())
    });
    if closed || setting.privileged || !setting.is_machines_root() {
        return Ok(Vec::new());
    }
    let refusal = writable_procfs("name /proc/sys in linux.readonlyPaths, as engines do unless they are told not to");
    if setting.hardened() {
        return setting.weigh(refusal);
    }
    let message =
        "the container can write the kernel's settings, which run programs on the host: this is not a boundary";
    Ok(vec![("mount-procfs-rw", message.to_owned())])
}

fn sockets(setting: &Setting<'_>, real: &str, _: Bind) -> Verdict {
    let shows = |socket: &&&str| paths::below(real, socket).is_some() || paths::below(socket, real).is_some();
    let Some(socket) = SOCKETS.iter().find(shows) else { return Ok(Vec::new()) };
    let message = format!("who commands containers or devices on this node is reached through it: {socket}");
    let rule = "mount-control-socket";
    // Half of all containers share /tmp, and hardly a node has MPS.
    if setting.hardened() && !setting.privileged && !matches!(real, "/" | "/tmp") {
        let help = "leave the mount out, or have the operator excuse it for this container";
        return setting.weigh(Refusal::new(Code::UnsafeSpec, rule, message, help));
    }
    Ok(vec![(rule, message)])
}

/// Other containers' files, what lies in them under any name included.
fn state(setting: &Setting<'_>, real: &str, _: Bind) -> Verdict {
    let inside = STATE.iter().find_map(|folder| paths::below(real, folder));
    if !setting.hardened() || setting.privileged || inside.is_none_or(is_the_containers_own) {
        return Ok(Vec::new());
    }
    let message = "the folder holds other containers' files";
    let help = "leave the mount out, or have the operator excuse it for this container";
    setting.weigh(Refusal::new(Code::UnsafeSpec, "mount-runtime-state", message, help))
}

/// Whether an engine binds this into a container by itself: below a folder of [`STATE`], in which user-namespaced Docker, CRI and
/// Podman have one folder more.
fn is_the_containers_own(inside: &str) -> bool {
    let parts: Vec<&str> = inside.split('/').collect();
    let is_ids = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let parts = match parts.as_slice() {
        ["storage" | "io.containerd.grpc.v1.cri", rest @ ..] => rest,
        [first, rest @ ..] if is_ids(first) => rest,
        all => all,
    };
    match parts {
        ["volumes", _, "_data", ..] => true,
        ["containers" | "sandboxes", _, file, ..] | ["overlay-containers", _, "userdata", file, ..] => {
            OF_A_CONTAINER.contains(file)
        }
        _ => false,
    }
}
