//! Our own folders below what a mount shows: hidden right behind it.

mod common;

use std::collections::HashMap;

use common::{BUNDLE, By, Fake, Spec, gpu, hardened, judge_text, verdict};
use guard::{Judgement, Name, Object};

const RESERVED: &str = "UNSAFE_SPEC mount-reserved-source";

/// State and configuration are there, the log is not; `/run` is a mount, as everywhere.
fn machine() -> Fake {
    let mut fake = Fake::default();
    for path in ["/etc", "/var", "/var/lib", "/run/quilt-gpu", "/etc/quilt-gpu", "/tmp/u"] {
        fake.dir(path, |_| {});
    }
    fake.dir("/home/user/volume", |dir| dir.real = "/run".into());
    fake
}

fn mount(kind: &str, source: &str, options: &[&str]) -> String {
    let options = options.iter().map(|o| format!("\"{o}\"")).collect::<Vec<_>>().join(",");
    format!(r#"{{"destination":"/x","type":"{kind}","source":"{source}","options":[{options}]}}"#)
}

/// Position and destination of each folder that is hidden.
fn hidden(judgement: &Judgement) -> Vec<String> {
    let all = judgement.changes.read_only.iter().filter(|one| one.source.is_none());
    all.map(|one| format!("{} {}", one.before, one.destination)).collect()
}

fn hides(fake: &Fake, spec: &Spec) -> Vec<String> {
    let both = [By::default(), gpu()].map(|by| judge_text(&spec.text(), &by, fake));
    assert_eq!(verdict(&both[0]), "ok", "{}", spec.mounts);
    assert_eq!(both[0].changes.read_only, both[1].changes.read_only);
    assert!(!both[0].changes.covers_groups(), "no control group is here");
    let noted = both[0].notes.iter().any(|note| note.rule == "mount-reserved-source" && note.at.starts_with('/'));
    assert_eq!(noted, !hidden(&both[0]).is_empty(), "{}", spec.mounts);
    hidden(&both[0])
}

#[test]
fn what_lies_below_the_source() {
    let all = &["1 /x/etc/quilt-gpu", "1 /x/run/quilt-gpu"][..];
    for (source, options, expected) in [
        ("/", &["rbind"][..], all),
        // Who only reads has the reservations.
        ("/", &["rbind", "ro"], all),
        ("/run", &["rbind", "ro"], &["1 /x/quilt-gpu"]),
        ("/run/", &["rbind", "ro"], &["1 /x/quilt-gpu"]),
        ("/home/user/volume", &["rbind", "ro"], &["1 /x/quilt-gpu"]),
        ("/home/../run", &["rbind", "ro"], &["1 /x/quilt-gpu"]),
        ("/etc", &["rbind", "ro"], &["1 /x/quilt-gpu"]),
        // Not recursive: what lies on the same mount.
        ("/run", &["bind", "ro"], &["1 /x/quilt-gpu"]),
        ("/", &["bind"], &["1 /x/etc/quilt-gpu"]),
        // Without the log's folder there is no place to hide it at.
        ("/var", &["rbind", "ro"], &[]),
        ("/home/user", &["rbind"], &[]),
        ("/etc/hosts", &["bind"], &[]),
        ("/dev/fuse", &["bind"], &[]),
    ] {
        assert_eq!(hides(&machine(), &Spec::mount(&mount("bind", source, options))), expected, "{source} {options:?}");
    }
    let var = Spec::mount(&mount("bind", "/var", &["rbind", "ro"]));
    let mut later = machine();
    later.dir("/var/log/quilt-gpu", |_| {});
    assert_eq!(hides(&later, &var), ["1 /x/log/quilt-gpu"]);
    later.file("/var/log/quilt-gpu", "/var/log/quilt-gpu");
    assert!(hides(&later, &var).is_empty(), "nothing can be mounted on a file");
    later.unjudgeable("/var/log/quilt-gpu");
    assert_eq!(hides(&later, &var), ["1 /x/log/quilt-gpu"]);
}

#[test]
fn layers_and_root_file_systems() {
    // An overlay shows a part of a layer wherever an upper layer says so: hiding its place would not do.
    for layers in [
        &["lowerdir=/home/user", "upperdir=/run", "workdir=/tmp/u"][..],
        &["lowerdir=/etc:/run:/etc", "upperdir=/tmp/u"],
        &["lowerdir=/"],
    ] {
        let spec = Spec::mount(&mount("overlay", "overlay", layers)).text();
        assert!(verdict(&judge_text(&spec, &By::default(), &machine())).starts_with(RESERVED), "{layers:?}");
    }
    // crun follows a root file system that is a link; runc refuses one, whatever was judged.
    let mut linked = machine();
    linked.dir(&format!("{}/rootfs", BUNDLE), |dir| dir.real = "/run".into());
    let text = Spec::default().text();
    let hidden_under = |by: &By| hidden(&judge_text(&text, by, &linked));
    assert_eq!(
        (hidden_under(&common::crun()), hidden_under(&By::default())),
        (vec!["0 /quilt-gpu".into()], vec!["0 /quilt-gpu".into()])
    );
    let root = |path: &str| hides(&machine(), &Spec { root: path.into(), ..Spec::default() });
    assert_eq!(root("/"), ["0 /etc/quilt-gpu", "0 /run/quilt-gpu"]);
    let run = Spec { root: "/run".into(), ..Spec::default() }.text();
    let kept = run.replacen(r#""root":{"#, r#""root":{"readonly":true,"#, 1);
    let judged = |text: &str| judge_text(text, &By::default(), &machine());
    assert!(verdict(&judged(&run)).starts_with(RESERVED), "written, they could be renamed");
    assert_eq!((verdict(&judged(&kept)).as_str(), hidden(&judged(&kept))), ("ok", vec!["0 /quilt-gpu".into()]));
    assert!(root("rootfs").is_empty());
}

#[test]
fn an_outer_folder_hides_an_inner_one() {
    let spec = Spec::mount(&mount("bind", "/run", &["rbind", "ro"])).text();
    let own = ["/run/quilt-gpu/", "/run/quilt-gpu/log", "/run/quilt-gpu", "/run//quilt-gpu"];
    let mut fake = machine();
    fake.dir("/run/quilt-gpu/log", |_| {});
    let judgement = common::judge_owning(&spec, &By::default(), &fake, &own);
    assert_eq!((verdict(&judgement).as_str(), hidden(&judgement)), ("ok", vec!["1 /x/quilt-gpu".into()]));
}

#[test]
fn control_groups_beside_them() {
    let fake = Fake { groups: vec!["/sys/fs/cgroup".into()], ..machine() };
    let judgement = judge_text(&Spec::bind("/").text(), &By::default(), &fake);
    let all: Vec<_> = judgement.changes.read_only.iter().map(|one| one.destination.as_str()).collect();
    assert_eq!(all, ["/x/etc/quilt-gpu", "/x/run/quilt-gpu", "/x/sys/fs/cgroup"]);
    let rules: Vec<_> = judgement.notes.iter().map(|note| note.rule).collect();
    assert!(rules.contains(&"mount-cgroup") && rules.contains(&"mount-reserved-source"), "{rules:?}");
}

#[test]
fn a_spec_that_has_them_already_is_as_wanted() {
    let again = |kind: &str, options: &[&str]| {
        let cover = mount(kind, "tmpfs", options).replace("/x", "/x/quilt-gpu");
        hides(&machine(), &Spec::mount(&format!("{},{cover}", mount("bind", "/run", &["rbind", "ro"]))))
    };
    assert!(again("tmpfs", &guard::HIDING).is_empty());
    // A runtime would fill this one with what lies under it.
    assert_eq!(again("tmpfs", &["ro", "nosuid", "size=4k", "tmpcopyup"]), ["1 /x/quilt-gpu"]);
    assert_eq!(again("tmpfs", &["nosuid"]), ["1 /x/quilt-gpu"]);
    assert_eq!(again("proc", &["ro"]), ["1 /x/quilt-gpu"]);
}

#[test]
fn an_overlay_of_the_containers_own_root_cannot_show_them_again() {
    let mut fake = machine();
    fake.dir(&format!("{BUNDLE}/rootfs"), |_| {});
    fake.dir(&format!("{BUNDLE}/rootfs/etc"), |_| {});
    for (layer, expected) in [
        (format!("lowerdir={BUNDLE}/rootfs/etc,upperdir={BUNDLE}/rootfs/x/run"), "UNSAFE_SPEC mount-unresolvable"),
        ("lowerdir=/var/lib/not-yet-there".to_owned(), "UNSAFE_SPEC mount-unresolvable"),
        ("lowerdir=/var/lib".to_owned(), "ok"),
    ] {
        let overlay = mount("overlay", "overlay", &[&layer]).replace("/x", "/y");
        let overlay = overlay.replace("rootfs/y", "rootfs/x");
        let spec = Spec::mount(&format!("{},{overlay}", mount("bind", "/run", &["rbind", "ro"])));
        assert_eq!(verdict(&judge_text(&spec.text(), &By::default(), &fake)), expected, "{layer}");
    }
}

#[test]
fn where_there_is_no_boundary_nothing_is_hidden() {
    for base in [Spec::admin(), Spec::privileged()] {
        let spec = Spec { mounts: Spec::mount(&mount("bind", "/etc", &["rbind", "ro"])).mounts, ..base };
        let judgement = judge_text(&spec.text(), &By::default(), &machine());
        assert_eq!((verdict(&judgement).as_str(), hidden(&judgement)), ("ok", vec![]));
    }
}

/// A folder can be renamed from a tree that was taken out of its mounts, whatever covers what is in it.
#[test]
fn a_folder_that_holds_one_of_ours_is_not_writable() {
    let mut fake = machine();
    for path in ["/var/log", "/var/log/quilt-gpu", "/srv"] {
        fake.dir(path, |_| {});
    }
    for (source, options, expected) in [
        ("/run", &["rbind"][..], RESERVED),
        ("/run", &["bind"], RESERVED),
        ("/run", &["rbind", "ro"], "ok"),
        ("/etc", &["rbind"], RESERVED),
        ("/var", &["rbind"], RESERVED),
        // Another log gives nobody a GPU.
        ("/var/log", &["rbind"], "ok"),
        ("/srv", &["rbind"], "ok"),
    ] {
        let text = Spec::mount(&mount("bind", source, options)).text();
        assert_eq!(verdict(&judge_text(&text, &By::default(), &fake)), expected, "{source} {options:?}");
        let privileged = Spec { mounts: Spec::mount(&mount("bind", source, options)).mounts, ..Spec::privileged() };
        assert_eq!(verdict(&judge_text(&privileged.text(), &By::default(), &fake)), "ok", "{source} {options:?}");
    }
}

/// CVE-free, and old: a volume that is a second mount of our folder, as `subPath`, `o=bind` and ostree make them.
#[test]
fn our_folders_under_other_names() {
    let name = |rest: &str, real: &str| Name { rest: rest.into(), real: real.into() };
    let mut fake = machine();
    for path in ["/vol", "/vol/tree", "/sysroot", "/programs", "/usr/bin"] {
        fake.dir(path, |_| {});
    }
    fake.dir("/run/quilt-gpu/leases", |_| {});
    fake.file("/vol/file", "/vol/file");
    fake.names = HashMap::from([
        ("/vol".into(), vec![name("", "/run/quilt-gpu")]),
        ("/vol/file".into(), vec![name("", "/etc/quilt-gpu/config.toml")]),
        ("/vol/tree".into(), vec![name("a", "/run"), name("b/c", "/run/quilt-gpu/leases")]),
        ("/sysroot".into(), vec![name("", "/")]),
        ("/programs".into(), vec![name("bin", "/usr/bin")]),
        ("/".into(), vec![name("srv/cdi", "/etc/cdi"), name("sysroot", "/")]),
    ]);
    for (source, options, expected, hides) in [
        ("/vol", &["rbind", "ro"][..], RESERVED, &[][..]),
        ("/vol/file", &["bind", "ro"], RESERVED, &[]),
        ("/vol/tree", &["rbind"], RESERVED, &[]),
        ("/vol/tree", &["rbind", "ro"], "ok", &["1 /x/a/quilt-gpu", "1 /x/b/c"]),
        // `/run` is a mount of its own, and not what lies there on the disk.
        ("/sysroot", &["rbind", "ro"], "ok", &["1 /x/etc/quilt-gpu"]),
        ("/programs", &["rbind"], RESERVED, &[]),
        // Who writes the whole host is told so, and has all of it.
        ("/", &["rbind"], "ok", &["1 /x/etc/quilt-gpu", "1 /x/run/quilt-gpu", "1 /x/sysroot/etc/quilt-gpu"]),
        ("/programs", &["rbind", "ro"], "ok", &[]),
    ] {
        let by = By { programs: vec!["/usr/bin/quilt-gpu-runtime".into()], ..By::default() };
        let judgement = judge_text(&Spec::mount(&mount("bind", source, options)).text(), &by, &fake);
        assert_eq!(verdict(&judgement), expected, "{source} {options:?}");
        assert_eq!(hidden(&judgement), hides, "{source} {options:?}");
    }
    let layers = Spec::mount(&mount("overlay", "overlay", &["lowerdir=/vol:/srv"])).text();
    assert_eq!(verdict(&judge_text(&layers, &By::default(), &fake)), RESERVED);
    // A root file system comes with what is mounted in it, too.
    for (root, expected, hides) in [
        ("/vol", RESERVED, &[][..]),
        ("/vol/tree", "ok", &["0 /a/quilt-gpu", "0 /b/c"]),
        ("/sysroot", "ok", &["0 /etc/quilt-gpu"]),
        ("/programs", "ok", &[]),
    ] {
        let text = Spec { root: root.into(), ..Spec::default() }.text();
        let judgement =
            judge_text(&text.replacen(r#""root":{"#, r#""root":{"readonly":true,"#, 1), &By::default(), &fake);
        assert_eq!(
            (verdict(&judgement).as_str(), hidden(&judgement)),
            (expected, hides.iter().map(|it| (*it).into()).collect()),
            "{root}"
        );
    }
}

/// What is mounted in a tree is not read-only because the tree is.
#[test]
fn the_kernels_files_in_a_read_only_tree() {
    let fake = Fake { kernels: vec!["/proc".into(), "/proc/sys/fs/binfmt_misc".into(), "/sys".into()], ..machine() };
    let shown = |source: &str, options: &[&str]| {
        let judgement = judge_text(&Spec::mount(&mount("bind", source, options)).text(), &By::default(), &fake);
        assert_eq!(verdict(&judgement), "ok", "{source}");
        let all =
            judgement.changes.read_only.iter().filter_map(|one| Some((one.source.clone()?, one.destination.clone())));
        all.map(|(source, place)| format!("{source} {place}")).collect::<Vec<_>>()
    };
    let binfmt = "/proc/sys/fs/binfmt_misc";
    assert_eq!(
        shown("/", &["rbind", "ro"]),
        ["/proc /x/proc".into(), format!("{binfmt} /x{binfmt}"), "/sys /x/sys".into()]
    );
    assert_eq!(shown("/proc", &["rbind", "ro"]), [format!("{binfmt} /x/sys/fs/binfmt_misc")]);
    assert_eq!(shown("/proc", &["bind", "ro"]), [""; 0]);
    assert_eq!(shown("/home/user", &["rbind", "ro"]), [""; 0]);
}

#[test]
fn policy_hardened_refuses_what_can_be_written() {
    for (option, expected) in [("rw", RESERVED), ("ro", "ok")] {
        let spec = Spec::mount(&mount("bind", "/etc", &["rbind", option]));
        let judgement = judge_text(&spec.text(), &hardened(), &machine());
        assert_eq!(verdict(&judgement), expected);
        assert_eq!(hidden(&judgement).is_empty(), expected != "ok");
    }
}

#[test]
fn neither_a_shared_mount_nor_a_later_one_shows_them() {
    let shared = Spec {
        more_linux: r#","rootfsPropagation":"rshared""#.into(),
        ..Spec::mount(&mount("bind", "/run", &["rbind", "ro", "rshared"]))
    };
    assert_eq!(verdict(&judge_text(&shared.text(), &By::default(), &machine())), RESERVED);
    let mut fake = machine();
    let inside = format!("{BUNDLE}/rootfs/x");
    fake.dir(&format!("{BUNDLE}/rootfs"), |_| {});
    fake.objects.insert(inside, Object::Missing);
    let later = mount("bind", "rootfs/x", &["bind"]).replace("/x\",\"type", "/y\",\"type");
    let spec = Spec::mount(&format!("{},{later}", mount("bind", "/run", &["rbind", "ro"])));
    assert_eq!(verdict(&judge_text(&spec.text(), &By::default(), &fake)), "UNSAFE_SPEC mount-unresolvable");
}

#[test]
fn only_what_lies_above_costs_a_look() {
    let asked = |source: &str, what: &str| {
        let fake = machine();
        judge_text(&Spec::mount(&mount("bind", source, &["rbind", "ro"])).text(), &By::default(), &fake);
        fake.count(what)
    };
    // One of them at the root file system.
    assert_eq!(asked("/home/user", "look"), 2);
    assert_eq!(asked("/etc", "look"), 3);
    assert_eq!(asked("/etc", "between"), 0);
}
