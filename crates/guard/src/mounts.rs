//! Mounts: judged by what lies behind the source once links are followed, never by how the source is spelt.
//!
//! A folder that may hold a GPU node somewhere is not searched, except inside the host's own `/dev`: the device list
//! keeps such a node closed. So a tree with `/dev` in it passes exactly where the device list can be relied on.

use contract::json::Node;
use contract::{Code, Refusal};

use crate::disks;
use crate::findings::{Findings, MOST_ITEMS, Verdict};
use crate::groups::{Groups, OWN, ReadOnly};
use crate::layers;
use crate::options::{has_no_nodes, is_dev, is_writable};
use crate::paths;
use crate::places;
use crate::root;
use crate::setting::Setting;
use crate::system::{Dir, Name, Object};

/// File systems that hold no device nodes of the host's and reach no other machine: policy `hardened` knows no others.
const PLAIN_TYPES: &[&str] =
    &["cgroup", "cgroup2", "devpts", "mqueue", "none", "overlay", "proc", "ramfs", "sysfs", "tmpfs"];

/// Where engines' GPU injectors look for a request that is written as a mount.
const VISIBLE_DEVICES: &[&str] = &["/var/run/nvidia-container-devices", "/run/nvidia-container-devices"];

/// How a source is shown.
#[derive(Clone, Copy)]
pub(crate) struct Bind {
    /// Position of the mount; nothing for the root file system.
    pub(crate) mount: Option<usize>,
    pub(crate) recursive: bool,
    pub(crate) writable: bool,
}

/// What lies behind a bind.
pub(crate) struct Source<'s> {
    /// Its path, with all links resolved.
    pub(crate) real: &'s str,
    pub(crate) how: Bind,
    /// Other names of it and of its parts: a second mount shows the same, and no path tells.
    names: Vec<Name>,
}

impl<'s> Source<'s> {
    pub(crate) fn of(setting: &Setting<'_>, real: &'s str, how: Bind) -> Result<Self, Refusal> {
        let near = |name: &str| places::is_near(setting, name);
        let names = setting.machine.system.other_names(real, how.recursive, &near);
        Ok(Self { real, how, names: names.map_err(|why| unjudgeable(setting, real, &why))? })
    }

    /// Each part by each name: where it is in the source, what it is called, and how it is shown. By another name it is one file
    /// system's part alone, whatever is mounted in that place.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&str, &str, Bind)> {
        let others = self.names.iter().map(|name| (&*name.rest, &*name.real, Bind { recursive: false, ..self.how }));
        [("", self.real, self.how)].into_iter().chain(others)
    }

    /// A part that lies in a folder of ours is hidden there; the whole cannot be.
    pub(crate) fn is_not_ours(&self, setting: &Setting<'_>) -> Result<(), Refusal> {
        self.parts().try_for_each(|(rest, real, how)| own(setting, real, rest.is_empty(), how))
    }
}

/// What must change in the mounts.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) read_only: Vec<ReadOnly>,
    /// Mounts in which device nodes must not work.
    pub(crate) nodev: Vec<usize>,
}

/// What was seen in the sources, for later.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    groups: Groups,
    /// Mounts that show a folder which is none of device nodes.
    folders: Vec<usize>,
}

impl Seen {
    /// Looks for what must be closed in a source.
    pub(crate) fn inside(&mut self, setting: &Setting<'_>, source: &Source<'_>) -> Result<(), Refusal> {
        self.groups.bind(setting, source).map_err(|why| unjudgeable(setting, source.real, &why))
    }
}

/// Judges the mounts and the root file system, and says what must be shown read-only.
pub(crate) fn judge(setting: &Setting<'_>, out: &mut Findings) -> Outcome {
    let list = out.list(setting.case.spec.get("mounts"), MOST_ITEMS, &"/mounts");
    let mut seen = Seen::default();
    for (index, mount) in list.iter().enumerate() {
        one(setting, index, mount, &mut seen, out);
    }
    root::judge(setting, &mut seen, out);
    let mut nodev = Vec::new();
    if setting.hardened() && !setting.privileged {
        seen.folders.dedup();
        nodev = seen.folders;
        nodev.retain(|index| !list.get(*index).is_some_and(has_no_nodes));
    }
    for index in &nodev {
        out.note(
            "mount-nodev",
            format!("/mounts/{index}/options"),
            "device nodes in this folder do not work in the container",
        );
    }
    Outcome { read_only: seen.groups.judge(setting, list, out), nodev }
}

