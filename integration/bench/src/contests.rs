//! Who is timed against whom.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use integration::{Error, Fleet, QuiltOptions, Result, Rootfs, Site, Spec, run};
use serde_json::Value;

use crate::count;
use crate::figures;
use crate::peer::{self, FLOOR, FLOOR_ALIKE, Nvidia};
use crate::race::{Entrant, Race, race};
use crate::scene::{ID, LowLevel, Node, Scene, Verb};

/// Where libraries go in the image of these contests.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

fn asks(count: u32) -> Spec {
    Spec::new().env("QUILT_GPU_COUNT", &count.to_string())
}

/// The same spec as the peer understands it.
fn asks_peer() -> Spec {
    Spec::new().env("NVIDIA_VISIBLE_DEVICES", "0")
}

/// What quilt-gpu made of this scene's spec.
fn edited(scene: &Scene<'_>) -> Result<(Value, Value)> {
    let before = scene.bundle.read()?;
    run(&mut scene.command(), None, Duration::from_secs(20))?.checked()?;
    Ok((before, scene.bundle.read()?))
}

fn own<'a>(name: &str, scene: &'a Scene<'_>) -> Entrant<'a> {
    Entrant::new(name, || scene.command()).before(|| scene.reset())
}

/// The wrappers alone: what stands for the low-level runtime ends at once.
///
/// # Errors
/// A start fails.
pub fn alone(rounds: usize) -> Result<Race> {
    let (node, eight) = (Node::new(|host| host.gpus(1))?, Node::new(|host| host.gpus(8))?);
    node.end_with(LowLevel::Ends)?;
    let image = Rootfs::debian_like(node.join("image"), "/bin/cat".as_ref())?;
    let plain = Spec::new();
    let scene = |name: &str, verb, spec: &Spec| node.scene(name, verb, spec, Some(&image));
    let (state, kill, exec) =
        (scene("state", Verb::State, &plain)?, scene("kill", Verb::Kill, &plain)?, scene("exec", Verb::Exec, &plain)?);
    let (delete, create) = (scene("delete", Verb::Delete, &plain)?, scene("create", Verb::Create, &plain)?);
    let delete_gpu = scene("delete-gpu", Verb::Delete, &asks(1))?;
    let void = scene("void", Verb::Create, &plain.clone().env("NVIDIA_VISIBLE_DEVICES", "all"))?;
    let one = scene("one", Verb::Create, &asks(1))?;
    let all = eight.scene("eight", Verb::Create, &asks(8), Some(&image))?;
    let (before, after) = edited(&one)?;
    let document = peer::document(&before, &after, &node.host.root.join("dev"));
    let path = node.join("floor.json");
    peer::write(&path, &document)?;
    let (full, free) = figures::full()?;
    let last = full.scene("last", Verb::Create, &free, Some(&image))?.beside_others();
    let mounts = |spec: Spec| figures::with_mounts(spec);
    let thousand = scene("thousand", Verb::Create, &mounts(asks(1)))?;
    let asking_thousand = scene("peer-thousand", Verb::Create, &mounts(asks_peer()))?;
    let floored = scene("floor", Verb::Create, &plain)?;
    let floor = |name: &str, program: &'static str| {
        let (floored, path) = (&floored, &path);
        Entrant::new(name, move || peer::floor(program, floored, Verb::Create, path)).before(|| floored.put_back())
    };
    let nothing = |name: &str| Entrant::new(name, || state.by(&node.low_level, Verb::State));
    let (asking, folder) = (scene("peer", Verb::Create, &asks_peer())?, node.join("peer-files"));
    let nvidia = Nvidia::given();
    let mut entrants = vec![
        nothing("no wrapper"),
        nothing("no wrapper (A/A)"),
        floor("static floor, create", FLOOR),
        floor("static floor, create (A/A)", FLOOR),
        floor("static floor linked as the runtime, create", FLOOR_ALIKE),
        Entrant::new("static floor, state", || peer::floor(FLOOR, &state, Verb::State, &path)),
        Entrant::new("static floor linked as the runtime, state", || {
            peer::floor(FLOOR_ALIKE, &state, Verb::State, &path)
        }),
        own("quilt-gpu state", &state),
        own("quilt-gpu kill", &kill),
        own("quilt-gpu exec, no GPU", &exec),
        own("quilt-gpu delete, no GPU", &delete),
        own("quilt-gpu delete, 1 GPU", &delete_gpu),
        own("quilt-gpu create, no GPU", &create),
        own("quilt-gpu create, image's variable to void", &void),
        own("quilt-gpu create, 1 GPU", &one),
        own("quilt-gpu create, 1 GPU (A/A)", &one),
        own("quilt-gpu create, 8 GPUs", &all),
        own(MOUNTS, &thousand),
        own(HELD, &last),
    ];
    if let Some(nvidia) = &nvidia {
        nvidia.prepare(&folder, &node.low_level, &document, LIBRARIES, false)?;
        let (create, asking, folder) = (&create, &asking, &folder);
        entrants.push(Entrant::new("NVIDIA state", move || nvidia.command(create, Verb::State, folder)));
        let plain = Entrant::new("NVIDIA create, no GPU", move || nvidia.command(create, Verb::Create, folder));
        entrants.push(plain.before(move || create.put_back()));
        let gpu = Entrant::new("NVIDIA create, 1 GPU, no hooks", move || nvidia.command(asking, Verb::Create, folder));
        entrants.push(gpu.before(move || asking.put_back()));
        let thousand = &asking_thousand;
        let mounts = Entrant::new(MOUNTS_PEER, move || nvidia.command(thousand, Verb::Create, folder));
        entrants.push(mounts.before(move || thousand.put_back()));
    }
    race(&entrants, rounds)
}

