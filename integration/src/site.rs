//! A node with quilt-gpu on it: the fixture host, an installation, and what they left on disk. Where most tests begin.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::binaries::Binaries;
use crate::driver_files::DriverFiles;
use crate::error::{Context, Error, Result};
use crate::host::{Builder, FakeHost};
use crate::quilt::{Quilt, QuiltOptions};
use crate::scratch::Scratch;

/// A node fixture with an installation. Everything is in one folder and goes with this value, so drop what runs in it
/// before.
#[derive(Debug)]
pub struct Site {
    /// The node.
    pub host: FakeHost,
    /// The installation.
    pub quilt: Quilt,
    /// The driver's files on that node.
    pub files: DriverFiles,
    scratch: Scratch,
}

impl Site {
    /// A node with so many GPUs and the driver, and a default installation.
    ///
    /// # Errors
    /// The binaries were not built, or a part of the fixture could not be made.
    pub fn new(gpus: u64) -> Result<Self> {
        Self::with(|host| host.gpus(gpus), &QuiltOptions::default())
    }

    /// The same with a node or an installation that differs. `change` begins with one GPU and the driver.
    ///
    /// # Errors
    /// As [`Site::new`].
    pub fn with(change: impl FnOnce(Builder) -> Builder, options: &QuiltOptions) -> Result<Self> {
        let scratch = Scratch::new()?;
        let files = DriverFiles::prepare()?;
        let host = change(FakeHost::builder(scratch.join("host")).driver(&files)).build()?;
        let quilt = Quilt::install(scratch.join("quilt"), &host, &Binaries::locate()?, options)?;
        Ok(Self { host, quilt, files, scratch })
    }

    /// The fixture's folder.
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// A path in the fixture's folder.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.scratch.join(name)
    }

    /// The leases as they lie on disk, `<gpu>@<key>`. Nothing is reclaimed by looking.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn leases_on_disk(&self) -> Result<BTreeSet<String>> {
        let folder = self.quilt.state().join("leases");
        if !folder.exists() {
            return Ok(BTreeSet::new());
        }
        let entries = fs::read_dir(&folder).cannot(|| format!("read {}", folder.display()))?;
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        Ok(names.filter(|name| name.contains('@')).collect())
    }

    /// What `quilt-gpu lease list` says, which reclaims first.
    ///
    /// # Errors
    /// The call fails or does not print a list.
    pub fn leases(&self) -> Result<Vec<Value>> {
        let answer = self.quilt.cli(&["lease", "list", "--format", "json"])?.checked()?;
        let list: Value = serde_json::from_str(&answer.stdout).cannot(|| format!("parse {:?}", answer.stdout))?;
        match list {
            Value::Array(leases) => Ok(leases),
            other => Err(Error::new(format!("lease list is no list: {other}"))),
        }
    }

    /// Waits until `quilt-gpu lease list` is empty: engines clean up in their own time.
    ///
    /// # Errors
    /// Leases that are still there after ten seconds.
    pub fn wait_no_leases(&self) -> Result<()> {
        self.wait_leases(0)
    }

    /// Waits until `quilt-gpu lease list` has so many entries.
    ///
    /// # Errors
    /// Those that it has after ten seconds.
    pub fn wait_leases(&self, count: usize) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let leases = self.leases()?;
            if leases.len() == count {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::new(format!("not {count} leases: {}", Value::from(leases))));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
