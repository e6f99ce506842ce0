//! Whether a control group is empty, by the name that a spec gives it.

use super::{Group, below, holds_filters, is_unified, parse};
use crate::error::{NodeError, found};
use crate::file;
use crate::mountinfo::{self, Mount, Table};

/// Most groups that are looked through before the answer is "not known".
const MOST: usize = 4096;

/// Whether no process is in the group that `cgroupsPath` of a spec names, nor below it, in any hierarchy. A group that
/// is not there is empty. `slice:prefix:name` is read as systemd's names; a relative path is looked for at the top and
/// below our own group, as runtimes differ.
///
/// # Errors
/// Why it cannot be told: that is not "empty".
pub fn is_empty(cgroups_path: &str) -> Result<bool, String> {
    is_empty_in(cgroups_path, &mountinfo::own().map_err(|e| e.to_string())?, |_, _| true)
}

/// The same of the hierarchies that hold device filters: nobody else would be under the filter of a container put there. `table`:
/// our own mounts.
///
/// # Errors
/// As [`is_empty`].
pub fn filters_nobody(cgroups_path: &str, table: &Table) -> Result<bool, String> {
    is_empty_in(cgroups_path, table, holds_filters)
}

fn is_empty_in(cgroups_path: &str, table: &Table, asked: fn(&Mount<'_>, bool) -> bool) -> Result<bool, String> {
    let own = file::read("/proc/self/cgroup").map_err(|e| e.to_string())?;
    let own: Vec<Group<'_>> = parse(&own).collect();
    let wanted = readings(cgroups_path)?;
    let mut hierarchies = 0;
    let mounts = table.control_groups();
    let unified = is_unified(&mounts);
    for mount in mounts.iter().filter(|mount| asked(mount, unified)) {
        hierarchies += 1;
        let ours = own.iter().find_map(|group| group.folder(mount)).filter(|_| !cgroups_path.starts_with('/'));
        let below_ours = ours.map(|folder| format!("{folder}/{cgroups_path}"));
        let mut folders: Vec<String> = wanted.iter().filter_map(|path| below(mount, path)).collect();
        // At the top both are one.
        folders.extend(below_ours.filter(|folder| !folders.contains(folder)));
        for folder in folders {
            if !folder_is_empty(&folder, mount.fs == "cgroup2")? {
                return Ok(false);
            }
        }
    }
    if hierarchies == 0 {
        return Err(format!("cannot tell whether control group {cgroups_path:?} is empty: none are mounted here"));
    }
    Ok(true)
}

/// The absolute paths that a runtime may have made of a spec's `cgroupsPath`.
pub(super) fn readings(cgroups_path: &str) -> Result<Vec<String>, String> {
    let bad = |why: &str| Err(format!("cannot tell whether control group {cgroups_path:?} is empty: {why}"));
    if cgroups_path.split('/').any(|part| part == "..") {
        return bad("it has .. in its path");
    }
    let path = cgroups_path.trim_matches('/');
    if path.is_empty() {
        return bad("it is the top of all groups, or none");
    }
    let parts: Vec<&str> = path.split(':').collect();
    let [slice, prefix, name] = parts[..] else { return Ok(vec![format!("/{path}")]) };
    if path.contains('/') {
        // Names of units have no slash.
        return Ok(vec![format!("/{path}")]);
    }
    let slice = match slice_path(if slice.is_empty() { "system.slice" } else { slice }) {
        Some(slice) => slice,
        None => return bad("its first part is not the name of a slice"),
    };
    let mut units = vec![format!("{prefix}-{name}.scope")];
    if prefix.is_empty() {
        units.push(format!("{name}.scope"));
    }
    if name.ends_with(".slice") {
        units.push(name.to_owned());
    }
    Ok(units.into_iter().map(|unit| format!("{slice}/{unit}")).chain([format!("/{path}")]).collect())
}

/// `a-b.slice` lies in `a.slice` (`systemd.slice(5)`); `-.slice` is the top.
fn slice_path(slice: &str) -> Option<String> {
    let name = slice.strip_suffix(".slice")?;
    if name == "-" {
        return Some(String::new());
    }
    let (mut path, mut so_far) = (String::new(), String::new());
    for part in name.split('-') {
        if part.is_empty() || part.contains('/') {
            return None;
        }
        so_far = if so_far.is_empty() { part.to_owned() } else { format!("{so_far}-{part}") };
        path = format!("{path}/{so_far}.slice");
    }
    Some(path)
}

fn folder_is_empty(folder: &str, version_2: bool) -> Result<bool, String> {
    let told = |e: NodeError| e.to_string();
    if version_2 {
        // Counts everything below too. The top has no such file, and is never asked for.
        let Some(events) = found(file::read(&format!("{folder}/cgroup.events"))).map_err(told)? else {
            return Ok(true);
        };
        return match String::from_utf8_lossy(&events).lines().find_map(|line| line.strip_prefix("populated ")) {
            Some("0") => Ok(true),
            Some("1") => Ok(false),
            _ => Err(format!("cannot tell whether {folder} is empty: its cgroup.events does not say")),
        };
    }
    let (mut looked_at, mut waiting) = (0, vec![folder.to_owned()]);
    while let Some(folder) = waiting.pop() {
        looked_at += 1;
        if looked_at > MOST {
            return Err(format!("cannot tell whether {folder} is empty: more than {MOST} groups"));
        }
        // Gone between two looks is empty as well.
        let Some(processes) = found(file::read(&format!("{folder}/cgroup.procs"))).map_err(told)? else { continue };
        if !processes.is_empty() {
            return Ok(false);
        }
        waiting.extend(found(groups_in(&folder)).map_err(told)?.unwrap_or_default());
    }
    Ok(true)
}

fn groups_in(folder: &str) -> Result<Vec<String>, NodeError> {
    let failed = |e| NodeError::new("list", folder, e);
    let mut groups = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            groups.push(format!("{folder}/{}", entry.file_name().to_string_lossy()));
        }
    }
    Ok(groups)
}