/// A bind is what the options say: with `bind` or `rbind` runtimes ignore the type. The type alone is judged as well,
/// although it makes them fail.
fn one(setting: &Setting<'_>, index: usize, mount: &Node<'_>, seen: &mut Seen, out: &mut Findings) {
    let place = format_args!("/mounts/{index}");
    let kind = out.text(mount, "type", &place);
    let options = out.strings(mount.get("options"), MOST_ITEMS, &format_args!("{place}/options"));
    let has = |option: &str| options.clone().any(|o| o == option);
    destination(setting, index, mount, out);
    if let Some(option) = options.clone().find(|option| *option == "remount") {
        let message =
            "this option changes an earlier mount, which was judged as it stands: a read-only one can be written";
        let refusal =
            Refusal::new(Code::UnsafeSpec, "mount-remount", message, "write the options of a mount into its own entry");
        out.refuse(refusal.at(format!("{place}/options"), option));
    }
    if setting.hardened() && !setting.privileged && has("rdev") {
        let message = "this option lets device nodes work in a mount and in all that are inside, whatever else is said";
        let refusal = Refusal::new(Code::UnsafeSpec, "mount-nodev", message, "leave the option out");
        out.refuse(refusal.at(format!("{place}/options"), "rdev"));
    }
    let writable = is_writable(options.clone()) || is_dev(mount);
    if kind == Some("bind") || has("bind") || has("rbind") {
        let source = out.text(mount, "source", &place).unwrap_or_default();
        let how = Bind { mount: Some(index), recursive: has("rbind") || !has("bind"), writable };
        let verdict = bind(setting, source, how, seen);
        out.add(verdict, &format_args!("{place}/source"), source);
        if setting.hardened() && (has("shared") || has("rshared")) {
            out.note("mount-shared", format!("{place}/options"), "what is mounted in it shows on the host too");
        }
        // youki's library goes by this type first.
        if !matches!(kind, Some("cgroup" | "cgroup2")) {
            return;
        }
    }
    let kind = kind.unwrap_or_default();
    let at_type = format_args!("{place}/type");
    match kind {
        // The kernel has one devtmpfs, wherever it is mounted.
        "devtmpfs" => out.add(dev(setting, "/dev", "mount-fstype"), &at_type, kind),
        "sysfs" if writable && !setting.privileged && setting.is_machines_root() => {
            out.add(places::own_sysfs(setting), &at_type, kind);
        }
        "proc" if writable => out.add(places::own_procfs(setting, mount), &at_type, kind),
        "binfmt_misc" if writable => {
            out.add(places::binfmt_misc(setting, writable), &at_type, kind);
        }
        // It is filled with what the image has there.
        "tmpfs" if has("tmpcopyup") => seen.folders.push(index),
        "overlay" => {
            if options.clone().map(|option| option.len() + 1).sum::<usize>() > layers::MOST_OPTIONS {
                let refusal =
                    unjudgeable(setting, kind, "its options are longer than the 4095 bytes that kernels read");
                out.add(Err(refusal), &format_args!("{place}/options"), kind);
            }
            if let Some(open) = options.clone().find(|option| option.ends_with('\\')) {
                let refusal = unjudgeable(setting, kind, "an option ends with a `\\`, which takes the next one in");
                out.add(Err(refusal), &format_args!("{place}/options"), open);
            }
            for (layer, writable) in options.flat_map(layers::of) {
                let how = Bind { mount: Some(index), recursive: false, writable };
                let verdict = layers::named(setting, &layer).and_then(|_| bind(setting, &layer, how, seen));
                let verdict = verdict.map(|notes| notes.into_iter().filter(|(rule, _)| *rule != MISSING).collect());
                out.add(verdict, &format_args!("{place}/options"), &layer);
            }
            // Its nodes are those of its layers, some of which may be the host's own.
            seen.folders.retain(|folder| *folder != index);
        }
        "cgroup" | "cgroup2" => {
            let verdict = seen.groups.whole(setting, index, mount).map_err(|why| unjudgeable(setting, kind, &why));
            out.add(verdict.map(|()| Vec::new()), &at_type, kind);
        }
        _ if kind.is_empty() || PLAIN_TYPES.contains(&kind) => {}
        _ => {
            if setting.hardened() {
                let message = "a file system of this type can hold device nodes";
                let help = "mount it on the host and bind a folder of it";
                out.add(setting.weigh(Refusal::new(Code::UnsafeSpec, "mount-fstype", message, help)), &at_type, kind);
            }
            let source = out.text(mount, "source", &place).unwrap_or_default();
            let how = Bind { mount: Some(index), recursive: false, writable };
            out.add(lies_over(setting, source, how, seen), &format_args!("{place}/source"), source);
        }
    }
}

