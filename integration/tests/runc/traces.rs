//! What a create leaves behind for who looks into the container: masks, labels, mounts; and that an image that changes meanwhile
//! leads nothing astray.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use integration::{Error, QuiltOptions, Result, Rootfs, Site, Spec, attribute};
use serde_json::Value;

use crate::verify::{FORGETFUL, change_low_level, program};
use crate::{Bench, bytes};

fn text(path: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&bytes(path)?).into_owned())
}

/// D41, CVE-2024-0132: while containers are made, another changes the image under them.
#[test]
fn a_race_over_the_image_changes_nothing_outside() -> Result<()> {
    let Some(bench) = Bench::new("a_race_over_the_image_changes_nothing_outside", 1)? else { return Ok(()) };
    let io = |result: std::io::Result<()>| result.map_err(|e| Error::new(e.to_string()));
    let outside = bench.site.join("outside");
    io(fs::create_dir_all(&outside))?;
    let rootfs = Rootfs { path: bench.rootfs.path.clone() }.with_ld_cache()?;
    let cache = bytes(&rootfs.path.join("etc/ld.so.cache"))?;
    io(fs::write(outside.join("ld.so.cache"), &cache))?;
    let spec = Spec::new().env("QUILT_GPU_COUNT", "1");
    let bundle = bench.bundle_in("race", &spec, &rootfs)?;
    let root = bundle.path.join("rootfs");
    let climb = format!("{}{}", "../".repeat(24), outside.display());
    io(symlink(climb.trim_end_matches('/'), root.join("other")))?;
    let (etc, other, aside) = (root.join("etc"), root.join("other"), root.join("aside"));
    let ends = AtomicBool::new(false);
    let mut made = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let _ = fs::rename(&etc, &aside).and_then(|()| fs::rename(&other, &etc));
                let _ = fs::rename(&etc, &other).and_then(|()| fs::rename(&aside, &etc));
            }
        });
        for round in 0..8 {
            let id = format!("race-{round}");
            made += usize::from(bench.runc.create(&id, &bundle).is_ok_and(|answer| answer.ok()));
            let _ = bench.runc.delete(&id, true);
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert!(made > 0, "no container could be made at all");
    assert!(bytes(&outside.join("ld.so.cache"))? == cache, "a file outside the image was changed");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "a file was made outside the image");
    Ok(())
}

