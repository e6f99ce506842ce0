//! How systemd starts an engine: the words of its `ExecStart`, which may name another configuration.

use super::plan::Files;

/// Folders of units, those that count most first.
const FOLDERS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"];

/// The command line of `UNIT.service` without its program, where that is `program`; nothing where there is no unit.
pub(super) fn command(files: &dyn Files, unit: &str, program: &str) -> Vec<String> {
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
    let mut words = last.split_whitespace().map(|word| word.trim_matches(['"', '\'']).to_owned());
    let own = words.next().is_some_and(|first| first.rsplit('/').next().is_some_and(|name| name == program));
    if own { words.collect() } else { Vec::new() }
}

/// Whether there is such a unit.
pub(super) fn exists(files: &dyn Files, unit: &str) -> bool {
    FOLDERS.iter().any(|folder| files.exists(&format!("{folder}/{unit}.service")))
}

/// The value of a flag, `--flag value` or `--flag=value`.
pub(super) fn value(words: &[String], flags: &[&str]) -> Option<String> {
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
