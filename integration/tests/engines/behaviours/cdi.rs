//! Devices of our CDI file that the engine puts in by itself: what they are under a bare low-level runtime, and that below
//! quilt-gpu they are a request like any other.

use std::collections::BTreeSet;
use std::path::Path;

use integration::engine::{Ask, Through};
use integration::{Error, Result, Rootfs, must};

use crate::rows::{GPUS, PROBE, Yard, gpus};

/// By name alone, by UUID, two and all; then by the annotation that a device plugin would write.
pub(super) fn devices(yard: &mut Yard) -> Result<()> {
    let folder = yard.engine.cdi().ok_or_else(|| Error::new("this engine has no folder for CDI files"))?;
    let file = folder.join("quilt-gpu.json").display().to_string();
    yard.site.quilt.cli(&["cdi", "generate", "--output", &file])?.checked()?;
    let uuid = yard.site.host.by_minor(2).map(|gpu| gpu.uuid.clone()).unwrap_or_default();
    let all: BTreeSet<u64> = (0..GPUS as u64).collect();
    let named = |yard: &Yard, name: &str, through, devices: &[&str]| Ask {
        cdi: devices.iter().map(|device| format!("quilt.gpu/device={device}")).collect(),
        through,
        ..yard.probing(name)
    };
    for (name, devices, expected) in [
        ("cdi", &["nvidia1"][..], BTreeSet::from([1])),
        ("cdi-two", &["nvidia0", &uuid], BTreeSet::from([0, 2])),
        ("cdi-all", &["all"], all),
    ] {
        // In a user namespace nodes would have to lie in the machine's /dev, and this node is a fixture.
        if !yard.remapped {
            let seen = yard.see(&named(yard, &format!("{name}-plain"), Through::Plain, devices))?;
            let opened = gpus(&seen)?;
            must(opened == expected, format_args!("{devices:?} alone opens {opened:?}"))?;
            let visible = seen.env("NVIDIA_VISIBLE_DEVICES");
            must(visible == Some("void"), format_args!("{devices:?} alone: NVIDIA_VISIBLE_DEVICES is {visible:?}"))?;
            seen.library("libcuda.so.1")?;
        }
        let seen = yard.see(&named(yard, name, Through::Quilt, devices))?;
        let opened = gpus(&seen)?;
        must(opened == expected, format_args!("{devices:?} opens {opened:?}"))?;
        let visible = seen.env("NVIDIA_VISIBLE_DEVICES").unwrap_or_default();
        must(visible.split(',').count() == expected.len(), format_args!("NVIDIA_VISIBLE_DEVICES is {visible}"))?;
        seen.library("libcuda.so.1")?;
        yard.site.wait_no_leases()?;
    }
    hooks(yard, &file, &named(yard, "cdi-hooks", Through::Quilt, &["nvidia1"]))?;
    let audit = yard.site.quilt.audit();
    let asked = audit.iter().filter(|entry| entry["kind"] == "create" && entry["request"]["source"] == "cdi").count();
    must(asked >= 3, format_args!("{asked} requests by CDI in the log"))?;
    yard.held(&Ask {
        args: vec!["quilt-probe".into(), "sleep".into()],
        ..named(yard, "cdi-held", Through::Quilt, &["1"])
    })?;
    let held = yard.site.host.gpus.get(1).map(|gpu| format!("nvidia{}", gpu.minor)).unwrap_or_default();
    let ran = yard.engine.run(&named(yard, "cdi-again", Through::Quilt, &[&held]))?;
    must(!ran.ok() && ran.stderr.contains("CAPACITY_FULL"), format_args!("{held} twice: {ran:?}"))?;
    yard.remove("cdi-held")?;
    let key = "cdi.k8s.io/quilt-gpu_test".to_owned();
    let annotated =
        Ask { node_annotations: vec![(key, "quilt.gpu/device=nvidia3".into())], ..yard.probing("cdi-annotated") };
    if yard.engine.sources().contains(&integration::engine::Source::PodAnnotation) {
        let opened = gpus(&yard.see(&annotated)?)?;
        must(opened == BTreeSet::from([3]), format_args!("the annotation opens {opened:?}"))?;
    }
    Ok(())
}

/// A file with hooks: an engine calls them, and below quilt-gpu they find nothing to do.
fn hooks(yard: &Yard, file: &str, ask: &Ask) -> Result<()> {
    yard.site.quilt.cli(&["cdi", "generate", "--hooks", "--output", file])?.checked()?;
    let rootfs = Rootfs::debian_like(yard.site.join("cached"), Path::new(PROBE))?.with_ld_cache()?;
    yard.engine.import("cached:1", &rootfs, &[], &[])?;
    for through in [Through::Plain, Through::Quilt] {
        if yard.remapped && through == Through::Plain {
            continue;
        }
        let list = ["grep", "-c", "libcuda.so.1", "/etc/ld.so.cache"];
        let name = format!("{}-{through:?}", ask.name).to_lowercase();
        let ran = yard.engine.run(&Ask {
            image: "cached:1".into(),
            through,
            args: list.map(str::to_owned).into(),
            name,
            ..ask.clone()
        })?;
        must(ran.ok(), format_args!("the libraries are not listed, {through:?}: {ran:?}"))?;
    }
    yard.site.wait_no_leases()?;
    yard.site.quilt.cli(&["cdi", "generate", "--output", file])?.checked().map(drop)
}
