//! The bundle: its folder and the bytes of its `config.json`, read once.

use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use contract::json::MAX_BYTES;
use contract::{Code, Refusal};
use node::Mode;

/// A bundle as it was when it was read.
#[derive(Debug)]
pub(crate) struct Bundle {
    /// Absolute path of the folder.
    pub(crate) path: PathBuf,
    /// The bytes of `config.json`.
    pub(crate) bytes: Vec<u8>,
    /// Owner and mode of the file, kept when it is written anew.
    pub(crate) mode: Mode,
}

impl Bundle {
    /// Reads the bundle at `named`, relative to the current folder.
    ///
    /// `None` when there is no readable `config.json`: there is nothing to judge, and the low-level runtime says so.
    ///
    /// # Errors
    /// `UNSAFE_SPEC` when `config.json` is a link or no regular file, or too large.
    pub(crate) fn read(named: &str) -> Result<Option<Self>, Refusal> {
        let Ok(path) = std::path::absolute(named) else { return Ok(None) };
        let config = path.join("config.json");
        let unsafe_file = |rule, why: &str| {
            Refusal::new(
                Code::UnsafeSpec,
                rule,
                format!("config.json {why}"),
                "put one regular file named config.json into the bundle",
            )
            .at("", config.display().to_string())
        };
        let file = match std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(&config)
        {
            Ok(file) => file,
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                return Err(unsafe_file("bundle-link", "is a symbolic link"));
            }
            Err(_) => return Ok(None),
        };
        let Ok(meta) = file.metadata() else { return Ok(None) };
        if !meta.is_file() {
            return Err(unsafe_file("bundle-type", "is not a regular file"));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(meta.size()).unwrap_or(0).min(MAX_BYTES) + 1);
        if file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).is_err() {
            return Ok(None);
        }
        Ok(Some(Self { path, bytes, mode: Mode { mode: meta.mode() & 0o7777, uid: meta.uid(), gid: meta.gid() } }))
    }

    /// The file's path.
    #[must_use]
    pub(crate) fn config(&self) -> PathBuf {
        self.path.join("config.json")
    }
}

/// The container's root file system, from `root.path`; relative to the bundle, as OCI wants.
pub(crate) fn rootfs(spec: &contract::json::Node<'_>, bundle: &Path) -> Option<PathBuf> {
    spec.path(&["root", "path"]).and_then(|n| n.as_str()).map(|path| bundle.join(path))
}
