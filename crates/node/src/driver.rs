//! What NVIDIA's kernel driver tells in `/proc/driver/nvidia` (`nv-procfs.c` of open-gpu-kernel-modules).

use std::fs;

use contract::config::Host;
use contract::inventory::{DriverGpu, Facts, Instances, Marks, pci_address};

use crate::devices;
use crate::error::{NodeError, found};
use crate::file;
use crate::mig;

/// One GPU as the driver describes it in `gpus/<address>/information`. What it does not know yet is absent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Information {
    /// Product name.
    pub model: Option<String>,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// PCI address in sysfs spelling.
    pub pci: Option<String>,
    /// The N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// Version of the GPU's own firmware.
    pub firmware: Option<String>,
    /// Left out by the driver's configuration.
    pub excluded: bool,
}

/// Reads an `information` file; lines it does not know are left out.
#[must_use]
pub fn information(bytes: &[u8]) -> Information {
    let text = String::from_utf8_lossy(bytes);
    let mut info = Information::default();
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        // An uninitialised GPU shows question marks.
        let known = || (!value.is_empty() && !value.contains('?') && value != "N/A").then(|| value.to_owned());
        match key.trim() {
            "Model" => info.model = known(),
            "GPU UUID" => info.uuid = known(),
            "Bus Location" => info.pci = known().as_deref().and_then(pci_address),
            "Device Minor" => info.minor = known().and_then(|minor| minor.parse().ok()),
            "GPU Firmware" => info.firmware = known(),
            "GPU Excluded" => info.excluded = value == "Yes",
            _ => {}
        }
    }
    info
}

/// Version of the loaded driver, from the text of `version`: 2 or 3 numbers, the first of at least three digits.
fn version(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    text.split_ascii_whitespace().find(|word| is_version(word)).map(str::to_owned)
}

/// Whether this is written as a version of the driver: `535.309.01`.
#[must_use]
pub fn is_version(word: &str) -> bool {
    let parts: Vec<&str> = word.split('.').collect();
    let numbers = parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    numbers && matches!(parts.len(), 2 | 3) && parts.first().is_some_and(|first| first.len() >= 3)
}

/// The GPUs that the driver holds, by PCI address in sysfs spelling, sorted; none without a driver.
fn addresses(host: &Host) -> Result<Vec<String>, NodeError> {
    let folder = host.path("proc/driver/nvidia/gpus");
    let failed = |e| NodeError::new("list", folder.as_str(), e);
    let Some(entries) = found(fs::read_dir(&folder).map_err(failed))? else {
        return Ok(Vec::new());
    };
    let mut addresses = Vec::new();
    for entry in entries {
        addresses.extend(pci_address(&entry.map_err(failed)?.file_name().to_string_lossy()));
    }
    contract::order::sort(&mut addresses);
    Ok(addresses)
}

/// What the driver says about each GPU it holds, sorted by PCI address; none without a driver.
///
/// # Errors
/// Something is there and cannot be read.
pub fn gpus(host: &Host) -> Result<Vec<(String, Information)>, NodeError> {
    let folder = host.path("proc/driver/nvidia/gpus");
    let with_information = |pci: String| {
        let bytes = found(file::read(&format!("{folder}/{pci}/information")))?;
        Ok((pci, information(&bytes.unwrap_or_default())))
    };
    addresses(host)?.into_iter().map(with_information).collect()
}

/// What is true of the node now, as far as a contract rests on it. Without a driver its part is empty.
///
/// # Errors
/// Something is there and cannot be read.
pub fn facts(host: &Host) -> Result<Facts, NodeError> {
    let facts = facts_but_instances(host)?;
    let (instances, marks) = instances(host, &facts, None)?;
    Ok(Facts { instances, marks, ..facts })
}

