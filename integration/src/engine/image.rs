//! Images as `docker save` writes them, made from a root file system: what containerd imports.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::error::{Context, Result};
use crate::process::{text, tool};
use crate::rootfs::Rootfs;

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What an image says of itself.
pub(crate) struct Words<'a> {
    pub(crate) env: &'a [(&'a str, &'a str)],
    pub(crate) labels: &'a [(&'a str, &'a str)],
    pub(crate) command: &'a [&'a str],
}

/// Writes the archive of image `name` to `folder`, which must not exist, and gives its path.
pub(crate) fn archive(folder: &Path, name: &str, rootfs: &Rootfs, words: &Words<'_>) -> Result<PathBuf> {
    fs::create_dir(folder).cannot(|| format!("create {}", folder.display()))?;
    let layer = folder.join("layer.tar");
    rootfs.tar(&layer)?;
    let sum = tool("sha256sum", [text(&layer)?])?;
    let digest = format!("sha256:{}", sum.split(' ').next().unwrap_or_default());
    let env: Vec<String> =
        std::iter::once(PATH.into()).chain(words.env.iter().map(|(key, value)| format!("{key}={value}"))).collect();
    let labels: Map<String, Value> =
        words.labels.iter().map(|(key, value)| ((*key).into(), Value::from(*value))).collect();
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {"Env": env, "Cmd": words.command, "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
    for (leaf, document) in [("config.json", config), ("manifest.json", manifest)] {
        let path = folder.join(leaf);
        fs::write(&path, document.to_string()).cannot(|| format!("write {}", path.display()))?;
    }
    let archive = folder.join("image.tar");
    let files = ["layer.tar", "config.json", "manifest.json"];
    tool("tar", ["-C", text(folder)?, "-cf", text(&archive)?, files[0], files[1], files[2]])?;
    Ok(archive)
}
