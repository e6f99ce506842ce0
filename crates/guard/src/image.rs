//! The image's own places for what every container gets. Runtimes make nodes and links below `/dev` by path before the
//! container's root is its root: a link there leads them out of the image (CVE-2026-41579, CVE-2026-47766), and one at `/proc`
//! or `/sys` to files that are not the kernel's.

use contract::{Code, Refusal};

use crate::findings::Findings;
use crate::paths;
use crate::setting::Setting;

const PLACES: &[&str] = &["dev", "proc", "sys"];

/// Refuses an image in which one of them is there and is no folder.
pub(crate) fn judge(setting: &Setting<'_>, out: &mut Findings) {
    let Some(root) = setting.case.spec.path(&["root", "path"]).and_then(|path| path.as_str()) else {
        return;
    };
    let top = paths::from_bundle(setting.case.bundle, root);
    let top = top.trim_end_matches('/');
    for place in PLACES {
        if setting.machine.system.no_folder(&format!("{top}/{place}")) {
            let message =
                format!("/{place} of the image is no folder: what is made there would be made somewhere else");
            let help = format!("build the image with a folder /{place}, not a link");
            out.refuse(Refusal::new(Code::UnsafeSpec, "rootfs-type", message, help).at("/root/path", root));
        }
    }
}
