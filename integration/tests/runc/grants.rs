//! What a container gets that asks for GPUs: these and nothing else.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use integration::{PROBE_ALL, Result, Rootfs, Seen, Site, Spec, run};

use crate::{Bench, PROBE, RUNC, bytes};

#[test]
fn every_form_of_request_gives_its_gpus_and_no_other() -> Result<()> {
    let Some(bench) = Bench::new("every_form_of_request_gives_its_gpus_and_no_other", 4)? else { return Ok(()) };
    let host = &bench.site.host;
    let pinned = host.by_minor(1).unwrap();
    for (id, key, value, expected) in [
        ("count", "QUILT_GPU_COUNT", "1", None),
        ("annotated-count", "quilt.gpu/count", "1", None),
        ("minor", "QUILT_GPU_IDS", "nvidia1", Some(1)),
        ("uuid", "quilt.gpu/ids", &pinned.uuid, Some(1)),
        ("prefix", "quilt.gpu/ids", &pinned.uuid[..12], Some(1)),
        ("pci", "QUILT_GPU_IDS", &pinned.pci, Some(1)),
    ] {
        let asking = if key.contains('/') { Spec::new().annotation(key, value) } else { Spec::new().env(key, value) };
        let seen = bench.see(id, &asking)?;
        let gpus = seen.gpus()?;
        assert_eq!(gpus.len(), 1, "{id}");
        let minor = *gpus.first().unwrap();
        assert!(expected.is_none_or(|wanted| wanted == minor), "{id}: {minor}");
        assert_eq!(seen.env("NVIDIA_VISIBLE_DEVICES"), Some(&*host.by_minor(minor).unwrap().uuid), "{id}");
        assert_eq!(seen.env("CUDA_VISIBLE_DEVICES"), Some("0"), "{id}");
        assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new(), "{id}");
    }

    let both = bench.see("two", &Spec::new().env("QUILT_GPU_COUNT", "2"))?;
    assert_eq!(both.gpus()?.len(), 2);
    assert_eq!(both.env("CUDA_VISIBLE_DEVICES"), Some("0,1"));
    let named = Spec::new().env("QUILT_GPU_IDS", "nvidia3,nvidia0").env("QUILT_GPU_COUNT", "2");
    assert_eq!(bench.see("named", &named)?.gpus()?, BTreeSet::from([0, 3]));
    Ok(())
}

#[test]
fn libraries_load_by_soname_in_both_families_of_images() -> Result<()> {
    let Some(bench) = Bench::new("libraries_load_by_soname_in_both_families_of_images", 1)? else { return Ok(()) };
    let lib64 = Rootfs::lib64_like(bench.site.join("lib64"), Path::new(PROBE))?;
    let asking = Spec::new().args(PROBE_ALL).env("QUILT_GPU_COUNT", "1");
    for (id, rootfs, folder) in
        [("debian", &bench.rootfs, "/usr/lib/x86_64-linux-gnu/"), ("lib64", &lib64, "/usr/lib64/")]
    {
        let plain = bench.bundle_in(&format!("plain-{id}"), &Spec::new().args(PROBE_ALL), rootfs)?;
        let without = Seen::of(&bench.runc.whole_life(&format!("plain-{id}"), &plain)?)?;
        assert!(without.library("libcuda.so.1").is_err(), "{id}: the image itself has the library");

        let bundle = bench.bundle_in(id, &asking, rootfs)?;
        let seen = Seen::of(&bench.runc.whole_life(id, &bundle)?)?;
        assert_eq!(seen.gpus()?.len(), 1, "{id}");
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            // A merged /usr gives both names to the folder.
            let found = seen.library(name)?;
            assert!(format!("{folder}{name}").ends_with(&found), "{id}: {found}");
            let mount = seen.mount(&format!("{folder}{name}")).unwrap();
            assert!(mount["options"].as_str().unwrap().starts_with("ro"), "{id}: {mount}");
        }
    }
    Ok(())
}