/// D18, G6: the names of other GPUs are masked, where something of the tree is masked anyway.
#[test]
fn d18_the_folders_of_other_gpus_are_masked() -> Result<()> {
    let Some(bench) = Bench::new("d18_the_folders_of_other_gpus_are_masked", 2)? else { return Ok(()) };
    // A device of this machine stands for the other GPU's.
    let Some(there) = fs::read_dir("/sys/bus/pci/devices").ok().and_then(|mut all| all.next()?.ok()) else {
        integration::say("SKIPPED d18_the_folders_of_other_gpus_are_masked: no PCI device on this machine");
        return Ok(());
    };
    let target = fs::read_link(there.path()).map_err(|e| Error::new(e.to_string()))?;
    let other = &bench.site.host.by_minor(1).unwrap().pci;
    let root = &bench.site.host.root;
    let bus = root.join("sys/bus/pci/devices");
    let home = bus.join(&target);
    fs::create_dir_all(home.parent().unwrap()).map_err(|e| Error::new(e.to_string()))?;
    fs::rename(bus.join(other), &home).map_err(|e| Error::new(e.to_string()))?;
    symlink(&target, bus.join(other)).map_err(|e| Error::new(e.to_string()))?;
    let folder = format!("/sys/{}", target.to_string_lossy().trim_start_matches("../"));

    let asking = Spec::new().env("QUILT_GPU_IDS", "nvidia0").args(["ls", "-A", &folder]);
    let bundle = bench.bundle("masked", &asking)?;
    bench.runc.create("masked", &bundle)?.checked()?;
    let masked = |bundle: &integration::Bundle| -> Result<BTreeSet<String>> {
        let document = bundle.read()?;
        let list = document.pointer("/linux/maskedPaths").and_then(Value::as_array).cloned().unwrap_or_default();
        Ok(list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    };
    let proc = format!("/proc/driver/nvidia/gpus/{other}");
    let with = masked(&bundle)?;
    assert!(with.contains(&folder) && with.contains(&proc), "{with:?}");
    let own = &bench.site.host.by_minor(0).unwrap().pci;
    assert!(!with.iter().any(|path| path.contains(own.as_str())), "{with:?}");
    bench.runc.start("masked")?.checked()?;
    bench.runc.wait_stopped("masked")?;
    assert_eq!(text(&bundle.path.join("stdout"))?, "", "something of the other GPU is seen");
    bench.runc.delete("masked", true)?.checked()?;

    // A low-level runtime that forgets ours alone is caught.
    let forgets = FORGETFUL.replace(
        r#".linux.resources.devices = [{"allow": true, "access": "rwm"}]"#,
        &format!(r#".linux.maskedPaths -= ["{folder}"]"#),
    );
    let odd = program(bench.site.join("runc-odd"), &forgets)?;
    change_low_level(&bench.site, crate::RUNC, &odd)?;
    bench.refused("forgotten", &bench.bundle("forgotten", &asking)?, &["VERIFY_FAILED", &folder, "must be masked"])?;
    change_low_level(&bench.site, &odd.to_string_lossy(), Path::new(crate::RUNC))?;

    // In a tree of which nothing is masked, nothing of ours is: a nested container could not mount its own.
    for (id, paths) in [("nothing", vec![]), ("only-sys", vec!["/sys/firmware"])] {
        let spec = asking.clone().edit(|document| document["linux"]["maskedPaths"] = paths.clone().into());
        let bundle = bench.bundle(id, &spec)?;
        bench.runc.create(id, &bundle)?.checked()?;
        let (is_sys, found) = (!paths.is_empty(), masked(&bundle)?);
        assert!(found.contains(&folder) == is_sys && !found.contains(&proc), "{id}: {found:?}");
        bench.runc.delete(id, true)?.checked()?;
    }
    Ok(())
}

/// D40: a file that we made has the label of the container's files; nothing of the node's is labelled, nothing else changes.
#[test]
fn d40_what_we_made_has_the_containers_label() -> Result<()> {
    let stub = || {
        let names = Path::new(env!("CARGO_BIN_EXE_quilt-stub"));
        let options = QuiltOptions { verify: false, low_level: vec![names.into()], ..QuiltOptions::default() };
        Site::with(|host| host.gpus(1), &options)
    };
    let Some(bench) = Bench::on("d40_what_we_made_has_the_containers_label", stub)? else { return Ok(()) };
    let (label, process) = ("system_u:object_r:container_file_t:s0:c1,c2", "system_u:system_r:container_t:s0:c1,c2");
    let spec = Spec::new().env("QUILT_GPU_COUNT", "1").edit(|document| {
        document["linux"]["mountLabel"] = label.into();
        document["process"]["selinuxLabel"] = process.into();
        document["root"]["readonly"] = true.into();
    });
    let bundle = bench.bundle_in("labelled", &spec, &bench.rootfs.clone().with_ld_cache()?)?;
    bench.runc.create("labelled", &bundle)?.checked()?;
    let document = bundle.read()?;
    assert_eq!(
        (&document["linux"]["mountLabel"], &document["process"]["selinuxLabel"]),
        (&label.into(), &process.into())
    );
    let mounts = document["mounts"].as_array().cloned().unwrap_or_default();
    let ours: Vec<&Value> = mounts.iter().filter(|mount| mount["options"].to_string().contains("nosuid")).collect();
    assert!(
        ours.iter()
            .all(|mount| !["\"z\"", "\"Z\"", "context="].iter().any(|one| mount["options"].to_string().contains(one)))
    );
    let cache = mounts.iter().find(|mount| mount["destination"] == "/etc/ld.so.cache").unwrap();
    let made = Path::new(cache["source"].as_str().unwrap());
    assert!(made.starts_with(&bundle.path), "{cache}");
    assert_eq!(attribute(made, "security.selinux").as_deref(), Some(label));
    let library =
        mounts.iter().find(|mount| mount["destination"].as_str().unwrap().ends_with("/libcuda.so.1")).unwrap();
    assert_eq!(attribute(Path::new(library["source"].as_str().unwrap()), "security.selinux"), None, "{library}");
    bench.runc.delete("labelled", true)?.checked()?;
    assert!(!made.exists(), "left behind");
    Ok(())
}

/// D44: a checkpoint knows the mounts that stand in the spec, and no shared ones.
#[test]
fn d44_every_mount_stands_in_the_spec_and_is_private() -> Result<()> {
    let Some(bench) = Bench::new("d44_every_mount_stands_in_the_spec_and_is_private", 1)? else { return Ok(()) };
    bench.sleeper("d44", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    let document: Value = serde_json::from_slice(&bytes(&bench.site.join("bundle-d44/config.json"))?).unwrap();
    let stand: BTreeSet<&str> =
        document["mounts"].as_array().unwrap().iter().filter_map(|mount| mount["destination"].as_str()).collect();
    let table = bench.runc.exec("d44", &["cat", "/proc/self/mountinfo"])?.checked()?.stdout;
    let mut seen = 0;
    for line in table.lines() {
        let point = line.split(' ').nth(4).unwrap_or_default();
        // The root, and what every runtime makes by itself: masks, read-only paths, control groups.
        if point == "/" || ["/proc", "/sys", "/dev/console"].iter().any(|own| point.starts_with(own)) {
            continue;
        }
        seen += usize::from(point.contains("nvidia") || point.contains("libcuda"));
        assert!(stand.contains(point), "{point} is mounted and stands nowhere");
        assert!(!line.contains(" shared:") && !line.contains(" master:"), "{line}");
    }
    assert!(seen > 3, "{table}");
    bench.runc.delete("d44", true)?.checked()?;
    Ok(())
}
