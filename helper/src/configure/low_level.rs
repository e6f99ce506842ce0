//! The link beside our configuration that names the low-level runtime. Made where there is none; one that is there is
//! the operator's.

use std::os::unix::fs::symlink;
use std::path::Path;

use contract::config::LOW_LEVEL_LINK;

use super::on_node::OnNode;
use super::plan::Files;
use crate::exit::Failure;

/// Where runc and crun are installed, the likeliest first; the engine's own comes before, and our embedded one last.
const PLACES: [&str; 12] = [
    "/usr/local/sbin/runc",
    "/usr/local/bin/runc",
    "/usr/sbin/runc",
    "/usr/bin/runc",
    "/usr/local/sbin/crun",
    "/usr/local/bin/crun",
    "/usr/sbin/crun",
    "/usr/bin/crun",
    "/usr/libexec/crio/runc",
    "/usr/libexec/crio/crun",
    "/usr/local/bin/quilt-gpu-engine",
    "/usr/bin/quilt-gpu-engine",
];

/// Makes the link in `folder` on the node, unless one is there; says what it did or what is missing.
///
/// # Errors
/// The link cannot be made.
pub(crate) fn link(root: &str, folder: &str, likely: &[String], dry_run: bool) -> Result<Option<String>, Failure> {
    let node = OnNode::below(root);
    let named = format!("{folder}/{LOW_LEVEL_LINK}");
    // Its folder may be a link of the node's, which leads below the node's root.
    let cannot = |cause: std::io::Error| Failure::Internal(format!("cannot make the link {named}: {cause}"));
    let real = node.real(folder).map_err(cannot)?;
    let place = real.as_ref().map(|folder| folder.join(LOW_LEVEL_LINK));
    if place.as_ref().is_some_and(|place| std::fs::symlink_metadata(place).is_ok()) {
        return Ok(None);
    }
    let known = likely.iter().map(String::as_str).chain(PLACES);
    let Some(target) = known.into_iter().find(|path| node.exists(path)) else {
        let why = format!("no runc or crun was found here: install one, then ln -s PROGRAM {named}");
        return Ok(Some(why));
    };
    let Some(place) = place else {
        return Ok(Some(format!("containers are made by {target}, as there is no {folder} that names another")));
    };
    if !dry_run {
        symlink(Path::new(target), &place).map_err(cannot)?;
    }
    Ok(Some(format!("containers are made by {target}, which the link {named} names from now on")))
}
