//! Who had which GPU from when to when, out of the records. Pure.

use serde_json::Value;

use crate::audit::{Entry, list, string};
use crate::table;

/// One holder's time with one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) gpu: String,
    pub(super) pci: String,
    pub(super) who: String,
    /// What ends it: a key, or a holder's name.
    by: String,
    pub(super) from: String,
    /// Nothing while it lasts.
    pub(super) to: Option<String>,
    /// Why it ended.
    pub(super) why: String,
}

/// All of them, in the order they began.
pub(super) fn held(entries: &[Entry]) -> Vec<Held> {
    let mut all: Vec<Held> = Vec::new();
    for entry in entries {
        let by = [string(entry, "key"), string(entry, "holder")].into_iter().find(|by| !by.is_empty());
        let Some(by) = by else { continue };
        let gpus = list(entry, "gpus").iter().filter_map(|gpu| Some((gpu.get("pci")?.as_str()?, gpu)));
        match string(entry, "kind") {
            "create" | "reserve" => all.extend(gpus.map(|(pci, gpu)| begun(entry, by, pci, gpu))),
            "release" | "reclaim" => gpus.for_each(|(pci, _)| {
                let mut open = all.iter_mut().rev().filter(|held| held.to.is_none());
                if let Some(held) = open.find(|held| held.pci == pci && held.by == by) {
                    held.to = Some(string(entry, "time").to_owned());
                    held.why = string(entry, "message").to_owned();
                }
            }),
            _ => {}
        }
    }
    all
}

fn begun(entry: &Entry, by: &str, pci: &str, gpu: &Value) -> Held {
    Held {
        gpu: gpu.get("name").and_then(Value::as_str).unwrap_or(pci).to_owned(),
        pci: pci.to_owned(),
        who: who(entry),
        by: by.to_owned(),
        from: string(entry, "time").to_owned(),
        to: None,
        why: String::new(),
    }
}

/// Whom a record is about.
pub(super) fn who(entry: &Entry) -> String {
    let fields = ["container", "holder", "contract"].map(|field| string(entry, field));
    let who = fields.into_iter().find(|who| !who.is_empty()).unwrap_or_default();
    table::in_pod(entry.get("pod")).unwrap_or_else(|| table::short(who).to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_time_ends_with_the_release_of_that_holder_and_that_gpu() {
        let gpus = |pcis: &[&str]| pcis.iter().map(|pci| json!({"pci": pci, "name": "n"})).collect::<Value>();
        let entries: Vec<Entry> = [
            json!({"kind": "create", "time": "1", "key": "k", "container": "a", "gpus": gpus(&["x", "y"])}),
            json!({"kind": "create", "time": "2", "key": "l", "container": "plain"}),
            json!({"kind": "reserve", "time": "3", "holder": "vm:b", "gpus": gpus(&["z"])}),
            json!({"kind": "release", "time": "4", "key": "k", "gpus": gpus(&["y"]), "message": "deleted"}),
            json!({"kind": "create", "time": "5", "key": "m", "container": "c", "gpus": gpus(&["y"])}),
            json!({"kind": "release", "time": "6", "holder": "vm:b", "gpus": gpus(&["z"])}),
            json!({"kind": "reclaim", "time": "7", "key": "k", "gpus": gpus(&["x"]), "message": "gone"}),
            json!({"kind": "release", "time": "8", "key": "unknown", "gpus": gpus(&["y"])}),
        ]
        .iter()
        .map(|entry| entry.as_object().cloned().unwrap())
        .collect();
        let told: Vec<_> = held(&entries)
            .into_iter()
            .map(|held| format!("{} {} {}-{} {}", held.pci, held.who, held.from, held.to.unwrap_or_default(), held.why))
            .collect();
        assert_eq!(told, ["x a 1-7 gone", "y a 1-4 deleted", "z vm:b 3-6 ", "y c 5- "]);
    }
}
