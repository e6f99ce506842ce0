//! The CDI file that a node's inventory is: what a container gets of each device is what a contract would give it
//! ([`ledger::draft`]). Touches nothing.
//!
//! Nobody sees an image here, so each library is bound where Debian's and where every other loader looks.

use cdi::spec::{ContainerEdits, Device, DeviceNode, Mount, NodeKind, Spec, lowest};
use contract::config::Policy;
use contract::gpu::{Gpu, State, Unavailable};
use contract::inventory::{self, Inventory};
use contract::request::Request;
use contract::{Code, Contract, Granted, Refusal};
use ledger::Recipient;
use linker::elf::Class;
use linker::image::Image;
use linker::view::{self, Library};

/// Set in every container that gets a device of this file: which capabilities the file was made for. Our runtime knows its
/// own devices by it, whoever put them in.
const MADE_FOR: &str = "QUILT_GPU_CDI";
/// The name that means every device of the file.
const ALL: &str = "all";
/// Where loaders look for libraries unasked, and for those of 32 bits: Debian's, then everybody else's.
pub(super) const FOLDERS: [(&str, &str); 2] = if cfg!(target_arch = "aarch64") {
    [("/usr/lib/aarch64-linux-gnu", ""), ("/usr/lib64", "")]
} else {
    [("/usr/lib/x86_64-linux-gnu", "/usr/lib/i386-linux-gnu"), ("/usr/lib64", "/usr/lib")]
};

/// A file and what it lacks.
pub(super) struct Made {
    pub(super) spec: Spec,
    /// GPUs that are not in it, each with the reason.
    pub(super) without: Vec<String>,
}

/// The file for containers that ask for the capabilities of `request`.
///
/// # Errors
/// As [`ledger::draft`]; `UNKNOWN_GPU` or `GPU_UNAVAILABLE` where there is no device to name.
pub(super) fn made(inventory: &Inventory, kind: &str, request: &Request, policy: &Policy) -> Result<Made, Refusal> {
    let draft = |gpus: &[Granted]| ledger::draft(inventory, gpus, request, policy, "", Recipient::default(), 0);
    let (out, named): (Vec<_>, Vec<_>) = inventory.gpus.iter().flat_map(grantable).partition(|one| one.why.is_some());
    let without: Vec<String> =
        out.iter().filter_map(|one| Some(format!("{}: {}", one.names.first()?, one.why?))).collect();
    if named.is_empty() {
        return Err(nothing(inventory, &without));
    }
    let common = draft(&[])?;
    let own = |contract: &Contract| edits(contract.nodes.iter().filter(|node| !common.nodes.contains(node)));
    let mut devices: Vec<Device> = Vec::new();
    let all: Vec<Granted> = named.iter().map(|one| one.granted.clone()).collect();
    let all = (vec![ALL.to_owned()], all);
    for (names, granted) in named.into_iter().map(|one| (one.names, vec![one.granted])).chain([all]) {
        let container_edits = own(&draft(&granted)?);
        let device = |name| Device { name, container_edits: container_edits.clone(), ..Device::default() };
        devices.extend(names.into_iter().map(device));
    }
    let mut spec = Spec { kind: kind.to_owned(), devices, container_edits: of_all(&common), ..Spec::default() };
    lowest(&spec).clone_into(&mut spec.cdi_version);
    Ok(Made { spec, without })
}

/// A GPU, or a part of one, by all its names in CDI.
struct One<'a> {
    names: Vec<String>,
    granted: Granted,
    /// Why it is not named.
    why: Option<&'a str>,
}

impl<'a> One<'a> {
    fn of(names: Vec<Option<String>>, granted: Granted, why: Option<&'a Unavailable>) -> Self {
        // A UUID of a part is no name in CDI with old drivers.
        let names = names.into_iter().flatten().filter(|name| !name.contains('/')).collect();
        // Who has a GPU open says nothing about the file: whoever has it may have it from there.
        let why = why.filter(|why| why.state != State::Busy).map(|why| why.why.as_str());
        Self { names, granted, why }
    }
}

/// What can be granted of a GPU: its parts where it is cut.
fn grantable(gpu: &Gpu) -> Vec<One<'_>> {
    if gpu.partitions.is_empty() {
        let minor = gpu.minor.map_or_else(|| gpu.pci.clone(), |minor| format!("nvidia{minor}"));
        let names = vec![Some(minor), gpu.uuid.clone(), gpu.index.map(|index| index.to_string())];
        return vec![One::of(names, Granted::of(gpu), gpu.unavailable.as_ref())];
    }
    let part = |part| {
        One::of(vec![Some(gpu.short_name(part)), part.uuid.clone()], Granted::of_part(gpu, part), gpu.without(part))
    };
    gpu.partitions.iter().map(part).collect()
}

