//! What a process can see and open, as JSON: the measurements that `quilt-probe` makes from inside
//! a container.
//!
//! It reports errors by their names (`EPERM`, `ENXIO`) and decides nothing.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{major, minor};
use serde_json::{Value, json};

use crate::sys;

/// Everything below `folder` whose name begins with `nvidia`: the kind and number, and what opening
/// it for reading and writing gave. Directories of such a name are entered, links are not followed.
pub fn devices(folder: &Path) -> Vec<Value> {
    let mut found = Vec::new();
    walk(folder, false, &mut found);
    found
}

fn walk(folder: &Path, inside: bool, found: &mut Vec<Value>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let named = inside || name.starts_with(b"nvidia");
        match fs::symlink_metadata(&path) {
            Ok(facts) if facts.is_dir() => walk(&path, named, found),
            Ok(facts) if named => found.push(json!({
                "path": path.to_string_lossy(),
                "kind": kind(&facts),
                "major": major(facts.rdev()),
                "minor": minor(facts.rdev()),
                "mode": format!("{:04o}", facts.mode() & 0o7777),
                "uid": facts.uid(),
                "gid": facts.gid(),
                "open": outcome(open(&path)),
            })),
            Ok(_) => {}
            Err(cause) => found.push(json!({
                "path": path.to_string_lossy(),
                "open": outcome(Err(cause)),
            })),
        }
    }
}

/// How deep and how far a search for nodes goes: a tenant's mount may be the whole host.
const DEEPEST: usize = 8;
const MOST: usize = 20_000;

/// Character devices at or below `place` whose number is among these majors and minors, whatever they are called, and what
/// opening each gave. Others are not opened: opening a device can do something.
pub fn nodes_of(place: &Path, wanted: &[(u64, u64, u64)]) -> Vec<Value> {
    let mut found = Vec::new();
    let mut folders = Vec::new();
    look(place, fs::metadata(place), 0, wanted, &mut folders, &mut found);
    let mut seen = 0;
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            seen += 1;
            let path = entry.path();
            if seen < MOST && depth < DEEPEST && entry.file_name() != "proc" && entry.file_name() != "sys" {
                look(&path, fs::symlink_metadata(&path), depth + 1, wanted, &mut folders, &mut found);
            }
        }
    }
    found
}

fn look(
    path: &Path,
    facts: io::Result<fs::Metadata>,
    depth: usize,
    wanted: &[(u64, u64, u64)],
    folders: &mut Vec<(PathBuf, usize)>,
    found: &mut Vec<Value>,
) {
    let Ok(facts) = facts else { return };
    if facts.is_dir() {
        folders.push((path.into(), depth));
    } else if facts.file_type().is_char_device() {
        let (major, minor) = (major(facts.rdev()), minor(facts.rdev()));
        if wanted.iter().any(|(of, low, high)| *of == major && (*low..=*high).contains(&minor)) {
            let open = outcome(open_at_all(path));
            found.push(json!({"path": path.to_string_lossy(), "major": major, "minor": minor, "open": open}));
        }
    }
}

fn kind(facts: &fs::Metadata) -> &'static str {
    let kind = facts.file_type();
    if kind.is_char_device() {
        "c"
    } else if kind.is_block_device() {
        "b"
    } else if kind.is_symlink() {
        "link"
    } else {
        "file"
    }
}

/// Makes a node of the prober's own for each minor in `low..=high` and opens it: what somebody with
/// CAP_MKNOD gets without being given anything.
pub fn numbers(kind: char, major: u64, low: u64, high: u64) -> Vec<Value> {
    (low..=high)
        .map(|minor| {
            let (mknod, open) = try_number(kind, major, minor);
            json!({"kind": kind.to_string(), "major": major, "minor": minor, "mknod": mknod, "open": open})
        })
        .collect()
}

