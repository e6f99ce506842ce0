//! What a mount shows of the host and a container must not have: it is closed right behind the mount.
//!
//! Control groups: who can write in the hierarchy that holds device filters moves itself out of its own. `ro` on a mount
//! does not reach the mounts inside, so these are shown once more, read-only. Our own folders: who can write there gives
//! itself other tenants' GPUs, and who can read there has their reservations. An empty file system hides them. The kernel's
//! settings and devices, in a tree that the spec wants read-only.
//!
//! Right behind it, because the path is then resolved as the mount's own was, and because a later mount may show the
//! whole again: `readonlyPaths` come last and would leave such a copy writable. Nothing else becomes read-only.

use std::borrow::Cow;
use std::ops::Range;

use contract::json::Node;
use contract::{Code, Refusal};

use crate::findings::Findings;
use crate::layers;
use crate::mounts::Source;
use crate::options::{is_at_dev, is_dev};
use crate::paths;
use crate::setting::Setting;
use crate::system::{Object, System};

/// The rules' names.
const GROUPS: &str = "mount-cgroup";
const KERNELS: &str = "mount-kernel-files";
pub(crate) const OWN: &str = "mount-reserved-source";
/// Where low-level runtimes look for version 2.
const USUAL: &str = "/sys/fs/cgroup";

/// Options of the empty file system that hides. Not `ro`: runc makes that true at the very end, by a path that a later mount
/// may have covered.
pub const HIDING: [&str; 5] = ["nosuid", "nodev", "noexec", "size=4k", "mode=555"];

/// A read-only mount to be added, over a part of what another one shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOnly {
    /// Position in the spec's `mounts` that it must stand before; their number: at the end.
    pub before: usize,
    /// The same part once more, as an absolute path of the host. Nothing: an empty file system, which hides it.
    pub source: Option<String>,
    /// Path of the container, in the words of the mount that it belongs to.
    pub destination: String,
}

/// The control groups and own folders that were found in mounts.
#[derive(Debug, Default)]
pub(crate) struct Groups(Vec<Found>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    /// Position of the mount; nothing for the root file system.
    mount: Option<usize>,
    /// Path below the mount's own place; empty for this place.
    rest: String,
    shows: Shows,
}

/// What is shown there, and by which path of the host it is shown again.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shows {
    Groups(String),
    /// The kernel's settings and devices, in a tree that is to be read-only.
    Kernels(String),
    /// A folder of ours: never again.
    Own,
}

impl Groups {
    /// Looks into a folder that is bound, or is an overlay's layer. With CAP_SYS_ADMIN nothing stays closed.
    pub(crate) fn bind(&mut self, setting: &Setting<'_>, source: &Source<'_>) -> Result<(), String> {
        if setting.sys_admin {
            return Ok(());
        }
        let (system, real, how) = (setting.machine.system, source.real, source.how);
        let mut found = |rest: &str, shows| self.0.push(Found { mount: how.mount, rest: rest.to_owned(), shows });
        for rest in system.filters_shown(real)? {
            if rest.is_empty() || how.recursive {
                found(&rest, Shows::Groups(joined(real, &rest)));
            }
        }
        // `ro` does not reach what is mounted inside, and some of that runs programs on the host.
        if how.recursive && !how.writable {
            for rest in system.kernels_inside(real)? {
                found(&rest, Shows::Kernels(joined(real, &rest)));
            }
        }
        for (at, real, how) in source.parts() {
            for folder in setting.outer_folders() {
                let is_there = |path: &str| matches!(system.look(path), Object::Dir(_) | Object::Unjudgeable(_));
                let below = paths::below(&folder, real).filter(|rest| !rest.is_empty());
                if let Some(rest) = below.filter(|_| is_there(&folder)) {
                    if how.recursive || is_shown(system, real, &folder, how.writable)? {
                        found(joined(at, rest).trim_start_matches('/'), Shows::Own);
                    }
                } else if !at.is_empty() && paths::below(real, &folder).is_some() && is_there(real) {
                    found(at, Shows::Own);
                }
            }
        }
        Ok(())
    }

    /// A mount of type `cgroup` or `cgroup2`. In a cgroup namespace of the container's it begins at its own group; in
    /// version 1 runtimes bind that group. Without, version 2 shows all groups.
    pub(crate) fn whole(&mut self, setting: &Setting<'_>, index: usize, mount: &Node<'_>) -> Result<(), String> {
        let namespaces = setting.case.spec.path(&["linux", "namespaces"]).map(Node::items).unwrap_or_default();
        let own = namespaces.iter().any(|one| one.get("type").and_then(Node::as_str) == Some("cgroup"));
        if own || setting.sys_admin || is_read_only(mount) {
            return Ok(());
        }
        if setting.machine.system.filters_shown(USUAL)?.iter().any(String::is_empty) {
            self.0.push(Found { mount: Some(index), rest: String::new(), shows: Shows::Groups(USUAL.to_owned()) });
        }
        Ok(())
    }

