//! One GPU as an agent sees it: all that it is, what it is used for, whether it is free. Names nobody who holds it.

use contract::gpu::{Gpu, MigMode, Partition};
use contract::inventory::Inventory;
use ledger::slot;
use serde::Serialize;

use crate::inventory::told::Live;

/// What a GPU is used for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Containers get it whole.
    Whole,
    /// Containers get its instances.
    Mig,
    /// Virtual machines get it.
    Vfio,
    /// Nobody does: no driver that we know holds it.
    None,
}

/// Whether somebody has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Lease {
    /// Nobody does.
    Free,
    /// Somebody does, or has the right to.
    Leased,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct View<'a> {
    /// The name that requests use: `nvidia0`, or the PCI address.
    pub(crate) id: String,
    pub(crate) vendor: &'a str,
    pub(crate) pci: &'a str,
    pub(crate) device_id: &'a str,
    pub(crate) index: Option<u32>,
    pub(crate) uuid: Option<&'a str>,
    pub(crate) model: Option<&'a str>,
    /// The product in one word of lower case: `a100`, `rtx4090`; without a model the PCI device id.
    pub(crate) kind: String,
    pub(crate) memory_mb: Option<u64>,
    pub(crate) compute_capability: Option<&'a str>,
    pub(crate) kernel_driver: Option<&'a str>,
    pub(crate) iommu_group: Option<u32>,
    pub(crate) numa: Option<i32>,
    pub(crate) virtualization: Option<&'a str>,
    pub(crate) mode: Mode,
    pub(crate) mig: Option<MigMode>,
    /// `ok`, or the state that keeps it from being granted: `gpu-lost`.
    pub(crate) health: &'static str,
    /// What is wrong, and what would mend it.
    pub(crate) why: Option<&'a str>,
    pub(crate) lease: Lease,
    /// What it does at this moment, as far as the driver tells.
    pub(crate) metrics: Live,
    pub(crate) partitions: Vec<Part<'a>>,
}

/// A part of a GPU that can be granted by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Part<'a> {
    pub(crate) id: String,
    pub(crate) kind: &'a str,
    pub(crate) profile: &'a str,
    pub(crate) uuid: Option<&'a str>,
    pub(crate) parent_uuid: Option<&'a str>,
    pub(crate) memory_mb: Option<u64>,
    pub(crate) health: &'static str,
    pub(crate) why: Option<&'a str>,
    pub(crate) lease: Lease,
}

/// Every GPU of a node; `taken` knows the slots that leases take: a GPU's PCI address, an instance's with its place behind.
pub(crate) fn views<'a>(inventory: &'a Inventory, taken: &dyn Fn(&str) -> bool) -> Vec<View<'a>> {
    inventory.gpus.iter().map(|gpu| view(gpu, taken)).collect()
}

fn view<'a>(gpu: &'a Gpu, taken: &dyn Fn(&str) -> bool) -> View<'a> {
    let id = gpu.name();
    let lease = |taken: bool| if taken { Lease::Leased } else { Lease::Free };
    let part = |part: &'a Partition| Part {
        id: format!("{id}:{}", part.index),
        kind: &part.kind,
        profile: &part.profile,
        uuid: part.uuid.as_deref(),
        parent_uuid: gpu.uuid.as_deref(),
        memory_mb: part.memory_mb,
        health: gpu.without(part).map_or("ok", |it| it.state.rule()),
        why: gpu.without(part).map(|it| it.why.as_str()),
        lease: lease(taken(&slot::of_part(gpu, part))),
    };
    View {
        vendor: &gpu.vendor,
        pci: &gpu.pci,
        device_id: &gpu.device_id,
        index: gpu.index,
        uuid: gpu.uuid.as_deref(),
        model: gpu.model.as_deref(),
        kind: kind(gpu),
        memory_mb: gpu.memory_mb,
        compute_capability: gpu.compute_capability.as_deref(),
        kernel_driver: gpu.driver.as_deref(),
        iommu_group: gpu.iommu_group,
        numa: gpu.numa,
        virtualization: gpu.virtualization.as_deref(),
        mode: mode(gpu),
        mig: gpu.mig,
        health: health(gpu),
        why: gpu.unavailable.as_ref().map(|it| it.why.as_str()),
        lease: lease(taken(&gpu.pci)),
        metrics: Live::default(),
        partitions: gpu.partitions.iter().map(part).collect(),
        id,
    }
}

/// Bound for virtual machines is a use, no illness.
fn health(gpu: &Gpu) -> &'static str {
    gpu.unavailable.as_ref().filter(|_| !gpu.is_for_machines()).map_or("ok", |it| it.state.rule())
}

