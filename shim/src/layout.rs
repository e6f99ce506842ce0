//! What an image's layout lacks to find libraries that a CDI file bound, as a `createContainer` hook of that file: links where
//! its loader searches, and its `ld.so.cache`.
//!
//! Grants nothing, executes nothing and follows nothing: the libraries are in the container already. What is there stays, no
//! volume is written to, and a container whose root cannot be changed starts all the same.

use std::io::Read;
use std::path::{Path, PathBuf};

use contract::{Note, Refusal, json};
use linker::cache;
use linker::elf::Class;
use linker::image::{Image, MAX_LOADER_BYTES};
use linker::view::{self, Library};
use node::InRoot;

use crate::bundle;
use crate::stage::{self, MAX_STATE};
use crate::view::{CACHE, MACHINE, old_cache, ours, sound};

/// Links in the folder that the image's loader searches.
pub const CREATE_LINKS: &str = "create-links";
/// The libraries in the image's `ld.so.cache`.
pub const UPDATE_CACHE: &str = "update-cache";
/// Where a library lies in the container.
pub const LIBRARY: &str = "--library";
/// Where one of 32 bits lies.
pub const LIBRARY32: &str = "--library32";

/// What the hook was called for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    links: bool,
    libraries: Vec<(String, Class)>,
}

impl Call {
    /// Reads the hook's words, its own name first; nothing where they ask for something else.
    ///
    /// # Errors
    /// What is wrong with them, for stderr.
    pub fn parse(words: &[String]) -> Result<Option<Self>, String> {
        let mut words = words.iter().skip(1);
        let links = match words.next().map(String::as_str) {
            Some(CREATE_LINKS) => true,
            Some(UPDATE_CACHE) => false,
            _ => return Ok(None),
        };
        let mut libraries = Vec::new();
        while let Some(word) = words.next() {
            let class = match word.as_str() {
                LIBRARY => Class::Elf64,
                LIBRARY32 => Class::Elf32,
                _ => return Err(format!("unknown option {word}; options are {LIBRARY} PATH and {LIBRARY32} PATH")),
            };
            let path = words.next().filter(|path| path.starts_with('/'));
            libraries
                .push((path.ok_or_else(|| format!("{word}: not an absolute path of the container"))?.clone(), class));
        }
        Ok(Some(Self { links, libraries }))
    }
}

/// Does it, and says what was left as it is, and why.
///
/// # Errors
/// The container cannot be told from what its runtime says.
pub fn run(call: &Call, mut stdin: impl Read) -> Result<Vec<String>, Vec<Refusal>> {
    let mut text = Vec::new();
    let state = stdin.by_ref().take(MAX_STATE).read_to_end(&mut text).map_err(|e| e.to_string());
    let state = state.and_then(|_| stage::read_state(&text));
    let unread = |why: &dyn std::fmt::Display| vec![Refusal::internal("hook-input", &why)];
    let state = state.map_err(|why| unread(&format_args!("the container's state cannot be read: {why}")))?;
    let bundle = match stage::bundle_of(&state) {
        // The user namespace's root may read nothing there. Most images need nothing of this.
        Err(refusal) if node::process::mapped().is_some() => return Ok(vec![refusal.message]),
        told => told.map_err(|refusal| vec![refusal])?,
    };
    let spec = json::parse_oci(&bundle.bytes).map_err(|e| unread(&format_args!("read config.json: {e}")))?;
    let root: PathBuf = bundle::rootfs(&spec, &bundle.path).ok_or_else(|| unread(&"config.json names no root"))?;
    let root = InRoot::open(&root).map_err(|e| unread(&e))?;
    let notes = if call.links { create_links(call, &root) } else { update_cache(call, &root) };
    Ok(notes.into_iter().map(|note| note.message).collect())
}

/// Where the image's loader would find each library that is there.
fn plan<'c>(call: &'c Call, root: &InRoot) -> (Image, view::View<'c>) {
    let there = call.libraries.iter().filter(|(path, _)| root.is_file(Path::new(path)));
    let there: Vec<Library<'_>> =
        there.map(|(path, class)| Library { host_path: path, soname: None, class: *class }).collect();
    let compat32 = there.iter().any(|library| library.class == Class::Elf32);
    let image = Image::identify(MACHINE, compat32, |path| root.read(Path::new(path), MAX_LOADER_BYTES).ok());
    let view = view::plan(&image, &there, |folder| root.is_dir(Path::new(folder)));
    (image, view)
}

fn create_links(call: &Call, root: &InRoot) -> Vec<Note> {
    let (_, view) = plan(call, root);
    let absent = view.binds.iter().filter(|bind| !root.exists(Path::new(&bind.container_path)));
    let made = absent.map(|bind| root.make_link(Path::new(&bind.container_path), Path::new(bind.host_path)));
    // What keeps one from its place keeps them all.
    made.filter_map(Result::err).take(1).map(|why| note(why.to_string())).collect()
}

fn update_cache(call: &Call, root: &InRoot) -> Vec<Note> {
    let mut notes = Vec::new();
    let (image, view) = plan(call, root);
    if !matches!(image, Image::Glibc { .. }) {
        return notes;
    }
    let Some(old) = old_cache(root, &mut notes) else { return notes };
    let entries = sound(&old, &mut notes).unwrap_or_default();
    // A loader believes an empty cache, too: there it searches its folders.
    if entries.is_empty() {
        return notes;
    }
    let there = ours(&view, true).into_iter().filter(|entry| root.is_file(Path::new(entry.path)));
    if let Ok(Some(bytes)) = cache::with(&old, &there.collect::<Vec<_>>()) {
        let done = root.replace(Path::new(CACHE), &bytes);
        notes.extend(done.err().map(|why| note(format!("`ldconfig -p` does not list the driver's libraries: {why}"))));
    }
    notes
}

fn note(message: String) -> Note {
    Note::new("layout", "/root/path", message)
}

#[cfg(test)]
mod tests;
