//! The linker view: one bind for each name of each library, in the folder that this image's loader
//! searches by default.
//!
//! Container paths come from the image and the library's own name alone. Host folders never appear
//! in them, and no library's name can lead out of the folder.

use crate::elf::Class;
use crate::image::Image;

/// One of glibc's defaults, for an image whose loader is absent or does not name any.
const GUESSED_FOLDER: &str = "/usr/lib64";
/// musl searches /lib, /usr/local/lib and /usr/lib (`ldso/dynlink.c`).
const MUSL_FOLDER: &str = "/usr/lib";
/// Programs built with Nix have no loader in a known place and look for drivers in one folder.
const NIX_STORE: &str = "/nix/store";
const NIX_FOLDER: &str = "/run/opengl-driver/lib";
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

/// The name without a version under which programs also open this library, if they do.
pub fn plain_name(soname: &str) -> Option<&'static str> {
    let versioned = |plain: &&&str| soname.strip_prefix(**plain).is_some_and(|version| version.starts_with('.'));
    OPENED_PLAIN.iter().find(versioned).copied()
}

impl<'a> View<'a> {
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
        Image::Musl => {
            (MUSL_FOLDER, "image-musl", "a musl image: the driver's libraries are built for glibc and need gcompat")
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
