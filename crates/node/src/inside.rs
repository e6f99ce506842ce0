//! What a created container sees: its mount table, and what really lies at the places that the table names.
//!
//! Places are looked at through handles on its root, never by a path of ours. Nothing in it is opened but empty folders.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use contract::inventory::FileId;
use nix::fcntl::readlink;
use nix::sys::stat::{FileStat, SFlag, fstat, stat};
use nix::sys::statvfs::{FsFlags, fstatvfs};

use crate::error::NodeError;
use crate::in_root::InRoot;
use crate::landmarks::{is_within, part};
use crate::look::PATIENCE;
use crate::mountinfo::{Mount, Table};
use crate::{devices, file, names, sys};

/// File systems that answer by themselves; another one may be a server's that is dead.
const OWN_ANSWER: [&str; 16] = [
    "tmpfs",
    "ext4",
    "xfs",
    "btrfs",
    "proc",
    "sysfs",
    "devpts",
    "devtmpfs",
    "mqueue",
    "cgroup",
    "cgroup2",
    "ext3",
    "ext2",
    "overlay",
    "hugetlbfs",
    "securityfs",
];
/// File systems whose nodes are no devices of the host's.
const WITHOUT_NODES: [&str; 6] = ["proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2"];
/// What masks a file: `/dev/null`.
const NULL: (u32, u32) = (1, 3);
/// What crun masks a folder with, below its own state root.
const EMPTY: &str = "/.empty-directory";

/// A character device at a mount point, and its number.
pub type NodeAt<'p> = (&'p str, (u32, u32));

/// What a container has at one of its paths.
#[derive(Debug, PartialEq, Eq)]
pub enum At<'m> {
    /// Nothing, or something of its root file system.
    Root,
    /// Something inside another mount.
    Within,
    /// A mount: device of the file system, and the part of it that is shown.
    Mount((u32, u32), &'m str),
}

/// A container's mounts, and its root.
#[derive(Debug)]
pub struct Inside<'t> {
    mounts: Vec<Mount<'t>>,
    /// Of its mount namespace: mount points start here.
    namespace: InRoot,
    /// Of the container: its own paths start here.
    root: InRoot,
    /// Where the kernel says that the namespace's root is. Not `/` where an engine itself lives in a `chroot(2)` (snaps do):
    /// links of descriptors then tell what lies above, and the mount table does not.
    above: String,
}

impl<'t> Inside<'t> {
    /// Of the process whose mounts these are. `base`: where its root file system is seen from it.
    ///
    /// # Errors
    /// The process is gone, or may not be looked at.
    pub fn of(table: &'t Table, pid: u32, base: &Path) -> Result<Self, NodeError> {
        let path = format!("/proc/{pid}/root");
        let root = InRoot::open(Path::new(&format!("{path}/{}", base.display())))?;
        let namespace = InRoot::open(Path::new(&path))?;
        let above = link(namespace.handle()).unwrap_or_default();
        let base = base.to_string_lossy();
        let mut mounts = table.mounts();
        mounts.retain(|mount| is_within(&mount.point, &base));
        Ok(Self { mounts, namespace, root, above: above.trim_end_matches('/').to_owned() })
    }

    /// Its root.
    #[must_use]
    pub fn root(&self) -> &InRoot {
        &self.root
    }

    /// What its root file system is: device of the file system, and the part of it that is shown.
    #[must_use]
    pub fn root_part(&self) -> Option<((u32, u32), &str)> {
        self.mount_of(self.root.handle()).map(|mount| (mount.dev, &*mount.root))
    }

    /// Whether the working folder of a process lies on one of these mounts.
    ///
    /// # Errors
    /// It is gone.
    pub fn has_at_work(&self, pid: u32) -> Result<bool, NodeError> {
        let folder = InRoot::open(Path::new(&format!("/proc/{pid}/cwd")))?;
        Ok(self.mount_of(folder.handle()).is_some())
    }

