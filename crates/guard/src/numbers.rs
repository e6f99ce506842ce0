//! Which character device numbers are GPUs on this machine.
//!
//! A major is a GPU's as a whole, or it is shared with devices of other kinds and only some of its minors are GPUs.
//! Shared majors are never denied whole. Sources: the kernel's `Documentation/admin-guide/devices.txt` for fixed
//! numbers, `/proc/devices` for those that drivers were given at load time, sysfs for the vendor behind a DRM minor.

use contract::rule::Rule;

use crate::system::{Majors, System};

/// NVIDIA's own major: GPUs, nvidiactl, nvidia-modeset. Assigned for good, so it counts without a driver too.
pub(crate) const NVIDIA: u32 = 195;
/// DRM nodes of all vendors.
pub(crate) const DRM: u32 = 226;
/// PCI vendor id of NVIDIA.
const NVIDIA_VENDOR: u32 = 0x10de;
/// Minors that DRM hands out first: cards, control and render nodes, 64 each, and one block of 64 more. Behind them newer kernels
/// (6.13) go on for whoever has more GPUs.
pub(crate) const DRM_MINORS: u32 = 256;
/// `/dev/mem`, `/dev/kmem`, `/dev/port`: the whole machine. `/dev/vfio/vfio`: the way to devices bound to vfio-pci.
const FIXED: [(u32, u32); 4] = [(1, 1), (1, 2), (1, 4), (10, 196)];

/// Memory, and devices like `/dev/null` beside it.
pub(crate) const MEM: u32 = 1;
/// Devices of all kinds that have a minor each.
pub(crate) const MISC: u32 = 10;
/// Those of them that are a GPU's or give one out: a way to devices bound to vfio-pci, WSL's GPU, Tegra's memory.
const MISC_GPUS: [&str; 3] = ["iommu", "dxg", "nvmap"];

/// Whether a minor of [`MISC`] may be another driver's at each load: the kernel keeps these for good.
fn is_dynamic(minor: u32) -> bool {
    !(128..=255).contains(&minor)
}

/// Majors that the kernel itself takes before any driver is loaded (mem, tty, console, misc, pts): no driver is ever
/// given one of them, so that the usual device lists are judged without a look at `/proc/devices`.
fn is_kernels_own(major: u32) -> bool {
    matches!(major, 1 | 4 | 5 | 10 | 136..=143)
}

/// Whether a name in `/proc/devices` belongs to a GPU driver, or to one that gives out GPUs or their memory.
fn is_gpu_driver(name: &str) -> bool {
    ["nvidia", "nvhost", "nvgpu"].iter().any(|start| name.starts_with(start))
        || matches!(name, "gdrdrv" | "vfio" | "vfio-dev")
}

/// What a major tells about its minors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// Every minor is a GPU's.
    Whole,
    /// Only these of [`FIXED`], known without asking.
    Fixed,
    /// By the PCI vendor behind the minor.
    Vendor,
    /// By the name in `/proc/devices`.
    Driver,
}

/// How to tell for a major.
pub(crate) fn share(major: u32) -> Share {
    match major {
        NVIDIA => Share::Whole,
        DRM => Share::Vendor,
        major if is_kernels_own(major) => Share::Fixed,
        _ => Share::Driver,
    }
}

/// Whether the PCI vendor behind a DRM minor makes it a GPU; nothing: NVIDIA's driver decides by being loaded.
///
/// A DRM node without a vendor is no PCI device (a platform's display, a virtual one), or sysfs does not tell. It passes
/// where the driver is not loaded; where it is, only what is known to be another vendor's passes.
pub(crate) fn vendor_is_nvidias(vendor: Option<u32>) -> Option<bool> {
    vendor.map(|vendor| vendor == NVIDIA_VENDOR)
}

