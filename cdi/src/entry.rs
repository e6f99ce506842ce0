//! The JSON text of what we add, written through oci-spec's types.
//!
//! They are written and never read: reading one would link a regular expression engine into the runtime.

use contract::inventory::DeviceNode;
use contract::json;
use contract::rule::{Kind, Rule};
use oci_spec::runtime::{HookBuilder, LinuxDeviceBuilder, LinuxDeviceCgroupBuilder, LinuxDeviceType, MountBuilder};

use crate::edits::{EditError, Hook, Mount};

/// An item of `process.env`.
pub(crate) fn variable(name: &str, value: &str) -> Result<String, EditError> {
    if name.is_empty() || name.contains('=') {
        return Err(refused("variable", name, &"its name is empty or holds '='"));
    }
    no_nul("variable", name, [name, value])?;
    Ok(json::quote(&format!("{name}={value}")))
}

/// An item of `linux.devices`.
pub(crate) fn device(node: &DeviceNode) -> Result<String, EditError> {
    let fail = |cause: &dyn std::fmt::Display| refused("device", &node.path, cause);
    no_nul("device", &node.path, [node.path.as_str()])?;
    let entry = LinuxDeviceBuilder::default()
        .path(node.path.as_str())
        .typ(LinuxDeviceType::C)
        .major(node.major)
        .minor(node.minor)
        .file_mode(node.mode)
        .uid(node.uid)
        .gid(node.gid)
        .build()
        .map_err(|e| fail(&e))?;
    serde_json::to_string(&entry).map_err(|e| fail(&e))
}

/// An item of `linux.resources.devices`. A rule for every device has no type: all low-level runtimes read that alike.
pub(crate) fn rule(rule: &Rule) -> Result<String, EditError> {
    let fail = |cause: &dyn std::fmt::Display| refused("device rule", &rule.to_string(), cause);
    let mut entry = LinuxDeviceCgroupBuilder::default().allow(rule.allow).access(rule.access.letters());
    let kind = match rule.kind {
        Kind::All => None,
        Kind::Char => Some(LinuxDeviceType::C),
        Kind::Block => Some(LinuxDeviceType::B),
    };
    if let Some(kind) = kind {
        entry = entry.typ(kind);
        if let Some(major) = rule.major {
            entry = entry.major(major);
        }
        if let Some(minor) = rule.minor {
            entry = entry.minor(minor);
        }
    }
    let entry = entry.build().map_err(|e| fail(&e))?;
    serde_json::to_string(&entry).map_err(|e| fail(&e))
}

/// An item of `mounts`.
pub(crate) fn mount(mount: &Mount) -> Result<String, EditError> {
    let fail = |cause: &dyn std::fmt::Display| refused("mount", &mount.destination, cause);
    let texts = [mount.destination.as_str(), &mount.source, &mount.kind];
    no_nul("mount", &mount.destination, texts.into_iter().chain(mount.options.iter().map(AsRef::as_ref)))?;
    let options: Vec<String> = mount.options.iter().map(|option| option.clone().into_owned()).collect();
    let entry = MountBuilder::default()
        .destination(mount.destination.as_str())
        .typ(mount.kind.as_ref())
        .source(mount.source.as_str())
        .options(options)
        .build()
        .map_err(|e| fail(&e))?;
    serde_json::to_string(&entry).map_err(|e| fail(&e))
}

/// An item of one of the lists under `hooks`.
pub(crate) fn hook(hook: &Hook) -> Result<String, EditError> {
    let fail = |cause: &dyn std::fmt::Display| refused("hook", &hook.path, cause);
    no_nul("hook", &hook.path, [&hook.path].into_iter().chain(&hook.args).chain(&hook.env).map(String::as_str))?;
    let mut entry = HookBuilder::default().path(hook.path.as_str());
    if !hook.args.is_empty() {
        entry = entry.args(hook.args.clone());
    }
    if !hook.env.is_empty() {
        entry = entry.env(hook.env.clone());
    }
    if let Some(seconds) = hook.timeout {
        entry = entry.timeout(seconds.get());
    }
    let entry = entry.build().map_err(|e| fail(&e))?;
    serde_json::to_string(&entry).map_err(|e| fail(&e))
}

/// The strict reader refuses NUL, and no path or variable of a process can hold one.
fn no_nul<'t>(what: &str, name: &str, texts: impl IntoIterator<Item = &'t str>) -> Result<(), EditError> {
    if texts.into_iter().any(|text| text.contains('\0')) { Err(refused(what, name, &"it holds a NUL")) } else { Ok(()) }
}

fn refused(what: &str, name: &str, cause: &dyn std::fmt::Display) -> EditError {
    EditError { at: String::new(), message: format!("cannot write the {what} {name:?}: {cause}") }
}
