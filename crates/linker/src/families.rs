//! Which driver library or program belongs to which driver capability: data, and one lookup.
//!
//! Names are known by their stem (`libnvidia-ml` for `libnvidia-ml.so.550.54.15`), so a new driver
//! version changes nothing here. `compat32` is no property of a name: a 32-bit library needs it
//! *and* one of the capabilities that its name has.

const COMPUTE: &str = "compute";
const DISPLAY: &str = "display";
const GRAPHICS: &str = "graphics";
const NGX: &str = "ngx";
const UTILITY: &str = "utility";
const VIDEO: &str = "video";

/// Part of the driver that libraries of every capability may load.
const EVERY: &[&str] = &[COMPUTE, DISPLAY, GRAPHICS, NGX, UTILITY, VIDEO];
/// What draws: a container with a display needs all of it too.
const DRAWING: &[&str] = &[DISPLAY, GRAPHICS];
/// Compilers and allocators that both CUDA and the drawing libraries load.
const SHARED: &[&str] = &[COMPUTE, DISPLAY, GRAPHICS];

/// Alphabetic by stem.
const LIBRARIES: &[(&str, &[&str])] = &[
    ("libEGL_nvidia", DRAWING),
    ("libGLESv1_CM_nvidia", DRAWING),
    ("libGLESv2_nvidia", DRAWING),
    ("libGLX_nvidia", DRAWING),
    ("libcuda", &[COMPUTE]),
    ("libcudadebugger", &[COMPUTE]),
    ("libdxcore", EVERY), // under WSL the only way to the GPU
    ("libglxserver_nvidia", &[DISPLAY]),
    ("libnvcuvid", &[VIDEO]),
    ("libnvidia-allocator", SHARED),
    ("libnvidia-api", DRAWING),
    ("libnvidia-cbl", DRAWING),
    ("libnvidia-cfg", &[UTILITY]),
    ("libnvidia-compiler", &[COMPUTE]),
    ("libnvidia-container", &[]), // NVIDIA's container tools, not the driver
    ("libnvidia-container-go", &[]),
    ("libnvidia-egl-gbm", DRAWING),
    ("libnvidia-egl-wayland", DRAWING),
    ("libnvidia-egl-wayland2", DRAWING),
    ("libnvidia-egl-xcb", DRAWING),
    ("libnvidia-egl-xlib", DRAWING),
    ("libnvidia-eglcore", DRAWING),
    ("libnvidia-encode", &[VIDEO]),
    ("libnvidia-fatbinaryloader", &[COMPUTE]),
    ("libnvidia-fbc", DRAWING),
    ("libnvidia-glcore", DRAWING),
    ("libnvidia-glsi", DRAWING),
    ("libnvidia-glvkspirv", DRAWING),
    ("libnvidia-gpucomp", SHARED),
    ("libnvidia-gtk2", &[DISPLAY]),
    ("libnvidia-gtk3", &[DISPLAY]),
    ("libnvidia-ifr", DRAWING),
    ("libnvidia-ml", &[UTILITY]),
    ("libnvidia-ngx", &[NGX]),
    ("libnvidia-nscq", &[UTILITY]),
    ("libnvidia-nvvm", &[COMPUTE]),
    ("libnvidia-nvvm70", &[COMPUTE]),
    ("libnvidia-opencl", &[COMPUTE]),
    ("libnvidia-opticalflow", &[VIDEO]),
    ("libnvidia-pkcs11", &[COMPUTE]),
    ("libnvidia-pkcs11-openssl3", &[COMPUTE]),
    ("libnvidia-ptxjitcompiler", &[COMPUTE]),
    ("libnvidia-rtcore", DRAWING),
    ("libnvidia-tileiras", &[COMPUTE]),
    ("libnvidia-tls", DRAWING),
    ("libnvidia-vulkan-producer", DRAWING),
    ("libnvidia-wayland-client", &[DISPLAY]),
    ("libnvoptix", DRAWING),
    ("libvdpau_nvidia", &[VIDEO]),
];

