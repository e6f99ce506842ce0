//! The root file system is bound too, and engines take any folder for one (`podman run --rootfs`). Only what would show the
//! host's own nodes, or could be written and is the machine's, is looked at: everything else is an image.

use std::borrow::Cow;

use contract::json::Node;

use crate::findings::{Findings, Verdict};
use crate::mounts::{Bind, Seen, Source, behind, own};
use crate::paths;
use crate::places;
use crate::setting::Setting;
use crate::system::{Dir, Object};

/// Judges it.
pub(crate) fn judge(setting: &Setting<'_>, seen: &mut Seen, out: &mut Findings) {
    let Some(root) = setting.case.spec.get("root") else {
        return;
    };
    let Some(written) = out.text(root, "path", &"/root") else {
        return;
    };
    let path = paths::from_bundle(setting.case.bundle, written);
    let found = setting.machine.system.look(&path);
    let plain = match &found {
        Object::Dir(dir) if setting.case.low_level.follows_root() => Cow::Borrowed(&*dir.real),
        _ => paths::clean(&path),
    };
    let is_hosts = plain == "/"
        || [setting.case.dev_root, "/dev"].iter().any(|dev| paths::below(&plain, dev).is_some())
        || setting.own_folders().any(|folder| paths::below(&folder, &plain).is_some());
    let how = Bind { mount: None, recursive: true, writable: false };
    let verdict = if is_hosts {
        behind(setting, &plain, how, seen)
    } else {
        own(setting, &plain, true, how).map(|()| Vec::new())
    };
    out.add(verdict, &"/root/path", written);
    let writable = root.get("readonly").and_then(Node::as_bool) != Some(true);
    if let Object::Dir(dir) = &found
        && writable
    {
        let verdict = of_writer(setting, dir, Bind { writable, ..how });
        out.add(verdict, &"/root/path", written);
    }
}

/// A root file system that the container writes.
fn of_writer(setting: &Setting<'_>, dir: &Dir, how: Bind) -> Verdict {
    own(setting, &dir.real, false, how)?;
    places::written(setting, &Source::of(setting, &dir.real, how)?, &dir.fs)
}