    /// Mount points that are character devices and could be opened, and their numbers.
    ///
    /// # Errors
    /// A place cannot be looked at.
    pub fn nodes(&self) -> Result<Vec<NodeAt<'_>>, NodeError> {
        let mut nodes = Vec::new();
        for mount in self.mounts.iter().filter(|mount| may_be_a_node(mount)) {
            let Some(stat) = self.answer_of(&mount.point)? else { continue };
            if file::is(stat.st_mode, SFlag::S_IFCHR) {
                nodes.push((mount.point.as_ref(), devices::numbers(stat.st_rdev)));
            }
        }
        Ok(nodes)
    }

    /// Mount points that are folders of the host's `/dev`, and could be used to open what is there.
    ///
    /// # Errors
    /// A place cannot be looked at.
    pub fn folders_of_dev(&self) -> Result<Vec<&str>, NodeError> {
        let id = |path: &str| stat(path).ok().map(|stat| stat.st_dev);
        let dev = id("/dev").filter(|dev| id("/") != Some(*dev)).map(devices::numbers);
        let mut folders = Vec::new();
        for mount in &self.mounts {
            let is_dev = mount.fs == "devtmpfs" || Some(mount.dev) == dev;
            if is_dev && !mount.has("nodev") && self.is_folder(&mount.point)? {
                folders.push(mount.point.as_ref());
            }
        }
        Ok(folders)
    }

    /// What a mount point is; nothing where nobody can come to it any more, as its server is dead.
    fn answer_of(&self, point: &str) -> Result<Option<FileStat>, NodeError> {
        match self.namespace.find(point).and_then(|handle| handle.map(|handle| stat_of(&handle)).transpose()) {
            Err(error) if error.is_dead() => Ok(None),
            told => told,
        }
    }

    fn is_folder(&self, point: &str) -> Result<bool, NodeError> {
        let handle = self.namespace.find(point)?;
        handle.map_or(Ok(false), |handle| stat_of(&handle).map(|stat| file::is(stat.st_mode, SFlag::S_IFDIR)))
    }

    /// A place where one of these folders of the host is seen, or something in it. Folders by absolute paths without links,
    /// and as these, our own, mounts have them.
    ///
    /// # Errors
    /// A place cannot be looked at.
    pub fn shows(&self, folders: &[String], own: &Table) -> Result<Option<String>, NodeError> {
        let own = own.mounts();
        for folder in folders {
            // One that is not there is nowhere.
            let Some((dev, path)) = part(&own, folder).filter(|_| Path::new(folder).exists()) else { continue };
            for mount in self.mounts.iter().filter(|mount| mount.dev == dev) {
                let (place, host) = if is_within(&path, &mount.root) {
                    let rest = path.get(mount.root.trim_end_matches('/').len()..).unwrap_or_default();
                    (format!("{}{rest}", mount.point.trim_end_matches('/')), folder.clone())
                } else if is_within(&mount.root, &path) {
                    let rest = mount.root.get(path.trim_end_matches('/').len()..).unwrap_or_default();
                    (mount.point.to_string(), format!("{folder}{rest}"))
                } else {
                    continue;
                };
                if self.is_seen(&place, &host)? {
                    return Ok(Some(place));
                }
            }
        }
        Ok(None)
    }

    /// Whether what the container has at a place is what lies at a path of ours.
    fn is_seen(&self, place: &str, host: &str) -> Result<bool, NodeError> {
        let Some(handle) = self.namespace.find(place)? else { return Ok(false) };
        let Some(FileId { dev, ino, .. }) = crate::error::found(file::file_id(Path::new(host)))? else {
            return Ok(false);
        };
        let seen = stat_of(&handle)?;
        Ok((seen.st_dev, seen.st_ino) == (dev, ino))
    }

    /// Whether a path of the container's leads to a place at or below which a mount point lies.
    #[must_use]
    pub fn holds(&self, path: &str, point: &str) -> bool {
        let real = self.root.find(path).ok().flatten().and_then(|handle| self.real(&handle));
        real.is_some_and(|real| is_within(point, &real))
    }

    /// What is at a path of the container's.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn at(&self, path: &str) -> Result<At<'_>, NodeError> {
        let Some(handle) = self.root.find(path)? else { return Ok(At::Root) };
        let Some(mount) = self.mount_of(&handle) else { return Ok(At::Within) };
        let is_root = self.mount_of(self.root.handle()).is_some_and(|root| root.id == mount.id);
        Ok(match self.real(&handle) {
            _ if is_root => At::Root,
            Some(real) if real == mount.point => At::Mount(mount.dev, &mount.root),
            _ => At::Within,
        })
    }

    /// Why a path is not masked, as `maskedPaths` wants it: a file by the host's `/dev/null`, a folder by an empty one that
    /// nobody can write. Nothing where nothing is.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn unmasked(&self, path: &str) -> Result<Option<&'static str>, NodeError> {
        let Some(handle) = self.root.find(path)? else { return Ok(None) };
        let stat = stat_of(&handle)?;
        if file::is(stat.st_mode, SFlag::S_IFCHR) {
            let is_null = devices::numbers(stat.st_rdev) == NULL;
            return Ok((!is_null).then_some("it is covered by another device than /dev/null"));
        }
        if !file::is(stat.st_mode, SFlag::S_IFDIR) {
            return Ok(Some("it is not covered by /dev/null"));
        }
        let mount = self.mount_of(&handle).filter(|mount| self.real(&handle).as_deref() == Some(&mount.point));
        let Some(mount) = mount.filter(|mount| mount.fs == "tmpfs" || mount.root.ends_with(EMPTY)) else {
            return Ok(Some("it is not covered by an empty folder"));
        };
        if !mount.has("ro") {
            return Ok(Some("the folder that covers it can be written"));
        }
        let mut entries = std::fs::read_dir(itself(&handle)).map_err(|e| NodeError::new("list", path, e))?;
        Ok(entries.next().map(|_| "the folder that covers it is not empty"))
    }

    /// Whether a path can be written, or what is mounted there could be.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn is_writable(&self, path: &str) -> Result<bool, NodeError> {
        let Some(handle) = self.root.find(path)? else { return Ok(false) };
        let seen = fstatvfs(&handle).map_err(|e| NodeError::new("look at", path, e))?;
        Ok(!seen.flags().contains(FsFlags::ST_RDONLY))
    }

    /// Where something is, as the mount table names it.
    fn real(&self, handle: &OwnedFd) -> Option<String> {
        let path = link(handle)?;
        let rest = path.strip_prefix(&self.above).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
        Some(if rest.is_empty() { "/" } else { rest }.to_owned())
    }

    /// The mount that something lies on.
    fn mount_of(&self, handle: &OwnedFd) -> Option<&Mount<'t>> {
        let info = file::read(&format!("/proc/self/fdinfo/{}", handle.as_raw_fd())).ok()?;
        let info = String::from_utf8_lossy(&info);
        let id: u32 = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()?;
        self.mounts.iter().find(|mount| mount.id == id)
    }
}

