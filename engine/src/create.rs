//! `create` and `run`: a bundle becomes a container, or nothing of one is left.

use std::path::{Path, PathBuf};

use libcontainer::container::Container;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use serde_json::Value;

use crate::args::{Call, Flags};
use crate::claim::Claim;
use crate::container::{self, Known};
use crate::executor::Program;
use crate::report::chain;
use crate::terminal::{Socket, Terminal};
use crate::{filter, foreground, group, mounted, streams, unsupported};

/// `create`.
///
/// # Errors
/// Why there is no container; none is left then.
pub(crate) fn create(call: &Call, root: &Path) -> Result<i32, String> {
    make(call, root, true).map(|_| 0)
}

/// `run`: the exit status is the container's, or 0 where it goes on without us.
///
/// # Errors
/// Why there is no container, or none that could be started.
pub(crate) fn run(call: &Call, root: &Path) -> Result<i32, String> {
    let detach = call.flags.is("detach");
    let (mut container, terminal) = make(call, root, detach)?;
    if let Err(cause) = container.start() {
        let _ = container.delete(true);
        return Err(format!("cannot start {}: {}", call.id(), chain(&cause)));
    }
    let Some(pid) = container.pid().filter(|_| !detach) else { return Ok(0) };
    let status = foreground::wait(pid.as_raw(), terminal);
    if !call.flags.is("keep") {
        container.delete(true).map_err(|cause| format!("cannot delete {}: {}", call.id(), chain(&cause)))?;
    }
    status
}

/// The bundle's document, judged: what cannot be done is told before anything is made.
fn read(bundle: &Path, v2: bool) -> Result<Value, String> {
    let path = bundle.join("config.json");
    let bytes = std::fs::read(&path).map_err(|cause| format!("cannot read {}: {cause}", path.display()))?;
    let spec = serde_json::from_slice(&bytes).map_err(|cause| format!("cannot read {}: {cause}", path.display()))?;
    refuse(&spec, v2).map_err(|why| format!("{}: {why}", path.display()))?;
    Ok(spec)
}

/// An error where libcontainer would not have systemd make the group that `--systemd-cgroup` asks for.
fn managed(systemd: bool, v2: bool, spec: &Value) -> Result<(), String> {
    let path = spec.pointer("/linux/cgroupsPath").and_then(Value::as_str);
    match path.filter(|path| path.split(':').count() != 3) {
        _ if !systemd => Ok(()),
        _ if !v2 => {
            Err("--systemd-cgroup: libcontainer asks systemd for control groups of version 2 alone, and this machine \
                         has 1; set the engine's cgroup driver to cgroupfs"
                .into())
        }
        Some(path) => Err(format!("/linux/cgroupsPath: with --systemd-cgroup this is slice:prefix:name, not {path:?}")),
        None => Ok(()),
    }
}

/// An error of all that libcontainer cannot do of a document.
///
/// # Errors
/// Each of them, with its place.
pub(crate) fn refuse(spec: &Value, v2: bool) -> Result<(), String> {
    let gaps: Vec<String> = unsupported::unsupported(spec, v2).iter().map(ToString::to_string).collect();
    if gaps.is_empty() { Ok(()) } else { Err(format!("quilt-gpu-engine cannot do this: {}", gaps.join("; "))) }
}

fn make(call: &Call, root: &Path, detached: bool) -> Result<(Container, Option<Terminal>), String> {
    let (id, flags) = (call.id(), &call.flags);
    container::valid(id)?;
    std::fs::create_dir_all(root).map_err(|cause| format!("cannot make the state root {}: {cause}", root.display()))?;
    // Until the end of this: what fails is cleaned up after, and must not be another's of this id.
    let _claim = Claim::of(root, id)?;
    let bundle = absolute(flags.value("bundle").unwrap_or("."))?;
    let v2 = group::is_v2()?;
    let spec = read(&bundle, v2)?;
    let terminal = spec.pointer("/process/terminal").and_then(Value::as_bool).unwrap_or(false);
    let socket = own_socket(root, flags, terminal && !detached)?;
    if !flags.is("no-new-keyring") {
        group::own_keyring(id)?;
    }
    let systemd = call.global.is("systemd-cgroup");
    managed(systemd, v2, &spec)?;
    let named = cgroup(&spec, id);
    if !systemd {
        group::free(&named)?;
    }
    let filter = if v2 { Some(filter::program(&filter::rules(&spec)?)) } else { None };
    let group = match &filter {
        Some(_) if systemd => None,
        Some(program) => Some(group::prepare(&named, program)?),
        None => Some(group::close(&named)?),
    };
    // What fails early leaves these.
    let clean = |why: String| {
        let _ = std::fs::remove_dir_all(root.join(id));
        let _ = group.as_ref().map(std::fs::remove_dir);
        why
    };
    let builder = builder(id, root, flags, Program::default(), socket.as_ref()).map_err(&clean)?.as_init(&bundle);
    let made = builder
        .with_systemd(systemd)
        .with_detach(detached || socket.is_some())
        .with_no_pivot(flags.is("no-pivot"))
        .build();
    let mut container = made.map_err(|cause| clean(format!("cannot create {id}: {}", chain(&cause))))?;
    let done = finished(&container, &spec, &bundle, flags, filter.filter(|_| systemd).as_deref());
    let done = done.and_then(|()| socket.map(Socket::terminal).transpose()).inspect_err(|_| {
        let _ = container.delete(true);
    });
    Ok((container, done?))
}