fn nothing(inventory: &Inventory, without: &[String]) -> Refusal {
    if inventory.gpus.is_empty() {
        let help = "generate on a node that has one";
        return Refusal::new(
            Code::UnknownGpu,
            "cdi-no-device",
            "this node has no NVIDIA GPU to name in a CDI file",
            help,
        );
    }
    let message = format!("no GPU of this node can be named in a CDI file: {}", without.join("; "));
    let help = "mend that on the node; `quilt-gpu inventory` shows whether it is";
    Refusal::new(Code::GpuUnavailable, "cdi-no-device", message, help)
}

/// What comes with any device. `void` keeps other injectors from doing it once more.
fn of_all(common: &Contract) -> ContainerEdits {
    let capabilities = common.request.capabilities.list();
    let env =
        [("NVIDIA_VISIBLE_DEVICES", "void"), ("NVIDIA_DRIVER_CAPABILITIES", &capabilities), (MADE_FOR, &capabilities)];
    ContainerEdits {
        env: env.map(|(name, value)| format!("{name}={value}")).into(),
        mounts: libraries(&common.libraries)
            .into_iter()
            .chain(common.files.iter().map(|file| mount(&file.host_path, file.path.clone())))
            .collect(),
        ..edits(common.nodes.iter())
    }
}

fn libraries(libraries: &[inventory::Library]) -> Vec<Mount> {
    let wanted: Vec<Library<'_>> = libraries
        .iter()
        .map(|library| Library {
            host_path: &library.host_path,
            soname: Some(&library.soname),
            class: if library.bits == 32 { Class::Elf32 } else { Class::Elf64 },
        })
        .collect();
    let folder = |path: &str| if path.is_empty() { Vec::new() } else { vec![path.to_owned()] };
    let image = |(wide, narrow)| Image::Glibc { folders: folder(wide), folders32: folder(narrow) };
    let binds = FOLDERS.into_iter().flat_map(|folders| view::plan(&image(folders), &wanted, |_| true).binds);
    binds.map(|bind| mount(bind.host_path, bind.container_path)).collect()
}

fn mount(host_path: &str, container_path: String) -> Mount {
    let cdi::Mount { options, .. } = cdi::Mount::library(host_path, container_path.as_str());
    let options = options.into_iter().map(Into::into).collect();
    Mount { host_path: host_path.to_owned(), container_path, options, kind: None }
}

fn edits<'n>(nodes: impl Iterator<Item = &'n inventory::DeviceNode> + Clone) -> ContainerEdits {
    let mut additional_gids = Vec::new();
    for gid in nodes.clone().filter(|node| !node.lets(0) && node.lets(3)).map(|node| node.gid) {
        // Root's group opens nothing that root itself does not.
        if gid != 0 && !additional_gids.contains(&gid) {
            additional_gids.push(gid);
        }
    }
    ContainerEdits { device_nodes: nodes.map(node).collect(), additional_gids, ..ContainerEdits::default() }
}

fn node(node: &inventory::DeviceNode) -> DeviceNode {
    let unless_root = |id: u32| Some(id).filter(|id| *id != 0);
    DeviceNode {
        path: node.path.clone(),
        host_path: Some(node.host_path.clone()).filter(|path| *path != node.path),
        kind: Some(NodeKind::Char),
        major: Some(node.major),
        minor: Some(node.minor),
        file_mode: Some(node.mode),
        permissions: Some("rw".to_owned()),
        uid: unless_root(node.uid),
        gid: unless_root(node.gid),
    }
}

/// Takes out what engines of CDI 0.3 do not know, and says what is lost.
pub(super) fn for_old_engines(spec: &mut Spec) -> Vec<String> {
    let mut lost = Vec::new();
    let (old, new): (Vec<_>, Vec<_>) = std::mem::take(&mut spec.devices)
        .into_iter()
        .partition(|device| !device.name.starts_with(|c: char| c.is_ascii_digit()));
    spec.devices = old;
    if !new.is_empty() {
        let names: Vec<&str> = new.iter().map(|device| device.name.as_str()).collect();
        lost.push(format!("no device is called {}: before 0.5.0 names begin with a letter", names.join(", ")));
    }
    let (mut moved, mut gids) = (None, Vec::new());
    let devices = spec.devices.iter_mut().map(|device| &mut device.container_edits);
    for edits in devices.chain([&mut spec.container_edits]) {
        for path in edits.device_nodes.iter_mut().filter_map(|node| node.host_path.take()) {
            moved.get_or_insert(path);
        }
        gids.append(&mut edits.additional_gids);
    }
    if let Some(path) = moved {
        lost.push(format!(
            "nobody is told that nodes lie elsewhere on the host ({path}): that is since 0.5.0, and engines \
                           that bind nodes instead of making them, as for users who are not root, find none"
        ));
    }
    if let Some(gid) = gids.first() {
        lost.push(format!(
            "containers do not get the group {gid}, which may open the nodes: that is since 0.7.0, and \
                           nobody but root in a container can open them"
        ));
    }
    lowest(spec).clone_into(&mut spec.cdi_version);
    lost
}

#[cfg(test)]
mod tests;
