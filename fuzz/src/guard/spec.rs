//! A made-up spec: every choice is one that an engine, a user or an attacker could make.

use serde_json::{Map, Value, json};

use crate::choices::Choices;

use super::world::World;

const KINDS: &[&str] =
    &["bind", "bind", "bind", "none", "tmpfs", "overlay", "devtmpfs", "cgroup", "cgroup2", "proc", "sysfs", "", "ext4"];
const OPTIONS: &[&str] = &[
    "rbind", "bind", "rbind", "rbind", "ro", "rw", "rro", "rrw", "rprivate", "rslave", "rshared", "shared", "nodev",
    "remount", "nosuid",
];
const LAYERS: &[&str] =
    &["lowerdir=", "upperdir=", "lowerdir+=", "workdir=", "lowerdir=/etc:", "index=off,lowerdir=", "xino=on,upperdir="];
const DESTINATIONS: &[&str] = &["/x", "/host", "/sys/fs/cgroup", "/dev", "/x/run", "/proc", "/a b"];
const MAJORS: &[i64] = &[195, 226, 511, 510, 509, 508, 10, 1, 5, 136, 116, 231, -1, 4095, 4096, 8, 8, 259];
const MINORS: &[i64] = &[0, 1, 2, 3, 9, 128, 196, 229, 255, -1, 1_048_575, 1_048_576];
const LETTERS: &[&str] = &["rwm", "rw", "r", "w", "m", "mr", "wm", "rwm", "rwm", "rw", "m", "", "rwa", "rrw"];
const CAPABILITIES: &[&str] =
    &["CAP_CHOWN", "CAP_MKNOD", "CAP_SYS_ADMIN", "sys_admin", "CAP_DAC_READ_SEARCH", "CAP_SYS_RAWIO", "CAP_SYS_PTRACE"];
