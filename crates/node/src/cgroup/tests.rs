//! Tables and properties of what is read from text.

use super::empty::readings;
use super::*;
use crate::mountinfo::parse as mounts;
use proptest::prelude::*;

#[test]
fn groups_and_their_folders() {
    let bytes = b"5:devices:/docker/a:b\n2:cpu,cpuacct:/x\n1:name=systemd:/y\n0::/z\nnonsense\n3:pids:relative\n";
    let groups: Vec<Group<'_>> = parse(bytes).collect();
    assert_eq!(groups.len(), 4);
    assert_eq!(groups[0], Group { controllers: "devices", path: "/docker/a:b" });
    let table = mounts(
        b"1 0 0:33 / /cg/devices rw - cgroup cgroup rw,devices\n2 0 0:34 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
          3 0 0:35 / /cg/systemd rw - cgroup cgroup rw,xattr,name=systemd\n4 0 0:36 /z /cg/unified rw - cgroup2 cgroup2 rw\n",
    );
    let folder = |group: &Group<'_>| table.iter().find_map(|mount| group.folder(mount));
    let folders: Vec<_> = groups.iter().map(folder).collect();
    let expected = ["/cg/devices/docker/a:b", "/cg/cpu/x", "/cg/systemd/y", "/cg/unified"];
    assert_eq!(folders, expected.map(|folder| Some(folder.to_owned())));
    let elsewhere = Group { controllers: "", path: "/zz" };
    assert_eq!(folder(&elsewhere), None, "the mount shows another part");
}

#[test]
fn the_hierarchy_that_runtimes_use() {
    const V1: &str = "1 0 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n\
        2 0 0:34 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const HYBRID: &str = "3 0 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const UNIFIED: &str = "4 0 0:35 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const COPY: &str = "5 0 0:33 /x /srv/x rw - cgroup cgroup rw,devices\n";
    for (table, unified, holding) in [
        (V1.to_owned(), false, vec!["/sys/fs/cgroup/devices"]),
        (format!("{V1}{HYBRID}"), false, vec!["/sys/fs/cgroup/devices"]),
        (format!("{V1}{COPY}"), false, vec!["/sys/fs/cgroup/devices", "/srv/x"]),
        (UNIFIED.to_owned(), true, vec!["/sys/fs/cgroup"]),
        (HYBRID.to_owned(), true, vec!["/sys/fs/cgroup/unified"]),
        (format!("{UNIFIED}{COPY}"), true, vec!["/sys/fs/cgroup", "/srv/x"]),
        (String::new(), true, vec![]),
    ] {
        let mounts = mounts(table.as_bytes());
        assert_eq!(is_unified(&mounts), unified, "{table}");
        let found = mounts.iter().filter(|mount| holds_filters(mount, unified)).map(|mount| mount.point.as_ref());
        assert_eq!(found.collect::<Vec<_>>(), holding, "{table}");
    }
}

#[test]
fn what_runtimes_make_of_a_path() {
    for (path, expected) in [
        ("/docker/abc", vec!["/docker/abc"]),
        ("docker/abc/", vec!["/docker/abc"]),
        ("system.slice:docker:abc", vec!["/system.slice/docker-abc.scope", "/system.slice:docker:abc"]),
        (":cri:abc", vec!["/system.slice/cri-abc.scope", "/:cri:abc"]),
        (
            "kubepods-burstable-podx.slice:cri-containerd:abc",
            vec![
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx.slice/cri-containerd-abc.scope",
                "/kubepods-burstable-podx.slice:cri-containerd:abc",
            ],
        ),
        ("-.slice::abc", vec!["/-abc.scope", "/abc.scope", "/-.slice::abc"]),
    ] {
        assert_eq!(readings(path).unwrap(), expected, "{path}");
    }
    for path in ["", "/", "/a/../b", "a--b.slice:p:n", "noslice:p:n"] {
        assert!(readings(path).is_err(), "{path}");
    }
}

proptest! {
    #[test]
    fn any_path_stays_below_the_top(path in "[a-z./:-]{0,24}") {
        if let Ok(paths) = readings(&path) {
            prop_assert!(!paths.is_empty());
            for path in paths {
                prop_assert!(path.starts_with('/') && !path.trim_matches('/').is_empty() && !path.split('/').any(|part| part == ".."));
            }
        }
    }

    #[test]
    fn anything_is_read(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b':'), Just(b'/')], 0..100)) {
        let _ = parse(&bytes).count();
    }
}

/// What is not attached with `BPF_F_ALLOW_MULTI` (2) can be detached without having it.
#[test]
fn a_filter_that_can_be_taken_away_is_loose() {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let table: Vec<&str> = table.lines().filter(|line| line.contains(" - cgroup2 ")).collect();
    let table = Table::from(table.join("\n").into_bytes());
    let Some(top) = table.mounts().first().map(|mount| mount.point.to_string()) else {
        return println!("skipped: no control groups of version 2");
    };
    for (flags, loose) in [(2, false), (0, true), (1, true)] {
        let name = format!("quilt-gpu-test-{}-loose-{flags}", std::process::id());
        let (path, below) = (format!("{top}/{name}"), format!("{top}/{name}/below"));
        if std::fs::create_dir_all(&below).is_err() {
            return println!("skipped: no control groups can be made here");
        }
        // `r0 = 0; exit`
        let attached = sys::tests::attach(&File::open(&path).unwrap(), &[0xb7, 0x95], flags);
        let filters = [name.clone(), format!("{name}/below")].map(|group| {
            let groups = format!("0::/{group}\n").into_bytes();
            Groups { pid: 1, own: &table, groups }.filter().unwrap()
        });
        std::fs::remove_dir(&below).and_then(|()| std::fs::remove_dir(&path)).unwrap();
        if let Err(e) = attached {
            return println!("skipped: no program can be attached here: {e}");
        }
        for filter in filters {
            assert_eq!(filter == DeviceFilter::Loose, loose, "{flags}: {filter:?}");
            assert!(loose || matches!(filter, DeviceFilter::Programs(_)), "{flags}: {filter:?}");
        }
    }
}
