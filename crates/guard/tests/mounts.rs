//! Mounts, each row in both columns: without and with a GPU asked for.

mod common;

use common::{BUNDLE, By, Fake, Spec, both, gpu, hardened, judge, judge_text, verdict};
use contract::config::Policy;
use guard::{FileSystem, LowLevel, Name};

const NODE: &str = "TENANT_GPU_MOUNT mount-gpu-node";
const DEV: &str = "TENANT_GPU_MOUNT mount-dev-tree";
const RESERVED: &str = "UNSAFE_SPEC mount-reserved-source";

#[track_caller]
fn check(spec: &Spec, expected: &str) {
    assert_eq!(both(spec), (expected.to_owned(), expected.to_owned()), "{}", spec.mounts);
}

#[test]
fn sources_are_judged_by_what_is_behind() {
    for (source, expected) in [
        ("/dev/nvidia0", NODE),
        ("/usr/../dev/nvidia0", NODE),
        ("//dev///nvidia0", NODE),
        ("/dev/./nvidia0", NODE),
        ("../../../dev/nvidia0", NODE),
        ("/home/user/link", NODE),
        ("/tmp/innocent", NODE),
        ("/dev/char/195:0", NODE),
        ("/run/nvidia/driver/dev/nvidia0", NODE),
        ("/dev/nvidiactl", NODE),
        ("/dev/nvidia-modeset", NODE),
        ("/dev/nvidia-uvm", NODE),
        ("/dev/nvidia-uvm-tools", NODE),
        ("/dev/nvidia-caps/nvidia-cap1", NODE),
        ("/dev/nvidia-caps-imex-channels/channel0", NODE),
        ("/dev/nvidia-nvswitchctl", NODE),
        ("/dev/gdrdrv", NODE),
        ("/dev/vfio/12", NODE),
        ("/dev/vfio/vfio", NODE),
        ("/dev/mem", NODE),
        ("/dev/kmem", NODE),
        ("/dev/port", NODE),
        ("/dev/dri/card0", NODE),
        ("/dev/dri/renderD128", NODE),
        // The vendor cannot be told, and NVIDIA's driver is there.
        ("/dev/dri/card9", NODE),
        // Look-alikes.
        ("/dev/dri/card1", "ok"),
        ("/dev/dri/renderD129", "ok"),
        ("/dev/fuse", "ok"),
        ("/dev/kvm", "ok"),
        ("/dev/net/tun", "ok"),
        ("/dev/null", "ok"),
        ("/dev/kmsg", "ok"),
        ("/dev/hidraw0", "ok"),
        ("/dev/infiniband/uverbs0", "ok"),
        ("/dev/sda", "ok"),
        ("/etc/hosts", "ok"),
        ("/run/docker.sock", "ok"),
        ("/home/user", "ok"),
        ("/sys", "UNSAFE_SPEC mount-sysfs-rw"),
        ("/sys/bus/pci", "UNSAFE_SPEC mount-sysfs-rw"),
        ("/proc", "UNSAFE_SPEC mount-procfs-rw"),
        ("", "ok"),
        ("/home/user/\u{ff4e}vidia0", "ok"),
    ] {
        check(&Spec::bind(source), expected);
    }
}

#[test]
fn folders() {
    for (source, expected) in [
        ("/dev", DEV),
        ("/dev/", DEV),
        ("/dev/dri", NODE),
        ("/dev/nvidia-caps", NODE),
        ("/dev/vfio", NODE),
        ("/dev/char", NODE),
        ("/dev/snd", "ok"),
        ("/dev/infiniband", "ok"),
        ("/dev/bus/usb", "ok"),
        ("/dev/shm", "ok"),
        ("/dev/pts", "ok"),
        ("/dev/mqueue", "ok"),
        ("/dev/hugepages", "ok"),
        ("/run/nvidia/driver", RESERVED),
        ("/run/quilt-gpu", RESERVED),
        ("/run/quilt-gpu/leases", RESERVED),
        ("/etc/../etc//quilt-gpu/config.toml", RESERVED),
        ("/run/quilt-gpu-other", "ok"),
        ("/etc/quilt", "ok"),
    ] {
        check(&Spec::bind(source), expected);
    }
}

