//! Sockets of the driver's daemons: on the node itself, wherever the driver's files lie. Only looked at, never opened.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use contract::capability::Capability::{self, Compute, Utility};
use contract::config::Host;
use contract::inventory::{FileId, FileKind};

use super::files::{Candidate, Extra};

/// The daemon, its socket or folder below the root, and which capabilities have a use for it.
const SOCKETS: [(FileKind, &str, &[Capability]); 3] = [
    (FileKind::Persistenced, "run/nvidia-persistenced/socket", &[Utility]),
    (FileKind::Fabricmanager, "run/nvidia-fabricmanager/socket", &[Utility]),
    (FileKind::Mps, "tmp/nvidia-mps", &[Compute]),
];

/// Those that are there; links are nobody's socket. `/tmp` is everybody's: what stands there must be root's.
pub(crate) fn files(host: &Host) -> Vec<Extra> {
    let look = |(kind, name, capabilities): (FileKind, &str, &[Capability])| {
        let real = host.path(name);
        let there = fs::symlink_metadata(&real).ok()?;
        let is = there.file_type().is_socket() || kind == FileKind::Mps && there.is_dir();
        let id = FileId {
            dev: there.dev(),
            ino: there.ino(),
            size: there.size(),
            ctime: there.ctime(),
            ctime_nsec: there.ctime_nsec(),
        };
        // Whoever may connect to a socket may write it; what counts is whose it is.
        let ours = kind != FileKind::Mps || there.uid() == 0;
        let candidate = Candidate { real, tree: "", found_by: format!("/{name}"), id, fault: None };
        let capabilities = capabilities.to_vec();
        (is && ours).then(|| Extra { path: format!("/{name}"), kind, capabilities, candidate, leads: None })
    };
    SOCKETS.into_iter().filter_map(look).collect()
}
