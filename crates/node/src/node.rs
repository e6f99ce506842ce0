//! The machine as the guard sees it: [`guard::System`] on a real node.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use contract::config::Host;
use guard::{Dir, Majors, Name, Object, System};
use nix::sys::stat::{SFlag, lstat, stat};

use crate::error::NodeError;
use crate::file_system::Mounted;
use crate::landmarks::{Landmarks, is_within};
use crate::look::{self, Blind, MAGIC, Seen};
use crate::mountinfo::Table;
use crate::{cgroup, devices, disks, file, names, pci, process};

/// Character major of DRM nodes (`admin-guide/devices.txt`).
const DRM: u32 = 226;

/// The live node. Mount sources are looked at on the real root, as the low-level runtime does; the node's own files
/// below the configured host root.
#[derive(Debug)]
pub struct Node {
    host: Host,
    landmarks: OnceLock<Landmarks>,
    hierarchies: OnceLock<Result<Vec<String>, String>>,
    mounted: Mounted,
    /// Milliseconds that slow paths were waited for, together.
    waited: AtomicU64,
    /// sysfs names no devices: it tells no vendors either.
    no_drm: AtomicBool,
}

impl Node {
    /// The mounts that we see, as they were when they were first needed.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn mounts(&self) -> Result<&Table, String> {
        self.mounted.table()
    }

    /// Looks at nothing yet.
    #[must_use]
    pub fn new(host: &Host) -> Self {
        Self {
            host: host.clone(),
            landmarks: OnceLock::new(),
            hierarchies: OnceLock::new(),
            mounted: Mounted::default(),
            waited: AtomicU64::new(0),
            no_drm: AtomicBool::new(false),
        }
    }

    fn landmarks(&self) -> &Landmarks {
        self.landmarks.get_or_init(|| Landmarks::of(&self.host))
    }

    fn slowly(&self, path: &str) -> Result<Seen, Blind> {
        let waited = self.waited.load(Ordering::Relaxed);
        let Some(limit) = look::limit(waited) else {
            return Err(Blind::Because("it was not waited for: others answered too late, or not at all".to_owned()));
        };
        let begun = Instant::now();
        let told = look::in_child(path, limit);
        // Who gives no answer has used up everybody's time.
        let took = told.as_ref().map_or(u64::MAX, |_| u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        self.waited.store(waited.saturating_add(took), Ordering::Relaxed);
        told.unwrap_or_else(|why| Err(Blind::Because(why)))
    }

    fn object(&self, seen: Seen) -> Object {
        if file::is(seen.stat.mode, SFlag::S_IFCHR) {
            let (major, minor) = seen.stat.rdev;
            return Object::Char { major, minor };
        }
        if seen.by_magic {
            return Object::Unjudgeable(MAGIC.to_owned());
        }
        if file::is(seen.stat.mode, SFlag::S_IFBLK) {
            let (major, minor) = seen.stat.rdev;
            return Object::Block { major, minor };
        }
        let fs = match self.mounted.of(seen.stat.id.0, &seen.real) {
            Ok(fs) => fs,
            Err(why) => return Object::Unjudgeable(why),
        };
        if file::is(seen.stat.mode, SFlag::S_IFDIR) {
            return Object::Dir(Dir { fs, ..self.landmarks().folder(seen.stat.id, seen.real) });
        }
        let regular = file::is(seen.stat.mode, SFlag::S_IFREG);
        Object::Other { real: seen.real, kernels: regular && seen.stat.size == 0 && seen.stat.id.0.0 == 0, fs }
    }
}

impl System for Node {
    fn look(&self, path: &str) -> Object {
        match look::at_once(path).unwrap_or_else(|| self.slowly(path)) {
            Ok(seen) => self.object(seen),
            Err(Blind::Missing) => Object::Missing,
            Err(Blind::Because(why)) => Object::Unjudgeable(why),
        }
    }

    fn majors(&self) -> Result<Majors, String> {
        let bytes = file::read(&self.host.path("proc/devices")).map_err(|e| e.to_string())?;
        Ok(devices::majors(&bytes))
    }

    fn misc(&self) -> Result<Majors, String> {
        let path = self.host.path("proc/misc");
        match std::fs::read(&path) {
            Ok(bytes) => Ok(devices::misc(&bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Majors::new()),
            Err(error) => Err(NodeError::new("read", path, error).to_string()),
        }
    }

    fn disks(&self) -> Result<Vec<(u32, u32)>, String> {
        Ok(disks::of(&self.mounted.table()?.mounts(), &self.host.path("sys/dev/block")))
    }

    fn same_file(&self, a: &str, b: &str) -> bool {
        let id = |path: &str| stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino));
        id(a).is_some_and(|a| id(b) == Some(a))
    }

    fn drm_vendor(&self, minor: u32) -> Option<u32> {
        if self.no_drm.load(Ordering::Relaxed) {
            return None;
        }
        pci::hexadecimal(&self.host.path(&format!("sys/dev/char/{DRM}:{minor}/device")), "vendor").ok().flatten()
    }

    fn drm_minors(&self, end: u32) -> Vec<u32> {
        // Not to be told, so any.
        devices::drm_minors(&self.host.path("sys/dev/char")).unwrap_or_else(|| {
            self.no_drm.store(true, Ordering::Relaxed);
            (0..end).collect()
        })
    }

    fn nodes_inside(&self, real: &str) -> Result<Vec<(u32, u32)>, String> {
        devices::inside(real)
    }

    fn tree_has_dev(&self, real: &str) -> Result<bool, String> {
        Ok(self.landmarks().are_in(&self.mounted.table()?.mounts(), real))
    }

    fn filters_shown(&self, real: &str) -> Result<Vec<String>, String> {
        let points = self.hierarchies.get_or_init(|| self.mounted.table().map(cgroup::filters_mounted));
        let shown = |point: &String| match point.strip_prefix(real.trim_end_matches('/')) {
            _ if is_within(real, point) => Some(String::new()),
            Some(rest) => rest.strip_prefix('/').map(str::to_owned),
            None => None,
        };
        points.as_ref().map(|points| points.iter().filter_map(shown).collect()).map_err(String::clone)
    }

    fn other_names(&self, real: &str, recursive: bool, near: &dyn Fn(&str) -> bool) -> Result<Vec<Name>, String> {
        Ok(names::others(&self.mounted.table()?.mounts(), real, recursive, near))
    }

    fn kernels_inside(&self, real: &str) -> Result<Vec<String>, String> {
        Ok(names::kernels_inside(&self.mounted.table()?.mounts(), real))
    }

    fn mounted_between(&self, folder: &str, inside: &str) -> Result<bool, String> {
        let between = |point: &str| is_within(inside, point) && is_within(point, folder) && !is_within(folder, point);
        Ok(self.mounted.table()?.mounts().iter().any(|mount| between(&mount.point)))
    }

    fn no_folder(&self, path: &str) -> bool {
        lstat(path).is_ok_and(|stat| !file::is(stat.st_mode, SFlag::S_IFDIR))
    }

    fn initial_user_namespace(&self) -> bool {
        process::in_first_user_namespace()
    }
}
