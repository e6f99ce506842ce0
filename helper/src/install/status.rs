//! What lies on a node of an installation, and which of it nobody needs. Reads only.

use clap::ValueEnum;

use super::record::Record;
use super::used::by_name;
use super::versions::{PROGRAMS, Shelf};
use crate::configure::{Engine, Files, OnNode, state};
use crate::exit::Failure;

/// Versions but the one that counts and the one before, each with a running spec that names it.
pub(super) fn others(
    shelf: &Shelf<'_>,
    states: &[String],
    record: &Record,
    current: &str,
) -> Vec<(String, Option<String>)> {
    let kept = |id: &String| id == current || record.previous.as_ref() == Some(id);
    let others: Vec<String> = shelf.all().into_iter().filter(|id| !kept(id)).collect();
    let users = if others.is_empty() { Vec::new() } else { by_name(shelf, states) };
    let named = |id: String| {
        let folder = shelf.folder(&id);
        let user = users.iter().find(|user| user.names(shelf.node, &folder)).map(|user| user.place.clone());
        (id, user)
    };
    others.into_iter().map(named).collect()
}

/// An installation as it lies on a node.
pub(crate) struct Status {
    /// The folder of the programs.
    pub(crate) prefix: String,
    /// Why the link leads to no whole version, if it does not.
    pub(crate) broken: Option<String>,
    /// Folders of versions that nobody needs.
    pub(crate) stale: Vec<String>,
}

/// What was installed on a node by this command; none where nothing was.
///
/// # Errors
/// The record is not to be trusted.
pub(crate) fn status(root: &str) -> Result<Option<Status>, Failure> {
    let node = OnNode::below(root);
    let Some(record) = Record::read(&node)? else { return Ok(None) };
    let prefix = record.prefix.clone();
    let shelf = Shelf { node: &node, prefix: &prefix };
    let current = shelf.current();
    let missing = |id: &String| {
        let programs = PROGRAMS.iter().map(|name| format!("{}/{name}", shelf.folder(id)));
        programs.into_iter().find(|path| !node.exists(path)).map(|path| format!("{path} is not there"))
    };
    let broken = match &current {
        Ok(Some(id)) => missing(id),
        Ok(None) => Some(format!("there is no link {}", shelf.program(""))),
        Err(failure) => Some(failure.to_string()),
    };
    let engine = Engine::from_str(&record.engine, false).unwrap_or(Engine::Containerd);
    let states = states(&node, engine, record.engine_config.as_deref());
    let current = current.ok().flatten().unwrap_or_default();
    let unneeded = others(&shelf, &states, &record, &current).into_iter().filter(|(_, user)| user.is_none());
    let stale = unneeded.map(|(id, _)| shelf.folder(&id)).collect();
    Ok(Some(Status { prefix, broken, stale }))
}

/// State folders of containerd that its configuration names.
pub(super) fn states(node: &OnNode, engine: Engine, file: Option<&str>) -> Vec<String> {
    if engine == Engine::Containerd { state(node, file).into_iter().collect() } else { Vec::new() }
}
