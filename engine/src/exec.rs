//! `exec`: one more process in a running container, made from the container's own or from `--process`.
//!
//! libcontainer starts from an empty process and leaves the seccomp filter out: both are put right here, in a document that
//! it is given as `--process`. What holds for the first process holds for this one.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::{Map, Value, json};

use crate::args::{Call, Flags};
use crate::container::Known;
use crate::create::{builder, own_socket, refuse, write_pid};
use crate::executor::Program;
use crate::report::chain;
use crate::terminal::Socket;
use crate::{foreground, group};

/// `exec`: the exit status is the process's, or 0 with `--detach`.
///
/// # Errors
/// Why it was not started.
pub(crate) fn exec(call: &Call, root: &Path) -> Result<i32, String> {
    let (id, flags) = (call.id(), &call.flags);
    let known = Known::load(root, id)?;
    match known.status() {
        "running" => {}
        "paused" if flags.is("ignore-paused") => {}
        "paused" => return Err("cannot exec in a paused container (use --ignore-paused to override)".into()),
        "stopped" => return Err("cannot exec a container that has stopped".into()),
        other => return Err(format!("cannot exec in a container that is {other}")),
    }
    let path = known.inner.bundle().join("config.json");
    let bytes = std::fs::read(&path).map_err(|cause| format!("cannot read {}: {cause}", path.display()))?;
    let spec: Value =
        serde_json::from_slice(&bytes).map_err(|cause| format!("cannot read {}: {cause}", path.display()))?;
    let namespaces = spec.pointer("/linux/namespaces").and_then(Value::as_array);
    if namespaces.into_iter().flatten().any(|namespace| namespace["type"] == "user") {
        return Err(
            "libcontainer does not enter a user namespace: exec would be root of the host there; use runc or crun for \
                    containers with one"
                .into(),
        );
    }
    let mut process = process(call, &spec)?;
    refuse(&json!({ "process": &process, "linux": { "seccomp": spec.pointer("/linux/seccomp") } }), group::is_v2()?)?;
    let detach = flags.is("detach");
    let socket = own_socket(root, flags, process["terminal"] == true && !detach)?;
    let seccomp = spec.pointer("/linux/seccomp").filter(|seccomp| !seccomp.is_null());
    let seccomp = seccomp.map(|seccomp| serde_json::from_value(seccomp.clone())).transpose();
    let seccomp = seccomp.map_err(|cause| format!("{}: /linux/seccomp: {cause}", path.display()))?;
    if seccomp.is_some() && process["noNewPrivileges"] != true {
        may(&mut process, "CAP_SYS_ADMIN");
    }
    if process["user"]["uid"] != 0 {
        may(&mut process, "CAP_CHOWN");
    }
    group::own_keyring(id)?;
    // It runs before we see its terminal.
    if let Some((height, width)) = socket.as_ref().and_then(Socket::size) {
        process["consoleSize"] = json!({ "height": height, "width": width });
    }
    let program = Program { seccomp, added: Some(socket.is_some()) };
    let document = in_memory(&process)?;
    let builder = builder(id, root, flags, program, socket.as_ref())?.as_tenant();
    let builder = builder.with_detach(detach || socket.is_some());
    let builder = builder.with_process(Some(format!("/proc/self/fd/{}", document.as_raw_fd())));
    let builder = builder.with_ignore_paused(flags.is("ignore-paused"));
    let pid = builder.with_sub_cgroup(inner_group(flags, &known)?).build();
    let pid = pid.map_err(|cause| format!("exec failed: {}", chain(&cause)))?.as_raw();
    write_pid(flags, pid)?;
    let terminal = socket.map(Socket::terminal).transpose()?;
    if detach { Ok(0) } else { foreground::wait(pid, terminal) }
}

