//! What a node's inventory and contracts rest on, and what of it changed since. It is compared, never acted on.

use serde::Serialize;

use crate::json::Node;
use crate::read::{FromJson, ReadError};
use crate::record;

/// Facts that change when the node changes; a contract rests on them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Facts {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Version of the loaded NVIDIA kernel module, from `/proc/driver/nvidia/version`; absent without a driver.
    pub driver_version: Option<String>,
    /// Character majors that belong to GPUs, by name, from `/proc/devices`, sorted by name then number.
    pub majors: Vec<(String, u32)>,
    /// The GPUs that the driver holds (`/proc/driver/nvidia/gpus`), by PCI address.
    pub driver_gpus: Vec<DriverGpu>,
    /// The MIG instances that there are, sorted.
    #[serde(skip_serializing_if = "Instances::is_empty")]
    pub instances: Instances,
    /// What changes when they are made anew.
    #[serde(skip_serializing_if = "Marks::is_empty")]
    pub marks: Marks,
}

/// MIG instances by the driver's own names, as in `gpu0/gi1/ci0`, where 0 is the GPU's device minor; a GPU instance without a
/// compute instance stands as `gpu0/gi1`. The minors of their capability nodes follow from the name and the driver's version.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Instances(pub Vec<String>);

/// For each MIG instance, in their order, a word that another of the same name does not have: inode and change time of the
/// folder that the driver shows it by. The same instance may get another one, so it says when to look again and no more.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Marks(pub Vec<String>);

impl Marks {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromJson for Marks {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        FromJson::from_json(node).map(Self)
    }

    fn absent() -> Option<Self> {
        Some(Self::default())
    }
}

impl FromJson for Instances {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        FromJson::from_json(node).map(Self)
    }

    fn absent() -> Option<Self> {
        Some(Self::default())
    }
}

impl Instances {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is this compute instance.
    #[must_use]
    pub fn has(&self, minor: u32, gi: u32, ci: u32) -> bool {
        self.0.contains(&format!("gpu{minor}/gi{gi}/ci{ci}"))
    }

    /// Whether the GPU with this device minor is cut into any.
    #[must_use]
    pub fn cut(&self, minor: u32) -> bool {
        let start = format!("gpu{minor}/");
        self.0.iter().any(|known| known.starts_with(&start))
    }
}

/// What the driver calls a GPU. Binding in another order, or another card in the slot, gives an address other names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DriverGpu {
    /// PCI address.
    pub pci: String,
    /// `GPU-…`, when the driver tells it.
    pub uuid: Option<String>,
    /// The N of `/dev/nvidiaN`, when the driver tells it.
    pub minor: Option<u32>,
}

record!(Facts { boot_id, driver_version, majors, driver_gpus, instances, marks });
record!(DriverGpu { pci, uuid, minor });

impl Facts {
    /// What of this is no longer true while `now` is, in words: the first, the most general. A name that the driver did not
    /// know then says nothing: it learns some only when a GPU is first opened. Instances are not compared, see
    /// [`Self::instances_changed`].
    #[must_use]
    pub fn changed(&self, now: &Self) -> Option<String> {
        if self.boot_id != now.boot_id {
            return Some("the machine was started again".to_owned());
        }
        if self.driver_version != now.driver_version {
            return Some(differs("driver", "", &self.driver_version, &now.driver_version));
        }
        if self.majors != now.majors {
            return odd_one("device major", &self.majors(), &now.majors());
        }
        let renamed = |(then, now): (&DriverGpu, &DriverGpu)| then.renamed(now);
        odd_one("GPU", &self.addresses(), &now.addresses())
            .or_else(|| self.driver_gpus.iter().zip(&now.driver_gpus).find_map(renamed))
    }

    /// Whether all is as it is now, MIG instances apart.
    #[must_use]
    pub fn is_but_instances(&self, now: &Self) -> bool {
        let same_driver = self.boot_id == now.boot_id && self.driver_version == now.driver_version;
        same_driver && self.majors == now.majors && self.driver_gpus == now.driver_gpus
    }

