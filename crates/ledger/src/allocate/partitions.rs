//! Parts of GPUs that answer a request: MIG instances by profile and count, and what a name can mean beside a whole GPU.

use contract::gpu::{Gpu, Partition, Unavailable};
use contract::inventory::Inventory;
use contract::request::Request;
use contract::{Code, Granted, Refusal};

use super::{is_kind, unavailable};
use crate::limits::Closed;
use crate::slot;

/// A GPU, or a part of it.
#[derive(Clone, Copy)]
pub(crate) struct One<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) part: Option<&'a Partition>,
}

impl One<'_> {
    pub(crate) fn slot(&self) -> String {
        self.part.map_or_else(|| self.gpu.pci.clone(), |part| slot::of_part(self.gpu, part))
    }

    /// Its place in the inventory's order.
    pub(super) fn key(&self) -> (&str, Option<(u32, u32)>) {
        (&self.gpu.pci, self.part.map(|part| (part.gi, part.ci)))
    }

    /// Why it cannot be granted; a whole GPU that is cut has no reason of its own.
    pub(super) fn why(&self) -> Option<&Unavailable> {
        self.part.map_or(self.gpu.unavailable.as_ref(), |part| self.gpu.without(part))
    }

    /// The rule that keeps it from who asks.
    pub(super) fn closed_by(&self, closed: &[Closed<'_>]) -> Option<&'static str> {
        closed.iter().find(|(pci, _)| *pci == self.gpu.pci).map(|(_, rule)| *rule)
    }

    /// Whether it can be granted by count.
    pub(crate) fn usable(&self) -> bool {
        self.why().is_none() && (self.part.is_some() || self.gpu.usable())
    }

    pub(super) fn granted(&self) -> Granted {
        self.part.map_or_else(|| Granted::of(self.gpu), |part| Granted::of_part(self.gpu, part))
    }

    /// Whether it is a part with this profile.
    pub(super) fn has(&self, profile: &str) -> bool {
        self.part.is_some_and(|part| is_profile(part, profile))
    }

    /// Why it cannot be granted although it is named so; `usable` says it of a whole GPU.
    pub(super) fn refusal(&self, id: &str, usable: &dyn Fn(&Gpu) -> bool) -> Option<Refusal> {
        let why = match self.part {
            Some(part) => self.gpu.without(part)?,
            None if usable(self.gpu) => return None,
            None => match &self.gpu.unavailable {
                Some(why) => why,
                None => return Some(cut(id, self.gpu)),
            },
        };
        Some(unavailable(id, why))
    }
}

/// The refusal of a whole GPU that is cut into instances, with these as the way out.
fn cut(id: &str, gpu: &Gpu) -> Refusal {
    let names: Vec<String> =
        gpu.partitions.iter().map(|part| format!("{} ({})", gpu.short_name(part), part.profile)).collect();
    let message = format!("{id} is in MIG mode: it is granted by its instances, not as a whole");
    Refusal::new(Code::GpuUnavailable, "mig-enabled", message, format!("name one of {}", names.join(", ")))
}

/// Profiles are compared as they are: `1g.10gb` is not `1g.10gb+me`. What no source told has none.
fn is_profile(part: &Partition, profile: &str) -> bool {
    part.profile != contract::gpu::UNKNOWN_PROFILE && part.profile.eq_ignore_ascii_case(profile)
}

/// Whether this part is another than was granted under its number, as far as both are known.
pub(super) fn is_another(part: &Partition, granted: &Granted) -> bool {
    let Some(then) = &granted.partition else { return false };
    let known = |profile: &str| profile != contract::gpu::UNKNOWN_PROFILE;
    let renamed = then.uuid.is_some() && part.uuid.is_some() && then.uuid != part.uuid;
    renamed || known(&then.profile) && known(&part.profile) && then.profile != part.profile
}

/// The profiles of this node's instances, each once, as a list for people.
fn profiles(inventory: &Inventory) -> String {
    let mut profiles: Vec<&str> = Vec::new();
    for gpu in &inventory.gpus {
        for part in &gpu.partitions {
            if !profiles.contains(&part.profile.as_str()) {
                profiles.push(&part.profile);
            }
        }
    }
    profiles.join(", ")
}

/// All parts of GPUs, or all GPUs.
pub(super) fn all(inventory: &Inventory, parts: bool) -> Vec<One<'_>> {
    let mut all = Vec::new();
    for gpu in &inventory.gpus {
        match parts {
            true => all.extend(gpu.partitions.iter().map(|part| One { gpu, part: Some(part) })),
            false => all.push(One { gpu, part: None }),
        }
    }
    all
}

/// The GPUs of a kind; with a profile, their instances of it.
pub(super) fn matching<'a>(inventory: &'a Inventory, kind: Option<&str>, profile: Option<&str>) -> Vec<One<'a>> {
    let mut matching = Vec::new();
    for gpu in inventory.gpus.iter().filter(|gpu| is_kind(gpu, kind)) {
        match profile {
            None => matching.push(One { gpu, part: None }),
            Some(profile) => {
                let of_profile = gpu.partitions.iter().filter(|part| is_profile(part, profile));
                matching.extend(of_profile.map(|part| One { gpu, part: Some(part) }));
            }
        }
    }
    matching
}

/// The refusal of a profile that no instance has.
pub(super) fn no_profile(inventory: &Inventory, request: &Request, profile: &str, of_kind: &str) -> Refusal {
    let (what, help) = match profiles(inventory) {
        all if all.is_empty() => (String::new(), "leave the profile out to get whole GPUs".to_owned()),
        all => (format!(" of profile {profile:?}{of_kind}"), format!("ask for one of {all}")),
    };
    let message = format!("this node has no MIG instances{what}");
    Refusal::new(Code::UnknownGpu, "request-profile", message, help).at(request.place("profile"), profile)
}

#[cfg(test)]
mod tests;
