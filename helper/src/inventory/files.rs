//! Which of the driver files that a search found are the loaded driver's. No I/O.

use contract::capability::Capability;
use contract::inventory::{DriverFile, FileId, FileKind, Finding, Library};
use linker::elf::{Class, Elf, Kind};
use linker::families;

use super::places::{PATHS, WSL};
use super::root::Fault;

/// Libraries of the driver packages that have a version of their own, so that the file name cannot say whose they are.
const OWN_VERSION: [&str; 7] = [
    "libnvidia-api",
    "libnvidia-egl-gbm",
    "libnvidia-egl-wayland",
    "libnvidia-egl-wayland2",
    "libnvidia-egl-xcb",
    "libnvidia-egl-xlib",
    "libnvidia-nvvm70",
];

/// Without these nothing that asks for GPUs works, whatever capabilities it asks for.
const NEEDED: [&str; 3] = ["libcuda.so.1", "libnvidia-ml.so.1", "libdxcore.so"];

/// Those of them that are the driver's of this version, which is none under WSL: there one more opens the GPU.
fn needed(version: Option<&str>) -> impl Iterator<Item = &'static str> {
    NEEDED.into_iter().take(if version.is_some() { 2 } else { 3 })
}

/// A file that a search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The path with links resolved inside the driver root.
    pub(crate) real: String,
    /// Which installation it belongs to; empty for the system's own.
    pub(crate) tree: &'static str,
    /// Which rule of the search found it.
    pub(crate) found_by: String,
    /// The file's identity.
    pub(crate) id: FileId,
    /// Why others than root could write or exchange it; nothing when nobody can.
    pub(crate) fault: Option<Fault>,
}

/// A file that is no library, and where a container would have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extra {
    /// The place in a container.
    pub(crate) path: String,
    pub(crate) kind: FileKind,
    pub(crate) capabilities: Vec<Capability>,
    pub(crate) candidate: Candidate,
    /// Where it leads, when it is a manifest with an absolute path.
    pub(crate) leads: Option<Leads>,
}

/// The library that a manifest names by an absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leads {
    /// The path.
    pub(crate) path: String,
    /// The file that it is in the driver root; nothing when nothing is there.
    pub(crate) real: Option<String>,
}

impl Leads {
    /// The library that a container gets anyway, and that nothing of an image's can be in the place of.
    fn given<'l>(&self, libraries: &'l [Library]) -> Option<&'l Library> {
        let plain = !self.path.split('/').skip(1).any(|part| matches!(part, "" | "." | ".."));
        let theirs = PATHS.iter().any(|folder| self.path.starts_with(folder));
        libraries.iter().find(|library| plain && theirs && Some(&library.host_path) == self.real.as_ref())
    }
}

impl Candidate {
    /// Whether its path says that it is another version's: `/opt/nvidia/550.54.15/…`, `…-nvidia-x11-565.57`, `x.so.550.54.15`.
    fn is_of_another(&self, version: &str) -> bool {
        let own = self.name().split_once(".so.").map(|(_, own)| own);
        self.real.split(['/', '-']).chain(own).any(|part| node::driver::is_version(part) && part != version)
    }

    fn name(&self) -> &str {
        self.real.rsplit('/').next().unwrap_or(&self.real)
    }

    /// Why a file that has the name of a needed library is not given out as it.
    fn not_as(&self, soname: &str, tree: &str, elf: Option<&Elf>) -> Option<String> {
        let Some(elf) = elf.filter(|elf| elf.kind == Kind::Shared) else {
            return Some("it is no ELF library".to_owned());
        };
        match elf.soname.as_deref() {
            Some(own) if own != soname => Some(format!("it calls itself {own}")),
            _ if self.fault.is_some() => self.fault.as_ref().map(|Fault { path, why }| format!("{path} {why}")),
            _ if self.tree != tree => {
                let part =
                    |tree: &str| if tree.is_empty() { "the system's own".to_owned() } else { format!("/{tree}") };
                Some(format!("of another installation, {}, than the rest, {}", part(self.tree), part(tree)))
            }
            _ => None,
        }
    }

