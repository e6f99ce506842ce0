//! Section D: capabilities, namespaces, root and what else decides whether a container is one.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use integration::{Bundle, Result, Spec};
use serde_json::{Value, json};

use crate::case::{Bare, Case, Verdict, at, case, fallible, without};
use crate::elsewhere::odd;
use crate::life::{Outcome, Run};
use crate::world::{Place, shown};

const UNSAFE: &str = "UNSAFE_SPEC";
/// With CAP_SYS_ADMIN: the host's control groups once more, and out of its own.
const UNDO: &str = "mkdir -p /mnt/g; mount -t cgroup -o devices none /mnt/g 2>/dev/null && echo 0 >/mnt/g/cgroup.procs; \
     mkdir -p /mnt/d; mount -t devtmpfs none /mnt/d 2>/dev/null && echo LEAK the nodes of the host; umount /mnt/d /mnt/g; true";
/// The files of a process that holds a GPU.
const OTHERS: &str = "for process in /proc/[0-9]*; do \
     [ $process != /proc/$$ ] && grep -q '^quilt-probe.sleep' $process/cmdline 2>/dev/null && echo LEAK processes of others; done; true";

pub(crate) fn cases() -> Vec<Case> {
    [capabilities(), namespaces(), fields()].into_iter().flatten().collect()
}

fn capabilities() -> Vec<Case> {
    let strict = |what, name: &'static str| {
        case("D3 Q41", what, move |_| Spec::new().capability(name)).hardened(Verdict::Refused(UNSAFE, "cap"))
    };
    vec![
        case("D1 Q41 CVE-2021-1056", "the right to make nodes", |_| Spec::new())
            .script("mknod /tmp/d1-$$ c 1 7 && rm /tmp/d1-$$ && echo LEAK a node can be made; true")
            .exposes()
            .always(Verdict::Passes(""))
            .hardened(Verdict::Noted("cap-mknod")),
        case("D2 Q41", "CAP_SYS_ADMIN", |_| Spec::new().capability("CAP_SYS_ADMIN"))
            .script(UNDO)
            .exposes()
            .always(Verdict::Unbounded("cap"))
            .hardened(Verdict::Refused(UNSAFE, "cap")),
        strict("CAP_SYS_MODULE", "CAP_SYS_MODULE"),
        strict("CAP_SYS_RAWIO", "CAP_SYS_RAWIO"),
        strict("CAP_DAC_READ_SEARCH", "CAP_DAC_READ_SEARCH"),
        strict("CAP_BPF", "CAP_BPF"),
        strict("CAP_PERFMON", "CAP_PERFMON"),
        strict("CAP_SYS_BOOT", "CAP_SYS_BOOT"),
        case("D3 L", "a debugger's capability in its own pid namespace", |_| Spec::new().capability("CAP_SYS_PTRACE")),
        case("D4 B12 Q42", "a privileged container as containerd writes it", |run| {
            every_device(run).capability("CAP_SYS_ADMIN")
        })
        .exposes()
        .standard(Verdict::Noted("privileged"))
        .asking(Verdict::Refused(UNSAFE, "privileged"))
        .hardened(Verdict::Refused(UNSAFE, "privileged")),
        case("D4 B12", "the same without CAP_SYS_ADMIN", every_device)
            .exposes()
            .standard(Verdict::Noted("device-gpu"))
            .asking(Verdict::Refused("TENANT_GPU_RULE", "cgroup-wildcard"))
            .hardened(Verdict::Refused("TENANT_GPU_RULE", "cgroup-wildcard")),
        without(
            "D4 Q42",
            "one that the operator names: with its own GPU and no other",
            "q42_a_privileged_container_that_the_operator_names_opens_its_own_gpu_alone",
        ),
    ]
}

/// All capabilities but one, every node of the host and of the fixture, one rule for all.
fn every_device(run: &Run<'_>) -> Spec {
    let mut spec = Spec::new().rule(json!({"allow": true, "access": "rwm"}));
    for name in ["SYS_MODULE", "SYS_RAWIO", "SYS_PTRACE", "DAC_READ_SEARCH", "NET_ADMIN"] {
        spec = spec.capability(&format!("CAP_{name}"));
    }
    for folder in ["/dev", &shown(&run.node(""))] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(facts) = entry.metadata() else { continue };
            let kind = if facts.file_type().is_char_device() { 'c' } else { 'b' };
            let name = format!("/dev/{}", entry.file_name().to_string_lossy());
            // The runtime's own nodes stand in no list.
            let own = ["null", "zero", "full", "tty", "random", "urandom", "console", "ptmx", "innocent"];
            let a_node = facts.file_type().is_char_device() || facts.file_type().is_block_device();
            if a_node && !own.contains(&&*entry.file_name().to_string_lossy()) {
                spec = spec.device(&name, kind, nix_major(facts.rdev()), nix_minor(facts.rdev()));
            }
        }
    }
    spec.edit(|document| {
        document["linux"]["maskedPaths"] = json!([]);
        document["linux"]["readonlyPaths"] = json!([]);
    })
}

fn nix_major(number: u64) -> u64 {
    nix::sys::stat::major(number)
}

fn nix_minor(number: u64) -> u64 {
    nix::sys::stat::minor(number)
}

/// A namespace of the container that holds a GPU.
fn joins(run: &Run<'_>, kind: &str) -> Result<Spec> {
    let file = match kind {
        "network" => "net",
        "mount" => "mnt",
        other => other,
    };
    let path = format!("/proc/{}/ns/{file}", run.world.holder(run.by)?);
    Ok(without_own(kind).edit(|document| {
        if let Some(list) = document["linux"]["namespaces"].as_array_mut() {
            list.push(json!({"type": kind, "path": path}));
        }
    }))
}

