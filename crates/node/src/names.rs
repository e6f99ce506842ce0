//! What else a place is called: several mounts may show one folder of a file system, and then no path tells what it is.

use guard::Name;

use crate::landmarks::{is_within, part};
use crate::mountinfo::Mount;

/// File systems whose files run programs on the host, or reach devices past every device list. `ro` of what they are mounted in
/// does not reach them.
const KERNELS: [&str; 3] = ["binfmt_misc", "proc", "sysfs"];

/// Other names of what lies at a resolved path, and, with `recursive`, of what is mounted inside: of that only those that are
/// `near`. A machine may show one folder a thousand times, and each is called by the names of all.
pub(crate) fn others(mounts: &[Mount<'_>], real: &str, recursive: bool, near: &dyn Fn(&str) -> bool) -> Vec<Name> {
    let mut found = Found { mounts, real, recursive, names: Vec::new() };
    if let Some((dev, path)) = part(mounts, real) {
        mounts.iter().for_each(|other| found.add((dev, &path, ""), other, &|_| true));
    }
    let inside = mounts.iter().filter(|_| recursive).filter_map(|mount| {
        let rest = below(&mount.point, real).filter(|rest| !rest.is_empty())?;
        Some((mount.dev, &*mount.root, rest))
    });
    // A name that is near begins with a mount point that is.
    let mut at: Option<Vec<&Mount<'_>>> = None;
    for part in inside {
        let at = at.get_or_insert_with(|| mounts.iter().filter(|other| near(&other.point)).collect());
        at.iter().for_each(|other| found.add(part, other, near));
    }
    let mut names = found.names;
    contract::order::sort(&mut names);
    names.dedup();
    names
}

struct Found<'m> {
    mounts: &'m [Mount<'m>],
    real: &'m str,
    recursive: bool,
    names: Vec<Name>,
}

impl Found<'_> {
    /// Adds what a part (its device, its path there, and where it is in the source) is called below another mount point.
    fn add(&mut self, (dev, path, rest): ((u32, u32), &str, &str), other: &Mount<'_>, near: &dyn Fn(&str) -> bool) {
        if other.dev != dev {
            return;
        }
        let (rest, name, lies) = if let Some(below) = below(path, &other.root) {
            (rest.to_owned(), joined(&other.point, below), path)
        } else if let Some(below) = below(&other.root, path) {
            (joined(rest, below).trim_start_matches('/').to_owned(), other.point.to_string(), &*other.root)
        } else {
            return;
        };
        let place = joined(self.real, &rest);
        // What is covered at either place is not seen there.
        let is_seen = |at: &str| part(self.mounts, at).is_some_and(|(of, path)| of == dev && path == lies);
        if name != place && near(&name) && is_seen(&name) && (!self.recursive || is_seen(&place)) {
            self.names.push(Name { rest, real: name });
        }
    }
}

/// Names of a part of a file system, where it is seen.
pub(crate) fn of_part(mounts: &[Mount<'_>], dev: (u32, u32), path: &str) -> Vec<String> {
    let shown = mounts.iter().filter(|mount| mount.dev == dev);
    let names = shown.filter_map(|mount| Some(joined(&mount.point, below(path, &mount.root)?)));
    names.filter(|name| part(mounts, name).is_some_and(|(of, lies)| of == dev && lies == path)).collect()
}

/// Where file systems of the kernel's are mounted inside a folder.
pub(crate) fn kernels_inside(mounts: &[Mount<'_>], real: &str) -> Vec<String> {
    let kernels = mounts.iter().filter(|mount| KERNELS.contains(&mount.fs));
    let inside = kernels.filter_map(|mount| below(&mount.point, real).filter(|rest| !rest.is_empty()));
    let mut places: Vec<String> = inside.map(str::to_owned).collect();
    contract::order::sort(&mut places);
    places.dedup();
    places
}

fn below<'p>(path: &'p str, folder: &str) -> Option<&'p str> {
    let rest = path.get(folder.trim_end_matches('/').len()..).filter(|_| is_within(path, folder))?;
    Some(rest.trim_start_matches('/'))
}

