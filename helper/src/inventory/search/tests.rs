//! The search over made-up driver roots on disk.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
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
        .map(|file| (file.path, file.candidate.found_by, file.candidate.fault.is_none()))
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

/// Who can write a folder can exchange what lies there, whoever owns the file.
#[test]
fn a_file_in_somebody_elses_folder_is_left_out_and_the_folder_named() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root's files are given out");
        return;
    }
    const LIB: &str = "usr/lib/x86_64-linux-gnu";
    const STORE: &str = "nix/store/abc-nvidia/lib";
    const INNER: &str = "run/nvidia/driver";
    // Where the library lies, whose folder it is, its mode, and whether what lies there is left out.
    for (library, folder, owner, mode, left_out) in [
        (LIB, "usr/lib", 0, 0o755, false),
        (LIB, LIB, 65534, 0o755, true),
        (LIB, LIB, 0, 0o775, true),
        (LIB, "usr", 0, 0o1777, true),
        (LIB, "usr/lib", 65534, 0o755, true),
        (LIB, "", 65534, 0o755, true),
        (LIB, "opt", 65534, 0o755, false),
        (STORE, "nix/store", 0, 0o1775, false),
        (STORE, "nix/store", 65534, 0o1775, true),
        (STORE, "nix/store/abc-nvidia", 65534, 0o755, true),
        (&format!("{INNER}/{LIB}"), "run/nvidia", 65534, 0o755, true),
        (&format!("{INNER}/{LIB}"), INNER, 0, 0o777, true),
    ] {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for name in ["libcuda", "libnvidia-ml"] {
            put(root, &format!("{library}/{name}.so.535.1"), &elf(&format!("{name}.so.1")));
        }
        link(root, "run/opengl-driver/lib", "/nix/store/abc-nvidia/lib");
        fs::create_dir_all(root.join("opt")).unwrap();
        chown(root.join(folder), Some(owner), None).unwrap();
        fs::set_permissions(root.join(folder), fs::Permissions::from_mode(mode)).unwrap();
        let found = driver(&Root::open(root).unwrap(), &[]);
        let (libraries, _, findings) = super::super::files::libraries(found.libraries, Some("535.1"));
        let what = format!("{library} {folder} {owner} {mode:o}");
        assert_eq!(libraries.len(), if left_out { 0 } else { 2 }, "{what}");
        let named = format!("{} ", root.join(folder).to_str().unwrap().trim_end_matches('/'));
        let named = findings.iter().filter(|it| it.code == "file-untrusted" && it.message.starts_with(&named));
        assert_eq!(named.count(), usize::from(left_out), "{what}: {findings:?}");
        let missing = findings.iter().any(|it| it.code == "library-missing" && it.message.contains("must "));
        assert_eq!(missing, left_out, "{what}: {findings:?}");
    }
}

#[test]
fn links_count_by_where_they_lead() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root's files are given out");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    put(root, "opt/mine/libcuda.so.535.1", &elf("libcuda.so.1"));
    put(root, "usr/lib/real/libnvidia-ml.so.535.1", &elf("libnvidia-ml.so.1"));
    link(root, "usr/lib64/libcuda.so.1", "/opt/mine/libcuda.so.535.1");
    link(root, "opt/mine/libnvidia-ml.so.1", "/usr/lib/real/libnvidia-ml.so.535.1");
    chown(root.join("opt/mine"), Some(65534), None).unwrap();
    let found = driver(&Root::open(root).unwrap(), &["/opt/mine".to_owned()]);
    let fault = |name: &str| {
        let of = |(candidate, _): &&(Candidate, Option<Elf>)| candidate.real.ends_with(name);
        found.libraries.iter().find(of).unwrap().0.fault.clone().map(|fault| fault.path)
    };
    assert_eq!(fault("libcuda.so.535.1"), Some(root.join("opt/mine").to_str().unwrap().to_owned()));
    assert_eq!(fault("libnvidia-ml.so.535.1"), None);
}
