//! The one search for driver files: the folders that the operator names, wherever the driver's main libraries turn out to lie,
//! what the loader's cache lists, then the places that are known. It reads the driver root and leaves judging to
//! [`super::files`].

use std::io::Read;
use std::os::unix::fs::FileExt;

use contract::capability::Capability;
use contract::inventory::FileKind;
use linker::elf::{self, Elf};
use linker::{cache, families};

use super::files::{Candidate, Extra, Leads, capabilities};
use super::places::{BASES, DATA, FIRMWARE, LIBRARIES, MODULES, PROGRAMS, ROOTS, STORE, tree};
use super::root::{Found, Root};

const CACHE: &str = "etc/ld.so.cache";
/// The libraries that every driver installation has.
const MAIN: [&str; 2] = ["libcuda.so.", "libnvidia-ml.so."];
/// Folders below the libraries' own that hold some of them.
const BELOW: [&str; 2] = ["vdpau", "nvidia/current"];
/// Largest manifest that is read.
const MAX_MANIFEST: u64 = 64 << 10;
/// Whatever a container asks for, it uses the kernel's module.
const EVERY: &[Capability] = &[
    Capability::Compute,
    Capability::Utility,
    Capability::Graphics,
    Capability::Video,
    Capability::Display,
    Capability::Dri,
];

/// What was found, each library once, in the order of the rules.
#[derive(Clone, Default)]
pub(crate) struct Driver {
    /// Every library that is the driver's by its name; those that are no ELF files too.
    pub(crate) libraries: Vec<(Candidate, Option<Elf>)>,
    /// Every other file that is.
    pub(crate) files: Vec<Extra>,
}

impl Driver {
    /// Whether there is any library.
    pub(crate) fn is_there(&self) -> bool {
        self.libraries.iter().any(|(_, elf)| elf.is_some())
    }
}

/// Looks for the driver's files in its root, and in the roots that lie below it.
pub(crate) fn driver(root: &Root, explicit: &[String]) -> Driver {
    let mut search = Search { root, prefix: String::new(), outer: root, found: Driver::default() };
    search.all(explicit);
    for inner in ROOTS {
        let Ok(below) = root.below(inner) else { continue };
        let mut search = Search { root: &below, prefix: format!("{inner}: "), outer: root, found: search.found };
        search.all(&[]);
        return search.found;
    }
    search.found
}

struct Search<'a> {
    root: &'a Root,
    /// What the names of rules begin with.
    prefix: String,
    outer: &'a Root,
    found: Driver,
}