impl Table {
    /// What a part of a file system is called here.
    #[must_use]
    pub fn names_of(&self, dev: (u32, u32), path: &str) -> Vec<String> {
        names::of_part(&self.mounts(), dev, path)
    }

    /// Does some work that looks at what these mounts show: in a child process with a limited time where one of them may
    /// never answer.
    ///
    /// # Errors
    /// No answer came in time.
    pub fn patiently(&self, work: impl FnOnce() -> String) -> Result<String, NodeError> {
        if self.mounts().iter().all(|mount| OWN_ANSWER.contains(&mount.fs)) {
            return Ok(work());
        }
        let answer =
            sys::in_child(PATIENCE, work).map_err(|e| NodeError::new("start a process to look at", "mounts", e))?;
        answer.ok_or_else(|| NodeError::odd("look at", "the container's mounts", "no answer in time"))
    }
}

/// Whether a mount point can be a device that opens. The top of a whole file system is a folder, but where its server says what
/// it is (`rootmode` of FUSE): such mounts need no look, and theirs is the server that may not answer.
fn may_be_a_node(mount: &Mount<'_>) -> bool {
    let is_folder = mount.root == "/" && !mount.fs.starts_with("fuse");
    !is_folder && !mount.has("nodev") && !WITHOUT_NODES.contains(&mount.fs)
}

