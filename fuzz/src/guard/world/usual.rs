//! What is on the made-up machine in any case, and what else may be.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::choices::Choices;

use super::{Entry, Kind, Mount, NVIDIA, Named, World};

const NODES: &[(&str, u32, u32)] = &[
    ("nvidia0", 195, 0),
    ("nvidia1", 195, 1),
    ("nvidiactl", 195, 255),
    ("nvidia-uvm", 511, 0),
    ("nvidia-caps/nvidia-cap1", 510, 1),
    ("vfio/vfio", 10, 196),
    ("dri/card0", 226, 0),
    ("dri/card1", 226, 1),
    ("dri/renderD128", 226, 128),
    ("char/195:0", 195, 0),
    ("mem", 1, 1),
    ("null", 1, 3),
    ("fuse", 10, 229),
    ("snd/controlC0", 116, 0),
    ("pts/0", 136, 0),
];
const MAJORS: &[(&str, u32)] = &[
    ("mem", 1),
    ("misc", 10),
    ("alsa", 116),
    ("nvidia", 195),
    ("drm", 226),
    ("nvidia-uvm", 511),
    ("nvidia-caps", 510),
];
/// File systems, and where each is mounted first.
const FIRST: &[(&str, Kind)] = &[
    ("/", Kind::Plain),
    ("/dev", Kind::Dev),
    ("/dev/shm", Kind::Plain),
    ("/proc", Kind::Processes),
    ("/run", Kind::Plain),
    ("/sys", Kind::Devices),
    ("/sys/fs/cgroup", Kind::Plain),
    ("/sys/fs/cgroup/devices", Kind::Groups),
];
/// Where a part of one is mounted once more.
const AGAIN: &[(&str, &str)] = &[
    ("/mnt/all/host", "/"),
    ("/mnt/all/tools", "/usr/bin"),
    ("/mnt/cdi", "/etc/cdi"),
    ("/mnt/dev", "/dev"),
    ("/mnt/groups", "/sys/fs/cgroup/devices"),
    ("/mnt/kernel/proc", "/proc"),
    ("/mnt/kernel/sys", "/sys"),
    ("/mnt/pods/sub", "/run/quilt-gpu/leases"),
    ("/mnt/root/dev", "/dev"),
    ("/mnt/run", "/run"),
    ("/mnt/state", "/run/quilt-gpu"),
];
const FILES: &[&str] = &[
    "/etc/hosts",
    "/run/quilt-gpu/leases/x",
    "/sys/fs/cgroup/devices/tasks",
    "/sys/devices/pci0000:00/0000:00:01.0/resource0",
    "/sys/module/x",
    "/proc/1/status",
    "/proc/cpuinfo",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/net/x",
    "/home/user/file",
    "/usr/bin/quilt-gpu-runtime",
    "/usr/libexec/helper",
];
const FOLDERS: &[&str] = &[
    "/home/user/sub",
    "/run/engine/bundle/rootfs",
    "/run/nvidia/driver/dev",
    "/var/log/quilt-gpu",
    "/etc/quilt-gpu",
    "/etc/cdi/more",
    "/run/quilt-gpu",
    "/sys/bus/pci/devices",
    "/sys/fs/cgroup/devices/docker",
    "/tmp",
    "/dev/shm",
];
const LINKED: &[(&str, &str)] = &[
    ("/home/user/link", "/dev/nvidia1"),
    ("/home/user/dev", "../../dev"),
    ("/home/user/root", "/"),
    ("/home/user/state", "/mnt/state"),
    ("/run/engine/linked/dev", "/tmp"),
    ("/run/engine/linked/rootfs", "/run/engine/bundle/rootfs"),
    ("/var/run", "../run"),
];
const BLOCKS: &[(&str, u32, u32)] = &[("/dev/sda", 8, 0), ("/dev/sda1", 8, 1), ("/dev/sdb", 8, 16)];
/// Disks that the machine's own files lie on.
const DISKS: &[(u32, u32)] = &[(8, 0), (8, 1)];
/// Where something more may lie.
const PARENTS: &[&str] = &[
    "/home/user",
    "/tmp",
    "/dev",
    "/dev/dri",
    "/home/user/sub",
    "/run/nvidia/driver/dev",
    "/run",
    "/dev/shm",
    "/",
    "/run/engine/bundle/rootfs",
];
const MORE: &[&str] = &["a", "b", "nvidia7", "c d", "e:f", "g,h", "i\\j", "dev", "proc", "sys"];
const ENDS: &[&str] = &[
    "/dev/nvidia0",
    "/dev",
    "/",
    "..",
    "/home/user/a",
    "b",
    "/run",
    "/nowhere",
    "/run/quilt-gpu",
    "/sys/fs/cgroup",
    "/tmp/a",
    "../dev/nvidiactl",
    "/mnt/all",
];
/// What may be mounted once more.
const PARTS: &[&str] = &[
    "/run/quilt-gpu",
    "/run/quilt-gpu/leases",
    "/run",
    "/",
    "/usr",
    "/usr/bin",
    "/usr/libexec",
    "/etc",
    "/etc/cdi",
    "/var/log",
    "/home/user",
    "/dev",
    "/dev/dri",
    "/dev/shm",
    "/sys",
    "/sys/bus",
    "/sys/devices/pci0000:00",
    "/proc",
    "/proc/sys",
    "/proc/1",
    "/sys/fs/cgroup/devices",
    "/sys/fs/cgroup/devices/docker",
    "/run/nvidia/driver/dev",
    "/run/engine/bundle",
];

