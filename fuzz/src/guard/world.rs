//! A made-up machine: files, links, nodes and mounts. A file system's things are called by where it was mounted first; another
//! mount shows a part of it at another place.

use std::borrow::Cow;
use std::collections::BTreeMap;

mod answers;
mod usual;

/// Folders of ours.
pub(super) const OWN: &[&str] = &["/run/quilt-gpu", "/var/log/quilt-gpu", "/etc/quilt-gpu"];
pub(super) const LOG: &str = "/var/log/quilt-gpu";
/// Programs that run as root.
pub(super) const PROGRAMS: &[&str] = &["/usr/bin/quilt-gpu-runtime", "/usr/libexec/helper"];
/// Folders whose files make engines inject devices.
pub(super) const CDI: &[&str] = &["/etc/cdi", "/run/cdi"];
pub(super) const BUNDLE: &str = "/run/engine/bundle";
const NVIDIA: u32 = 0x10de;
const LINKS: usize = 40;

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    Dir,
    File,
    Char(u32, u32),
    Block(u32, u32),
    Link(&'static str),
    /// Whatever it is, nobody says.
    Silent,
}

/// What kind of file system it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The machine's one devtmpfs.
    Dev,
    /// Control groups with device filters.
    Groups,
    /// sysfs.
    Devices,
    /// procfs.
    Processes,
    /// Anything else.
    Plain,
}

type Named = Cow<'static, str>;

#[derive(Debug, Clone)]
pub(super) struct Mount {
    point: Named,
    pub(super) kind: Kind,
    /// Where its file system was mounted first.
    pub(super) home: Named,
    /// What of it is shown, by the name that this has there.
    part: Named,
}

#[derive(Debug, Clone)]
pub(super) struct World {
    /// Besides what is usual.
    more: BTreeMap<Named, Entry>,
    mounts: Vec<Mount>,
    majors: Vec<(&'static str, u32)>,
    vendors: &'static [(u32, Option<u32>)],
    pub(super) disks: &'static [(u32, u32)],
    pub(super) dev_root: &'static str,
    pub(super) filters: bool,
}

/// What a mount source shows: where in the source, out of which mount, and which part of its file system.
pub(super) type Shown<'w> = (String, &'w Mount, String);

impl World {
    fn known(&self, name: &str) -> Option<&Entry> {
        self.more.get(name).or_else(|| usual::ENTRIES.get(name))
    }

    /// Puts something where nothing is, and folders on the way there.
    fn put(&mut self, path: &str, entry: Entry) {
        let Self { more, .. } = self;
        put(more, &|name| usual::ENTRIES.contains_key(name), path, entry);
    }

    /// All paths there are.
    pub(super) fn paths(&self) -> Vec<&str> {
        usual::ENTRIES.keys().chain(self.more.keys()).map(|path| &**path).collect()
    }

    /// The mount that a real path lies in.
    fn mount_of(&self, real: &str) -> &Mount {
        let within = self.mounts.iter().filter(|mount| below(real, &mount.point).is_some());
        within.max_by_key(|mount| mount.point.len()).unwrap_or_else(|| panic!("{real} lies nowhere"))
    }

    /// The file system that a part lies on by its first name: where that was mounted, and its kind.
    fn first_of(&self, part: &str) -> (&str, Kind) {
        let first = self.mounts.iter().filter(|mount| mount.home == mount.point && below(part, &mount.point).is_some());
        let first = first.max_by_key(|mount| mount.point.len());
        first.map_or(("/", Kind::Plain), |mount| (&*mount.home, mount.kind))
    }

    /// The mount that a real path lies in, and what is there by its first name.
    pub(super) fn lies(&self, real: &str) -> (&Mount, String) {
        let mount = self.mount_of(real);
        (mount, joined(&mount.part, below(real, &mount.point).unwrap_or_default()))
    }

    /// What is at a real path.
    fn entry(&self, real: &str) -> Option<&Entry> {
        let (mount, part) = self.lies(real);
        let (first, _) = self.first_of(&part);
        if first == mount.home {
            return self.known(&part);
        }
        // What is mounted there does not show, but the folder that it is mounted on.
        (part == first).then_some(&Entry::Dir)
    }

