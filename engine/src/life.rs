//! What is done with a container that is there: start, kill, delete, pause, resume, ps, list.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use libcgroups::common::CgroupManager;
use libcontainer::config::YoukiConfig;
use libcontainer::container::ContainerStatus;
use nix::errno::Errno;
use serde_json::{Value, json};

use crate::args::Call;
use crate::container::{self, Known};
use crate::group;
use crate::report::chain;

/// How often processes that were killed are looked for again.
const ROUNDS: u32 = 100;
const ROUND: Duration = Duration::from_millis(10);

/// `start`.
///
/// # Errors
/// Why it cannot be started.
pub(crate) fn start(call: &Call, root: &Path) -> Result<i32, String> {
    let mut known = Known::load(root, call.id())?;
    match known.status() {
        "created" => {}
        "stopped" => return Err("cannot start a container that has stopped".into()),
        "running" => return Err("cannot start an already running container".into()),
        other => return Err(format!("cannot start a container in the {other} state")),
    }
    known.inner.start().map(|()| 0).map_err(|cause| format!("cannot start {}: {}", call.id(), chain(&cause)))
}

/// `kill`: to the first process, with `--all` to every one.
///
/// # Errors
/// That there is nobody to tell, in the words that engines look for, or an unknown signal.
pub(crate) fn kill(call: &Call, root: &Path) -> Result<i32, String> {
    let known = Known::load(root, call.id())?;
    let number = signal(call.words.get(1).map_or("SIGTERM", String::as_str))?;
    if call.flags.is("all") {
        return signal_all(&known, number).map(|()| 0);
    }
    let Some(pid) = known.pid().filter(|_| known.inner.status() != ContainerStatus::Stopped) else {
        return Err("container not running".into());
    };
    send(pid, number)?;
    // A frozen process of version 1 does not even die.
    if known.inner.status() == ContainerStatus::Paused && number == libc::SIGKILL {
        let _ = known.groups()?.freeze(libcgroups::common::FreezerState::Thawed);
    }
    Ok(0)
}

/// A signal by name, with or without SIG, or by number.
fn signal(text: &str) -> Result<i32, String> {
    let unknown = || format!("unknown signal {text:?}");
    if let Ok(number) = text.parse() {
        return if (0..=64).contains(&number) { Ok(number) } else { Err(unknown()) };
    }
    let upper = text.to_uppercase();
    let name = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    if let Ok(known) = nix::sys::signal::Signal::from_str(&name) {
        return Ok(known as i32);
    }
    let (first, offset) = match (name.strip_prefix("SIGRTMIN"), name.strip_prefix("SIGRTMAX")) {
        (Some(offset), _) => (34, offset),
        (_, Some(offset)) => (64, offset),
        _ => return Err(unknown()),
    };
    let offset: i32 = if offset.is_empty() { 0 } else { offset.parse().map_err(|_| unknown())? };
    Some(first + offset).filter(|number| (34..=64).contains(number)).ok_or_else(unknown)
}

/// To one process. Signals without a name in our library are sent as well.
///
/// # Errors
/// That it is gone, in the words that engines look for, or why it cannot be told.
#[allow(unsafe_code)]
pub(crate) fn send(pid: i32, number: i32) -> Result<(), String> {
    // SAFETY: no memory is involved.
    match Errno::result(unsafe { libc::kill(pid, number) }) {
        Ok(_) => Ok(()),
        Err(Errno::ESRCH) => Err("container not running".into()),
        Err(cause) => Err(format!("cannot send signal {number} to process {pid}: {cause}")),
    }
}

fn signal_all(known: &Known, number: i32) -> Result<(), String> {
    let failed =
        |cause: &dyn std::error::Error| format!("cannot list the processes of {}: {}", known.inner.id(), chain(cause));
    let groups = known.groups()?;
    for _ in 0..ROUNDS {
        let pids = groups.get_all_pids().map_err(|cause| failed(&cause))?;
        for pid in &pids {
            let _ = send(pid.as_raw(), number);
        }
        if number != libc::SIGKILL || pids.is_empty() {
            break;
        }
        // Whoever was born meanwhile is told next.
        let _ = groups.freeze(libcgroups::common::FreezerState::Thawed);
        std::thread::sleep(ROUND);
    }
    Ok(())
}

/// `delete`, with `--force` also of what runs, and of what is not there.
///
/// # Errors
/// Why something is left.
pub(crate) fn delete(call: &Call, root: &Path) -> Result<i32, String> {
    let force = call.flags.is("force");
    container::valid(call.id())?;
    let mut known = match Known::load(root, call.id()) {
        Ok(known) => known,
        Err(why) if force => return delete_unread(call.id(), root, &why),
        Err(why) => return Err(why),
    };
    match known.status() {
        "stopped" => {}
        "created" => signal_all(&known, libc::SIGKILL)?,
        _ if force => signal_all(&known, libc::SIGKILL)?,
        other => return Err(format!("cannot delete container {} that is not stopped: {other}", call.id())),
    }
    if let Ok(config) = known.inner.spec() {
        group::remove_inner(&config.cgroup_path);
    }
    known.inner.delete(true).map(|()| 0).map_err(|cause| format!("cannot delete {}: {}", call.id(), chain(&cause)))
}

