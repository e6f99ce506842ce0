//! Where quilt-gpu and NVIDIA's generator differ, and why.

use crate::words::Words;
use Only::{Ours, Theirs};

/// Who gives something out that the other does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Only {
    Theirs,
    Ours,
}

/// Who; a word, in which `*` stands for whatever stands there; why.
pub(crate) const DIFFERENCES: [(Only, &str, &str); 22] = [
    // Names of libraries.
    (
        Theirs,
        "name *.so.V *",
        "we bind by SONAME, which is what loaders look for; they mount files under their own names",
    ),
    (Theirs, "name *.so.1.1.2 *", "the same"),
    (Theirs, "name *.so.1.1.19 *", "the same"),
    (Ours, "name libnvidia-egl-gbm.so.1 *", "their update-ldcache runs ldconfig, which makes such links"),
    (Ours, "name libnvidia-egl-wayland.so.1 *", "the same"),
    (
        Theirs,
        "name libGLX_indirect.so.0 *",
        "for X servers that name no vendor: with ours an image's own library of that name serves them",
    ),
    (Theirs, "name *.so *", "names for compilers; those that programs open are bound (linker::plain_name)"),
    // Files.
    (Theirs, "file /lib/firmware/nvidia/V/*", "only the node's kernel module loads it: `[policy] firmware`"),
    (Theirs, "file /run/nvidia-persistenced/socket", "a way to a daemon of the node: `[policy] sockets`"),
    (
        Theirs,
        "file /usr/lib/x86_64-linux-gnu/libnvidia-ngx.so.V",
        "DLSS has a driver capability of its own, which no request of ours can name",
    ),
    (Theirs, "name libnvidia-ngx.so.1 *", "the same"),
    (Ours, "file /etc/OpenCL/vendors/nvidia.icd", "OpenCL's loader finds the driver by it; they leave it to images"),
    (Ours, "file /usr/lib/x86_64-linux-gnu/libnvidia-api.so.1", "they give it out behind a feature flag"),
    (Ours, "name libnvidia-api.so.1 *", "the same"),
    (
        Ours,
        "control /dev/nvidia-caps/*",
        "for the owners that `[policy] mig_config` and `mig_monitor` name, with CAP_SYS_ADMIN, and nobody else",
    ),
    // Variables.
    (Theirs, "env NVIDIA_CTK_LIBCUDA_DIR", "words between their own hooks"),
    (Ours, "env NVIDIA_DRIVER_CAPABILITIES", "what was granted; theirs does not select by capability"),
    (Ours, "env CUDA_VISIBLE_DEVICES", "`[policy] cuda_visible_devices`: images that bake it would hide the GPU"),
    // Programs that are run while the container is made: we run none.
    (Theirs, "hook create-symlinks", "we bind every name"),
    (Theirs, "hook update-ldcache", "we write ld.so.cache ourselves: nothing in the image is run"),
    (
        Theirs,
        "hook enable-cuda-compat",
        "it prefers a newer libcuda of the image (forward compatibility), which here LD_LIBRARY_PATH does",
    ),
    (
        Theirs,
        "hook disable-device-node-modification",
        "it keeps the driver's libraries from making nodes; ours may, and the device filter refuses what is not granted",
    ),
];

/// Every word that only one of both has, with the row that explains it.
pub(crate) fn explained(theirs: &Words, ours: &Words) -> Vec<(String, Option<usize>)> {
    let only = |who: Only, a: &Words, b: &Words| {
        a.difference(b).map(|word| (format!("{who:?} {word}"), row(who, word))).collect::<Vec<_>>()
    };
    [only(Theirs, theirs, ours), only(Ours, ours, theirs)].concat()
}

fn row(who: Only, word: &str) -> Option<usize> {
    DIFFERENCES.iter().position(|(only, pattern, _)| *only == who && fits(pattern, word))
}

/// Whether the parts of a pattern stand in a word, in their order, the first at its beginning and the last at its end.
fn fits(pattern: &str, word: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == word };
    let Some(word) = word.strip_prefix(start) else { return false };
    (0..=word.len()).any(|at| word.get(at..).is_some_and(|word| fits(rest, word)))
}

#[test]
fn patterns() {
    for (pattern, word, fit) in [
        ("name *.so.V *", "name libcuda.so.V libcuda.so.V", true),
        ("name *.so *", "name libcuda.so.V libcuda.so.V", false),
        ("name *.so *", "name libcuda.so libcuda.so.V", true),
        ("a*", "a", true),
        ("a", "ab", false),
    ] {
        assert_eq!(fits(pattern, word), fit, "{pattern} {word}");
    }
}
