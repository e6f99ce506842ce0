//! Crafted images (D41, CVE-2024-0132, CVE-2025-23267): every place that something of ours goes to or is read from, and every
//! folder above it, times everything that an image can put there. Nothing on the node changes, no mount leads out, and the
//! container is made or refused.
//!
//! All of them under a low-level runtime that makes nothing, so that what is seen is ours; every so many under runc.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use integration::{Bundle, Error, QuiltOptions, Result, Rootfs, Runc, Site, Spec, must, root_for, run, say};

use crate::made::{Image, Programs};

const ALL: &str = "compute,utility,graphics,video,display";
/// What the driver of the node describes itself with, beside libraries and programs.
const MANIFESTS: [&str; 4] = [
    "usr/share/vulkan/icd.d/nvidia_icd.json",
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "etc/OpenCL/vendors/nvidia.icd",
];
/// What is only read, or could be: of both loaders, and of the compatibility libraries.
const READ: [&str; 9] = [
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld-musl-x86_64.path",
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "/lib/ld-musl-x86_64.so.1",
    "/usr/local/cuda/compat",
    "/usr/local/cuda/compat/libcuda.so.1",
];
const KINDS: [&str; 9] = ["out", "up", "loop", "proc", "fifo", "endless", "sparse", "other kind", "racing"];
/// Every so many cells are tried under runc too; no divisor of the number of kinds, so that all kinds and places come.
const EVERY: usize = 8;
/// Generous on a crowded machine; what waits for a FIFO or reads a sparse file to its end takes longer.
const LIMIT: Duration = Duration::from_secs(20);

/// A node, and the two runtimes on it.
struct Yard {
    // First: its containers use the node.
    stub: Runc,
    real: Runc,
    site: Site,
    _real_site: Site,
    outside: PathBuf,
}

impl Yard {
    fn new() -> Result<Self> {
        let on = |low_level: &str| {
            let more = format!("[policy]\ncapabilities = \"{ALL}\"\n");
            let verify = low_level.ends_with("runc");
            let site = Site::with(
                |host| host.gpus(1),
                &QuiltOptions { verify, low_level: vec![low_level.into()], ..QuiltOptions::default() },
            )?;
            let config = site.quilt.config();
            let text = fs::read_to_string(&config).map_err(failed)?.replacen("[policy]\n", &more, 1);
            fs::write(&config, text).map_err(failed)?;
            for manifest in MANIFESTS {
                Rootfs { path: site.host.root.clone() }
                    .write(manifest, b"{\"ICD\": {\"library_path\": \"libx.so\"}}")?;
            }
            site.quilt.cli(&["inventory", "refresh"])?.checked()?;
            Ok::<_, Error>((site.quilt.runc(site.join("runc"))?, site))
        };
        let (stub, site) = on(env!("CARGO_BIN_EXE_quilt-stub"))?;
        let (real, real_site) = on("/usr/sbin/runc")?;
        let outside = site.join("outside");
        for name in ["libcuda.so.1", "nvidia-smi", "ld.so.cache", "x.conf", "lib/libcuda.so.1", "10-container.conf"] {
            Rootfs { path: outside.clone() }.write(name, b"the node's")?;
        }
        Ok(Self { stub, real, site, _real_site: real_site, outside })
    }
}

fn spec() -> Spec {
    Spec::new().env("QUILT_GPU_COUNT", "1").env("QUILT_GPU_CAPABILITIES", ALL).args(["true"])
}

