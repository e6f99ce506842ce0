//! Section E: hooks, annotations, environment, and the ways in which other tools are asked for GPUs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use integration::{Result, Rootfs, Spec, run};
use serde_json::json;

use crate::case::{Bare, Case, Verdict, at, case, put, without};
use crate::life::Run;
use crate::world::{By, Place, shown};

const UNSAFE: &str = "UNSAFE_SPEC";
const FOREIGN: &str = "FOREIGN_GPU_INJECTION";
/// The first process's own variables, for whatever other tools read them.
const WISHES: &str = "tr '\\0' '\\n' </proc/$$/environ | grep -x 'NVIDIA_VISIBLE_DEVICES=\\(all\\|0\\|.*=all\\)' && echo LEAK a wish for all GPUs; \
     [ $(tr '\\0' '\\n' </proc/$$/environ | grep -c '^NVIDIA_VISIBLE_DEVICES=') -gt 1 ] && echo LEAK two readers, two answers; true";

pub(crate) fn cases() -> Vec<Case> {
    [hooks(), annotations(), environment(), inside()].into_iter().flatten().collect()
}

/// A program that leaves a trace on the host, by this name.
fn hooked(run: &Run<'_>, stage: &'static str, program: &Path, name: &str) -> Spec {
    let trace = format!("echo ran >{}", shown(&run.trap.join("ran")));
    let hook = json!({"path": shown(program), "args": [name, "-c", trace], "env": ["A=b"]});
    at("/hooks", json!({stage: [hook]}))
}

fn hooks() -> Vec<Case> {
    let shell = |what, stage: &'static str| {
        case("E1 Q45", what, move |run| hooked(run, stage, Path::new("/bin/sh"), "sh"))
            .exposes()
            .always(Verdict::Passes("hook"))
            .hardened(Verdict::Refused(UNSAFE, "hook"))
    };
    let injector = |ids, what, name: &'static str| {
        case(ids, what, move |run| hooked(run, "createRuntime", Path::new("/bin/sh"), name))
            .exposes()
            .refused(FOREIGN, "hook-foreign")
    };
    vec![
        shell("a shell before the start", "prestart"),
        shell("a shell when the runtime is ready", "createRuntime"),
        shell("a shell in the container's namespaces", "createContainer"),
        shell("a shell at the end", "poststop"),
        injector("E1 Q45", "a hook by an injector's name that is none", "nvidia-cdi-hook"),
        injector("E2", "Docker's GPU hook", "nvidia-container-runtime-hook"),
        case("E1 L", "Docker's network hook, by its daemon's own executable", |run| {
            // Busybox runs what its first word says, as dockerd does.
            at("/hooks", json!({"prestart": [{"path": run.world.daemon(), "args": ["true"]}]}))
        })
        .always(Verdict::Passes("hook"))
        .hardened(Verdict::Refused(UNSAFE, "hook")),
        case("E3 Q46", "another injector's nodes, without a hook", |_| {
            Spec::new().env("NVIDIA_VISIBLE_DEVICES", "void").device("/dev/nvidia1", 'c', 195, 1)
        })
        .brings_a_node()
        .refused(FOREIGN, "cdi-foreign"),
        case("E3", "another injector's nodes and rules", |_| {
            let spec = Spec::new().env("NVIDIA_VISIBLE_DEVICES", "void").device("/dev/nvidia1", 'c', 195, 1);
            spec.allow('c', Some(195), Some(1), "rw")
        })
        .exposes()
        .refused(FOREIGN, "cdi-foreign"),
    ]
}

