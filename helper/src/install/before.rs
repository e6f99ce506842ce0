//! What can fail is looked at before anything is changed: whether folders can be written, programs started where they go
//! to lie, and the engine restarted. It changes nothing.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access};

use super::versions::Programs;
use super::{Ask, record};
use crate::configure::{Files, OnNode, Outcome};
use crate::exit::Failure;

/// Where a node's own commands are.
const COMMANDS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
/// And a snap's.
const SNAPS: &str = "/snap/bin";

/// Whether an installation can be carried out, as far as that can be seen. `programs`: where they are not there yet.
///
/// # Errors
/// What would fail first, and why.
pub(super) fn judge(
    ask: &Ask<'_>,
    node: &OnNode,
    planned: &Outcome,
    programs: Option<&Programs>,
) -> Result<(), Failure> {
    if let Some(programs) = programs {
        fits(node, ask.prefix, programs)?;
    }
    let engines = planned.changes.iter().map(|change| change.path.as_str());
    for path in [ask.prefix, record::FOLDER, super::FOLDER].into_iter().chain(engines) {
        writable(node, path)?;
    }
    let command = planned.restart.as_deref().filter(|_| ask.restart && !planned.changes.is_empty());
    command.map_or(Ok(()), |words| startable(node, words))
}

/// Whether a file can be replaced, or something made where nothing is yet.
pub(super) fn writable(node: &OnNode, path: &str) -> Result<(), Failure> {
    let mut there = nearest(node, path)?;
    if there.is_file() {
        there.pop();
    }
    access(&there, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|cause| {
        let cause = std::io::Error::from(cause);
        Failure::Wrong(format!("nothing was changed: {path} cannot be written, as {} cannot: {cause}", there.display()))
    })
}

/// Whether programs can lie and be started below this folder of the node's, and be exchanged by root alone.
fn fits(node: &OnNode, prefix: &str, programs: &Programs) -> Result<(), Failure> {
    let there = nearest(node, prefix)?;
    let wrong = |why: String| Err(Failure::Wrong(format!("{why}; use another --prefix")));
    if !there.is_dir() {
        return wrong(format!("{} is no folder", there.display()));
    }
    let file = there.join("quilt-gpu").display().to_string();
    if let Some(why) = node::exchangeable([file.as_str()].into_iter(), &node.root().display().to_string()) {
        return wrong(format!("{why}: engines run what lies there as root"));
    }
    let about = statvfs(&there)
        .map_err(|cause| Failure::Internal(format!("cannot look at the file system of {prefix}: {cause}")))?;
    if about.flags().contains(FsFlags::ST_NOEXEC) {
        return wrong(format!("the file system of {prefix} is mounted noexec: engines could start no program there"));
    }
    let (free, needed) = (about.blocks_available() * about.fragment_size(), programs.size());
    if free < needed {
        return wrong(format!("{prefix} has room for {} KiB, and the programs have {} KiB", free >> 10, needed >> 10));
    }
    Ok(())
}

/// Whether the node has this command.
fn startable(node: &OnNode, words: &[String]) -> Result<(), Failure> {
    let Some(name) = words.first() else { return Ok(()) };
    let has = |folder: &str| node.exists(&format!("{folder}/{name}"));
    if COMMANDS.into_iter().chain([SNAPS]).any(has) {
        return Ok(());
    }
    let why = format!("nothing was changed: there is no {name} on this node to run `{}` with", words.join(" "));
    Err(Failure::Wrong(format!("{why}; leave out --restart, and restart the engine by yourself")))
}

/// What a path leads to, or the last above it that is there.
fn nearest(node: &OnNode, folder: &str) -> Result<PathBuf, Failure> {
    for above in Path::new(folder).ancestors().filter_map(Path::to_str) {
        let cannot = |cause| Failure::Internal(format!("cannot look at {above}: {cause}"));
        if let Some(there) = node.real(above).map_err(cannot)? {
            return Ok(there);
        }
    }
    Ok(node.root().to_owned())
}
