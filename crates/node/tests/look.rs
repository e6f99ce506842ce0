//! What lies behind mount sources, on real nodes, links and mounts. Needs root: nodes are made.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use contract::config::Host;
use guard::{Dir, FileSystem, Object, System};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use node::Node;
use tempfile::TempDir;

const GPU: Object = Object::Char { major: 195, minor: 7 };

fn node() -> Node {
    Node::new(&Host::default())
}

fn is_root(test: &str) -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0);
    if !root {
        println!("skipped: {test} needs root");
    }
    root
}

fn make(folder: &Path, name: &str, kind: SFlag, major: u64, minor: u64) -> String {
    let path = folder.join(name);
    mknod(&path, kind, Mode::from_bits_truncate(0o666), makedev(major, minor)).unwrap();
    text(&path)
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// A folder with a node of GPU 7 named `gpu`, and its resolved path.
fn with_gpu() -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    make(folder.path(), "gpu", SFlag::S_IFCHR, 195, 7);
    let real = text(&fs::canonicalize(folder.path()).unwrap());
    (folder, real)
}

fn unjudgeable(path: &str, part: &str) {
    match node().look(path) {
        Object::Unjudgeable(why) => assert!(why.contains(part), "{path}: {why}"),
        other => panic!("{path}: {other:?}"),
    }
}

#[test]
fn a_gpu_by_any_name_is_a_gpu() {
    if !is_root("a_gpu_by_any_name_is_a_gpu") {
        return;
    }
    let (folder, at) = with_gpu();
    let gpu = folder.path().join("gpu");
    fs::create_dir_all(folder.path().join("a/b")).unwrap();
    symlink(&gpu, folder.path().join("link")).unwrap();
    symlink("link", folder.path().join("link-to-link")).unwrap();
    symlink("../../gpu", folder.path().join("a/b/relative")).unwrap();
    symlink(folder.path(), folder.path().join("a/folder")).unwrap();
    fs::hard_link(&gpu, folder.path().join("innocent")).unwrap();
    fs::hard_link(&gpu, folder.path().join("to-be-renamed")).unwrap();
    fs::rename(folder.path().join("to-be-renamed"), folder.path().join("renamed.txt")).unwrap();
    let held = fs::File::open(folder.path()).unwrap();
    // A slow path is looked at in a child, which has no descriptors of ours: so by our number, not as `self`.
    let own = std::process::id();
    let names = [
        format!("{at}/gpu"),
        format!("{at}/a/../gpu"),
        format!("/{at}//./gpu"),
        format!("{at}/link"),
        format!("{at}/link-to-link"),
        format!("{at}/a/b/relative"),
        format!("{at}/a/folder/a/folder/gpu"),
        format!("{at}/innocent"),
        format!("{at}/renamed.txt"),
        format!("/proc/self/root{at}/gpu"),
        format!("/proc/thread-self/root{at}/link"),
        format!("/proc/self/cwd/../../../../../../..{at}/gpu"),
        format!("/proc/{own}/fd/{}/gpu", held.as_raw_fd()),
        format!("/proc/{own}/task/{own}/fd/{}/innocent", held.as_raw_fd()),
    ];
    for name in names {
        assert_eq!(node().look(&name), GPU, "{name}");
    }
}

#[test]
fn magic_links_are_not_followed_on_trust() {
    let held = fs::File::open("/etc").unwrap();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let own = std::process::id();
    for path in [
        "/proc/self/root/etc".to_owned(),
        "/proc/self/root/etc/passwd".to_owned(),
        "/proc/self/root".to_owned(),
        "/proc/self/cwd/does-not-exist".to_owned(),
        format!("/proc/{own}/fd/{}", held.as_raw_fd()),
        format!("/proc/{own}/fd/{}/passwd/x", held.as_raw_fd()),
        format!("/proc/{own}/fd/{}", pipe.as_raw_fd()),
    ] {
        unjudgeable(&path, "magic link");
    }
    unjudgeable("/proc/4194304/root/dev/nvidia0", "procfs");
    // Names of procfs that are no magic links are judged.
    assert!(matches!(node().look("/proc/sys"), Object::Dir(_)));
}

#[test]
fn nothing_there_is_missing() {
    let folder = TempDir::new().unwrap();
    let at = text(folder.path());
    symlink("/does/not/exist", folder.path().join("dangling")).unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    for name in ["missing", "missing/below", "dangling", "file/below", "file/"] {
        assert_eq!(node().look(&format!("{at}/{name}")), Object::Missing, "{name}");
    }
}