    /// Walks a path as the kernel does: its real path and what is there.
    pub(super) fn walk(&self, path: &str) -> Result<(String, &Entry), Why> {
        let mut left: Vec<&str> = path.split('/').rev().collect();
        let (mut real, mut entry, mut links) = (String::new(), &Entry::Dir, 0);
        while let Some(part) = left.pop() {
            if part.is_empty() || part == "." {
                continue;
            }
            if *entry != Entry::Dir {
                return Err(Why::Missing);
            }
            if part == ".." {
                real.truncate(real.rfind('/').unwrap_or(0));
                continue;
            }
            let next = format!("{real}/{part}");
            match self.entry(&next).ok_or(Why::Missing)? {
                Entry::Link(end) => {
                    links += 1;
                    if links > LINKS {
                        return Err(Why::Untold);
                    }
                    if end.starts_with('/') {
                        real.clear();
                    }
                    left.extend(end.split('/').rev());
                }
                Entry::Silent => return Err(Why::Untold),
                other => (real, entry) = (next, other),
            }
        }
        Ok((if real.is_empty() { "/".to_owned() } else { real }, entry))
    }

    /// Mounts below a folder, without its own: where they are in it.
    fn mounts_in<'w>(&'w self, folder: &'w str) -> impl Iterator<Item = (&'w str, &'w Mount)> {
        let rest = move |mount: &'w Mount| below(&mount.point, folder).filter(|rest| !rest.is_empty());
        self.mounts.iter().filter_map(move |mount| Some((rest(mount)?, mount)))
    }

    /// What a source shows, mounts inside included where it is recursive.
    pub(super) fn shown(&self, real: &str, recursive: bool) -> Vec<Shown<'_>> {
        let (mount, part) = self.lies(real);
        let inside = self.mounts.iter().filter(|_| recursive).filter_map(|mount| {
            let rest = below(&mount.point, real).filter(|rest| !rest.is_empty())?;
            Some((rest.to_owned(), mount, mount.part.to_string()))
        });
        [(String::new(), mount, part)].into_iter().chain(inside).collect()
    }

    /// Where a source shows something, which is called by its first name.
    pub(super) fn places(&self, real: &str, recursive: bool, shown: &[Shown<'_>], thing: &str) -> Vec<String> {
        let (home, _) = self.first_of(thing);
        let place = |(rest, mount, part): &Shown<'_>| {
            let inside = below(thing, part).filter(|_| mount.home == home)?;
            let place = joined(rest, inside).trim_start_matches('/').to_owned();
            let (seen, lies) = self.lies(&joined(real, &place));
            (!recursive || (seen.home == home && lies == thing)).then_some(place)
        };
        shown.iter().filter_map(place).collect()
    }

    /// Nodes in a folder, on the file system that it is on.
    pub(super) fn nodes_in(&self, folder: &str) -> Vec<(u32, u32)> {
        let (mount, part) = self.lies(folder);
        let within = |path: &str| below(path, &part).is_some() && self.first_of(path).0 == mount.home;
        let node = |(path, entry): (&Named, &Entry)| match entry {
            Entry::Char(major, minor) if within(path) => Some((*major, *minor)),
            // A link to a node counts as that node: harmless inside a container, and the guard says so.
            Entry::Link(_) if within(path) => match self.walk(path) {
                Ok((_, Entry::Char(major, minor))) => Some((*major, *minor)),
                _ => None,
            },
            _ => None,
        };
        usual::ENTRIES.iter().chain(&self.more).filter_map(node).collect()
    }
}

/// Puts something where nothing is, and folders on the way there.
fn put(entries: &mut BTreeMap<Named, Entry>, is_known: &dyn Fn(&str) -> bool, path: &str, entry: Entry) {
    if is_known(path) || entries.contains_key(path) {
        return;
    }
    let above = path.match_indices('/').map(|(end, _)| path.get(..end.max(1)).unwrap_or("/"));
    for folder in above.filter(|folder| !is_known(folder)) {
        entries.entry(folder.to_owned().into()).or_insert(Entry::Dir);
    }
    entries.insert(path.to_owned().into(), entry);
}

/// Why a walk ends nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Missing,
    Untold,
}

/// What follows a folder in a path of it.
pub(super) fn below<'p>(path: &'p str, folder: &str) -> Option<&'p str> {
    let folder = if folder == "/" { "" } else { folder };
    // Most are told apart by one letter.
    let rest = path.get(folder.len()..).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
    path.starts_with(folder).then(|| rest.get(1..).unwrap_or_default())
}

pub(super) fn joined(folder: &str, rest: &str) -> String {
    if rest.is_empty() { folder.to_owned() } else { format!("{}/{rest}", folder.trim_end_matches('/')) }
}
