//! CRI-O: a file of our own in `crio.conf.d`, named so that it is read after the others.

use super::format::Format;
use super::plan::{Draft, Files, NAME, Place, Plan, Stop, Wanted};
use super::text::{Trouble, Value, below, keys};
use super::{hooks, toml, units};

const MAIN: &str = "/etc/crio/crio.conf";
const FOLDER: &str = "/etc/crio/crio.conf.d";
const FILE: &str = "/etc/crio/crio.conf.d/99-quilt-gpu.conf";
const HOOKS: &str = "/usr/share/containers/oci/hooks.d/quilt-gpu.json";
/// What a handler has in common with the default one. `allowed_annotations` is not among it: CRI-O itself obeys those.
const KEPT: [&str; 5] =
    ["monitor_path", "monitor_cgroup", "monitor_exec_cgroup", "monitor_env", "privileged_without_host_devices"];
const HEAD: &str = "# quilt-gpu for CRI-O, written by `quilt-gpu configure crio`; `--undo` takes it back.\n\
    # CRI-O passes on every annotation of a pod by itself: nothing is to be allowed here.\n";

pub(super) fn plan(files: &dyn Files, wanted: &Wanted) -> Result<Plan, Stop> {
    let path = wanted.file.clone().unwrap_or_else(|| FILE.into());
    let words = units::command(files, "crio", "crio");
    let main = units::value(&words, &["--config", "-c"]).unwrap_or_else(|| MAIN.into());
    let folder = units::value(&words, &["--config-dir", "-d"]).unwrap_or_else(|| FOLDER.into());
    let path = if wanted.file.is_none() { path.replace(FOLDER, &folder) } else { path };
    let others = others(files, &main, &folder, &path)?;
    let stop = |why: Trouble| (path.clone(), why);
    let runtime = keys(["crio", "runtime"]);
    let place = Place { entry: below(&below(&runtime, "runtimes"), NAME), default: below(&runtime, "default_runtime") };
    if wanted.default {
        let later = others.iter().filter(|(name, _)| *name > path && name.starts_with(&folder));
        for (name, text) in later {
            if toml::word(text, &place.default).map_err(|why| (name.clone(), why))?.is_some_and(|name| name != NAME) {
                let why = format!("this file is read after {path} and names another default_runtime; take that out");
                return Err((name.clone(), Trouble::Refused(why)));
            }
        }
    }
    let (entry, low_level) = entry(&others, &place, &wanted.program);
    let before = files.text(&path).map_err(stop)?;
    let text = before.clone().unwrap_or_else(|| HEAD.into());
    let draft = Draft::make((&path, Format::Toml), Some(text), place, &entry, wanted.default).map_err(stop)?;
    let mut drafts = vec![Draft { before, ..draft }];
    drafts.extend(hooks::draft(files, wanted, HOOKS)?);
    let restart = Some(["systemctl", "restart", "crio"].map(str::to_owned).to_vec());
    Ok(Plan { drafts, restart, low_level, notes: Vec::new() })
}

/// Every other file that CRI-O reads, in its order.
fn others(files: &dyn Files, main: &str, folder: &str, own: &str) -> Result<Vec<(String, String)>, Stop> {
    let names = files.names(folder).into_iter().map(|name| format!("{folder}/{name}"));
    let mut out = Vec::new();
    for path in std::iter::once(main.to_owned()).chain(names).filter(|path| path != own) {
        if let Some(text) = files.text(&path).map_err(|why| (path.clone(), why))? {
            toml::check(&text).map_err(|why| (path.clone(), why))?;
            out.push((path, text));
        }
    }
    Ok(out)
}

/// Our handler, and the program of the one that it is made after.
fn entry(others: &[(String, String)], place: &Place, program: &str) -> (Value, Vec<String>) {
    let runtimes = place.entry.get(..place.entry.len() - 1).unwrap_or_default();
    let named = others.iter().rev().find_map(|(_, text)| toml::word(text, &place.default).ok().flatten());
    let known = |name: &String| others.iter().any(|(_, text)| toml::has(text, &below(runtimes, name)).unwrap_or(false));
    let source = named.into_iter().chain(["crun", "runc"].map(str::to_owned)).filter(|name| name != NAME).find(known);
    let source = source.map(|name| below(runtimes, &name)).unwrap_or_default();
    let mut values = others.iter().rev().map(|(_, text)| toml::values(text, &source).unwrap_or_default());
    let values = values.find(|values| !source.is_empty() && !values.is_empty()).unwrap_or_default();

    let mut entry = vec![
        ("runtime_path".to_owned(), Value::word(program)),
        ("runtime_type".to_owned(), Value::word("oci")),
        // The states of these containers, apart from those of other runtimes.
        ("runtime_root".to_owned(), Value::word("/run/quilt-gpu-containers")),
    ];
    let mut low_level = Vec::new();
    for (key, text) in values {
        if KEPT.contains(&key.as_str()) {
            entry.push((key, Value::Verbatim(text)));
        } else if key == "runtime_path" {
            let named = text.trim_matches(['"', '\'']).to_owned();
            low_level.extend(Some(named).filter(|name| name.starts_with('/') && !name.contains("nvidia")));
        }
    }
    (Value::Table(entry), low_level)
}
