//! Contracts in force, original specs, and who had which GPU before.
//!
//! A contract decides what a container may open, so it is read only when nobody but root could have written it.

use std::path::Path;

use contract::key::Key;
use contract::{Code, Contract, Refusal, SCHEMA, read, record};
use node::{TrustError, read_trusted};
use serde::Serialize;

use crate::LedgerError;
use crate::files::{self, Locked};
use crate::store::{Ledger, Taker};

/// Most bytes of a contract that are read: a full node's with all libraries is a tenth of it.
pub(crate) const MAX_CONTRACT: usize = 1 << 20;
/// Most bytes of an original that are read: the largest spec, and our line before it.
const MAX_ORIGINAL: usize = contract::json::MAX_BYTES + (64 << 10);
/// Most keys whose last GPUs are remembered.
const MAX_HISTORY: usize = 512;
/// Most digests kept beside one original.
const MAX_WRITTEN: usize = 8;
const HISTORY: &str = "history";
/// Most bytes of it that are read: a line names a key and its GPUs.
const MAX_HISTORY_BYTES: u64 = 4 << 20;

/// What lies under a key: its contract, or why that is not trusted.
pub type Filed = (Key, Result<Contract, Refusal>);

/// A spec as it was before our edits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Original {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Digests of what we wrote instead of it, newest last: a crash can leave the one before on disk.
    pub written: Vec<String>,
    /// Where it lies.
    pub config_path: String,
}

impl Original {
    /// Whether a `config.json` with this digest is our work.
    #[must_use]
    pub fn is_ours(&self, digest: &str) -> bool {
        self.written.iter().any(|written| written == digest)
    }

    /// One line about the spec, then its bytes as they are: one file, so that both are old or both are new.
    fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let head = Head { version: 1, config_path: self.config_path.clone(), written: self.written.clone() };
        let mut bytes = serde_json::to_vec(&head)?;
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.bytes);
        Ok(bytes)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|b| *b == b'\n')?;
        let (line, rest) = bytes.split_at_checked(end)?;
        let head: Head = read::document(line).ok()?;
        (head.version == 1).then(|| Self {
            bytes: rest.get(1..).unwrap_or_default().to_vec(),
            written: head.written,
            config_path: head.config_path,
        })
    }
}

#[derive(Serialize)]
struct Head {
    version: u32,
    config_path: String,
    written: Vec<String>,
}

record!(Head { version, config_path, written });

fn contract_path(key: &Key) -> String {
    format!("contracts/{key}.json")
}

fn original_path(key: &Key) -> String {
    format!("originals/{key}")
}

impl Ledger {
    /// Puts a contract in force for a container that holds its leases already. Gives the bytes that stand for it.
    ///
    /// # Errors
    /// It cannot be written; the one before stays.
    pub fn put_contract(&self, contract: &Contract, key: &Key) -> Result<Vec<u8>, LedgerError> {
        self.place_contract(&self.lock()?, contract, key)
    }

    fn place_contract(&self, locked: &Locked, contract: &Contract, key: &Key) -> Result<Vec<u8>, LedgerError> {
        let path = contract_path(key);
        let bytes = serde_json::to_vec(contract).map_err(|e| LedgerError::new("write", &self.path(&path), &e))?;
        locked.place(&path, &bytes).map(|()| bytes)
    }

    /// The contract in force for a container.
    ///
    /// # Errors
    /// `CONTRACT_UNTRUSTED` when others than root could have written it, or when it is not exactly a contract for this key.
    pub fn contract(&self, key: &Key) -> Result<Option<Contract>, Refusal> {
        // Most containers that somebody asks about have none: one look settles it.
        if !self.has_contract(key) {
            return Ok(None);
        }
        let path = self.path(&contract_path(key));
        let Some(bytes) = trusted(&path, MAX_CONTRACT)? else { return Ok(None) };
        let contract =
            parse_contract(&bytes).map_err(|why| untrusted("contract-schema", format!("{}: {why}", path.display())))?;
        if contract.key.as_deref() == Some(key.as_str()) {
            Ok(Some(contract))
        } else {
            Err(untrusted("contract-binding", format!("{} is for another container", path.display())))
        }
    }

    /// All contracts in force, by key.
    ///
    /// # Errors
    /// The folder cannot be listed. A contract that is not trusted is an error of its own in the list.
    pub fn contracts(&self) -> Result<Vec<Filed>, LedgerError> {
        let names = files::names(&self.path("contracts"))?;
        let mut keys: Vec<Key> = names.iter().filter_map(|name| Key::parse(name.strip_suffix(".json")?)).collect();
        contract::order::sort(&mut keys);
        Ok(keys.into_iter().filter_map(|key| self.contract(&key).transpose().map(|contract| (key, contract))).collect())
    }

    /// Keeps the bytes of a spec before it is replaced by one with digest `written` (SHA-256, hexadecimal), after its contract,
    /// where it has one, was put in force. Gives the bytes that stand for the contract.
    ///
    /// Call it before the spec is replaced: whichever of the two a crash leaves there is then recognised.
    ///
    /// # Errors
    /// One of them cannot be written; what was kept before stays.
    pub fn keep_original(
        &self,
        key: &Key,
        contract: Option<&Contract>,
        original: &[u8],
        written: &str,
        config_path: &str,
    ) -> Result<Vec<u8>, LedgerError> {
        let locked = self.lock()?;
        let document = contract.map(|contract| self.place_contract(&locked, contract, key)).transpose()?;
        let before = self.original(key).filter(|before| before.bytes == original && before.config_path == config_path);
        let mut digests = before.map(|before| before.written).unwrap_or_default();
        digests.retain(|digest| digest != written);
        digests.push(written.to_owned());
        let excess = digests.len().saturating_sub(MAX_WRITTEN);
        digests.drain(..excess);
        let path = original_path(key);
        let kept = Original { bytes: original.to_vec(), written: digests, config_path: config_path.to_owned() };
        let bytes = kept.to_bytes().map_err(|e| LedgerError::new("write", &self.path(&path), &e))?;
        locked.place(&path, &bytes).map(|()| document.unwrap_or_default())
    }

