//! A made-up machine: files, links, nodes and mounts, and the guard's questions about it answered by walking.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use guard::{Dir, FileSystem, Majors, Name, Object, System};

use crate::choices::Choices;

/// Folders of ours.
pub(super) const OWN: &[&str] = &["/run/quilt-gpu", "/var/log/quilt-gpu", "/etc/quilt-gpu"];
pub(super) const BUNDLE: &str = "/run/engine/bundle";
const NVIDIA: u32 = 0x10de;
const LINKS: usize = 40;

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    Dir,
    File,
    Char(u32, u32),
    Block,
    Link(String),
    /// Whatever it is, nobody says.
    Silent,
}

/// What kind of file system is mounted at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mounted {
    /// The machine's one devtmpfs.
    Dev,
    /// Control groups with device filters.
    Groups,
    /// Anything else.
    Plain,
}

#[derive(Debug, Clone)]
pub(super) struct World {
    entries: BTreeMap<String, Entry>,
    mounts: BTreeMap<String, Mounted>,
    majors: Vec<(&'static str, u32)>,
    vendors: BTreeMap<u32, Option<u32>>,
    pub(super) dev_root: &'static str,
    pub(super) filters: bool,
}

const NODES: &[(&str, u32, u32)] = &[
    ("nvidia0", 195, 0),
    ("nvidia1", 195, 1),
    ("nvidiactl", 195, 255),
    ("nvidia-uvm", 511, 0),
    ("nvidia-caps/nvidia-cap1", 510, 1),
    ("vfio/vfio", 10, 196),
    ("dri/card0", 226, 0),
    ("dri/card1", 226, 1),
    ("dri/renderD128", 226, 128),
    ("char/195:0", 195, 0),
    ("mem", 1, 1),
    ("null", 1, 3),
    ("fuse", 10, 229),
    ("snd/controlC0", 116, 0),
    ("pts/0", 136, 0),
];
const MAJORS: &[(&str, u32)] = &[
    ("mem", 1),
    ("misc", 10),
    ("alsa", 116),
    ("nvidia", 195),
    ("drm", 226),
    ("nvidia-uvm", 511),
    ("nvidia-caps", 510),
];
const MOUNTS: &[(&str, Mounted)] = &[
    ("/dev", Mounted::Dev),
    ("/dev/shm", Mounted::Plain),
    ("/run", Mounted::Plain),
    ("/sys", Mounted::Plain),
    ("/sys/fs/cgroup", Mounted::Plain),
    ("/sys/fs/cgroup/devices", Mounted::Groups),
    ("/mnt/root/dev", Mounted::Dev),
    ("/mnt/dev", Mounted::Dev),
    ("/mnt/groups", Mounted::Groups),
];
const FILES: &[&str] = &["/etc/hosts", "/run/quilt-gpu/leases/x", "/sys/fs/cgroup/devices/tasks", "/home/user/file"];
const FOLDERS: &[&str] = &[
    "/home/user/sub",
    "/run/engine/bundle/rootfs",
    "/run/nvidia/driver/dev",
    "/var/log/quilt-gpu",
    "/etc/quilt-gpu",
    "/run/quilt-gpu",
    "/sys/fs/cgroup/devices/docker",
    "/mnt/groups",
    "/tmp",
    "/dev/shm",
];
const LINKED: &[(&str, &str)] =
    &[("/home/user/link", "/dev/nvidia1"), ("/home/user/dev", "../../dev"), ("/var/run", "../run")];
/// Where something more may lie.
const PARENTS: &[&str] = &[
    "/home/user",
    "/tmp",
    "/dev",
    "/dev/dri",
    "/home/user/sub",
    "/run/nvidia/driver/dev",
    "/run",
    "/dev/shm",
    "/",
    "/run/engine/bundle/rootfs",
];
const MORE: &[&str] = &["a", "b", "nvidia7", "c d", "e:f", "g,h", "i\\j"];
const ENDS: &[&str] = &[
    "/dev/nvidia0",
    "/dev",
    "/",
    "..",
    "/home/user/a",
    "b",
    "/run",
    "/nowhere",
    "/run/quilt-gpu",
    "/sys/fs/cgroup",
    "/tmp/a",
    "../dev/nvidiactl",
];

impl World {
    /// What is there in any case.
    fn usual() -> Self {
        let mut world = Self {
            entries: BTreeMap::from([("/".to_owned(), Entry::Dir)]),
            mounts: MOUNTS.iter().map(|(point, kind)| ((*point).to_owned(), *kind)).collect(),
            majors: MAJORS.to_vec(),
            vendors: BTreeMap::from([(0, Some(NVIDIA)), (128, Some(NVIDIA)), (1, Some(0x1002)), (9, None)]),
            dev_root: "/dev",
            filters: true,
        };
        for (name, major, minor) in NODES {
            for dev in ["/dev", "/mnt/root/dev", "/mnt/dev"] {
                world.put(&format!("{dev}/{name}"), Entry::Char(*major, *minor));
            }
        }
        world.put("/run/nvidia/driver/dev/nvidia0", Entry::Char(195, 0));
        FOLDERS.iter().for_each(|path| world.put(path, Entry::Dir));
        FILES.iter().for_each(|path| world.put(path, Entry::File));
        LINKED.iter().for_each(|(path, end)| world.put(path, Entry::Link((*end).to_owned())));
        world
    }