/// The entrants that budgets name and nobody else.
pub const MOUNTS: &str = "quilt-gpu create, 1 GPU, 1,000 mounts";
/// The same by the peer.
pub const MOUNTS_PEER: &str = "NVIDIA create, 1 GPU, 1,000 mounts";
/// Over a real low-level runtime: of what quilt-gpu adds, this much is being there when it has ended.
pub const WAITING: &str = "the same, static floor that waits";
/// On a node that is full but for what is asked for.
pub const HELD: &str = "quilt-gpu create, the last of 112 MIG instances";

/// Cuts each GPU of a node into so many MIG instances, and gives their names.
///
/// # Errors
/// An instance cannot be made, or the node cannot be looked at.
pub fn cut(node: &Node, each: u64) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for gpu in &node.host.gpus {
        for part in 0..each {
            node.host.make_instance(gpu.minor, 7 + part)?;
            names.push(format!("{}:{part}", gpu.name()));
        }
    }
    node.refresh().map(|()| names)
}

/// Has a program remove the container of a scene.
///
/// # Errors
/// It fails.
pub fn removed(scene: &Scene<'_>, program: &Path) -> Result<()> {
    run(&mut scene.by(program, Verb::Delete), None, Duration::from_secs(20))?.checked().map(|_| ())
}

/// Real containers over a low-level runtime, verification on. `create` is timed, and the container removed after it.
///
/// # Errors
/// A start fails.
pub fn over(runtime: &Path, rounds: usize) -> Result<Race> {
    let node = Node::over(Some(runtime), |host| host.gpus(1))?;
    let image = Rootfs::debian_like(node.join("image"), "/bin/cat".as_ref())?;
    let scene = |name: &str, spec: &Spec| node.scene(name, Verb::Create, &spec.clone().args(["true"]), Some(&image));
    let (plain, one) = (scene("plain", &Spec::new())?, scene("one", &asks(1))?);
    let (before, after) = edited(&one)?;
    removed(&one, one.runtime())?;
    let mut ready = scene("ready", &Spec::new())?;
    ready.replace(&after)?;
    let document = peer::document(&before, &after, &node.host.root.join("dev"));
    let asking = scene("peer", &asks_peer())?;
    let folders = [("NVIDIA, 1 GPU, no hooks", false), ("NVIDIA, 1 GPU, 3 hooks", true)]
        .map(|(name, hooks)| (name, hooks, node.join(&format!("peer-{hooks}"))));
    let nvidia = Nvidia::given();
    let bare = |name: &str, scene| real(name, scene, runtime, runtime);
    let mut entrants = vec![
        bare("bare", &plain),
        bare("bare (A/A)", &plain),
        bare("the edits already in config.json", &ready),
        bare("the edits already in config.json (A/A)", &ready),
        Entrant::new(WAITING, || peer::waiting(&ready)).before(|| ready.put_back()).after(|| removed(&ready, runtime)),
        real("quilt-gpu, no GPU", &plain, plain.runtime(), plain.runtime()),
        real("quilt-gpu, 1 GPU", &one, one.runtime(), one.runtime()),
        real("quilt-gpu, 1 GPU (A/A)", &one, one.runtime(), one.runtime()),
    ];
    if let Some(nvidia) = &nvidia {
        for (name, hooks, folder) in &folders {
            nvidia.prepare(folder, runtime, &document, LIBRARIES, *hooks)?;
            let (asking, image) = (&asking, &image);
            let entrant = Entrant::new(*name, move || nvidia.command(asking, Verb::Create, folder));
            entrants.push(entrant.before(move || asking.put_back()).after(move || {
                removed(asking, runtime)?;
                Nvidia::tidy(&image.path)
            }));
        }
    }
    race(&entrants, rounds)
}