    /// Which MIG instance came, went or was made anew, in words; of the GPUs with these device minors, or of all.
    #[must_use]
    pub fn instances_changed(&self, now: &(Instances, Marks), of: Option<&[u32]>) -> Option<String> {
        let minor = |name: &str| name.split_once('/')?.0.strip_prefix("gpu")?.parse().ok();
        let meant = |name: &str| of.is_none_or(|of| minor(name).is_some_and(|minor: u32| of.contains(&minor)));
        let (mut then, mut marks) = (Vec::new(), Vec::new());
        for (at, name) in self.instances.0.iter().enumerate().filter(|(_, name)| meant(name)) {
            then.push(name.clone());
            marks.push(self.marks.0.get(at));
        }
        let (names, now) = (&now.0.0, &now.1.0);
        let anew = || names.iter().enumerate().find(|(at, _)| marks.get(*at).copied().flatten() != now.get(*at));
        odd_one("MIG instance", &then, names)
            .or_else(|| anew().map(|(_, name)| format!("MIG instance {name} was made anew")))
    }

    fn majors(&self) -> Vec<String> {
        self.majors.iter().map(|(name, major)| format!("{name} {major}")).collect()
    }

    fn addresses(&self) -> Vec<String> {
        self.driver_gpus.iter().map(|gpu| gpu.pci.clone()).collect()
    }
}

impl DriverGpu {
    /// Which of its names is another now.
    fn renamed(&self, now: &Self) -> Option<String> {
        if self.uuid.is_some() && self.uuid != now.uuid {
            return Some(differs("UUID of ", &self.pci, &self.uuid, &now.uuid));
        }
        let name = |minor: Option<u32>| minor.map(|minor| minor.to_string());
        (self.minor.is_some() && self.minor != now.minor)
            .then(|| differs("device minor of ", &self.pci, &name(self.minor), &name(now.minor)))
    }
}

/// An entry that only one of two lists has.
fn odd_one(what: &str, then: &[String], now: &[String]) -> Option<String> {
    if then == now {
        return None;
    }
    let gone = then.iter().find(|entry| !now.contains(entry));
    let end = if gone.is_some() { "is gone" } else { "is new" };
    // In another order, or as often as it was not.
    let which = gone.or_else(|| now.iter().find(|entry| !then.contains(entry))).or(then.first());
    Some(format!("{what} {} {end}", which.map_or("", String::as_str)))
}

