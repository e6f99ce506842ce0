//! Whether the binds of a created container show what was judged. Who can write in a folder on the way to a source puts a link
//! there between our look and the low-level runtime's, so that what is mounted is judged once more, by the place it is found at.
//!
//! Another place is not wrong by itself: files are replaced all the time, and a source may have been a link from the start.

use std::path::{Component, Path};

use contract::Refusal;
use contract::json::Node as Json;
use guard::{Majors, Name, Object, System};
use node::mountinfo::Table;
use node::{At, Inside, Node};

use crate::decide::{self, By};
use crate::sources;
use crate::verify::{Created, Wrong, unknown};

/// Looks at the binds whose sources may change. `own`: our mounts.
///
/// # Errors
/// The first that shows what would have been refused.
pub(crate) fn judged(created: &Created<'_>, by: &By<'_>, inside: &Inside<'_>, own: &Table) -> Result<(), Wrong> {
    let spec = &created.decision.spec;
    let bundle = by.bundle.to_string_lossy();
    for (index, source) in sources::changeable(spec, &bundle) {
        let place = destination(spec, index);
        if is_covered(spec, index, place) {
            continue;
        }
        let (dev, part) = match inside.at(place).map_err(unknown)? {
            At::Root => continue,
            At::Within => return Err(Wrong::Differs(format!("/mounts/{index} is not mounted at {place}"))),
            At::Mount(dev, part) => (dev, part),
        };
        let path = by.bundle.join(source);
        let names = own.names_of(dev, part);
        // Most sources are no links: it lies where the spec says, and that place is nobody's to replace by one.
        if names.is_empty() || names.iter().any(|name| path.components().eq(Path::new(name).components())) {
            continue;
        }
        let refused = |name: &String| refused(created, by, index, &path.to_string_lossy(), name);
        let mut refusals = names.iter().map(refused);
        if let Some(Some(refusal)) = refusals.next().filter(|_| refusals.all(|refusal| refusal.is_some())) {
            let message = format!("/mounts/{index} shows another place than was judged: {}", refusal.message);
            return Err(Wrong::Differs(message));
        }
    }
    Ok(())
}

/// Why a bind would have been refused, had its source led to this place.
fn refused(created: &Created<'_>, by: &By<'_>, index: usize, source: &str, real: &str) -> Option<Refusal> {
    let system = Led { node: created.system, source, real };
    let decision = created.decision;
    let judgement =
        decide::judgement(&decision.spec, decision.wants_gpu(), &[], &decision.own, by, created.setup, &system);
    let its = format!("/mounts/{index}/source");
    judgement.refusals.into_iter().find(|refusal| refusal.at == its)
}

fn destination<'n>(spec: &'n Json<'_>, index: usize) -> &'n str {
    let mount = spec.get("mounts").and_then(|mounts| mounts.items().get(index));
    mount.and_then(|mount| mount.get("destination")).and_then(Json::as_str).unwrap_or_default()
}

/// Whether a later mount, or a mask, may lie over a place: what is below is seen by nobody.
fn is_covered(spec: &Json<'_>, index: usize, place: &str) -> bool {
    let plain = |path: &str| -> Vec<String> {
        let names = Path::new(path).components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        });
        names.collect()
    };
    let place = plain(place);
    let later = spec.get("mounts").map(Json::items).unwrap_or_default().iter().skip(index + 1);
    let later = later.filter_map(|mount| mount.get("destination").and_then(Json::as_str));
    let masked =
        spec.path(&["linux", "maskedPaths"]).map(Json::items).unwrap_or_default().iter().filter_map(Json::as_str);
    later.chain(masked).any(|path| place.starts_with(&plain(path)))
}

/// The node, on which one path leads to one place.
struct Led<'a> {
    node: &'a Node,
    source: &'a str,
    real: &'a str,
}

impl System for Led<'_> {
    fn look(&self, path: &str) -> Object {
        self.node.look(if path == self.source { self.real } else { path })
    }

    fn majors(&self) -> Result<Majors, String> {
        self.node.majors()
    }

    fn misc(&self) -> Result<Majors, String> {
        self.node.misc()
    }

    fn disks(&self) -> Result<Vec<(u32, u32)>, String> {
        self.node.disks()
    }

    fn same_file(&self, a: &str, b: &str) -> bool {
        self.node.same_file(a, b)
    }

    fn drm_vendor(&self, minor: u32) -> Option<u32> {
        self.node.drm_vendor(minor)
    }

    fn drm_minors(&self, end: u32) -> Vec<u32> {
        self.node.drm_minors(end)
    }

    fn nodes_inside(&self, real: &str) -> Result<Vec<(u32, u32)>, String> {
        self.node.nodes_inside(real)
    }

    fn tree_has_dev(&self, real: &str) -> Result<bool, String> {
        self.node.tree_has_dev(real)
    }

    fn filters_shown(&self, real: &str) -> Result<Vec<String>, String> {
        self.node.filters_shown(real)
    }

    fn other_names(&self, real: &str, recursive: bool, near: &dyn Fn(&str) -> bool) -> Result<Vec<Name>, String> {
        self.node.other_names(real, recursive, near)
    }

    fn kernels_inside(&self, real: &str) -> Result<Vec<String>, String> {
        self.node.kernels_inside(real)
    }

    fn mounted_between(&self, folder: &str, inside: &str) -> Result<bool, String> {
        self.node.mounted_between(folder, inside)
    }

    fn no_folder(&self, path: &str) -> bool {
        self.node.no_folder(path)
    }

    fn initial_user_namespace(&self) -> bool {
        self.node.initial_user_namespace()
    }
}