pub(crate) fn without_own(kind: &str) -> Spec {
    Spec::new().edit(|document| {
        if let Some(list) = document["linux"]["namespaces"].as_array_mut() {
            list.retain(|namespace| namespace["type"] != kind);
        }
        // A name can be given in a namespace of its own alone.
        if kind == "uts"
            && let Some(document) = document.as_object_mut()
        {
            document.remove("hostname");
        }
    })
}

fn namespaces() -> Vec<Case> {
    let foreign = |ids, what, kind: &'static str| fallible(ids, what, move |run| joins(run, kind));
    vec![
        foreign("D6 Q43", "the mounts of a container with a GPU", "mount")
            .bare(Bare::Unasked("it would change the mounts of the other"))
            .refused(UNSAFE, "ns-path"),
        foreign("D6", "the control groups of a container with a GPU", "cgroup")
            .bare(Bare::Unasked("runtimes differ"))
            .refused(UNSAFE, "ns-path"),
        foreign("D6 Q43", "the processes of a container with a GPU", "pid")
            .script(OTHERS)
            .exposes()
            .refused(UNSAFE, "ns-path"),
        foreign("D16", "the shared memory of a container with a GPU", "ipc")
            .asking(Verdict::Refused(UNSAFE, "ns-path"))
            .hardened(Verdict::Refused(UNSAFE, "ns-path")),
        foreign("D6 Q44 L", "the network of a container with a GPU", "network"),
        foreign("D6 Q44", "the host name of a container with a GPU", "uts")
            .hardened(Verdict::Refused(UNSAFE, "ns-path")),
        without("Q44", "a pod's sandbox, as CRI writes it", "a_key_reaches_the_container_that_it_names"),
        case("D7 Q43", "no mount namespace of its own", |_| without_own("mount"))
            .bare(Bare::Unasked("its mounts would stay on the machine"))
            .refused(UNSAFE, "ns-hostmnt"),
        without("D15", "out of scope: a tenant may always pass its own open GPU on, which no runtime sees", None),
    ]
}

/// Where an agent for system calls listens.
fn agent(run: &Run<'_>) -> PathBuf {
    run.trap.with_extension("agent")
}

/// One listens while the container lives, and says on the host that it was handed the container's calls.
fn with_agent(run: &Run<'_>, bundle: &Bundle) -> Result<Outcome> {
    let (path, trace) = (agent(run), run.trap.join("handed"));
    let listener = odd(&path, UnixListener::bind(&path))?;
    std::thread::scope(|scope| {
        let listening = scope.spawn(|| {
            let Ok((mut caller, _)) = listener.accept() else { return };
            // Nobody speaks where this only waits for the end.
            if caller.read(&mut [0; 64]).is_ok_and(|read| read > 0) {
                let _ = fs::write(&trace, "");
            }
        });
        let outcome = run.live(bundle);
        drop(UnixStream::connect(&path));
        let _ = listening.join();
        outcome
    })
}

fn fields() -> Vec<Case> {
    vec![
        case("D8", "the host's root as the container's", |_| at("/root/path", "/".into()))
            .bare(Bare::Fails)
            .on(Place::Crun, Bare::Fails)
            .always(Verdict::Fails)
            .hardened(Verdict::Refused(UNSAFE, "mount-procfs")),
        case("D8", "the node's /dev as the container's root", |run| at("/root/path", shown(&run.node("")).into()))
            .bare(Bare::Unasked("it would write on the node"))
            .refused("TENANT_GPU_MOUNT", "mount-dev-tree"),
        case("D9", "a root whose mounts are the host's too", |_| at("/linux/rootfsPropagation", "shared".into()))
            .hardened(Verdict::Refused(UNSAFE, "rootfs-propagation")),
        case("D10", "system calls answered by somebody else", |run| {
            let seccomp = json!({
                "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
                "listenerPath": shown(&agent(run)), "syscalls": [{"names": ["acct"], "action": "SCMP_ACT_NOTIFY"}],
            });
            at("/linux/seccomp", seccomp)
        })
        .drive(with_agent)
        .exposes()
        .standard(Verdict::Passes(""))
        .hardened(Verdict::Refused(UNSAFE, "seccomp-listener")),
        without(
            "D11",
            "no AppArmor or SELinux here, so that runtimes fail with every profile, and a name of one opens no GPU: passed on as it came",
            "labels_and_profiles_pass",
        ),
        case("D12 CVE-2022-0811", "a kernel parameter of the whole machine", |run| {
            let value = Value::from(format!("|{}", shown(&run.trap.join("run"))));
            at("/linux/sysctl", json!({"kernel.core_pattern": value}))
        })
        .bare(Bare::Fails)
        .always(Verdict::Fails),
        case("D12 L", "a kernel parameter of its own network", |_| {
            at("/linux/sysctl", json!({"net.ipv4.ip_forward": "1"}))
        }),
        case("D13", "the groups that own GPU nodes", |_| at("/process/user/additionalGids", json!([44, 104, 0]))),
        case("D14 CVE-2024-21626", "a working folder behind a handle of the runtime's", |_| {
            at("/process/cwd", "/proc/self/fd/7".into())
        })
        .script("[ -e ../../../etc/hostname ] && [ -e ../../../var/lib/dpkg ] && echo LEAK the host's files")
        .bare(Bare::Unasked("mended in the runc of this machine"))
        .refused(UNSAFE, "process-cwd"),
    ]
}