/// Where an ordinary container gets something: one place of each folder, what is read, and all folders above.
fn places(yard: &Yard, image: &Rootfs) -> Result<Vec<String>> {
    let bundle = Bundle::new(yard.site.join("ordinary"), &spec(), image)?;
    yard.stub.create("ordinary", &bundle)?.checked()?;
    let document = bundle.read()?;
    yard.stub.delete("ordinary", true)?.checked()?;
    let mounts = document["mounts"].as_array().cloned().unwrap_or_default();
    let ours = mounts.iter().filter(|mount| mount["options"].to_string().contains("rprivate"));
    let mut folders = BTreeSet::new();
    let mut all: BTreeSet<String> = READ.map(str::to_owned).into();
    for path in ours.filter_map(|mount| mount["destination"].as_str()).filter(|path| !path.starts_with("/dev/")) {
        let folder = Path::new(path).parent().unwrap_or(Path::new("/")).to_owned();
        if folders.insert(folder) {
            all.insert(path.to_owned());
        }
    }
    for manifest in MANIFESTS {
        must(all.contains(&format!("/{manifest}")), format_args!("no {manifest} among {all:?}"))?;
    }
    let above: Vec<String> = (all.iter())
        .flat_map(|path| Path::new(path).ancestors().skip(1))
        .filter(|folder| folder.components().count() > 1)
        .map(|folder| folder.display().to_string())
        .collect();
    all.extend(above);
    Ok(all.into_iter().collect())
}

/// Puts something at a place of an image, in the place of what is there.
fn craft(yard: &Yard, root: &Path, place: &str, kind: &str) -> Result<()> {
    // Down to the place through folders and links of the image's own.
    let mut at = root.to_owned();
    for part in Path::new(place.trim_start_matches('/')).components() {
        if at.symlink_metadata().is_ok_and(|facts| facts.is_symlink()) {
            let link = fs::read_link(&at).map_err(failed)?;
            at = at.parent().unwrap_or(root).join(link);
        }
        let _ = fs::create_dir(&at);
        at.push(part);
    }
    let was_folder = at.is_dir();
    let aside = at.with_extension("was");
    let there = fs::rename(&at, &aside).is_ok();
    let outside = yard.outside.display().to_string();
    // The same end: a folder's or a file's, as is looked for.
    let target = if was_folder { outside } else { format!("{outside}/libcuda.so.1") };
    match kind {
        "out" => symlink(&target, &at).map_err(failed),
        "up" => symlink(format!("{}{}", "../".repeat(40), target.trim_start_matches('/')), &at).map_err(failed),
        "proc" => symlink(format!("/proc/self/root{target}"), &at).map_err(failed),
        "loop" => symlink(at.file_name().unwrap_or_default(), &at).map_err(failed),
        "fifo" => tool(Command::new("mkfifo").arg(&at)),
        // It never ends, and gives nothing but zeros.
        "endless" => tool(Command::new("mknod").arg(&at).args(["c", "1", "5"])),
        "sparse" => File::create(&at).and_then(|file| file.set_len(64 << 30)).map_err(failed),
        "other kind" if was_folder => fs::write(&at, "no folder").map_err(failed),
        "other kind" => fs::create_dir(&at).map_err(failed),
        // Both at once, one after the other.
        _ => {
            symlink(&target, at.with_extension("other")).map_err(failed)?;
            if there { fs::rename(&aside, &at).map_err(failed) } else { File::create(&at).map(drop).map_err(failed) }
        }
    }
}

/// Exchanges a place and a link out while something is done.
fn racing<T>(root: &Path, place: &str, work: impl FnOnce() -> T) -> T {
    let at = root.join(place.trim_start_matches('/'));
    let (other, spare) = (at.with_extension("other"), at.with_extension("spare"));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let _ = fs::rename(&at, &spare).and_then(|()| fs::rename(&other, &at));
                let _ = fs::rename(&spare, &other);
            }
        });
        let done = work();
        ends.store(true, Ordering::Relaxed);
        done
    })
}

