//! What `docker run -e QUILT_GPU_COUNT=1` gives.

use std::collections::BTreeSet;

use integration::{PROBE_ALL, Result, Seen};

use crate::{IMAGE, Yard};

const ONE: [&str; 2] = ["-e", "QUILT_GPU_COUNT=1"];

#[test]
fn a_container_gets_exactly_its_gpu() -> Result<()> {
    let Some(yard) = Yard::new("a_container_gets_exactly_its_gpu", 4)? else { return Ok(()) };
    let seen = yard.see(&[&ONE[..], &[IMAGE]].concat())?;
    let gpus = seen.gpus()?;
    assert_eq!(gpus.len(), 1);
    let gpu = yard.site.host.by_minor(*gpus.first().unwrap()).unwrap();
    assert_eq!(seen.env("NVIDIA_VISIBLE_DEVICES"), Some(&*gpu.uuid));
    assert_eq!(seen.env("CUDA_VISIBLE_DEVICES"), Some("0"));
    assert_eq!(seen.env("FROM_IMAGE"), Some("yes"));
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        assert!(seen.library(name).is_ok(), "{:?}", seen.library(name));
    }
    let pinned = yard.see(&["-e", "QUILT_GPU_IDS=nvidia0", IMAGE])?;
    assert_eq!(pinned.gpus()?, BTreeSet::from([0]));

    // Without a request: no GPU, whatever the image says.
    let plain = yard.see(&[IMAGE])?;
    assert_eq!(plain.gpus()?, BTreeSet::new());
    assert_eq!(plain.env("NVIDIA_VISIBLE_DEVICES"), None);
    let baked = yard.see(&["baked:1"])?;
    assert_eq!(baked.gpus()?, BTreeSet::new());
    assert_eq!(baked.env("NVIDIA_VISIBLE_DEVICES"), Some("void"));
    let granted = yard.see(&[&ONE[..], &["baked:1"]].concat())?;
    assert_eq!(granted.gpus()?.len(), 1);
    assert!(granted.env("NVIDIA_VISIBLE_DEVICES").is_some_and(|ids| ids.starts_with("GPU-")));

    let smi = yard.run(&[&["--rm"], &ONE[..], &[IMAGE, "nvidia-smi"]].concat())?;
    assert!(smi.stdout.contains("couldn't communicate with the NVIDIA driver"), "{smi:?}");
    yard.site.wait_no_leases()
}

#[test]
fn a_fifth_container_on_four_gpus_is_told_why() -> Result<()> {
    let Some(yard) = Yard::new("a_fifth_container_on_four_gpus_is_told_why", 4)? else { return Ok(()) };
    let mut all = Vec::new();
    for name in ["one", "two", "three", "four"] {
        all.extend(yard.sleeper(name, &ONE)?.gpus()?);
    }
    assert_eq!(all.iter().copied().collect::<BTreeSet<u64>>(), BTreeSet::from([0, 1, 2, 3]), "{all:?}");
    assert_eq!(yard.look("one")?.gpus()?, BTreeSet::from([all[0]]));

    let fifth = yard.run(&[&["--rm"], &ONE[..], &[IMAGE, "true"]].concat())?;
    assert_eq!(fifth.status.code(), Some(125), "{fifth:?}");
    assert!(fifth.stderr.contains("CAPACITY_FULL"), "docker run itself says so: {fifth:?}");
    for gpu in &yard.site.host.gpus {
        assert!(!fifth.stderr.contains(&gpu.uuid) && !fifth.stderr.contains(&gpu.pci), "{fifth:?}");
    }
    // A full node is no reason for others to wait.
    assert_eq!(yard.see(&[IMAGE])?.gpus()?, BTreeSet::new());

    yard.docker.client(&["rm", "-f", "two"])?.checked()?;
    assert_eq!(yard.see(&[&ONE[..], &[IMAGE]].concat())?.gpus()?, BTreeSet::from([all[1]]));
    Ok(())
}

#[test]
fn a_restarted_container_keeps_its_gpu_and_exec_sees_it() -> Result<()> {
    let Some(yard) = Yard::new("a_restarted_container_keeps_its_gpu_and_exec_sees_it", 3)? else { return Ok(()) };
    let first = yard.sleeper("first", &ONE)?.gpus()?;
    let second = yard.sleeper("second", &ONE)?.gpus()?;
    assert_ne!(first, second);
    yard.docker.client(&["restart", "-t", "0", "first"])?.checked()?;
    assert_eq!(yard.look("first")?.gpus()?, first);

    // Started in the other order, so that the next free one would be the other's.
    yard.docker.client(&["stop", "-t", "0", "first", "second"])?.checked()?;
    yard.site.wait_no_leases()?;
    yard.docker.client(&["start", "second"])?.checked()?;
    yard.docker.client(&["start", "first"])?.checked()?;
    assert_eq!(yard.look("second")?.gpus()?, second);
    assert_eq!(yard.look("first")?.gpus()?, first);

    // One that lost its GPU to somebody else takes another.
    yard.docker.client(&["stop", "-t", "0", "first"])?.checked()?;
    yard.site.wait_leases(1)?;
    let ids = format!("QUILT_GPU_IDS=nvidia{}", first.first().unwrap());
    assert_eq!(yard.sleeper("thief", &["-e", &ids])?.gpus()?, first);
    yard.docker.client(&["start", "first"])?.checked()?;
    let now = yard.look("first")?.gpus()?;
    assert!(now.len() == 1 && now != first && now != second, "{now:?}");

    // A process added by the user, with variables of its own.
    let exec = [&["exec", "-e", "NVIDIA_VISIBLE_DEVICES=all", "-e", "MINE=kept", "second"][..], &PROBE_ALL].concat();
    let seen = Seen::of(&yard.docker.client(&exec)?.checked()?.stdout)?;
    assert_eq!(seen.gpus()?, second);
    let gpu = yard.site.host.by_minor(*second.first().unwrap()).unwrap();
    assert_eq!(seen.env("NVIDIA_VISIBLE_DEVICES"), Some(&*gpu.uuid));
    assert_eq!(seen.env("MINE"), Some("kept"));

    // Limits change, devices stay.
    yard.docker.client(&["update", "--memory", "64m", "--memory-swap", "64m", "second"])?.checked()?;
    assert_eq!(yard.look("second")?.gpus()?, second);
    Ok(())
}
