//! The two line formats of node agents, written and read: `vfio-inventory`, one line for each group of PCI functions that
//! goes to a virtual machine whole, and `mig-inventory`, one line for each instance.
//!
//! ```text
//! <count> <kind> <pci>… [| bus_id=…;uuid=…;model=…;memory_mb=…;mig_mode=…]…
//! <profile> <kind> <uuid> [<parent uuid>]
//! ```
//!
//! The count is of display functions; what else is in the group (its audio, its USB) stands among the addresses only. After
//! each `|` come the facts of one display function; keys that we do not know are ignored.

use std::fmt;

use contract::inventory::pci_address;

use super::view::{Mode, View};

/// A group of functions that cannot be given out one by one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) count: u32,
    pub(crate) kind: String,
    /// All functions, sorted.
    pub(crate) pci: Vec<String>,
    /// What is known of the display functions.
    pub(crate) known: Vec<Known>,
}

/// What is known of one display function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Known {
    pub(crate) bus_id: Option<String>,
    pub(crate) uuid: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) memory_mb: Option<u64>,
    /// `enabled` or `disabled`.
    pub(crate) mig_mode: Option<String>,
}

/// A MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) profile: String,
    pub(crate) kind: String,
    pub(crate) uuid: String,
    pub(crate) parent: Option<String>,
}

/// The groups of GPUs that are bound to vfio-pci. `members` gives the functions of an IOMMU group.
pub(crate) fn groups(views: &[View<'_>], members: &dyn Fn(&str) -> Vec<String>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for view in views.iter().filter(|view| view.mode == Mode::Vfio) {
        let known = known(view);
        if let Some(group) = groups.iter_mut().find(|group| group.pci.iter().any(|pci| pci == view.pci)) {
            group.count += 1;
            group.known.push(known);
            continue;
        }
        let mut pci = members(view.pci);
        pci.push(view.pci.to_owned());
        pci.sort_unstable();
        pci.dedup();
        groups.push(Group { count: 1, kind: view.kind.clone(), pci, known: vec![known] });
    }
    groups
}

fn known(view: &View<'_>) -> Known {
    Known {
        bus_id: Some(view.pci.to_owned()),
        uuid: view.uuid.and_then(plain),
        model: view.model.and_then(plain),
        memory_mb: view.memory_mb,
        mig_mode: view.mig.map(|mig| if mig.enabled { "enabled" } else { "disabled" }.to_owned()),
    }
}

/// A text that ends no field and no line; nothing when nothing is left.
fn plain(text: &str) -> Option<String> {
    let clean = text.replace(|c: char| c == ';' || c == '|' || c.is_control(), " ");
    let clean = clean.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(clean).filter(|clean| !clean.is_empty())
}

/// The instances that can be granted and have a name.
pub(crate) fn instances(views: &[View<'_>]) -> Vec<Instance> {
    let of = |view: &View<'_>| -> Vec<Instance> {
        let parts = view.partitions.iter().filter(|part| part.kind == "mig" && part.health == "ok");
        let instance = |part: &super::view::Part<'_>| {
            Some(Instance {
                profile: part.profile.to_owned(),
                kind: view.kind.clone(),
                uuid: part.uuid?.to_owned(),
                parent: part.parent_uuid.map(str::to_owned),
            })
        };
        parts.filter_map(instance).collect()
    };
    views.iter().flat_map(of).collect()
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.count, self.kind, self.pci.join(" "))?;
        for known in &self.known {
            let memory = known.memory_mb.map(|mb| mb.to_string());
            let fields = [
                ("bus_id", &known.bus_id),
                ("uuid", &known.uuid),
                ("model", &known.model),
                ("memory_mb", &memory),
                ("mig_mode", &known.mig_mode),
            ];
            let fields = fields.iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)));
            write!(f, " | {}", fields.collect::<Vec<_>>().join(";"))?;
        }
        Ok(())
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.profile, self.kind, self.uuid)?;
        self.parent.as_ref().map_or(Ok(()), |parent| write!(f, " {parent}"))
    }
}

/// Whether a list is meant as a `vfio-inventory`: its first line begins with a number, of whatever size.
pub(crate) fn begins_with_a_number(text: &str) -> bool {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let word = line.and_then(|line| line.split_whitespace().next());
    word.is_none_or(|word| word.trim_start_matches(['-', '+']).bytes().all(|byte| byte.is_ascii_digit()))
}

/// Reads a `vfio-inventory`. Empty lines and comments (`#`) say nothing.
///
/// # Errors
/// The first line that is none, and why.
pub(crate) fn read_groups(text: &str) -> Result<Vec<Group>, String> {
    each(text, group)
}

/// Reads a `mig-inventory`.
///
/// # Errors
/// The first line that is none, and why.
pub(crate) fn read_instances(text: &str) -> Result<Vec<Instance>, String> {
    each(text, instance)
}

fn each<T>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(number, line)| read(line).map_err(|why| format!("line {number}: {why}"))).collect()
}

fn group(line: &str) -> Result<Group, String> {
    let mut sections = line.split('|');
    let mut words = sections.next().unwrap_or_default().split_whitespace();
    let count = words.next().unwrap_or_default();
    let count: u32 = count.parse().ok().filter(|count| *count > 0).ok_or_else(|| {
        format!("{count:?} is no count of GPUs on one node; a line is <count> <kind> <pci>… [| key=value;…]")
    })?;
    let kind = words.next().ok_or("the kind is missing behind the count")?.to_ascii_lowercase();
    let address = |word: &str| pci_address(word).ok_or_else(|| format!("{word:?} is no PCI address"));
    let mut pci = words.map(address).collect::<Result<Vec<_>, _>>()?;
    pci.sort_unstable();
    pci.dedup();
    if pci.len() < count as usize {
        return Err(format!("{count} GPUs are counted, and there are {} PCI addresses", pci.len()));
    }
    let known = sections.map(facts).collect::<Result<Vec<_>, _>>()?;
    Ok(Group { count, kind, pci, known })
}

fn facts(section: &str) -> Result<Known, String> {
    let mut known = Known::default();
    for field in section.split(';').map(str::trim).filter(|field| !field.is_empty()) {
        let (key, value) = field.split_once('=').ok_or_else(|| format!("{field:?} is no key=value"))?;
        let text = || Some(value.to_owned()).filter(|value| !value.is_empty());
        match key {
            "bus_id" => {
                known.bus_id = Some(pci_address(value).ok_or_else(|| format!("bus_id {value:?} is no PCI address"))?);
            }
            "uuid" => known.uuid = text(),
            "model" => known.model = text(),
            "memory_mb" => {
                known.memory_mb = Some(value.parse().map_err(|_| format!("memory_mb {value:?} is no whole number"))?);
            }
            "mig_mode" => known.mig_mode = text(),
            _ => {}
        }
    }
    Ok(known)
}

fn instance(line: &str) -> Result<Instance, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (profile, kind, uuid, parent) = match words.as_slice() {
        [profile, kind, uuid] => (profile, kind, uuid, None),
        [profile, kind, uuid, parent] => (profile, kind, uuid, Some((*parent).to_owned())),
        _ => return Err("a line is <profile> <kind> <uuid> [<parent uuid>]".to_owned()),
    };
    if !uuid.starts_with("MIG-") {
        return Err(format!("{uuid:?} is no UUID of an instance: those begin with MIG-"));
    }
    Ok(Instance { profile: (*profile).to_owned(), kind: kind.to_ascii_lowercase(), uuid: (*uuid).to_owned(), parent })
}

#[cfg(test)]
mod tests;
