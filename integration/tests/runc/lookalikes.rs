//! What looks like a road to a GPU and is none: these containers run, still without a GPU, and with one they have that
//! one alone.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use integration::{PROBE_ALL, Result, Seen, Spec};
use serde_json::json;

use crate::refusals::make_node;
use crate::{Bench, remove};

impl Bench {
    /// Runs each alone and beside a request; `sh -c SCRIPT` must succeed in it. One GPU is there to be had.
    fn all_run(&self, cases: Vec<(&str, Spec, &str)>) -> Result<()> {
        for (name, spec, script) in cases {
            for (ask, spec, gpus) in [("", spec.clone(), 0), ("-asking", spec.env("QUILT_GPU_COUNT", "1"), 1)] {
                let id = format!("{name}{ask}");
                let command = format!("({script}) >&2 && exec {}", PROBE_ALL.join(" "));
                let bundle = self.bundle(&id, &spec.args(["sh", "-c", &command]))?;
                let output = self.runc.whole_life(&id, &bundle)?;
                let complaint = fs::read_to_string(bundle.path.join("stderr")).unwrap_or_default();
                assert!(!output.is_empty(), "{id}: {script} failed: {complaint}");
                assert_eq!(Seen::of(&output)?.gpus()?.len(), gpus, "{id}");
                remove(&bundle.path)?;
            }
        }
        Ok(())
    }
}

/// Opens it for reading and writing.
fn opens(path: &str) -> String {
    format!("exec 3<>{path}")
}

#[test]
fn mounts_that_only_look_like_a_gpu_run() -> Result<()> {
    let Some(bench) = Bench::new("mounts_that_only_look_like_a_gpu_run", 1)? else { return Ok(()) };
    let site = &bench.site;
    let (zero, file, volume) = (site.join("zero"), site.join("nvidia0"), site.join("volume"));
    make_node(&zero, "c", 1, 5)?;
    fs::write(&file, "a file by a GPU's name\n").unwrap();
    // As kubelet lays out a config map.
    fs::create_dir_all(volume.join("..2026")).unwrap();
    fs::write(volume.join("..2026/key"), "value\n").unwrap();
    symlink("..2026", volume.join("..data")).unwrap();
    symlink("..data/key", volume.join("key")).unwrap();
    let none = json!({"type": "none", "source": file.to_string_lossy(), "destination": "/x", "options": ["rbind"]});
    let tmpfs = json!({"type": "tmpfs", "source": "tmpfs", "destination": "/mnt", "options": ["size=1m"]});
    let fuse = Path::new("/dev/fuse");
    let served = site.join("served");
    mount_of_a_dead_server(&served.join("dead"));
    bench.all_run(vec![
        ("file", Spec::new().bind(&file, "/dev/x", &["ro"]), "grep name /dev/x"),
        ("no-type", Spec::new().mount(none), "grep name /x"),
        ("tmpfs", Spec::new().mount(tmpfs), "touch /mnt/y"),
        ("volume", Spec::new().bind(&volume, "/v", &["ro"]), "grep value /v/key"),
        ("linked-folder", Spec::new().bind(&volume.join("..data"), "/v", &["ro"]), "grep value /v/key"),
        ("linked-file", Spec::new().bind(&volume.join("key"), "/k", &["ro"]), "grep value /k"),
        ("node", Spec::new().bind(&zero, "/dev/z", &[]), &opens("/dev/z")),
        ("fuse", Spec::new().bind(fuse, "/dev/fuse", &[]).allow('c', Some(10), Some(229), "rwm"), &opens("/dev/fuse")),
        ("proc", Spec::new().bind(Path::new("/proc"), "/host-proc", &["ro"]), "test -e /host-proc/1/status"),
        ("dead-server", Spec::new().bind(&served, "/v", &[]), "mount | grep ' /v/dead ' && ! ls /v/dead"),
    ])
}

/// A FUSE mount of root's, whose server went away without unmounting it: whatever is asked of it fails.
#[allow(clippy::unwrap_used, reason = "a helper of tests")]
fn mount_of_a_dead_server(point: &Path) {
    fs::create_dir_all(point).unwrap();
    let mount = "mount -i -t fuse -o fd=5,rootmode=40000,user_id=0,group_id=0 server \"$0\" 5<>/dev/fuse";
    assert!(Command::new("sh").args(["-c", mount]).arg(point).status().unwrap().success());
    assert_eq!(fs::metadata(point).unwrap_err().raw_os_error(), Some(107));
}

#[test]
fn devices_and_rules_of_others_run() -> Result<()> {
    let Some(bench) = Bench::new("devices_and_rules_of_others_run", 1)? else { return Ok(()) };
    let device = |path: &str, minor| Spec::new().device(path, 'c', 10, minor).allow('c', Some(10), Some(minor), "rwm");
    let made = "mknod /tmp/t c 10 229";
    let mut cases = vec![
        ("fuse", device("/dev/fuse", 229), opens("/dev/fuse")),
        ("make-only", Spec::new().allow('c', None, None, "m"), made.to_owned()),
        ("terminals", Spec::new().allow('c', Some(136), None, "rwm"), "true".into()),
        // Block devices have numbers of their own.
        (
            "block",
            Spec::new().allow('b', Some(195), None, "rwm").device("/dev/b", 'b', 195, 0),
            "test -b /dev/b".into(),
        ),
    ];
    if Path::new("/dev/net/tun").exists() {
        cases.push(("tun", device("/dev/net/tun", 200), opens("/dev/net/tun")));
    }
    bench.all_run(cases.iter().map(|(name, spec, script)| (*name, spec.clone(), script.as_str())).collect())
}

