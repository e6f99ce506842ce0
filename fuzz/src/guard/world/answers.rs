//! The guard's questions about the machine, answered by walking.

use guard::{Dir, FileSystem, Majors, Name, Object, System};

use super::{Entry, Kind, NVIDIA, Why, World, below, joined};

impl World {
    fn file_system(kind: Kind) -> FileSystem {
        match kind {
            Kind::Devices => FileSystem::Sysfs,
            Kind::Processes => FileSystem::Proc,
            Kind::Dev | Kind::Groups | Kind::Plain => FileSystem::Plain,
        }
    }

    /// Names that a part of a file system, seen at `rest` of a source, has below other mounts.
    fn names_of(&self, source: &str, rest: &str, recursive: bool, near: &dyn Fn(&str) -> bool) -> Vec<Name> {
        let at = joined(source, rest);
        let (of, part) = self.lies(&at);
        let name = |other: &super::Mount| {
            let (rest, real, lies) = if let Some(inside) = below(&part, &other.part) {
                (rest.to_owned(), joined(&other.point, inside), part.clone())
            } else {
                let inside = below(&other.part, &part)?;
                (joined(rest, inside), other.point.to_string(), other.part.to_string())
            };
            let is_seen = |path: &str| {
                let (mount, part) = self.lies(path);
                mount.home == of.home && part == lies
            };
            let place = joined(source, &rest);
            let told = real != place && near(&real) && is_seen(&real) && (!recursive || is_seen(&place));
            told.then(|| Name { rest: rest.trim_start_matches('/').to_owned(), real })
        };
        self.mounts.iter().filter(|other| other.home == of.home).filter_map(name).collect()
    }
}

impl System for World {
    fn look(&self, path: &str) -> Object {
        match self.walk(path) {
            Err(Why::Missing) => Object::Missing,
            Err(Why::Untold) => Object::Unjudgeable("nobody says".to_owned()),
            Ok((_, Entry::Char(major, minor))) => Object::Char { major: *major, minor: *minor },
            Ok((_, Entry::Block(major, minor))) => Object::Block { major: *major, minor: *minor },
            Ok((real, Entry::Dir)) => {
                let (mount, part) = self.lies(&real);
                let of_driver =
                    below(&part, self.dev_root).is_some() || (self.dev_root != "/dev" && part == "/run/nvidia/driver");
                Object::Dir(Dir {
                    is_root: part == "/",
                    on_dev: mount.kind == Kind::Dev,
                    is_dev: mount.kind == Kind::Dev && part == mount.home,
                    in_driver_root: of_driver,
                    fs: Self::file_system(mount.kind),
                    real,
                })
            }
            Ok((real, _)) => {
                let kind = self.lies(&real).0.kind;
                let kernels = matches!(kind, Kind::Groups | Kind::Devices | Kind::Processes);
                Object::Other { real, kernels, fs: Self::file_system(kind) }
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
        Ok(self.disks.to_vec())
    }

    fn same_file(&self, a: &str, b: &str) -> bool {
        a == b
    }

    fn drm_vendor(&self, minor: u32) -> Option<u32> {
        self.vendor(minor).flatten()
    }

    fn drm_minors(&self, end: u32) -> Vec<u32> {
        self.vendors.iter().map(|(minor, _)| *minor).filter(|minor| *minor < end).collect()
    }

    fn nodes_inside(&self, real: &str) -> Result<Vec<(u32, u32)>, String> {
        Ok(self.nodes_in(real))
    }

    fn tree_has_dev(&self, real: &str) -> Result<bool, String> {
        let shown = self.shown(real, true);
        let is_dev = shown.iter().any(|(_, mount, _)| mount.kind == Kind::Dev);
        Ok(is_dev || !self.places(real, true, &shown, self.dev_root).is_empty())
    }

    fn filters_shown(&self, real: &str) -> Result<Vec<String>, String> {
        if self.lies(real).0.kind == Kind::Groups {
            return Ok(vec![String::new()]);
        }
        let shown = self.mounts_in(real).filter(|(_, mount)| mount.kind == Kind::Groups);
        Ok(shown.map(|(rest, _)| rest.to_owned()).collect())
    }

    fn other_names(&self, real: &str, recursive: bool, near: &dyn Fn(&str) -> bool) -> Result<Vec<Name>, String> {
        let mut names = self.names_of(real, "", recursive, &|_| true);
        for (rest, _) in self.mounts_in(real).filter(|_| recursive) {
            names.extend(self.names_of(real, rest, recursive, near));
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn kernels_inside(&self, real: &str) -> Result<Vec<String>, String> {
        let kernels = |mount: &super::Mount| matches!(mount.kind, Kind::Devices | Kind::Processes);
        Ok(self.mounts_in(real).filter(|(_, mount)| kernels(mount)).map(|(rest, _)| rest.to_owned()).collect())
    }

    fn mounted_between(&self, folder: &str, inside: &str) -> Result<bool, String> {
        let way = below(inside, folder).unwrap_or_default();
        Ok(self.mounts_in(folder).any(|(rest, _)| below(way, rest).is_some()))
    }

    fn no_folder(&self, path: &str) -> bool {
        self.ends_in_no_folder(path)
    }

    fn initial_user_namespace(&self) -> bool {
        self.filters
    }
}

impl World {
    /// Whether something else than a folder is there, a link to one included.
    pub(in super::super) fn ends_in_no_folder(&self, path: &str) -> bool {
        let (folder, name) = path.rsplit_once('/').unwrap_or_default();
        let Ok((real, _)) = self.walk(if folder.is_empty() { "/" } else { folder }) else { return false };
        self.entry(&joined(&real, name)).is_some_and(|entry| *entry != Entry::Dir)
    }

    fn vendor(&self, minor: u32) -> Option<Option<u32>> {
        self.vendors.iter().find(|(known, _)| *known == minor).map(|(_, vendor)| *vendor)
    }

    /// Whether a number is a GPU's: NVIDIA's major, majors of drivers by name, DRM by vendor, and what reaches all.
    pub(in super::super) fn is_gpu(&self, major: u32, minor: u32) -> bool {
        let nvidia = |name: &str| name.starts_with("nvidia");
        let driver = || self.majors.iter().any(|(name, _)| nvidia(name));
        match major {
            195 => true,
            226 => self.vendor(minor).is_some_and(|vendor| vendor.map_or_else(driver, |vendor| vendor == NVIDIA)),
            1 => matches!(minor, 1 | 2 | 4),
            10 => minor == 196,
            4 | 5 | 136..=143 => false,
            other => {
                let is = |name: &str| nvidia(name) || ["vfio", "gdrdrv"].contains(&name);
                self.majors.iter().any(|(name, major)| *major == other && is(name))
            }
        }
    }

    /// Majors that may have GPUs.
    pub(in super::super) fn gpu_majors(&self) -> Vec<u32> {
        let mut majors: Vec<u32> = self.majors.iter().map(|(_, major)| *major).chain([1, 10, 195, 226]).collect();
        majors.sort_unstable();
        majors.dedup();
        majors
    }
}
