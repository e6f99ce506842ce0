//! `quilt-gpu stats` on every engine: a process that the driver names is told by its container, as the engine's own files have it.
//!
//! The driver is the mock, on a node of its own: the kernel's lists of processes and the engine's folder are linked into it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use fake_nvml::{BESIDE, Gpu, Process, Topology};
use integration::{Error, FakeHost, Result, must, run};
use serde_json::{Value, json};

use crate::rows::{GPUS, Yard};

const MEMORY_MB: u64 = 512;
const OWNER: &str = "team-a";

pub(super) fn told(yard: &mut Yard) -> Result<()> {
    let ask = yard.asking(yard.staying("told"), "ids", "nvidia1")?;
    yard.held(&ask)?;
    // Whose containers an engine's are, its folder of states tells: known with the first of them.
    let (_, holder) = lease(yard)?;
    let config = yard.site.quilt.config();
    let before = fs::read_to_string(&config).map_err(cannot("read", &config))?;
    let owners = format!("\n[[owners]]\nname = \"{OWNER}\"\nstate_root = {}\n", holder["state_root"]);
    fs::write(&config, format!("{before}{owners}")).map_err(cannot("write", &config))?;
    let again = yard.engine.restart("told").and_then(integration::Ran::checked);
    fs::write(&config, before).map_err(cannot("write", &config))?;
    again?;
    let (pci, holder) = lease(yard)?;
    let pid = process(holder["cgroup"].as_str().unwrap_or_default())?;

    let shown = stats(yard, &pci, pid)?;
    let gpus = shown.as_array().map(Vec::as_slice).unwrap_or_default();
    let users: Vec<(&Value, &Value)> = gpus
        .iter()
        .flat_map(|gpu| gpu["processes"].as_array().into_iter().flatten().map(move |user| (&gpu["pci"], user)))
        .collect();
    let [(on, user)] = users[..] else { return must(false, format_args!("not one process: {shown}")) };
    let names = if yard.has_pods() { "tests/pod-told/told" } else { "told" };
    let told =
        json!([on, user["pid"], user["command"], user["container"], user["name"], user["owner"], user["leased"]]);
    let right = json!([pci, pid, "quilt-probe", holder["container"], names, OWNER, true]);
    must(told == right && user["memory_mb"] == MEMORY_MB, format_args!("{told} instead of {right}: {shown}"))
}

/// The one lease there is, as it lies on disk: of which GPU, and who holds it.
fn lease(yard: &Yard) -> Result<(String, Value)> {
    yard.site.wait_leases(1)?;
    let names = yard.site.leases_on_disk()?;
    let name = names.first().ok_or_else(|| Error::new("no lease is left"))?;
    let path = yard.site.quilt.state().join("leases").join(name);
    let bytes = fs::read(&path).map_err(cannot("read", &path))?;
    let mut lease: Value = serde_json::from_slice(&bytes).map_err(cannot("read", &path))?;
    Ok((lease["pci"].as_str().unwrap_or_default().to_owned(), lease["holder"]["container"].take()))
}

/// The container's process: who runs the probe in this control group.
fn process(group: &str) -> Result<u32> {
    must(group.len() > 1, format_args!("the lease names no control group of the container: {group:?}"))?;
    let is_in = |groups: &str| {
        let mut paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        paths.any(|path| Path::new(path).starts_with(group))
    };
    let runs_probe = |pid: &u32| {
        let read = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        read("comm").trim_end() == "quilt-probe" && is_in(&read("cgroup"))
    };
    // `start` returns when the container may go on, which is before its process is the probe.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(20) {
        let all = fs::read_dir("/proc").map_err(cannot("read", Path::new("/proc")))?;
        let mut pids = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        if let Some(pid) = pids.find(runs_probe) {
            return Ok(pid);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(Error::new(format!("no process runs the probe in {group}")))
}

/// What `quilt-gpu stats` tells where the driver says that this process, and no other, has this GPU open.
fn stats(yard: &Yard, pci: &str, pid: u32) -> Result<Value> {
    let folder = yard.site.join("stats");
    let _ = fs::remove_dir_all(&folder);
    let host =
        FakeHost::builder(folder.join("host")).gpus(GPUS as u64).module_version(&yard.site.files.version).build()?;
    mock(&host, &yard.site.files.version, pci, pid)?;
    let (place, engine) = yard.engine.keeps();
    link(&engine, &host.root.join(place))?;
    link(&Path::new("/proc").join(pid.to_string()), &host.root.join("proc").join(pid.to_string()))?;
    let config = folder.join("config.toml");
    let text = format!(
        "[paths]\nstate_dir = {:?}\nlog_dir = {:?}\n[host]\nroot = {:?}\n",
        yard.site.quilt.state(),
        folder.join("log"),
        host.root
    );
    fs::write(&config, text).map_err(cannot("write", &config))?;
    let mut command = yard.site.quilt.command();
    command.arg("--config").arg(&config).args(["stats", "--format", "json"]);
    let said = run(&mut command, None, Duration::from_secs(30))?.checked()?.stdout;
    serde_json::from_str(&said).map_err(|why| Error::new(format!("{why}: {said}")))
}

/// The library that tells of the process, on a node with the same GPUs.
fn mock(host: &FakeHost, version: &str, pci: &str, pid: u32) -> Result<()> {
    let process = Process { pid, memory_mb: MEMORY_MB, graphics: false };
    let gpu = |gpu: &integration::FakeGpu| Gpu {
        pci: gpu.pci.clone(),
        uuid: gpu.uuid.clone(),
        minor: u32::try_from(gpu.minor).unwrap_or_default(),
        processes: if gpu.pci == pci { vec![process] } else { Vec::new() },
        ..Gpu::default()
    };
    let gpus = host.gpus.iter().map(gpu).collect();
    let topology =
        Topology { driver_version: version.into(), cuda_version: "12.2".into(), gpus, ..Topology::default() };
    let folder = host.root.join(host.layout.library_folder());
    let library = folder.join(format!("libnvidia-ml.so.{version}"));
    let built = std::env::current_exe().map(|own| own.with_file_name("libfake_nvml.so"));
    built.and_then(|built| fs::copy(built, &library)).map_err(cannot("make", &library))?;
    let beside = folder.join(BESIDE);
    let text = serde_json::to_vec(&topology).map_err(cannot("write", &beside))?;
    fs::write(&beside, text).map_err(cannot("write", &beside))
}

fn link(target: &Path, at: &Path) -> Result<()> {
    let parent = at.parent().map_or(Ok(()), fs::create_dir_all);
    parent.and_then(|()| symlink(target, at)).map_err(cannot("link", at))
}

fn cannot<C: std::fmt::Display>(what: &str, path: &Path) -> impl FnOnce(C) -> Error {
    let asked = format!("cannot {what} {}", path.display());
    move |why| Error::new(format!("{asked}: {why}"))
}