/// The MIG instances of the GPUs with these device minors, or of all, on a node of these facts. Without the driver there are
/// none, whatever a module that is gone left behind.
///
/// # Errors
/// As [`facts`].
pub fn instances(host: &Host, facts: &Facts, of: Option<&[u32]>) -> Result<(Instances, Marks), NodeError> {
    facts.driver_version.as_ref().map_or_else(|| Ok(Default::default()), |_| mig::instances(host, of))
}

/// The same without MIG instances: a node may have many, and each is looked at by itself.
///
/// # Errors
/// As [`facts`].
pub fn facts_but_instances(host: &Host) -> Result<Facts, NodeError> {
    let boot_id = match found(file::read(&host.path(crate::boot::ID)))? {
        Some(bytes) => crate::boot::text(&bytes),
        None => crate::boot::boot_id()?,
    };
    let majors = found(file::read(&host.path("proc/devices")))?.unwrap_or_default();
    let mut majors = devices::majors(&majors);
    majors.retain(|(name, _)| devices::is_gpu_name(name));
    contract::order::sort(&mut majors);
    let driver_version = found(file::read(&host.path("proc/driver/nvidia/version")))?.and_then(|bytes| version(&bytes));
    let named = |(pci, Information { uuid, minor, .. })| DriverGpu { pci, uuid, minor };
    let driver_gpus = gpus(host)?.into_iter().map(named).collect();
    Ok(Facts { boot_id, driver_version, majors, driver_gpus, ..Facts::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INFORMATION: &str = "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 142\n\
        GPU UUID: \t GPU-5d1f0c2e-11aa-4b6c-9d3e-0a1b2c3d4e5f\nVideo BIOS: \t 92.00.45.00.03\nBus Type: \t PCIe\n\
        DMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\nBus Location: \t 0000:41:00.0\nDevice Minor: \t 3\n\
        GPU Firmware: \t 570.148.08\nGPU Excluded:\t No\n";

    #[test]
    fn information_in_full() {
        let expected = Information {
            model: Some("NVIDIA A100-SXM4-40GB".into()),
            uuid: Some("GPU-5d1f0c2e-11aa-4b6c-9d3e-0a1b2c3d4e5f".into()),
            pci: Some("0000:41:00.0".into()),
            minor: Some(3),
            firmware: Some("570.148.08".into()),
            excluded: false,
        };
        assert_eq!(information(INFORMATION.as_bytes()), expected);
        assert!(information(b"GPU Excluded:\t Yes\n").excluded);
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let info = information(b"Model: \t Unknown\nGPU UUID: \t GPU-????????-????-????-????-????????????\nBus Location: \t 0000:41:00.0\n");
        assert_eq!((info.uuid, info.minor, info.firmware), (None, None, None));
        assert_eq!(info.model.as_deref(), Some("Unknown"));
        assert_eq!(information(b"Device Minor: \t -1\nGPU UUID:\n\n:\n"), Information::default());
    }

    #[test]
    fn versions() {
        for (text, expected) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.135  Fri Jan 10 20:00:00 UTC 2025\nGCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)",
                Some("550.135"),
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@host)  Tue Sep 23 09:55:41 UTC 2025\nGCC version:  Selected multilib: .;@m64",
                Some("580.95.05"),
            ),
            ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64 565.77 x", Some("565.77")),
            ("GCC version:  gcc version 12.3.0", None),
            ("570. 570..1 570.1.2.3 570.x 570", None),
            ("", None),
        ] {
            assert_eq!(version(text.as_bytes()).as_deref(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (version(&bytes), information(&bytes));
        }

        #[test]
        fn any_broken_line_is_read(line in 0_usize..11, cut in 0_usize..60) {
            let text: String = INFORMATION.lines().enumerate().map(|(n, l)| format!("{}\n", if n == line { l.get(..cut).unwrap_or(l) } else { l })).collect();
            let whole = information(INFORMATION.as_bytes());
            let info = information(text.as_bytes());
            prop_assert!(info.minor.is_none() || info.minor == whole.minor);
            prop_assert!(info.pci.is_none() || info.pci == whole.pci);
        }
    }
}