fn annotations() -> Vec<Case> {
    let acts = |what, key: &'static str, value: &'static str| {
        case("E4", what, move |_| Spec::new().annotation(key, value))
            .bare(Bare::Unasked("it needs what this machine lacks"))
            .refused(UNSAFE, "annotation-low-level")
    };
    vec![
        case("E4", "a file of the host's for a hook's output", |run| {
            let hook = json!({"path": "/bin/echo", "args": ["echo", "x"]});
            let spec = at("/hooks", json!({"prestart": [hook]}));
            spec.annotation("run.oci.hooks.stdout", &shown(&run.trap.join("written")))
        })
        .only_on(&[(Place::Crun, Bare::Exposes), (Place::Crun128, Bare::Exposes)])
        .refused(UNSAFE, "annotation-low-level"),
        acts("a library that crun loads", "run.oci.seccomp.plugins", "/tmp/x.so"),
        acts("another handler", "run.oci.handler", "krun"),
        acts("a group given away", "run.oci.delegate-cgroup", "../x"),
        acts("CRIU's configuration", "org.criu.config", "/tmp/criu.conf"),
        acts("a program of the unit's", "org.systemd.property.ExecStartPre", "[('/bin/sh', ['sh'], false)]"),
        case("E4 CVE-2025-24965", "a virtual machine's configuration", |_| {
            Spec::new().annotation("krun.config", "/tmp/x")
        })
        .refused(UNSAFE, "annotation-low-level"),
        case("E5 CVE-2026-53492", "what other injectors read", |_| {
            let pairs = [
                ("nvidia.cdi.k8s.io/container.x", "nvidia.com/gpu=0"),
                ("devices.nri.io/container.x", "- path: /dev/nvidia0"),
                ("mounts.nri.io/container.x", "- source: /dev"),
                ("io.kubernetes.cri-o.Devices", "/dev/nvidia0"),
                ("io.katacontainers.config.hypervisor.path", "/tmp/x"),
            ];
            pairs.into_iter().fold(Spec::new(), |spec, (key, value)| spec.annotation(key, value))
        }),
        case("E5 CVE-2026-53492", "NVIDIA's devices by a name that engines read", |_| {
            Spec::new().annotation("cdi.k8s.io/x", "nvidia.com/gpu=all")
        })
        .refused("FOREIGN_GPU_INJECTION", "cdi-foreign"),
        without(
            "E6 CVE-2026-53488",
            "an image's labels are not in what a runtime is given; engines that copy them are asked",
            "only_the_pods_annotations_ask",
        ),
    ]
}

/// A container with these variables.
fn pairs(list: &'static [(&'static str, &'static str)]) -> impl Fn(&Run<'_>) -> Spec + Send + Sync {
    move |_| list.iter().fold(Spec::new(), |spec, (key, value)| spec.env(key, value))
}

fn environment() -> Vec<Case> {
    vec![
        case(
            "E7 E13 Q47",
            "all GPUs wished for three times, and in small letters",
            pairs(&[
                ("NVIDIA_VISIBLE_DEVICES", "all"),
                ("NVIDIA_VISIBLE_DEVICES", "0"),
                ("nvidia_visible_devices", "all"),
                ("NVIDIA_VISIBLE_DEVICES", "runtime.nvidia.com/gpu=all"),
            ]),
        )
        .script(WISHES)
        .exposes(),
        case("E8", "an image that says only CUDA_VERSION", pairs(&[("CUDA_VERSION", "12.4.0")])).script(WISHES),
        case(
            "E9",
            "what else the peer's tools read",
            pairs(&[
                ("NVIDIA_DRIVER_CAPABILITIES", "all"),
                ("NVIDIA_IMEX_CHANNELS", "0"),
                ("NVIDIA_GDS", "enabled"),
                ("NVIDIA_MOFED", "enabled"),
                ("NVIDIA_MIG_CONFIG_DEVICES", "all"),
                ("NVIDIA_REQUIRE_CUDA", "cuda>=99"),
                ("NVIDIA_DISABLE_REQUIRE", "true"),
            ]),
        ),
        case("E10 Q49", "GPUs wished for by mounts", |_| {
            let spec = Spec::new().bind(Path::new("/dev/null"), "/var/run/nvidia-container-devices/all", &[]);
            spec.bind(Path::new("/dev/null"), "/run/nvidia-container-devices/0", &[])
        })
        .always(Verdict::Noted("mount-visible-devices"))
        .hardened(Verdict::Refused(UNSAFE, "mount-visible-devices")),
    ]
}

