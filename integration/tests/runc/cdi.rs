//! GPUs asked for in words of other tools: devices of our CDI file that an engine has put in, names of CDI devices in
//! annotations, `NVIDIA_VISIBLE_DEVICES`. Each is an ordinary request: allocated, leased, audited.

use std::collections::BTreeSet;

use cdi::spec::{Cache, Found};
use integration::{Error, QuiltOptions, Result, Site, Spec};
use serde_json::{Value, json};

use crate::{Bench, bytes};

const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// The spec as an engine leaves it that was told these devices: by our own reader of CDI, which is held against the Go
/// library's elsewhere.
fn injected(bench: &Bench, spec: &Spec, names: &[&str]) -> Result<Spec> {
    let file = bench.site.quilt.cli(&["cdi", "generate"])?.checked()?.stdout.into_bytes();
    let cache = Cache::of([Found { path: "/run/cdi/quilt-gpu.json".into(), priority: 0, bytes: Ok(file) }]);
    let names: Vec<String> = names.iter().map(|name| format!("quilt.gpu/device={name}")).collect();
    let odd = |why: &dyn std::fmt::Debug| Error::new(format!("cannot put {names:?} in: {why:?}"));
    let injection = cache.resolve(&names).map_err(|why| odd(&why))?;
    let text = spec.json().to_string();
    let document = contract::json::parse_oci(text.as_bytes()).map_err(|why| odd(&why))?;
    let with = cdi::spec::apply(text.as_bytes(), &document, &injection).map_err(|why| odd(&why))?;
    let with: Value = serde_json::from_slice(&with).map_err(|why| odd(&why))?;
    Ok(Spec::new().edit(|spec| *spec = with))
}

fn request(bench: &Bench, id: &str) -> Value {
    let audit = bench.site.quilt.audit();
    let of = |entry: &&Value| entry["kind"] == "create" && entry["container"] == id;
    audit.iter().rev().find(of).map(|entry| entry["request"].clone()).unwrap_or_default()
}

#[test]
fn what_an_engine_put_in_is_taken_out_and_asked_for() -> Result<()> {
    let Some(bench) = Bench::new("what_an_engine_put_in_is_taken_out_and_asked_for", 4)? else { return Ok(()) };
    let uuid = bench.site.host.by_minor(2).unwrap().uuid.clone();
    let first = bench.site.host.gpus[0].minor;
    for (id, names, expected) in [
        ("minor", &["nvidia1"][..], &[1][..]),
        ("uuid", &[&uuid], &[2]),
        ("index", &["0"], &[first]),
        ("two", &["nvidia3", &uuid], &[2, 3]),
        ("all", &["all"], &[0, 1, 2, 3]),
    ] {
        let spec = injected(&bench, &Spec::new(), names)?.args(integration::PROBE_ALL);
        let bundle = bench.bundle(id, &spec)?;
        let before = bytes(&bundle.config())?;
        let seen = integration::Seen::of(&bench.runc.whole_life(id, &bundle)?)?;
        assert_eq!(seen.gpus()?, expected.iter().copied().collect(), "{id}");
        assert!(seen.env(VISIBLE).is_some_and(|value| value.starts_with("GPU-")), "{id}: {:?}", seen.env(VISIBLE));
        seen.library("libcuda.so.1")?;
        assert_eq!(request(&bench, id)["source"], "cdi", "{id}");
        assert_eq!(bytes(&bundle.config())?, before, "{id}: the engine's own spec is not back");
        assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new(), "{id}");
    }
    // `run` has hooks judge what stood in the spec before.
    let bundle = bench.bundle("run", &injected(&bench, &Spec::new(), &["nvidia1"])?.args(integration::PROBE_ALL))?;
    let seen = integration::Seen::of(&bench.runc.run("run", &bundle)?.checked()?.stdout)?;
    assert_eq!(seen.gpus()?, BTreeSet::from([1]));
    bench.site.wait_no_leases()?;
    // What one has no other gets, and a restart is judged by what the engine wrote.
    bench.sleeper("first", &injected(&bench, &Spec::new(), &["nvidia1"])?)?;
    let again = bench.sharing("again", &injected(&bench, &Spec::new(), &["nvidia1"])?)?;
    bench.refused("again", &again, &["CAPACITY_FULL", "nvidia1"])?;
    bench.runc.delete("first", true)?.checked()?;
    assert_eq!(bench.see("first", &injected(&bench, &Spec::new(), &["nvidia1"])?)?.gpus()?, BTreeSet::from([1]));
    Ok(())
}

