//! What a create changes and runs, by its system calls, in every kind of image: the bundle, our own folders and one file in the
//! container's writable layer; nothing but the low-level runtime.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::{Bundle, Error, Layout, Result, Scratch, Spec, Trace, must, root_for, run, strace};
use serde_json::{Value, json};

use crate::Node;
use crate::made::{Image, Programs};

const ALL: &str = "compute,utility,graphics,video,display";
const CACHE: &str = "etc/ld.so.cache";
/// Kinds of images, and what changes in their own files.
const IMAGES: [(&str, Option<&str>); 8] = [
    ("debian", Some(CACHE)),
    ("debian, no cache", None),
    ("lib64", Some(CACHE)),
    ("distroless", None),
    ("musl", None),
    ("older driver", Some(CACHE)),
    // Of both the cache is a file of the bundle.
    ("read-only", None),
    ("on a read-only file system", None),
];

/// Ours beside the bundle.
fn own(node: &Node) -> [PathBuf; 2] {
    [node.site.quilt.state(), node.site.quilt.folder.join("log")]
}

/// Whatever was changed is one of ours, the bundle's, or the file in the image that may be.
fn changes(node: &Node, bundle: &Path, root: &Path, seen: &Trace, cache: Option<&str>) -> Result<()> {
    let folder = cache.map(|cache| root.join(cache)).and_then(|file| Some(file.parent()?.to_owned()));
    let temporary = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(".quilt-gpu.") || root.join(CACHE) == path
    };
    let known = |path: &str| {
        let path = Path::new(path);
        match path.starts_with(root) {
            true => folder.as_deref() == Some(path) || folder.as_deref() == path.parent() && temporary(path),
            false => {
                path == Path::new("/dev/null")
                    || path.starts_with(bundle)
                    || own(node).iter().any(|own| path.starts_with(own))
            }
        }
    };
    let others: Vec<&String> = seen.changed.iter().filter(|path| !known(path)).collect();
    must(others.is_empty(), format_args!("changed, and not its own: {others:?}"))?;
    let file = root.join(CACHE).display().to_string();
    must(seen.changed.contains(&file) == cache.is_some(), format_args!("{file}: {:?}", seen.changed))
}

fn create(node: &Node, image: &Image, id: &str, cache: Option<&str>) -> Result<()> {
    let volume = node.site.join(format!("volume-{id}"));
    fs::create_dir(&volume).map_err(failed)?;
    let group = node.site.folder().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let spec = Spec::new()
        .env("QUILT_GPU_COUNT", "1")
        .env("QUILT_GPU_CAPABILITIES", ALL)
        .bind(&volume, "/data", &["rshared"])
        .cgroup(&format!("/{group}-{id}"))
        .args(["/usr/bin/quilt-probe"]);
    let bundle = Bundle::new(node.site.join(id), &image.spec(spec), &image.rootfs)?;
    fs::create_dir_all(bundle.path.join("rootfs/data")).map_err(failed)?;
    let frozen = image.ready(&bundle)?;
    let (before, trace) = (mounts(node)?, node.site.join(format!("trace-{id}")));
    let mut plain = node.runc.command(id);
    plain.arg("create").arg("--bundle").arg(&bundle.path).arg(id);
    run(&mut strace(&plain, &trace), None, Duration::from_secs(60))?.checked()?;
    let after = mounts(node)?;
    node.runc.delete(id, true)?.checked()?;
    let seen = Trace::read(&fs::read_to_string(&trace).map_err(failed)?);
    changes(node, &bundle.path, &bundle.path.join("rootfs"), &seen, cache)?;
    let config = bundle.config().display().to_string();
    must(seen.changed.contains(&config), format_args!("{config}: {:?}", seen.changed))?;
    let is_known = |call: &String| call.contains("quilt-gpu-runtime\"") || call.contains("\"/usr/sbin/runc\"");
    must(seen.programs.len() == 2 && seen.programs.iter().all(is_known), format_args!("{:?}", seen.programs))?;
    must(after == before, format_args!("a mount was left on the node: {after:?}"))?;
    must(fs::read_dir(&volume).map_err(failed)?.next().is_none(), "a file was left in a volume")?;
    must(!bundle.path.join("quilt-gpu.ld.so.cache").exists(), "a file was left in the bundle")?;
    // What the container changed in its layer, and what it was given, stands in the record.
    let audit = node.site.quilt.audit();
    let entry = audit.iter().find(|entry| entry["kind"] == "create" && entry["container"] == id);
    let entry = entry.ok_or_else(|| Error::new("no record"))?;
    let told = entry["notes"].to_string().contains("/etc/ld.so.cache in the container's writable layer");
    must(told == cache.is_some(), entry)?;
    drop(frozen);
    must(entry["edits"].to_string().contains("libcuda.so.1"), entry)
}

