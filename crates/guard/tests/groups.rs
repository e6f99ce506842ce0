//! The host's control groups in mounts: what is shown once more and read-only, and what is not touched.

mod common;

use common::{By, Fake, Spec, gpu, judge_text, verdict};
use guard::{FileSystem, Judgement, Object};

const UNSAFE: &str = "UNSAFE_SPEC mount-cgroup";

fn v1() -> Fake {
    let groups = vec!["/srv/chroot/sys/fs/cgroup/devices".into(), "/sys/fs/cgroup/devices".into()];
    machine(groups)
}

fn v2() -> Fake {
    machine(vec!["/sys/fs/cgroup".into()])
}

fn machine(groups: Vec<String>) -> Fake {
    let mut fake = Fake { groups, ..Fake::default() };
    for path in
        ["/srv", "/sys/fs/cgroup", "/sys/fs/cgroup/devices", "/sys/fs/cgroup/devices/docker", "/sys/fs/cgroup/memory"]
    {
        fake.dir(path, |_| {});
    }
    for file in ["/sys/fs/cgroup/devices/cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs"] {
        fake.objects.insert(file.into(), Object::Other { real: file.into(), kernels: true, fs: FileSystem::Plain });
    }
    fake
}

fn mount(kind: &str, source: &str, destination: &str, options: &[&str]) -> String {
    let options = options.iter().map(|o| format!("\"{o}\"")).collect::<Vec<_>>().join(",");
    format!(r#"{{"destination":"{destination}","type":"{kind}","source":"{source}","options":[{options}]}}"#)
}

fn bind(source: &str, options: &[&str]) -> String {
    mount("bind", source, "/x", options)
}

fn spec(mounts: &[String]) -> Spec {
    Spec::mount(&mounts.join(","))
}

/// Position, source and destination of each added mount.
fn added(judgement: &Judgement) -> Vec<String> {
    let one = |r: &guard::ReadOnly| format!("{} {} {}", r.before, r.source.as_deref().unwrap_or("-"), r.destination);
    judgement.changes.read_only.iter().map(one).collect()
}

fn adds(fake: &Fake, spec: &Spec) -> Vec<String> {
    let both = [By::default(), gpu()].map(|by| judge_text(&spec.text(), &by, fake));
    assert_eq!(verdict(&both[0]), "ok", "{}", spec.mounts);
    assert_eq!(added(&both[0]), added(&both[1]), "{}", spec.mounts);
    let noted = both[0].notes.iter().any(|note| note.rule == "mount-cgroup");
    assert_eq!(noted, !added(&both[0]).is_empty(), "{}", spec.mounts);
    assert_eq!(both[0].changes.covers_groups(), noted, "{}", spec.mounts);
    added(&both[0])
}

#[test]
fn what_youki_would_leave_writable_is_refused_at_dev() {
    let at = |place: &str, fake: &Fake| {
        let spec = spec(&[mount("bind", "/sys/fs/cgroup", place, &["rbind", "rslave", "ro"])]);
        let judgement = judge_text(&spec.text(), &By::default(), fake);
        (verdict(&judgement), added(&judgement).len())
    };
    for place in ["/dev", "/dev/", "//dev/."] {
        assert_eq!(at(place, &v2()), (UNSAFE.to_owned(), 0), "{place}");
        // A part of what is there can be closed.
        assert_eq!(at(place, &v1()), ("ok".to_owned(), 1), "{place}");
    }
    assert_eq!(at("/dev/groups", &v2()), ("ok".to_owned(), 0));
}

/// What closes a part of the root file system shows that part once more.
#[test]
fn a_root_that_was_closed_is_not_closed_again() {
    let mut fake = v1();
    fake.dir("/srv/chroot", |_| {});
    let told = |mounts: &[String]| {
        let spec = Spec { root: "/srv/chroot".into(), ..spec(mounts) };
        let judgement = judge_text(&spec.text(), &By::default(), &fake);
        (verdict(&judgement), added(&judgement))
    };
    let (source, place) = ("/srv/chroot/sys/fs/cgroup/devices", "/sys/fs/cgroup/devices");
    assert_eq!(told(&[]), ("ok".to_owned(), vec![format!("0 {source} {place}")]));
    let cover = |at: &str| mount("bind", source, at, &["ro", "nosuid", "rbind", "rprivate"]);
    assert_eq!(told(&[cover(place)]), ("ok".to_owned(), vec![]));
    let twice = told(&[cover(place), cover("/x")]);
    assert!(twice.0.starts_with("UNSAFE_SPEC"), "{twice:?}: one more is not ours");
}

#[test]
fn version_1() {
    const DEVICES: &str = "1 /sys/fs/cgroup/devices /x";
    for (source, options, expected) in [
        ("/sys", &["rbind", "ro"][..], &["1 /sys/fs/cgroup/devices /x/fs/cgroup/devices"][..]),
        ("/sys", &["bind", "ro"], &[]),
        ("/sys/fs/cgroup", &["rbind", "ro"], &["1 /sys/fs/cgroup/devices /x/devices"]),
        ("/sys/fs/cgroup/devices", &["bind"], &[DEVICES]),
        ("/sys/fs/cgroup/devices", &["rbind", "ro", "rw"], &[DEVICES]),
        ("/sys/fs/cgroup/devices", &["rbind", "ro", "rrw"], &[DEVICES]),
        ("/sys/fs/cgroup/devices", &["rbind", "rro"], &[DEVICES]),
        ("/sys/fs/cgroup/devices", &["rbind", "rw", "ro"], &[]),
        ("/sys/fs/cgroup/devices/docker", &["rbind"], &["1 /sys/fs/cgroup/devices/docker /x"]),
        ("/sys/fs/cgroup/devices/cgroup.procs", &["bind"], &["1 /sys/fs/cgroup/devices/cgroup.procs /x"]),
        (
            "/",
            &["rbind", "rslave", "ro"],
            &[
                "1 /srv/chroot/sys/fs/cgroup/devices /x/srv/chroot/sys/fs/cgroup/devices",
                "1 /sys/fs/cgroup/devices /x/sys/fs/cgroup/devices",
            ],
        ),
        ("/", &["bind", "ro"], &[]),
        ("/srv", &["rbind"], &["1 /srv/chroot/sys/fs/cgroup/devices /x/chroot/sys/fs/cgroup/devices"]),
        // Other controllers hold no device filter, and old images run systemd with them.
        ("/sys/fs/cgroup/memory", &["rbind"], &[]),
        ("/sys/fs/cgroup/memory/cgroup.procs", &["bind"], &[]),
        ("/home/user", &["rbind"], &[]),
        ("/proc", &["rbind", "ro"], &[]),
    ] {
        assert_eq!(adds(&v1(), &spec(&[bind(source, options)])), expected, "{source} {options:?}");
    }
    let slashes = spec(&[mount("bind", "/sys", "/x/", &["rbind", "ro"])]);
    assert_eq!(adds(&v1(), &slashes), ["1 /sys/fs/cgroup/devices /x/fs/cgroup/devices"]);
}

#[test]
fn version_2() {
    for (source, expected) in [
        ("/sys", &["1 /sys/fs/cgroup /x/fs/cgroup"][..]),
        ("/sys/fs/cgroup", &["1 /sys/fs/cgroup /x"]),
        ("/sys/fs/cgroup/memory", &["1 /sys/fs/cgroup/memory /x"]),
    ] {
        let options = if source == "/sys" { &["rbind", "ro"][..] } else { &["rbind"] };
        assert_eq!(adds(&v2(), &spec(&[bind(source, options)])), expected, "{source}");
    }
}

/// Read-only does not reach what is mounted inside, and whoever registers programs there runs them on the host.
#[test]
fn programs_for_others_are_closed_in_a_bound_procfs() {
    const PROGRAMS: &str = "/proc/sys/fs/binfmt_misc";
    for (source, options, is_mounted, expected) in [
        ("/proc", &["rbind", "ro"][..], true, &["1 /proc/sys/fs/binfmt_misc /x/sys/fs/binfmt_misc"][..]),
        ("/proc/sys", &["rbind", "ro"], true, &["1 /proc/sys/fs/binfmt_misc /x/fs/binfmt_misc"]),
        ("/proc", &["bind", "ro"], true, &[]),
        ("/proc", &["rbind", "ro"], false, &[]),
        ("/proc/bus", &["rbind", "ro"], true, &[]),
        // Its own mount is what `ro` is about.
        (PROGRAMS, &["rbind", "ro"], true, &[]),
    ] {
        let mut fake = v1();
        ["/proc", "/proc/bus", "/proc/sys", PROGRAMS].iter().for_each(|path| fake.dir(path, |_| {}));
        fake.kernels.extend(is_mounted.then(|| PROGRAMS.to_owned()));
        let judgement = judge_text(&spec(&[bind(source, options)]).text(), &By::default(), &fake);
        assert_eq!(verdict(&judgement), "ok", "{source} {options:?}");
        assert_eq!(added(&judgement), expected, "{source} {options:?}");
    }
}

#[test]
fn mounts_of_control_groups_by_type() {
    let shown = |fake: &Fake, kind: &str, options: &[&str], namespace: &str| {
        let spec = Spec {
            namespaces: format!(r#"[{{"type":"pid"}},{{"type":"mount"}}{namespace}]"#),
            ..spec(&[mount(kind, "cgroup", "/sys/fs/cgroup", options)])
        };
        adds(fake, &spec)
    };
    let whole = ["1 /sys/fs/cgroup /sys/fs/cgroup"];
    for kind in ["cgroup", "cgroup2"] {
        assert_eq!(shown(&v2(), kind, &["rw"], ""), whole);
        assert_eq!(shown(&v2(), kind, &[], ""), whole);
        assert!(shown(&v2(), kind, &["nosuid", "ro"], "").is_empty(), "as engines write it");
        assert!(shown(&v2(), kind, &["rw"], r#",{"type":"cgroup"}"#).is_empty(), "systemd in a container");
        // Runtimes bind the container's own groups.
        assert!(shown(&v1(), kind, &["rw"], "").is_empty());
    }
}

#[test]
fn several_mounts_each_get_their_own_right_behind() {
    let all = [
        bind("/home/user", &["rbind"]),
        mount("bind", "/sys", "/a", &["rbind", "ro"]),
        mount("tmpfs", "tmpfs", "/tmp", &[]),
        mount("bind", "/", "/b", &["rbind"]),
    ];
    let expected = [
        "2 /sys/fs/cgroup/devices /a/fs/cgroup/devices",
        "4 /srv/chroot/sys/fs/cgroup/devices /b/srv/chroot/sys/fs/cgroup/devices",
        "4 /sys/fs/cgroup/devices /b/sys/fs/cgroup/devices",
    ];
    assert_eq!(adds(&v1(), &spec(&all)), expected);
}

#[test]
fn a_spec_that_has_them_already_is_as_wanted() {
    let again = |options: &[&str], destination: &str| {
        spec(&[
            bind("/sys", &["rbind", "ro"]),
            mount("bind", "/sys/fs/cgroup/devices", destination, options),
            bind("/home/user", &["rbind"]),
        ])
    };
    let there = "/x/fs/cgroup/devices";
    assert_eq!(adds(&v1(), &again(&["ro", "nosuid", "rbind", "rprivate"], there)), Vec::<String>::new());
    let first = "1 /sys/fs/cgroup/devices /x/fs/cgroup/devices";
    assert_eq!(adds(&v1(), &again(&["ro", "rbind"], "/y")), [first]);
    assert_eq!(adds(&v1(), &again(&["ro", "bind"], there)).first().map(String::as_str), Some(first));
    assert_eq!(adds(&v1(), &again(&["rbind"], there)).first().map(String::as_str), Some(first));
}

#[test]
fn a_root_file_system_that_is_the_hosts() {
    let spec = Spec { root: "/".into(), ..Spec::default() };
    let judgement = judge_text(&spec.text(), &By::default(), &v2());
    assert_eq!(
        (verdict(&judgement).as_str(), added(&judgement)),
        ("ok", vec!["0 /sys/fs/cgroup /sys/fs/cgroup".into()])
    );
}

#[test]
fn where_there_is_no_boundary_nothing_is_added() {
    for base in [Spec::admin(), Spec::privileged()] {
        let spec = Spec { mounts: spec(&[bind("/sys", &["rbind", "ro"])]).mounts, ..base };
        let judgement = judge_text(&spec.text(), &By::default(), &v1());
        assert_eq!((verdict(&judgement).as_str(), added(&judgement)), ("ok", vec![]));
    }
    let rootless = Fake { first_namespace: false, ..v1() };
    let judgement = judge_text(&spec(&[bind("/sys", &["rbind", "ro"])]).text(), &By::default(), &rootless);
    assert_eq!((verdict(&judgement).as_str(), added(&judgement)), ("ok", vec![]), "no filter, no way out of one");
}

#[test]
fn who_is_not_the_machines_root_cannot_write_them() {
    let shown = |namespaces: &str, maps: &str| {
        let namespaces = format!(r#"[{{"type":"pid"}},{{"type":"mount"}},{namespaces}]"#);
        let more_linux = format!(r#","uidMappings":[{maps}]"#);
        !adds(&v1(), &Spec { namespaces, more_linux, ..spec(&[bind("/sys", &["rbind", "ro"])]) }).is_empty()
    };
    let map = |host: u32| format!(r#"{{"containerID":0,"hostID":{host},"size":65536}}"#);
    let (user, other) = (r#"{"type":"user"}"#, r#"{"type":"ipc"}"#);
    assert!(!shown(user, &map(100_000)));
    assert!(shown(user, &map(0)));
    assert!(shown(user, &format!("{},{}", map(100_000), map(0))));
    assert!(shown(user, ""), "whose ids are not told");
    assert!(shown(other, &map(100_000)), "without a namespace ids are not mapped");
    let (joined, network) =
        (r#"{"type":"user","path":"/proc/7/ns/user"}"#, r#"{"type":"network","path":"/proc/7/ns/net"}"#);
    assert!(shown(joined, &map(100_000)), "another's ids are not told");
    assert!(!shown(r#"{"type":"user","path":""}"#, &map(100_000)), "nobody's namespace is joined");
    assert!(!shown(&format!("{user},{network}"), &map(100_000)), "a namespace of another kind is joined");
}

#[test]
fn a_mount_that_the_host_shares_cannot_be_covered() {
    for (root, option, expected) in [
        ("rshared", "rshared", UNSAFE),
        ("rshared", "shared", UNSAFE),
        ("shared", "private", UNSAFE),
        ("rshared", "rslave", "ok"),
        ("rshared", "rprivate", "ok"),
        ("rslave", "rshared", "ok"),
        ("private", "rshared", "ok"),
    ] {
        let spec = Spec {
            more_linux: format!(r#","rootfsPropagation":"{root}""#),
            ..spec(&[bind("/sys", &["rbind", "ro", option])])
        };
        let judgement = judge_text(&spec.text(), &By::default(), &v1());
        assert_eq!(verdict(&judgement), expected, "{root} {option}");
        assert_eq!(added(&judgement).is_empty(), expected != "ok");
        let other = Spec { mounts: bind("/home/user", &["rbind", option]), ..spec };
        let other = Spec { mounts: format!("[{}]", other.mounts), ..other };
        assert_eq!(verdict(&judge_text(&other.text(), &By::default(), &v1())), "ok");
    }
}

#[test]
fn no_later_mount_undoes_it() {
    let mut fake = v1();
    let inside = format!("{}/rootfs/x/fs/cgroup/devices", common::BUNDLE);
    fake.dir(&inside, |_| {});
    fake.dir(&format!("{}/rootfs", common::BUNDLE), |_| {});
    let file = format!("{inside}/cgroup.procs");
    fake.objects.insert(file.clone(), Object::Other { real: file, kernels: false, fs: FileSystem::Plain });
    fake.dir("/alias", |dir| dir.real = inside.clone());
    let sys = bind("/sys", &["rbind", "ro"]);
    for (later, expected) in [
        (mount("bind", "/", "/y", &["rbind", "rrw"]), UNSAFE),
        (mount("bind", "rootfs/x/fs/cgroup/devices", "/y", &["bind", "nosuid"]), "UNSAFE_SPEC mount-unresolvable"),
        // Either word makes a bind.
        (mount("none", "rootfs/x/fs/cgroup/devices", "/y", &["rbind"]), "UNSAFE_SPEC mount-unresolvable"),
        (mount("bind", "rootfs/x/fs/cgroup/devices", "/y", &[]), "UNSAFE_SPEC mount-unresolvable"),
        (mount("bind", "rootfs/x/fs/cgroup/devices/cgroup.procs", "/y", &["bind"]), "UNSAFE_SPEC mount-unresolvable"),
        (mount("bind", "rootfs/not/there", "/y", &["bind"]), "UNSAFE_SPEC mount-unresolvable"),
        (mount("bind", "/alias", "/y", &["bind"]), "UNSAFE_SPEC mount-unresolvable"),
        (mount("bind", "/home/user", "/y", &["bind", "nosuid"]), "ok"),
        (mount("bind", "/etc/hosts", "/etc/hosts", &["bind", "rw"]), "ok"),
        (mount("tmpfs", "rootfs/x", "/y", &[]), "ok"),
    ] {
        let after = judge_text(&spec(&[sys.clone(), later.clone()]).text(), &By::default(), &fake);
        assert_eq!(verdict(&after), expected, "{later}");
        let alone = judge_text(&spec(std::slice::from_ref(&later)).text(), &By::default(), &fake);
        assert!(verdict(&alone) == "ok" || later.contains("rrw"), "{later}");
        let before = judge_text(&spec(&[later.clone(), sys.clone()]).text(), &By::default(), &fake);
        assert_eq!(verdict(&before), "ok", "{later}");
    }
}

#[test]
fn the_mount_table_is_read_only_for_what_can_show_groups() {
    let asked = |spec: &Spec| {
        let fake = v1();
        judge_text(&spec.text(), &By::default(), &fake);
        fake.count("groups")
    };
    assert_eq!(asked(&Spec::bind("/etc/hosts")), 0);
    assert_eq!(asked(&Spec::bind("/dev/fuse")), 0);
    assert_eq!(asked(&spec(&[mount("cgroup", "cgroup", "/sys/fs/cgroup", &["ro"])])), 0);
    assert_eq!(asked(&spec(&[mount("proc", "proc", "/proc", &[])])), 0);
    assert_eq!(asked(&Spec { mounts: Spec::bind("/sys").mounts, ..Spec::admin() }), 0);
    assert_eq!(asked(&spec(&[bind("/sys", &["rbind", "ro"])])), 1);
}

/// youki's library goes by some words before the others: what it mounts at `/dev` is writable, and this type is no bind.
#[test]
fn what_youkis_library_reads_otherwise() {
    let ro = &["bind", "ro"];
    for (one, expected) in [
        (mount("cgroup", "/home/user", "/x", &["bind"]), "1 /sys/fs/cgroup /x"),
        (mount("cgroup2", "/home/user", "/x", &["rbind"]), "1 /sys/fs/cgroup /x"),
        (mount("bind", "/sys/fs/cgroup", "/devices", ro), ""),
        (mount("none", "/home/user", "/x", &["bind"]), ""),
    ] {
        assert_eq!(adds(&v2(), &spec(std::slice::from_ref(&one))).join(" "), expected, "{one}");
    }
}
