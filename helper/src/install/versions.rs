//! The programs on a node: a folder for each version, and a link to the one that counts, which is what engines are
//! told.
//!
//! A folder is filled before the link leads to it, and the link is replaced by a rename: whoever starts a container in
//! between gets the old programs or the new ones. Nothing here knows engines or containers.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use node::{Mode, write_atomic};

use crate::configure::{Files, OnNode};
use crate::exit::Failure;

/// What is installed together.
pub(super) const PROGRAMS: [&str; 3] = ["quilt-gpu-runtime", "quilt-gpu-hook", "quilt-gpu"];
/// The link to the version that counts.
pub(super) const CURRENT: &str = "current";
const VERSIONS: &str = "versions";
/// What the new link is before it takes the old one's place.
const NEXT: &str = ".current.next";

/// Programs as they are to be installed.
pub(super) struct Programs {
    /// Their version: this program's, and what tells two builds of it apart.
    pub(super) id: String,
    files: Vec<(&'static str, Vec<u8>)>,
}

impl Programs {
    /// Reads them from a folder.
    ///
    /// # Errors
    /// One is not there.
    pub(super) fn read(folder: &Path) -> Result<Self, Failure> {
        let mut files = Vec::new();
        let mut digests = String::new();
        for name in PROGRAMS {
            let path = folder.join(name);
            let bytes = fs::read(&path).map_err(|cause| {
                let why = "say with --from DIR where quilt-gpu, quilt-gpu-runtime and quilt-gpu-hook are";
                Failure::Usage(format!("cannot read {}: {cause}; {why}", path.display()))
            })?;
            digests.push_str(&contract::key::sha256(&bytes));
            files.push((name, bytes));
        }
        let build = contract::key::sha256(digests.as_bytes());
        let build = build.get(..12).unwrap_or_default().to_owned();
        Ok(Self { id: format!("{}-{build}", env!("CARGO_PKG_VERSION")), files })
    }

    /// Their bytes.
    pub(super) fn size(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }
}

/// Where versions are, below a prefix on a node.
pub(super) struct Shelf<'a> {
    pub(super) node: &'a OnNode,
    pub(super) prefix: &'a str,
}

impl Shelf<'_> {
    /// A program by the link, as an engine is told.
    pub(super) fn program(&self, name: &str) -> String {
        format!("{}/{CURRENT}/{name}", self.prefix)
    }

    /// The folder of a version, as a running spec names it.
    pub(super) fn folder(&self, id: &str) -> String {
        format!("{}/{VERSIONS}/{id}", self.prefix)
    }

    /// Whether a version is there, whole and unchanged.
    pub(super) fn has(&self, programs: &Programs) -> bool {
        let Some(folder) = self.node.real(&self.folder(&programs.id)).ok().flatten() else { return false };
        programs.files.iter().all(|(name, bytes)| is_program(&folder.join(name), bytes))
    }

    /// Puts a version there, or mends one that is not whole.
    ///
    /// # Errors
    /// It cannot be written, or others than root could exchange it.
    pub(super) fn put(&self, programs: &Programs) -> Result<(), Failure> {
        let folder = self.node.make_folder(&self.folder(&programs.id))?;
        let paths: Vec<String> = PROGRAMS.iter().map(|name| folder.join(name).display().to_string()).collect();
        let root = self.node.root().display().to_string();
        if let Some(why) = node::exchangeable(paths.iter().map(String::as_str), &root) {
            return Err(Failure::Wrong(format!("{why}: engines run what lies there as root; use another --prefix")));
        }
        // What a call that was killed left.
        let names = self.node.names(&self.folder(&programs.id)).into_iter();
        for name in names.filter(|name| !PROGRAMS.contains(&name.as_str())) {
            self.node.remove(&format!("{}/{name}", self.folder(&programs.id)), &[])?;
        }
        for (name, bytes) in &programs.files {
            let path = folder.join(name);
            if !is_program(&path, bytes) {
                let cannot = |cause| Failure::Internal(format!("cannot write {}: {cause}", path.display()));
                write_atomic(&path, bytes, Mode::root(0o755), true).map_err(cannot)?;
            }
        }
        Ok(())
    }

    /// The version that the link leads to.
    ///
    /// # Errors
    /// Something else than a link of ours is in its place.
    pub(super) fn current(&self) -> Result<Option<String>, Failure> {
        let Some(prefix) = self.real()? else { return Ok(None) };
        let link = prefix.join(CURRENT);
        let foreign = || Failure::Wrong(format!("{} is not a link to a version of ours; move it away", link.display()));
        match fs::read_link(&link) {
            Ok(target) => {
                let id = target.strip_prefix(VERSIONS).ok().and_then(Path::to_str).map(str::to_owned);
                id.filter(|id| !id.contains('/')).map(Some).ok_or_else(foreign)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(_) => Err(foreign()),
        }
    }

    /// Has the link lead to a version.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn point(&self, id: &str) -> Result<(), Failure> {
        let prefix = self.real()?.ok_or_else(|| Failure::Internal(format!("{} is gone", self.prefix)))?;
        let cannot = |cause| Failure::Internal(format!("cannot lead {}/{CURRENT} to {id}: {cause}", self.prefix));
        let next = prefix.join(NEXT);
        gone(fs::remove_file(&next)).map_err(cannot)?;
        symlink(Path::new(VERSIONS).join(id), &next).map_err(cannot)?;
        fs::rename(&next, prefix.join(CURRENT)).map_err(cannot)?;
        File::open(&prefix).and_then(|folder| folder.sync_all()).map_err(cannot)
    }

    /// Every version that is there, in order.
    pub(super) fn all(&self) -> Vec<String> {
        self.node.names(&format!("{}/{VERSIONS}", self.prefix))
    }

    /// Removes a version.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(super) fn remove(&self, id: &str) -> Result<(), Failure> {
        let Some(prefix) = self.real()? else { return Ok(()) };
        let folder = prefix.join(VERSIONS).join(id);
        let cannot = |cause| Failure::Internal(format!("cannot remove {}: {cause}", folder.display()));
        gone(fs::remove_dir_all(&folder)).map_err(cannot)
    }

    /// Removes the link; the versions went before.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(super) fn unlink(&self) -> Result<(), Failure> {
        let Some(prefix) = self.real()? else { return Ok(()) };
        let cannot = |cause| Failure::Internal(format!("cannot remove {}/{CURRENT}: {cause}", self.prefix));
        gone(fs::remove_file(prefix.join(NEXT))).map_err(cannot)?;
        gone(fs::remove_file(prefix.join(CURRENT))).map_err(cannot)
    }

    fn real(&self) -> Result<Option<PathBuf>, Failure> {
        self.node
            .real(self.prefix)
            .map_err(|cause| Failure::Internal(format!("cannot look at {}: {cause}", self.prefix)))
    }
}

fn is_program(path: &Path, bytes: &[u8]) -> bool {
    use std::os::unix::fs::MetadataExt;
    let fits = |about: fs::Metadata| about.is_file() && about.uid() == 0 && about.mode() & 0o7777 == 0o755;
    fs::symlink_metadata(path).is_ok_and(fits) && fs::read(path).is_ok_and(|there| there == bytes)
}

/// What is not there is removed.
fn gone(done: std::io::Result<()>) -> std::io::Result<()> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}
