//! The root file system is bound too, and engines take any folder for one (`podman run --rootfs`). Only what would show the
//! host's own nodes, or could be written and is the machine's, is looked at: everything else is an image.

use contract::json::Node;

use crate::findings::{Findings, Verdict};
use crate::mounts::{Bind, Seen, Source, behind, folder, own};
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
    // Who refuses links takes the path by its text.
    let path = if setting.case.low_level.follows_root() { path } else { paths::clean(&path).into_owned().into() };
    let how = Bind { mount: None, recursive: true, writable: false };
    let Object::Dir(dir) = setting.machine.system.look(&path) else {
        let verdict = own(setting, &paths::clean(&path), true, how);
        out.add(verdict.map(|()| Vec::new()), &"/root/path", written);
        return;
    };
    let is_hosts = dir.real == "/"
        || [setting.case.dev_root, "/dev"].iter().any(|dev| paths::below(&dir.real, dev).is_some())
        || setting.own_folders().any(|folder| paths::below(&folder, &dir.real).is_some());
    if is_hosts {
        out.add(behind(setting, &dir.real, how, seen), &"/root/path", written);
    }
    let read_only = root.get("readonly").and_then(Node::as_bool) == Some(true);
    out.add(tree(setting, &dir, !read_only, is_hosts, seen), &"/root/path", written);
}

/// What is mounted in it comes with it, as in every bind. Files of the kernel's are left: the container's own cover them.
fn tree(setting: &Setting<'_>, dir: &Dir, writable: bool, is_judged: bool, seen: &mut Seen) -> Verdict {
    let source = Source::of(setting, &dir.real, Bind { mount: None, recursive: true, writable: true })?;
    let mut notes = Vec::new();
    if !is_judged {
        notes = folder(setting, dir, &source)?;
        seen.inside(setting, &source)?;
    }
    if writable {
        source.is_not_ours(setting)?;
        notes.extend(places::written(setting, &source, &dir.fs)?);
    }
    Ok(notes)
}
