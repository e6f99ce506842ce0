//! The search over made-up driver roots on disk.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::*;
use crate::demo::fixture::elf;

/// An `ld.so.cache` that lists these 64-bit libraries.
pub(super) fn cache(paths: &[&str]) -> Vec<u8> {
    let strings_at = 48 + 24 * paths.len();
    let (mut entries, mut strings) = (Vec::new(), Vec::new());
    for path in paths {
        let at = strings_at + strings.len();
        let name_at = at + path.rfind('/').unwrap() + 1;
        strings.extend(path.bytes().chain([0]));
        for word in [0x0303, name_at as u32, at as u32, 0, 0, 0] {
            entries.extend(word.to_le_bytes());
        }
    }
    let mut bytes = b"glibc-ld.so.cache1.1".to_vec();
    bytes.extend((paths.len() as u32).to_le_bytes());
    bytes.extend((strings.len() as u32).to_le_bytes());
    bytes.extend([2, 0, 0, 0].into_iter().chain([0; 16]));
    [bytes, entries, strings].concat()
}

pub(super) fn put(root: &Path, name: &str, content: &[u8]) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

pub(super) fn link(root: &Path, name: &str, target: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(target, path).unwrap();
}

/// What is found: path below the root, SONAME, rule.
fn found(root: &Path) -> Vec<(String, String, String)> {
    let handle = Root::open(root).unwrap();
    let line = |(candidate, elf): (Candidate, Option<Elf>)| {
        let soname = elf?.soname.unwrap_or_default();
        Some((handle.inside(&candidate.real).unwrap().to_owned(), soname, candidate.found_by))
    };
    driver(&handle, &[]).libraries.into_iter().filter_map(line).collect()
}

fn expected(lines: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    lines.iter().map(|(path, soname, rule)| ((*path).to_owned(), (*soname).to_owned(), (*rule).to_owned())).collect()
}

#[test]
fn debian_with_alternatives_resolves_inside_the_root() {
    let root = tempfile::tempdir().unwrap();
    let (root, folder) = (root.path(), "usr/lib/x86_64-linux-gnu");
    put(root, &format!("{folder}/nvidia/current/libcuda.so.535.1"), &elf("libcuda.so.1"));
    put(root, &format!("{folder}/nvidia/current/libnvidia-glcore.so.535.1"), &elf("libnvidia-glcore.so.535.1"));
    link(root, &format!("{folder}/libcuda.so.1"), "/etc/alternatives/cuda");
    link(root, "etc/alternatives/cuda", "/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.535.1");
    link(root, "lib", "usr/lib");
    put(root, &format!("{folder}/libm.so.6"), &elf("libm.so.6"));
    let cuda = format!("{folder}/nvidia/current/libcuda.so.535.1");
    let glcore = format!("{folder}/nvidia/current/libnvidia-glcore.so.535.1");
    assert_eq!(
        found(root),
        expected(&[(&cuda, "libcuda.so.1", folder), (&glcore, "libnvidia-glcore.so.535.1", "beside libcuda.so.535.1")])
    );
}

#[test]
fn a_folder_that_only_the_cache_knows() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    for name in ["libcuda.so.535.1", "libnvidia-ml.so.535.1"] {
        put(root, &format!("var/lib/nvidia/lib64/{name}"), &elf(name));
    }
    put(
        root,
        "etc/ld.so.cache",
        &cache(&[
            "/var/lib/nvidia/lib64/libcuda.so.535.1",
            "/var/lib/nvidia/lib64/libgone.so.1",
            "/usr/lib64/libcuda.so.1",
        ]),
    );
    let cuda = ("var/lib/nvidia/lib64/libcuda.so.535.1", "libcuda.so.535.1", "etc/ld.so.cache");
    let ml = ("var/lib/nvidia/lib64/libnvidia-ml.so.535.1", "libnvidia-ml.so.535.1", "beside libcuda.so.535.1");
    assert_eq!(found(root), expected(&[cuda, ml]));

    put(root, "etc/ld.so.cache", b"no cache at all");
    assert_eq!(found(root), [], "a broken cache lists nothing and stops nothing");
}

#[test]
fn leftovers_are_no_libraries() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    put(root, "usr/lib64/libcuda.so.535.1", b"not an ELF file");
    link(root, "usr/lib64/libnvidia-ml.so.1", "libnvidia-ml.so.gone");
    link(root, "usr/lib64/libnvidia-cfg.so.1", "libnvidia-cfg.so.1");
    fs::create_dir(root.join("usr/lib64/libnvidia-nvvm.so.4")).unwrap();
    nix::unistd::mkfifo(&root.join("usr/lib64/libnvcuvid.so.1"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(found(root), []);
}

#[test]
fn programs_and_who_can_write_them() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    for name in [
        "usr/bin/nvidia-smi",
        "usr/local/bin/nvidia-smi",
        "usr/bin/nvidia-modprobe",
        "usr/bin/nvidia-debugdump",
        "usr/bin/ls",
    ] {
        put(root, name, b"#!");
    }
    link(root, "bin", "usr/bin");
    fs::set_permissions(root.join("usr/bin/nvidia-debugdump"), fs::Permissions::from_mode(0o775)).unwrap();
    let handle = Root::open(root).unwrap();
    let is_root = nix::unistd::geteuid().is_root();
    let seen: Vec<_> = driver(&handle, &[])
        .files
        .into_iter()
        .map(|file| (file.path, file.candidate.found_by, file.candidate.trusted))
        .take(3)
        .collect();
    let line = |name: &str, folder: &str, trusted| (format!("/usr/bin/{name}"), folder.to_owned(), trusted);
    assert_eq!(
        seen,
        [
            line("nvidia-debugdump", "usr/bin", false),
            line("nvidia-smi", "usr/bin", is_root),
            line("nvidia-smi", "usr/local/bin", is_root)
        ]
    );
}
