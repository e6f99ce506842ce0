//! `quilt-gpu audit --all`: every container that runs, held against its contract, and what differs.

use std::collections::BTreeMap;

use ledger::audit;
use serde_json::{Value, json};
use shim::Setup;
use shim::live::{self, Looked, Recorded, State};

use super::string;
use crate::exit::Failure;
use crate::table;

/// Looks at all of them, by what the log says of each key.
pub(crate) fn look(setup: &Setup) -> Result<Vec<Looked>, Failure> {
    let mut recorded = BTreeMap::new();
    audit::read(setup.log_dir(), |entry| {
        if string(entry, "kind") == "create" {
            let text = |field| string(entry, field).to_owned();
            let digest = Some(text("contract_digest")).filter(|digest| !digest.is_empty());
            let of_key =
                Recorded { container: text("container"), state_root: text("state_root"), contract_digest: digest };
            recorded.insert(text("key"), of_key);
        }
        false
    })
    .map_err(Failure::internal)?;
    live::look(setup, &|key| recorded.get(key.as_str()).cloned()).map_err(Failure::internal)
}

/// Whether any of them is not as decided.
pub(crate) fn any(list: &[Looked]) -> bool {
    list.iter().any(|looked| matches!(looked.state, State::Drift(_)))
}

/// For machines.
pub(crate) fn document(list: &[Looked]) -> Value {
    list.iter()
        .map(|looked| {
            let (state, why) = match &looked.state {
                State::Holds => ("holds", Value::Null),
                State::Gone => ("gone", Value::Null),
                State::Unknown(why) => ("unknown", why.as_str().into()),
                State::Drift(_) => ("drift", Value::Null),
            };
            let differences: Vec<Value> =
                differences(&looked.state).map(|(what, message)| json!({ "what": what, "message": message })).collect();
            json!({
                "key": looked.key.as_str(),
                "container": looked.container,
                "pod": looked.pod,
                "gpus": looked.gpus,
                "state": state,
                "why": why,
                "differences": differences,
            })
        })
        .collect()
}

fn differences(state: &State) -> impl Iterator<Item = (&'static str, &str)> {
    let list = if let State::Drift(list) = state { list.as_slice() } else { &[] };
    list.iter().map(|difference| (difference.what, difference.message.as_str()))
}

/// What people call a container.
pub(crate) fn who(looked: &Looked) -> String {
    table::in_pod(Some(&json!(looked.pod))).unwrap_or_else(|| table::short(&looked.container).to_owned())
}

/// For people: one line for each difference.
pub(crate) fn text(list: &[Looked]) -> String {
    let rows: Vec<[String; 4]> = list
        .iter()
        .flat_map(|looked| {
            let who = who(looked);
            let row = |state: &str, why: &str| [who.clone(), looked.gpus.join(","), state.to_owned(), why.to_owned()];
            match &looked.state {
                State::Holds => vec![row("holds", "")],
                State::Gone => vec![row("not running", "")],
                State::Unknown(why) => vec![row("unknown", why)],
                state => differences(state).map(|(what, message)| row(&format!("{what} differs"), message)).collect(),
            }
        })
        .collect();
    if rows.is_empty() {
        return "no container with a contract, or with a spec that was changed, is known\n".to_owned();
    }
    table::render(["WHO", "GPUS", "STATE", "WHY"], &rows)
}
