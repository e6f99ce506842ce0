//! containerd, configuration versions 1, 2 and 3: a handler beside runc's, with runc's options, in the file whose
//! tables of the CRI plugin count.
//!
//! In 1.x the last file of main file and imports that has any table of the plugin replaces the plugin's whole
//! configuration; later ones put the files together. So our part goes where the plugin's tables are, which both read,
//! and into a file of its own only where no file has any.

use super::format::Format;
use super::plan::{Draft, Files, NAME, Place, Plan, Stop, Wanted};
use super::text::{Trouble, Value, below, keys, newline};
use super::{toml, units};

const FILE: &str = "/etc/containerd/config.toml";
/// The node of another containerd that its own command configures: a folder, and the command.
const OTHERS: [(&str, &str); 3] = [
    ("/var/lib/rancher/k3s/agent/etc/containerd", "k3s"),
    ("/var/lib/rancher/rke2/agent/etc/containerd", "rke2"),
    ("/var/snap/microk8s/current/args", "microk8s"),
];
/// Names of the plugin, by version of the configuration.
const PLUGINS: [&str; 3] = ["cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];
/// What a handler has in common with runc's. Lists of annotations are not among it: what a pod may say is ours to
/// decide.
const OURS: [&str; 4] = ["runtime_type", "runtime_path", "pod_annotations", "container_annotations"];
const SHIM: &str = "io.containerd.runc.v2";

/// One file of those that containerd reads, in its order.
struct Read {
    path: String,
    text: String,
}

pub(super) fn plan(files: &dyn Files, wanted: &Wanted) -> Result<Plan, Stop> {
    let main = main(files, wanted.file.as_deref());
    if wanted.file.is_none()
        && let Some((folder, engine)) = OTHERS.iter().find(|(folder, _)| files.exists(folder))
    {
        let why = format!(
            "this node has {engine}'s containerd too ({folder}); `quilt-gpu configure {engine}` is for that one, and \
             --engine-config {main} for this one"
        );
        return Err((main, Trouble::Refused(why)));
    }
    let restart = Some(["systemctl", "restart", "containerd"].map(str::to_owned).to_vec());
    let plan = Plan { restart, ..Plan::default() };
    at(files, wanted, &main, plan)
}

/// The main file: the operator's, the one that its unit names, or the usual one.
fn main(files: &dyn Files, named: Option<&str>) -> String {
    let own = || units::value(&units::command(files, "containerd", "containerd"), &["--config", "-c"]);
    named.map(str::to_owned).or_else(own).unwrap_or_else(|| FILE.into())
}

/// The folder of what runs, where the configuration names one.
pub(crate) fn state(files: &dyn Files, named: Option<&str>) -> Option<String> {
    let read = read_all(files, &main(files, named)).ok()?;
    read.iter().rev().find_map(|file| toml::word(&file.text, &keys(["state"])).ok().flatten())
}

/// The plan for a main file, wherever it lies.
pub(super) fn at(files: &dyn Files, wanted: &Wanted, main: &str, mut plan: Plan) -> Result<Plan, Stop> {
    let read = read_all(files, main)?;
    let stop = |why: Trouble| (main.to_owned(), why);
    let version = version(&read).map_err(stop)?;
    let plugin = PLUGINS.get(version - 1).copied().unwrap_or_default();
    enabled(&read)?;
    let runtimes = keys(["plugins", plugin, "containerd", "runtimes"]);
    let place = Place {
        entry: below(&runtimes, NAME),
        default: keys(["plugins", plugin, "containerd", "default_runtime_name"]),
    };
    let (path, before) = file(&read, main, version, plugin)?;
    if wanted.default {
        default_counts(&read, plugin, &path)?;
    }
    let (entry, low_level) = entry(&read, &runtimes, &wanted.program);
    plan.low_level.extend(low_level);
    let mut text = before.clone().unwrap_or_default();
    let stop = |why: Trouble| (path.clone(), why);
    if Format::Toml.is_bare(&text) {
        text = format!("version = {version}{}{text}", newline(&text));
    }
    let mut after = text.clone();
    if version < 3 && toml::names(&text, &runtimes).map_err(stop)?.is_empty() {
        // There, the first handler that is named drops the built-in one.
        let runc = Value::Table(vec![("runtime_type".into(), Value::word(SHIM))]);
        after = Format::Toml.set(&after, &below(&runtimes, "runc"), &runc).map_err(stop)?;
    }
    let draft = Draft::make((&path, Format::Toml), Some(after), place, &entry, wanted.default).map_err(stop)?;
    plan.drafts.push(Draft { before, ..draft });
    if version == 1 {
        plan.notes.push(format!("{main} is of version 1, which containerd 2 does not read handlers from"));
    }
    Ok(plan)
}

/// The main file and what it imports, as containerd goes through them.
fn read_all(files: &dyn Files, main: &str) -> Result<Vec<Read>, Stop> {
    let mut pending = vec![main.to_owned()];
    let mut read: Vec<Read> = Vec::new();
    while !pending.is_empty() {
        let path = pending.remove(0);
        if read.iter().any(|known| known.path == path) {
            continue;
        }
        let stop = |why: Trouble| (path.clone(), why);
        let Some(text) = files.text(&path).map_err(stop)? else { continue };
        toml::check(&text).map_err(stop)?;
        for import in toml::words(&text, &keys(["imports"])).map_err(stop)? {
            pending.extend(matching(files, &beside(&path, &import)));
        }
        read.push(Read { path, text });
    }
    Ok(read)
}

/// A path of `imports`: relative ones begin at the file's folder.
fn beside(file: &str, import: &str) -> String {
    if import.starts_with('/') {
        return import.to_owned();
    }
    let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{folder}/{import}")
}

/// The files that a pattern means; its stars stand in the last part.
fn matching(files: &dyn Files, pattern: &str) -> Vec<String> {
    let Some((folder, name)) = pattern.rsplit_once('/') else { return Vec::new() };
    let Some((head, tail)) = name.split_once('*') else { return vec![pattern.to_owned()] };
    let fits = |name: &String| name.len() >= head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail);
    files.names(folder).into_iter().filter(fits).map(|name| format!("{folder}/{name}")).collect()
}

