//! The linker view: one bind for each name of each library, in the folder that this image's loader
//! searches by default.
//!
//! Container paths come from the image and the library's own name alone. Host folders never appear
//! in them, and no library's name can lead out of the folder.

use crate::cache::Entry;
use crate::elf::Class;
use crate::image::{Image, is_plain};

/// One of glibc's defaults, for an image whose loader is absent or does not name any.
const GUESSED_FOLDER: &str = "/usr/lib64";
/// Programs built with Nix have no loader in a known place and look for drivers in one folder.
const NIX_STORE: &str = "/nix/store";
const NIX_FOLDER: &str = "/run/opengl-driver/lib";
/// Where libraries go in an image whose files nobody can add to: the runtime's own file system for nodes.
const FROZEN_FOLDERS: [&str; 2] = ["/dev/.quilt-gpu/lib", "/dev/.quilt-gpu/lib32"];
/// The most files of the image's own that are covered; real images bring a driver in one folder or two.
const MAX_COVERED: usize = 128;
/// NAME_MAX.
const MAX_NAME_BYTES: usize = 255;

/// Libraries that programs open without a version, as only a development package would have it:
/// `libcuda.so` and `libnvidia-ml.so` by language bindings, the others as the Video Codec and
/// Optical Flow SDKs' samples do. Alphabetic.
const OPENED_PLAIN: &[&str] =
    &["libcuda.so", "libnvcuvid.so", "libnvidia-encode.so", "libnvidia-ml.so", "libnvidia-opticalflow.so"];

/// A driver library of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Library<'a> {
    /// Where it lies on the node; the last component names it when it has no SONAME.
    pub host_path: &'a str,
    /// Its `DT_SONAME`.
    pub soname: Option<&'a str>,
    /// From its ELF header, never from its folder.
    pub class: Class,
}

/// Where the libraries go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View<'a> {
    /// The container's folder of the libraries that are not 32-bit.
    pub folder: String,
    /// Read-only binds, all container paths different.
    pub binds: Vec<Bind<'a>>,
    /// What was left out or guessed.
    pub notes: Vec<Note>,
}

/// One file of the node bound under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind<'a> {
    /// The library's path on the node.
    pub host_path: &'a str,
    /// Where the container sees it.
    pub container_path: String,
}

/// Something that does not stop the container but is worth a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Stable, for machines.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

/// Plans the view of `libraries` in an image. `exists` tells whether a folder exists in it.
///
/// The order of `libraries` decides which one gets a name that several have, and nothing else.
pub fn plan<'a>(image: &Image, libraries: &[Library<'a>], exists: impl Fn(&str) -> bool) -> View<'a> {
    let mut notes = Vec::new();
    let folder = folder(image, &exists, &mut notes);
    let folder32 = folder32(image, &folder, &exists);
    let mut view = View { folder: folder.clone(), binds: Vec::new(), notes };
    let mut placed = Vec::with_capacity(libraries.len());
    for library in libraries {
        let own = match library.class {
            Class::Elf64 => Some(folder.as_str()),
            Class::Elf32 => folder32.as_deref(),
        };
        let Some(folder) = own else {
            view.note(
                "library-32bit",
                format!("{} is left out: the image has no folder of its own for 32-bit libraries", library.host_path),
            );
            continue;
        };
        let Some(name) = view.name(library) else {
            continue;
        };
        if view.bind(library, folder, name) {
            placed.push((library, folder, name));
        }
    }
    // After all SONAMEs, so that no plain name takes a place that some library is named for.
    for (library, folder, name) in placed {
        if let Some(plain) = plain_name(name) {
            view.bind(library, folder, plain);
        }
    }
    view
}

/// An image with glibc on a file system that is read-only on the node: only a cache leads its loader to libraries there.
#[must_use]
pub fn frozen() -> Image {
    let [folders, folders32] = FROZEN_FOLDERS.map(|folder| vec![folder.to_owned()]);
    Image::Glibc { folders, folders32 }
}

/// The name without a version under which programs also open this library, if they do.
pub fn plain_name(soname: &str) -> Option<&'static str> {
    let versioned = |plain: &&&str| soname.strip_prefix(**plain).is_some_and(|version| version.starts_with('.'));
    OPENED_PLAIN.iter().find(versioned).copied()
}