/// What is left to do when the container is there; it has not started yet.
fn finished(
    container: &Container,
    spec: &Value,
    bundle: &Path,
    flags: &Flags,
    filter: Option<&[u64]>,
) -> Result<(), String> {
    if let Some(program) = filter {
        // systemd made the group; where it lies, the first process knows.
        let path = container.pid().and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok());
        let path = path.and_then(|text| text.lines().find_map(|line| Some(PathBuf::from(line.strip_prefix("0::")?))));
        let folder = path.and_then(|path| group::folder(&path)).ok_or("the container has no control group")?;
        group::attach(&folder, program)?;
    }
    let pid = container.pid().ok_or("the container has no process")?.as_raw();
    let mounts = |whose: &str| {
        let path = format!("/proc/{whose}/mountinfo");
        std::fs::read_to_string(&path).map_err(|cause| format!("cannot read {path}: {cause}"))
    };
    mounted::judge(spec, &mounts(&pid.to_string())?, &mounts("self")?)?;
    for (path, inner) in left_writable(spec) {
        group::make_read_only(pid, path, inner)?;
    }
    streams::of_created(pid, spec);
    let rootfs = spec.pointer("/root/path").and_then(Value::as_str).unwrap_or("rootfs");
    Known::remember(container, &bundle.join(rootfs))?;
    write_pid(flags, pid)
}

/// What a spec wants read-only and libcontainer leaves writable: control groups with all in them, and `/dev` itself.
fn left_writable(spec: &Value) -> impl Iterator<Item = (&str, bool)> {
    let mounts = spec.pointer("/mounts").and_then(Value::as_array).into_iter().flatten();
    let last = |mount: &Value| {
        let options = mount["options"].as_array().into_iter().flatten().filter_map(Value::as_str);
        options
            .rev()
            .find(|option| ["ro", "rro", "rw", "rrw"].contains(option))
            .is_some_and(|word| word.ends_with("ro"))
    };
    mounts.filter(move |mount| last(mount)).filter_map(|mount| {
        let (path, groups) = (mount["destination"].as_str()?, mount["type"] == "cgroup");
        (groups || mounted::clean(path) == "/dev").then_some((path, groups))
    })
}

/// Our own socket for a terminal in the foreground, where there shall be one.
///
/// # Errors
/// That it cannot be, or is not the only one.
pub(crate) fn own_socket(root: &Path, flags: &Flags, wanted: bool) -> Result<Option<Socket>, String> {
    if wanted && flags.value("console-socket").is_some() {
        return Err("--console-socket goes with --detach: a terminal in the foreground is the caller's".into());
    }
    wanted.then(|| Socket::bind(root)).transpose()
}

/// A builder with what `create`, `run` and `exec` share.
///
/// # Errors
/// What of it is wrong.
pub(crate) fn builder(
    id: &str,
    root: &Path,
    flags: &Flags,
    program: Program,
    socket: Option<&Socket>,
) -> Result<ContainerBuilder, String> {
    let wrong = |cause: &dyn std::error::Error| format!("{id}: {}", chain(cause));
    let builder = ContainerBuilder::new(id.to_owned(), SyscallType::default()).with_executor(program);
    let builder = builder.with_root_path(root).map_err(|cause| wrong(&cause))?;
    let preserved = flags.number("preserve-fds")?.unwrap_or(0);
    let console = socket.map(Socket::path).or_else(|| flags.value("console-socket").map(PathBuf::from));
    Ok(builder.with_console_socket(console).with_preserved_fds(preserved))
}

/// Writes `--pid-file`, whole or not at all: who waits for it reads it at once.
///
/// # Errors
/// Why it cannot be written.
pub(crate) fn write_pid(flags: &Flags, pid: i32) -> Result<(), String> {
    let Some(path) = flags.value("pid-file") else { return Ok(()) };
    let path = absolute(path)?;
    let failed = |cause: std::io::Error| format!("cannot write {}: {cause}", path.display());
    let name = path.file_name().ok_or_else(|| format!("--pid-file names no file: {}", path.display()))?;
    let new = path.with_file_name(format!(".{}", name.display()));
    std::fs::write(&new, pid.to_string()).map_err(failed)?;
    std::fs::rename(&new, &path).map_err(failed)
}

/// A path from where we were called.
fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|cause| format!("cannot tell where {path} is: {cause}"))
}

/// Where libcontainer will put a container.
fn cgroup(spec: &Value, id: &str) -> PathBuf {
    let path = spec.pointer("/linux/cgroupsPath").and_then(Value::as_str).filter(|path| !path.is_empty());
    path.map_or_else(|| PathBuf::from(format!(":youki:{id}")), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_word_about_writing_counts() {
        for (at, kind, options, wanted) in [
            ("/g", "cgroup", json!(["nosuid", "ro", "noexec"]), Some(true)),
            ("/g", "cgroup", json!(["rw", "rro"]), Some(true)),
            ("/g", "cgroup", json!(["ro", "rw"]), None),
            ("/g", "cgroup", Value::Null, None),
            ("/g", "bind", json!(["ro"]), None),
            ("/dev/", "tmpfs", json!(["nosuid", "ro"]), Some(false)),
            ("/dev/shm", "tmpfs", json!(["ro"]), None),
        ] {
            let spec = json!({"mounts": [{"destination": at, "type": kind, "options": options}]});
            assert_eq!(left_writable(&spec).map(|(_, inner)| inner).next(), wanted, "{spec}");
        }
    }
}
