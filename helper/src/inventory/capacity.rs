//! What the operator says that the node has, beside what it has. No I/O, and no judgement of what is granted: that is the
//! ledger's.

use contract::config::{Config, Policy};
use contract::gpu::Gpu;
use contract::inventory::{Finding, Inventory, Role};
use contract::owner::{Capacity, Internal};

/// What differs. Nothing of it stops anything: what is there counts.
pub(crate) fn findings(config: &Config, inventory: &Inventory) -> Vec<Finding> {
    let mut findings = declared(&config.capacity, inventory);
    // On a node without GPUs there is none to keep.
    if !inventory.gpus.is_empty() {
        findings.extend(config.internal.0.iter().flat_map(|internal| unmatched(internal, &inventory.gpus)));
    }
    findings.extend(unmanaged(&config.policy, inventory));
    findings
}

/// Nodes for managing MIG instances that policy gives to some, and that a node with such GPUs lacks.
fn unmanaged(policy: &Policy, inventory: &Inventory) -> Vec<Finding> {
    let finding = |(key, owners, role): (&str, &Vec<String>, Role)| {
        let missing = !owners.is_empty() && !inventory.control.iter().any(|node| node.role == role);
        let name = key.trim_start_matches("mig_");
        let mend = format!("run `nvidia-modprobe -f /proc/driver/nvidia/capabilities/mig/{name}`");
        let message = format!("[policy] {key} names owners, and the driver's node for it is not there: {mend}");
        missing.then(|| Finding { code: "mig-node-missing".into(), stops: false, message })
    };
    let wanted =
        [("mig_config", &policy.mig_config, Role::MigConfig), ("mig_monitor", &policy.mig_monitor, Role::MigMonitor)];
    let can_be_cut = inventory.gpus.iter().any(|gpu| gpu.mig.is_some());
    wanted.into_iter().filter(|_| can_be_cut).filter_map(finding).collect()
}

/// What is kept for some, and no GPU is known by.
fn unmatched(internal: &Internal, all: &[Gpu]) -> Vec<Finding> {
    let finding = |(what, kept): (&str, Vec<&Gpu>)| {
        let kept: Vec<&str> = kept.iter().map(|gpu| gpu.pci.as_str()).collect();
        let so = match kept.as_slice() {
            [] => "mend the configuration, or look where that GPU is".to_owned(),
            kept => format!("until one is, those of which too little is known are kept as it: {}", kept.join(", ")),
        };
        let message =
            format!("[[internal]] keeps {what} for {}, and no GPU is known by that; {so}", internal.only.join(", "));
        Finding { code: "internal-unmatched".into(), stops: false, message }
    };
    internal.unmatched(all).map(finding).collect()
}

fn declared(capacity: &Capacity, inventory: &Inventory) -> Vec<Finding> {
    let finding = |code: &str, message: String| Finding { code: code.into(), stops: false, message };
    let present = inventory.gpus.len();
    let kind = Some(capacity.kind.as_str()).filter(|kind| !kind.is_empty());
    let of_kind = inventory.gpus.iter().filter(|gpu| kind.is_none_or(|kind| gpu.is_kind(kind))).count();
    let told = |gpu: &Gpu| gpu.model.is_some();
    let what = kind.map_or_else(|| "GPUs".to_owned(), |kind| format!("GPUs of kind {kind:?}"));
    let mut findings = Vec::new();
    if present == 0 && capacity.gpus == 0 {
        return vec![finding("no-gpu", "no NVIDIA GPU was found, and [capacity] declares none".to_owned())];
    }
    // A model that nobody tells is no other model.
    if let Some(kind) = kind
        && of_kind == 0
        && inventory.gpus.iter().any(told)
    {
        let models: Vec<&str> = inventory.gpus.iter().filter_map(|gpu| gpu.model.as_deref()).collect();
        let message =
            format!("[capacity] declares kind {kind:?}, and the node has {}; what it has counts", once(&models));
        findings.push(finding("capacity-kind", message));
    } else if capacity.gpus as usize > of_kind {
        let declared = capacity.gpus;
        let message = format!("[capacity] declares {declared} {what}, and the node has {of_kind}; what it has counts");
        findings.push(finding("capacity-above", message));
    }
    findings
}

