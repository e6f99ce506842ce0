//! `NVIDIA_VISIBLE_DEVICES` and the variables beside it, as a request: what other tools for NVIDIA's GPUs read, always in the
//! reading that opens least. Which containers may ask so is decided elsewhere. Touches nothing.

use crate::capability::Capabilities;
use crate::json::Node;
use crate::refusal::{Code, Note, Refusal};
use crate::request::{ALL, Words};

/// The kind of our own CDI devices.
pub const OWN_KIND: &str = "quilt.gpu/device";
/// The kind of NVIDIA's, which engines and device plugins name.
pub const NVIDIA_KIND: &str = "nvidia.com/gpu";
/// The same, where NVIDIA's runtime is to make the devices.
const RUNTIME_KIND: &str = "runtime.nvidia.com/gpu";

const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
const CAPABILITIES: &str = "NVIDIA_DRIVER_CAPABILITIES";
/// Variables that ask for devices beside GPUs. No contract gives any of them.
const MORE: [&str; 7] = [
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_GDS",
    "NVIDIA_MOFED",
    "NVIDIA_GDRCOPY",
    "NVIDIA_NVSWITCH",
];
/// Values that ask for nothing.
const NOTHING: [&str; 4] = ["", "none", "void", "disabled"];
const RULE: &str = "visible-devices";

/// Which GPUs a list names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// None, plainly or because nothing is named.
    Nothing,
    /// Each once, as they are written.
    These(Vec<String>),
    /// Whatever there is.
    All,
}

/// A request as far as the environment says it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Its words; none where nothing is asked for.
    pub words: Words,
    /// What was asked for and is not given.
    pub notes: Vec<Note>,
}

impl Names {
    /// Reads a comma list: `none` or `void` anywhere in it is none, an empty list too, and `all` stands for the others.
    ///
    /// # Errors
    /// The first word that is a CDI device and no GPU.
    pub fn read(list: &str) -> Result<Self, &str> {
        let (mut all, mut these) = (false, Vec::<String>::new());
        for word in list.split(',') {
            let mut name = word.trim();
            if let Some((kind, device)) = name.split_once('=') {
                if ![OWN_KIND, NVIDIA_KIND, RUNTIME_KIND].contains(&kind) {
                    return Err(name);
                }
                name = device;
            }
            let is = |word: &str| name.eq_ignore_ascii_case(word);
            if is("none") || is("void") {
                return Ok(Self::Nothing);
            }
            all |= is(ALL);
            if !name.is_empty() && !these.iter().any(|known| is(known)) {
                these.push(name.to_owned());
            }
        }
        Ok(if all {
            Self::All
        } else if these.is_empty() {
            Self::Nothing
        } else {
            Self::These(these)
        })
    }

    /// How much it is: of two the lesser counts.
    fn weight(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::These(these) => these.len(),
            Self::All => usize::MAX,
        }
    }

    /// As the value of `ids`; none where nothing is asked for.
    #[must_use]
    pub fn list(&self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::These(these) => Some(these.join(",")),
            Self::All => Some(ALL.to_owned()),
        }
    }
}

