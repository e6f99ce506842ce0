//! Trusted reads, atomic writes, a container's root seen from outside, and the checks of nodes and facts.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use contract::config::Host;
use contract::inventory::{DeviceNode, DriverGpu, Role};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{SFlag, makedev, mknod};
use node::{InRoot, Mode, Places, TrustError, check_node, file_id, pci, read_trusted, write_atomic};
use tempfile::TempDir;

fn is_root(test: &str) -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0);
    if !root {
        println!("skipped: {test} needs root");
    }
    root
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn char_device(path: &Path, major: u64, minor: u64) {
    mknod(path, SFlag::S_IFCHR, nix::sys::stat::Mode::from_bits_truncate(0o666), makedev(major, minor)).unwrap();
}

fn refused(path: &Path, at_fault: &Path, part: &str) {
    match read_trusted(path, 100) {
        Err(TrustError::Untrusted { path: at, why }) => {
            assert_eq!(at, at_fault, "{why}");
            assert!(why.contains(part), "{}: {why}", path.display());
        }
        other => panic!("{}: {other:?}", path.display()),
    }
}

#[test]
fn a_file_is_exchangeable_through_any_folder_below_the_root() {
    if !is_root("a_file_is_exchangeable_through_any_folder_below_the_root") {
        return;
    }
    let folder = TempDir::new_in("/run").unwrap();
    let root = folder.path().join("root");
    let at = |name: &str| root.join(name);
    let (good, bad) = (at("usr/lib/libcuda.so.1"), at("nix/store/abc/lib/libcuda.so.1"));
    for file in [&good, &bad] {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
    }
    // Above the root is the operator's business.
    mode(folder.path(), 0o1777);
    mode(&at("nix/store"), 0o1775);
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let files = [path(&good), path(&bad)];
    let judged = || node::exchangeable(files.iter().map(String::as_str), root.to_str().unwrap());
    assert_eq!(judged(), None, "the store is sticky, and what lies in it root's");
    let words = |name: &str, why: &str| Some(format!("{} {why}", path(&at(name))));
    for (name, bits, owner, why) in [
        ("usr/lib", 0o775, 0, "may be written by others than root (mode 0775), must not be"),
        ("usr", 0o1777, 0, "may be written by others than root (mode 1777), must not be"),
        ("nix/store", 0o775, 0, "may be written by others than root (mode 0775), must not be"),
        ("nix/store", 0o1775, 7, "belongs to user 7, must belong to root"),
        ("nix/store/abc", 0o555, 7, "belongs to user 7, must belong to root"),
        ("", 0o755, 7, "belongs to user 7, must belong to root"),
    ] {
        let name = name.to_owned();
        chown(at(&name), Some(owner), None).unwrap();
        mode(&at(&name), bits);
        assert_eq!(judged(), words(&name, why).map(|words| words.replace("root/ ", "root ")), "{name}");
        chown(at(&name), Some(0), None).unwrap();
        mode(&at(&name), if name == "nix/store" { 0o1775 } else { 0o755 });
        assert_eq!(judged(), None, "{name}");
    }
    fs::rename(at("usr"), at("moved")).unwrap();
    symlink("moved", at("usr")).unwrap();
    assert!(judged().is_some(), "a link now");
    fs::remove_file(at("usr")).unwrap();
    assert!(judged().unwrap().contains("cannot be looked at"));
}

#[test]
fn only_what_root_alone_can_change_is_read() {
    if !is_root("only_what_root_alone_can_change_is_read") {
        return;
    }
    let folder = TempDir::new_in("/run").unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("good"), "content").unwrap();
    mode(&at("good"), 0o644);
    let trusted = read_trusted(&at("good"), 7).unwrap();
    assert_eq!(trusted.bytes, b"content");
    assert_eq!(trusted.id, file_id(&at("good")).unwrap());

    refused(&at("../good"), &at("../good"), "has .. in its path");
    symlink("good", at("link")).unwrap();
    refused(&at("link"), &at("link"), "symbolic link");
    symlink(folder.path(), at("folder-link")).unwrap();
    refused(&at("folder-link/good"), &at("folder-link"), "symbolic link");
    refused(&at("good/below"), &at("good"), "not a folder");
    refused(folder.path(), folder.path(), "not a regular file");
    mknod(&at("pipe"), SFlag::S_IFIFO, nix::sys::stat::Mode::S_IRUSR, 0).unwrap();
    refused(&at("pipe"), &at("pipe"), "not a regular file");
    fs::write(at("large"), [0; 101]).unwrap();
    refused(&at("large"), &at("large"), "larger than 100 bytes");
    for bits in [0o664, 0o646] {
        mode(&at("good"), bits);
        refused(&at("good"), &at("good"), "may be written by others");
    }
    mode(&at("good"), 0o600);
    chown(at("good"), Some(1), None).unwrap();
    refused(&at("good"), &at("good"), "belongs to user 1");
    chown(at("good"), Some(0), None).unwrap();
    fs::hard_link(at("good"), at("other-name")).unwrap();
    refused(&at("good"), &at("good"), "more than one name");
    fs::remove_file(at("other-name")).unwrap();
    assert!(read_trusted(&at("good"), 100).is_ok());

    fs::create_dir(at("sub")).unwrap();
    fs::write(at("sub/file"), "").unwrap();
    for bits in [0o775, 0o1777] {
        mode(&at("sub"), bits);
        refused(&at("sub/file"), &at("sub"), "may be written by others");
    }
    mode(&at("sub"), 0o755);
    chown(at("sub"), Some(1), None).unwrap();
    refused(&at("sub/file"), &at("sub"), "belongs to user 1");
}