fn joined(folder: &str, rest: &str) -> String {
    if rest.is_empty() { folder.to_owned() } else { format!("{}/{rest}", folder.trim_end_matches('/')) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountinfo::parse;

    const MOUNTS: &[u8] = b"1 0 254:0 / / rw - ext4 /dev/vda rw\n\
        2 1 0:30 / /run rw - tmpfs tmpfs rw\n\
        3 1 0:31 / /proc rw - proc proc rw\n\
        4 3 0:32 / /proc/sys/fs/binfmt_misc rw - binfmt_misc b rw\n\
        5 1 0:30 /quilt-gpu /var/lib/kubelet/sub/0 rw - tmpfs tmpfs rw\n\
        6 1 254:0 / /sysroot rw - ext4 /dev/vda rw\n\
        7 1 254:0 /data/q /srv/q rw - ext4 /dev/vda rw\n\
        8 1 0:31 / /var/lib/docker/volumes/v/_data rw - proc proc rw\n\
        9 1 0:33 / /opt rw - tmpfs covers rw\n\
        10 1 254:0 /run/x /mnt/x rw - ext4 /dev/vda rw\n";

    fn told(real: &str, recursive: bool) -> Vec<String> {
        let names = others(&parse(MOUNTS), real, recursive, &|_| true);
        names.into_iter().map(|name| format!("{}={}", name.rest, name.real)).collect()
    }

    #[test]
    fn names_by_other_mounts() {
        for (real, recursive, expected) in [
            // A second mount of a folder inside another file system.
            ("/var/lib/kubelet/sub/0", true, &["=/run/quilt-gpu"][..]),
            ("/var/lib/kubelet/sub/0/leases", false, &["=/run/quilt-gpu/leases"]),
            ("/run", false, &["quilt-gpu=/var/lib/kubelet/sub/0"]),
            ("/var/lib/kubelet", true, &["=/sysroot/var/lib/kubelet", "sub/0=/run/quilt-gpu"]),
            // Not recursive, it shows what lies under its mounts.
            ("/var/lib/kubelet", false, &["=/sysroot/var/lib/kubelet"]),
            ("/sysroot/etc", false, &["=/etc"]),
            ("/etc/passwd", false, &["=/sysroot/etc/passwd"]),
            ("/data", false, &["=/sysroot/data", "q=/srv/q"]),
            ("/srv/q/a", false, &["=/data/q/a", "=/sysroot/data/q/a"]),
            ("/var/lib/docker/volumes/v/_data/1", false, &["=/proc/1"]),
            // Covered by another mount there: /run/x is not what lies on the disk.
            ("/mnt/x", false, &["=/sysroot/run/x"]),
            ("/opt", true, &[]),
            ("/run/other", true, &[]),
        ] {
            assert_eq!(told(real, recursive), expected, "{real} {recursive}");
        }
        let all = told("/", true);
        for name in
            ["sysroot=/", "=/sysroot", "var/lib/kubelet/sub/0=/run/quilt-gpu", "srv/q=/data/q", "mnt/x=/sysroot/run/x"]
        {
            assert!(all.contains(&name.to_owned()), "{name}: {all:?}");
        }
    }

    #[test]
    fn names_of_a_part() {
        let mounts = parse(MOUNTS);
        for (dev, path, expected) in [
            ((254, 0), "/data/q/a", &["/data/q/a", "/sysroot/data/q/a", "/srv/q/a"][..]),
            ((0, 31), "/sys", &["/proc/sys", "/var/lib/docker/volumes/v/_data/sys"]),
            // Covered in the place of that name.
            ((254, 0), "/run/x", &["/sysroot/run/x", "/mnt/x"]),
            ((0, 99), "/", &[]),
        ] {
            assert_eq!(of_part(&mounts, dev, path), expected, "{dev:?} {path}");
        }
    }

    #[test]
    fn names_of_parts_are_told_where_they_are_near() {
        let names = others(&parse(MOUNTS), "/", true, &|name| is_within("/run/quilt-gpu", name));
        let names: Vec<_> = names.into_iter().map(|name| format!("{}={}", name.rest, name.real)).collect();
        assert_eq!(names, ["=/sysroot", "data/q=/srv/q", "sysroot=/", "var/lib/kubelet/sub/0=/run/quilt-gpu"]);
    }

    /// By counting, not by time: how often a name is asked about, of a folder that is shown that many times.
    #[test]
    fn a_folder_that_is_shown_often_does_not_multiply() {
        let times = 400;
        let shown = |at: usize| format!("{} 1 0:40 /d /srv/{at} rw - tmpfs tmpfs rw\n", at + 20);
        let table: String = (0..times).map(shown).collect();
        let bytes = [MOUNTS, table.as_bytes()].concat();
        let asked = std::cell::Cell::new(0);
        let near = |name: &str| {
            asked.set(asked.get() + 1);
            is_within("/run/quilt-gpu", name)
        };
        assert_eq!(others(&parse(&bytes), "/", true, &near).len(), 4);
        assert!(asked.get() < 2 * times, "{}", asked.get());
    }

    #[test]
    fn file_systems_of_the_kernel() {
        let mounts = parse(MOUNTS);
        assert_eq!(kernels_inside(&mounts, "/proc"), ["sys/fs/binfmt_misc"]);
        let all = ["proc", "proc/sys/fs/binfmt_misc", "var/lib/docker/volumes/v/_data"];
        assert_eq!(kernels_inside(&mounts, "/"), all);
        assert_eq!(kernels_inside(&mounts, "/run"), [""; 0]);
    }
}
