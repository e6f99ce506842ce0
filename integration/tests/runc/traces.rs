//! What a create leaves behind: which files it changes and which programs it starts, by its system calls; and that an image
//! that changes meanwhile leads nothing astray.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use integration::{Error, QuiltOptions, Result, Rootfs, Site, Spec, attribute};
use serde_json::Value;

use crate::{Bench, bytes};

/// Calls that change something by name.
const CHANGES: [&str; 14] = [
    "mkdir",
    "mknod",
    "rename",
    "unlink",
    "rmdir",
    "symlink",
    "link(",
    "linkat",
    "chmod",
    "chown",
    "truncate(",
    "setxattr",
    "utime",
    "mount",
];

fn text(path: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&bytes(path)?).into_owned())
}

/// The lines of a trace that are ours: not those of the low-level runtime and what it started.
fn ours<'t>(trace: &'t str, low_level: &str) -> Vec<&'t str> {
    let calls = || trace.lines().filter_map(|line| line.split_once(' ').map(|(pid, call)| (pid, call.trim_start())));
    // A child may be seen before the call that made it returns.
    let forks = ["clone", "fork", "vfork", "<... clone", "<... fork", "<... vfork"];
    let born = calls().filter(|(_, call)| forks.iter().any(|name| call.starts_with(name)));
    let parents: BTreeMap<&str, &str> =
        born.filter_map(|(pid, call)| Some((call.rsplit_once(" = ")?.1.split(' ').next()?, pid))).collect();
    let mut runtime = None;
    let mut lines = Vec::new();
    for (pid, call) in calls() {
        let mut above = Some(&pid);
        while above.is_some_and(|pid| Some(*pid) != runtime) {
            above = above.and_then(|pid| parents.get(pid));
        }
        if above.is_some() {
            continue;
        }
        lines.push(call);
        if call.starts_with("execve") && call.contains(low_level) {
            runtime = Some(pid);
        }
    }
    lines
}

/// The paths that a call names: descriptors with what they are, and texts.
fn named(call: &str) -> Vec<String> {
    let mut folder = String::new();
    let mut paths = Vec::new();
    for part in call.split(['(', ',']).map(str::trim) {
        if let Some(text) = part.strip_prefix('"').and_then(|text| text.split('"').next()) {
            let full = if text.starts_with('/') { text.to_owned() } else { format!("{folder}/{text}") };
            paths.push(full);
        } else if let Some((_, path)) = part.split_once('<') {
            folder = path.trim_end_matches(['>', ')']).to_owned();
        }
    }
    paths
}

#[test]
fn a_create_changes_nothing_but_its_own_and_runs_nothing_but_the_runtime() -> Result<()> {
    let Some(bench) = Bench::new("a_create_changes_nothing_but_its_own", 2)? else { return Ok(()) };
    bench.site.quilt.cli(&["inventory", "refresh"])?.checked()?;
    let rootfs = bench.rootfs.clone().with_ld_cache()?;
    let volume = bench.site.join("volume");
    fs::create_dir(&volume).map_err(|e| Error::new(e.to_string()))?;
    let spec = Spec::new().env("QUILT_GPU_COUNT", "1").bind(&volume, "/data", &["rshared"]).args(["true"]);
    let bundle = bench.bundle_in("traced", &spec, &rootfs)?;
    let trace = bench.site.join("trace");
    // Of this test alone: others mount at the same time.
    let mounted = || -> Result<Vec<String>> {
        let (table, own) =
            (text(Path::new("/proc/self/mountinfo"))?, bench.site.folder().to_string_lossy().into_owned());
        Ok(table.lines().filter(|line| line.contains(&own)).map(str::to_owned).collect())
    };
    let mounts = mounted()?;
    // The runtime's own command line, with strace before it.
    let plain = bench.runc.command("traced");
    let mut traced = Command::new("strace");
    traced.args(["-f", "-y", "-s", "512", "-o"]).arg(&trace).args(["-e", "trace=file,process,desc"]);
    traced.arg(plain.get_program()).args(plain.get_args());
    traced.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
    traced.arg("create").arg("--bundle").arg(&bundle.path).arg("traced");
    traced.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut traced = traced.spawn().map_err(|e| Error::new(format!("strace: {e}")))?;
    // It follows the container's process too, and ends with that.
    let deadline = Instant::now() + Duration::from_secs(60);
    while bench.runc.state("traced")?.is_none_or(|state| state["status"] != "created") {
        assert!(Instant::now() < deadline, "no container within a minute");
        std::thread::sleep(Duration::from_millis(50));
    }
    let after = mounted()?;
    bench.runc.start("traced")?.checked()?;
    traced.wait().map_err(|e| Error::new(e.to_string()))?;
    let trace = text(&trace)?;
    let lines = ours(&trace, "/usr/sbin/runc");

    let allowed = [bundle.path.clone(), bench.site.quilt.state(), bench.site.quilt.folder.join("log")];
    let mut changed = BTreeSet::new();
    for call in lines.iter().filter(|call| !call.contains(" = -1 ")) {
        let name = call.split('(').next().unwrap_or_default();
        let opens =
            name.starts_with("open") && ["O_WRONLY", "O_RDWR", "O_CREAT"].iter().any(|flag| call.contains(flag));
        if opens || CHANGES.iter().any(|change| call.starts_with(change)) {
            changed.extend(named(call));
        }
    }
    let known = |path: &String| path == "/dev/null" || allowed.iter().any(|folder| Path::new(path).starts_with(folder));
    let others: Vec<&String> = changed.iter().filter(|path| !known(path)).collect();
    assert_eq!(others, Vec::<&String>::new(), "changed, and not its own");
    let config = bundle.config().to_string_lossy().into_owned();
    let cache = bundle.path.join("rootfs/etc/ld.so.cache").to_string_lossy().into_owned();
    for expected in [config, cache] {
        assert!(changed.contains(&expected), "{expected} was not seen to be changed: {changed:?}");
    }
    let programs: Vec<&&str> = lines.iter().filter(|call| call.starts_with("execve")).collect();
    let is_known = |call: &&&str| call.contains("quilt-gpu-runtime\"") || call.contains("\"/usr/sbin/runc\"");
    assert!(programs.len() == 2 && programs.iter().all(is_known), "{programs:?}");

    // What the container changed in its layer stands in the record; nothing of it is in the volume or on the node.
    let audit = bench.site.quilt.audit();
    let entry = audit.iter().find(|entry| entry["kind"] == "create" && entry["container"] == "traced").unwrap();
    assert!(entry["notes"].to_string().contains("/etc/ld.so.cache in the container's writable layer"), "{entry}");
    assert!(entry["edits"].to_string().contains("/usr/bin/nvidia-smi"), "{entry}");
    assert_eq!(fs::read_dir(&volume).map_err(|e| Error::new(e.to_string()))?.count(), 0);
    assert_eq!(after, mounts, "a mount was left on the node");
    bench.runc.delete("traced", true)?.checked()?;
    Ok(())
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
