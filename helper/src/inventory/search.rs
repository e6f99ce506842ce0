//! The one search for driver files: what the loader's cache lists, then the standard folders, then wherever the driver's
//! main libraries turned out to lie. It reads the driver root and leaves judging to [`super::files`].

use std::io::Read;
use std::os::unix::fs::FileExt;

use linker::elf::{self, Elf};
use linker::{cache, families};

use super::files::Candidate;
use super::root::{Found, Root};

/// Debian-like, then lib64-like, then 32-bit folders; Debian keeps some of the driver's files one level down.
const LIBRARY_FOLDERS: [&str; 12] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib64",
    "usr/lib",
    "lib",
    "usr/lib/i386-linux-gnu",
    "usr/lib32",
    "lib/i386-linux-gnu",
    "lib32",
];
const PROGRAM_FOLDERS: [&str; 3] = ["usr/bin", "usr/local/bin", "bin"];
const CACHE: &str = "etc/ld.so.cache";
/// The libraries that every driver installation has.
const MAIN: [&str; 2] = ["libcuda.so.", "libnvidia-ml.so."];

/// Every library that is the driver's by its name, each file once, in the order of the rules.
pub(crate) fn libraries(root: &Root) -> Vec<(Candidate, Option<Elf>)> {
    let mut search = Search { root, found: Vec::new() };
    for path in cached(root) {
        search.take(&path, CACHE);
    }
    for folder in LIBRARY_FOLDERS {
        search.folder(folder, folder);
    }
    for (folder, main) in search.main_folders() {
        search.folder(&folder, &format!("beside {main}"));
    }
    search.found
}

/// Every program that is the driver's by its name, with that name.
pub(crate) fn programs(root: &Root) -> Vec<(String, Candidate)> {
    let mut programs = Vec::new();
    for folder in PROGRAM_FOLDERS {
        for name in root.names(folder).into_iter().filter(|name| !families::binary_capabilities(name).is_empty()) {
            if let Ok(found) = root.file(&format!("{folder}/{name}")) {
                programs.push((name, candidate(&found, folder)));
            }
        }
    }
    programs
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

fn candidate(found: &Found, found_by: &str) -> Candidate {
    Candidate { real: found.real.clone(), found_by: found_by.to_owned(), id: found.id, trusted: found.trusted }
}

struct Search<'a> {
    root: &'a Root,
    found: Vec<(Candidate, Option<Elf>)>,
}

impl Search<'_> {
    fn folder(&mut self, folder: &str, rule: &str) {
        for name in self.root.names(folder).into_iter().filter(|name| is_driver_library(name)) {
            self.take(&format!("{folder}/{name}"), rule);
        }
    }

    /// A name that leads to no regular file is somebody's leftover.
    fn take(&mut self, path: &str, rule: &str) {
        let Ok(found) = self.root.file(path) else { return };
        if self.found.iter().any(|(known, _)| known.real == found.real) {
            return;
        }
        let elf = elf::inspect_with(|offset, buffer| found.file.read_exact_at(buffer, offset)).ok();
        self.found.push((candidate(&found, rule), elf));
    }

    /// The folders that the driver's main libraries really lie in, as paths in the root, with the library.
    fn main_folders(&self) -> Vec<(String, String)> {
        let mut folders: Vec<(String, String)> = Vec::new();
        for (candidate, _) in self.found.iter().filter(|(_, elf)| elf.is_some()) {
            if let Some((folder, name)) = self.root.inside(&candidate.real).and_then(|path| path.rsplit_once('/'))
                && MAIN.iter().any(|main| name.starts_with(main))
                && !folders.iter().any(|(known, _)| known == folder)
            {
                folders.push((folder.to_owned(), name.to_owned()));
            }
        }
        folders
    }
}

#[cfg(test)]
mod tests;
