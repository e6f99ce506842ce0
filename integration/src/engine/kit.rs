//! Where the engines lie: Debian 12's own where they are installed, newer ones unpacked by `setup.sh engines`.
//!
//! Names are the words for a version (`docker-26`); what is really there, `versions` of an engine says.

use std::path::{Path, PathBuf};

use crate::binaries::{Binaries, workspace};

/// The folder of unpacked engines.
#[derive(Clone, Debug)]
pub struct Kit(PathBuf);

impl Default for Kit {
    fn default() -> Self {
        let cache = std::env::var_os("QUILT_TEST_CACHE").map_or_else(|| workspace().join(".cache"), PathBuf::from);
        Self(cache.join("engines"))
    }
}

impl Kit {
    /// The folder with `dockerd`, `docker`, `containerd`, its shim and `ctr` of a Docker release: `20`, `26` or `28`. The
    /// containerd there is 1.6, 1.7 or 2.1.
    ///
    /// # Errors
    /// What is not there, and how to get it.
    pub fn docker(&self, release: &str) -> Result<PathBuf, String> {
        if release == "20" {
            // Debian's daemon is in sbin, everything else in bin.
            return found(Path::new("/usr/sbin/dockerd"), "docker").map(|_| PathBuf::from("/usr/sbin"));
        }
        let folder = self.0.join(format!("docker-{release}"));
        found(&folder.join("dockerd"), "engines").map(|_| folder)
    }

    /// The folder with `containerd`, its shim and `ctr`: `1.6`, `1.7` or `2.1`.
    ///
    /// # Errors
    /// As above.
    pub fn containerd(&self, release: &str) -> Result<PathBuf, String> {
        let folder = match release {
            "1.6" => PathBuf::from("/usr/bin"),
            "1.7" => self.0.join("docker-26"),
            _ => self.0.join("docker-28"),
        };
        found(&folder.join("containerd"), if release == "1.6" { "docker" } else { "engines" }).map(|_| folder)
    }

    /// A low-level runtime: `runc-1.1`, `runc-1.3`, `crun-1.8`, `crun-1.21`, `crun-1.28`, `youki`; `engine` is our own.
    ///
    /// # Errors
    /// As above.
    pub fn low_level(&self, name: &str) -> Result<PathBuf, String> {
        match name {
            "runc-1.1" => found(Path::new("/usr/sbin/runc"), "runtime"),
            "crun-1.8" => found(Path::new("/usr/bin/crun"), "runtime"),
            "engine" => Binaries::locate().map(|binaries| binaries.engine).map_err(|why| why.to_string()),
            _ => found(&self.0.join("low-level").join(name), "engines"),
        }
    }

    /// What the low-level runtimes need to be seen where the root is another.
    pub(crate) fn low_level_parts(&self) -> [PathBuf; 2] {
        ["low-level", "lib"].map(|name| self.0.join(name))
    }

    /// A root file system with Podman: `5.4` or `5.8`. Podman 4.3 is Debian 12's own, and needs none.
    ///
    /// # Errors
    /// As above.
    pub fn podman(&self, release: &str) -> Result<Option<PathBuf>, String> {
        if release == "4.3" {
            return found(Path::new("/usr/bin/podman"), "engines").map(|_| None);
        }
        let root = self.0.join(format!("podman-{release}"));
        found(&root.join("usr/bin/podman"), "engines").map(|_| Some(root))
    }

    /// The folder of CNI plugins.
    ///
    /// # Errors
    /// As above.
    pub fn cni(&self) -> Result<PathBuf, String> {
        found(&self.0.join("cni"), "engines")
    }
}

fn found(path: &Path, part: &str) -> Result<PathBuf, String> {
    if path.exists() {
        return Ok(path.to_owned());
    }
    Err(format!("no {}; `integration/setup.sh {part}` gets it", path.display()))
}
