//! What must be known of the machine to tell whether a holder still lives, as one trait, so that tests make worlds up.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use node::process::Process;

/// Facts about holders. An error means "not known", never "no".
pub trait Liveness {
    /// The id of this boot.
    ///
    /// # Errors
    /// Why it cannot be told.
    fn boot_id(&self) -> Result<String, String>;
    /// Seconds since the boot, time asleep included (`CLOCK_BOOTTIME`).
    ///
    /// # Errors
    /// Why it cannot be told.
    fn boot_seconds(&self) -> Result<u64, String>;
    /// Whether this very process still runs; a zombie does not.
    fn is_alive(&self, process: Process) -> bool;
    /// The pid and the cgroup namespace that all of this is seen from; 0 for one that cannot be told.
    fn namespaces(&self) -> (u64, u64);
    /// Whether there is something at this path, a dangling link included.
    ///
    /// # Errors
    /// Why it cannot be told.
    fn exists(&self, path: &Path) -> Result<bool, String>;
    /// Whether no process is in this cgroup or below it, in any hierarchy; one that does not exist is empty.
    ///
    /// # Errors
    /// Why it cannot be told.
    fn cgroup_is_empty(&self, cgroup: &str) -> Result<bool, String>;
    /// The mount namespace of a process that is in our own pid namespace, by its inode.
    fn mounts_among_ours(&self, pid: u32) -> Option<u64>;
    /// A process in this mount namespace that has NVIDIA's device of this number open.
    fn with_open(&self, mounts: u64, minor: u32) -> Option<u32>;
}

/// The machine this runs on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Machine;

impl Liveness for Machine {
    fn boot_id(&self) -> Result<String, String> {
        node::boot_id().map_err(|e| e.to_string())
    }

    fn boot_seconds(&self) -> Result<u64, String> {
        // proc_uptime(5) is CLOCK_BOOTTIME: "350735.47 234388.90".
        let path = "/proc/uptime";
        let text = fs::read_to_string(path).map_err(|e| format!("cannot read {path}: {e}"))?;
        text.split('.')
            .next()
            .and_then(|whole| whole.parse().ok())
            .ok_or_else(|| format!("cannot read {path}: it holds {text:?}"))
    }

    fn is_alive(&self, process: Process) -> bool {
        node::process::is_alive(process.pid, process.start)
    }

    fn namespaces(&self) -> (u64, u64) {
        node::process::namespaces()
    }

    fn exists(&self, path: &Path) -> Result<bool, String> {
        match fs::symlink_metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
            Err(error) => Err(format!("cannot look at {}: {error}", path.display())),
        }
    }

    fn cgroup_is_empty(&self, cgroup: &str) -> Result<bool, String> {
        node::cgroup::is_empty(cgroup)
    }

    fn mounts_among_ours(&self, pid: u32) -> Option<u64> {
        node::process::mounts_among_ours(pid)
    }

    fn with_open(&self, mounts: u64, minor: u32) -> Option<u32> {
        node::process::with_open(mounts, minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_and_another_start_is_another_process() {
        let me = node::process::me();
        assert!(Machine.is_alive(me));
        assert!(!Machine.is_alive(Process { start: me.start + 1, ..me }));
        assert!(!Machine.is_alive(Process { pid: u32::MAX, start: 1 }));
    }

    #[test]
    fn clock_and_paths() {
        assert!(Machine.boot_seconds().unwrap() > 0);
        assert_eq!(Machine.boot_id().unwrap().len(), 36);
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert_eq!(Machine.exists(&link), Ok(true));
        assert_eq!(Machine.exists(&dir.path().join("absent/deeper")), Ok(false));
        assert!(Machine.exists(&dir.path().join("x".repeat(300))).is_err());
    }
}