/// What a file system shows that is none of the kernel's own: a disk's, or a folder's over which it lies (shiftfs, ecryptfs and
/// others, which show it as a bind does).
fn lies_over(setting: &Setting<'_>, source: &str, how: Bind, seen: &mut Seen) -> Verdict {
    if !source.contains('/') {
        return Ok(Vec::new());
    }
    let mut notes = bind(setting, source, how, seen)?;
    notes.retain(|(rule, _)| *rule != MISSING);
    if !setting.hardened() && !setting.sys_admin {
        notes.extend(disks::mounted(setting, source)?);
    }
    Ok(notes)
}

/// A mount whose place alone asks another injector for GPUs. None of its hooks gets by, so this is only strange.
fn destination(setting: &Setting<'_>, index: usize, mount: &Node<'_>, out: &mut Findings) {
    let Some(place) = mount.get("destination").and_then(Node::as_str) else { return };
    let plain = paths::clean(place);
    if VISIBLE_DEVICES.iter().all(|folder| paths::below(&plain, folder).is_none()) {
        return;
    }
    let (rule, message) =
        ("mount-visible-devices", "a mount at this place is a request for GPUs to other tools, not here");
    let verdict = if setting.hardened() {
        setting.weigh(Refusal::new(Code::UnsafeSpec, rule, message, setting.way_out("the mount")))
    } else {
        Ok(vec![(rule, message.to_owned())])
    };
    out.add(verdict, &format_args!("/mounts/{index}/destination"), place);
}

/// runc cleans some sources by their text, crun and the kernel follow them: where that may differ, both are judged.
fn bind(setting: &Setting<'_>, source: &str, how: Bind, seen: &mut Seen) -> Verdict {
    let path = paths::from_bundle(setting.case.bundle, source);
    if !source.starts_with('/') && setting.case.low_level.goes_by_caller() {
        let why = "it is relative, and the low-level runtime looks for it in whatever folder it was called in";
        return Err(unjudgeable(setting, &path, why));
    }
    let mut notes = behind(setting, &path, how, seen)?;
    if paths::climbs(&path) {
        let cleaned = behind(setting, &paths::clean(&path), how, seen)?;
        notes.extend(cleaned.into_iter().filter(|_| notes.is_empty()).collect::<Vec<_>>());
    }
    Ok(notes)
}

const MISSING: &str = "mount-missing";

pub(crate) fn behind(setting: &Setting<'_>, path: &str, how: Bind, seen: &mut Seen) -> Verdict {
    let plain = paths::clean(path);
    own(setting, &plain, true, how)?;
    match setting.machine.system.look(path) {
        Object::Char { major, minor } => match setting.machine.is_gpu(major, minor) {
            Ok(true) => Err(gpu_node(setting, format!("this mount's source is a GPU's node ({major}:{minor})"))),
            Ok(false) => Ok(Vec::new()),
            Err(why) => Err(unreadable(&why)),
        },
        Object::Block { .. } => Ok(Vec::new()),
        Object::Dir(dir) => {
            let source = Source::of(setting, &dir.real, how)?;
            let mut notes = folder(setting, &dir, &source)?;
            notes.extend(places::judge(setting, &source, &dir.fs)?);
            seen.inside(setting, &source)?;
            let of_devices =
                dir.on_dev || ["/dev", setting.case.dev_root].iter().any(|dev| paths::below(&dir.real, dev).is_some());
            seen.folders.extend(how.mount.filter(|_| !of_devices));
            Ok(notes)
        }
        Object::Other { real, kernels, fs } => {
            let source = Source::of(setting, &real, how)?;
            source.is_not_ours(setting)?;
            let notes = places::judge(setting, &source, &fs)?;
            if kernels {
                seen.inside(setting, &source)?;
            }
            Ok(notes)
        }
        Object::Missing if is_gpu_name(setting, &plain) => Err(gpu_node(
            setting,
            "this mount's source is the name of a GPU's node, although it is not there now".to_owned(),
        )),
        Object::Missing => {
            Ok(vec![(MISSING, "the source does not exist, so the low-level runtime will fail".to_owned())])
        }
        Object::Unjudgeable(why) => Err(unjudgeable(setting, &plain, &why)),
    }
}

