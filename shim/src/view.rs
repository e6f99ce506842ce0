//! The linker view for one image: reads what kind of image it is through an in-root handle, places the libraries, and says
//! what becomes of the image's `ld.so.cache`.
//!
//! Only [`Cache::write`] changes anything, and it changes one file.

use std::path::{Path, PathBuf};

use contract::json::Node;
use contract::{Code, Contract, Note, Refusal};
use linker::cache::{self, Entry};
use linker::elf::{Class, EM_AARCH64, EM_X86_64};
use linker::image::{self, Image, MAX_LOADER_BYTES};
use linker::view::View;
use node::InRoot;

use crate::carried;
use crate::profile;
use crate::targets::refuse_covered;

/// Where the libraries go.
pub(crate) struct Placed {
    /// Host file and container path of each read-only bind.
    pub(crate) binds: Vec<(String, String)>,
    /// What `ldconfig -p` will list, where that is to be changed.
    pub(crate) cache: Option<Cache>,
    /// What is worth knowing.
    pub(crate) notes: Vec<Note>,
}

/// The image's cache with the libraries in it, and where it goes.
pub(crate) struct Cache {
    bytes: Vec<u8>,
    /// A file in the bundle, bound where nothing can be replaced; otherwise it goes into the container's writable layer.
    pub(crate) bound: Option<PathBuf>,
}

/// The ELF machine this runtime was built for: the driver's libraries are of the same.
pub(crate) const MACHINE: u16 = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };
pub(crate) const CACHE: &str = "/etc/ld.so.cache";
/// Its name in the bundle.
const IN_BUNDLE: &str = "quilt-gpu.ld.so.cache";

/// Places the libraries where this image's own loader searches by default, and where its cache leads it before; and the
/// driver's other files.
///
/// # Errors
/// `UNSAFE_SPEC` for a root file system in which they have no place.
pub(crate) fn place(
    root: Option<&InRoot>,
    spec: &Node<'_>,
    bundle: &Path,
    contract: &Contract,
) -> Result<Placed, Refusal> {
    let libraries = &contract.libraries;
    let compat32 = libraries.iter().any(|l| l.bits == 32);
    let mut image = root.map_or(Image::NoLoader, |root| Image::identify(MACHINE, compat32, |path| loader(root, path)));
    let mut notes = Vec::new();
    let old = root.filter(|_| matches!(image, Image::Glibc { .. })).and_then(|root| old_cache(root, &mut notes));
    let entries = old.as_deref().and_then(|bytes| sound(bytes, &mut notes)).unwrap_or_default();
    let frozen = root.is_some_and(InRoot::is_frozen);
    if frozen {
        if entries.is_empty() || !has_dev(spec) {
            return Err(refuse_frozen());
        }
        image = linker::view::frozen();
        let message =
            "a read-only file system: the driver's programs and data come only where the image has their places";
        notes.push(Note::new("root-frozen", "/root/path", message));
    }
    let wanted: Vec<linker::view::Library<'_>> = libraries
        .iter()
        .map(|l| linker::view::Library {
            host_path: &l.host_path,
            soname: Some(&l.soname),
            class: if l.bits == 32 { Class::Elf32 } else { Class::Elf64 },
        })
        .collect();
    let view = linker::view::plan(&image, &wanted, |folder| root.is_some_and(|root| root.is_dir(Path::new(folder))));
    notes.extend(view.notes.iter().map(|n| Note::new(n.code, "/root/path", n.message.clone())));
    let mut binds: Vec<(String, String)> = view.binds.iter().map(bind).collect();
    let ours = ours(&view, frozen);
    if let Some(root) = root {
        binds.extend(covering(root, spec, &view, &entries, &ours));
        notes.extend(carried::told(root, &view.folder, &entries, &ours));
    }
    let bytes = old.as_deref().filter(|_| !entries.is_empty()).and_then(|old| cache::with(old, &ours).ok().flatten());
    let read_only = spec.path(&["root", "readonly"]).and_then(Node::as_bool).unwrap_or(false);
    let bound = (frozen || read_only).then(|| bundle.join(IN_BUNDLE));
    // A volume over /etc has a cache of its own, or none.
    let has_place = |_: &Vec<u8>| frozen || bound.is_none() || refuse_covered(spec, root, &[CACHE], &[]).is_ok();
    let cache = bytes.filter(has_place).map(|bytes| Cache { bytes, bound });
    let files = contract.files.iter().filter(|file| match root.filter(|_| frozen) {
        Some(root) => root.exists(Path::new(&file.path)),
        None => true,
    });
    binds.extend(files.map(|file| (file.host_path.clone(), file.path.clone())));
    Ok(Placed { binds, cache, notes })
}

/// What tells about a loader: its constants, a fifth of the file, where these name folders; otherwise all of it.
fn loader(root: &InRoot, path: &str) -> Option<Vec<u8>> {
    let path = Path::new(path);
    let constants = root.read_part(path, image::constants).ok()?;
    constants
        .filter(|bytes| !image::default_folders(bytes).is_empty())
        .or_else(|| root.read(path, MAX_LOADER_BYTES).ok())
}

