//! The node's files below its root: reads them, and replaces them so that a crash leaves the old one or the new one.
//! Links are followed inside that root, and stay.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode as Bits, SFlag};
use node::{Mode, write_atomic};

use super::plan::Files;
use super::text::Trouble;
use crate::exit::Failure;

/// Most bytes of a configuration.
const MOST: u64 = 4 << 20;

/// The node below a folder.
#[derive(Debug)]
pub(crate) struct OnNode {
    root: PathBuf,
}

impl OnNode {
    /// The node whose `/` this folder is.
    pub(crate) fn below(root: &str) -> Self {
        Self { root: PathBuf::from(root) }
    }

    /// Where a path of the node's really is; none where nothing is there.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub(crate) fn real(&self, path: &str) -> std::io::Result<Option<PathBuf>> {
        let root = open(&self.root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Bits::empty())?;
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_IN_ROOT);
        match openat2(&root, path, how) {
            Ok(found) => {
                let number = std::os::fd::AsRawFd::as_raw_fd(&found);
                fs::read_link(format!("/proc/self/fd/{number}")).map(Some)
            }
            Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Where a new file at this path would be, and its folders that are to be made, outermost first.
    pub(crate) fn fresh(&self, path: &str) -> std::io::Result<(PathBuf, Vec<PathBuf>)> {
        let mut missing: Vec<&std::ffi::OsStr> = Vec::new();
        let mut above = Path::new(path);
        loop {
            let name = above.file_name().ok_or_else(|| std::io::Error::from(ErrorKind::InvalidInput))?;
            missing.push(name);
            above = above.parent().unwrap_or(Path::new("/"));
            let Some(text) = above.to_str() else { return Err(ErrorKind::InvalidInput.into()) };
            if let Some(real) = self.real(text)? {
                let mut place = real;
                let mut folders = Vec::new();
                while let Some(name) = missing.pop() {
                    place.push(name);
                    if !missing.is_empty() {
                        folders.push(place.clone());
                    }
                }
                // A link that leads nowhere would be replaced by the file.
                if fs::symlink_metadata(&place).is_ok() {
                    let why = "it is a link that leads nowhere";
                    return Err(std::io::Error::new(ErrorKind::NotFound, why));
                }
                return Ok((place, folders));
            }
        }
    }

    /// Replaces or makes a file. Gives the folders that had to be made, as the node names them.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result<Vec<String>, Failure> {
        let cannot = |cause: &dyn std::fmt::Display| Failure::Internal(format!("cannot write {path}: {cause}"));
        let (place, folders, mode) = match self.real(path).map_err(|cause| cannot(&cause))? {
            Some(real) => {
                let about = fs::metadata(&real).map_err(|cause| cannot(&cause))?;
                let mode = Mode { mode: about.mode() & 0o7777, uid: about.uid(), gid: about.gid() };
                (real, Vec::new(), mode)
            }
            None => {
                let (place, folders) = self.fresh(path).map_err(|cause| cannot(&cause))?;
                (place, folders, Mode::root(0o644))
            }
        };
        let made = make_all(&folders).map_err(|cause| cannot(&cause))?;
        let mode = if nix::unistd::geteuid().is_root() { mode } else { as_we_are(mode) };
        write_atomic(&place, text.as_bytes(), mode, true).map_err(|cause| cannot(&cause))?;
        Ok(made.into_iter().map(|folder| self.named(folder)).collect())
    }

    /// Makes a folder of root's, where it is not there. Gives its real place.
    ///
    /// # Errors
    /// It cannot be made, or others than root could write what is there.
    pub(crate) fn make_folder(&self, path: &str) -> Result<PathBuf, Failure> {
        let cannot = |cause: std::io::Error| Failure::Internal(format!("cannot make the folder {path}: {cause}"));
        if let Some(real) = self.real(path).map_err(cannot)? {
            return only_root_writes(&real).map(|()| real).map_err(cannot);
        }
        let (place, mut folders) = self.fresh(path).map_err(cannot)?;
        folders.push(place.clone());
        make_all(&folders).map_err(cannot)?;
        Ok(place)
    }

    /// Removes a file, and of these folders those that are empty then.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub(crate) fn remove(&self, path: &str, folders: &[String]) -> Result<(), Failure> {
        let cannot = |cause: &dyn std::fmt::Display| Failure::Internal(format!("cannot remove {path}: {cause}"));
        if let Some(real) = self.real(path).map_err(|cause| cannot(&cause))? {
            fs::remove_file(real).map_err(|cause| cannot(&cause))?;
        }
        self.remove_empty(folders);
        Ok(())
    }

    /// Removes those of these folders, outermost first, that are empty.
    pub(crate) fn remove_empty(&self, folders: &[String]) {
        for folder in folders.iter().rev() {
            if let Ok(Some(real)) = self.real(folder) {
                // One that others have put something into stays.
                let _ = fs::remove_dir(real);
            }
        }
    }

    /// Where a path of the node's is for this process, links aside.
    pub(crate) fn place(&self, path: &str) -> PathBuf {
        let inside = Path::new(path).components().filter(|part| matches!(part, Component::Normal(_)));
        inside.fold(self.root.clone(), |place, part| place.join(part))
    }

    /// The folder that it lies below.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn named(&self, place: &Path) -> String {
        let inside = place.strip_prefix(&self.root).unwrap_or(place);
        format!("/{}", inside.to_string_lossy().trim_start_matches('/'))
    }
}