/// D12: no ldconfig runs either, the node's or the image's, under any of its names.
#[test]
fn a_create_changes_nothing_but_its_own_in_every_image() -> Result<()> {
    every_image("a_create_changes_nothing_but_its_own_in_every_image", |workshop, node, at, name, programs, cache| {
        let image = Image::make(name, workshop.join(format!("image-{at}")), programs)?;
        create(node, &image, &format!("traced-{at}"), cache)
    })
}

/// `precreate` writes no spec of its own and starts no runtime: it changes our folders and the same file, and runs nothing.
#[test]
fn the_hook_changes_nothing_but_its_own_in_every_image() -> Result<()> {
    every_image("the_hook_changes_nothing_but_its_own_in_every_image", |_, node, at, name, programs, cache| {
        // As Podman's storage has it.
        let image = Image::make(name, node.site.join(format!("overlay/{at}/merged")), programs)?;
        precreate(node, &image, at, cache)
    })
}

/// Tries each image on one node: where images may lie, the node, the image's place among them and its name, and the file that
/// changes in it.
fn every_image(
    test: &str,
    one: impl Fn(&Scratch, &Node, usize, &str, &Programs, Option<&str>) -> Result<()>,
) -> Result<()> {
    if !root_for(test) {
        return Ok(());
    }
    let workshop = Scratch::new()?;
    let programs = Programs::make(workshop.path())?;
    let node = Node::new(Layout::Debian, ALL, None)?;
    node.site.quilt.cli(&["inventory", "refresh"])?.checked()?;
    let mut wrong = Vec::new();
    for (at, (name, cache)) in IMAGES.into_iter().enumerate() {
        wrong.extend(one(&workshop, &node, at, name, &programs, cache).err().map(|why| format!("{name}: {why}")));
    }
    must(wrong.is_empty(), wrong.join("\n"))
}

fn precreate(node: &Node, image: &Image, at: usize, cache: Option<&str>) -> Result<()> {
    let id = format!("{at}c").repeat(32);
    let spec = Spec::new().env("QUILT_GPU_COUNT", "1").env("QUILT_GPU_CAPABILITIES", ALL);
    let mut spec = image.spec(spec.cgroup(&format!("/traced/libpod-{id}"))).json().clone();
    let bundle = node.site.join("overlay-containers").join(&id).join("userdata");
    fs::create_dir_all(&bundle).map_err(failed)?;
    let root = &image.rootfs.path;
    spec["root"]["path"] = root.to_string_lossy().into();
    let hook = node.site.quilt.hook();
    let watches = json!({"path": hook, "args": ["quilt-gpu-hook", "createRuntime"], "env": ["A=b"]});
    spec["hooks"] = json!({"createRuntime": [watches]});
    let (input, trace) = (node.site.join(format!("{id}.json")), node.site.join(format!("trace-{id}")));
    fs::write(&input, spec.to_string()).map_err(failed)?;
    let mut plain = Command::new(hook);
    plain.args(["precreate", "--config"]).arg(node.site.quilt.config());
    let frozen = image.freeze(root)?;
    let stdin = fs::File::open(&input).map_err(failed)?;
    let ran = run(&mut strace(&plain, &trace), Some(stdin), Duration::from_secs(60))?.checked()?;
    drop(frozen);
    let seen = Trace::read(&fs::read_to_string(&trace).map_err(failed)?);
    changes(node, &bundle, root, &seen, cache)?;
    must(seen.programs.len() == 1, format_args!("{:?}", seen.programs))?;
    let told: Value = serde_json::from_str(&ran.stdout).map_err(|e| Error::new(e.to_string()))?;
    must(told["mounts"].to_string().contains("libcuda.so.1"), &ran.stdout)?;
    node.site.wait_no_leases()
}

/// The node's mounts below this test's folder: others mount at the same time.
fn mounts(node: &Node) -> Result<Vec<String>> {
    let own = node.site.folder().display().to_string();
    let table = fs::read_to_string("/proc/self/mountinfo").map_err(failed)?;
    Ok(table.lines().filter(|line| line.contains(&own)).map(str::to_owned).collect())
}

fn failed(cause: std::io::Error) -> Error {
    Error::new(cause.to_string())
}