    /// Containers, and this program, would run whatever somebody else puts there. A folder is told once.
    fn told_of_fault(&self, findings: &mut Vec<Finding>) -> bool {
        let Some(Fault { path, why }) = &self.fault else { return false };
        let what = if *path == self.real { "it" } else { "what lies there" };
        let message = format!("{path} {why}: {what} is left out; `chown root` and `chmod go-w` mend that");
        if !findings.iter().any(|finding| finding.message == message) {
            findings.push(Finding { code: "file-untrusted".into(), stops: false, message });
        }
        true
    }
}

/// The libraries of the loaded version among those found, each SONAME once for each class; the first found wins. All come
/// from one installation, which is named with them. No version: WSL's, which have none in their names.
pub(crate) fn libraries(
    candidates: Vec<(Candidate, Option<Elf>)>,
    version: Option<&str>,
) -> (Vec<Library>, &'static str, Vec<Finding>) {
    let tree = version.map_or(WSL, |version| installation(&candidates, version));
    let mut libraries: Vec<Library> = Vec::new();
    let (mut findings, mut others, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for (candidate, elf) in candidates {
        let (stem, file_version) = candidate.name().split_once(".so.").unwrap_or((candidate.name(), ""));
        let stem = stem.trim_end_matches(".so");
        let needed = needed(version).find(|needed| needed.split(".so").next() == Some(stem));
        if version.is_some_and(|version| file_version != version) && !OWN_VERSION.contains(&stem) {
            others.extend(needed.map(|_| file_version.to_owned()));
            continue;
        }
        if let Some(why) = needed.and_then(|needed| candidate.not_as(needed, tree, elf.as_ref())) {
            left_out.push(format!("{} is there, but {why}", candidate.real));
        }
        let Some(elf) = elf.filter(|elf| elf.kind == Kind::Shared && candidate.tree == tree) else { continue };
        let soname = elf.soname.clone().unwrap_or_else(|| candidate.name().to_owned());
        let bits = if elf.class == Class::Elf64 { 64 } else { 32 };
        let capabilities = capabilities(families::library_capabilities(&soname));
        let known = libraries.iter().any(|library| library.soname == soname && library.bits == bits);
        let doubtful = OWN_VERSION.contains(&stem) && version.is_some_and(|version| candidate.is_of_another(version));
        if known || capabilities.is_empty() || doubtful {
            continue;
        }
        if candidate.told_of_fault(&mut findings) {
            continue;
        }
        libraries.push(Library {
            host_path: candidate.real,
            soname,
            bits,
            capabilities,
            id: candidate.id,
            found_by: candidate.found_by,
        });
    }
    libraries.sort_by(|a, b| (&a.soname, b.bits).cmp(&(&b.soname, a.bits)));
    let missing: Vec<&str> = needed(version)
        .filter(|needed| !libraries.iter().any(|library| library.soname == *needed && library.bits == 64))
        .collect();
    findings.extend(match version {
        Some(version) => other_versions(others, version, &missing, &left_out),
        None => missing_under_wsl(&missing, &left_out),
    });
    (libraries, tree, findings)
}

/// The installation that has the loaded driver's main library: one that is given out, else one that says why it is not.
fn installation(candidates: &[(Candidate, Option<Elf>)], version: &str) -> &'static str {
    let of = |needed: &str, faulty: bool| {
        let stem = needed.split(".so").next().unwrap_or(needed);
        let name = format!("{stem}.so.{version}");
        let is = |(candidate, elf): &&(Candidate, Option<Elf>)| {
            let right = elf.as_ref().is_some_and(|elf| elf.kind == Kind::Shared && elf.class == Class::Elf64);
            right && candidate.fault.is_some() == faulty && candidate.name() == name
        };
        candidates.iter().find(is).map(|(candidate, _)| candidate.tree)
    };
    let any = |faulty| needed(Some(version)).find_map(|needed| of(needed, faulty));
    any(false).or_else(|| any(true)).unwrap_or_default()
}

