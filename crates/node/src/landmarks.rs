//! The folders that device nodes of the host live in, by identity, and where else a mount table shows them.

use contract::config::Host;
use nix::sys::stat::stat;

use crate::devices;
use crate::look::{self, Id, Seen};
use crate::mountinfo::Mount;

/// `/`, `/dev`, and the configured roots that are something else than these.
#[derive(Debug, Default)]
pub(crate) struct Landmarks {
    root: Option<Id>,
    dev: Option<Place>,
    dev_root: Option<Place>,
    driver_root: Option<Id>,
}

impl Landmarks {
    /// What is not there is no landmark.
    pub(crate) fn of(host: &Host) -> Self {
        let root = id("/");
        let dev = Place::of("/dev");
        let dev_root = Place::of(&host.dev_root()).filter(|place| dev.as_ref().is_none_or(|dev| dev.id != place.id));
        let driver_root = id(host.driver_root()).filter(|&driver_root| Some(driver_root) != root);
        Self { root, dev, dev_root, driver_root }
    }

    /// What a folder is in these terms.
    pub(crate) fn folder(&self, id: Id, real: String) -> guard::Dir {
        guard::Dir {
            is_root: self.root == Some(id),
            on_dev: self.dev.as_ref().is_some_and(|dev| dev.holds(id, &real)),
            is_dev: self.dev.as_ref().is_some_and(|dev| dev.id == id),
            in_driver_root: self.driver_root == Some(id) || self.dev_root.as_ref().is_some_and(|p| p.holds(id, &real)),
            real,
            ..guard::Dir::default()
        }
    }

    /// Whether the tree below `real`, mounts included, shows one of the folders with nodes.
    pub(crate) fn are_in(&self, mounts: &[Mount<'_>], real: &str) -> bool {
        [&self.dev, &self.dev_root].into_iter().flatten().any(|place| shows(mounts, real, place))
    }
}

/// A folder with device nodes.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    id: Id,
    /// It is a mount of its own, so its file system holds nothing else.
    own: bool,
    real: String,
}

impl Place {
    fn of(path: &str) -> Option<Self> {
        let Seen { stat, real, .. } = look::patiently(path).ok()?;
        let (above, _) = id(&format!("{real}/.."))?;
        Some(Self { id: stat.id, own: above != stat.id.0, real })
    }

    /// Whether it is this folder, or lies inside.
    fn holds(&self, id: Id, real: &str) -> bool {
        if self.own { id.0 == self.id.0 } else { id == self.id || is_within(real, &self.real) }
    }
}

fn id(path: &str) -> Option<Id> {
    stat(path).ok().map(|stat| (devices::numbers(stat.st_dev), stat.st_ino))
}

/// Whether `path` is `folder` or below it; both absolute and resolved.
pub(crate) fn is_within(path: &str, folder: &str) -> bool {
    let folder = folder.trim_end_matches('/');
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A mount shows a part of a file system; the same part may be shown at several points. So the place and the tree are
/// compared by what they are parts of, not by their paths.
fn shows(mounts: &[Mount<'_>], real: &str, place: &Place) -> bool {
    let Some((dev, path)) = part(mounts, &place.real) else {
        return is_within(&place.real, real);
    };
    let below =
        mounts.iter().filter(|mount| is_within(&mount.point, real)).map(|mount| (mount.dev, mount.root.to_string()));
    below.chain(part(mounts, real)).any(|(of, root)| of == dev && (place.own || is_within(&path, &root)))
}

/// The file system that a resolved path lies on, and the path in it.
pub(crate) fn part(mounts: &[Mount<'_>], path: &str) -> Option<((u32, u32), String)> {
    // Of mounts at the same point the last one is seen.
    let mount = mounts.iter().filter(|mount| is_within(path, &mount.point)).max_by_key(|mount| mount.point.len())?;
    let rest = path.strip_prefix(mount.point.trim_end_matches('/'))?;
    let path = format!("{}{rest}", mount.root.trim_end_matches('/'));
    Some((mount.dev, if path.is_empty() { "/".to_owned() } else { path }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountinfo::parse;
    use proptest::prelude::*;

    const MOUNTS: &[u8] = b"1 0 254:0 / / rw - ext4 /dev/vda rw\n\
        2 1 0:6 / /dev rw - devtmpfs devtmpfs rw\n\
        3 2 0:24 / /dev/pts rw - devpts devpts rw\n\
        4 2 0:25 / /dev/shm rw - tmpfs tmpfs rw\n\
        5 1 0:30 / /run rw - tmpfs tmpfs rw\n\
        6 5 254:0 /opt/driver /run/nvidia/driver rw - ext4 /dev/vda rw\n\
        7 1 0:6 / /srv/chroot/dev rw - devtmpfs devtmpfs rw\n\
        8 1 254:0 / /mnt/again rw - ext4 /dev/vda rw\n\
        9 1 254:0 /home /mnt/home rw - ext4 /dev/vda rw\n\
        10 1 0:6 /null /srv/jail/null rw - devtmpfs devtmpfs rw\n";

    fn place(real: &str, own: bool) -> Place {
        Place { id: ((0, 0), 0), own, real: real.into() }
    }

    #[test]
    fn trees_with_the_hosts_dev() {
        let mounts = parse(MOUNTS);
        for (tree, expected) in [
            ("/", true),
            ("/dev", true),
            ("/dev/char", true),
            ("/srv", true),
            ("/srv/chroot/dev", true),
            ("/srv/jail", true),
            ("/dev/pts", false),
            ("/dev/shm", false),
            ("/run", false),
            ("/devices", false),
            ("/mnt", false),
            ("/home", false),
        ] {
            assert_eq!(shows(&mounts, tree, &place("/dev", true)), expected, "{tree}");
        }
    }

    #[test]
    fn trees_with_a_dev_root_under_any_name() {
        let mounts = parse(MOUNTS);
        // Part of the root file system, shown below /run, and wherever else that part is shown.
        for (tree, expected) in [
            ("/run/nvidia", true),
            ("/run/nvidia/driver/dev", true),
            ("/opt", true),
            ("/opt/driver/dev", true),
            ("/mnt/again/opt", true),
            ("/mnt", true),
            ("/", true),
            ("/opt/driver/lib", false),
            ("/opt/drive", false),
            ("/mnt/home", false),
            ("/run/user", false),
            ("/dev", false),
        ] {
            assert_eq!(shows(&mounts, tree, &place("/run/nvidia/driver/dev", false)), expected, "{tree}");
        }
    }

    #[test]
    fn without_a_table_paths_decide() {
        assert!(shows(&[], "/run", &place("/run/x/dev", false)));
        assert!(!shows(&[], "/opt", &place("/run/x/dev", false)));
    }

    proptest! {
        #[test]
        fn within(path in "(/[a-c]{1,3}){1,4}", more in "[a-c]{1,3}") {
            let child = format!("{path}/{more}");
            let sibling = format!("{path}{more}");
            prop_assert!(is_within(&path, &path));
            prop_assert!(is_within(&path, "/"));
            prop_assert!(is_within(&child, &path));
            prop_assert!(!is_within(&path, &child));
            prop_assert!(!is_within(&sibling, &path));
        }
    }
}
