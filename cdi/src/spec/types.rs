//! What a CDI file says, as types. They hold every field of version 1.1 and none of another's; whether their values make
//! sense is judged elsewhere.
//!
//! As in the Go library an empty text is an absent one. Only `schemata` tells an empty list from none.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use contract::json::{Node, Value};
use contract::read::{FromJson, ReadError, field, only};
use serde::{Serialize, Serializer};

use crate::edits::Stage;

/// One CDI file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The version of the CDI specification that the file keeps to.
    pub cdi_version: String,
    /// `VENDOR/CLASS`, the same for all its devices.
    pub kind: String,
    /// Words for people and tools about the file.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The devices.
    pub devices: Vec<Device>,
    /// What changes with any of the devices.
    #[serde(skip_serializing_if = "ContainerEdits::is_empty")]
    pub container_edits: ContainerEdits,
}

/// One device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Its name within the kind.
    pub name: String,
    /// Words for people and tools about the device.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// What changes with this device.
    pub container_edits: ContainerEdits,
}

/// What changes in a container's spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerEdits {
    /// Variables as `NAME=VALUE`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Network interfaces that move into the container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    /// Programs that the low-level runtime calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Files and folders of the host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Cache and memory bandwidth by resctrl.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
    /// Groups that the container's process gets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

impl ContainerEdits {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A device node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// Where the container sees it.
    pub path: String,
    /// Where the host has it; the same path when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// What it is; as on the host when absent.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<NodeKind>,
    /// Device major; 0 counts as absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major: Option<u32>,
    /// Device minor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// Permission bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// What the container may do: letters of `rwm`, or `none`; all three when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    /// Owner in the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group in the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

impl DeviceNode {
    /// Where the host has it.
    #[must_use]
    pub fn host(&self) -> &str {
        self.host_path.as_deref().unwrap_or(&self.path)
    }
}

/// What a device node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// A block device.
    Block,
    /// A character device.
    Char,
    /// A character device, by its older letter.
    Unbuffered,
    /// A named pipe.
    Fifo,
}

contract::word!(NodeKind { Block = "b", Char = "c", Unbuffered = "u", Fifo = "p" });

impl NodeKind {
    /// Its letter.
    #[must_use]
    pub fn letter(self) -> &'static str {
        match self {
            Self::Block => "b",
            Self::Char => "c",
            Self::Unbuffered => "u",
            Self::Fifo => "p",
        }
    }
}

impl Serialize for NodeKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.letter())
    }
}

/// A network interface that moves into the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetDevice {
    /// Its name on the host.
    pub host_interface_name: String,
    /// Its name in the container.
    pub name: String,
}

/// A program that the low-level runtime calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// When it is called.
    #[serde(serialize_with = "stage")]
    pub hook_name: Stage,
    /// The program.
    pub path: String,
    /// Its arguments, its own name first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its variables as `NAME=VALUE`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds after which it is given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<NonZeroU32>,
}

contract::word!(Stage {
    Prestart = "prestart",
    CreateRuntime = "createRuntime",
    CreateContainer = "createContainer",
    StartContainer = "startContainer",
    Poststart = "poststart",
    Poststop = "poststop",
});

fn stage<S: Serializer>(stage: &Stage, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(stage.key())
}

/// A file or folder of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// What is mounted.
    pub host_path: String,
    /// Where the container sees it.
    pub container_path: String,
    /// Options as in fstab.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Type of the mount.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

impl Mount {
    /// The option that makes it a bind mount, or its type where that does.
    #[must_use]
    pub fn bind(&self) -> Option<&str> {
        let option = self.options.iter().map(String::as_str).rfind(|option| matches!(*option, "bind" | "rbind"));
        option.or(self.kind.as_deref().filter(|kind| *kind == "bind"))
    }
}

/// Cache and memory bandwidth by resctrl.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IntelRdt {
    /// Name of the class of service.
    #[serde(rename = "closID", skip_serializing_if = "Option::is_none")]
    pub clos_id: Option<String>,
    /// Its share of the level 3 cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l3_cache_schema: Option<String>,
    /// Its share of memory bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_bw_schema: Option<String>,
    /// Lines for its `schemata` file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schemata: Option<Vec<String>>,
    /// Whether it gets a group of its own for monitoring.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enable_monitoring: bool,
}

