//! Block devices that mounted file systems lie on, and those that these lie on in turn (`Documentation/ABI/stable/sysfs-block`).

use std::fs;
use std::path::Path;

use nix::sys::stat::{SFlag, stat};

use crate::mountinfo::Mount;
use crate::{devices, file};

/// Their numbers. `folder`: where sysfs lists block devices by number; without it no disk of a partition is known.
pub(crate) fn of(mounts: &[Mount<'_>], folder: &str) -> Vec<(u32, u32)> {
    let mut left: Vec<_> = mounts.iter().filter_map(number).collect();
    let mut disks = Vec::new();
    while let Some(disk) = left.pop() {
        if !disks.contains(&disk) {
            disks.push(disk);
            left.extend(below(folder, disk));
        }
    }
    disks
}

/// The device of a mount's file system. btrfs has a number of its own there, and names the device as what is mounted.
fn number(mount: &Mount<'_>) -> Option<(u32, u32)> {
    if mount.dev.0 != 0 {
        return Some(mount.dev);
    }
    let stat = mount.source.starts_with("/dev/").then(|| stat(&*mount.source).ok()).flatten()?;
    file::is(stat.st_mode, SFlag::S_IFBLK).then(|| devices::numbers(stat.st_rdev))
}

/// What a partition is a part of, or what a device is mapped to.
fn below(folder: &str, (major, minor): (u32, u32)) -> Vec<(u32, u32)> {
    let Ok(device) = fs::canonicalize(format!("{folder}/{major}:{minor}")) else { return Vec::new() };
    let whole = device.join("partition").exists().then(|| device.parent()).flatten().and_then(told);
    let slaves = fs::read_dir(device.join("slaves")).into_iter().flatten().flatten();
    whole.into_iter().chain(slaves.filter_map(|slave| told(&slave.path()))).collect()
}

fn told(device: &Path) -> Option<(u32, u32)> {
    let text = fs::read_to_string(device.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::mountinfo::parse;

    /// A partition, and a mapping over a partition of another disk.
    #[test]
    fn what_lies_below_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        for (device, number) in
            [("sda", "8:0"), ("sda/sda1", "8:1"), ("sdb", "8:16"), ("sdb/sdb2", "8:18"), ("dm-0", "253:0")]
        {
            fs::create_dir_all(at(device).join("slaves")).unwrap();
            fs::write(at(device).join("dev"), format!("{number}\n")).unwrap();
            fs::create_dir_all(at("by")).unwrap();
            symlink(at(device), at("by").join(number)).unwrap();
        }
        for part in ["sda/sda1", "sdb/sdb2"] {
            fs::write(at(part).join("partition"), "1\n").unwrap();
        }
        symlink(at("sdb/sdb2"), at("dm-0/slaves/sdb2")).unwrap();
        let mounts = parse(b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 253:0 /x /y rw - xfs /dev/mapper/x rw\n3 1 0:9 / /z rw - tmpfs t rw\n");
        let mut disks = of(&mounts, &at("by").to_string_lossy());
        disks.sort_unstable();
        assert_eq!(disks, [(8, 0), (8, 1), (8, 16), (8, 18), (253, 0)]);
        disks = of(&mounts, "/nowhere");
        disks.sort_unstable();
        assert_eq!(disks, [(8, 1), (253, 0)]);
    }
}