/// `--cgroup`.
fn inner_group(flags: &Flags, known: &Known) -> Result<Option<String>, String> {
    let asked: Vec<&str> = flags.values("cgroup").collect();
    let one = match *asked {
        [] => return Ok(None),
        [one] if !one.contains(':') => one,
        _ => {
            return Err(
                "--cgroup: libcontainer puts a process into one group of all controllers; give one path below the \
                        container's"
                    .into(),
            );
        }
    };
    // One that leads out is libcontainer's to refuse; where systemd has put the container, it alone knows.
    if !known.inner.systemd() && !one.split('/').any(|part| part == "..") {
        let config =
            known.inner.spec().map_err(|cause| format!("cannot read the container's state: {}", chain(&cause)))?;
        group::has_inner(&config.cgroup_path, one)?;
    }
    Ok(Some(one.to_owned()))
}

/// The process's document.
fn process(call: &Call, spec: &Value) -> Result<Value, String> {
    let flags = &call.flags;
    let words: Vec<&String> = call.words.iter().skip(1).collect();
    if let Some(path) = flags.value("process") {
        let bytes = std::fs::read(path).map_err(|cause| format!("cannot read {path}: {cause}"))?;
        let mut process: Map<String, Value> =
            serde_json::from_slice(&bytes).map_err(|cause| format!("cannot read {path}: {cause}"))?;
        // As runc has it; libcontainer would give all.
        if process.get("capabilities").is_none_or(Value::is_null)
            && let Some(own) = spec.pointer("/process/capabilities")
        {
            process.insert("capabilities".into(), own.clone());
        }
        process.entry("user").or_insert_with(|| json!({ "uid": 0, "gid": 0 }));
        return Ok(Value::Object(process));
    }
    let mut process = spec.get("process").and_then(Value::as_object).cloned().unwrap_or_default();
    if words.is_empty() {
        return Err("exec: no command: give words behind the id, or --process".into());
    }
    process.insert("args".into(), json!(words));
    process.insert("terminal".into(), flags.is("tty").into());
    for (flag, key) in [("cwd", "cwd"), ("apparmor", "apparmorProfile"), ("process-label", "selinuxLabel")] {
        if let Some(value) = flags.value(flag) {
            process.insert(key.into(), value.into());
        }
    }
    if flags.is("no-new-privs") {
        process.insert("noNewPrivileges".into(), true.into());
    }
    append(&mut process, "env", flags.values("env").map(Value::from));
    add_user(&mut process, flags)?;
    add_capabilities(&mut process, flags);
    Ok(Value::Object(process))
}

fn append(map: &mut Map<String, Value>, key: &str, more: impl Iterator<Item = Value>) {
    let list = map.entry(key).or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    if let Some(list) = list.as_array_mut() {
        for value in more {
            if !list.contains(&value) || key == "env" {
                list.push(value);
            }
        }
    }
}

/// `--user UID[:GID]` and `--additional-gids`.
fn add_user(process: &mut Map<String, Value>, flags: &Flags) -> Result<(), String> {
    let number = |text: &str| text.parse::<u32>().map_err(|_| format!("--user wants numbers, UID[:GID], not {text:?}"));
    let Some(user) = process.entry("user").or_insert_with(|| json!({ "uid": 0, "gid": 0 })).as_object_mut() else {
        return Ok(());
    };
    if let Some(text) = flags.value("user") {
        let (uid, gid) = text.split_once(':').map_or((text, None), |(uid, gid)| (uid, Some(gid)));
        user.insert("uid".into(), number(uid)?.into());
        if let Some(gid) = gid {
            user.insert("gid".into(), number(gid)?.into());
        }
    }
    let more: Vec<Value> =
        flags.values("additional-gids").map(|gid| number(gid).map(Value::from)).collect::<Result<_, _>>()?;
    if !more.is_empty() {
        append(user, "additionalGids", more.into_iter());
    }
    Ok(())
}

/// `--cap`, as runc takes it: never inheritable, ambient only where the container has inheritable ones.
fn add_capabilities(process: &mut Map<String, Value>, flags: &Flags) {
    let asked: Vec<Value> = flags.values("cap").map(Value::from).collect();
    if asked.is_empty() {
        return;
    }
    let Some(sets) = process.entry("capabilities").or_insert_with(|| json!({})).as_object_mut() else { return };
    let inherits = sets.get("inheritable").and_then(Value::as_array).is_some_and(|set| !set.is_empty());
    for set in ["bounding", "effective", "permitted"].into_iter().chain(inherits.then_some("ambient")) {
        append(sets, set, asked.iter().cloned());
    }
}