fn bind(bind: &linker::view::Bind<'_>) -> (String, String) {
    (bind.host_path.to_owned(), bind.container_path.clone())
}

/// The image's cache; nothing where there is none.
pub(crate) fn old_cache(root: &InRoot, notes: &mut Vec<Note>) -> Option<Vec<u8>> {
    match root.read(Path::new(CACHE), cache::MAX_BYTES) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            if !error.is_missing() {
                notes.push(Note::new("ld-cache", "/root/path", format!("left as it is: {error}")));
            }
            None
        }
    }
}

pub(crate) fn sound<'b>(bytes: &'b [u8], notes: &mut Vec<Note>) -> Option<Vec<Entry<'b>>> {
    let told = cache::parse(bytes);
    told.map_err(|error| notes.push(Note::new("ld-cache", "/root/path", format!("{CACHE} is left as it is: {error}"))))
        .ok()
}

/// What is to be listed of a view; where only the cache leads to the libraries, plain names too.
pub(crate) fn ours<'v>(view: &'v View<'_>, plain: bool) -> Vec<Entry<'v>> {
    let wide = cache::flags(MACHINE, Class::Elf64);
    let narrow = cache::flags(MACHINE, Class::Elf32);
    wide.map(|wide| view.entries([wide, narrow.unwrap_or(wide)], plain)).unwrap_or_default()
}

/// Binds over the image's own files of the same names. One that lies in a volume is the tenant's and stays.
fn covering(
    root: &InRoot,
    spec: &Node<'_>,
    view: &View<'_>,
    entries: &[Entry<'_>],
    ours: &[Entry<'_>],
) -> Vec<(String, String)> {
    let found = view.covering(entries, ours, |folder| root.folder(Path::new(folder)));
    let sound = |path: &str| root.is_file(Path::new(path)) && refuse_covered(spec, Some(root), &[path], &[]).is_ok();
    found.iter().filter(|one| sound(&one.container_path)).map(bind).collect()
}

/// Whether the runtime makes a file system of its own for nodes, where mount points can be made.
fn has_dev(spec: &Node<'_>) -> bool {
    let mounts = spec.get("mounts").map(Node::items).unwrap_or_default();
    let text = |mount: &Node<'_>, key| mount.get(key).and_then(Node::as_str).map(str::to_owned);
    mounts.iter().any(|mount| {
        text(mount, "destination").as_deref() == Some("/dev") && text(mount, "type").as_deref() == Some("tmpfs")
    })
}

fn refuse_frozen() -> Refusal {
    let message = "the root file system lies on a read-only file system, where the driver's libraries have no place";
    let help = "give the container a writable layer (its root may still be read-only), or an image with glibc and a sound \
                /etc/ld.so.cache";
    Refusal::new(Code::UnsafeSpec, "root-frozen", message, help).at("/root/path", "")
}

impl Cache {
    /// Puts it where it goes. The note says what was done, or why not: programs find the libraries without it.
    ///
    /// # Errors
    /// The file that is bound cannot be written.
    pub(crate) fn write(&self, spec: &Node<'_>, bundle: &Path) -> Result<Note, Refusal> {
        if let Some(bound) = &self.bound {
            beside(bound, &self.bytes, spec).map_err(|e| Refusal::internal("ld-cache-write", &e))?;
            return Ok(note(format!(
                "{CACHE} is covered by one with the driver's libraries in it: the root is read-only"
            )));
        }
        let root = crate::bundle::rootfs(spec, bundle).ok_or_else(|| "no root".to_owned());
        let done = root.and_then(|root| {
            InRoot::open(&root).and_then(|root| root.replace(Path::new(CACHE), &self.bytes)).map_err(|e| e.to_string())
        });
        Ok(note(match done {
            Ok(()) => format!("{CACHE} in the container's writable layer now lists the driver's libraries"),
            Err(error) => format!("`ldconfig -p` does not list the driver's libraries: {error}"),
        }))
    }
}

fn note(message: String) -> Note {
    Note::new("ld-cache", "/root/path", message)
}

/// A file of ours beside a `config.json`, with the SELinux label that the spec names for files of this container.
///
/// # Errors
/// It cannot be written.
pub(crate) fn beside(file: &Path, bytes: &[u8], spec: &Node<'_>) -> Result<(), node::NodeError> {
    let label = spec.path(&["linux", "mountLabel"]).and_then(Node::as_str).filter(|label| !label.is_empty());
    node::write_atomic(file, bytes, node::Mode::root(0o644), false)?;
    label.map_or(Ok(()), |label| node::label(file, label))
}

/// Removes what was written beside a `config.json`. Nothing may be there.
pub(crate) fn forget(bundle: &Path) {
    for name in [IN_BUNDLE, profile::IN_BUNDLE] {
        let _ = std::fs::remove_file(bundle.join(name));
    }
}