/// What is asked for in an environment, as its entries stand in a spec. Where a variable of `swarm` is set, these are the
/// request, and what an image says is none. Capabilities are given up to `ceiling`. Programs differ in which copy of a
/// variable they see, so the one that names least counts.
///
/// # Errors
/// `INVALID_GPU_REQUEST` for a CDI device that is no GPU, and for a capability that nobody knows.
pub fn said(entries: &[Node<'_>], swarm: &[String], ceiling: &Capabilities) -> Result<Said, Refusal> {
    let mut said = Said::default();
    let asked = match of_swarm(entries, swarm)? {
        None => least(entries, VISIBLE)?,
        some => some,
    };
    let Some((index, ids)) = asked.and_then(|(index, names)| Some((index, names.list()?))) else { return Ok(said) };
    said.words.set("ids", place(index), ids);
    let mut given = ceiling.clone();
    let (mut at, mut asked) = (String::new(), Capabilities::default());
    let mut copies = 0;
    for (index, entry) in entries.iter().enumerate() {
        let Some((name, value)) = entry.as_str().and_then(|entry| entry.split_once('=')) else { continue };
        if name == CAPABILITIES && !value.trim().is_empty() {
            (copies, at) = (copies + 1, place(index));
            asked = capabilities(value, ceiling).map_err(|refusal| refusal.at(&*at, value))?;
            given = given.within(&asked);
            // Of NVIDIA's words `ngx` alone is none of ours.
            if !asked.beyond(ceiling).is_empty() || value.contains("ngx") {
                said.notes.push(Note::new(RULE, &*at, "not all of these driver capabilities are given on this node"));
            }
        } else if MORE.contains(&name) && !NOTHING.contains(&value.trim()) {
            said.notes.push(Note::new(RULE, place(index), "devices that this variable asks for are not given"));
        }
    }
    if copies == 0 {
        given = given.within(&asked);
    }
    // Where nothing is left, what was asked for is refused by the ceiling itself.
    let given = if given.is_empty() { asked } else { given };
    said.words.set("capabilities", at, given.list());
    Ok(said)
}

fn capabilities(value: &str, ceiling: &Capabilities) -> Result<Capabilities, Refusal> {
    let mut known = String::new();
    for word in value.split(',').map(str::trim) {
        match word {
            ALL => return Ok(ceiling.clone()),
            "" | "ngx" => {}
            _ => known.extend([",", word]),
        }
    }
    Capabilities::parse(known.get(1..).unwrap_or_default())
}

/// The variables of Swarm together, and where the first of them stands.
fn of_swarm(entries: &[Node<'_>], swarm: &[String]) -> Result<Option<(usize, Names)>, Refusal> {
    let mut asked: Option<(usize, Names)> = None;
    for variable in swarm {
        let Some((index, names)) = least(entries, variable)? else { continue };
        asked = Some(match (asked, names) {
            (Some((index, Names::These(mut these))), Names::These(more)) => {
                for name in more {
                    if !these.contains(&name) {
                        these.push(name);
                    }
                }
                (index, Names::These(these))
            }
            (Some(first), Names::Nothing) => first,
            (Some((first, _)), names) => (first, names),
            (None, names) => (index, names),
        });
    }
    Ok(asked)
}

/// What a variable names, and where.
fn least(entries: &[Node<'_>], variable: &str) -> Result<Option<(usize, Names)>, Refusal> {
    let mut least: Option<(usize, Names)> = None;
    for (index, entry) in entries.iter().enumerate() {
        let rest = entry.as_str().and_then(|entry| entry.strip_prefix(variable));
        let Some(value) = rest.and_then(|rest| rest.strip_prefix('=')) else { continue };
        let names = Names::read(value).map_err(|word| {
            let help = "name GPUs as 0, GPU-<uuid>, MIG-<uuid>, 0:1 or all; other devices are the engine's to give";
            Refusal::new(Code::InvalidGpuRequest, RULE, "this CDI device is no GPU", help).at(place(index), word)
        })?;
        if least.as_ref().is_none_or(|(_, known)| names.weight() < known.weight()) {
            least = Some((index, names));
        }
    }
    Ok(least)
}

fn place(index: usize) -> String {
    format!("/process/env/{index}")
}

/// The name in a mount by which NVIDIA's device plugin hands a device on: what lies below `nvidia-container-devices`.
#[must_use]
pub fn mounted(rest: &str) -> Option<&str> {
    match rest.split_once('/') {
        Some(("cdi", name)) => name.strip_prefix(NVIDIA_KIND)?.strip_prefix(['/', '=']),
        Some(_) => None,
        None => Some(rest),
    }
}

#[cfg(test)]
mod tests;