/// `delete --force` of what has no state that can be read: none at all, or half of one, as it is written in place and a disk
/// may be full. Whatever runs is found by its control group.
fn delete_unread(id: &str, root: &Path, why: &str) -> Result<i32, String> {
    let folder = root.join(id);
    if folder.join("state.json").exists() {
        let failed = |cause: &dyn std::fmt::Display| format!("cannot delete {id}: {why}; and {cause}");
        let path = YoukiConfig::load(&folder).map_err(|cause| failed(&chain(&cause)))?.cgroup_path;
        end(&path).and_then(|()| group::remove(&path)).map_err(|cause| failed(&cause))?;
    }
    match std::fs::remove_dir_all(&folder) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {cause}", folder.display()))
        }
        // There was nothing, or what a create left that ended in the middle.
        _ => Ok(0),
    }
}

/// Kills all of a control group, of which no more is known than how the document named it.
fn end(path: &Path) -> Result<(), String> {
    if group::named_for_systemd(path)? {
        return Err(format!("it is not known where systemd made its control group {}", path.display()));
    }
    for _ in 0..ROUNDS {
        let pids = group::processes(path)?;
        if pids.is_empty() {
            return Ok(());
        }
        pids.iter().for_each(|pid| drop(send(*pid, libc::SIGKILL)));
        group::thaw(path);
        std::thread::sleep(ROUND);
    }
    Err(format!("its control group {} still has processes", path.display()))
}

/// `pause` and `resume`.
///
/// # Errors
/// Why it cannot be.
pub(crate) fn pause(call: &Call, root: &Path, pause: bool) -> Result<i32, String> {
    let mut known = Known::load(root, call.id())?;
    let done = match (pause, known.status()) {
        (true, "running") => known.inner.pause(),
        (false, "paused") => known.inner.resume(),
        (true, other) => return Err(format!("cannot pause a container that is {other}")),
        (false, other) => return Err(format!("container not paused: {other}")),
    };
    let verb = if pause { "pause" } else { "resume" };
    done.map(|()| 0).map_err(|cause| format!("cannot {verb} {}: {}", call.id(), chain(&cause)))
}

/// `state`.
///
/// # Errors
/// That there is no such container.
pub(crate) fn state(call: &Call, root: &Path) -> Result<i32, String> {
    let shown = Known::load(root, call.id())?.state();
    print(&container::text(&shown, true))
}

/// `list`.
///
/// # Errors
/// An unknown format.
pub(crate) fn list(call: &Call, root: &Path) -> Result<i32, String> {
    let states: Vec<Value> = container::all(root).iter().map(Known::state).collect();
    let text = |state: &Value, key: &str| state[key].as_str().map_or_else(|| state[key].to_string(), str::to_owned);
    if call.flags.is("quiet") {
        return print(&states.iter().map(|state| text(state, "id")).collect::<Vec<_>>().join("\n"));
    }
    match call.flags.value("format").unwrap_or("table") {
        "json" if states.is_empty() => print("null"),
        "json" => {
            let states: Vec<String> = states.iter().map(|state| container::text(state, false)).collect();
            print(&format!("[{}]", states.join(",")))
        }
        "table" => {
            let keys = ["id", "pid", "status", "bundle", "created", "owner"];
            let mut rows = vec![keys.map(str::to_uppercase)];
            rows.extend(states.iter().map(|state| keys.map(|key| text(state, key))));
            let widths: Vec<usize> = (0..keys.len())
                .map(|i| rows.iter().filter_map(|row| row.get(i)).map(String::len).max().unwrap_or(0))
                .collect();
            let line = |row: &[String; 6]| {
                let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
                cells.collect::<Vec<_>>().join("   ").trim_end().to_owned()
            };
            print(&rows.iter().map(line).collect::<Vec<_>>().join("\n"))
        }
        other => Err(format!("invalid format option {other:?}: table and json are known")),
    }
}

/// `ps`.
///
/// # Errors
/// Why the processes cannot be listed.
pub(crate) fn ps(call: &Call, root: &Path) -> Result<i32, String> {
    let known = Known::load(root, call.id())?;
    let pids = known.groups()?.get_all_pids().map_err(|cause| format!("cannot list processes: {}", chain(&cause)))?;
    let pids: Vec<i32> = pids.iter().map(|pid| pid.as_raw()).collect();
    match call.flags.value("format").unwrap_or("table") {
        "json" => return print(&json!(pids).to_string()),
        "table" => {}
        other => return Err(format!("invalid format option {other:?}: table and json are known")),
    }
    let options: Vec<&str> = call.words.iter().skip(1).map(String::as_str).collect();
    let options = if options.is_empty() { vec!["-ef"] } else { options };
    let output = Command::new("ps").args(options).output().map_err(|cause| format!("cannot run ps: {cause}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let column =
        head.split_whitespace().position(|name| name == "PID").ok_or("couldn't find PID field in ps output")?;
    let ours = lines.filter(|line| {
        let pid = line.split_whitespace().nth(column).and_then(|pid| pid.parse().ok());
        pid.is_some_and(|pid| pids.contains(&pid))
    });
    print(&std::iter::once(head).chain(ours).collect::<Vec<_>>().join("\n"))
}

/// To standard output; who closed it is not waited for.
pub(crate) fn print(text: &str) -> Result<i32, String> {
    if !text.is_empty() {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in
            [("KILL", 9), ("SIGTERM", 15), ("sigusr1", 10), ("9", 9), ("SIGRTMIN+3", 37), ("RTMAX-1", 63), ("64", 64)]
        {
            assert_eq!(super::signal(text), Ok(number), "{text}");
        }
        for text in ["SIGNONE", "65", "-1", "", "RTMIN+40"] {
            assert!(super::signal(text).is_err(), "{text}");
        }
    }
}