    pub(super) fn of(choices: &mut Choices<'_>) -> Self {
        static USUAL: LazyLock<World> = LazyLock::new(World::usual);
        let mut world = USUAL.clone();
        let odd = choices.byte();
        if odd & 7 == 7 {
            world.filters = false;
        }
        if odd & 8 != 0 {
            world.dev_root = "/run/nvidia/driver/dev";
        }
        if odd & 16 != 0 {
            world.majors.extend([("vfio", 509), ("gdrdrv", 508), ("nvidia-liar", 10)]);
        }
        if odd & 32 != 0 {
            world.majors.retain(|(name, _)| !name.starts_with("nvidia"));
        }
        for _ in 0..choices.below(5) {
            let path = format!("{}/{}", choices.of(PARENTS).trim_end_matches('/'), choices.of(MORE));
            let entry = match choices.below(6) {
                0 => Entry::Dir,
                1 => Entry::Char(*choices.of(&[195, 226, 511, 10, 1]), *choices.of(&[0, 1, 3, 9, 128, 196])),
                2 => Entry::Block,
                3 => Entry::Silent,
                _ => Entry::Link((*choices.of(ENDS)).to_owned()),
            };
            world.put(&path, entry);
        }
        world
    }

    fn put(&mut self, path: &str, entry: Entry) {
        if self.entries.contains_key(path) {
            return;
        }
        for (end, _) in path.match_indices('/').skip(1) {
            let parent = path.get(..end).unwrap_or("/");
            self.entries.entry(parent.to_owned()).or_insert(Entry::Dir);
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// All paths there are.
    pub(super) fn paths(&self) -> Vec<&str> {
        self.entries.keys().map(String::as_str).collect()
    }

    /// Walks a path as the kernel does: its real path and what is there.
    pub(super) fn walk(&self, path: &str) -> Result<(String, &Entry), Why> {
        let mut left: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
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
            match self.entries.get(&next).ok_or(Why::Missing)? {
                Entry::Link(end) => {
                    links += 1;
                    if links > LINKS {
                        return Err(Why::Untold);
                    }
                    if end.starts_with('/') {
                        real.clear();
                    }
                    left.extend(end.split('/').rev().map(str::to_owned));
                }
                Entry::Silent => return Err(Why::Untold),
                other => (real, entry) = (next, other),
            }
        }
        Ok((if real.is_empty() { "/".to_owned() } else { real }, entry))
    }

    /// The mount that a real path lies in.
    pub(super) fn mount_of(&self, real: &str) -> (&str, Mounted) {
        let within = self.mounts.iter().rev().find(|(point, _)| below(real, point).is_some());
        within.map_or(("/", Mounted::Plain), |(point, kind)| (point.as_str(), *kind))
    }

    /// Mounts that a folder shows below itself, without its own.
    pub(super) fn mounts_in(&self, folder: &str) -> impl Iterator<Item = (&str, Mounted)> {
        let inside = move |(point, _): &(&String, &Mounted)| below(point, folder).is_some_and(|rest| !rest.is_empty());
        self.mounts.iter().filter(inside).map(|(point, kind)| (point.as_str(), *kind))
    }

    /// Nodes in a folder, on the file system that it is on.
    pub(super) fn nodes_in(&self, folder: &str) -> Vec<(u32, u32)> {
        let home = self.mount_of(folder).0;
        let within = |(path, _): &(&String, &Entry)| below(path, folder).is_some() && self.mount_of(path).0 == home;
        let node = |(path, entry): (&String, &Entry)| match entry {
            Entry::Char(major, minor) => Some((*major, *minor)),
            // A link to a node counts as that node: harmless inside a container, and the guard says so.
            Entry::Link(_) => match self.walk(path) {
                Ok((_, Entry::Char(major, minor))) => Some((*major, *minor)),
                _ => None,
            },
            _ => None,
        };
        self.entries.iter().filter(within).filter_map(node).collect()
    }

    /// Whether a number is a GPU's: NVIDIA's major, majors of drivers by name, DRM by vendor, and what reaches all.
    pub(super) fn is_gpu(&self, major: u32, minor: u32) -> bool {
        let nvidia = |name: &str| name.starts_with("nvidia");
        let driver = self.majors.iter().any(|(name, _)| nvidia(name));
        match major {
            195 => true,
            226 => self.vendors.get(&minor).is_some_and(|vendor| vendor.map_or(driver, |vendor| vendor == NVIDIA)),
            1 => matches!(minor, 1 | 2 | 4),
            10 => minor == 196,
            4 | 5 | 136..=143 => false,
            other => self
                .majors
                .iter()
                .any(|(name, major)| *major == other && (nvidia(name) || ["vfio", "gdrdrv"].contains(name))),
        }
    }

    /// Majors that may have GPUs.
    pub(super) fn gpu_majors(&self) -> Vec<u32> {
        let mut majors: Vec<u32> = self.majors.iter().map(|(_, major)| *major).chain([1, 10, 195, 226]).collect();
        majors.sort_unstable();
        majors.dedup();
        majors
    }
}

/// Why a walk ends nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Missing,
    Untold,
}

/// What follows a folder in a path of it.
pub(super) fn below<'p>(path: &'p str, folder: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(folder.trim_end_matches('/'))?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
}

