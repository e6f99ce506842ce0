//! Every road to a GPU that a tenant's spec could take is refused before there is a container, whether it asks for a
//! GPU as well or not. Beside each stands what looks like it and must run: see `lookalikes`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::{Result, Spec, run};
use serde_json::json;

use crate::Bench;

const MOUNT: &str = "TENANT_GPU_MOUNT";
const DEVICE: &str = "TENANT_GPU_DEVICE";
const RULE: &str = "TENANT_GPU_RULE";

/// Where the first mount, device and rule of a tenant stand.
const SOURCE: &str = "/mounts/7/source";
const ENTRY: &str = "/linux/devices/0";
const LAST_RULE: &str = "/linux/resources/devices/7";

/// A road: name, what the tenant writes, and the code, place and value that the refusal must name.
type Road = (&'static str, Spec, &'static str, &'static str, String);

impl Bench {
    /// Tries each road alone and beside a request for a GPU.
    fn all_refused(&self, roads: Vec<Road>) -> Result<()> {
        for (name, spec, code, at, value) in roads {
            for (ask, spec) in [("", spec.clone()), ("-asking", spec.env("QUILT_GPU_COUNT", "1"))] {
                let id = format!("{name}{ask}");
                self.refused(&id, &self.sharing(&id, &spec)?, &[code, at, &value])?;
            }
        }
        Ok(())
    }
}

fn bind(source: &Path) -> Spec {
    Spec::new().bind(source, "/x", &[])
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn mounts_that_reach_a_gpu_are_refused() -> Result<()> {
    let Some(bench) = Bench::new("mounts_that_reach_a_gpu_are_refused", 2)? else { return Ok(()) };
    let site = &bench.site;
    let node = site.host.node("nvidia0");
    let renamed = site.join("innocent");
    make_node(&renamed, "c", 195, 0)?;
    let volume = site.join("volume");
    fs::create_dir(&volume).unwrap();
    symlink(&node, volume.join("link")).unwrap();
    symlink(volume.join("link"), volume.join("second")).unwrap();
    let up = PathBuf::from(format!("/proc/self/root{}", node.display()));
    // From the bundle's folder, which lies beside the node's.
    let relative = "../host/dev/../dev/nvidia0";
    let roads = vec![
        ("a1", bind(&node), MOUNT, SOURCE, shown(&node)),
        ("a1-by-name", bind(Path::new("/dev/nvidia0")), MOUNT, SOURCE, "/dev/nvidia0".into()),
        ("a1-control", bind(&site.host.node("nvidiactl")), MOUNT, SOURCE, shown(&site.host.node("nvidiactl"))),
        ("a1-uvm", bind(&site.host.node("nvidia-uvm")), MOUNT, SOURCE, shown(&site.host.node("nvidia-uvm"))),
        ("a5-tmpfs", lie(&node, Some("tmpfs"), "bind"), MOUNT, SOURCE, shown(&node)),
        ("a5-none", lie(&node, Some("none"), "rbind"), MOUNT, SOURCE, shown(&node)),
        ("a5-absent", lie(&node, None, "bind"), MOUNT, SOURCE, shown(&node)),
        ("a6", bind(&volume.join("link")), MOUNT, SOURCE, shown(&volume.join("link"))),
        ("a6-chain", bind(&volume.join("second")), MOUNT, SOURCE, shown(&volume.join("second"))),
        ("a7", bind(Path::new("/dev")), MOUNT, SOURCE, "/dev".into()),
        ("a7-dots", bind(Path::new("/usr/../dev/")), MOUNT, SOURCE, "/usr/../dev/".into()),
        ("a9", bind(&up), "", SOURCE, shown(&up)),
        ("a9-dev", bind(Path::new("/proc/self/root/dev")), "", SOURCE, "/proc/self/root/dev".into()),
        ("a10", bind(&renamed), MOUNT, SOURCE, shown(&renamed)),
        ("a15-caps", bind(&site.host.node("nvidia-caps")), MOUNT, SOURCE, shown(&site.host.node("nvidia-caps"))),
        ("relative", bind(Path::new(relative)), MOUNT, SOURCE, relative.into()),
        ("a17", devtmpfs(), MOUNT, "/mounts/7", "devtmpfs".into()),
        ("a15-folder", bind(&site.host.root.join("dev")), MOUNT, SOURCE, shown(&site.host.root.join("dev"))),
    ];
    bench.all_refused(roads)
}

/// A bind by its options under another type.
fn lie(source: &Path, kind: Option<&str>, option: &str) -> Spec {
    let mut entry = json!({"destination": "/x", "source": source.to_string_lossy(), "options": [option]});
    if let Some(kind) = kind {
        entry["type"] = kind.into();
    }
    Spec::new().mount(entry)
}

fn devtmpfs() -> Spec {
    Spec::new().mount(json!({"destination": "/mnt/d", "type": "devtmpfs", "source": "devtmpfs", "options": []}))
}

#[test]
fn device_entries_that_are_a_gpu_are_refused() -> Result<()> {
    let Some(bench) = Bench::new("device_entries_that_are_a_gpu_are_refused", 2)? else { return Ok(()) };
    let entry = |path: &str, major, minor| Spec::new().device(path, 'c', major, minor);
    bench.all_refused(vec![
        ("b1", entry("/dev/nvidia0", 195, 0), DEVICE, ENTRY, "195:0".into()),
        ("b2", entry("/dev/ttyX", 195, 1), DEVICE, ENTRY, "195:1".into()),
        ("b2-control", entry("/dev/x", 195, 255), DEVICE, ENTRY, "195:255".into()),
        ("b2-uvm", entry("/dev/x", 511, 0), DEVICE, ENTRY, "511:0".into()),
        ("b2-caps", entry("/dev/x", 236, 1), DEVICE, ENTRY, "236:1".into()),
    ])
}

#[test]
fn device_rules_that_open_a_gpu_are_refused() -> Result<()> {
    let Some(bench) = Bench::new("device_rules_that_open_a_gpu_are_refused", 2)? else { return Ok(()) };
    let rule = |major, minor, access: &str| Spec::new().allow('c', major, minor, access);
    let negative = json!({"allow": true, "type": "c", "major": -1, "minor": -1, "access": "rw"});
    let hidden =
        rule(Some(195), Some(0), "rw").rule(json!({"allow": false, "type": "c", "major": 195, "access": "rwm"}));
    bench.all_refused(vec![
        ("c2", rule(None, None, "rwm"), RULE, LAST_RULE, "*".into()),
        ("c2-read", rule(None, None, "r"), RULE, LAST_RULE, "*".into()),
        ("c2-negative", Spec::new().rule(negative), RULE, LAST_RULE, String::new()),
        ("c2-minor-only", rule(None, Some(0), "rw"), RULE, LAST_RULE, String::new()),
        ("c3", rule(Some(195), None, "rwm"), RULE, LAST_RULE, "195".into()),
        ("c3-one", rule(Some(195), Some(0), "r"), RULE, LAST_RULE, "195:0".into()),
        ("c3-uvm", rule(Some(511), None, "rw"), RULE, LAST_RULE, "511".into()),
        ("c6", hidden, RULE, LAST_RULE, "195:0".into()),
    ])
}

#[test]
fn requests_that_contradict_themselves_are_refused() -> Result<()> {
    let Some(bench) = Bench::new("requests_that_contradict_themselves_are_refused", 2)? else { return Ok(()) };
    let asking = Spec::new().env("QUILT_GPU_COUNT", "1");
    for (id, spec, code, at) in [
        ("strict", asking.clone().env("QUILT_STRICT", "true"), "STRICT_GPU_CONFLICT", "/process/env/2"),
        (
            "strict-annotated",
            Spec::new().annotation("quilt.gpu/count", "1").annotation("quilt.gpu/strict", "true"),
            "STRICT_GPU_CONFLICT",
            "/annotations/quilt.gpu~1strict",
        ),
        ("zero", Spec::new().env("QUILT_GPU_COUNT", "0"), "INVALID_GPU_REQUEST", "/process/env/1"),
        ("lengths", asking.env("QUILT_GPU_IDS", "nvidia0,nvidia1"), "INVALID_GPU_REQUEST", "/process/env"),
        ("unknown", Spec::new().env("QUILT_GPU_IDS", "nvidia7"), "UNKNOWN_GPU", "nvidia7"),
    ] {
        bench.refused(id, &bench.sharing(id, &spec)?, &[code, at])?;
    }
    let privileged = Spec::new()
        .env("QUILT_GPU_COUNT", "1")
        .capability("CAP_SYS_ADMIN")
        .rule(json!({"allow": true, "access": "rwm"}));
    bench.refused("privileged", &bench.sharing("privileged", &privileged)?, &["UNSAFE_SPEC", "(at /"])?;
    Ok(())
}

#[test]
fn all_problems_are_told_and_the_nearest_to_the_tenants_words_is_last_in_the_log() -> Result<()> {
    let Some(bench) = Bench::new("all_problems_are_told", 2)? else { return Ok(()) };
    let node = bench.site.host.node("nvidia0");
    let spec = bind(&node).device("/dev/nvidia1", 'c', 195, 1).allow('c', Some(195), None, "rw");
    let said = bench.refused("all", &bench.sharing("all", &spec)?, &[MOUNT, SOURCE])?.stderr;
    let order: Vec<Option<usize>> = [MOUNT, DEVICE, RULE].iter().map(|code| said.find(code)).collect();
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{said}");
    Ok(())
}

#[test]
fn a_container_with_a_gpu_is_not_restored() -> Result<()> {
    let Some(bench) = Bench::new("a_container_with_a_gpu_is_not_restored", 1)? else { return Ok(()) };
    let bundle = bench.sharing("restored", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    let (folder, image) = (shown(&bundle.path), shown(&bench.site.join("image")));
    let answer = bench.runc.call("restored", &["restore", "--bundle", &folder, "--image-path", &image, "restored"])?;
    assert!(!answer.ok() && answer.stderr.contains("POLICY"), "{answer:?}");
    assert!(answer.stderr.contains("cannot be restored from a checkpoint"), "{answer:?}");
    assert_eq!(bench.site.leases_on_disk()?.len(), 0);
    Ok(())
}

/// A device node made by the machine's mknod.
pub(crate) fn make_node(path: &Path, kind: &str, major: u32, minor: u32) -> Result<()> {
    let mut mknod = Command::new("mknod");
    mknod.arg(path).args([kind, &major.to_string(), &minor.to_string()]);
    run(&mut mknod, None, Duration::from_secs(5))?.checked()?;
    Ok(())
}
