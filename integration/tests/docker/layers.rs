//! What a container with a GPU leaves in its own layer: it is in the record, and an image made of it is an image like others.

use std::collections::BTreeSet;
use std::path::Path;

use integration::{Error, PROBE_ALL, Result, Rootfs, Seen};

use crate::{PROBE, Yard};

/// D09: mount points that were committed are empty files in the next image.
#[test]
fn an_image_made_of_a_container_starts_with_and_without_gpus() -> Result<()> {
    let Some(yard) = Yard::new("an_image_made_of_a_container_starts", 2)? else { return Ok(()) };
    let rootfs = Rootfs::debian_like(yard.site.join("listed"), Path::new(PROBE))?;
    std::fs::copy("/sbin/ldconfig", rootfs.path.join("usr/bin/ldconfig")).map_err(|e| Error::new(e.to_string()))?;
    yard.docker.import(&rootfs.with_ld_cache()?, "listed:1", &[])?;
    let one = ["-e", "QUILT_GPU_COUNT=1"];
    let lists = |ran: &str| ran.contains("libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1");
    let first = yard.run(&[&["--name", "first"], &one[..], &["listed:1", "ldconfig", "-p"]].concat())?.checked()?;
    assert!(lists(&first.stdout), "{first:?}");

    // Everything that became different is something that we said.
    let diff = yard.docker.client(&["diff", "first"])?.checked()?.stdout;
    let audit = yard.site.quilt.audit();
    let entry = audit.iter().find(|entry| entry["kind"] == "create" && entry["contract"].is_string()).unwrap();
    let edits = entry["edits"].to_string();
    let told = |path: &str| edits.contains(&format!("\"{path}\"")) || edits.contains(&format!("\"{path}/"));
    let untold: BTreeSet<&str> = (diff.lines())
        .filter_map(|line| line.split_once(' ').map(|(_, path)| path))
        .filter(|path| !told(path) && !"/etc/ld.so.cache".starts_with(path))
        .collect();
    assert_eq!(untold, BTreeSet::new(), "{diff}");
    assert!(diff.contains("C /etc/ld.so.cache") && entry["notes"].to_string().contains("/etc/ld.so.cache"), "{entry}");

    // Once more the same container, then an image of it.
    assert!(lists(&yard.docker.client(&["start", "--attach", "first"])?.checked()?.stdout));
    yard.docker.client(&["commit", "first", "made:1"])?.checked()?;
    let with = yard.see(&[&one[..], &["made:1"]].concat())?;
    assert_eq!(with.gpus()?.len(), 1);
    assert!(with.library("libcuda.so.1").is_ok(), "{:?}", with.library("libcuda.so.1"));
    // The request is in the image too: Docker commits a container's variables.
    let plain = yard.docker.run(&[&["--runtime=plain", "--rm", "made:1"], &PROBE_ALL[..]].concat())?.checked()?;
    let without = Seen::of(&plain.stdout)?;
    assert_eq!(without.gpus()?, BTreeSet::new());
    assert!(without.library("libcuda.so.1").is_err(), "an empty file is no library");
    yard.docker.client(&["rm", "first"])?.checked()?;
    yard.site.wait_no_leases()
}