/// The version of the main file: 2 is what every containerd of today reads, where nothing is said yet.
fn version(read: &[Read]) -> Result<usize, Trouble> {
    let Some(main) = read.first().filter(|main| !main.text.trim().is_empty()) else { return Ok(2) };
    match toml::number(&main.text, &keys(["version"]))? {
        // Without comments and blank lines nothing may be left: such a file says no more than none.
        None if Format::Toml.is_bare(&main.text) => Ok(2),
        None | Some(1) => Ok(1),
        Some(2) => Ok(2),
        // Later ones have kept the names of the third.
        Some(3 | 4) => Ok(3),
        Some(other) => Err(Trouble::Refused(format!("this is of version {other}; 1 to 4 are known"))),
    }
}

fn enabled(read: &[Read]) -> Result<(), Stop> {
    for file in read {
        let off = toml::words(&file.text, &keys(["disabled_plugins"])).map_err(|why| (file.path.clone(), why))?;
        if let Some(name) = off.iter().find(|name| PLUGINS.contains(&name.as_str())) {
            let why = format!(
                "disabled_plugins has {name:?}: the CRI plugin is off, so no handler has any effect; take it out \
                 of that list first (Docker needs no entry here: `quilt-gpu configure docker`)"
            );
            return Err((file.path.clone(), Trouble::Refused(why)));
        }
    }
    Ok(())
}

