//! Mounts: judged by what lies behind the source once links are followed, never by how the source is spelt.
//!
//! A folder that may hold a GPU node somewhere is not searched, except inside the host's own `/dev`: the device list
//! keeps such a node closed. So a tree with `/dev` in it passes exactly where the device list can be relied on.

use contract::json::Node;
use contract::{Code, Refusal};

use crate::findings::{Findings, MOST_ITEMS};
use crate::groups::{Groups, OWN, ReadOnly};
use crate::paths;
use crate::setting::Setting;
use crate::system::{Dir, Object};

/// File systems that hold no device nodes of the host's and reach no other machine: policy `hardened` knows no others.
const PLAIN_TYPES: &[&str] =
    &["cgroup", "cgroup2", "devpts", "mqueue", "none", "overlay", "proc", "ramfs", "sysfs", "tmpfs"];

/// A refusal that does not say yet where, or what is worth noting.
type Verdict = Result<Option<(&'static str, String)>, Refusal>;

/// How a source is shown.
#[derive(Clone, Copy)]
struct Bind {
    /// Position of the mount; nothing for the root file system.
    mount: Option<usize>,
    recursive: bool,
    writable: bool,
}

/// Judges the mounts and the root file system, and says what must be shown read-only.
pub(crate) fn judge(setting: &Setting<'_>, out: &mut Findings) -> Vec<ReadOnly> {
    let list = out.list(setting.case.spec.get("mounts"), MOST_ITEMS, &"/mounts");
    let mut groups = Groups::default();
    for (index, mount) in list.iter().enumerate() {
        one(setting, index, mount, &mut groups, out);
    }
    root(setting, &mut groups, out);
    groups.judge(setting, list, out)
}

fn report(verdict: Verdict, at: impl FnOnce() -> String, value: &str, out: &mut Findings) {
    match verdict {
        Ok(None) => {}
        Ok(Some((rule, message))) => out.note(rule, at(), message),
        Err(refusal) => out.refuse(refusal.at(at(), value)),
    }
}

/// A bind is what the options say: with `bind` or `rbind` runtimes ignore the type. The type alone is judged as well,
/// although it makes them fail.
fn one(setting: &Setting<'_>, index: usize, mount: &Node<'_>, groups: &mut Groups, out: &mut Findings) {
    let place = format_args!("/mounts/{index}");
    let kind = out.text(mount, "type", &place);
    let options = out.strings(mount.get("options"), MOST_ITEMS, &format_args!("{place}/options"));
    let has = |option: &str| options.clone().any(|o| o == option);
    if kind == Some("bind") || has("bind") || has("rbind") {
        let source = out.text(mount, "source", &place).unwrap_or_default();
        let (recursive, writable) = (has("rbind") || !has("bind"), is_writable(options.clone()));
        let verdict = bind(setting, source, Bind { mount: Some(index), recursive, writable }, groups);
        report(verdict, || format!("{place}/source"), source, out);
        return;
    }
    let kind = kind.unwrap_or_default();
    match kind {
        // The kernel has one devtmpfs, wherever it is mounted.
        "devtmpfs" => report(dev(setting, "/dev", "mount-fstype"), || format!("{place}/type"), kind, out),
        "overlay" => {
            if let Some(open) = options.clone().find(|option| option.ends_with('\\')) {
                let refusal = unjudgeable(setting, kind, "an option ends with a `\\`, which takes the next one in");
                report(Err(refusal), || format!("{place}/options"), open, out);
            }
            for layer in options.flat_map(layers) {
                let how = Bind { mount: Some(index), recursive: false, writable: false };
                let verdict = bind(setting, &layer, how, groups);
                let verdict = verdict.map(|note| note.filter(|(rule, _)| *rule != MISSING));
                report(verdict, || format!("{place}/options"), &layer, out);
            }
        }
        "cgroup" | "cgroup2" => {
            let verdict = groups.whole(setting, index, mount).map_err(|why| unjudgeable(setting, kind, &why));
            report(verdict.map(|()| None), || format!("{place}/type"), kind, out);
        }
        _ if setting.hardened() && !kind.is_empty() && !PLAIN_TYPES.contains(&kind) => {
            let message = "a file system of this type can hold device nodes";
            let refusal =
                Refusal::new(Code::UnsafeSpec, "mount-fstype", message, "mount it on the host and bind a folder of it");
            out.refuse(refusal.at(format!("{place}/type"), kind));
        }
        _ => {}
    }
}

fn is_writable<'o>(options: impl Iterator<Item = &'o str>) -> bool {
    let last = options.filter(|o| matches!(*o, "ro" | "rw" | "rro")).last();
    last.is_none_or(|option| option == "rw")
}

