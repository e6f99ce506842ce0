//! Pods as containerd's CRI and CRI-O write them: who of a pod gets what its annotations say.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use integration::{Result, Spec};

use crate::{Bench, bytes};

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

/// What NVIDIA's device plugin hands on in each of its ways, where the operator says that it owns these words; nothing of it
/// elsewhere.
#[test]
fn a_device_plugins_word_counts_where_it_is_trusted() -> Result<()> {
    let Some(bench) = Bench::new("a_device_plugins_word_counts_where_it_is_trusted", 4)? else { return Ok(()) };
    let uuid = |minor: u64| bench.site.host.by_minor(minor).unwrap().uuid.clone();
    let plain = || member("containerd", "container", "train", &[]);
    let visible = |value: &str| plain().env("NVIDIA_VISIBLE_DEVICES", value);
    let mounted = |name: &str, spec: Spec| {
        let destination = format!("/var/run/nvidia-container-devices/{name}");
        spec.bind(Path::new("/dev/null"), &destination, &["bind", "ro"])
    };
    let annotated = |value: &str| plain().annotation("cdi.k8s.io/nvidia-device-plugin_1", value);
    let index = bench.site.host.gpus.iter().position(|gpu| gpu.minor == 3).unwrap();
    let rows = [
        ("envvar", visible(&uuid(1)), &[1][..]),
        ("envvar-two", visible(&format!("{},{}", uuid(1), uuid(2))), &[1, 2]),
        ("envvar-index", visible(&index.to_string()), &[3]),
        // An image's words, which no plugin writes.
        ("image", visible("all"), &[]),
        ("void", visible("void"), &[]),
        ("mounts", mounted(&uuid(2), visible("/var/run/nvidia-container-devices")), &[2]),
        ("mounts-before-words", mounted(&uuid(2), visible(&uuid(1))), &[2]),
        ("cdi-mounts", mounted(&format!("cdi/nvidia.com/gpu/{}", uuid(0)), plain()), &[0]),
        ("cdi-annotations", annotated(&format!("nvidia.com/gpu={}", uuid(3))), &[3]),
        ("sandbox", member("containerd", "sandbox", "", &[]).env("NVIDIA_VISIBLE_DEVICES", &uuid(1)), &[]),
    ];
    for (id, spec, _) in rows.iter().filter(|(id, ..)| *id != "cdi-annotations") {
        assert_eq!(bench.see(&format!("ignored-{id}"), spec)?.gpus()?, BTreeSet::new(), "{id}");
    }
    let foreign = bench.sharing("ignored-annotation", &annotated(&format!("nvidia.com/gpu={}", uuid(3))))?;
    bench.refused("ignored-annotation", &foreign, &["FOREIGN_GPU_INJECTION", "nvidia.com/gpu"])?;
    let config = bench.site.quilt.config();
    let text = String::from_utf8(bytes(&config)?).unwrap();
    fs::write(&config, text + "\n[request]\ndevice_plugin = \"trusted\"\n").unwrap();
    for (id, spec, gpus) in rows {
        assert_eq!(bench.see(id, &spec)?.gpus()?, gpus.iter().copied().collect(), "{id}");
    }
    // Outside pods nobody but the tenant writes it.
    assert_eq!(bench.see("alone", &Spec::new().env("NVIDIA_VISIBLE_DEVICES", &uuid(1)))?.gpus()?, BTreeSet::new());
    // What the plugin gave twice is given once.
    bench.sleeper("held", &visible(&uuid(1)))?;
    bench.refused("again", &bench.sharing("again", &visible(&uuid(1)))?, &["CAPACITY_FULL"])?;
    bench.runc.delete("held", true)?.checked()?;
    Ok(())
}