fn stat_of(handle: &OwnedFd) -> Result<FileStat, NodeError> {
    fstat(handle).map_err(|e| NodeError::new("look at", "a place in the container", e))
}

fn itself(handle: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}

/// Where something is, as the kernel names it for us.
fn link(handle: &OwnedFd) -> Option<String> {
    readlink(itself(handle).as_str()).ok()?.into_string().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    use nix::unistd::{chroot, gettid};

    use super::*;

    /// This process's own mounts, looked at as if they were a container's.
    fn look<T>(base: &str, at: impl FnOnce(&Inside<'_>) -> T) -> T {
        let table = crate::mountinfo::own().unwrap();
        at(&Inside::of(&table, std::process::id(), Path::new(base)).unwrap())
    }

    #[test]
    fn what_is_not_masked_is_told() {
        look("/", |inside| {
            assert_eq!(inside.unmasked("/dev/null").unwrap(), None);
            assert_eq!(inside.unmasked("/nowhere/at-all").unwrap(), None);
            for path in ["/etc/passwd", "/etc", "/dev/zero", "/proc"] {
                assert!(inside.unmasked(path).unwrap().is_some(), "{path}");
            }
            assert!(!inside.is_writable("/nowhere/at-all").unwrap());
        });
    }

    #[test]
    fn what_masks_is_known_below_the_root_that_an_engine_lives_in() {
        if !nix::unistd::geteuid().is_root() {
            return println!("skipped: mounts need root");
        }
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().to_owned();
        let ((tell, told), (end, ended)) = (mpsc::channel(), mpsc::channel::<()>());
        let engine = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
            mount(Some("/"), &at, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
            mount(Some("x"), &at.join("mnt"), Some("tmpfs"), MsFlags::MS_RDONLY, None::<&str>).unwrap();
            chroot(&at).unwrap();
            tell.send(gettid().as_raw().unsigned_abs()).unwrap();
            ended.recv().unwrap_err();
        });
        let pid = told.recv().unwrap();
        let table = crate::mountinfo::of(pid).unwrap();
        let inside = Inside::of(&table, pid, Path::new("/")).unwrap();
        assert_eq!(inside.unmasked("/mnt").unwrap(), None);
        assert!(inside.unmasked("/etc").unwrap().is_some());
        assert!(inside.holds("/mnt", "/mnt") && !inside.holds("/etc", "/mnt"));
        drop(end);
        engine.join().unwrap();
    }

    #[test]
    fn a_folder_is_found_where_it_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().to_str().unwrap().to_owned();
        let own = crate::mountinfo::own().unwrap();
        look("/", |inside| {
            assert_eq!(inside.shows(std::slice::from_ref(&path), &own).unwrap(), Some(path.clone()));
            assert_eq!(inside.shows(&[format!("{path}/none")], &own).unwrap(), None);
            assert!(inside.holds("/dev/..", "/anything"));
            assert!(!inside.holds("/dev", "/devices"));
        });
        // Of a root below it nothing above is seen.
        look(&format!("{path}/../"), |inside| assert_eq!(inside.mounts.len(), 0));
    }

    #[test]
    fn the_hosts_dev_is_a_folder_of_dev() {
        let table = crate::mountinfo::own().unwrap();
        if !table.mounts().iter().any(|mount| mount.point == "/dev" && mount.fs == "devtmpfs") {
            return println!("skipped: /dev is no devtmpfs here");
        }
        look("/", |inside| {
            assert!(inside.folders_of_dev().unwrap().contains(&"/dev"));
            assert_eq!(inside.nodes().unwrap().iter().filter(|(_, number)| number.0 == 195).count(), 0);
        });
        look("/proc", |inside| assert_eq!(inside.folders_of_dev().unwrap(), Vec::<&str>::new()));
    }

    #[test]
    fn a_slow_file_system_is_looked_at_by_a_child() {
        let table = |fs: &str| Table::from(format!("1 0 0:1 / / rw - {fs} x rw\n").into_bytes());
        let me = || std::process::id().to_string();
        assert_eq!(table("ext4").patiently(me).unwrap(), me());
        assert_ne!(table("fuse.x").patiently(me).unwrap(), me());
    }
}
