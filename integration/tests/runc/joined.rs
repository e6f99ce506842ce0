//! Namespaces of containers that have a GPU: whoever shares one takes what they have open (D5, D6, D16).
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::fs;

use integration::{Bundle, Result, Runc, Seen, Spec};
use serde_json::Value;

use crate::{Bench, RUNC};

/// Joins the namespace of this kind behind the path.
fn joining(spec: Spec, kind: &str, path: &str) -> Spec {
    spec.edit(|spec| {
        let list = spec["linux"]["namespaces"].as_array_mut().unwrap();
        list.retain(|namespace| namespace["type"] != kind);
        list.push(serde_json::json!({"type": kind, "path": path}));
    })
}

/// A container of a pod as containerd's CRI writes it.
fn member(uid: &str, name: &str) -> Spec {
    Spec::new()
        .annotation("io.kubernetes.cri.container-type", "container")
        .annotation("io.kubernetes.cri.container-name", name)
        .annotation("io.kubernetes.cri.sandbox-uid", uid)
}

fn state(runtime: &Runc, id: &str) -> Result<Value> {
    Ok(runtime.state(id)?.expect("it is there"))
}

/// The namespace of a running container.
fn path_of(bench: &Bench, id: &str, kind: &str) -> Result<String> {
    let file = if kind == "network" { "net" } else { kind };
    Ok(format!("/proc/{}/ns/{file}", state(&bench.runc, id)?["pid"]))
}

/// What a thief does: looks for somebody who has a GPU among the processes that it sees.
const STEAL: [&str; 3] = ["sh", "-c", "ls -d /proc/[0-9]*/root/dev/nvidia0; true"];

/// D6, Q43: `docker run --pid container:NAME-OF-WHO-HAS-A-GPU`.
#[test]
fn d6_nobody_joins_who_has_a_gpu() -> Result<()> {
    let Some(bench) = Bench::new("d6_nobody_joins_who_has_a_gpu", 2)? else { return Ok(()) };
    let bare = Runc::new(RUNC, bench.site.join("bare"))?;
    assert_eq!(bench.sleeper("gpu", &Spec::new().env("QUILT_GPU_IDS", "nvidia0"))?.gpus()?, BTreeSet::from([0]));
    let pids = path_of(&bench, "gpu", "pid")?;
    let thief = joining(Spec::new().args(STEAL), "pid", &pids);
    let seen = bare.whole_life("thief-bare", &bench.bundle("thief-bare", &thief)?)?;
    assert!(seen.contains("/root/dev/nvidia0"), "the bare runtime lets it in: {seen:?}");
    for (id, spec) in [
        ("thief", thief.clone()),
        ("asking", joining(Spec::new().env("QUILT_GPU_COUNT", "1"), "pid", &pids)),
        ("ipc-asking", joining(Spec::new().env("QUILT_GPU_COUNT", "1"), "ipc", &path_of(&bench, "gpu", "ipc")?)),
        // A pod that the other container is not of.
        ("pod", joining(member("8b5e", "main").args(STEAL), "pid", &pids)),
    ] {
        let why =
            if id == "asking" { "whoever is in this pid namespace" } else { "has a GPU that could be taken there" };
        bench.refused(id, &bench.sharing(id, &spec)?, &["UNSAFE_SPEC", why])?;
    }
    // The same namespace under another name, as CRI-O pins them.
    let pinned = bench.site.join("pinned");
    fs::write(&pinned, "").unwrap();
    let mount = |args: &[&str]| std::process::Command::new(args[0]).args(&args[1..]).status().unwrap().success();
    assert!(mount(&["mount", "--bind", &pids, &pinned.to_string_lossy()]));
    let spec = joining(Spec::new().args(STEAL), "pid", &pinned.to_string_lossy());
    let refused = bench.refused("pinned", &bench.sharing("pinned", &spec)?, &["UNSAFE_SPEC", "pid namespace"]);
    assert!(mount(&["umount", &pinned.to_string_lossy()]));
    refused?;
    // What takes no device from anybody.
    for kind in ["network", "uts", "ipc"] {
        let path = path_of(&bench, "gpu", kind)?;
        let spec = joining(Spec::new(), kind, &path).edit(|spec| {
            if kind == "uts" {
                spec.as_object_mut().unwrap().remove("hostname");
            }
        });
        assert_eq!(bench.see(kind, &spec)?.gpus()?, BTreeSet::new(), "{kind}");
    }
    // Once it is gone, its number is anybody's.
    bench.runc.delete("gpu", true)?.checked()?;
    bench.sleeper("plain", &Spec::new())?;
    let spec = joining(Spec::new(), "pid", &path_of(&bench, "plain", "pid")?);
    assert_eq!(bench.see("beside", &spec)?.gpus()?, BTreeSet::new());
    Ok(())
}

