//! Device numbers: `/proc/devices`, and nodes in folders of the node's own.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use contract::inventory::DeviceNode;
use guard::Majors;

/// How deep a folder of nodes is searched, and how many entries are looked at.
const DEEPEST: usize = 4;
const MOST: usize = 4096;

/// Minors of the major 10 by name, from the text of `/proc/misc`.
pub(crate) fn misc(bytes: &[u8]) -> Majors {
    numbered(String::from_utf8_lossy(bytes).lines())
}

/// Lines of a number and a name.
fn numbered<'l>(lines: impl Iterator<Item = &'l str>) -> Majors {
    let entry = |line: &str| {
        let (number, name) = line.trim_start().split_once(' ')?;
        Some((name.trim().to_owned(), number.parse().ok()?))
    };
    lines.filter_map(entry).collect()
}

/// Character majors by name, from the text of `/proc/devices`; block devices are another space and left out.
#[must_use]
pub fn majors(bytes: &[u8]) -> Majors {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    lines.by_ref().find(|line| line.starts_with("Character devices:"));
    numbered(lines.take_while(|line| !line.starts_with("Block devices:")))
}

/// Whether a major of this name belongs to a GPU: NVIDIA's own, VFIO's groups, GPUDirect's.
pub(crate) fn is_gpu_name(name: &str) -> bool {
    name.starts_with("nvidia") || matches!(name, "vfio" | "gdrdrv")
}

/// Minors of DRM below `end` that `sys/dev/char` names; nothing where it cannot be read.
pub(crate) fn drm_minors(folder: &str) -> Option<Vec<u32>> {
    let entries = fs::read_dir(folder).ok()?;
    let minor = |name: &str| name.strip_prefix("226:")?.parse().ok();
    let mut minors: Vec<u32> = entries.flatten().filter_map(|entry| minor(entry.file_name().to_str()?)).collect();
    contract::order::sort(&mut minors);
    Some(minors)
}

/// Major and minor of a device number.
pub(crate) fn numbers(rdev: u64) -> (u32, u32) {
    let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    (narrow(nix::sys::stat::major(rdev)), narrow(nix::sys::stat::minor(rdev)))
}

/// Whether the node is what the inventory says: a character device with these numbers, not a link to one.
///
/// # Errors
/// What is there instead.
pub fn check_node(node: &DeviceNode) -> Result<(), String> {
    let there = match fs::symlink_metadata(&node.host_path) {
        Ok(meta) if meta.file_type().is_char_device() => numbers(meta.rdev()),
        Ok(_) => return Err(format!("{} is not a character device", node.host_path)),
        Err(e) => return Err(format!("cannot look at {}: {e}", node.host_path)),
    };
    if there == (node.major, node.minor) {
        return Ok(());
    }
    Err(format!("{} is device {}:{}, not {}:{}", node.host_path, there.0, there.1, node.major, node.minor))
}

/// Numbers of the character devices in a folder and below it, on the same file system. A link counts as what it leads to.
pub(crate) fn inside(folder: &str) -> Result<Vec<(u32, u32)>, String> {
    let failed = |path: &Path, e: std::io::Error| format!("cannot look through {}: {e}", path.display());
    let top = fs::metadata(folder).map_err(|e| failed(Path::new(folder), e))?.dev();
    let (mut nodes, mut seen) = (BTreeSet::new(), 0);
    let mut waiting = vec![(Path::new(folder).to_owned(), 0)];
    while let Some((folder, depth)) = waiting.pop() {
        for entry in fs::read_dir(&folder).map_err(|e| failed(&folder, e))? {
            let path = entry.map_err(|e| failed(&folder, e))?.path();
            seen += 1;
            if seen > MOST {
                return Err(format!("cannot look through {}: more than {MOST} entries", folder.display()));
            }
            let Some(meta) = look(&path).map_err(|e| failed(&path, e))? else {
                continue;
            };
            if meta.file_type().is_char_device() {
                nodes.insert(numbers(meta.rdev()));
            } else if meta.is_dir() && meta.dev() == top {
                if depth == DEEPEST {
                    return Err(format!("cannot look through {}: more than {DEEPEST} folders deep", path.display()));
                }
                waiting.push((path, depth + 1));
            }
        }
    }
    Ok(nodes.into_iter().collect())
}

/// What an entry is; a link to a character device is that device, any other link is nothing. Devices come and go.
fn look(path: &Path) -> std::io::Result<Option<Metadata>> {
    let there = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_symlink() => fs::metadata(path).ok().filter(|meta| meta.file_type().is_char_device()),
        Ok(meta) => Some(meta),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    Ok(there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEVICES: &[u8] = b"Character devices:\n  1 mem\n  4 /dev/vc/0\n  4 tty\n195 nvidia-frontend\n195 nvidia\n\
        511 nvidia-uvm\n203 cpu/cpuid\n\nBlock devices:\n  7 loop\n195 nvidia-lookalike\n";

    #[test]
    fn drm_minors_that_sysfs_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["226:128", "226:0", "226:300", "226:", "22:6", "10:226"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(drm_minors(folder.path().to_str().unwrap()).unwrap(), [0, 128, 300]);
        assert_eq!(drm_minors("/nowhere"), None);
    }

    #[test]
    fn character_majors_only() {
        let majors = majors(DEVICES);
        let names: Vec<(&str, u32)> = majors.iter().map(|(name, major)| (name.as_str(), *major)).collect();
        let expected = [("mem", 1), ("/dev/vc/0", 4), ("tty", 4), ("nvidia-frontend", 195), ("nvidia", 195)];
        assert_eq!(names[..5], expected);
        assert_eq!(names[5..], [("nvidia-uvm", 511), ("cpu/cpuid", 203)]);
        assert!(super::majors(b"").is_empty());
        assert!(super::majors(b"Block devices:\n195 nvidia\n").is_empty());
    }

    #[test]
    fn names_of_gpus() {
        for (name, is) in [
            ("nvidia", true),
            ("nvidia-caps-imex-channels", true),
            ("vfio", true),
            ("gdrdrv", true),
            ("mem", false),
            ("vfiox", false),
        ] {
            assert_eq!(is_gpu_name(name), is, "{name}");
        }
    }

    proptest! {
        #[test]
        fn what_the_kernel_prints(list in prop::collection::vec(("[a-z][a-z0-9/-]{0,12}", 0_u32..4096), 0..20)) {
            let mut text = String::from("Character devices:\n");
            list.iter().for_each(|(name, major)| text.push_str(&format!("{major:3} {name}\n")));
            text.push_str("\nBlock devices:\n  7 loop\n");
            prop_assert_eq!(majors(text.as_bytes()), list);
        }

        #[test]
        fn anything_is_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = majors(&[b"Character devices:\n".as_slice(), &bytes].concat());
        }
    }
}
