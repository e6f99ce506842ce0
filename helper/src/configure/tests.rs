//! Round trips over a zoo of files, without a disk: configured, configured again, taken back; and what must be refused.

use std::collections::BTreeMap;

use super::Engine;
use super::plan::{Done, Files, Plan, Stop, Wanted};
use super::text::Trouble;

mod disk;
mod refused;
mod zoo;

/// A node's files in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node(BTreeMap<String, String>);

impl Node {
    fn of(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    fn plan(&self, engine: Engine, default: bool) -> Result<Plan, Stop> {
        let hook = matches!(engine, Engine::Podman).then(|| "/usr/bin/quilt-gpu-hook".to_owned());
        let wanted = Wanted { program: "/usr/bin/quilt-gpu-runtime".into(), hook, default, file: None };
        engine.plan(self, &wanted)
    }

    /// Carries a plan out, as `apply` does on a disk.
    fn apply(&mut self, plan: &Plan) -> Vec<Done> {
        let mut out = Vec::new();
        for draft in plan.drafts.iter().filter(|draft| draft.changes()) {
            self.0.insert(draft.path.clone(), draft.after.clone());
            out.push(Done {
                path: draft.path.clone(),
                format: draft.format,
                before: draft.before.clone(),
                after: contract::key::sha256(draft.after.as_bytes()),
                place: draft.place.clone(),
            });
        }
        out
    }

    /// Takes it back; whether every file was as it was left.
    fn undo(&mut self, done: &[Done]) -> bool {
        let mut exact = true;
        for file in done {
            let reverted = file.reverted(self.0.get(&file.path).map(String::as_str)).unwrap();
            exact &= reverted.exact;
            match reverted.text {
                Some(text) => self.0.insert(file.path.clone(), text),
                None => self.0.remove(&file.path),
            };
        }
        exact
    }
}

impl Files for Node {
    fn text(&self, path: &str) -> Result<Option<String>, Trouble> {
        Ok(self.0.get(path).cloned())
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let below = self.0.keys().filter_map(|path| path.strip_prefix(folder)?.strip_prefix('/'));
        below.filter(|name| !name.contains('/')).map(str::to_owned).collect()
    }

    fn exists(&self, path: &str) -> bool {
        self.0.keys().any(|known| known == path || known.starts_with(&format!("{path}/")))
    }
}
