//! Whether what a file says makes sense: everything that the Go library refuses, and what the specification says that must
//! be and no reader checks (absolute paths, names of interfaces). All problems are told, not only the first.

use std::collections::{BTreeMap, BTreeSet};

use contract::json::pointer_token;

use super::problem::Problem;
use super::types::{ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec};
use super::{name, needs};

/// The most that annotations may hold together, keys and texts, as in Kubernetes.
const ANNOTATION_BYTES: usize = 256 << 10;

/// What is wrong with a file; nothing when all is right.
#[must_use]
pub fn validate(spec: &Spec) -> Vec<Problem> {
    let mut problems = Vec::new();
    needs::check(spec, &mut problems);
    let mut report = Report { at: String::new(), problems };
    report.result("/kind", name::kind(&spec.kind));
    report.annotations(&spec.annotations);
    report.inside("/containerEdits", |report| report.edits(&spec.container_edits));
    report.unless(!spec.devices.is_empty(), "/devices", || "a file must have at least one device".to_owned());
    let mut names = BTreeSet::new();
    for (index, device) in spec.devices.iter().enumerate() {
        report.inside(&format!("/devices/{index}"), |report| {
            report.result("/name", name::device(&device.name));
            report.unless(names.insert(&device.name), "/name", || format!("there are two devices {:?}", device.name));
            report.annotations(&device.annotations);
            report.inside("/containerEdits", |report| {
                let some = !device.container_edits.is_empty();
                report.unless(some, "", || "a device must change something in a container".to_owned());
                report.edits(&device.container_edits);
            });
        });
    }
    report.problems
}

/// The problems so far, and where in the file we are.
struct Report {
    at: String,
    problems: Vec<Problem>,
}

impl Report {
    fn inside(&mut self, step: &str, look: impl FnOnce(&mut Self)) {
        let before = self.at.len();
        self.at.push_str(step);
        look(self);
        self.at.truncate(before);
    }

    fn result(&mut self, step: &str, result: Result<(), String>) {
        if let Err(message) = result {
            self.problems.push(Problem::new(format!("{}{step}", self.at), message));
        }
    }

    fn unless(&mut self, right: bool, step: &str, message: impl FnOnce() -> String) {
        self.result(step, if right { Ok(()) } else { Err(message()) });
    }

    fn absolute(&mut self, step: &str, path: &str) {
        self.unless(path.starts_with('/'), step, || match path {
            "" => "it is empty, must be an absolute path".to_owned(),
            path => format!("{path:?} must be an absolute path"),
        });
    }

    fn variables(&mut self, env: &[String]) {
        for (index, variable) in env.iter().enumerate() {
            let named = variable.find('=').is_some_and(|at| at > 0);
            self.unless(named, &format!("/env/{index}"), || format!("{variable:?} must be NAME=VALUE"));
        }
    }

    /// Keys as Kubernetes has them, in any case: a name of at most 63 characters, perhaps behind a domain and `/`.
    fn annotations(&mut self, annotations: &BTreeMap<String, String>) {
        let bytes: usize = annotations.iter().map(|(key, text)| key.len() + text.len()).sum();
        self.unless(bytes <= ANNOTATION_BYTES, "/annotations", || {
            format!("they have {bytes} bytes, may have {ANNOTATION_BYTES}")
        });
        for key in annotations.keys() {
            let step = format!("/annotations/{}", pointer_token(key));
            self.unless(is_annotation_key(key), &step, || {
                format!("the key {key:?} must be a name of letters, digits and -_., perhaps behind a domain and /")
            });
        }
    }

    fn edits(&mut self, edits: &ContainerEdits) {
        self.variables(&edits.env);
        for (index, node) in edits.device_nodes.iter().enumerate() {
            self.inside(&format!("/deviceNodes/{index}"), |report| report.node(node));
        }
        for (index, hook) in edits.hooks.iter().enumerate() {
            self.inside(&format!("/hooks/{index}"), |report| report.hook(hook));
        }
        for (index, mount) in edits.mounts.iter().enumerate() {
            self.inside(&format!("/mounts/{index}"), |report| report.mount(mount));
        }
        if let Some(rdt) = &edits.intel_rdt {
            self.rdt(rdt);
        }
        self.net_devices(&edits.net_devices);
    }

    fn node(&mut self, node: &DeviceNode) {
        self.absolute("/path", &node.path);
        if let Some(path) = &node.host_path {
            self.absolute("/hostPath", path);
        }
        if let Some(permissions) = &node.permissions {
            let letters = permissions == "none" || permissions.chars().all(|letter| "rwm".contains(letter));
            self.unless(letters, "/permissions", || format!("{permissions:?} must be letters of rwm, or none"));
        }
    }

    fn hook(&mut self, hook: &Hook) {
        self.absolute("/path", &hook.path);
        self.variables(&hook.env);
    }

    /// What is mounted is a path only where it is bound: a tmpfs has any word there.
    fn mount(&mut self, mount: &Mount) {
        if mount.bind().is_some() {
            self.absolute("/hostPath", &mount.host_path);
        } else {
            self.unless(!mount.host_path.is_empty(), "/hostPath", || "it is empty".to_owned());
        }
        self.absolute("/containerPath", &mount.container_path);
    }

    fn rdt(&mut self, rdt: &IntelRdt) {
        let Some(id) = &rdt.clos_id else { return };
        let is_file = !id.contains(['/', '\n']) && id != "." && id != ".." && id.len() < 4096;
        self.unless(id == "/" || is_file, "/intelRdt/closID", || format!("{id:?} must be the name of a file, or /"));
    }

    fn net_devices(&mut self, devices: &[NetDevice]) {
        let (mut hosts, mut names) = (BTreeSet::new(), BTreeSet::new());
        for (index, device) in devices.iter().enumerate() {
            let NetDevice { host_interface_name: host, name } = device;
            for (key, text, new) in
                [("hostInterfaceName", host, hosts.insert(host)), ("name", name, names.insert(name))]
            {
                let step = format!("/netDevices/{index}/{key}");
                self.unless(is_interface(text), &step, || {
                    format!("{text:?} must be the name of a network interface: 1 to 15 letters, digits and -_.@+")
                });
                self.unless(new, &step, || format!("{text:?} is there twice"));
            }
        }
    }
}

/// What the kernel allows, less what nobody uses and a JSON pointer would have to escape.
fn is_interface(name: &str) -> bool {
    let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.@+".contains(&byte));
    (1..=15).contains(&name.len()) && letters && name != "." && name != ".."
}

fn is_annotation_key(key: &str) -> bool {
    let (domain, name) = key.split_once('/').map_or((None, key), |(domain, name)| (Some(domain), name));
    let bounded = |text: &str, most| {
        let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        text.len() <= most && ends(text.as_bytes().first()) && ends(text.as_bytes().last())
    };
    let letters =
        |text: &str, also: &[u8]| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || also.contains(&byte));
    let is_domain = |domain: &str| {
        domain.len() <= 253 && domain.split('.').all(|label| bounded(label, 253) && letters(label, b"-"))
    };
    bounded(name, 63) && letters(name, b"-_.") && domain.is_none_or(is_domain)
}
