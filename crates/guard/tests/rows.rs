//! Rows of the table of attacks by their ids, each in `standard` and in `hardened`, and each look-alike that must pass.
//!
//! What follows the colon in an id is what tells the cases of one row apart. `ok` with a rule behind it: the container starts,
//! and this is noted.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{By, DENY_ALL, Fake, Spec, hardened, judge_text, verdict};
use contract::config::Policy;
use contract::exception::{Exception, Excusable, GuardedCapability};
use guard::{Call, Dir, FileSystem, Object};

const SYSFS: &str = "UNSAFE_SPEC mount-sysfs-rw";
const PROCFS: &str = "UNSAFE_SPEC mount-procfs-rw";
const PROCESSES: &str = "UNSAFE_SPEC mount-procfs";
const OWN: &str = "UNSAFE_SPEC mount-reserved-source";
const SOCKET: &str = "UNSAFE_SPEC mount-control-socket";
const STATE: &str = "UNSAFE_SPEC mount-runtime-state";
const ID: &str = "66e0f27b145f";

/// A machine with the places that the rows name.
fn machine() -> Fake {
    let mut fake = Fake { disks: vec![(8, 0)], ..Fake::default() };
    for path in [
        "/data",
        "/etc",
        "/etc/cdi",
        "/opt",
        "/proc/driver/nvidia",
        "/proc/sys/net",
        "/run/cdi",
        "/run/containerd",
        "/run/nri",
        "/run/nvidia-persistenced",
        "/run/quilt-gpu",
        "/etc/quilt-gpu",
        "/var/log/quilt-gpu",
        "/tmp",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/usr/share",
        "/var",
        "/var/log",
        "/sys/bus",
        "/sys/devices",
        "/sys/devices/pci0000:00",
        "/sys/devices/platform",
        "/sys/devices/system/cpu",
        "/sys/devices/platform/4000.pcie/pci0001:00",
        "/sys/devices/virtual/net",
        "/sys/fs/bpf",
        "/sys/fs/cgroup",
        "/sys/kernel/debug",
        "/sys/class/net",
        "/sys/kernel/tracing",
        "/var/lib",
        "/var/lib/docker",
        "/var/lib/docker/overlay2/x/merged",
        "/var/lib/docker/volumes/v/_data",
        "/var/lib/docker/volumes",
        "/var/lib/docker/containers/1/mounts/shm",
        "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/1/shm",
        "/run/containerd/io.containerd.runtime.v2.task/k8s.io/1/rootfs",
        "/var/lib/containerd/io.containerd.grpc.v1.cri/containers/1/volumes/2",
        "/var/lib/kubelet/pods/1/volumes/x",
        "/var/lib/kubelet",
        "/var/lib/containers/storage/overlay-containers/1/userdata",
        "/var/lib/containers/storage/volumes/v/_data",
        "/run/containers/storage/overlay-containers/1/userdata/shm",
        "/run/crun/x",
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
        "/dev/shm",
        "/tmp/nvidia-mps",
    ] {
        fake.dir(path, |_| {});
    }
    for file in [
        "/usr/bin/quilt-gpu-runtime",
        "/usr/bin/bash",
        "/proc/sys/kernel/core_pattern",
        "/sys/bus/pci/rescan",
        "/sys/devices/pci0000:00/0000:00:01.0/resource0",
        "/var/lib/docker/containers/1/hosts",
        "/run/containerd/containerd.sock",
        "/var/lib/docker/200000.200000/containers/1/hosts",
        "/var/lib/docker/containers/1/config.v2.json",
        "/run/crio/crio.sock",
        "/run/containers/storage/overlay-containers/1/userdata/.containerenv",
        "/run/podman/podman.sock",
        "/run/systemd/private",
        "/run/containers/storage/overlay-containers/1/userdata/config.json",
        "/proc/self-made",
    ] {
        fake.objects.insert(
            file.into(),
            Object::Other { real: file.into(), kernels: file.starts_with("/proc"), fs: FileSystem::Plain },
        );
    }
    fake.dir("/home/user/link", |dir| dir.real = "/sys/bus/pci".into());
    fake.links.insert("/proc/9583/exe".into(), "/usr/bin/dockerd".into());
    fake.objects.insert("/dev/iommu".into(), Object::Char { major: 10, minor: 259 });
    fake.objects.insert("/dev/other".into(), Object::Char { major: 10, minor: 124 });
    fake
}

fn by(profile: By) -> By {
    let programs =
        vec!["/usr/bin/quilt-gpu-runtime".into(), "/usr/bin/runc".into(), "/etc/quilt-gpu/low-level-runtime".into()];
    By { programs, call: Some(Call { id: ID, no_pivot: false }), ..profile }
}

/// The verdict, and behind an `ok` the first note among `rules`.
fn judged(spec: &Spec, by: &By, rules: &[&str]) -> String {
    let judgement = judge_text(&spec.text(), by, &machine());
    let note = judgement.notes.iter().find(|note| rules.contains(&note.rule));
    match (verdict(&judgement), note) {
        (ok, Some(note)) if ok == "ok" => format!("ok {}", note.rule),
        (verdict, _) => verdict,
    }
}

const NOTED: &[&str] = &[
    "mount-procfs",
    "mount-procfs-rw",
    "mount-control-socket",
    "mount-nodev",
    "mount-visible-devices",
    "mount-shared",
    "cap-mknod",
    "mount-reserved-source",
];

#[track_caller]
fn rows(table: &[(&str, Spec, &str, &str)]) {
    for (id, spec, standard, strict) in table {
        assert_eq!(judged(spec, &by(By::default()), NOTED), *standard, "{id} in standard: {}", spec.text());
        let asked = by(By { gpu: true, ..By::default() });
        assert_eq!(judged(spec, &asked, NOTED), *standard, "{id} in standard with a GPU");
        assert_eq!(judged(spec, &by(hardened()), NOTED), *strict, "{id} in hardened: {}", spec.text());
    }
}