#[test]
fn a_link_into_our_own_files_is_refused() {
    let mut fake = Fake::default();
    fake.dir("/home/user/volume", |dir| dir.real = "/run/quilt-gpu/contracts".into());
    fake.file("/home/user/file", "/var/log/quilt-gpu/audit.jsonl");
    for source in ["/home/user/volume", "/home/user/file"] {
        assert_eq!(verdict(&judge_text(&Spec::bind(source).text(), &By::default(), &fake)), RESERVED, "{source}");
    }
}

#[test]
fn a_configured_dev_root_is_refused_as_dev_is_and_its_folders_are_searched() {
    let mut fake = Fake::default();
    for path in ["/srv/node/dev", "/srv/node/dev/snd", "/srv/node/dev/nvidia-caps"] {
        fake.dir(path, |dir| dir.in_driver_root = true);
    }
    fake.inside.insert("/srv/node/dev/nvidia-caps".into(), vec![(510, 1)]);
    let by = By { dev_root: "/srv/node/dev".into(), ..By::default() };
    for (source, expected) in [
        ("/srv/node/dev", DEV),
        ("/srv/node/dev/nvidia-caps", NODE),
        ("/srv/node/dev/snd", "ok"),
        ("/srv/node/dev/nvidia7", NODE),
        ("/srv/node/dev/other", "ok"),
    ] {
        assert_eq!(verdict(&judge_text(&Spec::bind(source).text(), &by, &fake)), expected, "{source}");
    }
}

