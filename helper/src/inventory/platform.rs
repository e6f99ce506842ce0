//! Machines whose NVIDIA GPUs are not what we grant: named, so that nobody gets half a result.

use std::fs;
use std::path::Path;

use contract::config::Host;
use contract::inventory::Finding;

/// The finding that stops everything on such a machine.
pub(crate) fn finding(host: &Host) -> Option<Finding> {
    if let Some(sign) = tegra(host) {
        return Some(stops(
            "tegra-unsupported",
            format!(
                "this is a Tegra ({sign}): its GPU is part of the chip, not a device on the PCI bus with a node of its own, and is not supported; nothing is granted here"
            ),
        ));
    }
    let dxg = host.path("dev/dxg");
    exists(&dxg).then(|| {
        let library = "usr/lib/wsl/lib/libdxcore.so";
        let has = if exists(&host.path(library)) { "is there" } else { "is missing" };
        stops(
            "wsl-unsupported",
            format!(
                "this is WSL: every GPU is behind the one device {dxg}, which cannot be opened for one GPU and not for the others, so nothing is granted here (/{library} {has})"
            ),
        )
    })
}

/// What shows that this is a Tegra.
fn tegra(host: &Host) -> Option<String> {
    let compatible = "proc/device-tree/compatible";
    let words = fs::read(host.path(compatible)).unwrap_or_default();
    let model =
        words.split(|byte| *byte == 0).map(String::from_utf8_lossy).find(|word| word.starts_with("nvidia,tegra"));
    let file = || ["etc/nv_tegra_release", "sys/module/nvgpu"].into_iter().find(|path| exists(&host.path(path)));
    match model {
        Some(model) => Some(format!("{model} in /{compatible}")),
        None => file().map(|path| format!("/{path}")),
    }
}

fn exists(path: &str) -> bool {
    fs::symlink_metadata(Path::new(path)).is_ok()
}

fn stops(code: &str, message: String) -> Finding {
    Finding { code: code.into(), stops: true, message }
}