#[test]
fn what_is_not_exactly_ours_is_judged_as_a_tenants() -> Result<()> {
    let Some(bench) = Bench::new("what_is_not_exactly_ours_is_judged_as_a_tenants", 4)? else { return Ok(()) };
    let ours = injected(&bench, &Spec::new(), &["nvidia1"])?;
    let list = |spec: &Value, at: &str| spec.pointer(at).and_then(Value::as_array).map_or(0, Vec::len);
    let devices = list(ours.json(), "/linux/devices");
    let without = |what: &'static str| {
        ours.clone().edit(move |spec| {
            let mounts = spec["mounts"].as_array_mut().unwrap();
            mounts.retain(|mount| !mount["source"].as_str().unwrap_or_default().contains(what));
        })
    };
    let more = ours.clone().device("/dev/mine", 'c', 195, 3);
    let at = format!("/linux/devices/{devices}");
    let no_control = ours.clone().edit(|spec| {
        spec["linux"]["devices"].as_array_mut().unwrap().retain(|device| device["path"] != "/dev/nvidia-uvm");
    });
    for (id, spec, words) in [
        ("stale", without("libcuda.so"), &["FOREIGN_GPU_INJECTION", "libcuda.so", "quilt-gpu cdi generate"][..]),
        ("control", no_control, &["FOREIGN_GPU_INJECTION", "/dev/nvidia-uvm"]),
        ("more", more, &["FOREIGN_GPU_INJECTION", "1 GPU device"]),
        ("twice", ours.clone().env("QUILT_GPU_COUNT", "1"), &["INVALID_GPU_REQUEST", "asked for twice"]),
        ("strict", ours.clone().env("QUILT_STRICT", "true"), &["STRICT_GPU_CONFLICT"]),
        (
            "annotated",
            Spec::new().annotation("cdi.k8s.io/x", "nvidia.com/gpu=0"),
            &["FOREIGN_GPU_INJECTION", "nvidia.com/gpu=0", "cdi_kinds"],
        ),
    ] {
        let told = bench.refused(id, &bench.sharing(id, &spec)?, words)?.stderr;
        // Places are those of the spec as the engine wrote it.
        assert_eq!(told.contains(&at), id == "more", "{id}: {told}");
    }
    // A variable alone asks for nothing, and terms of ours go with names of others.
    assert_eq!(bench.see("marker", &Spec::new().env("QUILT_GPU_CDI", "compute"))?.gpus()?, BTreeSet::new());
    let annotated = Spec::new().annotation("cdi.k8s.io/x", "quilt.gpu/device=nvidia2,vendor.com/nic=eth0");
    let annotated = annotated.annotation("quilt.gpu/capabilities", "compute");
    assert_eq!(bench.see("named", &annotated)?.gpus()?, BTreeSet::from([2]));
    assert_eq!(request(&bench, "named")["capabilities"], json!(["compute"]));
    Ok(())
}

#[test]
fn nvidias_words_where_the_operator_honours_them() -> Result<()> {
    let more = "[request]\nnvidia_visible_devices = \"honour\"\ncdi_kinds = [\"nvidia.com/gpu\"]\n\
                swarm_resources = [\"DOCKER_RESOURCE_NVIDIA-GPU\"]\n";
    let options = QuiltOptions { more: more.into(), ..QuiltOptions::default() };
    let test = "nvidias_words_where_the_operator_honours_them";
    let Some(bench) = Bench::on(test, || Site::with(|host| host.gpus(4), &options))? else { return Ok(()) };
    let gpus = &bench.site.host.gpus;
    let visible = |value: &str| Spec::new().env(VISIBLE, value);
    let short: Vec<&str> = gpus[1..3].iter().map(|gpu| &gpu.uuid[..12]).collect();
    for (id, spec, expected) in [
        ("index", visible("0"), vec![gpus[0].minor]),
        ("twice", visible("0,0"), vec![gpus[0].minor]),
        ("one-gpu-by-two-names", visible(&format!("0,{}", gpus[0].uuid)), vec![gpus[0].minor]),
        ("empty", visible(""), vec![]),
        ("none", visible("none"), vec![]),
        ("d26", visible("all").env(VISIBLE, "void"), vec![]),
        ("least", visible("all").env(VISIBLE, "1"), vec![gpus[1].minor]),
        ("mapped", Spec::new().annotation("cdi.k8s.io/x", "nvidia.com/gpu=3"), vec![gpus[3].minor]),
        ("d27", visible("all").env("DOCKER_RESOURCE_NVIDIA-GPU", &short.join(",")), vec![gpus[1].minor, gpus[2].minor]),
        ("ours", visible("all").env("QUILT_GPU_IDS", "nvidia0"), vec![0]),
    ] {
        let seen = bench.see(id, &spec)?;
        assert_eq!(seen.gpus()?, expected.into_iter().collect(), "{id}");
    }
    bench.sleeper("held", &visible("0"))?;
    let rest: BTreeSet<u64> = gpus[1..].iter().map(|gpu| gpu.minor).collect();
    assert_eq!(bench.see("all", &visible("all"))?.gpus()?, rest);
    assert_eq!(request(&bench, "all")["source"], "visible-devices");
    bench.refused("taken", &bench.sharing("taken", &visible("0"))?, &["CAPACITY_FULL"])?;
    bench.refused("nine", &bench.sharing("nine", &visible("9"))?, &["UNKNOWN_GPU", "NVIDIA_VISIBLE_DEVICES=9"])?;
    bench.runc.delete("held", true)?.checked()?;
    Ok(())
}