/// Whether a rule for one of the kernel's own majors speaks about a GPU number.
pub(crate) fn fixed_has(major: u32, minor: Option<u32>) -> bool {
    FIXED.iter().any(|&(a, b)| a == major && minor.is_none_or(|minor| minor == b))
}

/// Whether only `/proc/misc` tells what this device is.
pub(crate) fn is_told_by_misc(major: u32, minor: Option<u32>) -> bool {
    major == MISC && minor.is_some_and(is_dynamic)
}

/// The GPU numbers of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbers {
    whole: Vec<u32>,
    exact: Vec<(u32, u32)>,
    driver: bool,
}

impl Default for Numbers {
    /// What counts on any machine, whatever its drivers are.
    fn default() -> Self {
        Self::of_majors(&Majors::new())
    }
}

impl Numbers {
    /// The numbers of a machine with these majors, and with these PCI vendors behind all DRM minors.
    #[must_use]
    pub fn of(majors: &Majors, drm: impl Fn(u32) -> Option<u32>) -> Self {
        Self::of_majors(majors).with_drm(0..DRM_MINORS, drm)
    }

    /// The numbers of the machine.
    ///
    /// # Errors
    /// What was attempted, and the cause.
    pub fn read(system: &dyn System) -> Result<Self, String> {
        Ok(Self::of_drivers(system)?.with_system_drm(system))
    }

    /// The numbers of the machine without DRM.
    pub(crate) fn of_drivers(system: &dyn System) -> Result<Self, String> {
        Ok(Self::of_majors(&system.majors()?).with_misc(&system.misc()?))
    }

    /// These, and those of the minors of major 10 that are a GPU's.
    #[must_use]
    pub fn with_misc(mut self, misc: &Majors) -> Self {
        let gpus = misc.iter().filter(|(name, minor)| is_dynamic(*minor) && MISC_GPUS.contains(&name.as_str()));
        self.exact.extend(gpus.map(|(_, minor)| (MISC, *minor)));
        self
    }

    fn of_majors(majors: &Majors) -> Self {
        let mut whole = vec![NVIDIA];
        for (name, major) in majors {
            if is_gpu_driver(name) && share(*major) == Share::Driver && !whole.contains(major) {
                whole.push(*major);
            }
        }
        contract::order::sort(&mut whole);
        let driver = majors.iter().any(|(name, _)| name.starts_with("nvidia"));
        Self { whole, exact: FIXED.to_vec(), driver }
    }

    pub(crate) fn with_system_drm(self, system: &dyn System) -> Self {
        self.with_drm(system.drm_minors(DRM_MINORS), |minor| system.drm_vendor(minor))
    }

    fn with_drm(mut self, minors: impl IntoIterator<Item = u32>, vendor: impl Fn(u32) -> Option<u32>) -> Self {
        let driver = self.driver;
        let gpus = minors.into_iter().filter(|minor| vendor_is_nvidias(vendor(*minor)).unwrap_or(driver));
        self.exact.extend(gpus.map(|minor| (DRM, minor)));
        self
    }

    /// Whether a character device with these numbers is a GPU.
    #[must_use]
    pub fn is_gpu(&self, major: u32, minor: u32) -> bool {
        self.whole.contains(&major) || self.exact.contains(&(major, minor))
    }

    /// Whether NVIDIA's driver is loaded.
    pub(crate) fn has_driver(&self) -> bool {
        self.driver
    }

    /// Majors that are GPUs' as a whole, and single numbers of shared majors.
    pub(crate) fn parts(&self) -> (&[u32], &[(u32, u32)]) {
        (&self.whole, &self.exact)
    }

    /// Whether the rule speaks about any GPU number.
    pub(crate) fn are_met_by(&self, rule: &Rule) -> bool {
        let whole = self.whole.iter();
        whole.into_iter().any(|&major| rule.matches_char(major, rule.minor.unwrap_or(0)))
            || self.exact.iter().any(|&(major, minor)| rule.matches_char(major, minor))
    }

