//! The scenes whose counts are held to a file, and that file.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use integration::{Binaries, Error, Result, Rootfs, Spec};
use serde_json::json;

use crate::contests::cut;
use crate::count::{Counts, count};
use crate::scene::{Node, Scene, Verb, failed};

/// How much more than in the file passes: what a process number or the machine's mounts make of it.
const PER_CENT: u64 = 3;
const CALLS: u64 = 4;

/// One line of the file: a scene, or the size of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The scene's name.
    pub name: String,
    /// What it took.
    pub counts: Counts,
}

/// The file.
#[must_use]
pub fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("figures.txt")
}

/// What stands in the file.
///
/// # Errors
/// It cannot be read, or a line is none.
pub fn known() -> Result<(u64, Vec<Figure>)> {
    let path = file();
    let text = fs::read_to_string(&path).map_err(|e| failed("read", &path, &e))?;
    let mut size = 0;
    let mut figures = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let odd = || Error::new(format!("{}: no figure: {line}", path.display()));
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).ok_or_else(odd);
        match words.first() {
            Some(&"bytes") => size = number(1)?,
            Some(name) => figures.push(Figure {
                name: (*name).to_owned(),
                counts: Counts { calls: number(1)?, failed: number(2)?, instructions: number(3)? },
            }),
            None => {}
        }
    }
    Ok((size, figures))
}

/// Whether the runtime is linked as the one in the file: the other C library reads an environment variable of its own name.
///
/// # Errors
/// The program is not there.
pub fn is_linked_with_musl() -> Result<bool> {
    let runtime = Binaries::locate()?.runtime;
    let program = fs::read(&runtime).map_err(|e| failed("read", &runtime, &e))?;
    let mark = b"GLIBC_TUNABLES";
    Ok(!program.windows(mark.len()).any(|bytes| bytes == mark))
}

/// What is so now: the program's size in bytes, and the scenes.
///
/// # Errors
/// As [`count`].
pub fn measured() -> Result<(u64, Vec<Figure>)> {
    let runtime = Binaries::locate()?.runtime;
    let size = fs::metadata(&runtime).map_err(|e| failed("look at", &runtime, &e))?.len();
    let mut figures = Vec::new();
    each(|scene| {
        figures.push(Figure { name: scene.name.clone(), counts: count(scene)? });
        Ok(())
    })?;
    Ok((size, figures))
}

/// The file's text.
#[must_use]
pub fn text(size: u64, figures: &[Figure]) -> String {
    let mut text = String::from(
        "# What calls of quilt-gpu-runtime cost, linked with musl, over stand-ins of the driver on a node\n\
         # with 1 GPU (8, 16); make test fails on more.\n\
         # QUILT_FIGURES=write cargo test -p bench writes this file anew. Instructions 0: not counted, since valgrind\n\
         # knows no openat2 and so sees no image and no source of a mount.\n\
         # scene               calls  failed  instructions\n",
    );
    for Figure { name, counts: Counts { calls, failed, instructions } } in figures {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<20} {calls:>6} {failed:>7} {instructions:>13}");
    }
    let _ = writeln!(text, "{:<20} {size:>6}", "bytes");
    text
}

/// What is worse than before, as sentences; a scene that is not in both is, too.
#[must_use]
pub fn worse(before: &(u64, Vec<Figure>), now: &(u64, Vec<Figure>)) -> Vec<String> {
    let most = |before: u64, more: u64| before + before * PER_CENT / 100 + more;
    let mut worse = Vec::new();
    if now.0 > most(before.0, 0) {
        worse.push(format!("the program has {} bytes, had {}", now.0, before.0));
    }
    for Figure { name, counts } in &now.1 {
        let Some(known) = before.1.iter().find(|figure| figure.name == *name).map(|figure| figure.counts) else {
            worse.push(format!("{name} is not in the file"));
            continue;
        };
        if counts.calls > most(known.calls, CALLS) {
            worse.push(format!("{name}: {} system calls, were {}", counts.calls, known.calls));
        }
        if counts.instructions > most(known.instructions, 0) {
            worse.push(format!("{name}: {} instructions, were {}", counts.instructions, known.instructions));
        }
    }
    let gone = before.1.iter().filter(|figure| now.1.iter().all(|other| other.name != figure.name));
    worse.extend(gone.map(|figure| format!("{} was not counted", figure.name)));
    worse
}

/// Calls `act` with every scene that is counted.
///
/// # Errors
/// What `act` says, or a scene that cannot be made.
pub fn each(mut act: impl FnMut(&Scene<'_>) -> Result<()>) -> Result<()> {
    let plain = Spec::new();
    let asks = |count: u32| Spec::new().env("QUILT_GPU_COUNT", &count.to_string());
    let (node, eight) = (Node::new(|host| host.gpus(1))?, Node::new(|host| host.gpus(8))?);
    let image = Rootfs::debian_like(node.join("image"), "/bin/cat".as_ref())?;
    let scenes = [
        ("state", Verb::State, plain.clone(), None),
        ("exec", Verb::Exec, plain.clone(), None),
        ("exec-gpu", Verb::Exec, asks(1), None),
        ("delete", Verb::Delete, plain.clone(), None),
        ("delete-gpu", Verb::Delete, asks(1), None),
        ("create", Verb::Create, plain.clone(), None),
        ("create-void", Verb::Create, plain.clone().env("NVIDIA_VISIBLE_DEVICES", "all"), None),
        ("create-1", Verb::Create, asks(1), None),
        ("create-1-view", Verb::Create, asks(1), Some(&image)),
        ("create-1-binds-1000", Verb::Create, with_binds(asks(1), &image), Some(&image)),
        ("create-1-mounts-1000", Verb::Create, with_mounts(asks(1)), None),
    ];
    for (name, verb, spec, rootfs) in scenes {
        act(&node.scene(name, verb, &spec, rootfs)?)?;
    }
    for (name, count, rootfs) in [("create-1-of-8", 1, None), ("create-8", 8, None), ("create-8-view", 8, Some(&image))]
    {
        act(&eight.scene(name, Verb::Create, &asks(count), rootfs)?)?;
    }
    let (full, free) = full()?;
    act(&full.scene("create-last-of-112", Verb::Create, &free, None)?.beside_others())
}

/// A node of 112 MIG instances, all but one held by containers, and what asks for that one.
///
/// # Errors
/// As [`Node::new`].
pub fn full() -> Result<(Node, Spec)> {
    let node = Node::new(|host| host.gpus(16))?;
    let instances = cut(&node, 7)?;
    let (free, held) = instances.split_last().ok_or_else(|| Error::new("no instance was made"))?;
    node.hold(held.iter().cloned(), 0)?;
    Ok((node, Spec::new().env("QUILT_GPU_IDS", free)))
}

/// A thousand binds of one folder: what lies behind each is looked at.
fn with_binds(spec: Spec, image: &Rootfs) -> Spec {
    (0..1000).fold(spec, |spec, n| spec.bind(&image.path.join("tmp"), &format!("/volumes/{n}"), &["ro"]))
}

/// A thousand mounts behind which nothing lies.
pub(crate) fn with_mounts(spec: Spec) -> Spec {
    (0..1000).fold(spec, |spec, n| {
        let options = ["nosuid", "nodev", "size=64k"];
        let at = format!("/scratch/{n}");
        spec.mount(json!({"destination": at, "type": "tmpfs", "source": "tmpfs", "options": options}))
    })
}
