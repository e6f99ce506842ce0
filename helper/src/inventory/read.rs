//! Reading a node: the bus, the driver's words, the nodes and the driver's files. It judges nothing.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use contract::config::Host;
use contract::inventory::Finding;
use nix::sys::stat::{major, minor};
use node::{driver, pci};

use super::gpus::Function;
use super::nodes::AtName;
use super::root::Root;
use super::search::{self, Driver};
use super::{Seen, platform, sockets};

/// Everything about the node but the nodes under the dev root, which are looked at when their numbers are known.
///
/// # Errors
/// What could not be read, and why.
pub(crate) fn seen(host: &Host) -> Result<Seen, String> {
    let facts = node::facts(host).map_err(|cause| cause.to_string())?;
    let devices = pci::devices(host).map_err(|cause| cause.to_string())?;
    let group = |gpu: &pci::Device| {
        let others = devices.iter().filter(|other| other.address != gpu.address);
        others.filter(|other| gpu.iommu_group.is_some() && other.iommu_group == gpu.iommu_group).cloned().collect()
    };
    let gpus = devices.iter().filter(|device| device.is_gpu());
    let function = |gpu: &pci::Device| Function {
        dxg: None,
        drm: drm(host, &gpu.address),
        group: group(gpu),
        device: gpu.clone(),
    };
    let mut functions: Vec<Function> = gpus.map(function).collect();
    let mut held = driver::gpus(host).map_err(|cause| cause.to_string())?;
    let (dxg, conflict) = platform::dxg(host, !functions.is_empty())?;
    held.extend(dxg.as_ref().map(|_| platform::told_of_dxg()));
    functions.extend(dxg);
    let platform = platform::finding(host).or(conflict);
    let mut capabilities = node::mig::capabilities(host, &facts.instances).map_err(|cause| cause.to_string())?;
    capabilities.extend(node::mig::management(host).map_err(|cause| cause.to_string())?);
    let mut seen = Seen {
        facts,
        functions,
        held,
        driver: Driver::default(),
        capabilities,
        platform,
        findings: Vec::new(),
        answers: Vec::new(),
        earlier: None,
    };
    let root = match Root::open(Path::new(host.driver_root())) {
        Ok(root) => root,
        Err(cause) => {
            seen.findings.push(no_root(host.driver_root(), &cause));
            return Ok(seen);
        }
    };
    seen.driver = search::driver(&root, &host.driver_folders);
    if !seen.driver.is_there() {
        seen.findings.extend(elsewhere(host));
    }
    seen.driver.files.extend(sockets::files(host));
    Ok(seen)
}

fn no_root(path: &str, cause: &std::io::Error) -> Finding {
    Finding {
        code: "driver-root-missing".into(),
        stops: true,
        message: format!("cannot open [host] driver_root {path}: {cause}"),
    }
}

/// A configured driver root without a driver is as a rule a stale setting; nothing is taken from elsewhere unasked.
fn elsewhere(host: &Host) -> Option<Finding> {
    let other = Root::open(Path::new(&host.root)).ok()?;
    let (candidate, _) = search::driver(&other, &[]).libraries.into_iter().find(|(_, elf)| elf.is_some())?;
    let message = format!(
        "[host] driver_root {} holds no driver libraries, and {} is there; if that is the driver, take driver_root out",
        host.driver_root(),
        candidate.real
    );
    Some(Finding { code: "driver-root-empty".into(), stops: true, message })
}

/// The DRM devices of a PCI function: `drm/<name>/dev` holds `major:minor`.
fn drm(host: &Host, pci: &str) -> Vec<(String, u32, u32)> {
    let folder = host.path(&format!("sys/bus/pci/devices/{pci}/drm"));
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut devices: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let number = fs::read_to_string(format!("{folder}/{name}/dev")).ok()?;
            let (major, minor) = number.trim().split_once(':')?;
            Some((name, major.parse().ok()?, minor.parse().ok()?))
        })
        .collect();
    devices.sort();
    devices
}

/// What lies at a name of the dev root.
pub(crate) fn at_name(dev_root: &str, name: &str) -> AtName {
    let there = match fs::symlink_metadata(Path::new(dev_root).join(name)) {
        Ok(there) => there,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return AtName::Missing,
        Err(cause) => return AtName::Other(format!("not to be looked at ({cause})")),
    };
    let kind = there.file_type();
    let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    if kind.is_char_device() {
        let number = (narrow(major(there.rdev())), narrow(minor(there.rdev())));
        return AtName::Char { number, mode: there.mode() & 0o7777, owner: (there.uid(), there.gid()) };
    }
    let what = if kind.is_symlink() {
        "a link"
    } else if kind.is_dir() {
        "a folder"
    } else if kind.is_block_device() {
        "a block device"
    } else {
        "a regular file"
    };
    AtName::Other(what.into())
}

#[cfg(test)]
mod tests;