/// Makes these folders, outermost first, and gives those that nobody else made meanwhile.
fn make_all(folders: &[PathBuf]) -> std::io::Result<Vec<&Path>> {
    let mut made = Vec::new();
    for folder in folders {
        match fs::create_dir(folder) {
            Ok(()) => made.push(folder.as_path()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                only_root_writes(folder)?;
                continue;
            }
            Err(error) => return Err(error),
        }
        // Whatever mask this process was started with.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        folder.parent().map_or(Ok(()), |above| fs::File::open(above)?.sync_all())?;
    }
    Ok(made)
}

/// Whether this is itself a folder that nobody but root can write.
fn only_root_writes(place: &Path) -> std::io::Result<()> {
    let about = nix::sys::stat::lstat(place)?;
    let is_folder = about.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFDIR.bits();
    let why = if is_folder { node::fault(&about) } else { Some("is no folder".to_owned()) };
    why.map_or(Ok(()), |why| Err(std::io::Error::other(format!("{} {why}", place.display()))))
}

/// Without root's rights a file is its writer's.
fn as_we_are(mode: Mode) -> Mode {
    Mode { uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw(), ..mode }
}

impl Files for OnNode {
    fn text(&self, path: &str) -> Result<Option<String>, Trouble> {
        let refused = |cause: &dyn std::fmt::Display| Trouble::Refused(format!("cannot be read: {cause}"));
        let Some(real) = self.real(path).map_err(|cause| refused(&cause))? else { return Ok(None) };
        let about = fs::metadata(&real).map_err(|cause| refused(&cause))?;
        if !about.is_file() {
            return Err(refused(&"it is not a regular file"));
        }
        if about.len() > MOST {
            return Err(refused(&format!("it has {} bytes, and at most {MOST} are read", about.len())));
        }
        let bytes = fs::read(&real).map_err(|cause| refused(&cause))?;
        String::from_utf8(bytes).map(Some).map_err(|error| {
            let good = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(error.as_bytes());
            Trouble::at(&text, good, "this is not UTF-8")
        })
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let Ok(Some(real)) = self.real(folder) else { return Vec::new() };
        let entries = fs::read_dir(real).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    }

    fn exists(&self, path: &str) -> bool {
        matches!(self.real(path), Ok(Some(_)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    /// Between a look and the making somebody else makes it: the same folder serves, and nothing else does.
    #[test]
    fn a_folder_that_another_made_meanwhile_serves_if_only_root_writes_it() {
        let root = tempfile::tempdir().unwrap();
        let node = OnNode::below(root.path().to_str().unwrap());
        let (place, mut folders) = node.fresh("/a/b").unwrap();
        folders.push(place.clone());
        node.make_folder("/a/b").unwrap();
        assert_eq!(make_all(&folders).unwrap(), Vec::<&Path>::new(), "the other's are not ours to take away");
        fs::remove_dir(&place).unwrap();
        assert_eq!(make_all(&folders).unwrap(), [place.as_path()]);

        type Make = fn(&Path);
        let cases: [(Make, &str); 4] = [
            (|at| fs::set_permissions(at, fs::Permissions::from_mode(0o775)).unwrap(), "may be written by others"),
            (|at| chown(at, Some(12), None).unwrap(), "belongs to user 12"),
            (|at| fs::remove_dir(at).and_then(|()| symlink("/", at)).unwrap(), "is no folder"),
            (|at| fs::remove_file(at).and_then(|()| fs::write(at, "")).unwrap(), "is no folder"),
        ];
        for (make, part) in cases {
            if part.contains("12") && !nix::unistd::geteuid().is_root() {
                continue;
            }
            make(&place);
            let why = make_all(&folders).unwrap_err().to_string();
            assert!(why.contains(part), "{part}: {why}");
        }
        let why = node.make_folder("/a/b").unwrap_err().to_string();
        assert!(why.starts_with("cannot make the folder /a/b: ") && why.ends_with("is no folder"), "{why}");
    }
}
