//! What was installed on a node from outside, so that it can be taken back: beside the records of what engines were
//! told.

use std::path::Path;

use node::{Mode, TrustError, read_trusted, write_atomic};
use serde::{Deserialize, Serialize};

use crate::configure::{Files, OnNode};
use crate::exit::Failure;

/// Its folder, which undoing `configure` uses too.
pub(super) const FOLDER: &str = "/var/lib/quilt-gpu";
const FILE: &str = "/var/lib/quilt-gpu/installed.json";
const SCHEMA: u32 = 1;
const MOST: usize = 1 << 20;

/// One installation; a node has at most one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    schema: u32,
    /// The folder of the programs.
    pub(super) prefix: String,
    /// The engine that was told.
    pub(super) engine: String,
    /// Its file, where the operator named it.
    pub(super) engine_config: Option<String>,
    /// Digest of our configuration, where it was made here.
    pub(super) config: Option<String>,
    /// What the link to the low-level runtime was made to lead to, where it was made here; empty while it is being made.
    pub(super) low_level: Option<String>,
    /// The version before the one that counts: a start that began with it may not be over.
    pub(super) previous: Option<String>,
    /// The engine was to be restarted, and that is not known to have happened.
    pub(super) restart_due: bool,
    /// Folders that were made, outermost first.
    pub(super) folders: Vec<String>,
}

impl Record {
    pub(super) fn new(prefix: &str, engine: &str, engine_config: Option<&str>) -> Self {
        Self {
            schema: SCHEMA,
            prefix: prefix.to_owned(),
            engine: engine.to_owned(),
            engine_config: engine_config.map(str::to_owned),
            config: None,
            low_level: None,
            previous: None,
            restart_due: false,
            folders: Vec::new(),
        }
    }

    /// The node's record.
    ///
    /// # Errors
    /// It is there and not to be trusted.
    pub(super) fn read(node: &OnNode) -> Result<Option<Self>, Failure> {
        // Links of the node's folders are followed below its root, and then nothing on the way may be one.
        let cannot = |cause| Failure::Internal(format!("cannot look at {FILE}: {cause}"));
        let Some(path) = node.real(FILE).map_err(cannot)? else { return Ok(None) };
        let bytes = match read_trusted(&path, MOST) {
            Ok(trusted) => trusted.bytes,
            Err(TrustError::Missing(_)) => return Ok(None),
            Err(error) => {
                return Err(Failure::Internal(format!("cannot use the record of what is installed: {error}")));
            }
        };
        let record: Self = serde_json::from_slice(&bytes)
            .map_err(|cause| Failure::Internal(format!("cannot read {}: {cause}", path.display())))?;
        match record.schema {
            SCHEMA => Ok(Some(record)),
            other => Err(Failure::Wrong(format!(
                "{} is of schema {other}, and this program knows {SCHEMA}: use the version that wrote it",
                path.display()
            ))),
        }
    }

    /// Writes it, in place of the one before.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write(&self, node: &OnNode) -> Result<(), Failure> {
        let folder = node.make_folder(FOLDER)?;
        let path = folder.join("installed.json");
        let cannot = |cause| Failure::Internal(format!("cannot write {}: {cause}", path.display()));
        write_atomic(&path, &serde_json::to_vec_pretty(self)?, Mode::root(0o600), true).map_err(cannot)
    }

    /// Folders up to this one that are not there are to go with the installation.
    pub(super) fn will_make(&mut self, node: &OnNode, folder: &str) {
        let above = Path::new(folder).ancestors().filter_map(Path::to_str);
        let missing: Vec<String> = above.filter(|path| !node.exists(path)).map(str::to_owned).collect();
        self.folders.extend(missing.into_iter().rev());
    }

    /// Removes it, after those folders that were made and are empty now.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(super) fn forget(&self, node: &OnNode) -> Result<(), Failure> {
        node.remove_empty(&self.folders);
        node.remove(FILE, &[])
    }
}