/// What never changes is never copied.
pub(super) static ENTRIES: LazyLock<BTreeMap<Named, Entry>> = LazyLock::new(|| {
    let mut entries = BTreeMap::new();
    let mut put = |path: &str, entry| super::put(&mut entries, &|_| false, path, entry);
    NODES.iter().for_each(|(name, major, minor)| put(&format!("/dev/{name}"), Entry::Char(*major, *minor)));
    BLOCKS.iter().for_each(|(path, major, minor)| put(path, Entry::Block(*major, *minor)));
    put("/run/nvidia/driver/dev/nvidia0", Entry::Char(195, 0));
    let points = FIRST.iter().map(|(point, _)| point).chain(AGAIN.iter().map(|(point, _)| point));
    points.chain(FOLDERS).for_each(|path| put(path, Entry::Dir));
    FILES.iter().for_each(|path| put(path, Entry::File));
    LINKED.iter().for_each(|(path, end)| put(path, Entry::Link(end)));
    entries
});

impl World {
    /// Nothing but the file systems.
    fn bare() -> Self {
        let first = FIRST.iter().map(|(point, kind)| Mount {
            point: (*point).into(),
            kind: *kind,
            home: (*point).into(),
            part: (*point).into(),
        });
        Self {
            more: BTreeMap::new(),
            mounts: first.collect(),
            majors: MAJORS.to_vec(),
            vendors: &[(0, Some(NVIDIA)), (1, Some(0x1002)), (9, None), (128, Some(NVIDIA))],
            disks: DISKS,
            dev_root: "/dev",
            filters: true,
        }
    }

    /// The machine of these choices; of none, the usual one.
    pub(in super::super) fn of(choices: &mut Choices<'_>) -> Self {
        let mut world = Self::bare();
        AGAIN.iter().for_each(|(point, part)| world.mount((*point).into(), (*part).into()));
        let odd = choices.byte();
        if odd & 7 == 7 {
            world.filters = false;
        }
        if odd & 8 != 0 {
            world.dev_root = "/run/nvidia/driver/dev";
        }
        if odd & 16 != 0 {
            world.majors.extend([("vfio", 509), ("gdrdrv", 508), ("nvidia-liar", 10)]);
        }
        if odd & 32 != 0 {
            world.majors.retain(|(name, _)| !name.starts_with("nvidia"));
        }
        if odd & 64 != 0 {
            world.disks = &[(259, 0)];
        }
        for _ in 0..choices.below(5) {
            let path = place(choices);
            let entry = match choices.below(6) {
                0 => Entry::Dir,
                1 => Entry::Char(*choices.of(&[195, 226, 511, 10, 1]), *choices.of(&[0, 1, 3, 9, 128, 196])),
                2 => Entry::Block(*choices.of(&[8, 259]), *choices.of(&[0, 1, 16])),
                3 => Entry::Silent,
                _ => Entry::Link(choices.of::<&str>(ENDS)),
            };
            world.put(&path, entry);
        }
        for _ in 0..choices.below(4) {
            let point = place(choices);
            let part = *choices.of(PARTS);
            world.put(&point, Entry::Dir);
            if world.entry(&point) == Some(&Entry::Dir) {
                world.mount(point.into(), part.into());
            }
        }
        world
    }

    /// A part of a file system once more.
    fn mount(&mut self, point: Named, part: Named) {
        if self.mounts.iter().all(|mount| mount.point != point) {
            let (home, kind) = self.first_of(&part);
            self.mounts.push(Mount { point, kind, home: home.to_owned().into(), part });
        }
    }
}

fn place(choices: &mut Choices<'_>) -> String {
    format!("{}/{}", choices.of(PARENTS).trim_end_matches('/'), choices.of(MORE))
}
