//! Systems made for containers, and drivers that are brought to a node in one piece.

use super::{Layout, NONE};

pub(super) const LAYOUTS: &[Layout] = &[
    Layout {
        name: "Flatcar, two versions (D13)",
        loaded: "570.133.20",
        libraries: &[
            "opt/nvidia/535.1/6.6.1-flatcar/usr/lib64/libcuda.so.535.1",
            "opt/nvidia/535.1/6.6.1-flatcar/usr/lib64/libnvidia-ml.so.535.1",
            "opt/nvidia/570.133.20/6.6.1-flatcar/usr/lib64/libcuda.so.570.133.20",
            "opt/nvidia/570.133.20/6.6.1-flatcar/usr/lib64/libnvidia-ml.so.570.133.20",
        ],
        others: &[
            "opt/nvidia/535.1/6.6.1-flatcar/usr/bin/nvidia-smi",
            "opt/nvidia/570.133.20/6.6.1-flatcar/usr/bin/nvidia-smi",
        ],
        links: &[("opt/nvidia/current", "535.1/6.6.1-flatcar")],
        found: &[
            (
                "libcuda.so.1",
                "opt/nvidia/570.133.20/6.6.1-flatcar/usr/lib64/libcuda.so.570.133.20",
                "opt/nvidia/570.133.20/6.6.1-flatcar/usr/lib64",
            ),
            (
                "libnvidia-ml.so.1",
                "opt/nvidia/570.133.20/6.6.1-flatcar/usr/lib64/libnvidia-ml.so.570.133.20",
                "opt/nvidia/570.133.20/6.6.1-flatcar/usr/lib64",
            ),
        ],
        files: &[(
            "/usr/bin/nvidia-smi",
            "opt/nvidia/570.133.20/6.6.1-flatcar/usr/bin/nvidia-smi",
            "beside libcuda.so.570.133.20",
        )],
        findings: &[("driver-version-mixed", false)],
        ..NONE
    },
    Layout {
        name: "Talos",
        loaded: "535.1",
        libraries: &["usr/local/glibc/usr/lib/libcuda.so.535.1", "usr/local/glibc/usr/lib/libnvidia-ml.so.535.1"],
        others: &["usr/local/bin/nvidia-smi"],
        found: &[
            ("libcuda.so.1", "usr/local/glibc/usr/lib/libcuda.so.535.1", "usr/local/glibc/usr/lib"),
            ("libnvidia-ml.so.1", "usr/local/glibc/usr/lib/libnvidia-ml.so.535.1", "usr/local/glibc/usr/lib"),
        ],
        files: &[("/usr/bin/nvidia-smi", "usr/local/bin/nvidia-smi", "usr/local/bin")],
        ..NONE
    },
    Layout {
        name: "Bottlerocket",
        loaded: "535.1",
        libraries: &[
            "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla/libcuda.so.535.1",
            "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla/libnvidia-ml.so.535.1",
        ],
        others: &["x86_64-bottlerocket-linux-gnu/sys-root/usr/libexec/nvidia/tesla/bin/nvidia-smi"],
        links: &[("usr", "x86_64-bottlerocket-linux-gnu/sys-root/usr")],
        found: &[
            (
                "libcuda.so.1",
                "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla/libcuda.so.535.1",
                "usr/lib/nvidia/tesla",
            ),
            (
                "libnvidia-ml.so.1",
                "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla/libnvidia-ml.so.535.1",
                "usr/lib/nvidia/tesla",
            ),
        ],
        files: &[(
            "/usr/bin/nvidia-smi",
            "x86_64-bottlerocket-linux-gnu/sys-root/usr/libexec/nvidia/tesla/bin/nvidia-smi",
            "usr/libexec/nvidia/tesla/bin",
        )],
        ..NONE
    },
    Layout {
        name: "GKE, Container-Optimized OS (D05)",
        loaded: "535.183.06",
        libraries: &[
            "home/kubernetes/bin/nvidia/lib64/libcuda.so.535.183.06",
            "home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.535.183.06",
        ],
        others: &[
            "home/kubernetes/bin/nvidia/bin/nvidia-smi",
            "home/kubernetes/bin/nvidia/vulkan/icd.d/nvidia_icd.json",
            "usr/bin/nvidia-smi",
        ],
        found: &[
            (
                "libcuda.so.1",
                "home/kubernetes/bin/nvidia/lib64/libcuda.so.535.183.06",
                "home/kubernetes/bin/nvidia/lib64",
            ),
            (
                "libnvidia-ml.so.1",
                "home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.535.183.06",
                "home/kubernetes/bin/nvidia/lib64",
            ),
        ],
        files: &[
            ("/usr/bin/nvidia-smi", "home/kubernetes/bin/nvidia/bin/nvidia-smi", "beside libcuda.so.535.183.06"),
            (
                "/usr/share/vulkan/icd.d/nvidia_icd.json",
                "home/kubernetes/bin/nvidia/vulkan/icd.d/nvidia_icd.json",
                "beside libcuda.so.535.183.06",
            ),
        ],
        ..NONE
    },
    Layout {
        name: "GKE, Ubuntu (D05)",
        loaded: "535.183.06",
        libraries: &["opt/nvidia/lib64/libcuda.so.535.183.06", "opt/nvidia/lib64/libnvidia-ml.so.535.183.06"],
        others: &["opt/nvidia/bin/nvidia-smi"],
        found: &[
            ("libcuda.so.1", "opt/nvidia/lib64/libcuda.so.535.183.06", "opt/nvidia/lib64"),
            ("libnvidia-ml.so.1", "opt/nvidia/lib64/libnvidia-ml.so.535.183.06", "opt/nvidia/lib64"),
        ],
        files: &[("/usr/bin/nvidia-smi", "opt/nvidia/bin/nvidia-smi", "beside libcuda.so.535.183.06")],
        ..NONE
    },
    Layout {
        name: "halves of two installations (D05)",
        loaded: "535.183.06",
        libraries: &[
            "opt/nvidia/lib64/libcuda.so.535.183.06",
            "home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.535.183.06",
        ],
        others: &["home/kubernetes/bin/nvidia/bin/nvidia-smi"],
        found: &[("libcuda.so.1", "opt/nvidia/lib64/libcuda.so.535.183.06", "opt/nvidia/lib64")],
        findings: &[("library-missing", true)],
        ..NONE
    },
    Layout {
        name: "a driver container (D13)",
        loaded: "550.1",
        libraries: &[
            "run/nvidia/driver/usr/lib/x86_64-linux-gnu/nvidia/libcuda.so.550.1",
            "run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.1",
            "usr/lib64/libcuda.so.470.1",
        ],
        others: &["run/nvidia/driver/usr/bin/nvidia-smi", "usr/bin/nvidia-smi"],
        links: &[(
            "run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.1",
            "/usr/lib/x86_64-linux-gnu/nvidia/libcuda.so.550.1",
        )],
        found: &[
            (
                "libcuda.so.1",
                "run/nvidia/driver/usr/lib/x86_64-linux-gnu/nvidia/libcuda.so.550.1",
                "run/nvidia/driver: usr/lib/x86_64-linux-gnu",
            ),
            (
                "libnvidia-ml.so.1",
                "run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.1",
                "run/nvidia/driver: usr/lib/x86_64-linux-gnu",
            ),
        ],
        files: &[(
            "/usr/bin/nvidia-smi",
            "run/nvidia/driver/usr/bin/nvidia-smi",
            "run/nvidia/driver: beside libnvidia-ml.so.550.1",
        )],
        findings: &[("driver-version-mixed", false)],
        ..NONE
    },
    Layout {
        name: "snap (D04)",
        loaded: "535.1",
        libraries: &[
            "snap/docker/x17/graphics/lib/x86_64-linux-gnu/libcuda.so.535.1",
            "snap/docker/x17/graphics/lib/x86_64-linux-gnu/libnvidia-ml.so.535.1",
        ],
        others: &["snap/docker/x17/graphics/usr/bin/nvidia-smi"],
        links: &[("snap/docker/current", "x17")],
        found: &[
            (
                "libcuda.so.1",
                "snap/docker/x17/graphics/lib/x86_64-linux-gnu/libcuda.so.535.1",
                "snap/docker/current/graphics/lib/x86_64-linux-gnu",
            ),
            (
                "libnvidia-ml.so.1",
                "snap/docker/x17/graphics/lib/x86_64-linux-gnu/libnvidia-ml.so.535.1",
                "snap/docker/current/graphics/lib/x86_64-linux-gnu",
            ),
        ],
        files: &[(
            "/usr/bin/nvidia-smi",
            "snap/docker/x17/graphics/usr/bin/nvidia-smi",
            "snap/docker/current/graphics/usr/bin",
        )],
        ..NONE
    },
    Layout {
        name: "/usr/local/nvidia",
        loaded: "535.1",
        libraries: &["usr/local/nvidia/lib64/libcuda.so.535.1", "usr/local/nvidia/lib64/libnvidia-ml.so.535.1"],
        others: &["usr/local/nvidia/bin/nvidia-smi"],
        found: &[
            ("libcuda.so.1", "usr/local/nvidia/lib64/libcuda.so.535.1", "usr/local/nvidia/lib64"),
            ("libnvidia-ml.so.1", "usr/local/nvidia/lib64/libnvidia-ml.so.535.1", "usr/local/nvidia/lib64"),
        ],
        files: &[("/usr/bin/nvidia-smi", "usr/local/nvidia/bin/nvidia-smi", "beside libcuda.so.535.1")],
        ..NONE
    },
];
