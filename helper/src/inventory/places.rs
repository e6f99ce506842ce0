//! Where installations of the driver lie, below the driver's root: data. `*` stands for any one name.

use contract::capability::Capability::{self, Compute, Display, Graphics};

/// Folders with libraries. Debian-like, lib64-like, then 32-bit ones; then systems that have a place of their own.
pub(super) const LIBRARIES: &[&str] = &[
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib64",
    "usr/lib", // Arch
    "lib",
    "usr/lib/i386-linux-gnu",
    "usr/lib32",
    "lib/i386-linux-gnu",
    "lib32",
    "usr/lib/x86_64-linux-gnu/nvidia/current", // Debian without alternatives
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "run/opengl-driver/lib", // NixOS
    "run/opengl-driver-32/lib",
    "usr/local/glibc/usr/lib", // Talos
    "usr/lib/nvidia/tesla",    // Bottlerocket
    "usr/lib/nvidia/tesla/*",
    "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "aarch64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "home/kubernetes/bin/nvidia/lib64", // GKE, Container-Optimized OS
    "opt/nvidia/lib64",                 // GKE, Ubuntu
    "opt/nvidia/current/usr/lib64",     // Flatcar
    "opt/nvidia/*/*/usr/lib64",
    "opt/nvidia/*/*/lib64",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
    "snap/docker/current/graphics/lib/x86_64-linux-gnu",
    "snap/docker/current/graphics/usr/lib/x86_64-linux-gnu",
    "usr/lib/wsl/lib",
];

/// Folders with programs, after `bin` beside the libraries.
pub(super) const PROGRAMS: &[&str] = &[
    "usr/bin",
    "usr/local/bin",
    "bin",
    "run/current-system/sw/bin",
    "usr/libexec/nvidia/tesla/bin",
    "usr/libexec/nvidia/tesla/bin/*",
    "x86_64-bottlerocket-linux-gnu/sys-root/usr/libexec/nvidia/tesla/bin",
    "aarch64-bottlerocket-linux-gnu/sys-root/usr/libexec/nvidia/tesla/bin",
    "snap/docker/current/graphics/usr/bin",
    "usr/lib/wsl/lib",
    "usr/lib/wsl/drivers/*",
];

/// WSL's installation: libraries without a version in their names, which load what lies in the folders of Windows' driver.
pub(super) const WSL: &str = "usr/lib/wsl";
/// These folders, one for each driver that Windows has: libraries look for what they load by this path.
pub(super) const STORE: &str = "usr/lib/wsl/drivers";

/// Whole installations in a root of their own, with links that mean nothing outside it.
pub(super) const ROOTS: &[&str] = &["run/nvidia/driver"];

/// Installations that have nothing in common with each other: what a container gets comes from one of them. Whatever lies
/// outside all of these is the system's.
const TREES: &[&str] = &[
    "home/kubernetes/bin/nvidia",
    "nix/store",
    "opt/nvidia",
    "run/nvidia/driver",
    "snap/docker",
    WSL,
    "usr/local/nvidia",
];

/// The installation that a path below the driver's root belongs to; empty for the system's.
pub(super) fn tree(path: &str) -> &'static str {
    let within = |tree: &&&str| path.strip_prefix(**tree).is_some_and(|rest| rest.starts_with('/'));
    TREES.iter().find(within).copied().unwrap_or_default()
}

/// Files that describe the driver to loaders: in a folder below a base, named after the driver, with one place in every
/// container.
pub(super) struct Data {
    pub(super) folder: &'static str,
    /// How the names end.
    pub(super) ends: &'static str,
    /// The base in containers.
    pub(super) base: &'static str,
    pub(super) capabilities: &'static [Capability],
}

/// Where manifests name libraries by absolute paths that no other system's image has: NixOS.
pub(super) const PATHS: &[&str] = &["/nix/store/", "/run/opengl-driver/lib/"];

/// Bases of data files, after those beside the libraries.
pub(super) const BASES: &[&str] = &["etc", "usr/share", "usr/local/share", "run/opengl-driver/share"];

const DRAWING: &[Capability] = &[Graphics, Display];

pub(super) const DATA: &[Data] = &[
    Data { folder: "OpenCL/vendors", ends: ".icd", base: "etc", capabilities: &[Compute] },
    Data { folder: "glvnd/egl_vendor.d", ends: ".json", base: "usr/share", capabilities: DRAWING },
    Data { folder: "egl/egl_external_platform.d", ends: ".json", base: "usr/share", capabilities: DRAWING },
    Data { folder: "vulkan/icd.d", ends: ".json", base: "usr/share", capabilities: DRAWING },
    Data { folder: "vulkan/implicit_layer.d", ends: ".json", base: "usr/share", capabilities: DRAWING },
    Data { folder: "nvidia", ends: "-rc", base: "usr/share", capabilities: DRAWING },
    Data { folder: "nvidia", ends: "nvoptix.bin", base: "usr/share", capabilities: DRAWING },
    Data { folder: "X11/xorg.conf.d", ends: ".conf", base: "usr/share", capabilities: &[Display] },
];

/// Modules that X servers and libgbm load by name, from the same place in a container as on the node.
pub(super) const MODULES: &[(&str, &str, &[Capability])] = &[
    ("usr/lib/xorg/modules/drivers", "nvidia_drv.so", &[Display]),
    ("usr/lib/xorg/modules/extensions", "libglxserver_nvidia.so", &[Display]),
    ("usr/lib/x86_64-linux-gnu/nvidia/xorg", "nvidia_drv.so", &[Display]),
    ("usr/lib/x86_64-linux-gnu/nvidia/xorg", "libglxserver_nvidia.so", &[Display]),
    ("usr/lib64/xorg/modules/drivers", "nvidia_drv.so", &[Display]),
    ("usr/lib64/xorg/modules/extensions", "libglxserver_nvidia.so", &[Display]),
    ("usr/lib/x86_64-linux-gnu/gbm", "nvidia-drm_gbm.so", DRAWING),
    ("usr/lib/aarch64-linux-gnu/gbm", "nvidia-drm_gbm.so", DRAWING),
    ("usr/lib64/gbm", "nvidia-drm_gbm.so", DRAWING),
    ("usr/lib/gbm", "nvidia-drm_gbm.so", DRAWING),
];

/// Where the kernel looks for firmware, below which the driver's lies in `nvidia/<version>`.
pub(super) const FIRMWARE: &[&str] = &["lib/firmware/updates", "lib/firmware", "usr/lib/firmware"];