pub(crate) fn folder(setting: &Setting<'_>, dir: &Dir, source: &Source<'_>) -> Verdict {
    source.is_not_ours(setting)?;
    let system = setting.machine.system;
    if dir.is_root {
        // Without `r` a bind shows the root file system alone, and /dev is a mount of its own.
        return if source.how.recursive { tree(setting) } else { Ok(Vec::new()) };
    }
    let in_dev_root = paths::below(&dir.real, setting.case.dev_root).filter(|_| dir.in_driver_root);
    if dir.is_dev || in_dev_root == Some("") {
        return dev(setting, &dir.real, "mount-dev-tree");
    }
    if dir.on_dev || in_dev_root.is_some() {
        for (major, minor) in system.nodes_inside(&dir.real).map_err(|why| unjudgeable(setting, &dir.real, &why))? {
            if setting.machine.is_gpu(major, minor).map_err(|why| unreadable(&why))? {
                return Err(gpu_node(setting, format!("a GPU's node ({major}:{minor}) is inside this folder")));
            }
        }
        return Ok(Vec::new());
    }
    if dir.in_driver_root {
        return Err(reserved("the folder is where this node keeps its GPU driver's files and nodes"));
    }
    // Only a tree that would be refused is worth reading the mount table for.
    if !tree_passes(setting) && system.tree_has_dev(&dir.real).map_err(|why| unjudgeable(setting, &dir.real, &why))? {
        return tree(setting);
    }
    Ok(Vec::new())
}

fn tree_passes(setting: &Setting<'_>) -> bool {
    setting.privileged || (!setting.sys_admin && setting.machine.filters())
}

/// A tree with the host's `/dev` in it: harmless as long as the device list holds.
fn tree(setting: &Setting<'_>) -> Verdict {
    if tree_passes(setting) {
        let message = "the host's /dev is inside this folder; the device list keeps its GPUs closed";
        return Ok(vec![("mount-dev-tree", message.to_owned())]);
    }
    let why = if setting.sys_admin {
        "the container has CAP_SYS_ADMIN, which undoes it"
    } else {
        "none can be attached inside a user namespace"
    };
    let message =
        format!("the host's /dev is inside this folder, only a device filter would keep its GPUs closed, and {why}");
    let help = "bind only the folders that the container needs";
    setting.weigh(Refusal::new(Code::TenantGpuMount, "mount-dev-tree", message, help))
}

/// The host's `/dev` itself.
fn dev(setting: &Setting<'_>, source: &str, rule: &'static str) -> Verdict {
    if !setting.case.gpu_asked
        && setting.case.policy.allow_dev_mounts.iter().any(|allowed| paths::clean(allowed) == source)
    {
        return Ok(vec![(rule, "the node's policy lets this container have the host's /dev".to_owned())]);
    }
    let help = if setting.case.gpu_asked {
        "bind the device nodes that the container needs"
    } else {
        "bind the device nodes that the container needs, or have the operator name the source in allow_dev_mounts"
    };
    let message = "this mount shows the host's /dev with all its GPUs";
    setting.weigh(Refusal::new(Code::TenantGpuMount, rule, message, help))
}

/// Our own files: who can write them grants GPUs, who can read them learns of other tenants'.
pub(crate) fn own(setting: &Setting<'_>, plain: &str, inside: bool, how: Bind) -> Result<(), Refusal> {
    let above = setting.hardened() && how.writable;
    let is_own = |folder: &str| {
        (inside && paths::below(plain, folder).is_some()) || (above && paths::below(folder, plain).is_some())
    };
    if setting.own_folders().any(|folder| is_own(&folder)) {
        return Err(reserved("the folder holds the node's own record of who has which GPU"));
    }
    Ok(())
}

fn gpu_node(setting: &Setting<'_>, message: String) -> Refusal {
    Refusal::new(Code::TenantGpuMount, "mount-gpu-node", message, setting.way_out("the mount"))
}

pub(crate) fn reserved(message: &str) -> Refusal {
    Refusal::new(Code::UnsafeSpec, OWN, message, "bind another folder")
}

fn unreadable(why: &str) -> Refusal {
    Refusal::internal("numbers-unreadable", &why)
}

/// What cannot be told is refused.
pub(crate) fn unjudgeable(setting: &Setting<'_>, plain: &str, why: &str) -> Refusal {
    let code = if is_gpu_name(setting, plain) || plain.contains("/dev/nvidia") {
        Code::TenantGpuMount
    } else {
        Code::UnsafeSpec
    };
    let message = format!("it cannot be told what this mount would show: {why}");
    Refusal::new(
        code,
        "mount-unresolvable",
        message,
        "bind a path that leads to one file or folder without links of procfs",
    )
}

/// Whether a GPU's node would have this name.
fn is_gpu_name(setting: &Setting<'_>, plain: &str) -> bool {
    let below = |dev: &str| paths::below(plain, dev).is_some_and(|name| name.starts_with("nvidia"));
    below("/dev") || below(setting.case.dev_root)
}