/// A new driver's helper library is loaded by one that is known here, as `libnvidia-gpucomp` once
/// was by `libcuda`. Leaving it out breaks programs in ways that nobody can explain; binding it
/// gives nothing away, since only device nodes give access to a GPU.
const UNKNOWN_DRIVER_PREFIX: &str = "libnvidia-";

/// Alphabetic. Programs that are not named belong to no container: above all `nvidia-modprobe`,
/// which is setuid root and makes device nodes.
const BINARIES: &[(&str, &[&str])] = &[
    ("nv-fabricmanager", &[UTILITY]),
    ("nvidia-cuda-mps-control", &[COMPUTE]),
    ("nvidia-cuda-mps-server", &[COMPUTE]),
    ("nvidia-debugdump", &[UTILITY]),
    ("nvidia-imex", &[COMPUTE]),
    ("nvidia-imex-ctl", &[COMPUTE]),
    ("nvidia-persistenced", &[UTILITY]),
    ("nvidia-smi", &[UTILITY]),
    ("nvidia-xconfig", &[DISPLAY]),
];

/// The capabilities of which any one brings this library, by its file name or SONAME. Empty for
/// what is not the driver's. An unknown library of the driver comes with every capability.
pub fn library_capabilities(file_name_or_soname: &str) -> &'static [&'static str] {
    let stem = match file_name_or_soname.split_once(".so") {
        Some((stem, version)) if version.is_empty() || version.starts_with('.') => stem,
        _ => return &[],
    };
    let unknown = if stem.starts_with(UNKNOWN_DRIVER_PREFIX) { EVERY } else { &[] };
    lookup(LIBRARIES, stem).unwrap_or(unknown)
}

/// The capabilities of which any one brings this program, by its file name. Empty for others.
pub fn binary_capabilities(file_name: &str) -> &'static [&'static str] {
    lookup(BINARIES, file_name).unwrap_or_default()
}

fn lookup(table: &[(&str, &'static [&'static str])], name: &str) -> Option<&'static [&'static str]> {
    table.iter().find(|(known, _)| *known == name).map(|(_, capabilities)| *capabilities)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_alphabetic_and_without_repetition() {
        for table in [LIBRARIES, BINARIES] {
            for pair in table.windows(2) {
                assert!(pair[0].0 < pair[1].0, "{} before {}", pair[0].0, pair[1].0);
            }
        }
    }

    #[test]
    fn libraries() {
        let table: [(&str, &[&str]); 20] = [
            ("libcuda.so.1", &[COMPUTE]),
            ("libcuda.so", &[COMPUTE]),
            ("libcuda.so.550.54.15", &[COMPUTE]),
            ("libnvidia-ml.so.1", &[UTILITY]),
            ("libnvidia-nscq.so.2.0", &[UTILITY]),
            ("libnvidia-nvvm.so.4", &[COMPUTE]),
            ("libnvidia-pkcs11-openssl3.so.550.54.15", &[COMPUTE]),
            ("libnvidia-opticalflow.so.1", &[VIDEO]),
            ("libvdpau_nvidia.so.550.54.15", &[VIDEO]),
            ("libnvidia-glsi.so.550.54.15", DRAWING),
            ("libGLX_nvidia.so.0", DRAWING),
            ("libnvidia-gpucomp.so.550.54.15", SHARED),
            ("libnvidia-ngx.so.1", &[NGX]),
            ("libnvidia-somethingnew.so.999.1", EVERY),
            ("libnvidia-container.so.1", &[]),
            ("libcudart.so.12", &[]),
            ("libcuda.solid", &[]),
            ("libcuda", &[]),
            ("libc.so.6", &[]),
            ("", &[]),
        ];
        for (name, capabilities) in table {
            assert_eq!(library_capabilities(name), capabilities, "{name}");
        }
    }

    #[test]
    fn binaries() {
        let table: [(&str, &[&str]); 5] = [
            ("nvidia-smi", &[UTILITY]),
            ("nvidia-cuda-mps-server", &[COMPUTE]),
            ("nvidia-xconfig", &[DISPLAY]),
            ("nvidia-modprobe", &[]),
            ("", &[]),
        ];
        for (name, capabilities) in table {
            assert_eq!(binary_capabilities(name), capabilities, "{name}");
        }
    }
}
