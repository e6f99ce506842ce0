//! Whether the root file system and the binds of a created container show what was judged. Who can write in a folder on the way to
//! a source puts a link there between our look and the low-level runtime's, so that what is mounted is judged once more, by the
//! place it is found at.
//!
//! Another place is not wrong by itself: files are replaced all the time, and a source may have been a link from the start.

use std::path::{Component, Path};

use contract::Note;
use contract::json::Node as Json;
use guard::{LowLevel, Majors, Name, Object, System};
use node::mountinfo::Table;
use node::{At, Inside, Node};

use crate::decide::{self, By};
use crate::sources;
use crate::verify::{Created, Wrong, unknown};

/// Looks at the root file system, and at the binds whose sources may change. `own`: our mounts.
///
/// # Errors
/// The first that shows what would have been refused, or noted.
pub(crate) fn judged(created: &Created<'_>, by: &By<'_>, inside: &Inside<'_>, own: &Table) -> Result<(), Wrong> {
    let spec = &created.decision.spec;
    let bundle = by.bundle.to_string_lossy();
    let mounts = spec.get("mounts").map(Json::items).unwrap_or_default();
    let is_top = |place: &str| guard::clean(place) == "/";
    if let (Some(root), Some(part)) = (spec.path(&["root", "path"]).and_then(Json::as_str), inside.root_part())
        && !(0..mounts.len()).any(|index| is_top(destination(spec, index)))
    {
        // Whatever it does with links, by now one may have been followed.
        let by = By { ways: LowLevel::Other, ..*by };
        Place { created, by: &by, entry: "/root", key: "path", source: &at_bundle(&bundle, root) }.shows(part, own)?;
    }
    for (index, source) in sources::changeable(spec, &bundle) {
        let place = destination(spec, index);
        if is_covered(spec, index, place) {
            continue;
        }
        let entry = format!("/mounts/{index}");
        let part = match inside.at(place).map_err(unknown)? {
            At::Root => inside.root_part().filter(|_| is_top(place)),
            At::Within => return Err(Wrong::Differs(format!("{entry} is not mounted at {place}"))),
            At::Mount(dev, part) => Some((dev, part)),
        };
        let judged = Place { created, by, entry: &entry, key: "source", source: &at_bundle(&bundle, source) };
        part.map_or(Ok(()), |part| judged.shows(part, own))?;
    }
    Ok(())
}

/// A path of the spec as the guard asks for it.
fn at_bundle(bundle: &str, path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("{bundle}/{path}") }
}

/// A part of the spec that names a folder or file of the host.
struct Place<'a> {
    created: &'a Created<'a>,
    by: &'a By<'a>,
    /// JSON pointer to the entry, and the key of its path.
    entry: &'a str,
    key: &'a str,
    source: &'a str,
}

impl Place<'_> {
    /// Whether this part of a file system is what was judged, or as good.
    fn shows(&self, (dev, part): ((u32, u32), &str), own: &Table) -> Result<(), Wrong> {
        let names = own.names_of(dev, part);
        // Most sources are no links: it lies where the spec says, and that place is nobody's to replace by one.
        let judged = Path::new(self.source);
        if names.is_empty() || names.iter().any(|name| judged.components().eq(Path::new(name).components())) {
            return Ok(());
        }
        let mut reasons = names.iter().map(|name| self.wrong_with(name));
        match reasons.next() {
            Some(Some(why)) if reasons.all(|why| why.is_some()) => {
                Err(Wrong::Differs(format!("{} shows another place than was judged: {why}", self.entry)))
            }
            _ => Ok(()),
        }
    }

    /// Why it would have been refused, had its path led to this place; or what would have been noted that was not: a note says
    /// what a container may have that its owner then knows of.
    fn wrong_with(&self, real: &str) -> Option<String> {
        let Self { created, by, .. } = *self;
        let system = Led { node: created.system, source: self.source, real };
        let decision = created.decision;
        let judgement =
            decide::judgement(&decision.spec, decision.wants_gpu(), &[], &decision.own, by, created.setup, &system);
        let at = format!("{}/{}", self.entry, self.key);
        let refusal = judgement.refusals.into_iter().find(|refusal| refusal.at == at).map(|refusal| refusal.message);
        let was = |new: &Note| decision.judgement.notes.iter().any(|old| (old.rule, &old.at) == (new.rule, &new.at));
        let note = || judgement.notes.into_iter().find(|note| note.at == at && !was(note)).map(|note| note.message);
        refusal.or_else(note)
    }
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