    /// A deny for each GPU number, to stand after an allow of everything.
    #[must_use]
    pub fn denies(&self) -> Vec<Rule> {
        let whole = self.whole.iter().map(|&major| Rule::deny_char(major, None));
        let exact = self.exact.iter().map(|&(major, minor)| Rule::deny_char(major, Some(minor)));
        whole.chain(exact).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn majors(list: &[(&str, u32)]) -> Majors {
        list.iter().map(|(n, m)| ((*n).to_owned(), *m)).collect()
    }

    #[test]
    fn names_and_numbers() {
        let names = majors(&[
            ("mem", 1),
            ("misc", 10),
            ("nvidia", 195),
            ("nvidia-frontend", 195),
            ("drm", 226),
            ("kvm-like", 231),
            ("nvidia-uvm", 511),
            ("nvidia-caps", 510),
            ("nvidia-caps-imex-channels", 509),
            ("nvidia-nvswitch", 508),
            ("nvidia-nvlink", 507),
            ("nvidia-fs", 506),
            ("nvidia-vgpu-vfio", 505),
            ("gdrdrv", 504),
            ("vfio", 503),
            ("vfio-dev", 500),
            ("nvme", 502),
            ("nvram", 501),
            ("nvidia-liar", 10),
        ]);
        let numbers = Numbers::of(&names, |minor| match minor {
            0 | 128 => Some(NVIDIA_VENDOR),
            1 | 129 => Some(0x1002),
            3 => None,
            _ => Some(0x8086),
        });
        for (major, minor, gpu) in [
            (195, 0, true),
            (195, 255, true),
            (195, 7777, true),
            (511, 0, true),
            (510, 3, true),
            (509, 0, true),
            (508, 255, true),
            (507, 0, true),
            (506, 0, true),
            (505, 0, true),
            (504, 0, true),
            (503, 12, true),
            (500, 0, true),
            (502, 0, false),
            (501, 0, false),
            (226, 0, true),
            (226, 128, true),
            (226, 1, false),
            (226, 129, false),
            (226, 2, false),
            (226, 3, true),
            (226, 4, false),
            (10, 196, true),
            (10, 229, false),
            (10, 200, false),
            (1, 1, true),
            (1, 2, true),
            (1, 4, true),
            (1, 3, false),
            (1, 5, false),
            (1, 11, false),
            (136, 0, false),
        ] {
            assert_eq!(numbers.is_gpu(major, minor), gpu, "{major}:{minor}");
        }
    }

    #[test]
    fn nvidias_major_counts_without_a_driver() {
        let numbers = Numbers::default();
        assert!(numbers.is_gpu(195, 0) && !numbers.has_driver());
        assert_eq!(numbers, Numbers::of(&Majors::new(), |_| None));
    }

    #[test]
    fn shared_majors_are_never_denied_whole() {
        let names = majors(&[("nvidia-uvm", 511), ("vfio", 10), ("nvidia", 226), ("nvidia", 1)]);
        let denies = Numbers::of(&names, |minor| Some(if minor == 128 { NVIDIA_VENDOR } else { 0x1002 })).denies();
        let text: Vec<String> = denies.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            ["c 195:* rwm", "c 511:* rwm", "c 1:1 rwm", "c 1:2 rwm", "c 1:4 rwm", "c 10:196 rwm", "c 226:128 rwm"]
        );
        assert!(denies.iter().all(|rule| !rule.allow));
    }

    #[test]
    fn a_major_changes_its_meaning_when_the_module_is_loaded_again() {
        let before = Numbers::of(&majors(&[("nvidia-uvm", 511)]), |_| None);
        let after = Numbers::of(&majors(&[("nvidia-uvm", 235)]), |_| None);
        assert!(before.is_gpu(511, 0) && !before.is_gpu(235, 0));
        assert!(after.is_gpu(235, 0) && !after.is_gpu(511, 0));
    }
}
