//! What else a place is called: several mounts may show one folder of a file system, and then no path tells what it is.

use guard::Name;

use crate::landmarks::{is_within, part};
use crate::mountinfo::Mount;

/// File systems whose files run programs on the host, or reach devices past every device list. `ro` of what they are mounted in
/// does not reach them.
const KERNELS: [&str; 3] = ["binfmt_misc", "proc", "sysfs"];

/// Other names of what lies at a resolved path, and, with `recursive`, of what is mounted inside.
pub(crate) fn others(mounts: &[Mount<'_>], real: &str, recursive: bool) -> Vec<Name> {
    let whole = part(mounts, real).map(|(dev, path)| (dev, path, String::new()));
    let inside = mounts.iter().filter(|_| recursive).filter_map(|mount| {
        let rest = below(&mount.point, real).filter(|rest| !rest.is_empty())?;
        Some((mount.dev, mount.root.to_string(), rest.to_owned()))
    });
    let mut names = Vec::new();
    for (dev, path, rest) in whole.into_iter().chain(inside) {
        for other in mounts.iter().filter(|other| other.dev == dev) {
            let (rest, name, lies) = if let Some(below) = below(&path, &other.root) {
                (rest.clone(), joined(&other.point, below), path.as_str())
            } else if let Some(below) = below(&other.root, &path) {
                (joined(&rest, below).trim_start_matches('/').to_owned(), other.point.to_string(), &*other.root)
            } else {
                continue;
            };
            let place = joined(real, &rest);
            // What is covered at either place is not seen there.
            let is_seen = |at: &str| part(mounts, at).is_some_and(|(of, path)| of == dev && path == lies);
            if name != place && is_seen(&name) && (!recursive || is_seen(&place)) {
                names.push(Name { rest, real: name });
            }
        }
    }
    contract::order::sort(&mut names);
    names.dedup();
    names
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
        let names = others(&parse(MOUNTS), real, recursive);
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
    fn file_systems_of_the_kernel() {
        let mounts = parse(MOUNTS);
        assert_eq!(kernels_inside(&mounts, "/proc"), ["sys/fs/binfmt_misc"]);
        let all = ["proc", "proc/sys/fs/binfmt_misc", "var/lib/docker/volumes/v/_data"];
        assert_eq!(kernels_inside(&mounts, "/"), all);
        assert_eq!(kernels_inside(&mounts, "/run"), [""; 0]);
    }
}