/// Lets the process load its filter, or take its streams, after libcontainer set its capabilities. Of such a capability nothing
/// is left when its program begins: it is neither bounding, nor inheritable, nor ambient.
fn may(process: &mut Value, capability: &str) {
    if let Some(sets) = process.get_mut("capabilities").and_then(Value::as_object_mut) {
        for set in ["effective", "permitted"] {
            append(sets, set, std::iter::once(json!(capability)));
        }
    }
}

/// A document that libcontainer can open by a path, and nobody else change.
fn in_memory(document: &Value) -> Result<File, String> {
    let failed = |cause: &dyn std::fmt::Display| format!("cannot keep the process's document: {cause}");
    let mut file = File::from(memfd_create("process", MFdFlags::MFD_CLOEXEC).map_err(|cause| failed(&cause))?);
    file.write_all(document.to_string().as_bytes()).map_err(|cause| failed(&cause))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(line: &str, spec: &Value) -> Value {
        let words = line.split(' ').map(str::to_owned);
        process(&crate::args::parse(words).map_err(|(why, _)| why).unwrap(), spec).unwrap()
    }

    #[test]
    fn a_process_begins_as_its_container() {
        let spec = json!({"process": {"args": ["sleep"], "cwd": "/w", "env": ["A=1"], "user": {"uid": 5, "gid": 6},
            "terminal": true, "capabilities": {"bounding": ["CAP_KILL"]}, "rlimits": [{"type": "RLIMIT_CORE"}]}});
        assert_eq!(
            made("exec -e B=2 -e A=3 id ls -l", &spec),
            json!({"args": ["ls", "-l"], "cwd": "/w", "env": ["A=1", "B=2", "A=3"], "user": {"uid": 5, "gid": 6},
                "terminal": false, "capabilities": {"bounding": ["CAP_KILL"]}, "rlimits": [{"type": "RLIMIT_CORE"}]})
        );
        let other = made("exec -t --cwd /x -u 7:8 -g 9 --cap CAP_SYS_TIME --no-new-privs id ls", &spec);
        assert_eq!(
            (&other["cwd"], &other["terminal"], &other["noNewPrivileges"]),
            (&json!("/x"), &json!(true), &json!(true))
        );
        assert_eq!(other["user"], json!({"uid": 7, "gid": 8, "additionalGids": [9]}));
        let cap = json!(["CAP_SYS_TIME"]);
        assert_eq!(
            other["capabilities"],
            json!({"bounding": ["CAP_KILL", "CAP_SYS_TIME"], "effective": cap, "permitted": cap})
        );
    }

    #[test]
    fn a_document_without_capabilities_gets_the_containers() {
        let spec = json!({"process": {"capabilities": {"bounding": ["CAP_KILL"]}}});
        let file = tempfile::NamedTempFile::new().unwrap();
        for (given, expected) in [
            (json!({}), json!({"bounding": ["CAP_KILL"]})),
            (json!({"capabilities": null}), json!({"bounding": ["CAP_KILL"]})),
            (json!({"capabilities": {}}), json!({})),
        ] {
            std::fs::write(file.path(), given.to_string()).unwrap();
            let line = format!("exec --process {} id", file.path().display());
            assert_eq!(made(&line, &spec)["capabilities"], expected, "{given}");
        }
    }

    #[test]
    fn what_loads_the_filter_is_not_kept() {
        let mut process = json!({"capabilities": {"bounding": ["CAP_KILL"], "inheritable": ["CAP_KILL"]}});
        may(&mut process, "CAP_SYS_ADMIN");
        let sets = &process["capabilities"];
        assert_eq!((&sets["effective"], &sets["permitted"]), (&json!(["CAP_SYS_ADMIN"]), &json!(["CAP_SYS_ADMIN"])));
        assert_eq!(
            (&sets["bounding"], &sets["inheritable"], &sets["ambient"]),
            (&json!(["CAP_KILL"]), &json!(["CAP_KILL"]), &Value::Null)
        );
    }
}