impl FromJson for Spec {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        only(node, &["cdiVersion", "kind", "annotations", "devices", "containerEdits"])?;
        Ok(Self {
            cdi_version: field(node, "cdiVersion")?,
            kind: field(node, "kind")?,
            annotations: annotations(node)?,
            devices: field(node, "devices")?,
            container_edits: or_default(node, "containerEdits")?,
        })
    }
}

impl FromJson for Device {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        only(node, &["name", "annotations", "containerEdits"])?;
        Ok(Self {
            name: field(node, "name")?,
            annotations: annotations(node)?,
            container_edits: field(node, "containerEdits")?,
        })
    }
}

impl FromJson for ContainerEdits {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        only(node, &["env", "deviceNodes", "netDevices", "hooks", "mounts", "intelRdt", "additionalGids"])?;
        Ok(Self {
            env: or_default(node, "env")?,
            device_nodes: or_default(node, "deviceNodes")?,
            net_devices: or_default(node, "netDevices")?,
            hooks: or_default(node, "hooks")?,
            mounts: or_default(node, "mounts")?,
            intel_rdt: field(node, "intelRdt")?,
            additional_gids: or_default(node, "additionalGids")?,
        })
    }
}

impl FromJson for DeviceNode {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        only(node, &["path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"])?;
        Ok(Self {
            path: field(node, "path")?,
            host_path: unless_empty(node, "hostPath")?,
            kind: unless_empty(node, "type")?,
            major: field(node, "major")?,
            minor: field(node, "minor")?,
            file_mode: field(node, "fileMode")?,
            permissions: unless_empty(node, "permissions")?,
            uid: field(node, "uid")?,
            gid: field(node, "gid")?,
        })
    }
}

impl FromJson for NetDevice {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        only(node, &["hostInterfaceName", "name"])?;
        Ok(Self { host_interface_name: field(node, "hostInterfaceName")?, name: field(node, "name")? })
    }
}

impl FromJson for Hook {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        only(node, &["hookName", "path", "args", "env", "timeout"])?;
        let timeout = field::<Option<Seconds>>(node, "timeout")?.map(|Seconds(seconds)| seconds);
        Ok(Self {
            hook_name: field(node, "hookName")?,
            path: field(node, "path")?,
            args: or_default(node, "args")?,
            env: or_default(node, "env")?,
            timeout,
        })
    }
}

impl FromJson for Mount {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        only(node, &["hostPath", "containerPath", "options", "type"])?;
        Ok(Self {
            host_path: field(node, "hostPath")?,
            container_path: field(node, "containerPath")?,
            options: or_default(node, "options")?,
            kind: unless_empty(node, "type")?,
        })
    }
}

impl FromJson for IntelRdt {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        only(node, &["closID", "l3CacheSchema", "memBwSchema", "schemata", "enableMonitoring"])?;
        Ok(Self {
            clos_id: unless_empty(node, "closID")?,
            l3_cache_schema: unless_empty(node, "l3CacheSchema")?,
            mem_bw_schema: unless_empty(node, "memBwSchema")?,
            schemata: field(node, "schemata")?,
            enable_monitoring: or_default(node, "enableMonitoring")?,
        })
    }
}

struct Seconds(NonZeroU32);

impl FromJson for Seconds {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        let seconds = NonZeroU32::new(u32::from_json(node)?);
        seconds.map(Self).ok_or_else(|| ReadError::new("it must be greater than 0; without a timeout, leave it out"))
    }
}

/// Keys and texts.
struct Texts(BTreeMap<String, String>);

impl FromJson for Texts {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        if !matches!(node.value, Value::Object(_)) {
            return Err(ReadError::new("it must be a table of texts"));
        }
        let pairs = node.members().iter().map(|member| {
            let text = String::from_json(&member.value).map_err(|error| error.inside(&member.key))?;
            Ok((member.key.to_string(), text))
        });
        pairs.collect::<Result<_, ReadError>>().map(Self)
    }
}

fn annotations(node: &Node<'_>) -> Result<BTreeMap<String, String>, ReadError> {
    Ok(field::<Option<Texts>>(node, "annotations")?.map(|Texts(texts)| texts).unwrap_or_default())
}

fn or_default<T: FromJson + Default>(node: &Node<'_>, key: &str) -> Result<T, ReadError> {
    Ok(field::<Option<T>>(node, key)?.unwrap_or_default())
}

fn unless_empty<T: FromJson>(node: &Node<'_>, key: &str) -> Result<Option<T>, ReadError> {
    if node.get(key).and_then(Node::as_str) == Some("") { Ok(None) } else { field(node, key) }
}