impl<'a> View<'a> {
    /// What `ldconfig` would list of the binds: the name of each, without the plain ones; with `plain` those too. `flags` are
    /// those of a library that is not 32-bit, and of one that is.
    pub fn entries(&self, flags: [u32; 2], plain: bool) -> Vec<Entry<'_>> {
        let [wide, narrow] = flags;
        let paths = self.binds.iter().map(|bind| bind.container_path.as_str());
        let entries = paths.filter_map(|path| {
            let (folder, name) = path.rsplit_once('/')?;
            let flags = if folder == self.folder { wide } else { narrow };
            (plain || !OPENED_PLAIN.contains(&name)).then_some(Entry { name, path, flags, hwcap: 0 })
        });
        entries.collect()
    }

    /// Where the image's own cache leads to other files of the same names, as an image that brings a driver's: the node's
    /// files are bound there too, since the next `ldconfig` would find the image's first. `entries` are the image's, `ours`
    /// those of [`View::entries`], `folder` tells which folder a path of one is.
    pub fn covering<F: PartialEq>(
        &self,
        entries: &[Entry<'_>],
        ours: &[Entry<'_>],
        folder: impl Fn(&str) -> Option<F>,
    ) -> Vec<Bind<'a>> {
        let mut covering: Vec<Bind<'a>> = Vec::new();
        for entry in entries {
            let (Some(our), Some((own, _))) = (
                ours.iter().find(|our| (our.name, our.flags) == (entry.name, entry.flags)),
                entry.path.rsplit_once('/').filter(|_| entry.path.starts_with('/') && is_plain(entry.path)),
            ) else {
                continue;
            };
            let Some(bind) = self.binds.iter().find(|bind| bind.container_path == our.path) else { continue };
            let taken = covering.iter().any(|other| other.container_path == entry.path);
            let there = our.path.rsplit_once('/').and_then(|(there, _)| folder(there));
            if taken || covering.len() >= MAX_COVERED || folder(own).is_none_or(|own| Some(own) == there) {
                continue;
            }
            covering.push(Bind { host_path: bind.host_path, container_path: entry.path.to_owned() });
        }
        covering
    }

    fn note(&mut self, code: &'static str, message: String) {
        self.notes.push(Note { code, message });
    }

    fn name(&mut self, library: &Library<'a>) -> Option<&'a str> {
        let (soname, path) = (library.soname, library.host_path);
        if let Some(soname) = soname.filter(|name| is_file_name(name)) {
            return Some(soname);
        }
        let file_name = path.rsplit('/').next().filter(|name| is_file_name(name));
        match (soname, file_name) {
            (_, None) => self.note("library-name", format!("{path:?} is left out: no file name")),
            (Some(soname), Some(name)) => {
                self.note("library-name", format!("{path} is bound as {name}: its SONAME {soname:?} is no file name"))
            }
            (None, Some(_)) => {}
        }
        file_name
    }

    fn bind(&mut self, library: &Library<'a>, folder: &str, name: &str) -> bool {
        let (host_path, container_path) = (library.host_path, format!("{folder}/{name}"));
        let taken = self.binds.iter().find(|bind| bind.container_path == container_path);
        if let Some(first) = taken {
            let message = format!("{host_path} is left out: {} is {name} already", first.host_path);
            self.note("library-duplicate", message);
            return false;
        }
        self.binds.push(Bind { host_path, container_path });
        true
    }
}

fn folder(image: &Image, exists: &impl Fn(&str) -> bool, notes: &mut Vec<Note>) -> String {
    let (folder, code, why) = match image {
        Image::Glibc { folders, .. } => match choose(folders.iter(), exists) {
            Some(folder) => return folder.clone(),
            None => (GUESSED_FOLDER, "image-loader", "its loader names no folder"),
        },
        Image::Musl { folders } => {
            let why = "a musl image: the driver's libraries are built for glibc and need gcompat";
            let folder = choose(folders.iter(), exists).map_or(GUESSED_FOLDER, String::as_str);
            (folder, "image-musl", why)
        }
        Image::NoLoader if exists(NIX_STORE) => return NIX_FOLDER.to_owned(),
        Image::NoLoader => (GUESSED_FOLDER, "image-no-loader", "it has no known loader"),
    };
    let message = format!("driver libraries go to the image's {folder}: {why}");
    notes.push(Note { code, message });
    folder.to_owned()
}

/// A default of both loaders, such as Debian's /usr/lib, is no folder of the 32-bit one.
fn folder32(image: &Image, folder: &str, exists: &impl Fn(&str) -> bool) -> Option<String> {
    let Image::Glibc { folders, folders32 } = image else {
        return None;
    };
    let own = |candidate: &&String| *candidate != folder && !folders.contains(candidate);
    choose(folders32.iter().filter(own), exists).cloned()
}

/// Below /usr first: where /lib64 is a link to it, that is the folder itself.
fn choose<'f>(folders: impl Iterator<Item = &'f String> + Clone, exists: &impl Fn(&str) -> bool) -> Option<&'f String> {
    let mut usr = folders.clone().filter(|folder| folder.starts_with("/usr/"));
    let first = usr.clone().next().or(folders.clone().next());
    usr.find(|folder| exists(folder)).or(first)
}

fn is_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= MAX_NAME_BYTES && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests;
