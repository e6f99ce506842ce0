//! Writes the parts of a node fixture: the bus, the kernel's tables, the driver's /proc, the nodes.
//!
//! Only formats live here; what the host is like was decided by the builder.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::{FakeGpu, Layout};
use crate::error::{Context, Result};
use crate::sys;

/// Character device majors of the fixture, as its /proc/devices says.
const NVIDIA: u64 = 195;
pub(super) const UVM: u64 = 511;
pub(super) const CAPS: u64 = 236;
const DRM: u64 = 226;

/// The names before and after NVIDIA's in /proc/devices.
const OTHER_CHARACTER: &str = "Character devices:
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

/// Small writes below the fixture's root; every error names the path.
pub(super) struct Tree<'a>(pub(super) &'a Path);

impl Tree<'_> {
    fn folder(&self, name: &str) -> Result<()> {
        let path = self.0.join(name);
        fs::create_dir_all(&path).cannot(|| format!("create {}", path.display()))
    }

    pub(super) fn file(&self, name: &str, content: &str) -> Result<()> {
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

    pub(super) fn node(&self, name: &str, major: u64, minor: u64, mode: u32) -> Result<()> {
        let path = self.0.join("dev").join(name);
        sys::make_node(&path, 'c', (major, minor), mode).cannot(|| format!("make node {}", path.display()))
    }
}

pub(super) fn folders(tree: &Tree<'_>, layout: Layout) -> Result<()> {
    let always = ["dev", "etc", "proc", "sys", "usr/bin", "usr/lib", "usr/lib64"];
    for folder in always.iter().chain([&layout.library_folder()]) {
        tree.folder(folder)?;
    }
    fs::set_permissions(tree.0, fs::Permissions::from_mode(0o755))
        .cannot(|| format!("set the mode of {}", tree.0.display()))?;
    // Debian's ldconfig searches only Debian's folders unasked.
    tree.file("etc/ld.so.conf", &format!("/{}\n", layout.library_folder()))?;
    for merged in ["bin", "lib", "lib64"] {
        tree.link(merged, &format!("usr/{merged}"))?;
    }
    Ok(())
}

/// A function on the PCI bus: its folder below the bridge, and the bus's link to it.
fn function(tree: &Tree<'_>, pci: &str, ids: [&str; 3], driver: Option<&str>) -> Result<()> {
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

/// The GPUs with their kernel drivers, the audio function of the first (same vendor, no GPU), and a board's own display.
pub(super) fn bus<'a>(
    tree: &Tree<'_>,
    gpus: impl Iterator<Item = (&'a FakeGpu, Option<&'a str>)> + Clone,
) -> Result<()> {
    function(tree, BOARD_DISPLAY, ["0x1a03", "0x2000", "0x030000"], Some("ast"))?;
    for (gpu, driver) in gpus.clone() {
        function(tree, &gpu.pci, ["0x10de", "0x20b0", "0x030200"], driver)?;
    }
    if let Some((first, _)) = gpus.clone().next() {
        let audio = first.pci.replace(".0", ".1");
        function(tree, &audio, ["0x10de", "0x1aef", "0x040300"], Some("snd_hda_intel"))?;
    }
    Ok(())
}

const BOARD_DISPLAY: &str = "0000:00:02.0";

/// `uvm`: the major of nvidia-uvm, which is another after every boot.
pub(super) fn kernel(tree: &Tree<'_>, loaded: bool, uvm: Option<u64>) -> Result<()> {
    let mut devices = String::from(OTHER_CHARACTER);
    if loaded {
        for (major, name) in
            [(NVIDIA, "nvidia"), (NVIDIA, "nvidia-modeset"), (NVIDIA, "nvidiactl"), (CAPS, "nvidia-caps")]
        {
            devices.push_str(&format!("{major:3} {name}\n"));
        }
        if let Some(uvm) = uvm {
            devices.push_str(&format!("{uvm:3} nvidia-uvm\n"));
        }
    }
    devices.push_str(OTHER_BLOCK);
    tree.file("proc/devices", &devices)?;
    let boot_id = "/proc/sys/kernel/random/boot_id";
    let this_boot = fs::read_to_string(boot_id).cannot(|| format!("read {boot_id}"))?;
    tree.file("proc/sys/kernel/random/boot_id", &this_boot)
}

/// /proc/driver/nvidia, in the words of the kernel module's nv-procfs.c.
pub(super) fn driver(tree: &Tree<'_>, version: &str, gpus: &[FakeGpu]) -> Result<()> {
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
    tree.file("proc/driver/nvidia-caps/mig-minors", &super::mig::table(gpus))?;
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

pub(super) fn nodes(tree: &Tree<'_>, gpus: &[FakeGpu], uvm: Option<u64>) -> Result<()> {
    for gpu in gpus {
        tree.node(&gpu.name(), NVIDIA, gpu.minor, 0o666)?;
    }
    tree.node("nvidiactl", NVIDIA, 255, 0o666)?;
    tree.node("nvidia-modeset", NVIDIA, 254, 0o666)?;
    if let Some(uvm) = uvm {
        tree.node("nvidia-uvm", uvm, 0, 0o666)?;
        tree.node("nvidia-uvm-tools", uvm, 1, 0o666)?;
    }
    tree.folder("dev/nvidia-caps")?;
    tree.node("nvidia-caps/nvidia-cap1", CAPS, 1, 0o400)?;
    tree.node("nvidia-caps/nvidia-cap2", CAPS, 2, 0o444)
}

/// Display nodes, with the way from a number back to the PCI function that sysfs offers.
pub(super) fn drm(tree: &Tree<'_>, gpus: &[FakeGpu]) -> Result<()> {
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