/// D6, the other order: a GPU is not carried to where others are already.
#[test]
fn d6_no_gpu_is_given_among_others() -> Result<()> {
    let Some(bench) = Bench::new("d6_no_gpu_is_given_among_others", 1)? else { return Ok(()) };
    bench.sleeper("first", &Spec::new())?;
    for kind in ["pid", "user"] {
        let spec = joining(Spec::new().env("QUILT_GPU_COUNT", "1"), kind, &path_of(&bench, "first", kind)?);
        // The host's user namespace is everybody's, and runc's own to refuse.
        let words: &[&str] = if kind == "pid" { &["UNSAFE_SPEC", "/linux/namespaces/4/path"] } else { &[] };
        if kind == "pid" {
            bench.refused(kind, &bench.sharing(kind, &spec)?, words)?;
        }
    }
    // A debugger of a container without GPUs is fine.
    assert_eq!(bench.see("debug", &joining(Spec::new(), "pid", &path_of(&bench, "first", "pid")?))?.gpus()?.len(), 0);
    Ok(())
}

/// Q44: containers of one pod share what its engine lets them share, a GPU among them or not; another pod's do not.
#[test]
fn q44_a_pod_shares_its_namespaces() -> Result<()> {
    let Some(bench) = Bench::new("q44_a_pod_shares_its_namespaces", 2)? else { return Ok(()) };
    bench.sleeper(
        "sandbox",
        &member("8b5e", "").edit(|spec| {
            spec["annotations"]["io.kubernetes.cri.container-type"] = "sandbox".into();
        }),
    )?;
    let shared = |spec: Spec| -> Result<Spec> {
        let mut spec = spec;
        for kind in ["pid", "ipc", "network"] {
            spec = joining(spec, kind, &path_of(&bench, "sandbox", kind)?);
        }
        Ok(spec)
    };
    let asking = |name: &str| member("8b5e", name).annotation(&format!("quilt.gpu/count.{name}"), "1");
    assert_eq!(bench.sleeper("main", &shared(asking("main"))?)?.gpus()?.len(), 1);
    assert_eq!(bench.sleeper("second", &shared(asking("second"))?)?.gpus()?.len(), 1);
    assert_eq!(bench.see("side", &shared(member("8b5e", "side"))?)?.gpus()?.len(), 0);
    let foreign = shared(member("another", "side"))?;
    bench.refused("foreign", &bench.sharing("foreign", &foreign)?, &["UNSAFE_SPEC", "pid namespace"])?;
    // Docker's user, who only says that he is of that pod.
    let forged = shared(member("8b5e", "side"))?.cgroup(&bench.cgroup("forged"));
    let bundle = Bundle::sharing(bench.site.join("moby/forged"), &forged, &bench.rootfs)?;
    bench.refused("forged", &bundle, &["UNSAFE_SPEC", "pid namespace"])?;
    assert_eq!(Seen::gpus(&bench.look("main")?)?.len(), 1);
    Ok(())
}
