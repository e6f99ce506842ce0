//! A whole GPU node below a folder: what a kernel with NVIDIA's driver shows under /sys, /proc and
//! /dev, and what the driver's packages put under /usr.
//!
//! Device nodes are real character devices, so that containers can be tried against them, but only
//! ever below the fixture's folder. Nothing is started and the driver's programs are not run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::driver_files::DriverFiles;
use crate::error::{Context, Result};
use crate::{process, sys};

/// Character device majors of the fixture, as its /proc/devices says.
const NVIDIA: u64 = 195;
const UVM: u64 = 511;
const CAPS: u64 = 236;
const DRM: u64 = 226;

/// The names before and after NVIDIA's in /proc/devices.
const OTHER_CHARACTER: &str = "\
  1 mem
  4 /dev/vc/0
  4 tty
  4 ttyS
  5 /dev/tty
  5 /dev/console
  5 /dev/ptmx
  7 vcs
 10 misc
 13 input
 29 fb
128 ptm
136 pts
180 usb
189 usb_device
226 drm
";
const OTHER_BLOCK: &str = "
Block devices:
  7 loop
  8 sd
  9 md
259 blkext
";

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
        let tree = Tree(&self.root);
        lay_out_folders(&tree, self.layout)?;
        lay_out_bus(&tree, &gpus, self.module.is_some())?;
        lay_out_kernel(&tree, self.module.is_some(), self.uvm)?;
        if let Some(version) = &self.module {
            lay_out_driver(&tree, version, &gpus)?;
            lay_out_nodes(&tree, &gpus, self.uvm)?;
        }
        if self.drm {
            lay_out_drm(&tree, &gpus)?;
        }
        for files in &self.files {
            files.install_libraries(&self.root.join(self.layout.library_folder()))?;
            files.install_programs(&self.root.join("usr/bin"))?;
        }
        if self.ld_cache {
            process::tool("/sbin/ldconfig", ["-X", "-r", process::text(&self.root)?])?;
        }
        Ok(FakeHost {
            root: self.root,
            gpus,
            layout: self.layout,
        })
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

/// Small writes below the fixture's root; every error names the path.
struct Tree<'a>(&'a Path);

impl Tree<'_> {
    fn folder(&self, name: &str) -> Result<()> {
        let path = self.0.join(name);
        fs::create_dir_all(&path).cannot(|| format!("create {}", path.display()))
    }

    fn file(&self, name: &str, content: &str) -> Result<()> {
        let path = self.0.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).cannot(|| format!("create {}", parent.display()))?;
        }
        fs::write(&path, content).cannot(|| format!("write {}", path.display()))
    }

    fn link(&self, name: &str, target: &str) -> Result<()> {
        let path = self.0.join(name);
        symlink(target, &path).cannot(|| format!("link {}", path.display()))
    }

    fn node(&self, name: &str, major: u64, minor: u64, mode: u32) -> Result<()> {
        let path = self.0.join("dev").join(name);
        sys::make_node(&path, 'c', (major, minor), mode)
            .cannot(|| format!("make node {}", path.display()))
    }
}

fn lay_out_folders(tree: &Tree<'_>, layout: Layout) -> Result<()> {
    let always = ["dev", "etc", "proc", "sys", "usr/bin", "usr/lib", "usr/lib64"];
    for folder in always.iter().chain([&layout.library_folder()]) {
        tree.folder(folder)?;
    }
    fs::set_permissions(tree.0, fs::Permissions::from_mode(0o755))
        .cannot(|| format!("set the mode of {}", tree.0.display()))?;
    for merged in ["bin", "lib", "lib64"] {
        tree.link(merged, &format!("usr/{merged}"))?;
    }
    Ok(())
}

/// A function on the PCI bus: its folder below the bridge, and the bus's link to it.
fn lay_out_function(tree: &Tree<'_>, pci: &str, ids: [&str; 3], driver: Option<&str>) -> Result<()> {
    let bridge = "sys/devices/pci0000:00";
    let [vendor, device, class] = ids;
    for (name, value) in [
        ("vendor", vendor),
        ("device", device),
        ("class", class),
        ("subsystem_vendor", vendor),
        ("subsystem_device", "0x134f"),
        ("revision", "0xa1"),
        ("numa_node", "-1"),
        ("driver_override", "(null)"),
        ("enable", "1"),
    ] {
        tree.file(&format!("{bridge}/{pci}/{name}"), &format!("{value}\n"))?;
    }
    tree.folder("sys/bus/pci/devices")?;
    tree.link(&format!("sys/bus/pci/devices/{pci}"), &format!("../../../devices/pci0000:00/{pci}"))?;
    if let Some(driver) = driver {
        tree.folder(&format!("sys/bus/pci/drivers/{driver}"))?;
        tree.link(&format!("{bridge}/{pci}/driver"), &format!("../../../bus/pci/drivers/{driver}"))?;
    }
    Ok(())
}

/// The GPUs, the audio function of the first (same vendor, no GPU), and a board's own display.
fn lay_out_bus(tree: &Tree<'_>, gpus: &[FakeGpu], loaded: bool) -> Result<()> {
    lay_out_function(tree, BOARD_DISPLAY, ["0x1a03", "0x2000", "0x030000"], Some("ast"))?;
    for gpu in gpus {
        let driver = loaded.then_some("nvidia");
        lay_out_function(tree, &gpu.pci, ["0x10de", "0x20b0", "0x030200"], driver)?;
    }
    if let Some(first) = gpus.first() {
        let audio = first.pci.replace(".0", ".1");
        lay_out_function(tree, &audio, ["0x10de", "0x1aef", "0x040300"], Some("snd_hda_intel"))?;
    }
    Ok(())
}