#[test]
fn what_cannot_be_told_says_why() {
    let folder = TempDir::new().unwrap();
    let at = text(folder.path());
    symlink("two", folder.path().join("one")).unwrap();
    symlink("one", folder.path().join("two")).unwrap();
    fs::write(folder.path().join("link0"), "").unwrap();
    for n in 1..=41 {
        symlink(format!("link{}", n - 1), folder.path().join(format!("link{n}"))).unwrap();
    }
    unjudgeable(&format!("{at}/one"), "circle");
    unjudgeable(&format!("{at}/link41"), "too many");
    assert!(matches!(node().look(&format!("{at}/link40")), Object::Other { .. }), "40 links are still followed");
    unjudgeable(&format!("{at}/{}", "x".repeat(256)), "name too long");
    unjudgeable(&format!("{at}/a\0b"), "invalid argument");
}

#[test]
fn other_objects() {
    let (folder, at) = match is_root("other_objects") {
        true => with_gpu(),
        false => return,
    };
    make(folder.path(), "disk", SFlag::S_IFBLK, 195, 7);
    make(folder.path(), "pipe", SFlag::S_IFIFO, 0, 0);
    fs::create_dir(folder.path().join("real")).unwrap();
    fs::write(folder.path().join("real/file"), "").unwrap();
    symlink("real", folder.path().join("alias")).unwrap();
    let look = |name: &str| node().look(&format!("{at}/{name}"));
    assert_eq!(look("disk"), Object::Block { major: 195, minor: 7 });
    assert_eq!(look("pipe"), Object::Other { real: format!("{at}/pipe"), kernels: false, fs: FileSystem::Plain });
    assert_eq!(
        look("alias/file"),
        Object::Other { real: format!("{at}/real/file"), kernels: false, fs: FileSystem::Plain }
    );
    assert_eq!(look("alias/"), Object::Dir(Dir { real: format!("{at}/real"), ..Dir::default() }));
}

#[test]
fn the_machines_own_folders() {
    let folder = |path: &str| match node().look(path) {
        Object::Dir(dir) => dir,
        other => panic!("{path}: {other:?}"),
    };
    for path in ["/", "/etc/..", "//"] {
        let expected = Dir { real: "/".into(), is_root: true, ..Dir::default() };
        assert_eq!(folder(path), expected, "{path}");
    }
    for path in ["/dev", "/dev/", "/etc/../dev/."] {
        let expected = Dir { real: "/dev".into(), on_dev: true, is_dev: true, ..Dir::default() };
        assert_eq!(folder(path), expected, "{path}");
    }
    for (path, inside) in [("/dev/pts", false), ("/etc", false), ("/dev/input", true), ("/dev/net", true)] {
        if Path::new(path).exists() {
            assert_eq!((folder(path).on_dev, folder(path).is_dev), (inside, false), "{path}");
        }
    }
    assert_eq!(node().tree_has_dev("/"), Ok(true));
    assert_eq!(node().tree_has_dev("/etc"), Ok(false));
    assert!(node().initial_user_namespace());
}

#[test]
fn configured_roots() {
    let root = TempDir::new().unwrap();
    let real = text(&fs::canonicalize(root.path()).unwrap());
    fs::create_dir_all(root.path().join("dev/nvidia-caps")).unwrap();
    fs::create_dir_all(root.path().join("devices")).unwrap();
    fs::create_dir_all(root.path().join("proc")).unwrap();
    fs::create_dir_all(root.path().join("sys/dev/char/226:128/device")).unwrap();
    fs::write(root.path().join("sys/dev/char/226:128/device/vendor"), "0x10de\n").unwrap();
    let node = Node::new(&Host { root: real.clone(), ..Host::default() });
    for (path, expected) in
        [("", true), ("/dev", true), ("/dev/nvidia-caps", true), ("/devices", false), ("/proc", false)]
    {
        let Object::Dir(dir) = node.look(&format!("{real}{path}")) else { panic!("{path}") };
        assert_eq!(dir.in_driver_root, expected, "{path}");
    }
    assert_eq!(node.tree_has_dev(&real), Ok(true));
    assert_eq!(node.tree_has_dev(&format!("{real}/proc")), Ok(false));
    assert_eq!((node.drm_vendor(128), node.drm_vendor(0)), (Some(0x10de), None));
    let missing = node.majors().unwrap_err();
    assert!(missing.contains(&format!("{real}/proc/devices")), "{missing}");
    fs::write(root.path().join("proc/devices"), "Character devices:\n195 nvidia\n").unwrap();
    assert_eq!(node.majors(), Ok(vec![("nvidia".to_owned(), 195)]));
}

