//! Machines whose NVIDIA GPUs do not lie on the PCI bus: Tegra's, which are not what we grant and are named, so that nobody
//! gets half a result; and WSL's, where one node, `dxg`, opens all that Windows has: one GPU, which nobody can divide.

use std::fs;
use std::path::Path;

use contract::config::Host;
use contract::gpu::{DXG, Gpu};
use contract::inventory::Finding;
use guard::System;
use node::Node;
use node::driver::Information;
use node::pci::Device;

use super::gpus::Function;
use super::told::{Answer, ToldGpu};

/// The kernel's driver of WSL's node.
const DXGKRNL: &str = "dxgkrnl";
/// Its major, of devices of all kinds, which have a minor each.
const MISC: u32 = 10;

/// The finding that stops everything on a Tegra.
pub(crate) fn finding(host: &Host) -> Option<Finding> {
    let sign = tegra(host)?;
    Some(stops(
        "tegra-unsupported",
        format!(
            "this is a Tegra ({sign}): its GPU is part of the chip, not a device on the PCI bus with a node of its own, and is not supported; nothing is granted here"
        ),
    ))
}

/// WSL's GPU in the form of one on the bus, or why it is not granted although there is its node. Its number is the kernel's
/// word, by which the guard knows it too: a node alone proves nothing.
///
/// # Errors
/// `/proc/misc` cannot be read.
pub(crate) fn dxg(host: &Host, has_bus: bool) -> Result<(Option<Function>, Option<Finding>), String> {
    let minor = Node::new(host).misc()?.into_iter().find(|(name, _)| name == DXG).map(|(_, minor)| minor);
    let Some(minor) = minor else {
        let node = format!("{}/{DXG}", host.dev_root());
        let words = format!("{node} is there, and the kernel lists no {DXG} in /proc/misc: it opens no GPU; remove it");
        return Ok((None, exists(&node).then(|| stops("node-mismatch", words))));
    };
    if has_bus {
        // The guard closes it to everybody, as it is in no contract.
        let message =
            format!("there are GPUs on the PCI bus, and {DXG}, which may open the same ones: it is granted to nobody");
        return Ok((None, Some(Finding { code: "dxg-beside-bus".into(), stops: false, message })));
    }
    let device = Device { address: DXG.to_owned(), driver: Some(DXGKRNL.to_owned()), ..Device::default() };
    Ok((Some(Function { device, dxg: Some((MISC, minor)), ..Function::default() }), None))
}

/// What the kernel tells of that GPU: nothing but how a request names it.
pub(crate) fn told_of_dxg() -> (String, Information) {
    (DXG.to_owned(), Information { minor: Some(0), ..Information::default() })
}

/// What the driver's interfaces told of the GPUs behind the node, told of the one that is granted; of several nothing is true
/// of all, so the finding says how many there are.
pub(crate) fn as_one(mut answers: Vec<Answer>) -> (Vec<Answer>, Option<Finding>) {
    let mut most = 0;
    for told in answers.iter_mut().flatten() {
        most = most.max(told.gpus.len());
        told.links.clear();
        let only = told.gpus.pop().filter(|_| told.gpus.is_empty());
        told.gpus = only.into_iter().map(|gpu| ToldGpu { pci: DXG.to_owned(), minor: None, ..gpu }).collect();
    }
    let several = (most > 1).then(|| Finding {
        code: "dxg-several".into(),
        stops: false,
        message: format!("{DXG} opens {most} GPUs at once: whoever is granted nvidia0 has them all"),
    });
    (answers, several)
}

/// That GPU when all is known: a node that opens it and nothing that knows how is none, and some name it has to have.
pub(crate) fn settle(gpus: &mut Vec<Gpu>, findings: &[Finding]) {
    if findings.iter().any(|finding| finding.stops && finding.code == "library-missing") {
        gpus.clear();
    }
    for gpu in gpus {
        gpu.model.get_or_insert_with(|| "WSL".to_owned());
    }
}

/// What shows that this is a Tegra.
fn tegra(host: &Host) -> Option<String> {
    let compatible = "proc/device-tree/compatible";
    let words = fs::read(host.path(compatible)).unwrap_or_default();
    let model =
        words.split(|byte| *byte == 0).map(String::from_utf8_lossy).find(|word| word.starts_with("nvidia,tegra"));
    let file = || ["etc/nv_tegra_release", "sys/module/nvgpu"].into_iter().find(|path| exists(&host.path(path)));
    match model {
        Some(model) => Some(format!("{model} in /{compatible}")),
        None => file().map(|path| format!("/{path}")),
    }
}

fn exists(path: &str) -> bool {
    fs::symlink_metadata(Path::new(path)).is_ok()
}

fn stops(code: &str, message: String) -> Finding {
    Finding { code: code.into(), stops: true, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::told::Told;

    #[test]
    fn several_gpus_behind_one_node_are_one_with_a_word_about_it() {
        let gpu = |model: &str| ToldGpu {
            pci: model.into(),
            model: Some(model.into()),
            minor: Some(1),
            ..Default::default()
        };
        for (models, kept, words) in [
            (&[][..], &[][..], None),
            (&["a"], &["a"], None),
            (&["a", "b"], &[], Some("dxg opens 2 GPUs at once: whoever is granted nvidia0 has them all")),
        ] {
            let told = Told { gpus: models.iter().map(|model| gpu(model)).collect(), ..Told::default() };
            let (answers, finding) = as_one(vec![Ok(told)]);
            let gpus = &answers[0].as_ref().unwrap().gpus;
            let expected: Vec<ToldGpu> =
                kept.iter().map(|model| ToldGpu { pci: DXG.into(), minor: None, ..gpu(model) }).collect();
            assert_eq!(*gpus, expected);
            assert_eq!(finding.map(|finding| finding.message).as_deref(), words);
        }
    }
}
