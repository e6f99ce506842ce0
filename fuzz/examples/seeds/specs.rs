//! Specs as text, each with something that a guard has to see, and rows of bytes, each a made-up spec on a made-up machine.

use crate::Seed;

fn spec(mounts: &str, devices: &str, rules: &str, more: &str) -> String {
    format!(
        r#"{{"ociVersion":"1.0.2","process":{{"cwd":"/","capabilities":{{"bounding":["CAP_CHOWN"]}}}},"root":{{"path":"rootfs"}},"mounts":[{mounts}],"linux":{{"devices":[{devices}],"resources":{{"devices":[{rules}]}},"namespaces":[{{"type":"mount"}},{{"type":"pid"}}]{more}}}}}"#
    )
}

const CLOSED: &str = r#"{"allow":false,"access":"rwm"}"#;

fn bound(source: &str, options: &str) -> String {
    format!(r#"{{"destination":"/x","type":"bind","source":"{source}","options":[{options}]}}"#)
}

fn with_root(path: &str, more: &str) -> String {
    spec("", "", CLOSED, "").replacen(r#""path":"rootfs""#, &format!(r#""path":"{path}"{more}"#), 1)
}

pub(crate) fn guard() -> Vec<Seed> {
    let closed = CLOSED;
    let bind = |source: &str| bound(source, "\"rbind\"");
    let written = |source: &str| with_root(source, "");
    let rule = |rest: &str| format!(r#"{closed},{{"allow":true,{rest}}}"#);
    let mut texts = vec![
        spec("", "", closed, ""),
        spec(&bind("/dev/nvidia0"), "", closed, ""),
        spec(&bind("/home/user/link"), "", closed, ""),
        spec(&bind("/"), "", closed, ""),
        spec(&bind("/run"), "", closed, ""),
        spec(&bind("/sys"), "", closed, ""),
        spec(&bind("../../../dev"), "", closed, ""),
        spec("", r#"{"type":"c","path":"/dev/x","major":195,"minor":0}"#, closed, ""),
        spec("", "", &rule(r#""type":"c","major":195,"minor":0,"access":"rw""#), ""),
        spec("", "", &rule(r#""type":"c","major":1,"minor":3,"access":"rwm""#), ""),
        spec("", "", &rule(r#""type":"a""#), ""),
        spec("", "", "", r#","cgroupsPath":"/a/b","rootfsPropagation":"rshared""#),
        spec(r#"{"destination":"/x","type":"devtmpfs"}"#, "", closed, ""),
        spec(r#"{"destination":"/x","type":"overlay","options":["lowerdir=/run:/dev"]}"#, "", closed, ""),
        spec(r#"{"destination":"/sys/fs/cgroup","type":"cgroup2","options":["rw"]}"#, "", closed, ""),
    ];
    // What is mounted elsewhere once more: ours, programs that root runs, nodes, the kernel's files.
    for source in [
        "/mnt/state",
        "/mnt/pods",
        "/mnt/cdi",
        "/mnt/all",
        "/mnt/all/tools",
        "/mnt/dev",
        "/mnt/groups",
        "/mnt/kernel",
        "/mnt/run",
    ] {
        texts.extend(
            ["\"rbind\"", "\"rbind\",\"ro\"", "\"bind\""].map(|options| spec(&bound(source, options), "", closed, "")),
        );
        texts.push(spec(
            &format!(r#"{{"destination":"/x","type":"overlay","options":["lowerdir={source}"]}}"#),
            "",
            closed,
            "",
        ));
    }
    for source in [
        "/usr/bin",
        "/usr",
        "/etc/cdi/more",
        "/var/log",
        "/sys/bus",
        "/proc",
        "/proc/sys/kernel",
        "/proc/1",
        "/mnt/kernel/sys",
        "/mnt/kernel/proc",
    ] {
        texts.extend(["\"rbind\"", "\"rbind\",\"ro\""].map(|options| spec(&bound(source, options), "", closed, "")));
    }
    // Roots that are no images.
    for root in [
        "/",
        "/usr",
        "/mnt/all",
        "/mnt/root",
        "/mnt/dev",
        "/mnt/pods",
        "/mnt/state",
        "/mnt/groups",
        "/mnt/kernel",
        "/home/user/state",
        "/home/user/root",
        "../linked",
        "../linked/rootfs",
        "/proc/sys",
        "/sys/bus",
    ] {
        texts.extend([written(root), with_root(root, r#","readonly":true"#)]);
    }
    texts.push(with_root("/mnt/root", "").replacen("CAP_CHOWN", "CAP_SYS_ADMIN", 1));
    // Disks of the machine's, one that nobody has mounted, and one that the spec mounts.
    for minor in ["0", "1", "16", "-1"] {
        texts.push(spec("", "", &rule(&format!(r#""type":"b","major":8,"minor":{minor},"access":"rw""#)), ""));
    }
    texts.push(spec("", "", &rule(r#""type":"a","access":"m""#), ""));
    texts.push(spec(r#"{"destination":"/x","type":"ext4","source":"/dev/sda1"}"#, "", closed, ""));
    texts.push(spec(r#"{"destination":"/sys","type":"sysfs"}"#, "", closed, ""));
    texts.push(spec(r#"{"destination":"/proc","type":"proc"}"#, "", closed, ""));
    texts.push(spec(r#"{"destination":"/proc","type":"proc"}"#, "", closed, r#","readonlyPaths":["/proc/sys"]"#));
    // What is acted on outside.
    for class in ["a", "/", "..", "../x", "a/b"] {
        texts.push(spec("", "", closed, &format!(r#","intelRdt":{{"closID":"{class}"}}"#)));
    }
    for more in
        [r#""netDevices":{"eth7":{}}"#, r#""seccomp":{"defaultAction":"SCMP_ACT_ALLOW","listenerPath":"/run/agent"}"#]
    {
        texts.push(spec("", "", closed, &format!(",{more}")));
    }
    for file in ["memory.high", "cgroup.procs", "a/memory.high"] {
        let with = format!(r#""resources":{{"unified":{{"{file}":"1"}},"#);
        texts.push(spec("", "", closed, "").replacen(r#""resources":{"#, &with, 1));
    }
    for key in [
        "org.systemd.property.BPFProgram",
        "org.systemd.property.BindPaths",
        "org.systemd.property.Delegate",
        "org.systemd.property.DeviceAllow",
        "org.systemd.property.LoadCredential",
        "org.systemd.property.OnFailure",
        "org.systemd.property.RootDirectory",
        "org.systemd.property.Slice",
        "org.systemd.property.ExecStopPost",
        "org.systemd.property.CPUWeight",
        "org.systemd.property.TimeoutStopUSec",
        "run.oci.hooks.stdout",
        "run.oci.handler",
        "run.oci.systemd.subgroup",
        "bundle=/x",
        "org.criu.config",
        "krun.cpus",
    ] {
        let with = format!(r#""annotations":{{"{key}":"a/../../b"}},"process""#);
        texts.push(spec("", "", closed, "").replacen(r#""process""#, &with, 1));
    }
    for hook in ["/usr/bin/dockerd", "/bin/true", "/usr/bin/nvidia-ctk"] {
        let with = format!(r#""hooks":{{"prestart":[{{"path":"{hook}","args":["x"]}}]}},"process""#);
        texts.push(spec("", "", closed, "").replacen(r#""process""#, &with, 1));
    }
    let seed = |(n, text): (usize, String)| (format!("{n:03}"), text.into_bytes());
    let mut seeds: Vec<Seed> = texts.into_iter().enumerate().map(seed).collect();
    // Rows without an order, so that every kind of part is there from the beginning.
    let mut state = 1_u32;
    for n in 0..24 {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        let bytes: Vec<u8> = (0..40 + n * 12).map(|_| next()).collect();
        seeds.push((format!("made-{n:02}"), bytes));
    }
    seeds
}