fn differs(what: &str, of: &str, then: &Option<String>, now: &Option<String>) -> String {
    let word = |name: &Option<String>| name.clone().unwrap_or_else(|| "unknown".to_owned());
    format!("{what}{of} {} -> {}", word(then), word(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_named() {
        let one = |uuid: Option<&str>, minor| Facts {
            driver_gpus: vec![DriverGpu { pci: "0000:01:00.0".into(), uuid: uuid.map(str::to_owned), minor }],
            ..Facts::default()
        };
        let then = one(Some("GPU-1"), Some(0));
        let none = Facts::default();
        let with = |majors: &[(&str, u32)]| Facts {
            majors: majors.iter().map(|(name, major)| ((*name).to_owned(), *major)).collect(),
            ..then.clone()
        };
        let version = |version: &str| Facts { driver_version: Some(version.into()), ..then.clone() };
        for (then, now, changed) in [
            (&then, then.clone(), None),
            (&one(None, Some(0)), then.clone(), None),
            (&one(None, None), then.clone(), None),
            (&then, one(Some("GPU-2"), Some(0)), Some("UUID of 0000:01:00.0 GPU-1 -> GPU-2")),
            (&then, one(Some("GPU-1"), Some(1)), Some("device minor of 0000:01:00.0 0 -> 1")),
            // A new card may not have told its name yet.
            (&then, one(None, Some(0)), Some("UUID of 0000:01:00.0 GPU-1 -> unknown")),
            (&then, none.clone(), Some("GPU 0000:01:00.0 is gone")),
            (&none, then.clone(), Some("GPU 0000:01:00.0 is new")),
            (&then, Facts { boot_id: "other".into(), ..then.clone() }, Some("the machine was started again")),
            (&then, with(&[("nvidia", 195)]), Some("device major nvidia 195 is new")),
            (&with(&[("u", 511), ("v", 1)]), with(&[("v", 1)]), Some("device major u 511 is gone")),
            (&with(&[("u", 511)]), with(&[("u", 510)]), Some("device major u 511 is gone")),
            (&with(&[("u", 1), ("u", 1)]), with(&[("u", 1)]), Some("device major u 1 is new")),
            (&then, version("570.1"), Some("driver unknown -> 570.1")),
            (&version("570.124.04"), version("570.133.07"), Some("driver 570.124.04 -> 570.133.07")),
            (&version("570.124.04"), then.clone(), Some("driver 570.124.04 -> unknown")),
        ] {
            assert_eq!(then.changed(&now).as_deref(), changed, "{then:?} {now:?}");
        }
    }

    /// D21, D23: instances that went and came.
    #[test]
    fn instances() {
        let of = |names: &[&str]| Facts {
            instances: Instances(names.iter().map(|name| (*name).to_owned()).collect()),
            ..Facts::default()
        };
        let then = of(&["gpu1/gi11/ci0", "gpu1/gi2"]);
        for (now, changed) in [
            (then.clone(), None),
            (of(&["gpu1/gi2"]), Some("MIG instance gpu1/gi11/ci0 is gone")),
            (of(&["gpu1/gi11/ci0", "gpu1/gi2", "gpu1/gi3"]), Some("MIG instance gpu1/gi3 is new")),
        ] {
            assert_eq!(then.instances_changed(&(now.instances, now.marks), None).as_deref(), changed);
        }
        let marked = |marks: [&str; 2]| Facts { marks: Marks(marks.map(str::to_owned).to_vec()), ..then.clone() };
        let now = |facts: Facts| (facts.instances, facts.marks);
        let anew = marked(["a", "b"]).instances_changed(&now(marked(["a", "c"])), None);
        assert_eq!(anew.as_deref(), Some("MIG instance gpu1/gi2 was made anew"));
        // Those of some GPUs alone.
        let then_all = Facts {
            marks: Marks(["a", "b", "c", "d"].map(str::to_owned).to_vec()),
            ..of(&["gpu1/gi1", "gpu11/gi1", "gpu11/gi2", "gpu2/gi1"])
        };
        let seen = |names: &[&str], marks: &[&str]| {
            (of(names).instances, Marks(marks.iter().map(|mark| (*mark).to_owned()).collect()))
        };
        for (names, marks, minors, changed) in [
            (&["gpu11/gi1", "gpu11/gi2"][..], &["b", "c"][..], &[11][..], None),
            (&["gpu11/gi1", "gpu11/gi2"], &["b", "a"], &[11], Some("MIG instance gpu11/gi2 was made anew")),
            (&["gpu11/gi2"], &["c"], &[11], Some("MIG instance gpu11/gi1 is gone")),
            (&["gpu1/gi1", "gpu2/gi1"], &["a", "d"], &[2, 1], None),
            (&[], &[], &[1], Some("MIG instance gpu1/gi1 is gone")),
            (&["gpu3/gi1"], &["e"], &[3], Some("MIG instance gpu3/gi1 is new")),
            (&[], &[], &[3], None),
        ] {
            assert_eq!(then_all.instances_changed(&seen(names, marks), Some(minors)).as_deref(), changed, "{names:?}");
        }
        let there = &then.instances;
        assert!(there.has(1, 11, 0) && !there.has(1, 1, 0) && !there.has(1, 2, 0) && !there.has(11, 1, 0));
        assert!(there.cut(1) && !there.cut(11) && !there.cut(0));
    }
}
