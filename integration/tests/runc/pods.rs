//! Pods as containerd's CRI and CRI-O write them: who of a pod gets what its annotations say.

use std::collections::BTreeSet;

use integration::{Result, Spec};

use crate::Bench;

/// A member of a pod: what the engine says about it, and the pod's annotations, which reach every member.
fn member(engine: &str, kind: &str, name: &str, annotations: &[(&str, &str)]) -> Spec {
    let keys = match engine {
        "containerd" => ["io.kubernetes.cri.container-type", "io.kubernetes.cri.container-name"],
        _ => ["io.kubernetes.cri-o.ContainerType", "io.kubernetes.container.name"],
    };
    // In a pod a variable asks for nothing.
    let mut spec = Spec::new().env("QUILT_GPU_COUNT", "2").annotation(keys[0], kind);
    if kind == "container" {
        spec = spec.annotation(keys[1], name);
    }
    annotations.iter().fold(spec, |spec, (key, value)| spec.annotation(key, value))
}

#[test]
fn the_container_that_is_named_gets_the_gpu_and_nobody_else() -> Result<()> {
    let Some(bench) = Bench::new("the_container_that_is_named_gets_the_gpu_and_nobody_else", 2)? else { return Ok(()) };
    let asks = [
        ("quilt.gpu/ids.train", "nvidia1"),
        ("quilt.gpu/capabilities.train", "compute,utility"),
        ("quilt.gpu/count.gone", "9"),
    ];
    for engine in ["containerd", "cri-o"] {
        for (kind, name, gpus) in [
            ("sandbox", "", BTreeSet::new()),
            ("container", "side", BTreeSet::new()),
            ("container", "train", BTreeSet::from([1])),
        ] {
            let id = format!("{engine}-{kind}-{name}");
            let seen = bench.sleeper(&id, &member(engine, kind, name, &asks))?;
            assert_eq!(seen.gpus()?, gpus, "{id}");
        }
        assert_eq!(bench.site.leases()?.len(), 1, "{engine}");
        bench.runc.delete(&format!("{engine}-container-train"), true)?.checked()?;
    }
    Ok(())
}

#[test]
fn a_bare_key_is_refused_in_every_container_with_the_key_to_write() -> Result<()> {
    let Some(bench) = Bench::new("a_bare_key_is_refused_in_every_container", 1)? else { return Ok(()) };
    for engine in ["containerd", "cri-o"] {
        let bare = [("quilt.gpu/count", "1")];
        // The sandbox starts: without it nobody would see why the containers do not.
        let sandbox = format!("{engine}-sandbox");
        assert_eq!(bench.see(&sandbox, &member(engine, "sandbox", "", &bare))?.gpus()?, BTreeSet::new());
        for name in ["train", "side"] {
            let id = format!("{engine}-{name}");
            let bundle = bench.sharing(&id, &member(engine, "container", name, &bare))?;
            let help = format!("quilt.gpu/count.{name}");
            bench.refused(&id, &bundle, &["INVALID_GPU_REQUEST", "/annotations/quilt.gpu~1count", &help])?;
        }
    }
    Ok(())
}

#[test]
fn a_pod_cannot_play_the_nodes_agent() -> Result<()> {
    let Some(bench) = Bench::new("a_pod_cannot_play_the_nodes_agent", 1)? else { return Ok(()) };
    let token = "0123456789abcdef0123456789abcdef";
    for (id, engine, key, code) in [
        ("named", "containerd", "quilt.gpu/contract.train", "POLICY"),
        ("bare", "containerd", "quilt.gpu/contract", "INVALID_GPU_REQUEST"),
        // Where containerd's handler lets it through, and where CRI-O does, which lets everything through.
        ("guessed", "containerd", "grant.quilt.gpu/contract", "CONTRACT_UNTRUSTED"),
        ("passed-on", "cri-o", "grant.quilt.gpu/contract", "POLICY"),
        ("other", "cri-o", "grant.quilt.gpu/count", "POLICY"),
    ] {
        let bundle = bench.sharing(id, &member(engine, "container", "train", &[(key, token)]))?;
        bench.refused(id, &bundle, &[code])?;
    }
    Ok(())
}