const BOARD_DISPLAY: &str = "0000:00:02.0";

fn lay_out_kernel(tree: &Tree<'_>, loaded: bool, uvm: bool) -> Result<()> {
    let mut devices = format!("Character devices:\n{OTHER_CHARACTER}");
    if loaded {
        for (major, name) in [(NVIDIA, "nvidia"), (NVIDIA, "nvidia-modeset"), (NVIDIA, "nvidiactl"), (CAPS, "nvidia-caps")] {
            devices.push_str(&format!("{major:3} {name}\n"));
        }
        if uvm {
            devices.push_str(&format!("{UVM:3} nvidia-uvm\n"));
        }
    }
    devices.push_str(OTHER_BLOCK);
    tree.file("proc/devices", &devices)?;
    let boot_id = "/proc/sys/kernel/random/boot_id";
    let this_boot = fs::read_to_string(boot_id).cannot(|| format!("read {boot_id}"))?;
    tree.file("proc/sys/kernel/random/boot_id", &this_boot)
}

/// /proc/driver/nvidia, in the words of the kernel module's nv-procfs.c.
fn lay_out_driver(tree: &Tree<'_>, version: &str, gpus: &[FakeGpu]) -> Result<()> {
    tree.file(
        "proc/driver/nvidia/version",
        &format!(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Fri Jan 10 20:00:00 UTC 2025\n\
             GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
        ),
    )?;
    tree.file("proc/driver/nvidia/params", PARAMETERS)?;
    for (at, gpu) in gpus.iter().enumerate() {
        let folder = format!("proc/driver/nvidia/gpus/{}", gpu.pci);
        tree.file(
            &format!("{folder}/information"),
            &format!(
                "Model: \t\t NVIDIA A100-SXM4-40GB\n\
                 IRQ:   \t\t {}\n\
                 GPU UUID: \t {}\n\
                 Video BIOS: \t 92.00.45.00.03\n\
                 Bus Type: \t PCIe\n\
                 DMA Size: \t 47 bits\n\
                 DMA Mask: \t 0x7fffffffffff\n\
                 Bus Location: \t {}\n\
                 Device Minor: \t {}\n\
                 GPU Firmware: \t {version}\n\
                 GPU Excluded:\t No\n",
                142 + at,
                gpu.uuid,
                gpu.pci,
                gpu.minor,
            ),
        )?;
        tree.file(&format!("{folder}/registry"), "Binary: \"\"\n")?;
    }
    tree.file("proc/driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\n")?;
    for (name, minor, mode) in [("config", 1, 256), ("monitor", 2, 292)] {
        tree.file(
            &format!("proc/driver/nvidia/capabilities/mig/{name}"),
            &format!("DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"),
        )?;
    }
    Ok(())
}

const PARAMETERS: &str = "\
ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
InitializeSystemMemoryAllocations: 1
UsePageAttributeTable: 4294967295
EnableMSI: 1
EnablePCIeGen3: 0
MemoryPoolSize: 0
RegistryDwords: \"\"
RegistryDwordsPerDevice: \"\"
RmMsg: \"\"
GpuBlacklist: \"\"
TemporaryFilePath: \"\"
ExcludedGpus: \"\"
";

fn lay_out_nodes(tree: &Tree<'_>, gpus: &[FakeGpu], uvm: bool) -> Result<()> {
    for gpu in gpus {
        tree.node(&gpu.name(), NVIDIA, gpu.minor, 0o666)?;
    }
    tree.node("nvidiactl", NVIDIA, 255, 0o666)?;
    tree.node("nvidia-modeset", NVIDIA, 254, 0o666)?;
    if uvm {
        tree.node("nvidia-uvm", UVM, 0, 0o666)?;
        tree.node("nvidia-uvm-tools", UVM, 1, 0o666)?;
    }
    tree.folder("dev/nvidia-caps")?;
    tree.node("nvidia-caps/nvidia-cap1", CAPS, 1, 0o400)?;
    tree.node("nvidia-caps/nvidia-cap2", CAPS, 2, 0o444)
}

/// Display nodes, with the way from a number back to the PCI function that sysfs offers.
fn lay_out_drm(tree: &Tree<'_>, gpus: &[FakeGpu]) -> Result<()> {
    tree.folder("dev/dri")?;
    tree.folder("sys/dev/char")?;
    let display = |pci: &str, name: &str, minor: u64| -> Result<()> {
        let folder = format!("devices/pci0000:00/{pci}/drm/{name}");
        tree.file(&format!("sys/{folder}/dev"), &format!("{DRM}:{minor}\n"))?;
        tree.link(&format!("sys/{folder}/device"), &format!("../../../{pci}"))?;
        tree.link(&format!("sys/dev/char/{DRM}:{minor}"), &format!("../../{folder}"))?;
        tree.node(&format!("dri/{name}"), DRM, minor, 0o660)
    };
    display(BOARD_DISPLAY, "card0", 0)?;
    for (at, gpu) in (1..).zip(gpus) {
        display(&gpu.pci, &format!("card{at}"), at)?;
        display(&gpu.pci, &format!("renderD{}", 127 + at), 127 + at)?;
    }
    Ok(())
}
