//! What a node has: GPUs, device nodes, driver files, and the facts that this knowledge rests on.
//!
//! The helper makes it, stores it as JSON, and everything else reads it. A GPU is keyed by its PCI address: a UUID may be
//! unknown and an NVIDIA minor exists only while the NVIDIA driver holds the device.

use serde::Serialize;

use crate::capability::Capability;
pub use crate::facts::{DriverGpu, Facts, Instances, Marks};
use crate::gpu::{Gpu, Link};
use crate::json::Node;
use crate::read::{self, FromJson, ReadError};
use crate::{record, word};

/// Version of the inventory's layout; another version is not read.
pub const SCHEMA: u32 = 2;

/// A node's inventory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Inventory {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What was true when it was made.
    pub facts: Facts,
    /// All GPUs by PCI address, usable or not.
    pub gpus: Vec<Gpu>,
    /// Control nodes that every GPU container of this vendor needs (nvidiactl, uvm …), and those that policy gives to some.
    pub control: Vec<DeviceNode>,
    /// Driver libraries of the loaded version.
    pub libraries: Vec<Library>,
    /// The driver's other files: programs, what describes the driver to loaders, firmware, sockets.
    pub files: Vec<DriverFile>,
    /// What is wrong or worth knowing about this node.
    pub findings: Vec<Finding>,
    /// Highest CUDA version that the loaded driver serves, as in `12.4`, when it tells.
    pub cuda_version: Option<String>,
    /// How GPUs are connected, best first for each pair; pairs that nothing is known of are absent.
    pub links: Vec<Link>,
    /// GPUs that were here and are not now, the newest last: UUID, and the PCI address that it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub former: Option<Vec<(String, String)>>,
    /// The low-level runtime, and whether a device filter of its making holds; absent when that was not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_level: Option<LowLevel>,
}

/// What a low-level runtime was seen to be and to do on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LowLevel {
    /// The program.
    pub path: String,
    /// The file's identity.
    pub id: FileId,
    /// What it calls itself, whatever its file is called: `crun`; empty when it does not tell.
    pub name: String,
    /// Its version; empty when it does not tell.
    pub version: String,
    /// The control groups that device filters are in: 1 or 2.
    pub cgroup: u8,
    /// Whether its device filters hold.
    pub filter: Filter,
    /// Whether it makes containers, but none with a device list.
    pub fails_with_list: bool,
    /// Why not, or why that could not be tried.
    pub reason: Option<String>,
}

/// Whether device filters hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Filter {
    /// A container was made, and its filter closed what it should.
    Enforced,
    /// A container was made, and it was open; or none can be made with a device list.
    NotEnforced,
    /// No container could be made or looked at: nothing follows from it.
    NotTried,
}

impl Inventory {
    /// Reads one as it is stored. A node may have a hundred parts of GPUs, and every create reads this.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadError> {
        let (inventory, gpus) = read::document_and_list::<Self, Gpu>(bytes, "gpus")?;
        Ok(Self { gpus, ..inventory })
    }

    /// The same as it is stored.
    #[must_use]
    pub fn folded(mut self) -> Self {
        for part in self.gpus.iter_mut().flat_map(|gpu| &mut gpu.partitions) {
            part.nodes = part.nodes.folded();
        }
        self
    }
}

record!(Inventory { schema, facts, gpus, control, libraries, files, findings, cuda_version, links, former, low_level });

record!(DeviceNode { path, host_path, major, minor, mode, uid, gid, role });
record!(FileId { dev, ino, size, ctime, ctime_nsec });
record!(Library { host_path, soname, bits, capabilities, id, found_by });
record!(DriverFile { host_path, path, kind, capabilities, id, found_by });
record!(Finding { code, stops, message });
word!(FileKind {
    Program = "program",
    Data = "data",
    Firmware = "firmware",
    Persistenced = "persistenced",
    Fabricmanager = "fabricmanager",
    Mps = "mps",
});
word!(Role {
    Compute = "compute",
    Render = "render",
    Display = "display",
    Control = "control",
    Caps = "caps",
    MigConfig = "mig-config",
    MigMonitor = "mig-monitor",
});

/// What a device node is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The GPU itself.
    Compute,
    /// A DRM render node.
    Render,
    /// A DRM card or modesetting node.
    Display,
    /// Shared by all containers of the vendor.
    Control,
    /// A capability node (MIG, IMEX).
    Caps,
    /// The capability node that lets one make and remove MIG instances of every GPU.
    MigConfig,
    /// The capability node that lets one watch the MIG instances of every GPU.
    MigMonitor,
}

/// A character device node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceNode {
    /// Where a container sees it: `/dev/nvidia0`.
    pub path: String,
    /// Where it lies on the host; differs from `path` when the dev root is not `/dev`.
    pub host_path: String,
    /// Device major.
    pub major: u32,
    /// Device minor.
    pub minor: u32,
    /// Permission bits, as in 0o666.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// What it is for.
    pub role: Role,
}

impl DeviceNode {
    /// Whether its mode lets a user open it: the owner (6), the group (3), others (0). To open a capability's node is to read it.
    #[must_use]
    pub fn lets(&self, shift: u32) -> bool {
        let needed = if self.role.is_capability() { 0o4 } else { 0o6 };
        self.mode >> shift & needed == needed
    }
}

/// What a file was when it was looked at; a change of any part means another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FileId {
    /// Device it lies on (`st_dev`).
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Change time in seconds.
    pub ctime: i64,
    /// Nanoseconds of the change time.
    pub ctime_nsec: i64,
}