/// Where whoever works in the container's root finds it.
const LIBRARY: &str = "/proc/self/cwd/x.so";

/// One that leaves a mark on the host as soon as it is loaded there.
fn library(root: &Rootfs, mark: &Path) -> Result<()> {
    let source = format!(
        "#include <fcntl.h>\n__attribute__((constructor)) static void loaded(void) {{ open(\"{}\", O_CREAT | O_WRONLY, 0600); }}\n\
         unsigned la_version(unsigned version) {{ return version; }}\n",
        shown(mark)
    );
    root.write("x.c", source.as_bytes())?;
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-o"]).arg(root.path.join("x.so")).arg(root.path.join("x.c"));
    run(&mut compile, None, Duration::from_secs(60))?.checked().map(drop)
}

/// What programs in the container read, and nobody else may.
fn inside() -> Vec<Case> {
    vec![
        case(
            "E11",
            "CUDA's own variables",
            pairs(&[
                ("CUDA_VISIBLE_DEVICES", "0,1,2"),
                ("CUDA_INJECTION64_PATH", "/tmp/x.so"),
                ("CUDA_MPS_PIPE_DIRECTORY", "/tmp"),
            ]),
        ),
        // `run`, where hooks of ours stand in the spec, and a program of another's that is one under the bare runtime.
        case("E12 Q58 CVE-2025-23266", "a library of the image's for the loader of a hook", |run| {
            let spec = ["LD_PRELOAD", "LD_AUDIT"].iter().fold(Spec::new(), |spec, key| spec.env(key, LIBRARY));
            let spec = spec.env("GLIBC_TUNABLES", "glibc.malloc.check=3").env("GCONV_PATH", "/tmp");
            if run.by != By::Bare {
                return spec;
            }
            let env = [format!("LD_PRELOAD={LIBRARY}"), format!("LD_AUDIT={LIBRARY}")];
            put(spec, "/hooks", json!({"createContainer": [{"path": "/bin/true", "env": env}]}))
        })
        .image(|run, root| library(root, &run.trap.join("loaded")))
        .drive(|run, bundle| run.of(&run.runc().run(&run.id, bundle)?))
        .exposes(),
        case("E14", "a variable without a value", |_| {
            Spec::new().edit(|document| {
                if let Some(list) = document["process"]["env"].as_array_mut() {
                    list.push("NOVALUE".into());
                }
            })
        })
        .bare(Bare::Fails)
        .always(Verdict::Fails),
        case("E14", "a line's end in a variable", |_| Spec::new().env("A", "b\nNVIDIA_VISIBLE_DEVICES=all")),
        case("E14", "NUL in a variable", |_| Spec::new().env("A", "b\0NVIDIA_VISIBLE_DEVICES=all"))
            .bare(Bare::Unasked("runtimes differ"))
            .refused(UNSAFE, "json-nul"),
        case("E15", "a token that was made up", |_| {
            Spec::new().env("QUILT_GPU_CONTRACT", "0123456789abcdef0123456789abcdef")
        })
        .standard(Verdict::Refused("CONTRACT_UNTRUSTED", "reservation-unknown"))
        .hardened(Verdict::Refused("CONTRACT_UNTRUSTED", "reservation-unknown"))
        .asking(Verdict::Refused("", "")),
        case(
            "E16",
            "other configurations, by the container's environment",
            pairs(&[
                ("QUILT_GPU_CONFIG", "/tmp/config.toml"),
                ("NVIDIA_CTK_CONFIG_FILE_PATH", "/tmp/config.toml"),
                ("XDG_CONFIG_HOME", "/tmp"),
            ]),
        ),
    ]
}