fn missing_under_wsl(missing: &[&str], left_out: &[String]) -> Option<Finding> {
    let why = if left_out.is_empty() { String::new() } else { format!(" ({})", left_out.join("; ")) };
    (!missing.is_empty()).then(|| Finding {
        code: "library-missing".into(),
        stops: true,
        message: format!(
            "this is WSL, and /{WSL}/lib has no {}{why}; install NVIDIA's driver for Windows and run `wsl --update`, then `wsl --shutdown`",
            missing.join(" and ")
        ),
    })
}

/// What a search that found too little, or too much, means.
fn other_versions(mut others: Vec<String>, version: &str, missing: &[&str], left_out: &[String]) -> Option<Finding> {
    others.sort();
    others.dedup();
    let others = others.join(", ");
    let (code, stops, message) = match (missing.is_empty(), others.is_empty()) {
        (false, _) if !left_out.is_empty() => (
            "library-missing",
            true,
            format!(
                "no {} of the loaded driver {version}: {}; mend that, or install the driver's user-space libraries again",
                missing.join(" and "),
                left_out.join("; ")
            ),
        ),
        (true, true) => return None,
        (true, false) => (
            "driver-version-mixed",
            false,
            format!(
                "driver files of {others} lie beside those of {version}, the loaded module's; only the latter are given out"
            ),
        ),
        (false, true) => (
            "library-missing",
            true,
            format!(
                "no {} of the loaded driver {version}; install the driver's user-space libraries, or set [host] driver_root",
                missing.join(" and ")
            ),
        ),
        (false, false) => (
            "driver-version-mismatch",
            true,
            format!(
                "the loaded module is {version} and the libraries are {others}: no {}; reboot, or reload the module",
                missing.join(" and ")
            ),
        ),
    };
    Some(Finding { code: code.into(), stops, message })
}

/// The other files of the same installation and version, each place in a container once; the first found wins. A manifest
/// that names one of `libraries` by a path that only that system has brings the library there.
pub(crate) fn files(
    extras: Vec<Extra>,
    libraries: &[Library],
    tree: &str,
    version: Option<&str>,
) -> (Vec<DriverFile>, Vec<Finding>) {
    let mut files: Vec<DriverFile> = Vec::new();
    let mut findings = Vec::new();
    for Extra { path, kind, capabilities, candidate, leads } in extras {
        let here = !matches!(kind, FileKind::Program | FileKind::Data) || candidate.tree == tree;
        if !here
            || version.is_some_and(|version| candidate.is_of_another(version))
            || files.iter().any(|file| file.path == path)
        {
            continue;
        }
        if candidate.told_of_fault(&mut findings) {
            continue;
        }
        if let Some(leads) = leads {
            let Some(library) = leads.given(libraries) else {
                findings.push(unusable_manifest(&candidate.real, &leads.path));
                continue;
            };
            if !files.iter().any(|file| file.path == leads.path) {
                files.push(DriverFile {
                    host_path: library.host_path.clone(),
                    path: leads.path,
                    kind,
                    capabilities: capabilities.clone(),
                    id: library.id,
                    found_by: format!("named by {}", candidate.name()),
                });
            }
        }
        files.push(DriverFile {
            host_path: candidate.real,
            path,
            kind,
            capabilities,
            id: candidate.id,
            found_by: candidate.found_by,
        });
    }
    (files, findings)
}

fn unusable_manifest(real: &str, library: &str) -> Finding {
    Finding {
        code: "manifest-path".into(),
        stops: false,
        message: format!(
            "{real} is left out: it names its library as {library}, where no container has it; graphics needs a manifest that names it without a folder, or where NixOS has it and containers get it"
        ),
    }
}

/// The families' words as capabilities; words that no request can ask for fall out.
pub(crate) fn capabilities(words: &[&str]) -> Vec<Capability> {
    let all = [
        Capability::Compute,
        Capability::Utility,
        Capability::Graphics,
        Capability::Video,
        Capability::Display,
        Capability::Dri,
    ];
    all.into_iter().filter(|capability| words.contains(&capability.name())).collect()
}