#[test]
fn nvidia_smi_gets_as_far_as_the_driver() -> Result<()> {
    let Some(bench) = Bench::new("nvidia_smi_gets_as_far_as_the_driver", 1)? else { return Ok(()) };
    let control = Path::new("/dev/nvidiactl");
    let before = control.exists();
    let asking = Spec::new().args(["nvidia-smi"]).env("QUILT_GPU_COUNT", "1");
    let output = bench.runc.whole_life("smi", &bench.bundle("smi", &asking)?)?;
    assert!(output.contains("couldn't communicate with the NVIDIA driver"), "{output}");
    assert_eq!(control.exists(), before, "nvidia-smi made a node in the machine's own /dev");
    Ok(())
}

#[test]
fn containers_side_by_side_have_different_gpus_and_a_full_node_says_so() -> Result<()> {
    let Some(bench) = Bench::new("containers_side_by_side_have_different_gpus", 4)? else { return Ok(()) };
    let asking = Spec::new().env("QUILT_GPU_COUNT", "1");
    let mut all = Vec::new();
    for id in ["one", "two", "three", "four"] {
        all.extend(bench.sleeper(id, &asking)?.gpus()?);
    }
    assert_eq!(all.iter().copied().collect::<BTreeSet<u64>>(), BTreeSet::from([0, 1, 2, 3]), "{all:?}");
    // Later grants took nothing from the first.
    assert_eq!(bench.look("one")?.gpus()?, BTreeSet::from([all[0]]));

    let fifth = bench.bundle("fifth", &asking.clone().args(PROBE_ALL))?;
    let said = bench.refused("fifth", &fifth, &["CAPACITY_FULL"])?.stderr;
    for gpu in &bench.site.host.gpus {
        assert!(!said.contains(&gpu.uuid) && !said.contains(&gpu.pci), "a tenant sees counts only: {said}");
    }
    let pinned = bench.bundle("pinned", &Spec::new().env("QUILT_GPU_IDS", "nvidia0"))?;
    bench.refused("pinned", &pinned, &["CAPACITY_FULL"])?;
    let more = bench.bundle("more", &Spec::new().env("QUILT_GPU_COUNT", "5"))?;
    bench.refused("more", &more, &["UNKNOWN_GPU"])?;

    bench.runc.delete("three", true)?.checked()?;
    let freed = Seen::of(&bench.runc.whole_life("fifth", &fifth)?)?;
    assert_eq!(freed.gpus()?, BTreeSet::from([all[2]]));
    Ok(())
}

/// D39: no node can be made there, so its own are bound.
#[test]
fn a_container_in_a_user_namespace_gets_its_gpu_by_bind() -> Result<()> {
    let Some(bench) = Bench::new("a_container_in_a_user_namespace_gets_its_gpu_by_bind", 4)? else { return Ok(()) };
    let asking = Spec::new().args(PROBE_ALL).user_namespace(100_000, 65536).env("QUILT_GPU_IDS", "nvidia2");
    let bundle = bench.bundle("userns", &asking)?;
    // As engines do: the image belongs to the container's root.
    let mut chown = Command::new("chown");
    chown.args(["-R", "100000:100000"]).arg(bundle.path.join("rootfs"));
    run(&mut chown, None, Duration::from_secs(30))?.checked()?;
    let seen = Seen::of(&bench.runc.whole_life("userns", &bundle)?)?;
    assert_eq!(seen.gpus_by_node()?, BTreeSet::from([2]));
    assert!(seen.library("libcuda.so.1").is_ok(), "{:?}", seen.library("libcuda.so.1"));
    let numbers = seen.numbers();
    assert!(numbers.values().all(|(made, _)| made == "EPERM"), "{numbers:?}");

    // The whole host, as monitoring agents bind it.
    let host = asking.bind(Path::new("/"), "/host", &[]);
    let host = bench.bundle("userns-host", &host)?;
    let mut chown = Command::new("chown");
    chown.args(["-R", "100000:100000"]).arg(host.path.join("rootfs"));
    run(&mut chown, None, Duration::from_secs(30))?.checked()?;
    let seen = Seen::of(&bench.runc.whole_life("userns-host", &host)?)?;
    assert_eq!(seen.gpus_by_node()?, BTreeSet::from([2]));
    Ok(())
}

