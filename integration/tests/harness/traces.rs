//! What an engine leaves on the machine: looked for from outside its room.

use std::fs;
use std::path::{Path, PathBuf};

/// Where to look.
pub(crate) struct Traces {
    folder: PathBuf,
    sockets: Vec<PathBuf>,
}

impl Traces {
    /// Of the engine in that folder, which is up.
    pub(crate) fn of(folder: &Path) -> Self {
        let mut sockets = Vec::new();
        walk(folder, &mut |path| {
            let of_shim = path.ends_with("address") || path.ends_with("bootstrap.json");
            let text = if of_shim { fs::read_to_string(path).unwrap_or_default() } else { String::new() };
            let names = text.split("unix://").skip(1).filter_map(|rest| rest.split('"').next());
            sockets.extend(names.map(|name| PathBuf::from(name.trim())));
        });
        Self { folder: folder.to_owned(), sockets }
    }

    /// Processes, mounts, cgroups, state of runtimes, sockets of shims, and the folder.
    pub(crate) fn found(&self) -> Vec<String> {
        let below = format!("{}/", self.folder.display());
        // crun writes \/ for a slash.
        let text = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).replace("\\/", "/");
        let names = |path: &Path| text(path).contains(&below);
        let mut found = Vec::new();
        for process in children(Path::new("/proc")) {
            // Mounts of a room are in the mount table of what runs in it.
            if names(&process.join("cmdline")) || names(&process.join("mountinfo")) {
                let words = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
                found.push(format!("{}: {}", process.display(), words.replace('\0', " ")));
            }
        }
        let name = self.folder.file_name();
        walk(Path::new("/sys/fs/cgroup"), &mut |path| {
            if path.file_name() == name {
                found.push(path.display().to_string());
            }
        });
        for parent in ["/run/runc", "/run/crun", "/run/youki"] {
            for state in children(Path::new(parent)) {
                if names(&state.join("state.json")) || names(&state.join("status")) {
                    found.push(state.display().to_string());
                }
            }
        }
        let paths = self.sockets.iter().chain([&self.folder]);
        found.extend(paths.filter(|path| path.exists()).map(|path| path.display().to_string()));
        found
    }
}

fn children(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn walk(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    for path in children(folder) {
        visit(&path);
        if path.is_dir() && !path.is_symlink() {
            walk(&path, visit);
        }
    }
}
