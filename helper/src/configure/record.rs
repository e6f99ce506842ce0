//! What an undo needs, kept where a boot does not remove it and only root writes: one file for each engine and main
//! file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use node::{Mode, TrustError, read_trusted, write_atomic};
use serde::{Deserialize, Serialize};

use super::on_node::OnNode;
use super::plan::{Done, Files};
use crate::exit::Failure;

/// The state folder of everything else is gone with the boot; what engines are told is not.
const FOLDER: &str = "/var/lib/quilt-gpu/configured";
const SCHEMA: u32 = 1;
const MOST: usize = 32 << 20;

/// One engine that was configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) schema: u32,
    pub(super) engine: String,
    /// The engine's file, where the operator named it.
    pub(super) file: Option<String>,
    /// Its files as we left them.
    pub(super) files: Vec<Done>,
    /// Folders that were made for them, outermost first.
    pub(super) folders: Vec<String>,
}

impl Record {
    pub(super) fn new(engine: &str, file: Option<&str>) -> Self {
        let (engine, file) = (engine.to_owned(), file.map(str::to_owned));
        Self { schema: SCHEMA, engine, file, files: Vec::new(), folders: Vec::new() }
    }

    /// Every record of a node.
    ///
    /// # Errors
    /// One is not to be trusted.
    pub(super) fn all(node: &OnNode) -> Result<Vec<Self>, Failure> {
        let names = node.names(FOLDER).into_iter().filter(|name| name.ends_with(".json"));
        let folder = folder(node)?;
        let read = names.map(|name| Self::at(&folder.join(name)));
        Ok(read.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// The record of this engine and file.
    ///
    /// # Errors
    /// It is there and not to be trusted.
    pub(super) fn read(node: &OnNode, engine: &str, file: Option<&str>) -> Result<Option<Self>, Failure> {
        Self::at(&path(node, engine, file)?)
    }

    fn at(path: &Path) -> Result<Option<Self>, Failure> {
        let bytes = match read_trusted(path, MOST) {
            Ok(trusted) => trusted.bytes,
            Err(TrustError::Missing(_)) => return Ok(None),
            Err(error) => return Err(Failure::Internal(format!("cannot use the record of what was changed: {error}"))),
        };
        let record: Self = serde_json::from_slice(&bytes)
            .map_err(|cause| Failure::Internal(format!("cannot read {}: {cause}", path.display())))?;
        if record.schema != SCHEMA {
            let why = format!("{} is of schema {}, and this program knows {SCHEMA}", path.display(), record.schema);
            return Err(Failure::Wrong(why));
        }
        Ok(Some(record))
    }

    /// Writes it, in place of the one before.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write(&self, node: &OnNode) -> Result<(), Failure> {
        let folder = node.make_folder(FOLDER)?;
        let path = path(node, &self.engine, self.file.as_deref())?;
        let failed =
            |cause: &dyn std::fmt::Display| Failure::Internal(format!("cannot write {}: {cause}", path.display()));
        // Copies of configurations: others may not be allowed to read those.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).map_err(|cause| failed(&cause))?;
        let bytes = serde_json::to_vec_pretty(self)?;
        write_atomic(&path, &bytes, Mode::root(0o600), true).map_err(|cause| failed(&cause))
    }

    /// Removes it.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(super) fn forget(node: &OnNode, engine: &str, file: Option<&str>) -> Result<(), Failure> {
        let path = path(node, engine, file)?;
        fs::remove_file(&path).map_err(|cause| Failure::Internal(format!("cannot remove {}: {cause}", path.display())))
    }
}

/// Where records are: links of the node's folders are followed below its root, and then nothing on the way may be one.
fn folder(node: &OnNode) -> Result<PathBuf, Failure> {
    let cannot = |cause| Failure::Internal(format!("cannot look at {FOLDER}: {cause}"));
    let real = node.real(FOLDER).map_err(cannot)?;
    real.map_or_else(|| node.fresh(FOLDER).map(|(place, _)| place), Ok).map_err(cannot)
}

fn path(node: &OnNode, engine: &str, file: Option<&str>) -> Result<PathBuf, Failure> {
    let which = file.map(|file| contract::key::sha256(file.as_bytes()));
    let which = which.as_deref().and_then(|digest| digest.get(..12)).map(|digest| format!("-{digest}"));
    Ok(folder(node)?.join(format!("{engine}{}.json", which.unwrap_or_default())))
}