#[test]
fn a_bind_is_what_the_options_say() {
    let mount = |kind: &str, options: &str| {
        Spec::mount(&format!(r#"{{"destination":"/x",{kind}"source":"/dev/nvidia0","options":[{options}]}}"#))
    };
    for (kind, options, expected) in [
        (r#""type":"tmpfs","#, r#""bind""#, NODE),
        (r#""type":"tmpfs","#, r#""rbind""#, NODE),
        (r#""type":"none","#, r#""ro","rbind""#, NODE),
        (r#""type":"devtmpfs","#, r#""bind""#, NODE),
        ("", r#""bind""#, NODE),
        (r#""type":"bind","#, "", NODE),
        (r#""type":"tmpfs","#, "", "ok"),
        // Runtimes compare whole options: this one is data of the file system's.
        (r#""type":"tmpfs","#, r#""rw,bind""#, "ok"),
    ] {
        check(&mount(kind, options), expected);
    }
    check(&Spec::mount(r#"{"destination":"/x","type":"bind","source":"/etc/hosts"}"#), "ok");
    check(&Spec::mount(r#"{"destination":"/x","type":"bind","source":null,"options":null}"#), "ok");
}

#[test]
fn file_systems_that_are_or_show_dev() {
    let mount = |kind: &str, options: &str| {
        Spec::mount(&format!(r#"{{"destination":"/x","type":"{kind}","source":"{kind}","options":[{options}]}}"#))
    };
    for (kind, options, expected) in [
        ("devtmpfs", "", "TENANT_GPU_MOUNT mount-fstype"),
        ("devpts", "", "ok"),
        ("tmpfs", r#""tmpcopyup""#, "ok"),
        ("overlay", r#""lowerdir=/dev","upperdir=/tmp/u","workdir=/tmp/w""#, DEV),
        ("overlay", r#""lowerdir=/usr:/dev""#, DEV),
        ("overlay", r#""lowerdir=/us\\:r:/dev""#, DEV),
        ("overlay", r#""ro,lowerdir=/home/user,upperdir=/dev,workdir=/tmp/w""#, DEV),
        ("overlay", r#""lowerdir+=/dev""#, DEV),
        // Found by fuzzing: a `:` in a key that takes one path, a `\` before a comma, one in a path that is not a list.
        ("overlay", r#""lowerdir+=/home/user/to:dev""#, DEV),
        ("overlay", r#""lowerdir=/usr,upperdir=/home/user/to\\,dev,workdir=/tmp/w""#, DEV),
        ("overlay", r#""lowerdir=/usr,upperdir=/home/user/to\\dev,workdir=/tmp/w""#, DEV),
        ("overlay", r#""lowerdir=/usr","upperdir=/home/user/to\\","dev""#, "UNSAFE_SPEC mount-unresolvable"),
        ("overlay", r#""lowerdir=/home/user::/dev/""#, DEV),
        ("overlay", r#""lowerdir=../../../dev""#, DEV),
        ("overlay", r#""lowerdir=/dev/dri""#, NODE),
        ("overlay", r#""lowerdir=/home/user","upperdir=/run/quilt-gpu/x","workdir=/tmp/w""#, RESERVED),
        // An overlay does not show what is mounted below its layers, but what lies in them, and not only at its own place.
        ("overlay", r#""lowerdir=/","upperdir=/tmp/u","workdir=/tmp/w""#, RESERVED),
        ("overlay", r#""lowerdir=/home/user:/dev\\:x","upperdir=/tmp/u","workdir=/tmp/w""#, "ok"),
    ] {
        check(&mount(kind, options), expected);
    }
}

#[test]
fn trees_with_dev_pass_where_the_device_list_holds() {
    let judged = |source: &str, spec: &Spec, by: &By, first: bool| {
        let fake = Fake { first_namespace: first, ..Fake::default() };
        let spec = Spec { mounts: Spec::bind(source).mounts, ..spec.clone() };
        judge_text(&spec.text(), by, &fake)
    };
    let noted = |source: &str, spec: &Spec, by: &By| {
        let judgement = judged(source, spec, by, true);
        assert_eq!(verdict(&judgement), "ok", "{source}");
        judgement.notes.iter().any(|note| note.rule == "mount-dev-tree" && note.at == "/mounts/0/source")
    };
    let crun = common::crun();
    for by in [By::default(), gpu(), crun.clone()] {
        assert!(noted("/", &Spec::default(), &by));
        assert!(!noted("/home/user", &Spec::default(), &by));
        for source in ["/", "/mnt/root", "/run"] {
            assert_eq!(verdict(&judged(source, &Spec::admin(), &by, true)), DEV, "{source}");
            assert_eq!(verdict(&judged(source, &Spec::default(), &by, false)), DEV, "{source}");
        }
        assert_eq!(verdict(&judged("/home/user", &Spec::admin(), &by, true)), "ok");
    }
    // A list that would not be deny-first becomes so.
    for list in ["[]", "null", r#"[{"allow":true,"type":"a","access":"rwm"}]"#] {
        let spec = Spec::whole_list(list);
        assert!(noted("/", &spec, &crun), "{list}");
        assert_eq!(verdict(&judged("/", &spec, &crun, false)), DEV, "{list}");
    }
    // Privileged: its row decides.
    assert!(noted("/", &Spec::privileged(), &By::default()));
    assert_eq!(verdict(&judged("/", &Spec::privileged(), &gpu(), true)), "UNSAFE_SPEC privileged");
    let both_reasons = format!("{RESERVED}, UNSAFE_SPEC privileged");
    assert_eq!(verdict(&judged("/", &Spec::privileged(), &hardened(), true)), both_reasons);
}

#[test]
fn a_bind_of_the_root_that_is_not_recursive_shows_no_dev() {
    let spec = |options: &str| Spec {
        mounts: format!(r#"[{{"destination":"/host","type":"bind","source":"/","options":[{options}]}}]"#),
        ..Spec::admin()
    };
    check(&spec(r#""bind","ro""#), "ok");
    check(&spec(r#""rbind","ro""#), DEV);
    check(&spec(r#""bind","rbind""#), DEV);
    check(&spec(""), DEV);
}

#[test]
fn root_file_systems_that_are_the_hosts() {
    for (root, expected) in [
        ("rootfs", "ok"),
        ("/var/lib/engine/overlay2/x/merged", "ok"),
        ("/dev", DEV),
        ("../../../dev", DEV),
        ("/run/quilt-gpu/x", RESERVED),
    ] {
        check(&Spec { root: root.into(), ..Spec::default() }, expected);
    }
    check(&Spec { root: "/".into(), ..Spec::default() }, "ok");
    check(&Spec { root: "/".into(), ..Spec::admin() }, DEV);
}

/// `podman run --rootfs`: what is refused as a volume that is written is so as a root file system.
#[test]
fn root_file_systems_that_are_written() {
    let mut fake = Fake::default();
    for path in ["/usr", "/usr/sbin", "/etc", "/etc/cdi", "/proc/sys", "/srv/usr", "/srv/tree"] {
        fake.dir(path, |_| {});
    }
    fake.names.insert("/srv/usr".into(), vec![Name { rest: String::new(), real: "/usr".into() }]);
    fake.dir("/srv/processes", |dir| dir.fs = FileSystem::Proc);
    fake.names.insert("/srv/tree".into(), vec![Name { rest: "tools".into(), real: "/usr/sbin".into() }]);
    let by = |by: By| By { programs: vec!["/usr/sbin/runc".into()], ..by };
    for (root, expected) in [
        ("/home/user", "ok"),
        ("/usr", RESERVED),
        ("/usr/sbin", RESERVED),
        ("/srv/usr", RESERVED),
        ("/srv/tree", RESERVED),
        ("/etc/cdi", RESERVED),
        ("/sys/bus/pci", "UNSAFE_SPEC mount-sysfs-rw"),
        ("/proc/sys", "UNSAFE_SPEC mount-procfs-rw"),
        ("/srv/processes", "UNSAFE_SPEC mount-procfs-rw"),
    ] {
        let text = Spec { root: root.into(), caps: r#""CAP_CHOWN""#.into(), ..Spec::default() }.text();
        let readonly = text.replacen(r#""root":{"#, r#""root":{"readonly":true,"#, 1);
        assert!(readonly != text);
        for profile in [By::default(), hardened()] {
            assert_eq!(verdict(&judge_text(&text, &by(profile.clone()), &fake)), expected, "{root}");
            assert_eq!(verdict(&judge_text(&readonly, &by(profile), &fake)), "ok", "{root}, read-only");
        }
    }
    // A link leads elsewhere than its text: runc takes the text, others follow.
    fake.dir("/srv/link/../x", |dir| dir.real = "/usr".into());
    fake.dir("/srv/x", |_| {});
    let odd = Spec { root: "/srv/link/../x".into(), caps: r#""CAP_CHOWN""#.into(), ..Spec::default() }.text();
    for (low_level, expected) in [(LowLevel::Runc, "ok"), (LowLevel::Crun, RESERVED), (LowLevel::Other, RESERVED)] {
        assert_eq!(
            verdict(&judge_text(&odd, &by(By { low_level, ..By::default() }), &fake)),
            expected,
            "{low_level:?}"
        );
    }
}

#[test]
fn what_is_not_there() {
    for (source, expected) in [
        ("/home/nobody", "ok"),
        ("/dev/nvidia7", NODE),
        ("/dev/../dev/nvidia7", NODE),
        ("/dev/nvidia-caps/nvidia-cap99", NODE),
        ("/dev/nothing", "ok"),
        ("/home/nvidia0", "ok"),
    ] {
        check(&Spec::bind(source), expected);
    }
    let judgement = judge(&Spec::bind("/home/nobody"), &By::default());
    assert!(judgement.notes.iter().any(|note| note.rule == "mount-missing"), "{:?}", judgement.notes);
}

#[test]
fn what_cannot_be_told_is_refused() {
    let mut fake = Fake::default();
    for path in ["/proc/self/root/dev/nvidia0", "/proc/self/fd/9", "/loop", "/dev/nvidia3"] {
        fake.unjudgeable(path);
    }
    for (source, code) in [
        ("/proc/self/root/dev/nvidia0", "TENANT_GPU_MOUNT"),
        ("/dev/nvidia3", "TENANT_GPU_MOUNT"),
        ("/proc/self/fd/9", "UNSAFE_SPEC"),
        ("/loop", "UNSAFE_SPEC"),
    ] {
        for by in [By::default(), gpu()] {
            let judgement = judge_text(&Spec::bind(source).text(), &by, &fake);
            assert_eq!(verdict(&judgement), format!("{code} mount-unresolvable"), "{source}");
            assert!(judgement.refusals[0].message.contains("a magic link"));
        }
    }
}

#[test]
fn a_climbing_path_is_judged_both_ways() {
    // By the file system /home/link/../node is beside the link's target; by its text it is /home/node.
    let mut fake = Fake::default();
    fake.file("/home/link/../node", "/srv/node");
    fake.objects.insert("/home/node".into(), contract_char(195, 0));
    assert_eq!(verdict(&judge_text(&Spec::bind("/home/link/../node").text(), &By::default(), &fake)), NODE);
    let mut fake = Fake::default();
    fake.objects.insert("/home/link/../node".into(), contract_char(195, 0));
    fake.file("/home/node", "/home/node");
    assert_eq!(verdict(&judge_text(&Spec::bind("/home/link/../node").text(), &By::default(), &fake)), NODE);
    let inside = format!("{BUNDLE}/rootfs/x");
    fake.file(&inside, &inside);
    assert_eq!(verdict(&judge_text(&Spec::bind("rootfs/x").text(), &By::default(), &fake)), "ok");
}

fn contract_char(major: u32, minor: u32) -> guard::Object {
    guard::Object::Char { major, minor }
}

#[test]
fn the_operator_may_name_dev_for_containers_without_gpus() {
    for other in ["/de", "/dev/shm", "/"] {
        let policy = Policy { allow_dev_mounts: vec![other.into()], ..Policy::default() };
        assert_eq!(verdict(&judge(&Spec::bind("/dev"), &By { policy, ..By::default() })), DEV, "{other}");
    }
    for spelt in ["/dev", "/dev/", "//dev/."] {
        named_dev(Policy { allow_dev_mounts: vec![spelt.into()], ..Policy::default() });
    }
}

fn named_dev(policy: Policy) {
    let devtmpfs = Spec::mount(r#"{"destination":"/x","type":"devtmpfs","source":"devtmpfs"}"#);
    for (spec, rule) in [(Spec::bind("/dev"), "mount-dev-tree"), (devtmpfs, "mount-fstype")] {
        let judgement = judge(&spec, &By { policy: policy.clone(), ..By::default() });
        assert_eq!(verdict(&judgement), "ok");
        assert_eq!(judgement.notes[0].rule, rule);
        assert!(verdict(&judge(&spec, &By { policy: policy.clone(), ..gpu() })).starts_with("TENANT_GPU_MOUNT"));
    }
    assert_eq!(verdict(&judge(&Spec::bind("/dev/dri"), &By { policy, ..By::default() })), NODE);
}

#[test]
fn hardened_rows() {
    let mount = |source: &str, option: &str| {
        Spec::mount(&format!(
            r#"{{"destination":"/x","type":"bind","source":"{source}","options":["rbind","{option}"]}}"#
        ))
    };
    for (spec, expected) in [
        (mount("/sys", "ro"), "ok"),
        (mount("/sys/bus/pci", "ro"), "UNSAFE_SPEC mount-sysfs-rw"),
        (mount("/run", "rw"), RESERVED),
        (mount("/run", "ro"), "UNSAFE_SPEC mount-control-socket"),
        (mount("/", "rw"), RESERVED),
        (mount("/", "ro"), "UNSAFE_SPEC mount-procfs"),
        (mount("/home/user", "rw"), "ok"),
        (Spec::mount(r#"{"destination":"/x","type":"ext4","source":"/dev/sda"}"#), "UNSAFE_SPEC mount-fstype"),
        (Spec::mount(r#"{"destination":"/x","type":"tmpfs","source":"tmpfs"}"#), "ok"),
        (Spec::mount(r#"{"destination":"/x","source":"none"}"#), "ok"),
    ] {
        assert_eq!(verdict(&judge(&spec, &hardened())), expected, "{}", spec.mounts);
        let standard = if spec.mounts == mount("/run", "rw").mounts { RESERVED } else { "ok" };
        assert_eq!(verdict(&judge(&spec, &By::default())), standard, "{}", spec.mounts);
    }
    let disk = Spec::mount(r#"{"destination":"/x","type":"ext4","source":"/dev/sda"}"#);
    assert_eq!(verdict(&judge(&Spec { mounts: disk.mounts, ..Spec::admin() }, &By::default())), "ok", "by its rights");
}

#[test]
fn too_many_mounts_are_refused_before_one_is_looked_at() {
    let mounts = |count| Spec {
        mounts: format!("[{}]", vec![r#"{"destination":"/x","type":"bind","source":"/dev/fuse"}"#; count].join(",")),
        ..Spec::default()
    };
    let fake = Fake::default();
    assert_eq!(verdict(&judge_text(&mounts(4097).text(), &By::default(), &fake)), "UNSAFE_SPEC spec-size");
    assert_eq!(fake.count("look"), 1, "the root file system alone");
    check(&mounts(4096), "ok");
}

#[test]
fn a_refusal_says_where_and_what_would_be_right() {
    let judgement = judge(&Spec::bind("/dev/nvidia0"), &By::default());
    let refusal = &judgement.refusals[0];
    assert_eq!((refusal.at.as_str(), refusal.value.as_str()), ("/mounts/0/source", "/dev/nvidia0"));
    assert!(
        refusal.message.contains("195:0")
            && refusal.help.contains("QUILT_GPU_COUNT=1")
            && refusal.help.contains("quilt.gpu/count")
    );
    assert!(!judge(&Spec::bind("/dev/nvidia0"), &gpu()).refusals[0].help.contains("QUILT_GPU_COUNT"));
}

#[test]
fn drm_without_nvidias_driver() {
    let fake = Fake { majors: Ok(common::majors(&[("drm", 226)])), ..Fake::default() };
    let judged = |source: &str| verdict(&judge_text(&Spec::bind(source).text(), &By::default(), &fake));
    assert_eq!(judged("/dev/dri/card9"), "ok");
    // By another driver (nouveau) it is a GPU all the same.
    assert_eq!(judged("/dev/dri/card0"), NODE);
}

#[test]
fn the_mount_table_is_read_only_when_it_decides() {
    let asked = |spec: &Spec, what: &str| {
        let fake = Fake::default();
        judge_text(&spec.text(), &By::default(), &fake);
        fake.count(what)
    };
    assert_eq!(asked(&Spec::bind("/mnt/root"), "tree"), 0);
    assert_eq!(asked(&Spec::bind("/"), "tree"), 0);
    assert_eq!(asked(&Spec { mounts: Spec::bind("/mnt/root").mounts, ..Spec::admin() }, "tree"), 1);
    assert_eq!(asked(&Spec { mounts: Spec::bind("/mnt/root").mounts, ..Spec::privileged() }, "tree"), 0);
    assert_eq!(asked(&Spec::bind("/home/user"), "look"), 2, "one look for one source, one for the root file system");
    assert_eq!(asked(&Spec::bind("/dev/fuse"), "majors"), 0);
    assert_eq!(asked(&Spec::bind("/dev/hidraw0"), "majors"), 1);
    assert_eq!(asked(&Spec::bind("/etc/hosts"), "namespace"), 0);
    let rule = |kind: &str| Spec::rules(&format!(r#"{{"allow":true,"type":"{kind}","major":8,"access":"rw"}}"#));
    assert_eq!((asked(&rule("c"), "disks"), asked(&rule("b"), "disks")), (0, 1), "no disk is a character device");
}

/// What was judged of a mount stays so.
#[test]
fn no_option_changes_an_earlier_mount() {
    for (options, expected) in [
        (r#""bind","remount","rw""#, "UNSAFE_SPEC mount-remount"),
        (r#""remount""#, "UNSAFE_SPEC mount-remount"),
        (r#""bind","remounts""#, "ok"),
    ] {
        for kind in ["bind", "tmpfs", "none"] {
            let mount = format!(r#"{{"destination":"/x","type":"{kind}","source":"/data","options":[{options}]}}"#);
            assert_eq!(both(&Spec::mount(&mount)), (expected.to_owned(), expected.to_owned()), "{mount}");
        }
    }
}

/// File systems that lie over a folder show it as a bind does, whatever their type is called.
#[test]
fn a_folder_below_another_file_system() {
    for (source, expected) in [
        ("/dev/nvidia0", "TENANT_GPU_MOUNT mount-gpu-node"),
        ("/dev", "TENANT_GPU_MOUNT mount-dev-tree"),
        ("/run/quilt-gpu", "UNSAFE_SPEC mount-reserved-source"),
        ("/data", "ok"),
        ("/nowhere", "ok"),
        ("server:/dev", "ok"),
        ("shm", "ok"),
    ] {
        let mount = format!(r#"{{"destination":"/x","type":"shiftfs","source":"{source}","options":["mark"]}}"#);
        assert_eq!(both(&Spec::mount(&mount)).0, expected, "{source}");
        let judgement = judge(&Spec::mount(&mount), &By::default());
        assert!(
            judgement.notes.iter().all(|note| note.rule != "mount-missing"),
            "{source} is no path that must be there"
        );
    }
    let whole = judge(&Spec::mount(r#"{"destination":"/x","type":"shiftfs","source":"/"}"#), &By::default());
    assert!(whole.notes.iter().any(|note| note.rule == "mount-control-socket"), "{:?}", whole.notes);
}