    /// What must be added so that none of them can be written, and none of ours be read.
    pub(crate) fn judge(self, setting: &Setting<'_>, mounts: &[Node<'_>], out: &mut Findings) -> Vec<ReadOnly> {
        let Self(mut found) = self;
        let of = |found: &Found| found.mount.and_then(|index| mounts.get(index));
        found.retain(|one| !(one.rest.is_empty() && of(one).is_some_and(is_read_only)));
        contract::order::sort(&mut found);
        found.dedup();
        // Ours are hidden in any case: an id-mapped mount makes the machine's root of any user.
        if !can_write(setting.case.spec) {
            found.retain(is_own);
        }
        let Some(first) = found.first().map(|one| one.mount) else { return Vec::new() };
        if !setting.machine.filters() {
            return Vec::new();
        }
        let (mut all, mut standing) = (Vec::new(), Vec::new());
        for parts in found.chunk_by(|a, b| a.mount == b.mount) {
            let (index, mount) = parts.first().map_or((None, None), |part| (part.mount, of(part)));
            let at = index.map_or("/root/path".to_owned(), |index| format!("/mounts/{index}"));
            // What closes a part may hold another, which is closed behind it.
            if index.is_some_and(|index| standing.iter().any(|range: &Range<usize>| range.contains(&index))) {
                continue;
            }
            let ours = parts.iter().any(is_own);
            let groups = parts.iter().any(|part| matches!(part.shows, Shows::Groups(_)));
            let kernels = parts.iter().any(|part| matches!(part.shows, Shows::Kernels(_)));
            if is_shared(setting, mount) {
                out.refuse(shared(if groups { GROUPS } else { OWN }).at(at, ""));
                continue;
            }
            let place = mount.map_or(Some("/"), |mount| mount.get("destination").and_then(Node::as_str)).unwrap_or("/");
            let before = index.map_or(0, |index| index + 1);
            let wanted: Vec<_> = parts.iter().map(|part| part.under(place, before)).collect();
            if wanted.iter().any(|one| one.source.is_some() && is_at_dev(&one.destination)) {
                out.refuse(at_dev(if groups { GROUPS } else { KERNELS }).at(at, ""));
                continue;
            }
            if stand_there(&wanted, mounts.get(before..).unwrap_or_default()) {
                standing.push(before..before + wanted.len());
                continue;
            }
            if ours {
                out.note(OWN, at.as_str(), "the node's own record of who has which GPU is inside: hidden");
            }
            if groups {
                out.note(
                    GROUPS,
                    at.as_str(),
                    "the host's control groups with device filters are inside: shown read-only",
                );
            }
            if kernels {
                out.note(
                    KERNELS,
                    at,
                    "the host's kernel settings and devices are mounted inside: shown read-only as well",
                );
            }
            all.extend(wanted);
        }
        // What closes a part of the root shows that part again.
        let is_ours = |index: &usize| standing.iter().any(|range| range.contains(index));
        let later = mounts.iter().enumerate().skip(first.map_or(0, |index| index + 1));
        out.refusals.extend(
            later.filter(|(index, _)| !is_ours(index)).filter_map(|(index, mount)| undoing(setting, index, mount)),
        );
        all
    }
}

fn is_own(found: &Found) -> bool {
    found.shows == Shows::Own
}

/// Whether a bind that is not recursive shows a folder, or could be used to rename it: a mount of its own does not show, but its
/// place does.
fn is_shown(system: &dyn System, real: &str, folder: &str, writable: bool) -> Result<bool, String> {
    let place = folder.rsplit_once('/').map_or("", |(above, _)| above);
    Ok(!system.mounted_between(real, folder)? || writable && !system.mounted_between(real, place)?)
}

impl Found {
    fn under(&self, place: &str, before: usize) -> ReadOnly {
        let destination = joined(place, &self.rest);
        let source = match &self.shows {
            Shows::Groups(source) | Shows::Kernels(source) => Some(source.clone()),
            Shows::Own => None,
        };
        ReadOnly { before, source, destination }
    }
}

fn joined(folder: &str, rest: &str) -> String {
    if rest.is_empty() { folder.to_owned() } else { format!("{}/{rest}", folder.trim_end_matches('/')) }
}

fn options<'n>(mount: &'n Node<'_>) -> impl DoubleEndedIterator<Item = &'n str> {
    mount.get("options").map(Node::items).unwrap_or_default().iter().filter_map(Node::as_str)
}

/// Whether the mount itself, without those inside, is read-only. Older runtimes take no notice of `rro`.
fn is_read_only(mount: &Node<'_>) -> bool {
    let last = options(mount).rfind(|option| matches!(*option, "ro" | "rw"));
    last == Some("ro") && !options(mount).any(|option| option == "rrw") && !is_dev(mount)
}