impl Search<'_> {
    fn all(&mut self, explicit: &[String]) {
        for folder in explicit {
            self.libraries(folder, &format!("driver_folders {folder}"), &|_| true);
        }
        let cached = cached(self.root);
        let folders: Vec<String> = LIBRARIES.iter().flat_map(|pattern| self.folders(pattern)).collect();
        // First where the driver lies, then what lies there, then the rest.
        let main = |name: &str| MAIN.iter().any(|main| name.starts_with(main));
        self.known(&cached, &folders, &main);
        let mains = self.mains(&main);
        for (folder, rule) in &mains {
            self.libraries(folder, rule, &|_| true);
            for below in BELOW {
                self.libraries(&format!("{folder}/{below}"), rule, &|_| true);
            }
        }
        self.known(&cached, &folders, &|_| true);
        self.programs(&mains);
        self.data(&mains);
        self.modules();
        self.firmware();
        self.store();
    }

    /// What the cache lists, then what lies in the known places.
    fn known(&mut self, cached: &[String], folders: &[String], wanted: &dyn Fn(&str) -> bool) {
        for path in cached.iter().filter(|path| wanted(last(path))) {
            self.library(path, CACHE);
        }
        for folder in folders {
            self.libraries(folder, folder, wanted);
        }
    }

    fn libraries(&mut self, folder: &str, rule: &str, wanted: &dyn Fn(&str) -> bool) {
        let names = self.root.names(folder);
        for name in names.into_iter().filter(|name| is_driver_library(name) && wanted(name)) {
            self.library(&format!("{folder}/{name}"), rule);
        }
    }

    /// A name that leads to no regular file is somebody's leftover.
    fn library(&mut self, path: &str, rule: &str) {
        let Ok(found) = self.root.file(path) else { return };
        if self.found.libraries.iter().any(|(known, _)| known.real == found.real) {
            return;
        }
        let elf = elf::inspect_with(|offset, buffer| found.file.read_exact_at(buffer, offset)).ok();
        let candidate = self.candidate(&found, rule);
        self.found.libraries.push((candidate, elf));
    }

    fn candidate(&self, found: &Found, rule: &str) -> Candidate {
        Candidate {
            real: found.real.clone(),
            tree: self.outer.inside(&found.real).map_or("", tree),
            found_by: format!("{}{rule}", self.prefix),
            id: found.id,
            fault: found.fault.clone(),
        }
    }

    /// The folders that the main libraries really lie in, as paths in the root, with the rule's name.
    fn mains(&self, main: &dyn Fn(&str) -> bool) -> Vec<(String, String)> {
        let mut folders: Vec<(String, String)> = Vec::new();
        for (candidate, _) in self.found.libraries.iter().filter(|(_, elf)| elf.is_some()) {
            if let Some((folder, name)) = self.root.inside(&candidate.real).and_then(|path| path.rsplit_once('/'))
                && main(name)
                && !folders.iter().any(|(known, _)| known == folder)
            {
                folders.push((folder.to_owned(), format!("beside {name}")));
            }
        }
        folders
    }

    /// The folders that a pattern means.
    fn folders(&self, pattern: &str) -> Vec<String> {
        let Some((above, below)) = pattern.split_once("/*") else { return vec![pattern.to_owned()] };
        let names = self.root.names(above).into_iter().filter(|name| !name.starts_with('.'));
        names.flat_map(|name| self.folders(&format!("{above}/{name}{below}"))).collect()
    }

    fn programs(&mut self, mains: &[(String, String)]) {
        let beside = mains.iter().flat_map(|(folder, rule)| above(folder).map(move |at| (format!("{at}/bin"), rule)));
        let mut places: Vec<(String, String)> = beside.map(|(folder, rule)| (folder, rule.clone())).collect();
        places.extend(PROGRAMS.iter().flat_map(|pattern| self.folders(pattern)).map(|at| (at.clone(), at)));
        for (folder, rule) in &places {
            for name in self.root.names(folder) {
                let words = families::binary_capabilities(&name);
                if !words.is_empty() {
                    let place = Place { at: format!("{folder}/{name}"), path: format!("/usr/bin/{name}"), rule };
                    self.extra(place, FileKind::Program, capabilities(words));
                }
            }
        }
    }

    fn data(&mut self, mains: &[(String, String)]) {
        let mut bases: Vec<(String, String)> = Vec::new();
        for (folder, rule) in mains {
            let around = above(folder).flat_map(|at| [at.to_owned(), format!("{at}/share"), format!("{at}/etc")]);
            bases.extend(around.map(|base| (base, rule.clone())));
        }
        bases.extend(BASES.iter().map(|base| ((*base).to_owned(), (*base).to_owned())));
        for (base, rule) in &bases {
            for data in DATA {
                let folder = format!("{base}/{}", data.folder);
                let ours = |name: &String| name.ends_with(data.ends) && name.contains("nv");
                for name in self.root.names(&folder).into_iter().filter(ours) {
                    let path = format!("/{}/{}/{name}", data.base, data.folder);
                    let place = Place { at: format!("{folder}/{name}"), path, rule };
                    self.extra(place, FileKind::Data, data.capabilities.to_vec());
                }
            }
        }
    }

    fn modules(&mut self) {
        for (folder, name, capabilities) in MODULES {
            let at = format!("{folder}/{name}");
            let place = Place { path: format!("/{at}"), at, rule: folder };
            self.extra(place, FileKind::Data, capabilities.to_vec());
        }
    }

    fn firmware(&mut self) {
        for base in FIRMWARE {
            for folder in self.folders(&format!("{base}/nvidia/*")) {
                let names = self.root.names(&folder);
                for name in names.into_iter().filter(|name| name.starts_with("gsp") && name.ends_with(".bin")) {
                    let path = format!("/lib/firmware/nvidia/{}/{name}", last(&folder));
                    let place = Place { at: format!("{folder}/{name}"), path, rule: base };
                    self.extra(place, FileKind::Firmware, EVERY.to_vec());
                }
            }
        }
    }

    /// What the libraries of NVIDIA's drivers for Windows load, each from the path that it has here. Which of several drivers
    /// is loaded only they know. Firmware is for Windows to load, and nothing here runs its programs.
    fn store(&mut self) {
        for folder in self.folders(&format!("{STORE}/*")) {
            let names = self.root.names(&folder);
            if !names.iter().any(|name| name.starts_with("libcuda.so")) {
                continue;
            }
            let loaded = |name: &&String| name.contains(".so") || name.starts_with("nv") && name.ends_with(".bin");
            for name in names.iter().filter(loaded) {
                let words = families::library_capabilities(name);
                let capabilities = if words.is_empty() { EVERY.to_vec() } else { capabilities(words) };
                let at = format!("{folder}/{name}");
                self.extra(Place { path: format!("/{at}"), at, rule: STORE }, FileKind::Data, capabilities);
            }
        }
    }

    fn extra(&mut self, place: Place<'_>, kind: FileKind, capabilities: Vec<Capability>) {
        let Ok(found) = self.root.file(&place.at) else { return };
        let manifest = kind == FileKind::Data && (place.at.ends_with(".json") || place.at.ends_with(".icd"));
        let leads = manifest.then(|| leads_to(&found)).flatten().map(|path| {
            let real = self.root.file(&path).ok().map(|library| library.real);
            Leads { path, real }
        });
        let candidate = self.candidate(&found, place.rule);
        self.found.files.push(Extra { path: place.path, kind, capabilities, candidate, leads });
    }
}

