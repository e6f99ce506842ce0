//! `/proc/<pid>/mountinfo` (`proc_pid_mountinfo(5)`), read without copying what needs no unescaping.

use std::borrow::Cow;

use crate::error::NodeError;
use crate::file;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount<'a> {
    /// Its number, as `fdinfo` of an open file names it too.
    pub id: u32,
    /// Device (major, minor) of the file system, as the kernel names it here; btrfs shows another one in `st_dev`.
    pub dev: (u32, u32),
    /// The folder of the file system that is the top of this mount.
    pub root: Cow<'a, str>,
    /// Where it is mounted, as the process sees it.
    pub point: Cow<'a, str>,
    /// Options of this mount: `rw,nosuid`.
    pub options: &'a str,
    /// Optional fields with blanks between: `shared:1 master:2`; empty when private.
    pub propagation: &'a str,
    /// Type of the file system: `ext4`.
    pub fs: &'a str,
    /// What is mounted: a device, a name, anything.
    pub source: Cow<'a, str>,
    /// Options of the file system.
    pub super_options: &'a str,
}

/// The mounts of one process, as bytes to be looked at.
#[derive(Debug, Clone)]
pub struct Table(Vec<u8>);

impl From<Vec<u8>> for Table {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Table {
    /// The mounts, in the kernel's order: a later one covers an earlier one at the same point.
    #[must_use]
    pub fn mounts(&self) -> Vec<Mount<'_>> {
        parse(&self.0)
    }

    /// The mounts of control groups, of both versions, without a closer look at the others.
    #[must_use]
    pub fn control_groups(&self) -> Vec<Mount<'_>> {
        let lines = self.0.split(|&b| b == b'\n');
        // The kind stands before source and options, in which the kernel writes a space otherwise.
        let kind = |line: &&[u8]| line.rsplit(|&b| b == b' ').nth(2).is_some_and(|kind| kind.starts_with(b"cgroup"));
        lines.filter(kind).flat_map(parse).collect()
    }
}

/// Bytes of a table that are expected.
const ROOM: usize = 8 << 10;

/// The mounts that a process sees.
///
/// # Errors
/// The process is gone, or its mounts may not be read.
pub fn of(pid: u32) -> Result<Table, NodeError> {
    file::read_into(&format!("/proc/{pid}/mountinfo"), ROOM).map(Table)
}

/// The mounts that we see.
///
/// # Errors
/// `/proc` is not there.
pub fn own() -> Result<Table, NodeError> {
    file::read_into("/proc/thread-self/mountinfo", ROOM).map(Table)
}

/// Reads a mount table; a line that is not one of a mount table is left out.
#[must_use]
pub fn parse(bytes: &[u8]) -> Vec<Mount<'_>> {
    bytes.split(|&b| b == b'\n').filter_map(|line| std::str::from_utf8(line).ok().and_then(mount)).collect()
}

fn mount(line: &str) -> Option<Mount<'_>> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.splitn(7, ' ');
    let (id, _parent) = (front.next()?, front.next()?);
    let (major, minor) = front.next()?.split_once(':')?;
    let (root, point, options) = (front.next()?, front.next()?, front.next()?);
    let mut rest = back.splitn(3, ' ');
    Some(Mount {
        id: id.parse().ok()?,
        dev: (major.parse().ok()?, minor.parse().ok()?),
        root: unescape(root),
        point: unescape(point),
        options,
        propagation: front.next().unwrap_or_default(),
        fs: rest.next()?,
        source: unescape(rest.next()?),
        super_options: rest.next().unwrap_or_default(),
    })
}

impl Mount<'_> {
    /// Whether the mount itself has this option.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|one| one == option)
    }
}

/// Undoes the kernel's `\040` for blank, tab, newline, backslash and `#`.
pub(crate) fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let escaped = after.get(..3).filter(|digits| digits.bytes().all(|b| matches!(b, b'0'..=b'7')));
        match escaped.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(u8::is_ascii) {
            Some(byte) => {
                out.push(char::from(byte));
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                out.push('\\');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &[u8] = b"24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw,size=12334432k,mode=755\n\
        36 31 0:33 /docker/a\\040b /sys/fs/cgroup/devices rw shared:9 master:2 - cgroup cgroup rw,devices\n\
        not a mount\n\
        50 27 259:1 / /mnt/caf\xc3\xa9\\134x\\012y ro,nosuid unbindable - ext4 /dev/with\\040blank rw\n\
        51 27 0:50 / /mnt/empty rw - fuse.x  rw\n";

    #[test]
    fn a_table() {
        let mounts = parse(TABLE);
        let points: Vec<&str> = mounts.iter().map(|mount| mount.point.as_ref()).collect();
        assert_eq!(points, ["/dev", "/sys/fs/cgroup/devices", "/mnt/café\\x\ny", "/mnt/empty"]);
        let group = &mounts[1];
        assert_eq!((group.dev, group.root.as_ref(), group.options), ((0, 33), "/docker/a b", "rw"));
        assert_eq!((group.propagation, group.fs, group.super_options), ("shared:9 master:2", "cgroup", "rw,devices"));
        assert_eq!(mounts[2].source, "/dev/with blank");
        assert_eq!((mounts[3].fs, mounts[3].source.as_ref(), mounts[3].super_options), ("fuse.x", "", "rw"));
        assert_eq!(mounts[0].propagation, "");
    }

    #[test]
    fn our_own() {
        let table = own().unwrap();
        assert!(table.mounts().iter().any(|mount| mount.point == "/"));
        let groups = table.mounts().into_iter().filter(|mount| matches!(mount.fs, "cgroup" | "cgroup2"));
        assert_eq!(groups.collect::<Vec<_>>(), table.control_groups());
        assert_eq!(of(std::process::id()).unwrap().mounts().len(), table.mounts().len());
        assert!(of(0).is_err());
    }

    /// As the kernel's `seq_path` writes it.
    fn escape(text: &str) -> String {
        text.chars()
            .map(|c| if " \t\n\\#".contains(c) { format!("\\{:03o}", u32::from(c)) } else { c.to_string() })
            .collect()
    }

    proptest! {
        #[test]
        fn names_survive(root in "/[ -~\t\né]{0,20}", point in "/[ -~\t\né]{0,20}", source in "[ -~\t\né]{0,20}") {
            let line = format!("1 2 8:17 {} {} rw - ext4 {} rw\n", escape(&root), escape(&point), escape(&source));
            let mounts = parse(line.as_bytes());
            prop_assert_eq!(mounts.len(), 1);
            prop_assert_eq!((&*mounts[0].root, &*mounts[0].point, &*mounts[0].source), (&*root, &*point, &*source));
        }

        #[test]
        fn anything_is_read(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'\\'), Just(b' '), Just(b'-')], 0..200)) {
            let _ = parse(&bytes);
            let _ = unescape(&String::from_utf8_lossy(&bytes));
        }
    }
}