pub(super) const STAGES: &[&str] =
    &["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];
const HOOKS: &[&str] = &[
    "/usr/bin/dockerd",
    "/bin/true",
    "/usr/bin/podman",
    "/tmp/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
    "nvidia-container-runtime-hook",
    "/bin/sh",
];
const NAMESPACES: &[&str] = &["mount", "pid", "network", "ipc", "uts", "user", "cgroup", "time"];
const CGROUPS: &[&str] = &["/a/b", "system.slice:docker:x", "/", "", "a/../b", "..", "/docker/x"];
const CLASSES: &[&str] = &["a", "/", "..", ".", "../x", "a/b", "", "a.b"];
/// When a low-level runtime does something with an annotation that a container is not to decide.
#[derive(Debug, Clone, Copy)]
pub(super) enum Acts {
    Never,
    Always,
    /// It changes the container's unit, without a device, program, folder or other unit in it: `hardened` knows few of these.
    OnUnit,
    WhereItClimbs,
}

pub(super) const ANNOTATIONS: &[(&str, Acts)] = &[
    ("a", Acts::Never),
    ("io.kubernetes.x", Acts::Never),
    ("org.systemd.property.DeviceAllow", Acts::Always),
    ("org.systemd.property.DevicePolicy", Acts::Always),
    ("org.systemd.property.BPFProgram", Acts::Always),
    ("org.systemd.property.ExecStopPost", Acts::Always),
    ("org.systemd.property.BindPaths", Acts::Always),
    ("org.systemd.property.Delegate", Acts::Always),
    ("org.systemd.property.Slice", Acts::Always),
    ("org.systemd.property.RootDirectory", Acts::Always),
    ("org.systemd.property.LoadCredential", Acts::Always),
    ("org.systemd.property.OnFailure", Acts::Always),
    ("org.systemd.property.CPUWeight", Acts::OnUnit),
    ("org.systemd.property.TimeoutStopUSec", Acts::Never),
    ("run.oci.hooks.stdout", Acts::Always),
    ("run.oci.handler", Acts::Always),
    ("run.oci.delegate-cgroup", Acts::Always),
    ("run.oci.seccomp.plugins", Acts::Always),
    ("run.oci.pidfd_receiver", Acts::Always),
    ("bundle", Acts::Always),
    ("bundle=/x", Acts::Always),
    ("krun.cpus", Acts::Always),
    ("module.wasm.image/variant", Acts::Always),
    ("org.criu.config", Acts::Always),
    ("run.oci.systemd.subgroup", Acts::WhereItClimbs),
    ("run.oci.keep_original_groups", Acts::Never),
];

pub(super) fn made(choices: &mut Choices<'_>, world: &World) -> Value {
    let mounts: Vec<Value> = (0..choices.below(6)).map(|_| mount(choices, world)).collect();
    let devices: Vec<Value> = (0..choices.below(3)).map(|_| device(choices)).collect();
    let mut rules: Vec<Value> = Vec::new();
    if choices.byte() & 3 != 3 {
        rules.push(json!({"allow": false, "access": "rwm"}));
    }
    rules.extend((0..choices.below(6)).map(|_| rule(choices)));
    let mut linux = json!({"devices": devices, "resources": {"devices": rules}, "namespaces": namespaces(choices)});
    let more = choices.byte();
    if more & 1 != 0 {
        linux["cgroupsPath"] = json!(choices.of(CGROUPS));
    }
    if more & 2 != 0 {
        linux["rootfsPropagation"] = json!(choices.of(&["rshared", "shared", "rslave", "private"]));
    }
    if more & 4 != 0 {
        linux["uidMappings"] = json!([{"containerID": 0, "hostID": choices.of(&[0, 100_000]), "size": 65536}]);
    }
    if more & 8 != 0 {
        linux["resources"]["unified"] = json!({*choices.of(&["memory.high", "cgroup.procs", "a/b"]): "1"});
    }
    let mut spec = json!({"ociVersion": "1.0.2", "root": root(choices, world), "process": process(choices), "mounts": mounts, "linux": linux});
    if more & 16 != 0 {
        let path = *choices.of(HOOKS);
        let args = if choices.byte() & 1 == 0 { json!([path]) } else { json!(["x", choices.of(HOOKS)]) };
        spec["hooks"] = json!({*choices.of(STAGES): [{"path": path, "args": args}]});
    }
    if more & 32 != 0 {
        spec["annotations"] = json!({choices.of(ANNOTATIONS).0: choices.of(&["v", "a/../../b"])});
    }
    if more & 64 != 0 {
        spec["mounts"] = Value::Null;
    }
    more_of_linux(choices, &mut spec["linux"]);
    spec
}

/// What few containers have.
fn more_of_linux(choices: &mut Choices<'_>, linux: &mut Value) {
    let some = choices.byte();
    if some & 3 == 3 {
        linux["intelRdt"] = json!({"closID": choices.of(CLASSES)});
    }
    if some & 12 == 12 {
        linux["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/agent"});
    }
    if some & 48 == 48 {
        linux["netDevices"] = json!({"eth7": {}});
    }
    if some & 64 != 0 {
        linux["readonlyPaths"] = json!(["/proc/sys"]);
    }
}

fn path(choices: &mut Choices<'_>, world: &World) -> String {
    let paths = world.paths();
    let path = *choices.of(&paths);
    match choices.below(12) {
        0 => format!("{path}/"),
        1 => format!("/.{path}"),
        2 => format!("/home/user/link/..{path}"),
        3 => format!("../../..{path}"),
        4 => format!("{path}/.."),
        5 => format!("{path}/nvidia0"),
        6 => format!("/home/user/dev/..{path}"),
        7 => path.trim_start_matches('/').to_owned(),
        _ => path.to_owned(),
    }
}