/// Where something lies in the root, where it belongs in a container, and the rule that looks there.
struct Place<'a> {
    at: String,
    path: String,
    rule: &'a str,
}

/// The two folders above one.
fn above(folder: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(folder), |path| path.rsplit_once('/').map(|(parent, _)| parent)).skip(1).take(2)
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The absolute path that a manifest gives for its library: few images have it.
fn leads_to(found: &Found) -> Option<String> {
    let mut text = String::new();
    (&found.file).take(MAX_MANIFEST).read_to_string(&mut text).ok()?;
    let path = match serde_json::from_str(&text) {
        Ok(document) => library_path(&document)?,
        Err(_) => text.trim().to_owned(),
    };
    path.starts_with('/').then_some(path)
}

fn library_path(value: &serde_json::Value) -> Option<String> {
    let own = value.get("library_path").and_then(|path| path.as_str()).map(str::to_owned);
    let inner = |value: &serde_json::Value| match value {
        serde_json::Value::Object(members) => members.values().find_map(library_path),
        serde_json::Value::Array(items) => items.iter().find_map(library_path),
        _ => None,
    };
    own.or_else(|| inner(value))
}

/// Paths of driver libraries in the loader's cache. No cache, or one that cannot be read, lists none.
fn cached(root: &Root) -> Vec<String> {
    let mut bytes = Vec::new();
    let read = root.file(CACHE).and_then(|found| found.file.take(cache::MAX_BYTES as u64).read_to_end(&mut bytes));
    match (read, cache::parse(&bytes)) {
        (Ok(_), Ok(entries)) => {
            entries.iter().filter(|entry| is_driver_library(entry.name)).map(|entry| entry.path.to_owned()).collect()
        }
        _ => Vec::new(),
    }
}

fn is_driver_library(name: &str) -> bool {
    !families::library_capabilities(name).is_empty()
}

#[cfg(test)]
mod layouts;
#[cfg(test)]
mod tests;
