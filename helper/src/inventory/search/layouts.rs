//! Made-up driver roots, one for each way in which systems lay the driver out: what is found there, and by which rule.

mod appliances;
mod distributions;

use std::path::Path;

use super::super::files;
use super::tests::{cache, link, put};
use super::*;
use crate::demo::fixture::elf;

/// A root, and what comes out of it: everything that a container could be given.
struct Layout {
    /// Which system, and the field cases.
    name: &'static str,
    loaded: &'static str,
    /// Libraries by their path; the SONAME follows from the name. `@32` behind a path: of the other class.
    libraries: &'static [&'static str],
    others: &'static [&'static str],
    links: &'static [(&'static str, &'static str)],
    cached: &'static [&'static str],
    explicit: &'static [&'static str],
    /// SONAME, path, rule.
    found: &'static [(&'static str, &'static str, &'static str)],
    /// Place in a container, path, rule.
    files: &'static [(&'static str, &'static str, &'static str)],
    findings: &'static [(&'static str, bool)],
}

/// `libcuda.so.535.1` calls itself `libcuda.so.1`.
fn soname(path: &str) -> String {
    let name = last(path);
    let Some((stem, version)) = name.split_once(".so.") else { return name.to_owned() };
    let internal = ["libnvidia-glcore", "libnvidia-tls"].contains(&stem);
    if internal { format!("{stem}.so.{version}") } else { format!("{stem}.so.1") }
}

/// The same library for 32-bit programs: another class, and the layout of headers that goes with it.
fn elf32(soname: &str) -> Vec<u8> {
    const DYNAMIC: u32 = 52 + 2 * 32;
    const STRINGS: u32 = DYNAMIC + 4 * 8;
    let strings = format!("\0{soname}\0");
    let length = strings.len() as u32;
    let mut bytes = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x03\0\x01\0\0\0".to_vec();
    let mut words = |words: &[u32]| bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    words(&[0, 52, 0, 0, 32 << 16 | 52, 2, 0]);
    words(&[1, 0, 0, 0, STRINGS + length, STRINGS + length, 4, 4]);
    words(&[2, DYNAMIC, DYNAMIC, DYNAMIC, STRINGS - DYNAMIC, STRINGS - DYNAMIC, 4, 4]);
    words(&[5, STRINGS, 10, length, 14, 1, 0, 0]);
    bytes.extend(strings.bytes());
    bytes
}

fn lay_out(layout: &Layout, root: &Path) {
    for path in layout.libraries {
        match path.strip_suffix("@32") {
            Some(path) => put(root, path, &elf32(&soname(path))),
            None => put(root, path, &elf(&soname(path))),
        }
    }
    for path in layout.others {
        let (path, content) = path.split_once('=').unwrap_or((path, "{}"));
        put(root, path, content.as_bytes());
    }
    for (at, to) in layout.links {
        link(root, at, to);
    }
    if !layout.cached.is_empty() {
        put(root, "etc/ld.so.cache", &cache(layout.cached));
    }
}

type Lines = Vec<(String, String, String)>;

/// What comes out, with paths below the root.
fn outcome(layout: &Layout, at: &Path) -> (Lines, Lines, Vec<(String, bool)>) {
    let root = Root::open(at).unwrap();
    let explicit: Vec<String> = layout.explicit.iter().map(|&path| path.to_owned()).collect();
    let found = driver(&root, &explicit);
    let loaded = (!layout.loaded.is_empty()).then_some(layout.loaded);
    let (libraries, tree, mut findings) = files::libraries(found.libraries, loaded);
    let (files, more) = files::files(found.files, &libraries, tree, loaded);
    findings.extend(more);
    let below = |path: &str| root.inside(path).unwrap().to_owned();
    let libraries = libraries.into_iter().map(|library| {
        let class = if library.bits == 32 { "@32" } else { "" };
        (library.soname + class, below(&library.host_path), library.found_by)
    });
    let files = files.into_iter().map(|file| (file.path, below(&file.host_path), file.found_by));
    let findings = findings.into_iter().map(|finding| (finding.code, finding.stops));
    (libraries.collect(), files.collect(), findings.collect())
}

#[test]
fn every_layout_gives_exactly_its_files() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root's files are given out");
        return;
    }
    for layout in distributions::LAYOUTS.iter().chain(appliances::LAYOUTS) {
        let root = tempfile::tempdir().unwrap();
        lay_out(layout, root.path());
        let (libraries, files, findings) = outcome(layout, root.path());
        let owned = |lines: &[(&str, &str, &str)]| -> Lines {
            lines.iter().map(|(a, b, c)| ((*a).to_owned(), (*b).to_owned(), (*c).to_owned())).collect()
        };
        assert_eq!(libraries, owned(layout.found), "{}: libraries", layout.name);
        assert_eq!(files, owned(layout.files), "{}: files", layout.name);
        let expected: Vec<_> = layout.findings.iter().map(|(code, stops)| ((*code).to_owned(), *stops)).collect();
        assert_eq!(findings, expected, "{}: findings", layout.name);
    }
}

/// D04: where the node keeps its files is not where a container finds them, so that another revision changes nothing inside.
#[test]
fn two_revisions_of_the_snap_give_containers_the_same_places() {
    let places = |revision: &str| -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        let graphics = root.path().join(format!("snap/docker/{revision}/graphics"));
        put(&graphics, "lib/x86_64-linux-gnu/libcuda.so.535.1", &elf("libcuda.so.1"));
        put(&graphics, "usr/share/vulkan/icd.d/nvidia_icd.json", b"{}");
        put(&graphics, "usr/bin/nvidia-smi", b"");
        let found = driver(&Root::open(&graphics).unwrap(), &[]);
        assert_eq!(found.libraries.len(), 1, "{revision}");
        found.files.into_iter().map(|file| file.path).collect()
    };
    assert_eq!(places("x17"), ["/usr/bin/nvidia-smi", "/usr/share/vulkan/icd.d/nvidia_icd.json"]);
    assert_eq!(places("x17"), places("x18"));
}

/// Links of a root in a root lead nowhere outside of it, although the same path exists there.
#[test]
fn links_of_a_driver_container_stay_in_it() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    put(root, "opt/real/libcuda.so.535.1", &elf("libcuda.so.1"));
    link(root, "run/nvidia/driver/usr/lib64/libcuda.so.1", "/opt/real/libcuda.so.535.1");
    link(root, "run/nvidia/driver/usr/lib64/libnvidia-ml.so.1", "../../../../../../opt/real/libcuda.so.535.1");
    let found = driver(&Root::open(root).unwrap(), &[]);
    assert_eq!(found.libraries.len(), 0, "{:?}", found.libraries);
}

const NONE: Layout = Layout {
    name: "",
    loaded: "",
    libraries: &[],
    others: &[],
    links: &[],
    cached: &[],
    explicit: &[],
    found: &[],
    files: &[],
    findings: &[],
};
