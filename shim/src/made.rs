//! Step 10: a container whose spec is written goes to the low-level runtime, and is looked at before it may run.

use std::path::{Path, PathBuf};

use contract::config::Verify;
use contract::{Code, Contract, Refusal};
use guard::Numbers;
use ledger::Ledger;
use ledger::audit::Kind;
use node::{Node, process};

use crate::argv::Verb;
use crate::broker;
use crate::container::Container;
use crate::decide::{By, Decision};
use crate::handover::{self, Words};
use crate::joined;
use crate::record;
use crate::restore;
use crate::stops;
use crate::verify::{Created, Placed, Wrong};

/// A container whose `config.json` says what it may open, ready for the low-level runtime.
pub(crate) struct Made<'a> {
    pub(crate) container: &'a Container<'a>,
    pub(crate) decision: &'a Decision<'a>,
    pub(crate) system: &'a Node,
    pub(crate) contract: Option<Contract>,
    pub(crate) numbers: Numbers,
    pub(crate) placed: Vec<cdi::Mount>,
    /// Paths that we had masked.
    pub(crate) masked: Vec<String>,
    /// Its device list or its mounts are ours; otherwise only the sources of its mounts may be others than were judged.
    pub(crate) changed: bool,
    /// By what its binds and namespaces were judged, where their paths may lead elsewhere by now.
    pub(crate) by: Option<By<'a>>,
}

impl Made<'_> {
    /// Step 10.
    pub(crate) fn hand_over(self, words: Words) -> Result<i32, Vec<Refusal>> {
        let Container { call, low_level, .. } = self.container;
        if call.verb != Verb::Create {
            let refusal = handover::become_runtime(low_level, &words);
            self.undo(&refusal.message);
            return Err(vec![refusal]);
        }
        let named = call.value("pid-file").map(PathBuf::from);
        let is_ours = named.is_none();
        let own = || self.container.setup.state_dir().join(format!("{}.pid", self.container.key));
        let pid_file = named.unwrap_or_else(own);
        let words = if is_ours { words.with_flag(call, "--pid-file", &pid_file) } else { words };
        stops::at("handing-over");
        let status = handover::run_runtime(low_level, &words);
        stops::at("created");
        let verified = if matches!(status, Ok(0)) { self.verified(&pid_file) } else { Ok(()) };
        if is_ours {
            let _ = std::fs::remove_file(&pid_file);
        }
        match (status, verified) {
            (Ok(0), Ok(())) => Ok(0),
            (Ok(0), Err(why)) => {
                handover::delete_forced(low_level, &self.container.root, call.id);
                let refusal = Refusal::new(
                    Code::VerifyFailed,
                    "verify",
                    why,
                    "the container was removed; look at the node's audit log",
                );
                record::event(Kind::VerifyFailed, self.container, &refusal.message);
                self.undo("it is not what its contract says");
                Err(vec![refusal])
            }
            (failed, _) => {
                match &failed {
                    Ok(status) if *status < 0 => self.undo(&format!("signal {}", -status)),
                    Ok(status) => self.undo(&format!("status {status}")),
                    Err(refusal) => self.undo(&refusal.message),
                }
                failed.map_err(|refusal| vec![refusal])
            }
        }
    }

    fn verified(&self, pid_file: &Path) -> Result<(), String> {
        let init = handover::read_pid(pid_file);
        if let (Some(contract), Ok(init)) = (&self.contract, &init) {
            let ledger = Ledger::open(self.container.setup.state_dir()).map_err(|e| e.to_string())?;
            // A `delete --force` of the same id, between our leases and the container, would have given them away.
            let me = Some(process::me());
            ledger.started(&self.container.key, &contract.gpus, *init, me).map_err(|e| e.to_string())?;
            if self.container.setup.rootless {
                broker::started(self.container.setup, &self.container.key, *init)?;
            }
        }
        if self.container.setup.config.policy.verify == Verify::Off {
            return Ok(());
        }
        let init = match (init, &self.contract) {
            (Err(_), None) => return Ok(()),
            (init, _) => init?,
        };
        let setup = self.container.setup;
        let spec = &self.decision.spec;
        let joined = |by: &By<'_>| {
            joined::of_made((setup, &self.container.key), spec, by.bundle, self.decision.wants_gpu(), init.pid)
        };
        if let Some(why) = self.by.as_ref().and_then(joined) {
            return Err(why);
        }
        let created = Created {
            pid: init.pid,
            base: Path::new("/"),
            decision: self.decision,
            system: self.system,
            numbers: &self.numbers,
            contract: self.contract.as_ref(),
            placed: self.contract.as_ref().map_or_else(Vec::new, |contract| placed(&self.placed, contract)),
            masked: &self.masked,
            changed: self.changed || self.contract.is_some(),
            fresh: true,
            by: self.by,
            setup,
        };
        match created.verify() {
            Err(Wrong::Unknown(_)) if self.contract.is_none() => Ok(()),
            told => told.map_err(|wrong| wrong.to_string()),
        }
    }

    /// Gives everything back, unless a container of this id exists: then it holds what this key holds.
    fn undo(&self, why: &str) {
        if self.container.exists() {
            return;
        }
        if let Ok(ledger) = Ledger::open(self.container.setup.state_dir()) {
            let why = format!("create failed: {why}");
            let _ = restore::end(&ledger, self.container.setup, &self.container.key, &why);
        }
    }
}

/// The files that must lie in the container, by the identity that the contract knows.
pub(crate) fn placed<'a>(mounts: &'a [cdi::Mount], contract: &Contract) -> Vec<Placed<'a>> {
    let files: Vec<(&str, (u64, u64))> = contract
        .libraries
        .iter()
        .map(|l| (l.host_path.as_str(), (l.id.dev, l.id.ino)))
        .chain(contract.files.iter().filter(|f| f.is_pinned()).map(|f| (f.host_path.as_str(), (f.id.dev, f.id.ino))))
        .collect();
    mounts
        .iter()
        .filter_map(|m| {
            files
                .iter()
                .find(|(path, _)| *path == m.source)
                .map(|(_, file)| Placed { path: &m.destination, file: *file })
        })
        .collect()
}
