//! Hardware, driver, device nodes, files of the driver, and what is stored of them: by the node's own inventory.

use super::facts::Stored;
use super::{Facts, Finding};

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let refresh = "quilt-gpu inventory refresh";
    let now = match &facts.inventory {
        Ok(now) => now,
        Err(why) => return vec![Finding::stops("node-unreadable", "the node cannot be looked at", why, refresh)],
    };
    let mut list = Vec::new();
    if now.gpus.is_empty() {
        let cause = "this node has no NVIDIA GPU on its PCI bus, so there is none to grant";
        let mend =
            "lspci -d 10de:; look at the slot, the firmware's settings, or what this machine was given of its host";
        list.push(Finding::stops("no-gpu", cause, facts.host.path("sys/bus/pci/devices"), mend));
    }
    for finding in &now.findings {
        // A finding's message says what is wrong, and behind a semicolon what mends it.
        let (cause, mend) =
            finding.message.split_once("; ").unwrap_or((&finding.message, "quilt-gpu inventory refresh"));
        let make = if finding.stops { Finding::stops } else { Finding::warns };
        list.push(make(&finding.code, cause, "quilt-gpu inventory --format json", mend));
    }
    let path = facts.inventory_path.as_str();
    match &facts.stored {
        Stored::There(stored) => {
            if let Some(changed) = stored.facts.changed(&now.facts) {
                let cause =
                    format!("the stored inventory is stale ({changed}): the next GPU container waits for a refresh");
                list.push(Finding::warns("inventory-stale", cause, path, refresh));
            }
        }
        Stored::Missing => {
            let cause = "no inventory is stored yet: the first GPU container waits for one";
            list.push(Finding::warns("inventory-missing", cause, path, refresh));
        }
        Stored::Bad(why) => {
            let cause = format!("the stored inventory does not count: {why}");
            list.push(Finding::stops("inventory-untrusted", cause, path, refresh));
        }
    }
    list
}