#[test]
fn nodes_inside_a_folder() {
    if !is_root("nodes_inside_a_folder") {
        return;
    }
    let (folder, at) = with_gpu();
    fs::create_dir_all(folder.path().join("1/2/3/4")).unwrap();
    make(&folder.path().join("1/2/3/4"), "deep", SFlag::S_IFCHR, 511, 0);
    make(folder.path(), "disk", SFlag::S_IFBLK, 195, 8);
    fs::create_dir(folder.path().join("char")).unwrap();
    symlink("/dev/null", folder.path().join("char/1:3")).unwrap();
    symlink("/dev", folder.path().join("char/not-followed")).unwrap();
    symlink("nowhere", folder.path().join("char/dangling")).unwrap();
    assert_eq!(node().nodes_inside(&at), Ok(vec![(1, 3), (195, 7), (511, 0)]));
    fs::create_dir(folder.path().join("1/2/3/4/5")).unwrap();
    let why = node().nodes_inside(&at).unwrap_err();
    assert!(why.contains("1/2/3/4/5") && why.contains("deep"), "{why}");
    assert!(node().nodes_inside(&format!("{at}/missing")).is_err());
    let full = TempDir::new().unwrap();
    (0..=4096).for_each(|n| fs::write(full.path().join(n.to_string()), "").unwrap());
    assert!(node().nodes_inside(&text(full.path())).unwrap_err().contains("4096 entries"));
}

/// Mounts of a thread's own, which end with it.
fn in_private_mounts(test: &str, body: impl FnOnce() + Send + 'static) {
    if !is_root(test) {
        return;
    }
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        body();
    };
    std::thread::spawn(inside).join().unwrap();
}