/// The file that gets our part, and its text.
fn file(read: &[Read], main: &str, version: usize, plugin: &str) -> Result<(String, Option<String>), Stop> {
    let table = keys(["plugins", plugin]);
    for file in read.iter().rev() {
        if toml::has(&file.text, &table).map_err(|why| (file.path.clone(), why))? {
            return Ok((file.path.clone(), Some(file.text.clone())));
        }
    }
    let first = read.first();
    let imports = first.map(|main| toml::words(&main.text, &keys(["imports"]))).transpose();
    let imports = imports.map_err(|why| (main.to_owned(), why))?.unwrap_or_default();
    let own = imports.iter().filter(|_| version >= 3).find_map(|import| import.strip_suffix("/*.toml"));
    match own {
        Some(folder) => Ok((format!("{}/{NAME}.toml", beside(main, folder)), None)),
        None => Ok((main.to_owned(), first.map(|main| main.text.clone()))),
    }
}

/// What would keep `default_runtime_name` of this file from being the one that counts.
fn default_counts(read: &[Read], plugin: &str, path: &str) -> Result<(), Stop> {
    let containerd = keys(["plugins", plugin, "containerd"]);
    let mut behind = false;
    for file in read {
        let stop = |why: Trouble| (file.path.clone(), why);
        let old = below(&below(&containerd, "default_runtime"), "runtime_type");
        if toml::word(&file.text, &old).map_err(stop)?.is_some_and(|kind| !kind.is_empty()) {
            let why = "the table `default_runtime` outranks the name of a default; take it out, or leave --default out";
            return Err((file.path.clone(), Trouble::Refused(why.into())));
        }
        let name = toml::word(&file.text, &below(&containerd, "default_runtime_name")).map_err(stop)?;
        if behind && name.is_some_and(|name| name != NAME) {
            let why = format!("this file is read after {path} and names another default_runtime_name; take that out");
            return Err((file.path.clone(), Trouble::Refused(why)));
        }
        behind |= file.path == path;
    }
    Ok(())
}

/// Our handler, and the program that the one it is made after calls.
fn entry(read: &[Read], runtimes: &[String], program: &str) -> (Value, Option<String>) {
    let list = |words: &str| Value::Words(vec![words.to_owned()]);
    let mut entry = vec![("runtime_type".to_owned(), Value::word(SHIM))];
    let mut options = vec![("BinaryName".to_owned(), Value::word(program))];
    let mut low_level = None;
    let values = |keys: &[String]| {
        let mut found = read.iter().rev().map(|file| toml::values(&file.text, keys).unwrap_or_default());
        found.find(|values| !values.is_empty()).unwrap_or_default()
    };
    if let Some(source) = source(read, runtimes) {
        let table = below(runtimes, &source);
        let kept = values(&table).into_iter().filter(|(key, _)| !OURS.contains(&key.as_str()));
        entry.extend(kept.map(|(key, text)| (key, Value::Verbatim(text))));
        for (key, text) in values(&below(&table, "options")) {
            if key == "BinaryName" {
                let named = text.trim_matches(['"', '\'']);
                low_level = Some(named.to_owned()).filter(|name| name.starts_with('/') && !name.contains("nvidia"));
            } else {
                options.push((key, Value::Verbatim(text)));
            }
        }
    }
    entry.push(("pod_annotations".to_owned(), list("quilt.gpu/*")));
    entry.push(("container_annotations".to_owned(), list("grant.quilt.gpu/*")));
    entry.push(("options".to_owned(), Value::Table(options)));
    (Value::Table(entry), low_level)
}

/// The handler that ours is made after: runc's, else the default one, else any that is not ours.
fn source(read: &[Read], runtimes: &[String]) -> Option<String> {
    let mut known: Vec<String> = Vec::new();
    for file in read {
        known.extend(toml::names(&file.text, runtimes).unwrap_or_default());
    }
    known.retain(|name| name != NAME);
    let parent = runtimes.get(..runtimes.len() - 1).unwrap_or_default();
    let named = |file: &Read| toml::word(&file.text, &below(parent, "default_runtime_name")).ok().flatten();
    let default = read.iter().rev().find_map(named).filter(|name| known.contains(name));
    known.iter().find(|name| *name == "runc").cloned().or(default).or(known.first().cloned())
}