#[test]
fn the_whole_host_read_only_gives_no_gpu() -> Result<()> {
    let Some(bench) = Bench::new("the_whole_host_read_only_gives_no_gpu", 2)? else { return Ok(()) };
    for (id, asking) in [("alone", Spec::new()), ("asking", Spec::new().env("QUILT_GPU_IDS", "nvidia1"))] {
        for options in [&["ro"][..], &[]] {
            let spec = asking.clone().bind(Path::new("/"), "/host", options);
            let seen = bench.see(&format!("{id}-{}", options.len()), &spec)?;
            let expected: BTreeSet<u64> = if id == "asking" { [1].into() } else { BTreeSet::new() };
            assert_eq!(seen.gpus()?, expected);
            let listed = PathBuf::from(format!("/host{}", bench.site.host.root.join("dev").display()));
            let spec = spec.args(["quilt-probe", "devices", &listed.to_string_lossy()]);
            let id = format!("{id}-{}-nodes", options.len());
            let output = bench.runc.whole_life(&id, &bench.bundle(&id, &spec)?)?;
            for line in output.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()) {
                let name = line["path"].as_str().unwrap().rsplit('/').next().unwrap_or_default();
                let granted =
                    !expected.is_empty() && ["nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"].contains(&name);
                assert_eq!(line["open"], if granted { "ENXIO" } else { "EPERM" }, "{line}");
            }
            assert!(output.lines().count() > 5, "the fixture's nodes are not there: {output}");
        }
    }
    Ok(())
}

#[test]
fn nodes_that_an_image_brings_stay_shut() -> Result<()> {
    let Some(bench) = Bench::new("nodes_that_an_image_brings_stay_shut", 2)? else { return Ok(()) };
    let folder = bench.rootfs.path.join("opt");
    fs::create_dir_all(&folder).unwrap();
    for (name, major, minor) in
        [("nvidia0", 195, 0), ("nvidia1", 195, 1), ("nvidiactl", 195, 255), ("nvidia-uvm", 511, 0)]
    {
        make_node(&folder.join(name), "c", major, minor)?;
    }
    for (id, asking) in [("alone", Spec::new()), ("asking", Spec::new().env("QUILT_GPU_IDS", "nvidia1"))] {
        let bundle = bench.bundle(id, &asking.args(["quilt-probe", "devices", "/opt"]))?;
        let output = bench.runc.whole_life(id, &bundle)?;
        assert_eq!(output.lines().count(), 4, "{output}");
        for line in output.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()) {
            let granted = id == "asking" && line["path"] != "/opt/nvidia0";
            assert_eq!(line["open"], if granted { "ENXIO" } else { "EPERM" }, "{id}: {line}");
        }
    }
    Ok(())
}

/// A process whose executable stands for dockerd's in the hook that Docker puts into every container.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn dockers_network_hook_runs() -> Result<()> {
    let Some(bench) = Bench::new("dockers_network_hook_runs", 1)? else { return Ok(()) };
    let sleep = Command::new("/bin/busybox").args(["sleep", "600"]).stdin(Stdio::null()).spawn();
    let daemon = Daemon(sleep.unwrap());
    let trace = bench.site.join("hook-ran");
    // Busybox runs what its first word says, as dockerd does.
    let hook = json!({
        "path": format!("/proc/{}/exe", daemon.0.id()),
        "args": ["tee", trace.to_string_lossy()],
    });
    let hook = |spec: &mut serde_json::Value| spec["hooks"] = json!({"prestart": [hook]});
    bench.all_run(vec![("hook", Spec::new().edit(hook), "true")])?;
    assert!(fs::read_to_string(&trace).unwrap().contains("\"pid\""), "the hook got the container's state");
    Ok(())
}

#[test]
fn an_images_visible_devices_become_void_without_a_request() -> Result<()> {
    let Some(bench) = Bench::new("an_images_visible_devices_become_void_without_a_request", 1)? else { return Ok(()) };
    let baked = Spec::new().env("NVIDIA_VISIBLE_DEVICES", "all").env("CUDA_VERSION", "12.2.0");
    let seen = bench.see("void", &baked)?;
    assert_eq!(seen.env("NVIDIA_VISIBLE_DEVICES"), Some("void"));
    assert_eq!(seen.gpus()?, BTreeSet::new());
    let legacy = bench.see("legacy", &Spec::new().env("CUDA_VERSION", "12.2.0"))?;
    assert_eq!(legacy.env("NVIDIA_VISIBLE_DEVICES"), None);
    assert_eq!(legacy.gpus()?, BTreeSet::new());
    let granted = bench.see("granted", &baked.env("QUILT_GPU_COUNT", "1"))?;
    assert_eq!(granted.env("NVIDIA_VISIBLE_DEVICES"), Some(&*bench.site.host.gpus[0].uuid));
    Ok(())
}