/// The trace of a create with a GPU over a low-level runtime, verification included; of our own process alone.
///
/// # Errors
/// It fails.
pub fn created_over(runtime: &Path) -> Result<String> {
    let node = Node::over(Some(runtime), |host| host.gpus(1))?;
    let image = Rootfs::debian_like(node.join("image"), "/bin/cat".as_ref())?;
    let scene = node.scene("one", Verb::Create, &asks(1).args(["true"]), Some(&image))?;
    let trace = count::traced_as_it_is(&scene)?;
    removed(&scene, scene.runtime())?;
    Ok(trace)
}

/// Created by one program, removed by another.
fn real<'a>(name: &str, scene: &'a Scene<'_>, program: &'a Path, remover: &'a Path) -> Entrant<'a> {
    Entrant::new(name, || scene.by(program, Verb::Create))
        .before(|| scene.put_back())
        .after(move || removed(scene, remover))
}

/// Sixty-four creates at one instant on eight GPUs, over a low-level runtime that only leaves a state folder: how long
/// each round took, in ms.
///
/// # Errors
/// Not eight were granted and all others refused, or a GPU was given twice.
pub fn at_once(rounds: usize) -> Result<Vec<f64>> {
    let stub = std::env::current_exe().map_err(|e| Error::new(e.to_string()))?.with_file_name("quilt-stub");
    let options = QuiltOptions { verify: false, low_level: vec![stub], ..QuiltOptions::default() };
    let site = Site::with(|host| host.gpus(8), &options)?;
    site.quilt.cli(&["inventory", "refresh"])?.checked()?;
    let rootfs = Rootfs::busybox(site.join("rootfs"))?;
    let runtime = site.quilt.runc(site.join("runtime"))?;
    let fleet = Fleet::new(runtime, &site.join("bundles"), ID, 64, &asks(1), &rootfs)?;
    let mut took = Vec::new();
    for _ in 0..rounds {
        let begin = Instant::now();
        let winners = fleet.create()?;
        took.push(begin.elapsed().as_secs_f64() * 1e3);
        if winners.len() != 8 {
            return Err(Error::new(format!("{} of 64 creates were granted one of 8 GPUs", winners.len())));
        }
        fleet.delete(&winners.values().copied().collect::<Vec<_>>())?;
    }
    Ok(took)
}

/// The first line that a program says of itself.
#[must_use]
pub fn version(program: &str) -> String {
    let ran = run(std::process::Command::new(program).arg("--version"), None, Duration::from_secs(5));
    ran.ok().and_then(|ran| ran.stdout.lines().next().map(str::to_owned)).unwrap_or_else(|| "not there".to_owned())
}

/// Whether more processes want to run than there are processors, on the average of the last minute.
#[must_use]
pub fn crowded() -> bool {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    load.split(' ').next().and_then(|load| load.parse().ok()).is_some_and(|load: f64| load > processors as f64)
}

/// What this machine is.
#[must_use]
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let models: Vec<&str> =
        info.lines().filter_map(|line| line.strip_prefix("model name")?.split(": ").nth(1)).collect();
    let kernel = read("/proc/sys/kernel/osrelease");
    let guest = if info.contains(" hypervisor ") { ", a virtual machine" } else { "" };
    let load = read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned();
    let model = models.first().copied().unwrap_or("processor of unknown model");
    format!("{} × {model}{guest}, Linux {}; load at the beginning {load}", models.len(), kernel.trim())
}
