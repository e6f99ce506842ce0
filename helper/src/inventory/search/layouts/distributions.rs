//! Distributions, and what administrators make of them.

use super::{Layout, NONE};

pub(super) const LAYOUTS: &[Layout] = &[
    Layout {
        name: "Debian, alternatives",
        loaded: "535.1",
        libraries: &[
            "usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.535.1",
            "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.1",
            "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-glcore.so.535.1",
            "usr/lib/x86_64-linux-gnu/libnvidia-tls.so.535.1",
        ],
        others: &[
            "usr/lib/nvidia/current/nvidia-smi",
            "usr/share/nvidia/nvidia_icd.json={\"ICD\":{\"library_path\":\"libGLX_nvidia.so.0\"}}",
            "etc/OpenCL/vendors/nvidia.icd=libnvidia-opencl.so.1\n",
            "usr/lib/nvidia/current/nvidia_drv.so",
            "usr/share/nvidia/nvidia-application-profiles-535.1-rc",
            "lib/firmware/nvidia/535.1/gsp_tu10x.bin",
            "lib/firmware/nvidia/470.1/gsp.bin",
        ],
        links: &[
            ("usr/lib/x86_64-linux-gnu/libcuda.so.1", "/etc/alternatives/cuda"),
            ("etc/alternatives/cuda", "/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.535.1"),
            ("usr/bin/nvidia-smi", "/etc/alternatives/smi"),
            ("etc/alternatives/smi", "/usr/lib/nvidia/current/nvidia-smi"),
            ("usr/share/vulkan/icd.d/nvidia_icd.json", "/usr/share/nvidia/nvidia_icd.json"),
            ("usr/lib/xorg/modules/drivers/nvidia_drv.so", "/usr/lib/nvidia/current/nvidia_drv.so"),
        ],
        found: &[
            ("libcuda.so.1", "usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.535.1", "usr/lib/x86_64-linux-gnu"),
            (
                "libnvidia-glcore.so.535.1",
                "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-glcore.so.535.1",
                "beside libcuda.so.535.1",
            ),
            (
                "libnvidia-ml.so.1",
                "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.1",
                "usr/lib/x86_64-linux-gnu/nvidia/current",
            ),
            ("libnvidia-tls.so.535.1", "usr/lib/x86_64-linux-gnu/libnvidia-tls.so.535.1", "usr/lib/x86_64-linux-gnu"),
        ],
        files: &[
            ("/usr/bin/nvidia-smi", "usr/lib/nvidia/current/nvidia-smi", "usr/bin"),
            ("/etc/OpenCL/vendors/nvidia.icd", "etc/OpenCL/vendors/nvidia.icd", "etc"),
            ("/usr/share/vulkan/icd.d/nvidia_icd.json", "usr/share/nvidia/nvidia_icd.json", "usr/share"),
            (
                "/usr/share/nvidia/nvidia-application-profiles-535.1-rc",
                "usr/share/nvidia/nvidia-application-profiles-535.1-rc",
                "usr/share",
            ),
            (
                "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
                "usr/lib/nvidia/current/nvidia_drv.so",
                "usr/lib/xorg/modules/drivers",
            ),
            ("/lib/firmware/nvidia/535.1/gsp_tu10x.bin", "lib/firmware/nvidia/535.1/gsp_tu10x.bin", "lib/firmware"),
        ],
        ..NONE
    },
    Layout {
        name: "Ubuntu, two versions, with 32-bit libraries (D10)",
        loaded: "550.54.15",
        libraries: &[
            "usr/lib/x86_64-linux-gnu/libcuda.so.535.183.01",
            "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.183.01",
            "usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15",
            "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15",
            "usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.550.54.15",
            "usr/lib/i386-linux-gnu/libcuda.so.550.54.15@32",
        ],
        cached: &["/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15", "/usr/lib/i386-linux-gnu/libcuda.so.550.54.15"],
        found: &[
            ("libcuda.so.1", "usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15", "etc/ld.so.cache"),
            ("libcuda.so.1@32", "usr/lib/i386-linux-gnu/libcuda.so.550.54.15", "etc/ld.so.cache"),
            ("libnvidia-ml.so.1", "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15", "usr/lib/x86_64-linux-gnu"),
            (
                "libvdpau_nvidia.so.1",
                "usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.550.54.15",
                "beside libcuda.so.550.54.15",
            ),
        ],
        findings: &[("driver-version-mixed", false)],
        ..NONE
    },
    Layout {
        name: "32-bit libraries in a folder that no cache lists (D10)",
        loaded: "460.73.01",
        libraries: &[
            "usr/lib/libcuda.so.460.73.01",
            "usr/lib/libnvidia-ml.so.460.73.01",
            "usr/lib32/libcuda.so.460.73.01@32",
        ],
        cached: &["/usr/lib/libcuda.so.460.73.01"],
        found: &[
            ("libcuda.so.1", "usr/lib/libcuda.so.460.73.01", "etc/ld.so.cache"),
            ("libcuda.so.1@32", "usr/lib32/libcuda.so.460.73.01", "usr/lib32"),
            ("libnvidia-ml.so.1", "usr/lib/libnvidia-ml.so.460.73.01", "usr/lib"),
        ],
        ..NONE
    },
    Layout {
        name: "Fedora, RHEL, SUSE",
        loaded: "570.133.20",
        libraries: &[
            "usr/lib64/libcuda.so.570.133.20",
            "usr/lib64/libnvidia-ml.so.570.133.20",
            "usr/lib64/libnvidia-egl-gbm.so.1.1.2",
            "usr/lib64/libnvidia-allocator.so.570.133.20",
        ],
        others: &[
            "usr/bin/nvidia-smi",
            "usr/bin/nvidia-modprobe",
            "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
            "usr/share/glvnd/egl_vendor.d/50_mesa.json",
            "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
            "usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
            "usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
            "usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.570.133.20",
            "usr/share/nvidia/nvoptix.bin",
        ],
        links: &[
            ("lib64", "usr/lib64"),
            ("usr/lib64/libcuda.so.1", "libcuda.so.570.133.20"),
            ("usr/lib64/gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.570.133.20"),
            ("usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so", "libglxserver_nvidia.so.570.133.20"),
        ],
        found: &[
            ("libcuda.so.1", "usr/lib64/libcuda.so.570.133.20", "usr/lib64"),
            ("libnvidia-allocator.so.1", "usr/lib64/libnvidia-allocator.so.570.133.20", "beside libcuda.so.570.133.20"),
            ("libnvidia-egl-gbm.so.1", "usr/lib64/libnvidia-egl-gbm.so.1.1.2", "beside libcuda.so.570.133.20"),
            ("libnvidia-ml.so.1", "usr/lib64/libnvidia-ml.so.570.133.20", "usr/lib64"),
        ],
        files: &[
            ("/usr/bin/nvidia-smi", "usr/bin/nvidia-smi", "beside libcuda.so.570.133.20"),
            (
                "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
                "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
                "beside libcuda.so.570.133.20",
            ),
            (
                "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
                "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
                "beside libcuda.so.570.133.20",
            ),
            (
                "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
                "usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
                "beside libcuda.so.570.133.20",
            ),
            ("/usr/share/nvidia/nvoptix.bin", "usr/share/nvidia/nvoptix.bin", "beside libcuda.so.570.133.20"),
            (
                "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
                "usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
                "beside libcuda.so.570.133.20",
            ),
            (
                "/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so",
                "usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.570.133.20",
                "usr/lib64/xorg/modules/extensions",
            ),
            ("/usr/lib64/gbm/nvidia-drm_gbm.so", "usr/lib64/libnvidia-allocator.so.570.133.20", "usr/lib64/gbm"),
        ],
        ..NONE
    },
    Layout {
        name: "Arch, without a cache (D02)",
        loaded: "530.41.03",
        libraries: &["usr/lib/libcuda.so.530.41.03", "usr/lib/libnvidia-ml.so.530.41.03"],
        others: &["usr/bin/nvidia-smi"],
        links: &[("lib", "usr/lib"), ("lib64", "usr/lib"), ("usr/lib64", "lib"), ("bin", "usr/bin")],
        found: &[
            ("libcuda.so.1", "usr/lib/libcuda.so.530.41.03", "usr/lib64"),
            ("libnvidia-ml.so.1", "usr/lib/libnvidia-ml.so.530.41.03", "usr/lib64"),
        ],
        files: &[("/usr/bin/nvidia-smi", "usr/bin/nvidia-smi", "beside libcuda.so.530.41.03")],
        ..NONE
    },
    Layout {
        name: "a folder that only the cache knows (D01)",
        loaded: "535.183.06",
        libraries: &["var/lib/nvidia/lib64/libcuda.so.535.183.06", "var/lib/nvidia/lib64/libnvidia-ml.so.535.183.06"],
        others: &["var/lib/nvidia/bin/nvidia-smi"],
        links: &[("var/lib/nvidia/lib64/libnvidia-ml.so.1", "libnvidia-ml.so.535.183.06")],
        cached: &["/var/lib/nvidia/lib64/libnvidia-ml.so.1"],
        found: &[
            ("libcuda.so.1", "var/lib/nvidia/lib64/libcuda.so.535.183.06", "beside libnvidia-ml.so.535.183.06"),
            ("libnvidia-ml.so.1", "var/lib/nvidia/lib64/libnvidia-ml.so.535.183.06", "etc/ld.so.cache"),
        ],
        files: &[("/usr/bin/nvidia-smi", "var/lib/nvidia/bin/nvidia-smi", "beside libnvidia-ml.so.535.183.06")],
        ..NONE
    },
    Layout {
        name: "a cache from before the last update (D12)",
        loaded: "550.1",
        libraries: &["usr/lib64/libcuda.so.550.1", "usr/lib64/libnvidia-ml.so.550.1"],
        cached: &["/usr/lib64/libcuda.so.535.1", "/opt/gone/libnvidia-ml.so.535.1"],
        found: &[
            ("libcuda.so.1", "usr/lib64/libcuda.so.550.1", "usr/lib64"),
            ("libnvidia-ml.so.1", "usr/lib64/libnvidia-ml.so.550.1", "usr/lib64"),
        ],
        ..NONE
    },
    Layout {
        name: "a folder that the operator names",
        loaded: "550.1",
        libraries: &["srv/gpu/lib/libcuda.so.550.1", "srv/gpu/lib/libnvidia-ml.so.550.1", "usr/lib64/libcuda.so.550.1"],
        others: &["srv/gpu/bin/nvidia-smi", "usr/bin/nvidia-smi"],
        explicit: &["/srv/gpu/lib"],
        found: &[
            ("libcuda.so.1", "srv/gpu/lib/libcuda.so.550.1", "driver_folders /srv/gpu/lib"),
            ("libnvidia-ml.so.1", "srv/gpu/lib/libnvidia-ml.so.550.1", "driver_folders /srv/gpu/lib"),
        ],
        files: &[("/usr/bin/nvidia-smi", "srv/gpu/bin/nvidia-smi", "beside libcuda.so.550.1")],
        ..NONE
    },
    Layout {
        name: "NixOS (D03)",
        loaded: "565.57",
        libraries: &[
            "nix/store/abc-nvidia-x11-565.57/lib/libcuda.so.565.57",
            "nix/store/abc-nvidia-x11-565.57/lib/libnvidia-ml.so.565.57",
            "nix/store/abc-nvidia-x11-565.57/lib/libGLX_nvidia.so.565.57",
            "nix/store/old-nvidia-x11-550.1/lib/libcuda.so.550.1",
            "nix/store/def-nvidia-x11-565.57-lib32/lib/libcuda.so.565.57@32",
        ],
        others: &[
            "nix/store/abc-nvidia-x11-565.57-bin/bin/nvidia-smi",
            "nix/store/abc-nvidia-x11-565.57/share/glvnd/egl_vendor.d/10_nvidia.json={\"ICD\":{\"library_path\":\"libEGL_nvidia.so.0\"}}",
            "nix/store/abc-nvidia-x11-565.57/share/vulkan/icd.d/nvidia_icd.x86_64.json={\"ICD\":{\"library_path\":\"/nix/store/abc-nvidia-x11-565.57/lib/libGLX_nvidia.so.0\"}}",
            "nix/store/joined/share/egl/egl_external_platform.d/10_nvidia_wayland.json={\"ICD\":{\"library_path\":\"/run/opengl-driver/lib/libGLX_nvidia.so.0\"}}",
            "nix/store/joined/share/egl/egl_external_platform.d/15_nvidia_gone.json={\"ICD\":{\"library_path\":\"/run/opengl-driver/lib/libnvidia-gone.so.1\"}}",
            "nix/store/joined/share/egl/egl_external_platform.d/16_nvidia_up.json={\"ICD\":{\"library_path\":\"/nix/store/../../nix/store/abc-nvidia-x11-565.57/lib/libGLX_nvidia.so.0\"}}",
            "nix/store/joined/share/egl/egl_external_platform.d/17_nvidia_etc.json={\"ICD\":{\"library_path\":\"/etc/gl.so\"}}",
        ],
        links: &[
            ("nix/store/abc-nvidia-x11-565.57/lib/libGLX_nvidia.so.0", "libGLX_nvidia.so.565.57"),
            ("nix/store/joined/lib/libGLX_nvidia.so.0", "/nix/store/abc-nvidia-x11-565.57/lib/libGLX_nvidia.so.565.57"),
            ("etc/gl.so", "/nix/store/abc-nvidia-x11-565.57/lib/libGLX_nvidia.so.565.57"),
            ("run/opengl-driver", "/nix/store/joined"),
            ("run/opengl-driver-32", "/nix/store/joined32"),
            ("nix/store/joined/lib/libcuda.so.1", "/nix/store/abc-nvidia-x11-565.57/lib/libcuda.so.565.57"),
            ("nix/store/joined32/lib/libcuda.so.1", "/nix/store/def-nvidia-x11-565.57-lib32/lib/libcuda.so.565.57"),
            ("run/current-system/sw/bin/nvidia-smi", "/nix/store/abc-nvidia-x11-565.57-bin/bin/nvidia-smi"),
        ],
        found: &[
            (
                "libGLX_nvidia.so.1",
                "nix/store/abc-nvidia-x11-565.57/lib/libGLX_nvidia.so.565.57",
                "beside libcuda.so.565.57",
            ),
            ("libcuda.so.1", "nix/store/abc-nvidia-x11-565.57/lib/libcuda.so.565.57", "run/opengl-driver/lib"),
            (
                "libcuda.so.1@32",
                "nix/store/def-nvidia-x11-565.57-lib32/lib/libcuda.so.565.57",
                "run/opengl-driver-32/lib",
            ),
            (
                "libnvidia-ml.so.1",
                "nix/store/abc-nvidia-x11-565.57/lib/libnvidia-ml.so.565.57",
                "beside libcuda.so.565.57",
            ),
        ],
        files: &[
            ("/usr/bin/nvidia-smi", "nix/store/abc-nvidia-x11-565.57-bin/bin/nvidia-smi", "run/current-system/sw/bin"),
            (
                "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
                "nix/store/abc-nvidia-x11-565.57/share/glvnd/egl_vendor.d/10_nvidia.json",
                "beside libcuda.so.565.57",
            ),
            // A manifest's absolute path is made true where no other system's image has anything, and nowhere else.
            (
                "/nix/store/abc-nvidia-x11-565.57/lib/libGLX_nvidia.so.0",
                "nix/store/abc-nvidia-x11-565.57/lib/libGLX_nvidia.so.565.57",
                "named by nvidia_icd.x86_64.json",
            ),
            (
                "/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json",
                "nix/store/abc-nvidia-x11-565.57/share/vulkan/icd.d/nvidia_icd.x86_64.json",
                "beside libcuda.so.565.57",
            ),
            (
                "/run/opengl-driver/lib/libGLX_nvidia.so.0",
                "nix/store/abc-nvidia-x11-565.57/lib/libGLX_nvidia.so.565.57",
                "named by 10_nvidia_wayland.json",
            ),
            (
                "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
                "nix/store/joined/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
                "run/opengl-driver/share",
            ),
        ],
        findings: &[("manifest-path", false), ("manifest-path", false), ("manifest-path", false)],
        ..NONE
    },
];