/// The folders in an option of an overlay's; runtimes join options with commas. Kernels and keys differ in where a `\` takes
/// its meaning from a `,` or `:` and where it is a part of the name, so each way to read a path is looked at.
pub(crate) fn layers(option: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for part in option.split(',').chain(pieces(option, ',')) {
        let (key, value) = part.split_once('=').unwrap_or_default();
        let values: Vec<&str> = match key {
            "lowerdir" => pieces(value, ':').collect(),
            "lowerdir+" | "datadir+" | "upperdir" | "workdir" => vec![value],
            _ => continue,
        };
        paths.extend(values.into_iter().flat_map(|value| [value.to_owned(), unescaped(value)]));
    }
    paths.retain(|path| !path.is_empty());
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// A text cut where this letter stands without a `\` in front of it.
fn pieces(text: &str, at: char) -> impl Iterator<Item = &str> {
    let mut behind = false;
    text.split(move |letter| {
        let cut = letter == at && !behind;
        behind = letter == '\\' && !behind;
        cut
    })
}

fn unescaped(text: &str) -> String {
    let (mut out, mut letters) = (String::with_capacity(text.len()), text.chars());
    while let Some(letter) = letters.next() {
        out.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    out
}

/// The root file system is bound too. Only what would show the host's own nodes is looked at.
fn root(setting: &Setting<'_>, groups: &mut Groups, out: &mut Findings) {
    let Some(root) = setting.case.spec.get("root") else {
        return;
    };
    let Some(written) = out.text(root, "path", &"/root") else {
        return;
    };
    let path = paths::from_bundle(setting.case.bundle, written);
    let followed = setting.case.low_level.follows_root().then(|| setting.machine.system.look(&path));
    let plain = match followed {
        Some(Object::Dir(dir)) => dir.real.into(),
        _ => paths::clean(&path),
    };
    let is_hosts = plain == "/"
        || [setting.case.dev_root, "/dev"].iter().any(|dev| paths::below(&plain, dev).is_some())
        || setting.own_folders().any(|folder| paths::below(&folder, &plain).is_some());
    let how = Bind { mount: None, recursive: true, writable: false };
    let verdict =
        if is_hosts { behind(setting, &plain, how, groups) } else { own(setting, &plain, how).map(|()| None) };
    report(verdict, || "/root/path".to_owned(), written, out);
}

/// runc cleans some sources by their text, crun and the kernel follow them: where that may differ, both are judged.
fn bind(setting: &Setting<'_>, source: &str, how: Bind, groups: &mut Groups) -> Verdict {
    let path = paths::from_bundle(setting.case.bundle, source);
    let followed = behind(setting, &path, how, groups)?;
    if paths::climbs(&path) {
        let cleaned = behind(setting, &paths::clean(&path), how, groups)?;
        return Ok(followed.or(cleaned));
    }
    Ok(followed)
}

const MISSING: &str = "mount-missing";

fn behind(setting: &Setting<'_>, path: &str, how: Bind, groups: &mut Groups) -> Verdict {
    let plain = paths::clean(path);
    own(setting, &plain, how)?;
    let look_for_groups = |real: &str, groups: &mut Groups| {
        groups.bind(setting, how.mount, real, how.recursive).map_err(|why| unjudgeable(setting, real, &why))
    };
    match setting.machine.system.look(path) {
        Object::Char { major, minor } => match setting.machine.is_gpu(major, minor) {
            Ok(true) => Err(gpu_node(setting, format!("this mount's source is a GPU's node ({major}:{minor})"))),
            Ok(false) => Ok(None),
            Err(why) => Err(unreadable(&why)),
        },
        Object::Block => Ok(None),
        Object::Dir(dir) => {
            let note = folder(setting, &dir, how)?;
            look_for_groups(&dir.real, groups)?;
            Ok(note)
        }
        Object::Other { real, kernels } => {
            own(setting, &real, how)?;
            if kernels {
                look_for_groups(&real, groups)?;
            }
            sysfs(setting, &real, how)
        }
        Object::Missing if is_gpu_name(setting, &plain) => Err(gpu_node(
            setting,
            "this mount's source is the name of a GPU's node, although it is not there now".to_owned(),
        )),
        Object::Missing => {
            Ok(Some((MISSING, "the source does not exist, so the low-level runtime will fail".to_owned())))
        }
        Object::Unjudgeable(why) => Err(unjudgeable(setting, &plain, &why)),
    }
}

fn folder(setting: &Setting<'_>, dir: &Dir, how: Bind) -> Verdict {
    own(setting, &dir.real, how)?;
    let system = setting.machine.system;
    if dir.is_root {
        // Without `r` a bind shows the root file system alone, and /dev is a mount of its own.
        return if how.recursive { tree(setting) } else { Ok(None) };
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
        return Ok(None);
    }
    if dir.in_driver_root {
        return Err(reserved("the folder is where this node keeps its GPU driver's files and nodes"));
    }
    // Only a tree that would be refused is worth reading the mount table for.
    if !tree_passes(setting) && system.tree_has_dev(&dir.real).map_err(|why| unjudgeable(setting, &dir.real, &why))? {
        return tree(setting);
    }
    sysfs(setting, &dir.real, how)
}

fn tree_passes(setting: &Setting<'_>) -> bool {
    setting.privileged || (!setting.sys_admin && setting.machine.filters())
}

/// A tree with the host's `/dev` in it: harmless as long as the device list holds.
fn tree(setting: &Setting<'_>) -> Verdict {
    if tree_passes(setting) {
        return Ok(Some((
            "mount-dev-tree",
            "the host's /dev is inside this folder; the device list keeps its GPUs closed".to_owned(),
        )));
    }
    let why = if setting.sys_admin {
        "the container has CAP_SYS_ADMIN, which undoes it"
    } else {
        "none can be attached inside a user namespace"
    };
    let message =
        format!("the host's /dev is inside this folder, only a device filter would keep its GPUs closed, and {why}");
    Err(Refusal::new(Code::TenantGpuMount, "mount-dev-tree", message, "bind only the folders that the container needs"))
}

/// The host's `/dev` itself.
fn dev(setting: &Setting<'_>, source: &str, rule: &'static str) -> Verdict {
    if !setting.case.gpu_asked
        && setting.case.policy.allow_dev_mounts.iter().any(|allowed| paths::clean(allowed) == source)
    {
        return Ok(Some((rule, "the node's policy lets this container have the host's /dev".to_owned())));
    }
    let help = if setting.case.gpu_asked {
        "bind the device nodes that the container needs"
    } else {
        "bind the device nodes that the container needs, or have the operator name the source in allow_dev_mounts"
    };
    Err(Refusal::new(Code::TenantGpuMount, rule, "this mount shows the host's /dev with all its GPUs", help))
}

/// Our own files: who can write them grants GPUs, who can read them learns of other tenants'.
fn own(setting: &Setting<'_>, plain: &str, how: Bind) -> Result<(), Refusal> {
    let above = setting.hardened() && how.writable;
    let is_own =
        |folder: &str| paths::below(plain, folder).is_some() || (above && paths::below(folder, plain).is_some());
    if setting.own_folders().any(|folder| is_own(&folder)) {
        return Err(reserved("the folder holds the node's own record of who has which GPU"));
    }
    Ok(())
}

/// The files of a PCI device in sysfs reach its memory, and no device list covers them.
fn sysfs(setting: &Setting<'_>, real: &str, how: Bind) -> Verdict {
    let Some(inside) = paths::below(real, "/sys").filter(|_| setting.hardened()) else {
        return Ok(None);
    };
    if how.writable || inside.starts_with("bus/pci") || inside.starts_with("devices/pci") {
        let message = "files of PCI devices are inside, and reach their memory past every device list";
        return Err(Refusal::new(
            Code::UnsafeSpec,
            "mount-sysfs-rw",
            message,
            "bind /sys read-only, or the files that are needed",
        ));
    }
    Ok(None)
}

fn gpu_node(setting: &Setting<'_>, message: String) -> Refusal {
    Refusal::new(Code::TenantGpuMount, "mount-gpu-node", message, setting.way_out("the mount"))
}

fn reserved(message: &str) -> Refusal {
    Refusal::new(Code::UnsafeSpec, OWN, message, "bind another folder")
}

fn unreadable(why: &str) -> Refusal {
    Refusal::internal("numbers-unreadable", &why)
}

fn unjudgeable(setting: &Setting<'_>, plain: &str, why: &str) -> Refusal {
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