#[test]
fn the_hosts_dev_mounted_elsewhere() {
    in_private_mounts("the_hosts_dev_mounted_elsewhere", || {
        let (folder, at) = with_gpu();
        for name in ["dev", "devtmpfs", "file"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let bind = MsFlags::MS_BIND;
        mount(Some("/dev"), &folder.path().join("dev"), None::<&str>, bind, None::<&str>).unwrap();
        mount(Some("x"), &folder.path().join("devtmpfs"), Some("devtmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        fs::write(folder.path().join("bound"), "").unwrap();
        mount(Some(&folder.path().join("gpu")), &folder.path().join("bound"), None::<&str>, bind, None::<&str>)
            .unwrap();
        assert_eq!(node().look(&format!("{at}/bound")), GPU);
        let Object::Dir(dir) = node().look(&format!("{at}/dev")) else { panic!() };
        assert_eq!(dir, Dir { real: format!("{at}/dev"), on_dev: true, is_dev: true, ..Dir::default() });
        let Object::Dir(dir) = node().look(&format!("{at}/devtmpfs")) else { panic!() };
        let is_devtmpfs = fs::read_to_string("/proc/mounts").unwrap().lines().any(|l| l.starts_with("devtmpfs /dev "));
        assert_eq!((dir.on_dev, dir.is_dev), (is_devtmpfs, is_devtmpfs));
        for name in ["dev", "devtmpfs", "bound"] {
            umount2(&folder.path().join(name), MntFlags::MNT_DETACH).unwrap();
        }
    });
}

#[test]
fn control_groups_are_found_wherever_they_are_mounted() {
    in_private_mounts("control_groups_are_found_wherever_they_are_mounted", || {
        let folder = TempDir::new().unwrap();
        let at = text(&folder.path().canonicalize().unwrap());
        let point = folder.path().join("a/b");
        fs::create_dir_all(point.join("c")).unwrap();
        if mount(Some("x"), &point, Some("cgroup2"), MsFlags::empty(), None::<&str>).is_err() {
            return println!("skipped: no control groups of version 2");
        }
        let shown = |path: &str| node().filters_shown(&format!("{at}{path}")).unwrap();
        // What runtimes go by.
        let usual = Path::new("/sys/fs/cgroup");
        mount(Some("x"), usual, Some("cgroup2"), MsFlags::empty(), None::<&str>).unwrap();
        assert_eq!(shown(""), ["a/b"]);
        assert_eq!(shown("/a"), ["b"]);
        assert_eq!(shown("/a/b"), [""]);
        assert_eq!(shown("/a/b/cgroup.procs"), [""]);
        assert_eq!(shown("/a/bb"), [""; 0]);
        assert!(node().filters_shown("/").unwrap().contains(&"sys/fs/cgroup".to_owned()));
        let file = node().look(&format!("{at}/a/b/cgroup.procs"));
        assert_eq!(
            file,
            Object::Other { real: format!("{at}/a/b/cgroup.procs"), kernels: true, fs: FileSystem::Plain }
        );
        mount(Some("x"), &folder.path().join("a"), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        assert_eq!(shown(""), [""; 0], "covered");
        for path in [&folder.path().join("a"), &point, usual] {
            umount2(path, MntFlags::MNT_DETACH).unwrap();
        }
    });
}

#[test]
fn a_dead_server_is_not_waited_for() {
    in_private_mounts("a_dead_server_is_not_waited_for", || {
        let Ok(server) = fs::File::options().read(true).write(true).open("/dev/fuse") else {
            println!("skipped: no /dev/fuse");
            return;
        };
        let folder = TempDir::new().unwrap();
        let at = text(&fs::canonicalize(folder.path()).unwrap());
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", server.as_raw_fd());
        mount(Some("dead"), folder.path(), Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
        let node = node();
        let start = Instant::now();
        let top = node.look(&at);
        assert_eq!(top, Object::Dir(Dir { real: at.clone(), ..Dir::default() }), "the top is in the caches");
        assert!(start.elapsed() < Duration::from_secs(2));
        let Object::Unjudgeable(why) = node.look(&format!("{at}/x")) else { panic!() };
        assert!(why.contains("no answer in time"), "{why}");
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(10), "{waited:?}");
        // One wait is enough: others on such paths are told at once, and what is in the caches is still judged.
        assert!(matches!(node.look(&format!("{at}/y")), Object::Unjudgeable(_)));
        assert!(matches!(node.look("/"), Object::Dir(_)));
        assert!(start.elapsed() < waited + Duration::from_secs(2));
        drop(server);
        umount2(folder.path(), MntFlags::MNT_DETACH).unwrap();
    });
}

#[test]
fn file_systems_are_told_wherever_they_are_mounted() {
    in_private_mounts("file_systems_are_told_wherever_they_are_mounted", || {
        let folder = TempDir::new().unwrap();
        let at = text(&folder.path().canonicalize().unwrap());
        for name in ["lower,a", "under", "bound"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("under/file"), "x").unwrap();
        let layers = format!("lowerdir={at}/under:{at}/lower\\,a");
        let overlay = FileSystem::Overlay { points: vec![], options: vec![] };
        // One node for all: what is mounted after its first look is told too.
        let node = node();
        assert!(matches!(node.look("/proc/sys"), Object::Dir(Dir { fs: FileSystem::Proc, .. })));
        for (kind, options, inside, expected) in [
            ("sysfs", "", "kernel", FileSystem::Sysfs),
            ("proc", "", "sys/kernel/core_pattern", FileSystem::Proc),
            ("binfmt_misc", "", "register", FileSystem::BinfmtMisc),
            ("debugfs", "", "", FileSystem::KernelFiles),
            ("tracefs", "", "", FileSystem::KernelFiles),
            ("securityfs", "", "", FileSystem::KernelFiles),
            ("bpf", "", "", FileSystem::KernelFiles),
            ("tmpfs", "", "", FileSystem::Plain),
            ("overlay", layers.as_str(), "file", overlay),
        ] {
            let point = folder.path().join(kind);
            fs::create_dir(&point).unwrap();
            if let Err(e) = mount(Some("x"), &point, Some(kind), MsFlags::empty(), Some(options)) {
                println!("skipped: {kind} cannot be mounted here: {e}");
                continue;
            }
            mount(Some(&point), &folder.path().join("bound"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
            for path in [format!("{at}/{kind}/{inside}"), format!("{at}/bound/{inside}")] {
                let found = match node.look(&path) {
                    Object::Dir(dir) => dir.fs,
                    Object::Other { fs, .. } => fs,
                    other => panic!("{path}: {other:?}"),
                };
                match (&found, &expected) {
                    (FileSystem::Overlay { points, options }, FileSystem::Overlay { .. }) => {
                        assert!(points.contains(&format!("{at}/overlay")), "{points:?}");
                        assert!(options.iter().any(|option| option.contains(&format!("{at}/under"))), "{options:?}");
                    }
                    _ => assert_eq!(found, expected, "{path}"),
                }
            }
            for name in ["bound", kind] {
                umount2(&folder.path().join(name), MntFlags::MNT_DETACH).unwrap();
            }
        }
    });
}
