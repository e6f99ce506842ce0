//! Vulnerabilities of others in this class, each as a test under its name: what the image or the request tried there may
//! change nothing here.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use integration::{Bundle, PROBE_ALL, Result, Rootfs, Seen, Spec};

use crate::{Bench, bytes};

const FOLDER: &str = "usr/lib/x86_64-linux-gnu";

/// A container with one GPU from an image that was tampered with. Starting may fail; the host may not change.
fn life_of(bench: &Bench, id: &str, rootfs: &Rootfs) -> Result<Option<Seen>> {
    let spec = Spec::new().args(PROBE_ALL).env("QUILT_GPU_COUNT", "1");
    let bundle = bench.bundle_in(id, &spec, rootfs)?;
    let created = bench.runc.create(id, &bundle)?;
    let seen = match created.ok() {
        false => None,
        true => {
            bench.runc.start(id)?.checked()?;
            bench.runc.wait_stopped(id)?;
            let output = fs::read_to_string(bundle.path.join("stdout")).unwrap_or_default();
            bench.runc.delete(id, true)?.checked()?;
            Some(Seen::of(&output)?)
        }
    };
    assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new(), "{id}");
    Ok(seen)
}

/// The tampered image's own copy, so that links can be put into it.
fn image(bench: &Bench, name: &str) -> Result<Rootfs> {
    bench.rootfs.copy_to(bench.site.join(format!("image-{name}")))
}

/// A folder of the host that nothing may be made in.
fn trap(bench: &Bench, name: &str) -> std::path::PathBuf {
    let trap = bench.site.join(format!("trap-{name}"));
    fs::create_dir_all(&trap).unwrap();
    trap
}

