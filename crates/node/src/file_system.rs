//! Which file system an object lies on, by the mount table: `fstatfs` would ask the file system's server, which may be dead.

use std::sync::OnceLock;

use guard::FileSystem;

use crate::landmarks::is_within;
use crate::mountinfo::{self, Mount, Table, unescape};

/// The mount table, read when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Mounted(OnceLock<Table>);

impl Mounted {
    /// The mounts that we see.
    pub(crate) fn table(&self) -> Result<&Table, String> {
        if let Some(table) = self.0.get() {
            return Ok(table);
        }
        let table = mountinfo::own().map_err(|e| e.to_string())?;
        Ok(self.0.get_or_init(|| table))
    }

    /// What an object of this device at this resolved path lies on. What is mounted on a device of its own is of no interest.
    pub(crate) fn of(&self, dev: (u32, u32), real: &str) -> Result<FileSystem, String> {
        if dev.0 != 0 {
            return Ok(FileSystem::Plain);
        }
        if let Some(found) = by_device(&self.table()?.mounts(), dev) {
            return Ok(found);
        }
        // It was mounted since, or its device is not the file system's: btrfs, files of an overlay.
        let now = mountinfo::own().map_err(|e| e.to_string())?;
        let mounts = now.mounts();
        let above =
            || mounts.iter().filter(|mount| is_within(real, &mount.point)).max_by_key(|mount| mount.point.len());
        let found = by_device(&mounts, dev).or_else(|| by_device(&mounts, above()?.dev));
        found.ok_or_else(|| "the mount table does not show what it lies on".to_owned())
    }
}

fn by_device(mounts: &[Mount<'_>], dev: (u32, u32)) -> Option<FileSystem> {
    let mut here = mounts.iter().filter(|mount| mount.dev == dev).peekable();
    let first = here.peek()?;
    Some(match first.fs {
        "sysfs" => FileSystem::Sysfs,
        "proc" => FileSystem::Proc,
        "binfmt_misc" => FileSystem::BinfmtMisc,
        "debugfs" | "tracefs" | "securityfs" | "bpf" => FileSystem::KernelFiles,
        "overlay" => FileSystem::Overlay {
            options: first.super_options.split(',').map(|option| unescape(option).into_owned()).collect(),
            points: here.map(|mount| mount.point.to_string()).collect(),
        },
        _ => FileSystem::Plain,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_the_table() {
        let mounts = mountinfo::parse(
            b"1 0 0:30 / / rw - overlay overlay rw,lowerdir=/a\\054b:/c,upperdir=/u\n\
            2 1 0:31 / /sys rw - sysfs sysfs rw\n\
            3 1 0:32 / /run rw - tmpfs tmpfs rw\n\
            4 1 0:33 /x /v rw - proc p rw\n\
            5 1 0:30 /b /w rw - overlay overlay rw\n",
        );
        let overlay = FileSystem::Overlay {
            points: vec!["/".into(), "/w".into()],
            options: vec!["rw".into(), "lowerdir=/a,b:/c".into(), "upperdir=/u".into()],
        };
        for (minor, expected) in [
            (30, Some(overlay)),
            (31, Some(FileSystem::Sysfs)),
            (32, Some(FileSystem::Plain)),
            (33, Some(FileSystem::Proc)),
            (34, None),
        ] {
            assert_eq!(by_device(&mounts, (0, minor)), expected, "{minor}");
        }
    }
}