fn once(models: &[&str]) -> String {
    let mut list: Vec<&str> = models.to_vec();
    list.sort_unstable();
    list.dedup();
    list.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_declared_and_what_is_there() {
        for (gpus, kind, models, expected) in [
            (0, None, &["NVIDIA L4"][..], vec![]),
            (1, None, &["NVIDIA L4"], vec![]),
            (1, None, &["NVIDIA L4", "NVIDIA L4"], vec![]),
            (2, Some("l4"), &["NVIDIA L4", "NVIDIA L4", "NVIDIA A100"], vec![]),
            (
                3,
                None,
                &["NVIDIA L4"],
                vec!["capacity-above: [capacity] declares 3 GPUs, and the node has 1; what it has counts"],
            ),
            (
                2,
                Some("l4"),
                &["NVIDIA L4", "NVIDIA A100"],
                vec![
                    "capacity-above: [capacity] declares 2 GPUs of kind \"l4\", and the node has 1; what it has counts",
                ],
            ),
            (
                2,
                Some("h100"),
                &["NVIDIA L4", "NVIDIA L4"],
                vec![
                    "capacity-kind: [capacity] declares kind \"h100\", and the node has NVIDIA L4; what it has counts",
                ],
            ),
            (2, None, &[], vec!["capacity-above: [capacity] declares 2 GPUs, and the node has 0; what it has counts"]),
            (0, None, &[], vec!["no-gpu: no NVIDIA GPU was found, and [capacity] declares none"]),
        ] {
            let gpu = |model: &&str| Gpu { model: Some((*model).to_owned()), ..Gpu::default() };
            let inventory = Inventory { gpus: models.iter().map(gpu).collect(), ..Inventory::default() };
            let capacity = Capacity { gpus, kind: kind.unwrap_or_default().to_owned() };
            let found: Vec<String> =
                declared(&capacity, &inventory).iter().map(|it| format!("{}: {}", it.code, it.message)).collect();
            assert_eq!(found, expected, "{gpus:?} {kind:?} {models:?}");
            assert!(declared(&capacity, &inventory).iter().all(|finding| !finding.stops));
        }
        let silent = Inventory { gpus: vec![Gpu::default()], ..Inventory::default() };
        let capacity = Capacity { gpus: 0, kind: "h100".into() };
        assert!(declared(&capacity, &silent).is_empty(), "no model is told");
    }

    #[test]
    fn a_node_that_policy_gives_and_is_not_there_is_told() {
        let mut config = Config::default();
        config.policy.mig_config = vec!["team-a".into()];
        let mut gpu = Gpu { model: Some("NVIDIA A100".into()), ..Gpu::default() };
        let codes = |gpu: &Gpu, config: &Config| -> Vec<String> {
            let inventory = Inventory { gpus: vec![gpu.clone()], ..Inventory::default() };
            findings(config, &inventory).into_iter().map(|it| format!("{}: {}", it.code, it.message)).collect()
        };
        assert_eq!(codes(&gpu, &config), Vec::<String>::new(), "a node without MIG lacks nothing");
        gpu.mig = Some(contract::gpu::MigMode { enabled: false, pending: false });
        assert_eq!(codes(&gpu, &Config::default()), Vec::<String>::new());
        let [told] = &codes(&gpu, &config)[..] else { panic!() };
        assert!(told.starts_with("mig-node-missing: [policy] mig_config ") && told.ends_with("mig/config`"), "{told}");
    }

    #[test]
    fn what_is_kept_and_not_there_is_told() {
        let gpu = |pci: &str, uuid: Option<&str>| Gpu {
            pci: pci.into(),
            uuid: uuid.map(str::to_owned),
            minor: Some(0),
            model: Some("NVIDIA L4".into()),
            ..Gpu::default()
        };
        let mut config = Config::default();
        config.internal.0 = vec![Internal {
            gpus: ["GPU-1", "GPU-9", "nvidia7"].map(str::to_owned).to_vec(),
            kind: Some("h100".into()),
            only: vec!["team-a".into()],
        }];
        let all = vec![gpu("0000:01:00.0", Some("GPU-1")), gpu("0000:02:00.0", None)];
        let told = findings(&config, &Inventory { gpus: all, ..Inventory::default() });
        let mend = "mend the configuration, or look where that GPU is";
        let kept = "until one is, those of which too little is known are kept as it: 0000:02:00.0";
        let expected = [("GPU-9", kept), ("nvidia7", mend), ("h100", mend)]
            .map(|(what, so)| format!("[[internal]] keeps {what} for team-a, and no GPU is known by that; {so}"));
        assert_eq!(told.iter().map(|finding| finding.message.clone()).collect::<Vec<_>>(), expected);
        assert!(told.iter().all(|finding| finding.code == "internal-unmatched" && !finding.stops));
        assert!(findings(&config, &Inventory::default()).iter().all(|finding| finding.code == "no-gpu"));
    }
}