impl System for World {
    fn look(&self, path: &str) -> Object {
        match self.walk(path) {
            Err(Why::Missing) => Object::Missing,
            Err(Why::Untold) => Object::Unjudgeable("nobody says".to_owned()),
            Ok((_, Entry::Char(major, minor))) => Object::Char { major: *major, minor: *minor },
            Ok((_, Entry::Block)) => Object::Block { major: 8, minor: 0 },
            Ok((real, Entry::Dir)) => {
                let (point, kind) = self.mount_of(&real);
                let driver =
                    below(&real, self.dev_root).is_some() || (self.dev_root != "/dev" && real == "/run/nvidia/driver");
                Object::Dir(Dir {
                    is_root: real == "/",
                    on_dev: kind == Mounted::Dev,
                    is_dev: kind == Mounted::Dev && point == real,
                    in_driver_root: driver,
                    real,
                    fs: FileSystem::Plain,
                })
            }
            Ok((real, _)) => {
                let kernels = self.mount_of(&real).1 == Mounted::Groups;
                Object::Other { real, kernels, fs: FileSystem::Plain }
            }
        }
    }

    fn majors(&self) -> Result<Majors, String> {
        Ok(self.majors.iter().map(|(name, major)| ((*name).to_owned(), *major)).collect())
    }

    fn misc(&self) -> Result<Majors, String> {
        Ok(Majors::new())
    }

    fn disks(&self) -> Result<Vec<(u32, u32)>, String> {
        Ok(vec![(8, 0)])
    }

    fn same_file(&self, a: &str, b: &str) -> bool {
        a == b
    }

    fn drm_vendor(&self, minor: u32) -> Option<u32> {
        self.vendors.get(&minor).copied().flatten()
    }

    fn drm_minors(&self, end: u32) -> Vec<u32> {
        self.vendors.keys().copied().filter(|minor| *minor < end).collect()
    }

    fn nodes_inside(&self, real: &str) -> Result<Vec<(u32, u32)>, String> {
        Ok(self.nodes_in(real))
    }

    fn tree_has_dev(&self, real: &str) -> Result<bool, String> {
        let dev = self.mounts_in(real).any(|(_, kind)| kind == Mounted::Dev);
        Ok(dev || below(self.dev_root, real).is_some())
    }

    fn filters_shown(&self, real: &str) -> Result<Vec<String>, String> {
        if self.mount_of(real).1 == Mounted::Groups {
            return Ok(vec![String::new()]);
        }
        let shown = self.mounts_in(real).filter(|(_, kind)| *kind == Mounted::Groups);
        Ok(shown.filter_map(|(point, _)| below(point, real).map(str::to_owned)).collect())
    }

    fn other_names(&self, _real: &str, _recursive: bool, _near: &dyn Fn(&str) -> bool) -> Result<Vec<Name>, String> {
        Ok(Vec::new())
    }

    fn kernels_inside(&self, _real: &str) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    fn mounted_between(&self, folder: &str, inside: &str) -> Result<bool, String> {
        Ok(self.mounts_in(folder).any(|(point, _)| below(inside, point).is_some()))
    }

    fn no_folder(&self, _path: &str) -> bool {
        false
    }

    fn initial_user_namespace(&self) -> bool {
        self.filters
    }
}