#[test]
fn a_file_below_tmp_is_refused_because_of_tmp() {
    if !is_root("a_file_below_tmp_is_refused_because_of_tmp") {
        return;
    }
    let folder = TempDir::new_in("/tmp").unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    refused(&folder.path().join("file"), Path::new("/tmp"), "may be written by others");
    refused(Path::new("relative"), Path::new("relative"), "absolute");
    refused(Path::new("/"), Path::new("/"), "absolute");
}

#[test]
fn missing_is_not_untrusted() {
    for (path, at) in [("/run/quilt-gpu-missing", "/run/quilt-gpu-missing"), ("/quilt-gpu-none/x/y", "/quilt-gpu-none")]
    {
        match read_trusted(Path::new(path), 1) {
            Err(error @ TrustError::Missing(_)) => assert_eq!(error.to_string(), format!("{at} does not exist")),
            other => panic!("{path}: {other:?}"),
        }
    }
}

#[test]
fn writing_leaves_the_old_or_the_new() {
    if !is_root("writing_leaves_the_old_or_the_new") {
        return;
    }
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("config.json");
    for (bytes, like, sync) in [
        ("one", Mode { mode: 0o640, uid: 1, gid: 2 }, false),
        ("two", Mode::root(0o600), true),
        ("three", Mode { mode: 0o644, uid: 0, gid: 5 }, false),
    ] {
        let before = file_id(&file).ok();
        write_atomic(&file, bytes.as_bytes(), like, sync).unwrap();
        assert_ne!(file_id(&file).ok(), before);
        assert_eq!(fs::read_to_string(&file).unwrap(), bytes);
        let meta = fs::metadata(&file).unwrap();
        assert_eq!(Mode { mode: meta.mode() & 0o7777, uid: meta.uid(), gid: meta.gid() }, like);
    }
    let link = folder.path().join("link");
    symlink("config.json", &link).unwrap();
    write_atomic(&link, b"four", Mode::root(0o600), false).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_file(), "a link is replaced, not followed");
    assert_eq!(fs::read_to_string(&file).unwrap(), "three");
    // A folder in the way, and none to write in.
    fs::create_dir(folder.path().join("folder")).unwrap();
    let error = write_atomic(&folder.path().join("folder"), b"x", Mode::root(0o600), false).unwrap_err();
    assert!(error.to_string().starts_with("cannot write ") && error.to_string().contains("is a directory"), "{error}");
    assert!(write_atomic(&folder.path().join("none/x"), b"x", Mode::root(0o600), false).unwrap_err().is_missing());
    let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort_unstable();
    assert_eq!(left, ["config.json", "folder", "link"], "no temporary file stays");
}