fn mount(choices: &mut Choices<'_>, world: &World) -> Value {
    let kind = *choices.of(KINDS);
    let mut options: Vec<String> = (0..choices.below(4)).map(|_| (*choices.of(OPTIONS)).to_owned()).collect();
    if kind == "overlay" {
        let (key, mut path) = (choices.of(LAYERS), path(choices, world));
        for letter in ["\\", ":", ","].into_iter().filter(|_| key.len() & 1 == 1) {
            path = path.replace(letter, &format!("\\{letter}"));
        }
        let (cut, rest) = path.split_at(path.find(',').filter(|_| choices.byte() & 7 == 7).unwrap_or(path.len()));
        options.push(format!("{key}{cut}"));
        options.extend(rest.strip_prefix(',').map(str::to_owned));
    }
    json!({"destination": choices.of(DESTINATIONS), "type": kind, "source": path(choices, world), "options": options})
}

fn device(choices: &mut Choices<'_>) -> Value {
    json!({
        "type": choices.of(&["c", "c", "u", "b", "p", "b", "c", "x"]),
        "path": choices.of(&["/dev/x", "/dev/y", "/dev/z", "/dev/nvidia0", "/x", "/dev/../x", "x"]),
        "major": choices.of(MAJORS),
        "minor": choices.of(MINORS),
    })
}

fn rule(choices: &mut Choices<'_>) -> Value {
    let mut rule = Map::new();
    let parts = choices.byte();
    rule.insert("allow".into(), json!(parts & 1 == 0));
    if parts & 6 != 6 {
        rule.insert("type".into(), json!(choices.of(&["c", "c", "c", "b", "a", "u"])));
    }
    if parts & 24 != 24 {
        rule.insert("major".into(), json!(choices.of(MAJORS)));
    }
    if parts & 96 != 96 {
        rule.insert("minor".into(), json!(choices.of(MINORS)));
    }
    if parts & 128 == 0 {
        rule.insert("access".into(), json!(choices.of(LETTERS)));
    }
    Value::Object(rule)
}

fn namespaces(choices: &mut Choices<'_>) -> Vec<Value> {
    // Most containers have their own.
    let set = !choices.byte();
    let no_mounts = choices.byte() & 15 == 15;
    let some = NAMESPACES.iter().enumerate().filter(|(n, _)| set >> n & 1 == 1 || (*n == 0 && !no_mounts));
    let path = choices.byte();
    let one = |(n, kind): (usize, &&str)| {
        if usize::from(path) == 200 + n { json!({"type": kind, "path": "/proc/1/ns/x"}) } else { json!({"type": kind}) }
    };
    some.map(one).collect()
}

/// An image, or any folder that somebody takes for one.
fn root(choices: &mut Choices<'_>, world: &World) -> Value {
    let odd = choices.byte();
    let path = match odd % 8 {
        1 => path(choices, world),
        2 => (*choices.of(&["/", "/dev", "/run", "../../..", "/home/user/dev", "../linked", "../linked/rootfs"]))
            .to_owned(),
        _ => "rootfs".to_owned(),
    };
    if odd >= 128 { json!({"path": path, "readonly": true}) } else { json!({"path": path}) }
}

fn process(choices: &mut Choices<'_>) -> Value {
    let capabilities: Vec<&str> = (0..choices.below(3)).map(|_| *choices.of(CAPABILITIES)).collect();
    let odd = choices.clone().byte();
    let set = *choices.of(&["bounding", "effective", "permitted", "inheritable"]);
    let env = *choices.of(&["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all"]);
    let cwd = *choices.of(&["/", "/", "/", "/", "/", "/home", "/proc/self/fd/8", "/proc/self/cwd"]);
    let mut process = json!({"cwd": cwd, "env": [env], "capabilities": {set: capabilities}});
    // Where nothing is said of any, a low-level runtime may give all.
    if (0xf0..0xf8).contains(&odd) {
        process["capabilities"] = Value::Null;
    } else if (0xf8..0xfc).contains(&odd) {
        process.as_object_mut().map(|process| process.remove("capabilities"));
    }
    process
}
