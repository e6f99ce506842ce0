//! Overlays: which folders their options name, and what may be said of one that is mounted already.

use crate::findings::Verdict;
use crate::mounts::{reserved, unjudgeable};
use crate::paths;
use crate::setting::Setting;
use crate::system::{FileSystem, Object};

/// What kernels read of a mount's options: a page with its NUL, and the comma that we count behind the last one.
pub(crate) const MOST_OPTIONS: usize = 4096;

/// How many overlays kernels put on each other (`FILESYSTEM_MAX_STACK_DEPTH`), counting those below the one that is bound.
const MOST_STACKED: usize = 2;

/// The folders in an option of an overlay's, and whether it writes there; runtimes join options with commas. Kernels and keys
/// differ in where a `\` takes its meaning from a `,` or `:` and where it is a part of the name, so each way to read a path is
/// looked at.
pub(crate) fn of(option: &str) -> Vec<(String, bool)> {
    let mut paths: Vec<_> = option.split(',').chain(pieces(option, ',')).flat_map(of_one).collect();
    contract::order::sort(&mut paths);
    paths.dedup();
    paths
}

/// The same of an option that stands alone.
fn of_one(option: &str) -> Vec<(String, bool)> {
    let (key, value) = option.split_once('=').unwrap_or_default();
    let (values, writable): (Vec<&str>, bool) = match key {
        "lowerdir" => (pieces(value, ':').collect(), false),
        "lowerdir+" | "datadir+" => (vec![value], false),
        "upperdir" | "workdir" => (vec![value], true),
        _ => return Vec::new(),
    };
    let readings = values.into_iter().flat_map(|value| [value.to_owned(), unescaped(value)]);
    readings.filter(|path| !path.is_empty()).map(|path| (path, writable)).collect()
}

/// A text cut where this letter stands without a `\` in front of it.
fn pieces(text: &str, at: char) -> impl Iterator<Item = &str> {
    let mut behind = false;
    text.split(move |letter| {
        let cut = letter == at && !behind;
        behind = letter == '\\' && !behind;
        cut
    })
}

fn unescaped(text: &str) -> String {
    let (mut out, mut letters) = (String::with_capacity(text.len()), text.chars());
    while let Some(letter) = letters.next() {
        out.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    out
}

/// Judges what lies on an overlay that is mounted already. The machine's own root is one on many; engines mount a tenant's own
/// as a volume, and its options only tell what its layers were called when it was mounted.
pub(crate) fn bound(setting: &Setting<'_>, real: &str, fs: &FileSystem) -> Verdict {
    stacked(setting, real, fs, MOST_STACKED)
}

fn stacked(setting: &Setting<'_>, real: &str, fs: &FileSystem, depth: usize) -> Verdict {
    let FileSystem::Overlay { points, options } = fs else { return Ok(Vec::new()) };
    if points.iter().any(|point| point == "/") {
        return Ok(Vec::new());
    }
    let mut notes = Vec::new();
    for (layer, _) in options.iter().flat_map(|option| of_one(option)) {
        if layer.starts_with('/') {
            notes.extend(shows_ours(setting, &layer, points, depth)?);
        }
    }
    let is_volume = |path: &str| {
        path.split_once("/volumes/").is_some_and(|(_, inside)| inside.split('/').any(|part| part == "_data"))
    };
    if !is_volume(real) && !points.iter().any(|point| is_volume(point)) {
        return Ok(notes);
    }
    let why = "it is an overlay that was mounted as a volume, and its layers may have been called otherwise then";
    if setting.privileged {
        return Ok(vec![("mount-unresolvable", why.to_owned())]);
    }
    Err(unjudgeable(setting, real, why))
}

/// Judges a layer of an overlay that the spec mounts. Covering our folder in it would not do: an overlay shows parts of a layer at
/// other places too, where an upper one says so (`redirect_dir`).
pub(crate) fn named(setting: &Setting<'_>, layer: &str) -> Verdict {
    if setting.sys_admin {
        return Ok(Vec::new());
    }
    shows_ours(setting, &paths::from_bundle(setting.case.bundle, layer), &[], MOST_STACKED - 1)
}

/// A layer with our folders in it shows them at another place, under any name. Where an overlay lies over its own layer they
/// are where they were.
fn shows_ours(setting: &Setting<'_>, layer: &str, points: &[String], depth: usize) -> Verdict {
    let mut notes = Vec::new();
    let mut names = vec![paths::clean(layer).into_owned()];
    match setting.machine.system.look(layer) {
        Object::Dir(dir) => {
            if let Some(depth) = depth.checked_sub(1) {
                notes = stacked(setting, &dir.real, &dir.fs, depth)?;
            }
            let others = setting.machine.system.other_names(&dir.real, false, &|_| true);
            names.extend(others.map_err(|why| unjudgeable(setting, layer, &why))?.into_iter().map(|name| name.real));
            names.push(dir.real);
        }
        Object::Unjudgeable(why) => return Err(unjudgeable(setting, layer, &why)),
        _ => {}
    }
    for layer in &names {
        for folder in setting.own_folders() {
            // What is mounted inside a layer does not show.
            let above = || {
                let holds = paths::below(&folder, layer).is_some() && !points.contains(layer);
                Ok(holds && !setting.machine.system.mounted_between(layer, &folder)?)
            };
            let is_ours = paths::below(layer, &folder).is_some();
            if is_ours || above().map_err(|why: String| unjudgeable(setting, layer, &why))? {
                return Err(reserved("a layer of the overlay holds the node's own record of who has which GPU"));
            }
        }
    }
    Ok(notes)
}