#[test]
fn an_image_leads_nowhere_else() {
    if !is_root("an_image_leads_nowhere_else") {
        return;
    }
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("etc")).unwrap();
    fs::write(at("etc/inside"), "inside").unwrap();
    symlink("/etc/inside", at("absolute")).unwrap();
    symlink("../../../../etc/inside", at("etc/climbing")).unwrap();
    symlink("/etc/passwd", at("outside")).unwrap();
    symlink("/proc/self/root/etc/passwd", at("magic")).unwrap();
    symlink("/etc", at("folder")).unwrap();
    char_device(&at("node"), 195, 7);
    mknod(&at("pipe"), SFlag::S_IFIFO, nix::sys::stat::Mode::S_IRUSR, 0).unwrap();
    let root = InRoot::open(folder.path()).unwrap();
    for path in ["etc/inside", "/etc/inside", "/absolute", "/etc/climbing", "/folder/inside", "/../etc/inside"] {
        assert_eq!(root.read(Path::new(path), 6).unwrap(), b"inside", "{path}");
        let part = |part| root.read_part(Path::new(path), |head| (head == b"inside").then_some(part)).unwrap();
        assert_eq!((part((2, 3)).as_deref(), part((2, 5))), (Some(&b"sid"[..]), None), "{path}");
        assert_eq!(root.file_id(Path::new(path)).unwrap(), file_id(&at("etc/inside")).unwrap());
    }
    for path in ["outside", "magic", "missing"] {
        assert!(root.read(Path::new(path), 100).unwrap_err().is_missing(), "{path}");
        assert!(!root.exists(Path::new(path)));
    }
    for (path, part) in [
        ("etc/inside", "larger than 5 bytes"),
        ("etc", "not a regular file"),
        ("node", "not a regular file"),
        ("pipe", "not a regular file"),
    ] {
        let error = root.read(Path::new(path), 5).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(root.is_dir(Path::new("folder")) && root.is_dir(Path::new("/")) && !root.is_dir(Path::new("node")));
    assert_eq!(Places::of(&root).device(Path::new("/node")).unwrap(), (195, 7));
    assert!(Places::of(&root).device(Path::new("etc/inside")).is_err());
    assert!(InRoot::open(&at("etc/inside")).is_err());
}

/// D41: whatever the image made of the place, nothing outside it changes, and nothing in it but a file that is replaced.
#[test]
fn a_file_of_an_image_is_replaced_and_nothing_else() {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("image/etc")).unwrap();
    fs::create_dir_all(at("image/other/deep")).unwrap();
    fs::create_dir_all(at("etc")).unwrap();
    for file in ["image/etc/cache", "image/other/cache", "etc/cache"] {
        fs::write(at(file), file).unwrap();
    }
    fs::hard_link(at("image/etc/cache"), at("image/other/twin")).unwrap();
    fs::set_permissions(at("image/etc/cache"), Permissions::from_mode(0o640)).unwrap();
    symlink("/etc/cache", at("image/etc/link")).unwrap();
    symlink("../../../etc", at("image/out")).unwrap();
    symlink("/other", at("image/turn")).unwrap();
    mknod(&at("image/etc/pipe"), SFlag::S_IFIFO, nix::sys::stat::Mode::S_IRUSR, 0).unwrap();
    let root = InRoot::open(&at("image")).unwrap();
    for (path, part) in [
        ("/etc/link", "not a regular file"),
        ("/etc/pipe", "not a regular file"),
        ("/etc", "not a regular file"),
        ("/etc/absent", "no such file"),
        ("/absent/cache", "no such file"),
        ("/..", "no file's name"),
    ] {
        let error = root.replace(Path::new(path), b"ours").unwrap_err().to_string();
        assert!(error.contains(part), "{path}: {error}");
    }
    let before = fs::metadata(at("image/etc/cache")).unwrap();
    // By a link that leads out, it is the image's own folder of that name.
    for (path, file) in [("/out/cache", "image/etc/cache"), ("/turn/cache", "image/other/cache")] {
        root.replace(Path::new(path), b"ours").unwrap();
        assert_eq!(fs::read(at(file)).unwrap(), b"ours", "{path}");
    }
    let after = fs::metadata(at("image/etc/cache")).unwrap();
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
    assert_ne!(after.ino(), before.ino());
    assert_eq!(fs::read(at("image/other/twin")).unwrap(), b"image/etc/cache", "another name of the old file");
    assert_eq!(fs::read(at("etc/cache")).unwrap(), b"etc/cache", "outside");
    let left = |folder: &str| fs::read_dir(at(folder)).unwrap().count();
    assert_eq!((left("image/etc"), left("etc")), (3, 1), "a file was left behind");
    let host = InRoot::open(Path::new("/")).unwrap();
    assert!(host.replace(Path::new("/etc/hostname"), b"ours").unwrap_err().to_string().contains("the node's own root"));
}