/// One cell: whether a container came to be, and how long that took.
fn cell(yard: &Yard, runc: &Runc, image: &Rootfs, id: &str, place: &str, kind: &str) -> Result<(bool, Duration)> {
    let group = yard.site.folder().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let bundle = Bundle::sharing(yard.site.join(id), &spec().cgroup(&format!("/{group}-{id}")), image)?;
    let root = yard.site.join(id).join("image");
    tool(Command::new("cp").arg("-al").arg(&image.path).arg(&root))?;
    let text = fs::read_to_string(bundle.config()).map_err(failed)?;
    fs::write(bundle.config(), text.replace(&*image.path.to_string_lossy(), &root.to_string_lossy()))
        .map_err(failed)?;
    craft(yard, &root, place, kind)?;
    let before = (tree(&yard.outside), mounts(&yard.outside)?);
    let begun = Instant::now();
    let create = || runc.create(id, &bundle);
    let ran = if kind == "racing" { racing(&root, place, create) } else { create() }?;
    let took = begun.elapsed();
    let now = (tree(&yard.outside), mounts(&yard.outside)?);
    must(now == before, format_args!("the node changed: {before:?}, now {now:?}"))?;
    must(took < LIMIT, format_args!("it took {took:?}"))?;
    must(ran.ok() || !ran.stderr.is_empty(), "it is refused without a word")?;
    let document = bundle.read()?;
    for mount in document["mounts"].as_array().into_iter().flatten() {
        let (from, to) = (mount["source"].as_str().unwrap_or("/"), mount["destination"].as_str().unwrap_or_default());
        let is_plain = Path::new(to).components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        must(is_plain && !Path::new(from).starts_with(&yard.outside), format_args!("{mount}"))?;
    }
    if ran.ok() {
        runc.delete(id, true)?.checked()?;
    }
    fs::remove_dir_all(yard.site.join(id)).map_err(failed)?;
    Ok((ran.ok(), took))
}

#[test]
fn d41_no_crafted_image_leads_out_or_keeps_anybody() -> Result<()> {
    if !root_for("d41_no_crafted_image_leads_out_or_keeps_anybody") {
        return Ok(());
    }
    let workshop = integration::Scratch::new()?;
    let programs = Programs::make(workshop.path())?;
    let yard = Yard::new()?;
    let images = ["compatibility libraries", "musl"].map(|name| Image::make(name, yard.site.join(name), &programs));
    let [Ok(glibc), Ok(musl)] = images else { return Err(Error::new("an image cannot be made")) };
    let places = places(&yard, &glibc.rootfs)?;
    let (mut tried, mut made, mut real, mut really, mut slowest) = (0, 0, 0, 0, Duration::ZERO);
    let mut wrong = Vec::new();
    for place in &places {
        let image = if place.contains("musl") { &musl } else { &glibc };
        for kind in KINDS {
            let named = |why: Error| format!("{kind} at {place}: {why}");
            let id = format!("crafted-{tried}");
            match cell(&yard, &yard.stub, &image.rootfs, &id, place, kind) {
                Ok((is_made, took)) => (made, slowest) = (made + usize::from(is_made), slowest.max(took)),
                Err(why) => wrong.push(named(why)),
            }
            if tried % EVERY == 0 {
                real += 1;
                match cell(&yard, &yard.real, &image.rootfs, &format!("{id}-runc"), place, kind) {
                    Ok((is_made, _)) => really += usize::from(is_made),
                    Err(why) => wrong.push(format!("runc, {}", named(why))),
                }
            }
            tried += 1;
        }
    }
    let places = places.len();
    say(format_args!(
        "crafted images: {tried} cells, {places} places, {made} made, the slowest in {slowest:?}; runc made {really} of {real}"
    ));
    must(made > tried / 2, "hardly any container could be made")?;
    must(wrong.is_empty(), wrong.join("\n"))
}

/// Every file below a folder, with what would tell a change.
fn tree(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, Ok(facts)) = (entry.path(), entry.metadata()) else { continue };
        let kind = (facts.is_dir(), facts.is_symlink(), facts.file_type().is_fifo());
        all.push(format!("{} {kind:?} {} {} {}", path.display(), facts.mode(), facts.len(), facts.ctime_nsec()));
        if facts.is_dir() {
            all.extend(tree(&path));
        }
    }
    all.sort();
    all
}

/// The node's mounts that have to do with a folder.
fn mounts(folder: &Path) -> Result<Vec<String>> {
    let own = folder.display().to_string();
    let table = fs::read_to_string("/proc/self/mountinfo").map_err(failed)?;
    Ok(table.lines().filter(|line| line.contains(&own)).map(str::to_owned).collect())
}

fn tool(command: &mut Command) -> Result<()> {
    run(command, None, Duration::from_secs(60))?.checked().map(drop)
}

fn failed(cause: std::io::Error) -> Error {
    Error::new(cause.to_string())
}