fn names(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// CVE-2024-0132 and CVE-2025-23359: links in the image became mount sources, and the host's files came in.
#[test]
fn cve_2024_0132_and_cve_2025_23359_no_path_of_an_image_is_a_mount_source() -> Result<()> {
    let Some(bench) = Bench::new("cve_2024_0132", 1)? else { return Ok(()) };
    let rootfs = image(&bench, "0132")?;
    let compat = rootfs.path.join("usr/local/cuda/compat");
    fs::create_dir_all(&compat).unwrap();
    symlink("/../../../../../../etc", compat.join("libcuda.so.999.1")).unwrap();
    symlink("../../../../../../../../../", rootfs.path.join(format!("{FOLDER}/libnvidia-sneaky.so.1"))).unwrap();
    let spec = Spec::new().args(PROBE_ALL).env("QUILT_GPU_COUNT", "1");
    let bundle = bench.bundle_in("0132", &spec, &rootfs)?;
    bench.runc.create("0132", &bundle)?.checked()?;
    let sources = sources(&bundle)?;
    bench.runc.delete("0132", true)?.checked()?;
    let ours: Vec<&String> = sources.iter().filter(|source| source.starts_with('/')).collect();
    assert!(!ours.is_empty());
    let host = bench.site.host.root.display().to_string();
    for source in ours {
        assert!(source.starts_with(&host), "{source} is not a file of the node's driver");
    }
    Ok(())
}

fn sources(bundle: &Bundle) -> Result<Vec<String>> {
    let config: serde_json::Value = serde_json::from_slice(&bytes(&bundle.config())?).unwrap();
    let mounts = config["mounts"].as_array().unwrap().iter();
    Ok(mounts.filter_map(|mount| mount["source"].as_str().map(str::to_owned)).collect())
}

/// CVE-2024-0133 and CVE-2024-0134: links at mount points made files on the host.
#[test]
fn cve_2024_0133_and_cve_2024_0134_links_at_mount_points_make_nothing_on_the_host() -> Result<()> {
    let Some(bench) = Bench::new("cve_2024_0133", 1)? else { return Ok(()) };
    let trap = trap(&bench, "0133");
    let up = "../".repeat(24);
    for (id, link) in [("file", format!("{FOLDER}/libcuda.so.1")), ("program", "usr/bin/nvidia-smi".to_owned())] {
        let rootfs = image(&bench, id)?;
        let _ = fs::remove_file(rootfs.path.join(&link));
        symlink(format!("{up}{}/made-by-{id}", trap.display()), rootfs.path.join(&link)).unwrap();
        life_of(&bench, id, &rootfs)?;
        assert_eq!(names(&trap), Vec::<String>::new(), "{id}");
    }
    // A folder on the way that leads out of the image.
    let rootfs = image(&bench, "folder")?;
    fs::rename(rootfs.path.join("usr/bin"), rootfs.path.join("usr/bin.real")).unwrap();
    symlink(format!("{up}{}", trap.display()), rootfs.path.join("usr/bin")).unwrap();
    life_of(&bench, "folder", &rootfs)?;
    assert_eq!(names(&trap), Vec::<String>::new(), "folder");
    Ok(())
}

/// CVE-2024-0135, CVE-2024-0136 and CVE-2024-0137: a program of the image, or the host's inside it, ran with the host's
/// rights to mend the linker's cache.
#[test]
fn cve_2024_0135_to_0137_nothing_of_an_image_is_executed() -> Result<()> {
    let Some(bench) = Bench::new("cve_2024_0135", 1)? else { return Ok(()) };
    let trap = trap(&bench, "0136");
    let rootfs = image(&bench, "0136")?;
    for program in ["sbin/ldconfig", "sbin/ldconfig.real", "usr/bin/nvidia-smi", "usr/bin/nvidia-cdi-hook"] {
        let path = rootfs.path.join(program);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        fs::write(&path, format!("#!/bin/sh\nid > {}/ran\nid > /ran\n", trap.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let seen = life_of(&bench, "0136", &rootfs)?.expect("the container starts");
    assert_eq!(seen.gpus()?.len(), 1);
    assert_eq!(names(&trap), Vec::<String>::new());
    assert!(!rootfs.path.join("ran").exists());
    Ok(())
}

/// CVE-2025-23266: a hook that a loader starts took the container's `LD_PRELOAD` and working folder.
#[test]
fn cve_2025_23266_hooks_take_nothing_from_the_containers_environment() -> Result<()> {
    let Some(bench) = Bench::new("cve_2025_23266", 1)? else { return Ok(()) };
    let rootfs = image(&bench, "23266")?;
    rootfs.write("preload.so", b"not a library")?;
    let spec = Spec::new().args(PROBE_ALL).env("QUILT_GPU_COUNT", "1").env("LD_PRELOAD", "/proc/self/cwd/preload.so");
    let bundle = bench.bundle_in("23266", &spec.clone().env("LD_AUDIT", "/proc/self/cwd/preload.so"), &rootfs)?;
    // `run` is where hooks of ours stand in the spec.
    let ran = bench.runc.run("23266", &bundle)?.checked()?;
    assert_eq!(Seen::of(&ran.stdout)?.gpus()?.len(), 1);
    // What the container's own loader says of the file is on its own output; the hook's would fail the start.
    let checked = bench.site.quilt.audit();
    let created = checked.iter().find(|record| record["kind"] == "create").unwrap();
    let edits = created["edits"].as_array().unwrap();
    let hooks: Vec<String> =
        edits.iter().filter(|e| e["path"].as_str().unwrap().contains("hooks")).map(ToString::to_string).collect();
    assert!(!hooks.is_empty());
    for hook in hooks {
        assert!(hook.contains("\"env\":[\"QUILT_GPU_HOOK=1\"]"), "{hook}");
    }
    Ok(())
}

/// CVE-2025-23267: links at the linker's own files let a helper write on the host.
#[test]
fn cve_2025_23267_the_linkers_files_of_an_image_are_not_followed() -> Result<()> {
    let Some(bench) = Bench::new("cve_2025_23267", 1)? else { return Ok(()) };
    let trap = trap(&bench, "23267");
    fs::write(trap.join("ld.so.cache"), "the host's").unwrap();
    let rootfs = image(&bench, "23267")?;
    let up = "../".repeat(24);
    for (name, target) in [("ld.so.cache", "/ld.so.cache"), ("ld.so.conf.d", ""), ("ld.so.conf", "/made")] {
        let path = rootfs.path.join("etc").join(name);
        let _ = fs::remove_file(&path);
        let _ = fs::remove_dir_all(&path);
        symlink(format!("{up}{}{target}", trap.display()), path).unwrap();
    }
    let seen = life_of(&bench, "23267", &rootfs)?.expect("the container starts");
    assert_eq!(seen.gpus()?.len(), 1);
    assert_eq!(names(&trap), ["ld.so.cache"]);
    assert_eq!(fs::read_to_string(trap.join("ld.so.cache")).unwrap(), "the host's");
    Ok(())
}

/// CVE-2021-1056: a GPU container that may make nodes reached the other GPUs. And the peer's keyword that gave all GPUs
/// when none was asked for.
#[test]
fn cve_2021_1056_nodes_made_inside_open_nothing_and_no_keyword_grants() -> Result<()> {
    let Some(bench) = Bench::new("cve_2021_1056", 4)? else { return Ok(()) };
    let seen = bench.see("1056", &Spec::new().env("QUILT_GPU_IDS", "nvidia2"))?;
    assert_eq!(seen.gpus()?, BTreeSet::from([2]));
    for value in ["all", "none", "void", "", "0", "0,1", "runtime.nvidia.com/gpu=all"] {
        let id = format!("word-{}", value.len());
        let spec = Spec::new().env("NVIDIA_VISIBLE_DEVICES", value).env("CUDA_VERSION", "12.4.0");
        let seen = bench.see(&id, &spec)?;
        assert_eq!(seen.open_numbers(), BTreeSet::new(), "{value:?}");
    }
    Ok(())
}

/// CVE-2026-53492: annotations that came with a checkpoint named devices, and the restore gave them. Row H2.
#[test]
fn cve_2026_53492_a_checkpoint_brings_no_gpu() -> Result<()> {
    let Some(bench) = Bench::new("cve_2026_53492", 2)? else { return Ok(()) };
    let image = bench.site.join("image");
    fs::create_dir(&image).unwrap();
    let cdi = |kind: &str| Spec::new().annotation("cdi.k8s.io/gpu_0", kind);
    for (id, spec, refusal) in [
        ("words", Spec::new().annotation("quilt.gpu/count", "1"), "cannot be restored from a checkpoint"),
        ("variable", Spec::new().env("QUILT_GPU_COUNT", "1"), "cannot be restored from a checkpoint"),
        ("ours", cdi("quilt.gpu/device=nvidia0"), "cannot be restored from a checkpoint"),
        ("nvidias", cdi("nvidia.com/gpu=all"), "FOREIGN_GPU_INJECTION"),
        ("node", Spec::new().device("/dev/nvidia0", 'c', 195, 0), "TENANT_GPU_DEVICE"),
        ("rule", Spec::new().allow('c', Some(195), None, "rw"), "TENANT_GPU_RULE"),
        // runc says that there is no checkpoint, of a spec that still opens nothing.
        ("annotation", cdi("vendor.example/nic=0"), ""),
    ] {
        let bundle = bench.sharing(id, &spec)?;
        let (folder, image) = (bundle.path.to_string_lossy(), image.to_string_lossy());
        let answer = bench.runc.call(id, &["restore", "--bundle", &folder, "--image-path", &image, id])?;
        assert!(!answer.ok() && answer.stderr.contains(refusal), "{id}: {answer:?}");
        let ours =
            ["POLICY", "TENANT_GPU", "UNSAFE_SPEC", "FOREIGN_GPU"].iter().any(|code| answer.stderr.contains(code));
        assert_eq!(ours, !refusal.is_empty(), "{id}: {answer:?}");
        if refusal.is_empty() {
            let config = bundle.read()?;
            assert!(config["linux"]["devices"].is_null(), "{id}: {config}");
        }
        assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new(), "{id}");
        assert_eq!(bench.runc.state(id)?, None, "{id}");
    }
    Ok(())
}
