//! A whole GPU node below a folder: what a kernel with NVIDIA's driver shows under /sys, /proc and
//! /dev, and what the driver's packages put under /usr.
//!
//! Device nodes are real character devices, so that containers can be tried against them, but only
//! ever below the fixture's folder. Nothing is started and the driver's programs are not run.

mod change;
mod mig;
mod tree;

pub use change::{Change, Held, Instance, NodeState};

use std::path::PathBuf;

use self::tree::Tree;
use crate::driver_files::DriverFiles;
use crate::error::Result;
use crate::process;

/// Where the driver's libraries lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `/usr/lib/x86_64-linux-gnu`.
    Debian,
    /// `/usr/lib64`.
    Lib64,
}

impl Layout {
    /// The folder, relative to the root.
    pub fn library_folder(self) -> &'static str {
        match self {
            Self::Debian => "usr/lib/x86_64-linux-gnu",
            Self::Lib64 => "usr/lib64",
        }
    }
}

/// One GPU of a [`FakeHost`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeGpu {
    /// PCI address as in sysfs, `0000:41:00.0`.
    pub pci: String,
    /// `GPU-…`.
    pub uuid: String,
    /// Device minor; never the position in PCI order if there are two GPUs or more.
    pub minor: u64,
}

impl FakeGpu {
    /// The name of its node, `nvidia2`.
    pub fn name(&self) -> String {
        format!("nvidia{}", self.minor)
    }
}

/// A node fixture that [`Builder::build`] has laid out.
#[derive(Clone, Debug)]
pub struct FakeHost {
    /// The folder that stands for `/`.
    pub root: PathBuf,
    /// In PCI order.
    pub gpus: Vec<FakeGpu>,
    /// Where the libraries lie.
    pub layout: Layout,
}

impl FakeHost {
    /// A host below `root`: one GPU, the driver loaded, no driver files.
    pub fn builder(root: impl Into<PathBuf>) -> Builder {
        Builder {
            root: root.into(),
            gpus: 1,
            module: Some("535.309.01".into()),
            files: Vec::new(),
            layout: Layout::Debian,
            uvm: true,
            drm: false,
            ld_cache: false,
        }
    }

    /// The GPU with this device minor.
    pub fn by_minor(&self, minor: u64) -> Option<&FakeGpu> {
        self.gpus.iter().find(|gpu| gpu.minor == minor)
    }

    /// A node below the fixture's /dev, `node("nvidia0")`.
    pub fn node(&self, name: &str) -> PathBuf {
        self.root.join("dev").join(name)
    }
}

/// What a host is to be like; see [`FakeHost::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    root: PathBuf,
    gpus: u64,
    module: Option<String>,
    files: Vec<DriverFiles>,
    layout: Layout,
    uvm: bool,
    drm: bool,
    ld_cache: bool,
}

impl Builder {
    /// The number of GPUs; 0 leaves a host with another vendor's display only.
    #[must_use]
    pub fn gpus(mut self, count: u64) -> Self {
        self.gpus = count;
        self
    }

    /// Installs these files and loads the module of their version.
    #[must_use]
    pub fn driver(mut self, files: &DriverFiles) -> Self {
        self.module = Some(files.version.clone());
        self.files.push(files.clone());
        self
    }

    /// Leaves files of another version lying around, as a half-done update does. The links without
    /// a version end up at the files named last.
    #[must_use]
    pub fn stale(mut self, files: &DriverFiles) -> Self {
        self.files.push(files.clone());
        self
    }

    /// The loaded module says this version, whatever the files are.
    #[must_use]
    pub fn module_version(mut self, version: &str) -> Self {
        self.module = Some(version.into());
        self
    }

    /// No module loaded: no /proc/driver/nvidia, no majors, no nodes. The GPUs stay on the bus.
    #[must_use]
    pub fn no_driver(mut self) -> Self {
        self.module = None;
        self
    }

    /// Where the libraries lie.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Whether the nvidia-uvm module is loaded and has its nodes; by default it is.
    #[must_use]
    pub fn uvm(mut self, present: bool) -> Self {
        self.uvm = present;
        self
    }

    /// Whether display nodes exist: `card0` of another vendor, then one card and one render node
    /// for each GPU. By default not.
    #[must_use]
    pub fn drm(mut self, present: bool) -> Self {
        self.drm = present;
        self
    }

    /// Whether /etc/ld.so.cache lists the libraries (made by the machine's ldconfig).
    #[must_use]
    pub fn ld_cache(mut self, present: bool) -> Self {
        self.ld_cache = present;
        self
    }

    /// Lays the host out.
    ///
    /// # Errors
    /// The path that could not be made, and why. Device nodes need root.
    pub fn build(self) -> Result<FakeHost> {
        let gpus: Vec<FakeGpu> = (0..self.gpus).map(|at| gpu(at, self.gpus)).collect();
        let below = Tree(&self.root);
        tree::folders(&below, self.layout)?;
        let driver = self.module.as_ref().map(|_| "nvidia");
        let uvm = self.uvm.then_some(tree::UVM);
        tree::bus(&below, gpus.iter().map(|gpu| (gpu, driver)))?;
        tree::kernel(&below, self.module.is_some(), uvm)?;
        if let Some(version) = &self.module {
            tree::driver(&below, version, &gpus)?;
            tree::nodes(&below, &gpus, uvm)?;
        }
        if self.drm {
            tree::drm(&below, &gpus)?;
        }
        for files in &self.files {
            files.install_libraries(&self.root.join(self.layout.library_folder()))?;
            files.install_programs(&self.root.join("usr/bin"))?;
        }
        if self.ld_cache {
            process::tool("/sbin/ldconfig", ["-X", "-r", process::text(&self.root)?])?;
        }
        Ok(FakeHost { root: self.root, gpus, layout: self.layout })
    }
}

/// The GPU at this place in PCI order; minors are turned by half the count.
fn gpu(at: u64, count: u64) -> FakeGpu {
    let bus = at * 0x10 + 1;
    FakeGpu {
        pci: format!("0000:{bus:02x}:00.0"),
        uuid: format!("GPU-{:08x}-11aa-4b6c-9d3e-{:012x}", 0x5d1f_0c00 + at, 0x0a1b_2c3d_0000 + at),
        minor: (at + count / 2) % count,
    }
}