/// Without CAP_MKNOD, which has its own row.
fn plain() -> Spec {
    Spec { caps: r#""CAP_CHOWN""#.into(), ..Spec::default() }
}

fn mount(fragment: &str) -> Spec {
    Spec { mounts: Spec::mount(fragment).mounts, ..plain() }
}

fn bound(source: &str, mode: &str) -> Spec {
    mount(&format!(
        r#"{{"destination":"/x","type":"bind","source":"{source}","options":["rbind","rprivate","nodev","{mode}"]}}"#
    ))
}

fn with(more_linux: &str) -> Spec {
    Spec { more_linux: format!(",{more_linux}"), ..plain() }
}

fn joins(kind: &str, path: &str) -> Spec {
    let own = ["pid", "mount"].iter().filter(|own| **own != kind).map(|own| format!(r#"{{"type":"{own}"}},"#));
    Spec { namespaces: format!(r#"[{}{{"type":"{kind}","path":"{path}"}}]"#, own.collect::<String>()), ..plain() }
}

fn caps(name: &str) -> Spec {
    Spec { caps: format!(r#""CAP_CHOWN","{name}""#), ..plain() }
}

#[test]
fn folders_get_nodev() {
    let options = |source: &str, options: &str| {
        mount(&format!(r#"{{"destination":"/x","type":"bind","source":"{source}","options":["rbind"{options}]}}"#))
    };
    let tmpfs = |options: &str| mount(&format!(r#"{{"destination":"/run","type":"tmpfs","options":[{options}]}}"#));
    rows(&[
        ("A12", options("/data", ""), "ok", "ok mount-nodev"),
        ("A12: has it", options("/data", r#","nodev""#), "ok", "ok"),
        ("A12: undone", options("/data", r#","nodev","dev""#), "ok", "ok mount-nodev"),
        ("A12: undone for all", options("/data", r#","rdev","nodev""#), "ok", "UNSAFE_SPEC mount-nodev"),
        ("A13: a node's own file is a node", options("/dev/fuse", ""), "ok", "ok"),
        ("A13: of the host's /dev", options("/dev/snd", ""), "ok", "ok"),
        ("A13: beside it", options("/dev/shm", ""), "ok", "ok"),
        ("A13: a file", options("/etc/hosts", ""), "ok", "ok"),
        ("A19", tmpfs(r#""tmpcopyup""#), "ok", "ok mount-nodev"),
        ("A19: empty", tmpfs(r#""mode=755""#), "ok", "ok"),
        ("A20", options("/data", r#","idmap""#), "ok", "ok mount-nodev"),
        (
            "A8: alone",
            mount(r#"{"destination":"/x","type":"bind","source":"/","options":["bind","ro"]}"#),
            "ok mount-control-socket",
            "ok mount-control-socket",
        ),
    ]);
    let judgement = judge_text(&options("/data", "").text(), &by(hardened()), &machine());
    assert_eq!((judgement.changes.nodev, judgement.notes[0].at.as_str()), (vec![0], "/mounts/0/options"));
    let allowed = Policy { allow_dev_mounts: vec!["/dev".into()], ..hardened().policy };
    let judgement = judge_text(&options("/dev", "").text(), &by(By { policy: allowed, ..By::default() }), &machine());
    assert_eq!((verdict(&judgement).as_str(), judgement.changes.nodev), ("ok", vec![]));
    let standard = judge_text(&options("/data", "").text(), &by(By::default()), &machine());
    assert!(standard.changes.nodev.is_empty() && standard.changes.drop_capabilities.is_empty());
}

#[test]
fn state_of_engines() {
    let containerd = "/run/containerd/io.containerd";
    for (source, strict) in [
        ("/run/containerd".to_owned(), SOCKET),
        (format!("{containerd}.runtime.v2.task/k8s.io/1/rootfs"), STATE),
        ("/var/lib/docker".into(), STATE),
        ("/var/lib/docker/overlay2/x/merged".into(), STATE),
        ("/var/lib/docker/volumes".into(), STATE),
        ("/var/lib/docker/containers/1/config.v2.json".into(), STATE),
        ("/var/lib/containers/storage/overlay-containers/1/userdata".into(), STATE),
        ("/run/containers/storage/overlay-containers/1/userdata/config.json".into(), STATE),
        ("/run/crun/x".into(), STATE),
        (format!("{containerd}.grpc.v1.cri/sandboxes/1/shm"), "ok"),
        ("/var/lib/containerd/io.containerd.grpc.v1.cri/containers/1/volumes/2".into(), "ok"),
        ("/var/lib/docker/volumes/v/_data".into(), "ok"),
        ("/var/lib/docker/containers/1/hosts".into(), "ok"),
        ("/var/lib/docker/containers/1/mounts/shm".into(), "ok"),
        ("/var/lib/docker/200000.200000/containers/1/hosts".into(), "ok"),
        ("/run/containers/storage/overlay-containers/1/userdata/.containerenv".into(), "ok"),
        ("/run/containers/storage/overlay-containers/1/userdata/shm".into(), "ok"),
        ("/var/lib/containers/storage/volumes/v/_data".into(), "ok"),
        ("/var/lib/kubelet/pods/1/volumes/x".into(), "ok"),
    ] {
        let standard = if strict == SOCKET { "ok mount-control-socket" } else { "ok" };
        rows(&[("A14", bound(&source, "rw"), standard, strict), ("A14", bound(&source, "ro"), standard, strict)]);
    }
}

#[test]
fn files_of_the_kernel() {
    for (source, standard, strict) in [
        ("/sys", SYSFS, SYSFS),
        ("/sys/bus", SYSFS, SYSFS),
        ("/sys/bus/pci", SYSFS, SYSFS),
        ("/sys/bus/pci/rescan", SYSFS, SYSFS),
        ("/home/user/link", SYSFS, SYSFS),
        ("/sys/devices", SYSFS, SYSFS),
        ("/sys/devices/pci0000:00", SYSFS, SYSFS),
        ("/sys/devices/pci0000:00/0000:00:01.0/resource0", SYSFS, SYSFS),
        ("/sys/devices/platform", SYSFS, SYSFS),
        ("/sys/devices/platform/4000.pcie/pci0001:00", SYSFS, SYSFS),
        ("/sys/devices/system/cpu", "ok", SYSFS),
        ("/sys/devices/virtual/net", "ok", SYSFS),
        ("/sys/class/net", "ok", SYSFS),
        ("/sys/fs/cgroup", "ok", SYSFS),
        // A31
        ("/sys/fs/bpf", "ok", SYSFS),
        ("/sys/kernel/debug", "ok", SYSFS),
        ("/sys/kernel/tracing", "ok", SYSFS),
    ] {
        rows(&[("A26", bound(source, "rw"), standard, strict)]);
        let read_only = if source.contains("pci") || source.contains("link") { SYSFS } else { "ok" };
        rows(&[("A26: read-only", bound(source, "ro"), "ok", read_only)]);
    }
    let sysfs = |mode: &str| {
        mount(&format!(r#"{{"destination":"/sys","type":"sysfs","source":"sysfs","options":["nosuid"{mode}]}}"#))
    };
    rows(&[
        ("A26: type", sysfs(""), SYSFS, SYSFS),
        ("A26: type, read-only", sysfs(r#","ro""#), "ok", "ok"),
        ("A26: rrw", bound("/sys/bus/pci", r#"ro","rrw"#), SYSFS, SYSFS),
        ("A27", bound("/proc", "rw"), PROCFS, PROCFS),
        ("A27: a file", bound("/proc/sys/kernel/core_pattern", "rw"), PROCFS, PROCFS),
        ("A27: the network's settings", bound("/proc/sys/net", "rw"), "ok mount-procfs", PROCFS),
        ("A27: the driver's", bound("/proc/driver/nvidia", "ro"), "ok mount-procfs", "ok mount-procfs"),
        ("A27: a setting", bound("/proc/sys/kernel/core_pattern", "ro"), "ok mount-procfs", "ok mount-procfs"),
    ]);
    // The sandbox of a privileged pod, as its engine attests it; not what only stands in a pod.
    for (container, expected) in [("", "ok"), ("app", SYSFS)] {
        let by = By { workload: Some(("shop", container)), ..by(By::default()) };
        assert_eq!(judged(&sysfs(""), &by, &[]), expected, "{container}");
    }
    let procfs = |options: &str, lists: &str| Spec {
        more_linux: format!(",{lists}"),
        ..mount(&format!(r#"{{"destination":"/proc/","type":"proc","source":"proc","options":[{options}]}}"#))
    };
    let open = "ok mount-procfs-rw";
    rows(&[
        ("A27: type", procfs("", r#""readonlyPaths":["/proc/sys"]"#), "ok", "ok"),
        ("A27: type, read-only", procfs(r#""ro""#, r#""readonlyPaths":[]"#), "ok", "ok"),
        ("A27: type, all closed", procfs("", r#""maskedPaths":["/proc/"]"#), "ok", "ok"),
        ("A27: type, open", procfs("", r#""readonlyPaths":["/proc/sysrq-trigger"]"#), open, PROCFS),
        ("A27: type, by half", procfs("", r#""readonlyPaths":["/proc/sys/net"]"#), open, PROCFS),
    ]);
    // Another root than the machine's may write little of it, and of a privileged one nothing is promised.
    let mapped = r#""uidMappings":[{"containerID":0,"hostID":100000,"size":65536}]"#;
    let of_mapped = Spec {
        namespaces: r#"[{"type":"pid"},{"type":"mount"},{"type":"user"}]"#.into(),
        ..procfs("", &format!(r#""readonlyPaths":[],{mapped}"#))
    };
    let of_privileged =
        Spec { caps: Spec::privileged().caps, rules: Spec::privileged().rules, ..procfs("", r#""readonlyPaths":[]"#) };
    for (what, spec) in [("mapped", of_mapped), ("privileged", of_privileged)] {
        assert_eq!(judged(&spec, &by(By::default()), &["mount-procfs-rw"]), "ok", "{what}");
    }
    let privileged = Spec {
        mounts: format!(
            "{},{}",
            bound("/sys", "rw").mounts.trim_end_matches(']'),
            bound("/proc", "rw").mounts.trim_start_matches('[')
        ),
        ..Spec::privileged()
    };
    let judgement = judge_text(&privileged.text(), &by(By::default()), &machine());
    assert_eq!(verdict(&judgement), "ok");
    assert!(judgement.notes.iter().any(|note| note.rule == "privileged"));
    // Nobody in a user namespace of other ids is the machine's root.
    let user = r#"[{"type":"pid"},{"type":"mount"},{"type":"user"}]"#;
    let mapped = |host: u32| Spec {
        namespaces: user.into(),
        more_linux: format!(r#","uidMappings":[{{"containerID":0,"hostID":{host},"size":65536}}]"#),
        ..bound("/sys", "rw")
    };
    assert_eq!(judged(&mapped(100_000), &by(By::default()), &[]), "ok");
    assert_eq!(judged(&mapped(0), &by(By::default()), &[]), SYSFS);
}

/// Whoever is root of the machine and sees the host's processes leaves by the folder of one, with whatever capabilities.
#[test]
fn the_hosts_processes() {
    let mut fake = machine();
    let proc = Dir { fs: FileSystem::Proc, ..Dir::default() };
    for path in ["/srv/root/proc", "/data/v/proc"] {
        fake.objects.insert(path.into(), Object::Dir(Dir { real: path.into(), ..proc.clone() }));
    }
    fake.objects.insert("/data/v/sys".into(), Object::Dir(Dir { fs: FileSystem::Sysfs, ..Dir::default() }));
    for path in ["/srv/root", "/data/v", "/data/w", "/proc/1", "/proc/1/net"] {
        fake.dir(path, |_| {});
    }
    fake.kernels = ["/data/w/sys", "/data/v/sys", "/srv/root/proc"].map(str::to_owned).into();
    let user = r#"[{"type":"pid"},{"type":"mount"},{"type":"user"}]"#;
    let mapped = r#","uidMappings":[{"containerID":0,"hostID":100000,"size":65536}]"#;
    let once = |source: &str| {
        mount(&format!(r#"{{"destination":"/x","type":"bind","source":"{source}","options":["bind","ro"]}}"#))
    };
    let host_pids = Spec { namespaces: r#"[{"type":"mount"}]"#.into(), ..plain() };
    let (open, seen) = (("mount-procfs", true), ("mount-procfs", false));
    for (what, spec, standard, strict) in [
        ("all", bound("/proc", "ro"), Some(open), PROCESSES),
        ("no capability", Spec { caps: String::new(), ..bound("/proc", "ro") }, Some(open), PROCESSES),
        ("one", bound("/proc/1", "ro"), Some(open), PROCESSES),
        ("drivers", bound("/proc/driver/nvidia", "ro"), Some(seen), "ok"),
        ("the machine", bound("/", "ro"), Some(open), PROCESSES),
        ("alone", once("/"), None, "ok"),
        ("a root of another system", bound("/srv/root", "ro"), None, PROCESSES),
        ("alone", once("/srv/root"), None, "ok"),
        ("sysfs", bound("/data/v", "ro"), None, "ok"),
        ("not told", bound("/data/w", "ro"), None, "ok"),
        ("their namespace", host_pids.clone(), Some(("ns-hostpid", true)), "UNSAFE_SPEC ns-hostpid"),
        (
            "another's root",
            Spec { namespaces: user.into(), more_linux: mapped.into(), ..bound("/proc", "ro") },
            Some(seen),
            "ok",
        ),
        (
            "privileged",
            Spec { mounts: bound("/proc", "ro").mounts, ..Spec::privileged() },
            Some(seen),
            "UNSAFE_SPEC privileged",
        ),
    ] {
        for profile in [By::default(), common::gpu()] {
            let judgement = judge_text(&spec.text(), &by(profile), &fake);
            let asked = matches!(what, "privileged") && !judgement.refusals.is_empty();
            assert!(asked || verdict(&judgement) == "ok", "{what}");
            let note = judgement.notes.iter().find(|note| ["mount-procfs", "ns-hostpid"].contains(&note.rule));
            let told = note.map(|note| (note.rule, note.message.contains("not a boundary")));
            assert_eq!(told, standard, "{what}");
        }
        assert_eq!(verdict(&judge_text(&spec.text(), &by(hardened()), &fake)), strict, "{what}");
    }
}

#[test]
fn numbers_that_only_the_machine_tells() {
    let device = |minor: u32| Spec {
        devices: format!(r#"[{{"path":"/dev/x","type":"c","major":10,"minor":{minor}}}]"#),
        ..plain()
    };
    let rule = |minor: u32| Spec {
        rules: Spec::rules(&format!(r#"{{"allow":true,"type":"c","major":10,"minor":{minor},"access":"rw"}}"#)).rules,
        ..plain()
    };
    rows(&[
        ("A28", bound("/dev/iommu", "rw"), "TENANT_GPU_MOUNT mount-gpu-node", "TENANT_GPU_MOUNT mount-gpu-node"),
        ("A28: device", device(259), "TENANT_GPU_DEVICE device-gpu", "TENANT_GPU_DEVICE device-gpu"),
        ("A28: rule", rule(259), "TENANT_GPU_RULE cgroup-gpu-rule", "TENANT_GPU_RULE cgroup-gpu-rule"),
        ("A28: another driver's", bound("/dev/other", "rw"), "ok", "ok"),
        ("A28: not given out", device(260), "ok", "ok"),
        ("A28: given out for good", rule(229), "ok", "ok"),
    ]);
    // A33: Tegra and WSL.
    let majors = common::majors(&[("nvhost-gpu", 490), ("nvgpu", 489), ("nvme", 488)]);
    let fake =
        Fake { majors: Ok(majors), misc: common::majors(&[("dxg", 62), ("nvmap", 61), ("iommu", 200)]), ..machine() };
    for (major, minor, gpu) in
        [(490, 0, true), (489, 3, true), (488, 0, false), (10, 62, true), (10, 61, true), (10, 200, false)]
    {
        let spec =
            Spec { devices: format!(r#"[{{"path":"/dev/x","type":"c","major":{major},"minor":{minor}}}]"#), ..plain() };
        let judgement = judge_text(&spec.text(), &by(By::default()), &fake);
        assert_eq!(verdict(&judgement) != "ok", gpu, "A33 {major}:{minor}");
    }
    let all = judge_text(&Spec::whole_list(r#"[{"allow":true,"access":"rwm"}]"#).text(), &by(By::default()), &fake);
    let denied: Vec<_> = all.changes.rules.unwrap_or_default().iter().map(ToString::to_string).collect();
    assert!(denied.contains(&"c 10:62 rwm".into()) && denied.contains(&"c 490:* rwm".into()), "{denied:?}");
}

#[test]
fn who_commands_containers_and_devices() {
    for source in [
        "/run/docker.sock",
        "/run/containerd/containerd.sock",
        "/run/crio/crio.sock",
        "/run/podman/podman.sock",
        "/run/systemd/private",
        "/run/nri",
        "/run/nvidia-persistenced",
        "/tmp/nvidia-mps",
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
        "/var/lib/kubelet",
    ] {
        rows(&[
            ("A29", bound(source, "rw"), "ok mount-control-socket", SOCKET),
            ("A29", bound(source, "ro"), "ok mount-control-socket", SOCKET),
        ]);
    }
    rows(&[("A29: /tmp", bound("/tmp", "rw"), "ok mount-control-socket", "ok mount-control-socket")]);
}

#[test]
fn who_writes_what_runs_as_root_is_root() {
    rows(&[
        ("A30", bound("/usr/bin/quilt-gpu-runtime", "rw"), OWN, OWN),
        ("A30: folder", bound("/usr/bin", "rw"), OWN, OWN),
        ("A30: above", bound("/usr", "rw"), OWN, OWN),
        ("A30: read-only", bound("/usr", "ro"), "ok", "ok"),
        ("A30: another file", bound("/usr/bin/bash", "rw"), "ok", "ok"),
        ("A30: another folder", bound("/usr/share", "rw"), "ok", "ok"),
        (
            "A30: by upperdir",
            mount(r#"{"destination":"/x","type":"overlay","options":["lowerdir=/data","upperdir=/usr/bin"]}"#),
            OWN,
            OWN,
        ),
        (
            "A30: by lowerdir",
            mount(r#"{"destination":"/x","type":"overlay","options":["lowerdir=/usr/bin"]}"#),
            "ok",
            "ok",
        ),
        ("A30: CDI", bound("/etc/cdi", "rw"), OWN, OWN),
        ("A30: CDI", bound("/run/cdi", "rw"), OWN, OWN),
        ("A30: CDI, read-only", bound("/run/cdi", "ro"), "ok", "ok"),
        // Our log is two levels below; the folder of the configuration is one.
        ("A30: forged", bound("/var", "rw"), OWN, OWN),
        ("A30: forged, read-only", bound("/var", "ro"), "ok mount-control-socket", SOCKET),
        ("A30: one level", bound("/var/log", "rw"), "ok mount-reserved-source", OWN),
        ("A30: the root", bound("/", "rw"), "ok mount-procfs", OWN),
    ]);
    assert_eq!(judged(&bound("/", "rw"), &by(By::default()), &["mount-reserved-source"]), "ok mount-reserved-source");
    let var = Fake { mounted: vec!["/var/log".into()], ..machine() };
    let judged = |spec: &Spec, fake: &Fake| verdict(&judge_text(&spec.text(), &by(By::default()), fake));
    assert_eq!(judged(&bound("/var", "rw"), &var), OWN, "a mount in between is renamed with its place");
    let alone = mount(r#"{"destination":"/x","type":"bind","source":"/var","options":["bind"]}"#);
    assert_eq!(judged(&alone, &var), OWN, "its place can, where it does not show");
    assert_eq!(judged(&bound("/var", "rw"), &Fake { first_namespace: false, ..machine() }), "ok", "rootless");
    let privileged = Spec { mounts: bound("/usr", "rw").mounts, ..Spec::privileged() };
    assert_eq!(judged(&privileged, &machine()), "ok");
    // Where ours is a mount, its place can be renamed all the same.
    let fake = Fake { mounted: vec!["/run/quilt-gpu".into()], ..machine() };
    for (mode, expected) in [("rw", OWN), ("ro", "ok")] {
        let spec =
            mount(&format!(r#"{{"destination":"/x","type":"bind","source":"/run","options":["bind","{mode}"]}}"#));
        assert_eq!(judged(&spec, &fake), expected, "{mode}");
    }
}

#[test]
fn devices_and_network() {
    let device =
        |path: &str| Spec { devices: format!(r#"[{{"path":"{path}","type":"c","major":10,"minor":229}}]"#), ..plain() };
    let outside = "UNSAFE_SPEC device-path";
    rows(&[
        ("B6", device("/tmp/x"), "ok", outside),
        ("B6: climbs", device("/dev/../tmp/x"), outside, outside),
        ("B6: relative", device("tmp/x"), outside, outside),
        ("B6: below /dev", device("/dev/x"), "ok", "ok"),
        ("B13", with(r#""netDevices":{"eth1":{"name":"eth0"}}"#), "ok", "UNSAFE_SPEC net-devices"),
        ("B13: none", with(r#""netDevices":{}"#), "ok", "ok"),
    ]);
}

#[test]
fn disks_with_the_machines_own_files() {
    let mut machine = Fake { disks: vec![(8, 0), (8, 1)], ..machine() };
    machine.objects.insert("/dev/sdb".into(), Object::Block { major: 8, minor: 16 });
    let said = |spec: &Spec, by: By| {
        let judgement = judge_text(&spec.text(), &by, &machine);
        let is_noted = judgement.notes.iter().any(|note| note.rule == "device-disk");
        format!("{}{}", verdict(&judgement), if is_noted { " device-disk" } else { "" })
    };
    let rule = |numbers: &str, access: &str| format!(r#"{{"allow":true,"type":"b",{numbers}"access":"{access}"}}"#);
    let (noted, refused) = ("ok device-disk", "UNSAFE_SPEC device-disk");
    for (rules, standard, strict) in [
        (rule(r#""major":8,"minor":0,"#, "rwm"), noted, refused),
        (rule(r#""major":8,"minor":1,"#, "r"), noted, refused),
        (rule(r#""major":8,"#, "rw"), noted, refused),
        (rule("", "rw"), noted, refused),
        // Engines let every node be made.
        (rule("", "m"), "ok", "ok"),
        // Nobody's, or a tenant's own.
        (rule(r#""major":8,"minor":16,"#, "rwm"), "ok", "ok"),
        (r#"{"allow":true,"type":"c","major":8,"minor":0,"access":"rw"}"#.into(), "ok", "ok"),
    ] {
        let spec = Spec { caps: plain().caps, ..Spec::rules(&rules) };
        assert_eq!((&*said(&spec, By::default()), &*said(&spec, hardened())), (standard, strict), "{rules}");
    }
    let of = |source: &str| mount(&format!(r#"{{"destination":"/x","type":"ext4","source":"{source}"}}"#));
    assert_eq!(said(&of("/dev/sda"), By::default()), noted);
    assert_eq!(said(&of("/dev/other"), By::default()), "ok");
    assert_eq!(said(&of("/dev/sdb"), By::default()), "ok", "nobody's");
    assert_eq!(said(&of("none"), By::default()), "ok");
    // Who may mount anything is said to have all of them anyway.
    assert_eq!(said(&Spec { caps: Spec::admin().caps, ..of("/dev/sda") }, By::default()), "ok");
}

#[test]
fn the_containers_own_group() {
    let path = |path: &str| with(&format!(r#""cgroupsPath":"{path}""#));
    let refused = "UNSAFE_SPEC cgroup-path";
    for (engines, own) in [
        (format!("/docker/{ID}"), true),
        (format!("system.slice:docker:{ID}"), true),
        (format!("/k8s.io/{ID}"), true),
        (format!("kubepods-pod1.slice:cri-containerd:{ID}"), true),
        (format!("/libpod_parent/libpod-{ID}"), true),
        (format!("machine.slice:libpod:{ID}"), true),
        (format!("kubepods.slice:crio:{ID}"), true),
        (String::new(), true),
        ("/docker/another".into(), false),
        (format!("/{ID}/other"), false),
        ("machine.slice:libpod:other".into(), false),
    ] {
        rows(&[("C10", path(&engines), "ok", if own { "ok" } else { refused })]);
    }
    rows(&[("C10: climbs", path("/a/../b"), refused, refused)]);
}

#[test]
fn capabilities() {
    let cap = "UNSAFE_SPEC cap";
    rows(&[
        ("D1", caps("CAP_MKNOD"), "ok", "ok cap-mknod"),
        ("D1: in any case", caps("mknod"), "ok", "ok cap-mknod"),
        ("D2", caps("CAP_SYS_ADMIN"), "ok", cap),
        ("D3", caps("CAP_SYS_MODULE"), "ok", cap),
        ("D3: own processes", caps("CAP_SYS_PTRACE"), "ok", "ok"),
        (
            "D3: the host's",
            Spec { namespaces: r#"[{"type":"mount"}]"#.into(), ..caps("CAP_SYS_PTRACE") },
            "ok",
            "UNSAFE_SPEC cap, UNSAFE_SPEC ns-hostpid",
        ),
        (
            "D3: another's",
            Spec { namespaces: joins("pid", "/proc/7/ns/pid").namespaces, ..caps("CAP_SYS_PTRACE") },
            "ok",
            "UNSAFE_SPEC cap, UNSAFE_SPEC ns-path",
        ),
        ("D5", Spec { namespaces: r#"[{"type":"mount"}]"#.into(), ..plain() }, "ok", "UNSAFE_SPEC ns-hostpid"),
    ]);
    let pod = By { workload: Some(("shop", "debug")), ..by(hardened()) };
    let same = Spec { namespaces: joins("pid", "/proc/7/ns/pid").namespaces, ..caps("CAP_SYS_PTRACE") };
    assert_eq!(judged(&same, &pod, &[]), "ok", "D3: the pod's");
    let judgement = judge_text(&caps("CAP_MKNOD").text(), &by(hardened()), &machine());
    assert_eq!(judgement.changes.drop_capabilities, ["MKNOD"]);
    for name in ["MKNOD", "SYS_ADMIN", "SYS_PTRACE"] {
        let mut allowing = by(hardened());
        allowing.policy.allow_capabilities = vec![GuardedCapability(name)];
        let spec = Spec {
            namespaces: if name == "SYS_PTRACE" { same.namespaces.clone() } else { plain().namespaces },
            ..caps(name)
        };
        let judgement = judge_text(&spec.text(), &By { workload: pod.workload, ..allowing }, &machine());
        assert_eq!(verdict(&judgement), "ok", "{name}");
        assert!(judgement.changes.drop_capabilities.is_empty(), "{name}");
    }
}

#[test]
fn namespaces_of_others() {
    let refused = "UNSAFE_SPEC ns-path";
    for (kind, standard, strict, in_pod) in [
        ("network", "ok", "ok", "ok"),
        ("ipc", "ok", refused, "ok"),
        ("uts", "ok", refused, "ok"),
        ("pid", "ok", refused, "ok"),
        ("user", "ok", refused, "ok"),
        ("cgroup", refused, refused, refused),
        ("mount", refused, refused, refused),
    ] {
        let spec = joins(kind, &format!("/proc/7/ns/{kind}"));
        rows(&[("D6", spec.clone(), standard, strict)]);
        let pod = By { workload: Some(("shop", "app")), ..by(hardened()) };
        assert_eq!(judged(&spec, &pod, &[]), in_pod, "D6: {kind} of the pod");
    }
    let shared = mount(r#"{"destination":"/x","type":"bind","source":"/data","options":["rbind","nodev","rshared"]}"#);
    rows(&[
        ("D9", with(r#""rootfsPropagation":"rshared""#), "ok", "UNSAFE_SPEC rootfs-propagation"),
        ("D9: one mount", shared, "ok", "ok mount-shared"),
        ("D10", with(r#""seccomp":{"listenerPath":"/run/agent"}"#), "ok", "UNSAFE_SPEC seccomp-listener"),
    ]);
}

#[test]
fn hooks_by_what_they_are() {
    let hook = |path: &str| Spec { hooks: format!(r#"{{"prestart":[{{"path":"{path}","args":["x"]}}]}}"#), ..plain() };
    let refused = "UNSAFE_SPEC hook";
    rows(&[("E1", hook("/bin/true"), "ok", refused), ("E1: Docker's", hook("/proc/9583/exe"), "ok", refused)]);
    let mut listing = by(hardened());
    listing.policy.allow_hooks = vec!["/usr/bin/dockerd".into()];
    for (path, expected) in [
        ("/usr/bin/dockerd", "ok"),
        ("/proc/9583/exe", "ok"),
        ("/tmp/dockerd", refused),
        ("dockerd", refused),
        ("/usr/bin/nvidia-cdi-hook", "FOREIGN_GPU_INJECTION hook-foreign"),
    ] {
        assert_eq!(judged(&hook(path), &listing, &[]), expected, "E1: {path}");
    }
    let refusal = &judge_text(&hook("/tmp/x").text(), &listing, &machine()).refusals[0];
    assert_eq!((refusal.at.as_str(), refusal.value.as_str()), ("/hooks/prestart/0/path", "/tmp/x"));
}

#[test]
fn words_for_other_injectors() {
    let annotated = |key: &str| Spec { annotations: format!(r#"{{"{key}":"x"}}"#), ..plain() };
    let visible = |folder: &str| {
        mount(&format!(r#"{{"destination":"{folder}/all","type":"bind","source":"/dev/null","options":["bind"]}}"#))
    };
    let refused = "UNSAFE_SPEC mount-visible-devices";
    rows(&[
        ("E4: of the unit", annotated("org.systemd.property.MemoryHigh"), "ok", "UNSAFE_SPEC annotation-low-level"),
        ("E5", annotated("cdi.k8s.io/x"), "ok", "ok"),
        ("E5: NRI", annotated("devices.nri.io/container.x"), "ok", "ok"),
        (
            "E9",
            Spec {
                env: r#"["NVIDIA_DRIVER_CAPABILITIES=all","NVIDIA_IMEX_CHANNELS=0","NVIDIA_GDS=enabled"]"#.into(),
                ..plain()
            },
            "ok",
            "ok",
        ),
        ("E10", visible("/var/run/nvidia-container-devices"), "ok mount-visible-devices", refused),
        ("E10", visible("/run/../run/nvidia-container-devices"), "ok mount-visible-devices", refused),
        ("E10: not there", visible("/run/nvidia-container"), "ok", "ok"),
    ]);
}

#[test]
fn the_command_line() {
    let pivot = |by: By| By { call: Some(Call { id: ID, no_pivot: true }), ..by };
    assert_eq!(judged(&plain(), &pivot(By::default()), &[]), "ok", "H9");
    assert_eq!(judged(&plain(), &pivot(hardened()), &[]), "UNSAFE_SPEC args-no-pivot", "H9");
}

/// Rule, and a spec that `hardened` refuses for it alone.
fn excusable() -> Vec<(&'static str, Spec)> {
    let device =
        |path: &str| Spec { devices: format!(r#"[{{"path":"{path}","type":"c","major":10,"minor":229}}]"#), ..plain() };
    vec![
        ("annotation-low-level", Spec { annotations: r#"{"org.systemd.property.MemoryHigh":"1"}"#.into(), ..plain() }),
        ("cap", caps("CAP_SYS_MODULE")),
        ("cgroup-path", with(r#""cgroupsPath":"/other""#)),
        ("cgroup-wildcard", Spec { caps: plain().caps, ..Spec::whole_list(r#"[{"allow":true,"access":"rwm"}]"#) }),
        ("cgroup-wildcard", Spec { caps: plain().caps, ..Spec::rules(r#"{"allow":true,"type":"c","access":"rwm"}"#) }),
        ("device-disk", Spec { caps: plain().caps, ..Spec::rules(r#"{"allow":true,"type":"b","access":"rw"}"#) }),
        ("device-path", device("/tmp/x")),
        ("hook", Spec { hooks: r#"{"poststop":[{"path":"/bin/true"}]}"#.into(), ..plain() }),
        ("mount-control-socket", bound("/run/docker.sock", "rw")),
        ("mount-dev-tree", bound("/dev", "rw")),
        ("mount-fstype", mount(r#"{"destination":"/x","type":"devtmpfs"}"#)),
        ("mount-fstype", mount(r#"{"destination":"/x","type":"ext4","source":"/dev/sda"}"#)),
        ("mount-procfs", bound("/proc", "ro")),
        ("mount-procfs-rw", bound("/proc", "rw")),
        ("mount-runtime-state", bound("/var/lib/docker", "rw")),
        ("mount-sysfs-rw", bound("/sys", "rw")),
        (
            "mount-visible-devices",
            mount(r#"{"destination":"/run/nvidia-container-devices/all","type":"bind","source":"/dev/null"}"#),
        ),
        ("net-devices", with(r#""netDevices":{"eth1":{}}"#)),
        ("ns-hostpid", Spec { namespaces: r#"[{"type":"mount"}]"#.into(), ..plain() }),
        ("ns-path", joins("cgroup", "/proc/7/ns/cgroup")),
        ("ns-path", joins("ipc", "/proc/7/ns/ipc")),
        ("privileged", Spec::privileged()),
        ("rootfs-propagation", with(r#""rootfsPropagation":"shared""#)),
        ("seccomp-listener", with(r#""seccomp":{"listenerPath":"/run/agent"}"#)),
    ]
}

fn exception(rule: &'static str, namespace: Option<&str>, container: Option<&str>) -> Exception {
    let text = |text: Option<&str>| text.map(str::to_owned);
    Exception { rules: vec![Excusable(rule)], namespace: text(namespace), container: text(container) }
}

#[test]
fn an_exception_turns_a_refusal_into_a_note_for_whom_it_names() {
    for (rule, spec) in excusable() {
        let judge = |exceptions: Vec<Exception>, workload| {
            let judgement = judge_text(&spec.text(), &By { exceptions, workload, ..by(hardened()) }, &machine());
            let noted = judgement.notes.iter().any(|note| note.rule == rule && note.message.contains("policy"));
            (verdict(&judgement), noted)
        };
        let refused = judge(vec![], None);
        assert!(refused.0.ends_with(rule) && !refused.0.contains(',') && !refused.1, "{rule}: {refused:?}");
        let pod = (rule != "ns-path").then_some(("shop", "app"));
        for (exception, here, passes) in [
            (exception(rule, None, None), None, true),
            (exception(rule, Some("shop"), None), pod, pod.is_some()),
            (exception(rule, None, Some("app")), pod, pod.is_some()),
            (exception(rule, Some("shop"), Some("app")), pod, pod.is_some()),
            (exception(rule, Some("shop"), Some("other")), pod, false),
            (exception(rule, Some("other"), Some("app")), pod, false),
            // Who is not attested is nobody.
            (exception(rule, Some("shop"), None), None, false),
            (exception(rule, None, Some("app")), None, false),
            (exception("not-this-one", None, None), pod, false),
        ] {
            let found = judge(vec![exception.clone()], here);
            let expected = if passes { ("ok".to_owned(), true) } else { refused.clone() };
            assert_eq!(found, expected, "{rule}: {exception:?} for {here:?}");
        }
    }
}

/// A privileged container with a GPU, where one lets it: what counts instead of its list has no GPU, and no rule twice.
#[test]
fn a_privileged_container_that_is_let_have_a_gpu_gets_no_other() {
    let exceptions = vec![exception("privileged", None, None)];
    for profile in [By::default(), hardened()] {
        let by = By { gpu: true, exceptions: exceptions.clone(), ..by(profile) };
        let machine = machine();
        let judgement = judge_text(&Spec::privileged().text(), &by, &machine);
        assert_eq!(verdict(&judgement), "ok");
        assert_eq!(guard::open_gpus(&judgement.rules, &guard::Numbers::read(&machine).unwrap(), &[]), None);
        let twice = |(at, rule)| judgement.rules[..at].contains(rule);
        assert!(judgement.rules.len() > 20 && !judgement.rules.iter().enumerate().any(twice));
    }
}

#[test]
fn what_no_exception_reaches() {
    let everything: Vec<Exception> =
        contract::exception::EXCUSABLE.iter().map(|rule| exception(rule, None, None)).collect();
    let node = r#"[{"path":"/dev/x","type":"c","major":195,"minor":0}]"#;
    for (spec, expected) in [
        (bound("/dev/nvidia0", "rw"), "TENANT_GPU_MOUNT mount-gpu-node"),
        (bound("/dev/dri", "rw"), "TENANT_GPU_MOUNT mount-gpu-node"),
        (Spec { devices: node.into(), ..plain() }, "TENANT_GPU_DEVICE device-gpu"),
        (Spec::rules(r#"{"allow":true,"type":"c","major":195,"access":"rw"}"#), "TENANT_GPU_RULE cgroup-gpu-rule"),
        (bound("/run/quilt-gpu", "ro"), OWN),
        (bound("/usr/bin", "rw"), OWN),
        (bound("/var", "rw"), OWN),
        (joins("mount", "/proc/7/ns/mnt"), "UNSAFE_SPEC ns-path"),
        (with(r#""cgroupsPath":"/a/../b""#), "UNSAFE_SPEC cgroup-path"),
        (
            Spec { devices: r#"[{"path":"tmp/x","type":"c","major":1,"minor":3}]"#.into(), ..plain() },
            "UNSAFE_SPEC device-path",
        ),
        (
            Spec { annotations: r#"{"org.systemd.property.DeviceAllow":"x"}"#.into(), ..plain() },
            "UNSAFE_SPEC annotation-low-level",
        ),
        (
            Spec { hooks: r#"{"prestart":[{"path":"/usr/bin/nvidia-ctk"}]}"#.into(), ..plain() },
            "FOREIGN_GPU_INJECTION hook-foreign",
        ),
        (Spec { cwd: "/proc/self/fd/7".into(), ..plain() }, "UNSAFE_SPEC process-cwd"),
    ] {
        for profile in [By::default(), hardened(), common::gpu()] {
            let by = By { exceptions: everything.clone(), workload: Some(("shop", "app")), ..by(profile) };
            assert_eq!(judged(&spec, &by, &[]), expected, "{}", spec.text());
        }
    }
}

#[test]
fn what_must_work_in_standard() {
    let several = |sources: &[(&str, &str)]| {
        let one = |(source, options): &(&str, &str)| {
            format!(r#"{{"destination":"/x","type":"bind","source":"{source}","options":["rbind",{options}]}}"#)
        };
        mount(&sources.iter().map(one).collect::<Vec<_>>().join(","))
    };
    let device = |path: &str, kind: &str, major: u32, minor: u32| {
        format!(r#"{{"path":"{path}","type":"{kind}","major":{major},"minor":{minor}}}"#)
    };
    let devices = [
        ("/dev/fuse", "c", 10, 229),
        ("/dev/net/tun", "c", 10, 200),
        ("/dev/kvm", "c", 10, 232),
        ("/dev/infiniband/uverbs0", "c", 231, 192),
        ("/dev/snd/x", "c", 116, 1),
        ("/dev/bus/usb/1", "c", 189, 0),
        ("/dev/xvda", "b", 8, 0),
    ];
    let listed: Vec<_> = devices.iter().map(|(path, kind, major, minor)| device(path, kind, *major, *minor)).collect();
    let allowed: Vec<_> = devices
        .iter()
        .map(|(_, kind, major, minor)| {
            format!(r#"{{"allow":true,"type":"{kind}","major":{major},"minor":{minor},"access":"rwm"}}"#)
        })
        .collect();
    for (what, spec) in [
        ("host root, not recursive", mount(r#"{"destination":"/host","type":"bind","source":"/","options":["bind","ro"]}"#)),
        ("host root, as engines bind it", several(&[("/", r#""ro","rslave""#)])),
        ("procfs and sysfs, read-only", several(&[("/proc", r#""ro""#), ("/sys", r#""ro""#)])),
        ("places in /dev", several(&[("/dev/shm", r#""rw""#), ("/dev/pts", r#""rw""#), ("/dev/mqueue", r#""rw""#), ("/dev/snd", r#""rw""#), ("/dev/infiniband", r#""rw""#), ("/dev/bus/usb", r#""rw""#)])),
        ("nodes", several(&[("/dev/fuse", r#""rw""#), ("/dev/net/tun", r#""rw""#), ("/dev/kvm", r#""rw""#), ("/dev/sda", r#""rw""#)])),
        ("idmapped", several(&[("/data", r#""rw","idmap""#)])),
        ("docker.sock, logs, packages", several(&[("/run/docker.sock", r#""rw""#), ("/var/log", r#""rw""#), ("/usr", r#""ro""#), ("/var/lib/docker", r#""ro""#)])),
        ("devices", Spec { devices: format!("[{}]", listed.join(",")), rules: format!("[{DENY_ALL},{}]", allowed.join(",")), ..plain() }),
        ("a pod's namespaces", Spec { namespaces: r#"[{"type":"mount"},{"type":"ipc","path":"/proc/7/ns/ipc"},{"type":"uts","path":"/proc/7/ns/uts"},{"type":"network","path":"/proc/7/ns/net"}]"#.into(), ..plain() }),
        ("engines' hooks", Spec { hooks: r#"{"prestart":[{"path":"/proc/9583/exe","args":["libnetwork-setkey"]}]}"#.into(), ..plain() }),
        ("a CUDA image", Spec { env: r#"["NVIDIA_VISIBLE_DEVICES=all","CUDA_VERSION=12.4"]"#.into(), ..plain() }),
        ("Docker's capabilities", caps("CAP_MKNOD")),
    ] {
        for by in [by(By::default()), by(common::gpu()), by(common::crun())] {
            assert_eq!(judged(&spec, &by, &[]), "ok", "{what}");
        }
    }
}

/// Every rule that can be excused stands where operators look, and in the table above.
#[test]
fn operators_find_what_can_be_excused() {
    let text = |path: &str| std::fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let (configuration, refusals) = (text("configs/config.toml"), text("docs/refusals.md"));
    for rule in contract::exception::EXCUSABLE {
        assert!(configuration.contains(&format!("\n#   {rule} ")), "{rule} in config.toml");
        assert!(refusals.contains(&format!("`{rule}`")), "{rule} in refusals.md");
        let here = *rule == "args-no-pivot" || excusable().iter().any(|(known, _)| known == rule);
        assert!(here, "{rule} has a test");
    }
}

/// A folder of the tenant's, and a file in it, on another file system than its path tells.
fn on(fs: &FileSystem, at: &str) -> Fake {
    let mut fake = machine();
    fake.dir(at, |dir| dir.fs = fs.clone());
    let file = format!("{at}/file");
    fake.objects.insert(file.clone(), Object::Other { real: file, kernels: true, fs: fs.clone() });
    fake
}

#[track_caller]
fn lies_on(fs: &FileSystem, at: &str, mode: &str, standard: &str, strict: &str) {
    for source in [at.to_owned(), format!("{at}/file")] {
        let spec = bound(&source, mode);
        for (profile, expected) in [(By::default(), standard), (hardened(), strict)] {
            let judgement = judge_text(&spec.text(), &by(profile), &on(fs, at));
            let note = judgement.notes.iter().find(|note| note.rule.starts_with("mount-procfs"));
            let found = note.map_or_else(|| verdict(&judgement), |note| format!("ok {}", note.rule));
            assert_eq!(found, expected, "{fs:?} {source} {mode}");
        }
    }
}

const VOLUME: &str = "/var/lib/docker/volumes/v/_data";

#[test]
fn what_lies_at_a_path_is_not_told_by_the_path() {
    for at in ["/data/v", VOLUME] {
        lies_on(&FileSystem::Sysfs, at, "rw", SYSFS, SYSFS);
        lies_on(&FileSystem::Sysfs, at, "ro", "ok", SYSFS);
        lies_on(&FileSystem::Proc, at, "rw", PROCFS, PROCFS);
        lies_on(&FileSystem::Proc, at, "ro", "ok mount-procfs", PROCESSES);
        lies_on(&FileSystem::BinfmtMisc, at, "rw", PROCFS, PROCFS);
        lies_on(&FileSystem::BinfmtMisc, at, "ro", "ok", "ok");
        lies_on(&FileSystem::KernelFiles, at, "rw", "ok", SYSFS);
        lies_on(&FileSystem::KernelFiles, at, "ro", "ok", "ok");
        lies_on(&FileSystem::Plain, at, "rw", "ok", "ok");
    }
    let registers = |options: &str| {
        mount(&format!(r#"{{"destination":"/b","type":"binfmt_misc","source":"b","options":[{options}]}}"#))
    };
    rows(&[
        ("A27: programs for others", registers(""), PROCFS, PROCFS),
        ("A27: read-only", registers(r#""ro""#), "ok", "UNSAFE_SPEC mount-fstype"),
    ]);
}

#[test]
fn overlays_that_are_mounted_already() {
    let overlay = |points: &[&str], options: &[&str]| FileSystem::Overlay {
        points: points.iter().map(|point| (*point).to_owned()).collect(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
    };
    const UNTOLD: &str = "UNSAFE_SPEC mount-unresolvable";
    const OURS: &str = "UNSAFE_SPEC mount-reserved-source";
    let (state, above) = ("/run/quilt-gpu".to_owned(), "/run".to_owned());
    let lower = |path: &str| format!("lowerdir=/usr:{path}");
    for (at, points, option, expected) in [
        (VOLUME, VOLUME, lower("/data"), UNTOLD),
        ("/data/v", "/var/lib/containers/storage/volumes/v/_data", lower("/data"), UNTOLD),
        ("/data/v", "/data/v", lower("/data"), "ok"),
        // Not a volume's data.
        ("/data/volumes/v/x", "/data/volumes/v/x", lower("/data"), "ok"),
        ("/data/_data", "/data/_data", lower("/data"), "ok"),
        ("/data/v", "/", lower(&state), "ok"),
        ("/data/v", "/data/v", lower(&state), OURS),
        ("/data/v", "/data/v", lower(&above), OURS),
        ("/data/v", "/data/v", format!("upperdir={state}/leases"), OURS),
        ("/data/v", "/data/v", format!("lowerdir+={above}"), OURS),
        // Over itself: the folder is where it was.
        ("/data/v", &above, lower(&above), "ok"),
        ("/data/v", "/data/v", "lowerdir=l/AB:l/CD".into(), "ok"),
        ("/data/v", "/data/v", lower("/home/user/into"), OURS),
    ] {
        let fs = overlay(&[points], &["rw", &option]);
        let mut fake = on(&fs, at);
        fake.objects.insert("/home/user/into".into(), Object::Dir(Dir { real: state.clone(), ..Dir::default() }));
        for profile in [By::default(), hardened()] {
            let judgement = judge_text(&bound(at, "rw").text(), &by(profile), &fake);
            assert_eq!(verdict(&judgement), expected, "{at} {points} {option}");
        }
    }
    let volume = on(&overlay(&[VOLUME], &[&lower("/data")]), VOLUME);
    let privileged = Spec { mounts: bound(VOLUME, "rw").mounts, ..Spec::privileged() };
    let judgement = judge_text(&privileged.text(), &by(By::default()), &volume);
    assert!(judgement.refusals.is_empty() && judgement.notes.iter().any(|note| note.rule == "mount-unresolvable"));
    let mut dead = on(&overlay(&["/data/v"], &[&lower("/mnt/dead")]), "/data/v");
    dead.unjudgeable("/mnt/dead");
    assert_eq!(verdict(&judge_text(&bound("/data/v", "rw").text(), &by(By::default()), &dead)), UNTOLD);
    // An overlay on an overlay, and one whose layers go round.
    let mut stacked = volume;
    let dir =
        |option: &str, at: &str| Object::Dir(Dir { real: at.into(), fs: overlay(&[at], &[option]), ..Dir::default() });
    stacked.objects.insert("/data/v".into(), dir("lowerdir=/data/w", "/data/v"));
    for (below, expected) in [(lower(&state), OURS), ("lowerdir=/data/v".into(), "ok"), (lower(VOLUME), UNTOLD)] {
        stacked.objects.insert("/data/w".into(), dir(&below, "/data/w"));
        assert_eq!(verdict(&judge_text(&bound("/data/v", "rw").text(), &by(By::default()), &stacked)), expected);
    }
}

/// A layer that is not there is an overlay's own affair; what else there is to say of one is said.
#[test]
fn notes_of_layers() {
    let overlay = |layer: &str| {
        let options = format!(r#"["lowerdir=/data:{layer}","ro"]"#);
        mount(&format!(r#"{{"destination":"/x","type":"overlay","source":"overlay","options":{options}}}"#))
    };
    let noted = |layer: &str| {
        let judgement = judge_text(&overlay(layer).text(), &by(By::default()), &on(&FileSystem::Plain, "/run/nri"));
        assert_eq!(verdict(&judgement), "ok", "{layer}");
        judgement.notes.iter().map(|note| note.rule).filter(|rule| rule.starts_with("mount-")).collect::<Vec<_>>()
    };
    assert_eq!(noted("/run/nri"), ["mount-control-socket"]);
    assert_eq!(noted("/not/there"), [""; 0]);
}

#[test]
fn options_of_an_overlay_that_are_cut() {
    for (length, expected) in [(4095, "ok"), (4096, "UNSAFE_SPEC mount-unresolvable")] {
        let layers = format!("lowerdir=/data:/{}", "x".repeat(length - "lowerdir=/data:/".len() - ",ro".len()));
        let spec = mount(&format!(
            r#"{{"destination":"/x","type":"overlay","source":"overlay","options":["{layers}","ro"]}}"#
        ));
        rows(&[("A16: cut", spec, expected, expected)]);
    }
}

/// Every rule that refuses or notes stands in the document: found by the calls that make refusals and notes.
#[test]
fn every_rule_is_explained() {
    let top = format!("{}/../..", env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(format!("{top}/docs/refusals.md")).unwrap();
    let mut folders: Vec<std::path::PathBuf> = ["contract", "guard", "ledger", "linker"]
        .map(|name| format!("{top}/crates/{name}/src").into())
        .into_iter()
        .chain(["shim/src", "hook/src", "helper/src"].map(|name| format!("{top}/{name}").into()))
        .collect();
    let mut rules = std::collections::BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]").next().unwrap();
                rules.extend(rules_in(code).map(str::to_owned));
            }
        }
    }
    // What the search itself is worth.
    for known in
        ["mount-missing", "json-nul", "capacity", "contract-file", "request-count", "cdi-no-device", "layout", "file"]
    {
        assert!(rules.contains(known), "{known} is not found among {rules:?}");
    }
    // Beginnings of file names, names of programs and words of command lines are constants too.
    rules.retain(|rule| !rule.ends_with('-') && !rule.starts_with("quilt-gpu") && !rule.starts_with("--"));
    rules.retain(|rule| !["create-links", "update-cache", "nvidia-smi"].contains(&rule.as_str()));
    rules.retain(|rule| !document.contains(&format!("`{rule}`")));
    assert!(rules.is_empty(), "not in refusals.md: {rules:?}");
}

/// The first words in quotes behind each call that takes a rule, and of constants, where they look like a rule's name: with a
/// dash, or any word that is first or second in a call that takes nothing else there.
fn rules_in(code: &str) -> impl Iterator<Item = &str> {
    const MAKERS: [&str; 4] = ["Refusal::new(", "Refusal::internal(", "Note::new(", " stale("];
    const OTHERS: [&str; 7] = ["note(", "untrusted(", "unsafe_file(", "problem(", "refused(", "invalid(", "fail("];
    // What stands before the quotes, and in them.
    let quoted = move |call: &'static str| {
        let behind = code.match_indices(call).map(move |(at, call)| &code[at + call.len()..]);
        behind.filter_map(|rest| {
            let mut parts = rest.split(';').next()?.split('"');
            Some((parts.next()?, parts.next()?))
        })
    };
    let sure = MAKERS.into_iter().flat_map(quoted).filter(|(before, _)| before.matches(',').count() < 2);
    let constant =
        code.match_indices(": &str = \"").filter_map(|(at, start)| code[at + start.len()..].split('"').next());
    let likely = MAKERS.into_iter().chain(OTHERS).flat_map(quoted).map(|(_, word)| word).chain(constant);
    let is_plain = |word: &&str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    sure.map(|(_, word)| word).chain(likely.filter(|word| word.contains('-'))).filter(is_plain)
}
