//! A folder for one fixture: below parents that only root can write, on a file system where device
//! nodes and programs work, removed with everything in it.
//!
//! The usual temporary folders are out: their parent is writable for all, which the trust walk over
//! a configuration's parents refuses, and `/run` is often mounted `nodev`.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::mount::{MntFlags, umount2};
use nix::sys::statvfs::{FsFlags, statvfs};

use crate::error::{Context, Error, Result};

/// Parents tried in this order; `QUILT_TEST_SCRATCH` goes before them.
const PARENTS: [&str; 4] = ["/var/lib", "/srv", "/opt", "/run"];

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A folder of this process that is removed when the value is dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    kept: bool,
}

impl Scratch {
    /// Makes `<parent>/quilt-gpu-test-<pid>-<n>`, mode 0755.
    ///
    /// # Errors
    /// No parent is fit: the sentence says for each what is wrong.
    pub fn new() -> Result<Self> {
        let named = std::env::var_os("QUILT_TEST_SCRATCH").map(PathBuf::from);
        let mut reasons = Vec::new();
        for parent in named.into_iter().chain(PARENTS.map(PathBuf::from)) {
            match unfit(&parent) {
                None => return Self::under(&parent),
                Some(reason) => reasons.push(format!("{}: {reason}", parent.display())),
            }
        }
        Err(Error::new(format!(
            "no folder for fixtures; set QUILT_TEST_SCRATCH to one that only root can write ({})",
            reasons.join("; ")
        )))
    }

    fn under(parent: &Path) -> Result<Self> {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("quilt-gpu-test-{}-{n}", std::process::id()));
        DirBuilder::new().mode(0o755).create(&path).cannot(|| format!("create {}", path.display()))?;
        Ok(Self { path, kept: false })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in the folder.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// The folder, which the caller now removes.
    pub fn keep(mut self) -> PathBuf {
        self.kept = true;
        self.path.clone()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.kept {
            unmount_below(&self.path);
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// What keeps `parent` from carrying fixtures.
fn unfit(parent: &Path) -> Option<String> {
    for folder in parent.ancestors() {
        let facts = match fs::symlink_metadata(folder) {
            Ok(facts) if facts.is_dir() => facts,
            Ok(_) => return Some(format!("{} is no folder", folder.display())),
            Err(cause) => return Some(format!("{}: {cause}", folder.display())),
        };
        if facts.uid() != 0 || facts.mode() & 0o022 != 0 {
            return Some(format!("others than root can write {}", folder.display()));
        }
    }
    match statvfs(parent) {
        Ok(fs) if fs.flags().contains(FsFlags::ST_RDONLY) => Some("read-only".into()),
        Ok(fs) if fs.flags().contains(FsFlags::ST_NODEV) => Some("mounted nodev".into()),
        Ok(fs) if fs.flags().contains(FsFlags::ST_NOEXEC) => Some("mounted noexec".into()),
        Ok(_) => None,
        Err(cause) => Some(cause.to_string()),
    }
}

/// Detaches what a test left mounted, or the removal would walk into it.
fn unmount_below(folder: &Path) {
    let Ok(table) = fs::read_to_string("/proc/self/mountinfo") else {
        return;
    };
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let below: Vec<&Path> = points.map(Path::new).filter(|p| p.starts_with(folder)).collect();
    for point in below.iter().rev() {
        let _ = umount2(*point, MntFlags::MNT_DETACH);
    }
}