/// Whether the container's root may be the machine's, whose files control groups are: not where a user namespace's ids are
/// all others.
pub(crate) fn can_write(spec: &Node<'_>) -> bool {
    let items = |path: &[&str]| spec.path(path).map(Node::items).unwrap_or_default();
    let user = items(&["linux", "namespaces"]).iter().any(|one| one.get("type").and_then(Node::as_str) == Some("user"));
    // What another's maps are the spec does not tell.
    let joins = items(&["linux", "namespaces"]).iter().any(|one| {
        one.get("type").and_then(Node::as_str) == Some("user")
            && one.get("path").and_then(Node::as_str).is_some_and(|path| !path.is_empty())
    });
    let maps = items(&["linux", "uidMappings"]);
    let is_root = |map: &Node<'_>| map.get("hostID").and_then(Node::as_i64).is_none_or(|id| id <= 0);
    !user || joins || maps.is_empty() || maps.iter().any(is_root)
}

/// Whether a mount made inside would show on the host, and cover its control groups there.
fn is_shared(setting: &Setting<'_>, mount: Option<&Node<'_>>) -> bool {
    let root = setting.case.spec.path(&["linux", "rootfsPropagation"]).and_then(Node::as_str);
    let apart = |option: &str| matches!(option, "rprivate" | "rslave" | "runbindable");
    let joins = |option: &str| matches!(option, "shared" | "rshared");
    let last = mount.and_then(|mount| options(mount).rfind(|option| apart(option) || joins(option)));
    root.is_some_and(joins) && !last.is_some_and(apart)
}

fn shared(rule: &'static str) -> Refusal {
    let message = "inside are the host's control groups or the node's own record of who has which GPU, and in a mount that \
        is shared with the host they cannot be closed for the container alone";
    Refusal::new(Code::UnsafeSpec, rule, message, "mount it rslave")
}

fn at_dev(rule: &'static str) -> Refusal {
    let message = "the host's control groups, kernel settings or devices would be mounted at /dev, where a read-only mount can be \
        written under youki";
    Refusal::new(Code::UnsafeSpec, rule, message, "mount it at another place")
}

/// Whether these mounts follow already, as when a spec is judged that was edited before.
fn stand_there(wanted: &[ReadOnly], mounts: &[Node<'_>]) -> bool {
    let is = |mount: &Node<'_>, key, text: &str| mount.get(key).and_then(Node::as_str) == Some(text);
    let same = |(one, mount): (&ReadOnly, &Node<'_>)| {
        let same = match &one.source {
            Some(source) => options(mount).any(|option| option == "rbind") && is(mount, "source", source),
            // An option of the tenant's may fill it, with what it should hide.
            None => is(mount, "type", "tmpfs") && options(mount).eq(HIDING),
        };
        same && (one.source.is_none() || is_read_only(mount)) && is(mount, "destination", &one.destination)
    };
    mounts.len() >= wanted.len() && wanted.iter().zip(mounts).all(same)
}

/// Later mounts can open them again: by changing one that is there, or by showing it again out of the
/// container's own root file system, where it is not yet to be judged.
fn undoing(setting: &Setting<'_>, index: usize, mount: &Node<'_>) -> Option<Refusal> {
    let at = |key: &str| format!("/mounts/{index}/{key}");
    if let Some(option) = options(mount).find(|option| *option == "rrw") {
        let message = "this option can make writable again what had to be closed in an earlier mount";
        let refusal = Refusal::new(Code::UnsafeSpec, GROUPS, message, "leave the option out");
        return Some(refusal.at(at("options"), option));
    }
    let kind = mount.get("type").and_then(Node::as_str);
    let bind = kind == Some("bind") || options(mount).any(|option| matches!(option, "bind" | "rbind"));
    let sources: Vec<Cow<'_, str>> = if bind {
        vec![mount.get("source").and_then(Node::as_str).unwrap_or_default().into()]
    } else if kind == Some("overlay") {
        options(mount).flat_map(layers::of).map(|(layer, _)| Cow::Owned(layer)).collect()
    } else {
        return None;
    };
    let behind = |path: &str| {
        let path = paths::from_bundle(setting.case.bundle, path);
        match setting.machine.system.look(&path) {
            Object::Dir(dir) => Some(dir.real),
            Object::Other { real, .. } => Some(real),
            Object::Missing => None,
            _ => Some(String::new()),
        }
    };
    let own = setting.case.spec.path(&["root", "path"]).and_then(Node::as_str).and_then(behind);
    let within = |real: String| own.as_ref().is_some_and(|own| own != "/" && paths::below(&real, own).is_some());
    sources.iter().find(|source| behind(source).is_none_or(within)).map(|source| {
        let message = "a part of an earlier mount had to be closed, and this source is only there once the container's \
            own mounts are, if at all";
        let help = "bind a path that exists on the host, outside the container's root file system";
        Refusal::new(Code::UnsafeSpec, "mount-unresolvable", message, help)
            .at(at(if bind { "source" } else { "options" }), source.as_ref())
    })
}