fn mode(gpu: &Gpu) -> Mode {
    // vfio-pci has variants for some devices.
    if gpu.is_for_machines() {
        return Mode::Vfio;
    }
    match gpu.driver.as_deref() {
        Some("nvidia") if gpu.mig.is_some_and(|mig| mig.enabled) => Mode::Mig,
        Some("nvidia") => Mode::Whole,
        _ if gpu.is_dxg() => Mode::Whole,
        _ => Mode::None,
    }
}

/// Words of a product name that tell products of one kind apart no more than the vendor's name does.
const BRANDS: [&str; 5] = ["nvidia", "tesla", "quadro", "geforce", "graphics"];

/// The product's name up to the word with its number, which a request of this kind matches: `a100` of
/// `NVIDIA A100-SXM4-40GB`, `rtx4090` of `NVIDIA GeForce RTX 4090`.
fn kind(gpu: &Gpu) -> String {
    let model = gpu.model.as_deref().unwrap_or_default().to_ascii_lowercase();
    let mut kind = String::new();
    for word in model.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        if BRANDS.contains(&word) {
            continue;
        }
        kind.push_str(word);
        if word.bytes().any(|byte| byte.is_ascii_digit()) {
            return kind;
        }
    }
    if gpu.is_dxg() { kind } else { gpu.device_id.trim_start_matches("0x").to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use contract::gpu::{State, Unavailable};

    use super::*;

    #[test]
    fn kinds_are_one_word_of_lower_case() {
        for (model, kind_of) in [
            (Some("NVIDIA A100-SXM4-40GB"), "a100"),
            (Some("NVIDIA H100 80GB HBM3"), "h100"),
            (Some("NVIDIA GeForce RTX 4090"), "rtx4090"),
            (Some("NVIDIA RTX A6000"), "rtxa6000"),
            (Some("Tesla V100-SXM2-16GB"), "v100"),
            (Some("NVIDIA GB200"), "gb200"),
            (Some("NVIDIA L4"), "l4"),
            (Some("NVIDIA Graphics Device"), "20b0"),
            (Some(""), "20b0"),
            (None, "20b0"),
        ] {
            let gpu = Gpu { model: model.map(str::to_owned), device_id: "0x20B0".into(), ..Gpu::default() };
            assert_eq!(kind(&gpu), kind_of, "{model:?}");
        }
    }

    #[test]
    fn what_it_is_used_for_and_whether_it_is_well() {
        let mig = |enabled| Some(MigMode { enabled, pending: enabled });
        for (driver, mig, state, mode, health) in [
            (Some("nvidia"), None, None, Mode::Whole, "ok"),
            (Some("nvidia"), mig(false), None, Mode::Whole, "ok"),
            (Some("nvidia"), mig(true), Some(State::MigEmpty), Mode::Mig, "mig-empty"),
            (Some("nvidia"), None, Some(State::Lost), Mode::Whole, "gpu-lost"),
            (Some("vfio-pci"), None, Some(State::Vfio), Mode::Vfio, "ok"),
            (Some("nouveau"), None, Some(State::OtherDriver), Mode::None, "gpu-other-driver"),
            (None, None, Some(State::Unbound), Mode::None, "gpu-unbound"),
        ] {
            let unavailable = state.map(|state| Unavailable::new(state, "why"));
            let gpu = Gpu { driver: driver.map(str::to_owned), mig, unavailable, ..Gpu::default() };
            let view = view(&gpu, &|_| false);
            assert_eq!(
                (view.mode, view.health, view.why),
                (mode, health, state.map(|_| "why")),
                "{driver:?} {state:?}"
            );
        }
    }

    #[test]
    fn a_gpu_and_its_parts_are_leased_as_the_ledger_says() {
        let part = |index: u32| Partition {
            kind: "mig".into(),
            index,
            gi: index,
            ci: 0,
            profile: "1g.5gb".into(),
            uuid: Some(format!("MIG-{index}")),
            memory_mb: None,
            nodes: Vec::new().into(),
            unavailable: None,
        };
        let gpu =
            Gpu { pci: "0000:01:00.0".into(), minor: Some(3), partitions: vec![part(0), part(1)], ..Gpu::default() };
        let inventory = Inventory { gpus: vec![gpu], ..Inventory::default() };
        for (taken, whole, parts) in [
            ("", Lease::Free, [Lease::Free, Lease::Free]),
            ("0000:01:00.0", Lease::Leased, [Lease::Free, Lease::Free]),
            ("0000:01:00.0:1.0", Lease::Free, [Lease::Free, Lease::Leased]),
        ] {
            let views = views(&inventory, &|id| id == taken);
            assert_eq!(views[0].lease, whole, "{taken}");
            assert_eq!([views[0].partitions[0].lease, views[0].partitions[1].lease], parts, "{taken}");
            assert_eq!(views[0].partitions[1].id, "nvidia3:1");
        }
    }
}
