//! Which device nodes a driver has, judged by number: a name under the dev root proves nothing. No I/O.

use contract::inventory::{DeviceNode, Facts, Finding, Role};

/// What lies at a name of the dev root; links are not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AtName {
    /// Nothing.
    Missing,
    /// A character device.
    Char {
        /// Device major and minor.
        number: (u32, u32),
        /// Permission bits.
        mode: u32,
        /// Owner and group.
        owner: (u32, u32),
    },
    /// Something else, or it cannot be told; in words.
    Other(String),
}

/// The dev root: where it is, and what lies at a name below it.
pub(crate) struct DevRoot<'a> {
    /// Its path.
    pub(crate) path: &'a str,
    /// What lies at `nvidia0`.
    pub(crate) look: &'a dyn Fn(&str) -> AtName,
}

/// Why a node cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It is not there.
    Missing(String),
    /// It is there and is not what the kernel says it must be.
    Mismatch(String),
}

impl DevRoot<'_> {
    /// The node `name` when it is the character device that it must be.
    pub(crate) fn node(&self, name: &str, number: (u32, u32), role: Role) -> Result<DeviceNode, Trouble> {
        let host_path = format!("{}/{name}", self.path.trim_end_matches('/'));
        let (major, minor) = number;
        match (self.look)(name) {
            AtName::Char { number, mode, owner: (uid, gid) } if number == (major, minor) => {
                Ok(DeviceNode { path: format!("/dev/{name}"), host_path, major, minor, mode, uid, gid, role })
            }
            AtName::Char { number: (is_major, is_minor), .. } => Err(Trouble::Mismatch(format!(
                "{host_path} is device {is_major}:{is_minor}, the kernel's number for it is {major}:{minor}; remove it and let the driver make it again"
            ))),
            AtName::Other(what) => Err(Trouble::Mismatch(format!(
                "{host_path} is {what}, not the character device {major}:{minor}; remove it and let the driver make it again"
            ))),
            AtName::Missing => Err(Trouble::Missing(host_path)),
        }
    }
}

/// The major of the GPUs' own nodes: registered under two names over the years, and a fixed number in Linux's
/// `Documentation/admin-guide/devices.txt` when `/proc/devices` lists neither.
pub(crate) fn gpu_major(facts: &Facts) -> u32 {
    major(facts, &["nvidia", "nvidia-frontend"]).unwrap_or(195)
}

fn major(facts: &Facts, names: &[&str]) -> Option<u32> {
    names.iter().find_map(|name| facts.majors.iter().find(|(known, _)| known == name)).map(|(_, major)| *major)
}

/// A node that all GPUs of the vendor share.
struct Control {
    name: &'static str,
    minor: u32,
    /// Named by the unified memory module, whose major is dynamic; the others share the GPUs' major.
    uvm: bool,
    /// No GPU container works without it, whatever capabilities it asks for.
    needed: bool,
    missing: &'static str,
    mend: &'static str,
}

const CONTROL: [Control; 4] = [
    Control {
        name: "nvidiactl",
        minor: 255,
        uvm: false,
        needed: true,
        missing: "ctl-missing",
        mend: "run `nvidia-modprobe`",
    },
    Control {
        name: "nvidia-uvm",
        minor: 0,
        uvm: true,
        needed: false,
        missing: "uvm-missing",
        mend: "CUDA cannot start without it; run `nvidia-modprobe -u -c 0`",
    },
    Control {
        name: "nvidia-uvm-tools",
        minor: 1,
        uvm: true,
        needed: false,
        missing: "uvm-tools-missing",
        mend: "profilers need it; run `nvidia-modprobe -u -c 0`",
    },
    Control {
        name: "nvidia-modeset",
        minor: 254,
        uvm: false,
        needed: false,
        missing: "modeset-missing",
        mend: "graphics and display need it; run `nvidia-modprobe -m`",
    },
];

/// Names and numbers of the nodes that a loaded driver has: those that every GPU needs, and the GPUs' own. None of a number
/// that the kernel does not list.
pub(crate) fn of_driver(facts: &Facts) -> Vec<(String, (u32, u32))> {
    let gpus = major(facts, &["nvidia", "nvidia-frontend"]);
    let uvm = major(facts, &["nvidia-uvm"]);
    // A module of its own behind the GPUs' number: newer drivers list it when it is loaded.
    let modeset = major(facts, &["nvidia-modeset", "nvidia-frontend"]).is_some();
    let control = CONTROL
        .iter()
        .filter(|control| modeset || control.name != "nvidia-modeset")
        .filter_map(|control| Some((control.name.to_owned(), (if control.uvm { uvm } else { gpus }?, control.minor))));
    let own = facts.driver_gpus.iter().filter_map(|gpu| Some((format!("nvidia{}", gpu.minor?), (gpus?, gpu.minor?))));
    if facts.driver_version.is_some() { control.chain(own).collect() } else { Vec::new() }
}

/// The control nodes of a loaded driver, and what is wrong with them.
pub(crate) fn control(facts: &Facts, dev: &DevRoot<'_>) -> (Vec<DeviceNode>, Vec<Finding>) {
    let (mut nodes, mut findings) = (Vec::new(), Vec::new());
    for control in &CONTROL {
        let major = if control.uvm { major(facts, &["nvidia-uvm"]) } else { Some(gpu_major(facts)) };
        let missing = |message: String| Finding { code: control.missing.into(), stops: control.needed, message };
        let Some(major) = major else {
            findings.push(missing(format!(
                "the kernel has no nvidia-uvm devices, so {} cannot work: {}",
                control.name, control.mend
            )));
            continue;
        };
        match dev.node(control.name, (major, control.minor), Role::Control) {
            Ok(node) => nodes.push(node),
            Err(Trouble::Missing(path)) => findings.push(missing(format!("{path} does not exist: {}", control.mend))),
            Err(Trouble::Mismatch(message)) => findings.push(mismatch(message)),
        }
    }
    (nodes, findings)
}

/// Nodes that not even their owner may open: the module's option is decimal, and an octal number in it makes such modes.
pub(crate) fn odd_modes<'a>(nodes: impl Iterator<Item = &'a DeviceNode>) -> Option<Finding> {
    let odd = nodes.filter(|node| node.mode & 0o600 != 0o600);
    let odd: Vec<String> = odd
        .map(|node| format!("{} (mode {:04o}, owner {}:{})", node.host_path, node.mode, node.uid, node.gid))
        .collect();
    (!odd.is_empty()).then(|| Finding {
        code: "device-mode".into(),
        stops: false,
        message: format!(
            "not even their owner may read and write {}; NVreg_DeviceFileMode is decimal: 438 is 0666, 432 is 0660",
            odd.join(", ")
        ),
    })
}

/// A node whose number is not the kernel's stops every grant: nobody knows what it would open.
pub(crate) fn mismatch(message: String) -> Finding {
    Finding { code: "node-mismatch".into(), stops: true, message }
}
