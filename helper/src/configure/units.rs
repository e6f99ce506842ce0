//! How systemd starts an engine: the words of its `ExecStart`, which may name another configuration.

use super::plan::Files;

/// Folders of units, those that count most first.
const FOLDERS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"];

/// The command line of `UNIT.service` without its program, where that is `program`; nothing where there is no unit.
pub(super) fn command(files: &dyn Files, unit: &str, program: &str) -> Vec<String> {
    let words = start(files, unit);
    let own = words.first().is_some_and(|first| first.rsplit('/').next().is_some_and(|name| name == program));
    if own { words.into_iter().skip(1).collect() } else { Vec::new() }
}

/// The same with its program, whatever that is.
pub(crate) fn start(files: &dyn Files, unit: &str) -> Vec<String> {
    let file = |folder: &str| files.text(&format!("{folder}/{unit}.service")).ok().flatten();
    let Some(mut texts) = FOLDERS.iter().find_map(|folder| file(folder)).map(|text| vec![text]) else {
        return Vec::new();
    };
    for folder in FOLDERS.iter().rev().map(|folder| format!("{folder}/{unit}.service.d")) {
        let names = files.names(&folder).into_iter().filter(|name| name.ends_with(".conf"));
        texts.extend(names.filter_map(|name| files.text(&format!("{folder}/{name}")).ok().flatten()));
    }
    let joined = texts.join("\n").replace("\\\n", " ");
    let mut starts = joined.lines().filter_map(|line| line.trim().strip_prefix("ExecStart="));
    // The last one counts: a drop-in empties the list before it adds its own.
    let last = starts.rfind(|command| !command.trim().is_empty()).unwrap_or_default();
    last.split_whitespace().map(|word| word.trim_matches(['"', '\'']).to_owned()).collect()
}

/// The file of a unit that counts, where there is one. The name is a whole one.
pub(crate) fn file(files: &dyn Files, unit: &str) -> Option<String> {
    FOLDERS.iter().map(|folder| format!("{folder}/{unit}")).find(|path| files.exists(path))
}

/// Whether another unit starts this one.
pub(crate) fn enabled(files: &dyn Files, unit: &str) -> bool {
    let starts = |name: &String| name.ends_with(".wants") || name.ends_with(".requires");
    let mut folders = FOLDERS
        .iter()
        .flat_map(|folder| files.names(folder).into_iter().filter(starts).map(move |name| format!("{folder}/{name}")));
    folders.any(|folder| files.names(&folder).iter().any(|name| name == unit))
}

/// Whether there is such a unit.
pub(super) fn exists(files: &dyn Files, unit: &str) -> bool {
    file(files, &format!("{unit}.service")).is_some()
}

/// The value of a flag, `--flag value` or `--flag=value`.
pub(crate) fn value(words: &[String], flags: &[&str]) -> Option<String> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if let Some((flag, value)) = word.split_once('=')
            && flags.contains(&flag)
        {
            return Some(value.to_owned());
        }
        if flags.contains(&word.as_str()) {
            return words.next().cloned();
        }
    }
    None
}