    /// The spec that a container had before our edits; nothing when none is kept, or what is kept cannot be trusted.
    #[must_use]
    pub fn original(&self, key: &Key) -> Option<Original> {
        // Almost every create asks this about a container that was never here: one look settles it.
        if !self.has_original(key) {
            return None;
        }
        Original::parse(&trusted(&self.path(&original_path(key)), MAX_ORIGINAL).ok()??)
    }

    /// Removes the contract and the original of a container. [`Ledger::release`] does it too.
    ///
    /// # Errors
    /// One of them cannot be removed.
    pub fn forget(&self, key: &Key) -> Result<(), LedgerError> {
        self.forget_locked(&self.lock()?, key)
    }

    pub(crate) fn forget_locked(&self, locked: &Locked, key: &Key) -> Result<(), LedgerError> {
        self.drop_contract(locked, key)?;
        locked.remove(&original_path(key)).map(|_| ())
    }

    pub(crate) fn drop_contract(&self, locked: &Locked, key: &Key) -> Result<(), LedgerError> {
        locked.remove(&contract_path(key)).map(|_| ())
    }

    pub(crate) fn has_contract(&self, key: &Key) -> bool {
        // Whatever lies there is looked at: a link is none, and not nothing.
        let there = self.path(&contract_path(key)).symlink_metadata();
        there.map_or_else(|error| error.kind() != std::io::ErrorKind::NotFound, |_| true)
    }

    pub(crate) fn has_original(&self, key: &Key) -> bool {
        self.path(&original_path(key)).exists()
    }

    /// Offers every original whose container was reclaimed to `put_back`, and forgets those it says it has dealt with.
    ///
    /// Runs under the ledger's lock, so no create of the same container can be between its lease and its spec;
    /// `put_back` must not call the ledger.
    ///
    /// # Errors
    /// The folders cannot be listed, or one cannot be removed.
    pub fn orphans(&self, put_back: &mut dyn FnMut(&Key, &Original) -> bool) -> Result<(), LedgerError> {
        let locked = self.lock()?;
        let leases = self.names()?;
        for key in files::names(&self.path("originals"))?.iter().filter_map(|name| Key::parse(name)) {
            if leases.iter().any(|lease| lease.tag == key.as_str()) {
                continue;
            }
            if self.original(&key).is_some_and(|original| put_back(&key, &original)) {
                self.forget_locked(&locked, &key)?;
            }
        }
        Ok(())
    }

    fn history(&self) -> String {
        let bytes = files::read(&self.path(HISTORY), MAX_HISTORY_BYTES).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    }

    /// The PCI addresses that a taker had last; none when that is not remembered.
    pub(crate) fn previous(&self, taker: &Taker<'_>) -> Vec<String> {
        // Advice only: an unreadable history means that another GPU may be chosen.
        let text = taker.history.get_or_init(|| self.history());
        let line = text.lines().find_map(|line| line.strip_prefix(taker.memory)?.strip_prefix(' '));
        line.map(|pcis| pcis.split(' ').map(str::to_owned).collect()).unwrap_or_default()
    }

    /// Remembers what a taker has, newest last, the oldest forgotten.
    pub(crate) fn remember(&self, locked: &Locked, taker: &Taker<'_>, pcis: &[String]) -> Result<(), LedgerError> {
        let (key, text) = (taker.memory, taker.history.get_or_init(|| self.history()));
        let others: Vec<&str> =
            text.lines().filter(|line| line.strip_prefix(key).is_none_or(|rest| !rest.starts_with(' '))).collect();
        let kept = others.len().min(MAX_HISTORY - 1);
        let mut out = String::with_capacity(text.len() + 64);
        for line in others.get(others.len() - kept..).unwrap_or_default() {
            out.push_str(line);
            out.push('\n');
        }
        out.push_str(&format!("{key} {}\n", pcis.join(" ")));
        locked.place(HISTORY, out.as_bytes())
    }
}

/// Reads a file that only root could have written; nothing when it is not there.
pub(crate) fn trusted(path: &Path, max: usize) -> Result<Option<Vec<u8>>, Refusal> {
    match read_trusted(path, max) {
        Ok(file) => Ok(Some(file.bytes)),
        Err(TrustError::Missing(_)) => Ok(None),
        Err(error) => Err(untrusted("contract-file", error.to_string())),
    }
}

/// Reads a contract strictly: unknown or repeated fields, and anything after its end, are errors.
fn parse_contract(bytes: &[u8]) -> Result<Contract, String> {
    let contract: Contract = read::document(bytes).map_err(|e| e.to_string())?;
    if contract.schema == SCHEMA {
        Ok(contract)
    } else {
        Err(format!("it has layout {}, this version knows {SCHEMA}", contract.schema))
    }
}

pub(crate) fn untrusted(rule: &'static str, message: impl Into<String>) -> Refusal {
    Refusal::new(
        Code::ContractUntrusted,
        rule,
        message,
        "reserve or ask for GPUs again; on the node, `quilt-gpu contract show` lists what is in force",
    )
}

#[cfg(test)]
mod tests;
