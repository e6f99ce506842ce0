//! A made-up node with four GPUs below a folder: what a kernel with NVIDIA's driver shows, as far as we look. The driver
//! files are stand-ins with the right names, and no driver is behind the device nodes.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

const VERSION: &str = "550.54.15";
/// Minors in the order of the bus: on real nodes too they need not agree.
const MINORS: [u64; 4] = [2, 3, 0, 1];
const LIBRARIES: [(&str, &str); 4] =
    [("libcuda", "1"), ("libnvidia-ml", "1"), ("libnvidia-nvvm", "4"), ("libnvidia-ptxjitcompiler", "1")];
/// The dynamic major of the unified memory module.
const UVM: u64 = 511;

/// Lays the node out. Device nodes need root.
pub(crate) fn lay_out(root: &Path) -> io::Result<()> {
    for (at, minor) in (1..).zip(MINORS) {
        gpu(root, at, minor)?;
        node(root, &format!("nvidia{minor}"), 195, minor)?;
    }
    for (name, major, minor) in
        [("nvidiactl", 195, 255), ("nvidia-modeset", 195, 254), ("nvidia-uvm", UVM, 0), ("nvidia-uvm-tools", UVM, 1)]
    {
        node(root, name, major, minor)?;
    }
    file(
        root,
        "proc/driver/nvidia/version",
        format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  (a demonstration)\n").as_bytes(),
    )?;
    file(
        root,
        "proc/devices",
        format!("Character devices:\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n{UVM} nvidia-uvm\n").as_bytes(),
    )?;
    for (stem, suffix) in LIBRARIES {
        let (soname, real) = (format!("{stem}.so.{suffix}"), format!("{stem}.so.{VERSION}"));
        file(root, &format!("usr/lib64/{real}"), &elf(&soname))?;
        symlink(real, root.join("usr/lib64").join(soname))?;
    }
    file(root, "usr/bin/nvidia-smi", b"#!/bin/sh\necho a stand-in for nvidia-smi\n")
}

fn gpu(root: &Path, at: u32, minor: u64) -> io::Result<()> {
    let pci = format!("0000:{at}1:00.0");
    let bus = format!("sys/bus/pci/devices/{pci}");
    for (name, value) in
        [("vendor", "0x10de\n"), ("device", "0x20b0\n"), ("class", "0x030200\n"), ("numa_node", "-1\n")]
    {
        file(root, &format!("{bus}/{name}"), value.as_bytes())?;
    }
    symlink("../../drivers/nvidia", root.join(&bus).join("driver"))?;
    let text = format!(
        "Model: \t\t NVIDIA A100-SXM4-40GB\nGPU UUID: \t GPU-5d1f0c0{at}-11aa-4b6c-9d3e-0a1b2c3d4e5f\nBus Location: \t {pci}\nDevice Minor: \t {minor}\n"
    );
    file(root, &format!("proc/driver/nvidia/gpus/{pci}/information"), text.as_bytes())
}

/// A file that only root can write, with its folders.
pub(super) fn file(root: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let path = root.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(&path, content)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

fn node(root: &Path, name: &str, major: u64, minor: u64) -> io::Result<()> {
    let path = root.join("dev").join(name);
    fs::create_dir_all(root.join("dev"))?;
    mknod(&path, SFlag::S_IFCHR, Mode::empty(), makedev(major, minor))?;
    fs::set_permissions(path, Permissions::from_mode(0o666))
}

/// The least that is a 64-bit shared library with a SONAME: a file header, two program headers (`PT_LOAD` of all of it,
/// `PT_DYNAMIC`), the dynamic segment and its strings (System V ABI, chapters 4 and 5).
pub(crate) fn elf(soname: &str) -> Vec<u8> {
    const DYNAMIC: u64 = 64 + 2 * 56;
    const STRINGS: u64 = DYNAMIC + 4 * 16;
    let strings = format!("\0{soname}\0");
    let length = strings.len() as u64;
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    let mut words = |words: &[u64]| bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    let header = |kind: u64, offset: u64, size: u64| [4 << 32 | kind, offset, offset, offset, size, size, 8];
    // Entry point, offsets of program and section headers, then flags and the sizes and counts of the headers.
    words(&[0, 64, 0, 56 << 48 | 64 << 32, 2]);
    words(&header(1, 0, STRINGS + length));
    words(&header(2, DYNAMIC, STRINGS - DYNAMIC));
    // DT_STRTAB, DT_STRSZ, DT_SONAME, DT_NULL.
    words(&[5, STRINGS, 10, length, 14, 1, 0, 0]);
    bytes.extend(strings.bytes());
    bytes
}