/// D39: nobody's file or variable says how a container is treated. Where no device filter can be made, because the runtime
/// itself is in a user namespace, who wants a GPU is told so, and nobody else notices.
#[test]
fn d39_nested_in_a_user_namespace_is_said_and_keeps_nobody_without_gpus() -> Result<()> {
    let test = "d39_nested_in_a_user_namespace_is_said_and_keeps_nobody_without_gpus";
    let Some(bench) = Bench::new(test, 1)? else { return Ok(()) };
    bench.see("first", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    let home = bench.site.join("xdg");
    for tool in ["nvidia-container-runtime", "quilt-gpu"] {
        std::fs::create_dir_all(home.join(tool)).unwrap();
        std::fs::write(home.join(tool).join("config.toml"), "no-cgroups = true\n").unwrap();
    }
    for (id, spec, nested) in [
        ("asking", Spec::new().env("QUILT_GPU_COUNT", "1"), false),
        ("asking-nested", Spec::new().env("QUILT_GPU_COUNT", "1"), true),
        ("plain-nested", Spec::new(), true),
    ] {
        let bundle = bench.bundle(id, &spec)?;
        let quilt = bench.site.quilt.command();
        let (key, value) = bench.site.quilt.env();
        let mut command = Command::new("unshare");
        command.args(if nested { &["--user", "--map-root-user"][..] } else { &["--mount"] });
        command.arg(quilt.get_program()).args(["check", "--format", "json"]).arg(&bundle.path);
        command.env(key, value).env("XDG_CONFIG_HOME", &home);
        let answer = run(&mut command, None, Duration::from_secs(30))?;
        let refused = id == "asking-nested";
        assert_eq!(answer.stdout.contains("\"verdict\": \"refuse\""), refused, "{id}: {answer:?}");
        let words = ["cgroup-no-filter", "runs inside a user namespace", "start GPU containers as root on the node"];
        assert!(!refused || words.iter().all(|word| answer.stdout.contains(word)), "{id}: {answer:?}");
    }
    Ok(())
}

/// D39: where control groups are there and cannot be written, as in a container of LXC, no container comes to be. With a GPU
/// or without, that is the low-level runtime's to say, and nothing is left of it.
#[test]
fn d39_control_groups_that_cannot_be_written_fail_a_container_and_leave_nothing() -> Result<()> {
    let test = "d39_control_groups_that_cannot_be_written_fail_a_container_and_leave_nothing";
    let closed = "for at in /sys/fs/cgroup /sys/fs/cgroup/*; do \
        if mountpoint -q $at; then mount -o remount,bind,ro $at; fi; done";
    let Some(bench) = Bench::within(test, RUNC, closed)? else { return Ok(()) };
    for (id, spec) in [("d39-gpu", Spec::new().env("QUILT_GPU_COUNT", "1")), ("d39-plain", Spec::new())] {
        let bundle = bench.bundle(id, &spec)?;
        let before = bytes(&bundle.config())?;
        let answer = bench.runc.create(id, &bundle)?;
        assert!(!answer.status.success() && answer.stderr.contains("read-only file system"), "{id}: {answer:?}");
        assert_eq!(bench.runc.state(id)?, None, "{id}");
        assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new(), "{id}");
        assert!(bytes(&bundle.config())? == before, "{id}: config.json was changed");
        let group = format!("/sys/fs/cgroup/devices{}", bench.cgroup(id));
        assert!(!Path::new(&group).exists(), "{id}");
    }
    Ok(())
}

#[test]
fn without_a_driver_a_request_is_told_so() -> Result<()> {
    let site = || Site::with(|host| host.gpus(2).no_driver(), &integration::QuiltOptions::default());
    let Some(bench) = Bench::on("without_a_driver_a_request_is_told_so", site)? else { return Ok(()) };
    let bundle = bench.bundle("asking", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    bench.refused("asking", &bundle, &["DRIVER_NOT_READY"])?;
    Ok(())
}