/// The outcome of mknod, and of open (null without a node).
fn try_number(kind: char, major: u64, minor: u64) -> (String, Value) {
    let mut made = String::from("ENOENT");
    // A file system mounted nodev would forbid the open itself: /dev never is.
    for folder in ["/dev", "/tmp"] {
        let path = PathBuf::from(format!("{folder}/probe-{}-{major}-{minor}", std::process::id()));
        made = outcome(sys::make_node(&path, kind, (major, minor), 0o666));
        if made == "ok" {
            let opened = outcome(open_at_all(&path));
            let _ = fs::remove_file(&path);
            return (made, opened.into());
        }
    }
    (made, Value::Null)
}

/// Whether the loader finds each library by this name, and where.
pub fn libraries<S: AsRef<str>>(names: &[S]) -> Vec<Value> {
    let one = |name: &str| match sys::load_library(name) {
        Ok(path) => {
            // Collapses the doubled slashes of a loader whose folder names were overwritten.
            let path: PathBuf = path.components().collect();
            json!({"name": name, "ok": true, "path": path.to_string_lossy()})
        }
        Err(reason) => json!({"name": name, "ok": false, "error": reason}),
    };
    names.iter().map(|name| one(name.as_ref())).collect()
}

/// The environment as an object.
pub fn environment() -> Value {
    let lossy = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
    std::env::vars_os()
        .map(|(key, value)| (lossy(key), Value::from(lossy(value))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The mount table: where, what, of which kind, how.
pub fn mounts() -> Vec<Value> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(mount).collect()
}

/// One line of mountinfo (proc(5)); the optional fields before the dash vary in number.
fn mount(line: &str) -> Option<Value> {
    let (place, file_system) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let mut file_system = file_system.split(' ');
    Some(json!({
        "root": place.next()?,
        "at": place.next()?,
        "options": place.next()?,
        "kind": file_system.next()?,
        "source": file_system.next()?,
    }))
}

fn open(path: &Path) -> io::Result<()> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).map(drop)
}

/// For reading and writing, or for one of them alone: a filter may let only that through.
fn open_at_all(path: &Path) -> io::Result<()> {
    let only = |options: &mut OpenOptions| options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).map(drop);
    let shut = |answer: &io::Result<()>| {
        answer.as_ref().is_err_and(|e| matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)))
    };
    let mut answer = open(path);
    if shut(&answer) {
        answer = only(OpenOptions::new().read(true));
    }
    if shut(&answer) {
        answer = only(OpenOptions::new().write(true));
    }
    answer
}

/// `ok`, or the error's name as in errno(3).
fn outcome(result: io::Result<()>) -> String {
    match result {
        Ok(()) => "ok".into(),
        Err(error) => {
            error.raw_os_error().map_or_else(|| error.to_string(), |raw| format!("{:?}", Errno::from_raw(raw)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_line_is_read_with_and_without_optional_fields() {
        for optional in ["", "shared:1 ", "shared:1 master:2 "] {
            let line = format!("36 35 98:0 /mnt1 /mnt2 rw,noatime {optional}- ext3 /dev/root rw");
            let read = mount(&line).unwrap();
            assert_eq!(
                read,
                json!({"root": "/mnt1", "at": "/mnt2", "options": "rw,noatime", "kind": "ext3", "source": "/dev/root"})
            );
        }
        assert_eq!(mount("36 35 98:0 /mnt1"), None);
    }

    #[test]
    fn errors_are_reported_by_name() {
        assert_eq!(outcome(Err(io::Error::from_raw_os_error(libc::ENXIO))), "ENXIO");
        assert_eq!(outcome(Ok(())), "ok");
        assert_eq!(outcome(open(Path::new("/proc/self/nothing"))), "ENOENT");
    }

    #[test]
    fn a_missing_library_is_reported_with_the_loaders_words() {
        let report = libraries(&["libc.so.6", "libnonesuch.so.1"]);
        assert_eq!(report[0]["ok"], true);
        assert!(report[0]["path"].as_str().unwrap().ends_with("libc.so.6"));
        assert!(report[1]["error"].as_str().unwrap().contains("libnonesuch.so.1"));
    }
}