#[test]
fn a_link_is_made_where_nothing_is_and_across_no_mount() {
    if !is_root("a_link_is_made_where_nothing_is_and_across_no_mount") {
        return;
    }
    let folder = TempDir::new_in("/run").unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["image/usr/lib", "image/volume", "outside"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::write(at("image/usr/lib/there"), "").unwrap();
    symlink("/nowhere", at("image/usr/lib/dangling")).unwrap();
    symlink(at("outside"), at("image/out")).unwrap();
    // A volume of the tenant's is the host's own folder.
    mount(Some(&at("outside")), &at("image/volume"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let root = InRoot::open(&at("image")).unwrap();
    let made = |path: &str| root.make_link(Path::new(path), Path::new("/target")).map_err(|e| e.to_string());
    let refused = ["/usr/lib/there", "/usr/lib/dangling", "/volume/a", "/volume/deep/a", "/out/a", "/"].map(made);
    let granted = ["/usr/lib/a", "/usr/lib/new/folders/a"].map(made);
    umount2(&at("image/volume"), MntFlags::MNT_DETACH).unwrap();
    assert!(refused.iter().all(Result::is_err), "{refused:?}");
    assert_eq!(granted, [Ok(()), Ok(())]);
    assert_eq!(fs::read_dir(at("outside")).unwrap().count(), 0);
    assert_eq!(fs::read_link(at("image/usr/lib/new/folders/a")).unwrap(), Path::new("/target"));
    let host = InRoot::open(Path::new("/")).unwrap();
    let own = host.make_link(Path::new("/run/quilt-gpu-test-link"), Path::new("/target"));
    assert!(own.unwrap_err().to_string().contains("the node's own root"));
}

#[test]
fn real_magic_links_in_a_root_are_refused() {
    // The machine's own root as an image that shows procfs.
    let root = InRoot::open(Path::new("/")).unwrap();
    assert!(root.read(Path::new("/proc/self/root/etc/passwd"), 1 << 20).is_err());
    assert!(root.read(Path::new("/etc/passwd"), 1 << 20).is_ok());
}

#[test]
fn nodes_are_what_the_inventory_says() {
    if !is_root("nodes_are_what_the_inventory_says") {
        return;
    }
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("nvidia7");
    char_device(&path, 195, 7);
    symlink("nvidia7", folder.path().join("link")).unwrap();
    let node = |name: &str, major, minor| DeviceNode {
        path: "/dev/nvidia7".into(),
        host_path: folder.path().join(name).to_str().unwrap().to_owned(),
        major,
        minor,
        mode: 0o666,
        uid: 0,
        gid: 0,
        role: Role::Compute,
    };
    assert_eq!(check_node(&node("nvidia7", 195, 7)), Ok(()));
    for (name, minor, part) in [
        ("nvidia7", 8, "is device 195:7, not 195:8"),
        ("link", 7, "not a character device"),
        ("none", 7, "cannot look at"),
    ] {
        let why = check_node(&node(name, 195, minor)).unwrap_err();
        assert!(why.contains(part) && why.contains(name), "{why}");
    }
}

#[test]
fn facts_of_a_made_up_node() {
    let folder = TempDir::new().unwrap();
    let host = Host { root: folder.path().to_str().unwrap().to_owned(), ..Host::default() };
    let bare = node::facts(&host).unwrap();
    assert_eq!(bare.boot_id, node::boot_id().unwrap());
    assert_eq!((bare.driver_version, bare.majors, bare.driver_gpus), (None, vec![], vec![]));
    for (path, content) in [
        ("proc/sys/kernel/random/boot_id", "made-up\n"),
        ("proc/devices", "Character devices:\n  1 mem\n511 nvidia-uvm\n195 nvidia\n240 vfio\n"),
        ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.135  x\n"),
        ("proc/driver/nvidia/gpus/0000:c1:00.0/information", "Device Minor: \t 0\n"),
        ("proc/driver/nvidia/gpus/0000:41:00.0/information", "GPU UUID: \t GPU-1\nDevice Minor: \t 1\n"),
    ] {
        fs::create_dir_all(folder.path().join(path).parent().unwrap()).unwrap();
        fs::write(folder.path().join(path), content).unwrap();
    }
    let facts = node::facts(&host).unwrap();
    assert_eq!((facts.boot_id.as_str(), facts.driver_version.as_deref()), ("made-up", Some("550.135")));
    let majors: Vec<(&str, u32)> = facts.majors.iter().map(|(name, major)| (name.as_str(), *major)).collect();
    assert_eq!(majors, [("nvidia", 195), ("nvidia-uvm", 511), ("vfio", 240)]);
    let named = |pci: &str, uuid: Option<&str>, minor| DriverGpu { pci: pci.into(), uuid: uuid.map(Into::into), minor };
    assert_eq!(
        facts.driver_gpus,
        [named("0000:41:00.0", Some("GPU-1"), Some(1)), named("0000:c1:00.0", None, Some(0))]
    );
    let gpus = node::driver::gpus(&host).unwrap();
    assert_eq!(
        gpus.iter().map(|(pci, info)| (pci.as_str(), info.minor)).collect::<Vec<_>>(),
        [("0000:41:00.0", Some(1)), ("0000:c1:00.0", Some(0))]
    );
}

#[test]
fn pci_devices_of_a_made_up_node() {
    let folder = TempDir::new().unwrap();
    let host = Host { root: folder.path().to_str().unwrap().to_owned(), ..Host::default() };
    assert_eq!(pci::devices(&host).unwrap(), []);
    let made = folder.path().join("sys/devices");
    let listed = folder.path().join("sys/bus/pci/devices");
    fs::create_dir_all(&listed).unwrap();
    for (address, class, driver) in [
        ("10000:01:00.0", "0x030200", None),
        ("0000:c1:00.0", "0x030000", Some("vfio-pci")),
        ("0000:41:00.0", "0x030200", Some("nvidia")),
        ("0000:c1:00.1", "0x040300", Some("snd_hda_intel")),
    ] {
        let device = made.join(address);
        fs::create_dir_all(&device).unwrap();
        for (name, content) in [("vendor", "0x10de\n"), ("device", "0x20b0\n"), ("class", class), ("numa_node", "-1\n")]
        {
            fs::write(device.join(name), content).unwrap();
        }
        if let Some(driver) = driver {
            symlink(format!("../../bus/pci/drivers/{driver}"), device.join("driver")).unwrap();
        }
        symlink(format!("../../../devices/{address}"), listed.join(address)).unwrap();
    }
    fs::write(made.join("0000:41:00.0/numa_node"), "1\n").unwrap();
    symlink("../../kernel/iommu_groups/12", made.join("0000:41:00.0/iommu_group")).unwrap();
    symlink("../0000:41:00.0", made.join("0000:c1:00.0/physfn")).unwrap();
    fs::create_dir(listed.join("0000:99:00.0")).unwrap();
    let devices = pci::devices(&host).unwrap();
    let gpus: Vec<_> = devices.iter().filter(|device| device.is_gpu()).collect();
    assert_eq!(
        gpus.iter().map(|d| d.address.as_str()).collect::<Vec<_>>(),
        ["0000:41:00.0", "0000:c1:00.0", "10000:01:00.0"]
    );
    assert_eq!(devices.len(), 4, "a device that is going has no vendor");
    let expected = pci::Device {
        address: "0000:41:00.0".into(),
        vendor: pci::NVIDIA,
        device: 0x20b0,
        class: 0x03_0200,
        driver: Some("nvidia".into()),
        numa: Some(1),
        iommu_group: Some(12),
        is_virtual: false,
    };
    assert_eq!(*gpus[0], expected);
    assert_eq!((gpus[1].driver.as_deref(), gpus[1].numa, gpus[1].is_virtual), (Some("vfio-pci"), None, true));
    assert_eq!(gpus[2].driver, None);
}

#[test]
fn a_held_writer_never_shows_half() {
    // Readers that open the name while it is replaced see one of the whole contents.
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    let (long, short) = ("x".repeat(1 << 16), "y".repeat(10));
    let like = fs::metadata(folder.path()).map(|m| Mode { mode: 0o600, uid: m.uid(), gid: m.gid() }).unwrap();
    write_atomic(&file, long.as_bytes(), like, false).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..200 {
                write_atomic(&file, short.as_bytes(), like, false).unwrap();
                write_atomic(&file, long.as_bytes(), like, false).unwrap();
            }
        });
        while !writer.is_finished() {
            let seen = fs::read_to_string(&file).unwrap();
            assert!(seen == long || seen == short, "{} bytes", seen.len());
        }
    });
}

#[test]
fn extended_attributes_stay() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let value = "a value \u{e9}";
    let set = "import os,sys; os.setxattr(sys.argv[1], 'user.quilt', sys.argv[2].encode())";
    let get = "import os,sys; assert os.getxattr(sys.argv[1], 'user.quilt') == sys.argv[2].encode()";
    let python = |code: &str| Command::new("python3").args(["-c", code]).arg(&file).arg(value).output();
    match python(set) {
        Ok(done) if done.status.success() => {}
        other => return println!("skipped: no extended attributes here, or no python3: {other:?}"),
    }
    let meta = fs::metadata(&file).unwrap();
    write_atomic(&file, b"new", Mode { mode: 0o600, uid: meta.uid(), gid: meta.gid() }, false).unwrap();
    let done = python(get).unwrap();
    assert!(done.status.success(), "{done:?}");
}