/// One driver library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Library {
    /// The file on the host, links resolved inside the driver root.
    pub host_path: String,
    /// Its SONAME, read from the file; the file name when it has none.
    pub soname: String,
    /// 32 or 64, read from the file.
    pub bits: u8,
    /// What it is needed for; empty for none of ours.
    pub capabilities: Vec<Capability>,
    /// The file's identity.
    pub id: FileId,
    /// Which rule of the search found it.
    pub found_by: String,
}

/// One file of the driver that is no library: it has one place in every container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DriverFile {
    /// The file on the host, links resolved inside the driver root.
    pub host_path: String,
    /// Where a container sees it: `/usr/bin/nvidia-smi`.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// What it is needed for.
    pub capabilities: Vec<Capability>,
    /// The file's identity.
    pub id: FileId,
    /// Which rule of the search found it.
    pub found_by: String,
}

/// What kinds of driver files there are besides libraries; some are given out by policy only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A program.
    Program,
    /// Read by libraries and loaders: manifests of Vulkan, EGL and OpenCL, modules of X servers.
    Data,
    /// Loaded by the kernel module.
    Firmware,
    /// Socket of the persistence daemon.
    Persistenced,
    /// Socket of the fabric manager.
    Fabricmanager,
    /// Folder with the pipes of the Multi-Process Service.
    Mps,
}

impl Role {
    /// Whether it is a node of nvidia-caps: to open one is to read it.
    #[must_use]
    pub fn is_capability(self) -> bool {
        self == Self::Caps || self.manages()
    }

    /// Whether whoever opens it manages or watches the MIG instances of every GPU.
    #[must_use]
    pub fn manages(self) -> bool {
        matches!(self, Self::MigConfig | Self::MigMonitor)
    }
}

impl DriverFile {
    /// Whether another identity means another file. Daemons make their sockets anew, and a folder changes with what is in it.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        matches!(self.kind, FileKind::Program | FileKind::Data | FileKind::Firmware)
    }
}

/// Something an operator should know about this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Short stable name, as in `uvm-missing`.
    pub code: String,
    /// Whether GPUs cannot be granted because of it.
    pub stops: bool,
    /// What is true and what would mend it.
    pub message: String,
}

/// Read for every container and written by nobody else: what is wrong with it is not told in detail.
impl FromJson for LowLevel {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        let text = |key: &str| node.get(key).and_then(Node::as_str).map(str::to_owned);
        let filter = node.get("filter").and_then(Node::as_str).and_then(|word| match word {
            "enforced" => Some(Filter::Enforced),
            "not-enforced" => Some(Filter::NotEnforced),
            "not-tried" => Some(Filter::NotTried),
            _ => None,
        });
        let cgroup = node.get("cgroup").and_then(Node::as_i64).and_then(|number| u8::try_from(number).ok());
        match (text("path"), text("name"), text("version"), cgroup, filter) {
            (Some(path), Some(name), Some(version), Some(cgroup), Some(filter)) => {
                let (id, reason) = (read::field(node, "id")?, text("reason"));
                let fails_with_list = read::field(node, "fails_with_list")?;
                Ok(Self { path, id, name, version, cgroup, filter, fails_with_list, reason })
            }
            _ => Err(ReadError::new("it is no record of a low-level runtime")),
        }
    }
}

impl Inventory {
    /// All device nodes: of GPUs, of their partitions, and those that all share.
    pub fn nodes(&self) -> impl Iterator<Item = DeviceNode> {
        let parts = self.gpus.iter().flat_map(|gpu| &gpu.partitions);
        let of_parts = parts.flat_map(|part| part.nodes.read().unwrap_or_default().into_owned());
        let (of_gpus, shared) = (self.gpus.iter().flat_map(|gpu| &gpu.nodes), &self.control);
        of_gpus.cloned().chain(of_parts).chain(shared.iter().cloned())
    }
}

/// A PCI address in sysfs spelling, from `0000:41:00.0`, `00000000:41:00.0`, `41:00.0`, in any case.
#[must_use]
pub fn pci_address(text: &str) -> Option<String> {
    // The driver and our own files write it so.
    let usual = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b':',
        10 => byte == b'.',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    if text.len() == "0000:41:00.0".len() && text.bytes().enumerate().all(usual) {
        return Some(text.to_owned());
    }
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts = rest.rsplit(':');
    let (device, bus) = (parts.next()?, parts.next()?);
    let domain = parts.next().unwrap_or("0");
    if parts.next().is_some() {
        return None;
    }
    let number = |s: &str, most: usize| {
        (!s.is_empty() && s.len() <= most && s.bytes().all(|b| b.is_ascii_hexdigit()))
            .then(|| u32::from_str_radix(s, 16).ok())
            .flatten()
    };
    let (domain, bus, device, function) =
        (number(domain, 8)?, number(bus, 2)?, number(device, 2)?, number(function, 1)?);
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_address() {
        for text in ["0000:1a:00.0", "00000000:1A:00.0", "1a:00.0", "0:1a:0.0"] {
            assert_eq!(pci_address(text).as_deref(), Some("0000:1a:00.0"), "{text}");
        }
        assert_eq!(pci_address("10000:01:00.0").as_deref(), Some("10000:01:00.0"));
        for text in ["0000:1a:0000.0", "0000:1a:00:0", "0000.1a:00.0", "000g:1a:00.0", "0000:1a:00.x"] {
            assert_eq!(pci_address(text), None, "{text}");
        }
        for text in ["", "1a:00", "x:00.0", "0:0:0:0.0", "1a:00.10", "+1:00.0"] {
            assert_eq!(pci_address(text), None, "{text}");
        }
    }
}
