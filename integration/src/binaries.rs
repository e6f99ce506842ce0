//! Where the product's binaries are. The harness runs what was built, it never builds.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The binaries under test, by absolute path.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// The static OCI runtime.
    pub runtime: PathBuf,
    /// The static OCI hook.
    pub hook: PathBuf,
    /// The embedded low-level runtime.
    pub engine: PathBuf,
    /// The command line and node helper.
    pub helper: PathBuf,
}

impl Binaries {
    /// All of them from `QUILT_BIN_DIR`, or from where `make build` leaves them.
    ///
    /// # Errors
    /// One is missing: its path, and how to make it.
    pub fn locate() -> Result<Self> {
        if let Some(folder) = std::env::var_os("QUILT_BIN_DIR") {
            return Self::in_folders(Path::new(&folder), Path::new(&folder));
        }
        let target = workspace().join("target");
        Self::in_folders(&target.join("static"), &target.join("release"))
    }

    /// Runtime, hook and engine from one folder, the helper from another.
    ///
    /// # Errors
    /// As [`Binaries::locate`].
    pub fn in_folders(fixed: &Path, dynamic: &Path) -> Result<Self> {
        let found = |folder: &Path, name: &str| {
            let path = folder.join(name);
            if path.is_file() {
                return Ok(path);
            }
            Err(Error::new(format!(
                "no {name} at {}; run `make build`, or set QUILT_BIN_DIR to the folder that has it",
                path.display()
            )))
        };
        Ok(Self {
            runtime: found(fixed, "quilt-gpu-runtime")?,
            hook: found(fixed, "quilt-gpu-hook")?,
            engine: found(fixed, "quilt-gpu-engine")?,
            helper: found(dynamic, "quilt-gpu")?,
        })
    }
}

/// The workspace this was compiled in.
pub(crate) fn workspace() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}
