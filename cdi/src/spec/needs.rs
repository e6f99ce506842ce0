//! Which version of the CDI specification each part of a file came with: one list says both what a file must state at
//! least and which of its parts are newer than what it states.

use super::problem::Problem;
use super::types::{ContainerEdits, Spec};

/// The versions that there are, from old to new.
pub const VERSIONS: [&str; 10] =
    ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];
/// What every file needs: earlier versions said other things.
const FIRST: &str = "0.3.0";

/// A part of a file that came with a later version than the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// The version that it came with.
    pub version: &'static str,
    /// JSON pointer of the part.
    pub at: String,
    /// What it is.
    pub what: &'static str,
}

/// Every part of a file that came with a later version than the first.
#[must_use]
pub fn needs(spec: &Spec) -> Vec<Need> {
    let mut needs = Vec::new();
    let mut need = |yes: bool, version, at: String, what| {
        if yes {
            needs.push(Need { version, at, what });
        }
    };
    let dotted = spec.kind.split_once('/').is_some_and(|(_, class)| class.contains('.'));
    need(dotted, "0.6.0", "/kind".to_owned(), "a class with a dot");
    need(!spec.annotations.is_empty(), "0.6.0", "/annotations".to_owned(), "annotations");
    for (index, device) in spec.devices.iter().enumerate() {
        let at = format!("/devices/{index}");
        let digit = device.name.starts_with(|c: char| c.is_ascii_digit());
        need(digit, "0.5.0", format!("{at}/name"), "a device name that begins with a digit");
        need(!device.annotations.is_empty(), "0.6.0", format!("{at}/annotations"), "annotations");
        of_edits(&device.container_edits, &format!("{at}/containerEdits"), &mut need);
    }
    of_edits(&spec.container_edits, "/containerEdits", &mut need);
    needs
}

fn of_edits(edits: &ContainerEdits, at: &str, need: &mut impl FnMut(bool, &'static str, String, &'static str)) {
    for (index, mount) in edits.mounts.iter().enumerate() {
        need(mount.kind.is_some(), "0.4.0", format!("{at}/mounts/{index}/type"), "the type of a mount");
    }
    for (index, node) in edits.device_nodes.iter().enumerate() {
        let at = format!("{at}/deviceNodes/{index}/hostPath");
        need(node.host_path.is_some(), "0.5.0", at, "the hostPath of a device node");
    }
    need(!edits.additional_gids.is_empty(), "0.7.0", format!("{at}/additionalGids"), "additionalGids");
    if let Some(rdt) = &edits.intel_rdt {
        need(true, "0.7.0", format!("{at}/intelRdt"), "intelRdt");
        need(rdt.schemata.is_some(), "1.1.0", format!("{at}/intelRdt/schemata"), "schemata of intelRdt");
        let at = format!("{at}/intelRdt/enableMonitoring");
        need(rdt.enable_monitoring, "1.1.0", at, "enableMonitoring of intelRdt");
    }
    need(!edits.net_devices.is_empty(), "1.1.0", format!("{at}/netDevices"), "netDevices");
}

/// The lowest version that a file may state.
#[must_use]
pub fn lowest(spec: &Spec) -> &'static str {
    needs(spec).into_iter().map(|need| need.version).max_by_key(|version| place(version)).unwrap_or(FIRST)
}

/// The stated version as the specification writes it: without the `v` that readers tolerate.
pub(crate) fn stated(version: &str) -> &str {
    version.strip_prefix('v').unwrap_or(version)
}

/// What is wrong with the version that a file states.
pub(crate) fn check(spec: &Spec, problems: &mut Vec<Problem>) {
    let Some(stated) = place(stated(&spec.cdi_version)) else {
        let known = VERSIONS.into_iter().skip_while(|version| *version != FIRST).collect::<Vec<_>>().join(", ");
        problems.push(Problem::new(
            "/cdiVersion",
            format!("there is no version {:?} of CDI; there are {known}", spec.cdi_version),
        ));
        return;
    };
    if Some(stated) < place(FIRST) {
        let message = format!("version {} is older than any that is read; state {}", spec.cdi_version, lowest(spec));
        problems.push(Problem::new("/cdiVersion", message));
        return;
    }
    for need in needs(spec).into_iter().filter(|need| place(need.version) > Some(stated)) {
        let Need { version, at, what } = need;
        let message = format!("{what}: there since {version}, and the file states {}", spec.cdi_version);
        problems.push(Problem::new(at, message));
    }
}

/// Where a version stands among all.
pub(crate) fn place(version: &str) -> Option<usize> {
    VERSIONS.iter().position(|known| *known == version)
}
