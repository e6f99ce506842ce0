//! A file that was judged, on its way to the process that loads or runs it: what is used is what was judged, or nothing.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use contract::inventory::FileId;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};

/// An identity as one word of a command line.
pub(crate) fn word(id: &FileId) -> String {
    let FileId { dev, ino, size, ctime, ctime_nsec } = id;
    format!("{dev}:{ino}:{size}:{ctime}:{ctime_nsec}")
}

/// Opens the file, if it is the one with this identity still. Who holds it holds that file, whatever its path leads to next.
///
/// # Errors
/// What was attempted, and the cause.
pub(crate) fn open_as(path: &Path, judged: &str) -> Result<File, String> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let failed = |cause| format!("cannot open {}: {cause}", path.display());
    let file: OwnedFd = open(path, flags, Mode::empty()).map_err(failed)?;
    if word(&node::id(&fstat(&file).map_err(failed)?)) != judged {
        return Err(format!("{} is another file than a moment ago", path.display()));
    }
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn an_exchanged_or_changed_file_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libnvidia-ml.so.1");
        fs::write(&path, "judged").unwrap();
        let judged = word(&node::file_id(&path).unwrap());
        assert!(open_as(&path, &judged).is_ok());
        fs::write(folder.path().join("other"), "judged").unwrap();
        fs::rename(folder.path().join("other"), &path).unwrap();
        let why = open_as(&path, &judged).unwrap_err();
        assert!(why.ends_with("is another file than a moment ago"), "{why}");
        let judged = word(&node::file_id(&path).unwrap());
        fs::write(&path, "other content").unwrap();
        assert!(open_as(&path, &judged).is_err());
        fs::remove_file(&path).unwrap();
        assert!(open_as(&path, &judged).unwrap_err().starts_with("cannot open"));
    }
}
