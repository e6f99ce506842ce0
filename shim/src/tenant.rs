//! `exec` and `update` of containers that exist.

use std::io::{Read, Write};
use std::os::fd::RawFd;

use contract::json::{self, MAX_BYTES, Node, Value};
use contract::{Code, Refusal};
use guard::LowLevel;
use ledger::Ledger;
use ledger::audit::Kind;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::container::Container;
use crate::gained;
use crate::handover::{self, Words};
use crate::preserved;
use crate::record;

/// The first number behind the three that every process has.
const STANDARD: RawFd = 3;

/// `exec`: a process of a container with a contract sees the contract's environment, and none has more than its container.
/// Goes on whatever is wrong, but for what leads out of the container.
pub(crate) fn exec(container: &Container<'_>, mut words: Words) -> Refusal {
    let call = container.call;
    if let Some(refusal) = leads_out(container).or_else(|| preserved::judge(call, container.setup)) {
        return refusal;
    }
    let ledger = Ledger::open_existing(container.setup.state_dir());
    let contract = ledger.and_then(|ledger| ledger.contract(&container.key).ok().flatten());
    let low_level = if contract.is_some() { container.made_by() } else { container.low_level.clone() };
    let env = contract.map(|contract| contract.env).unwrap_or_default();
    // Without a process file the runtime takes the container's own environment, which has the variables.
    let copy = match call.value_at("process", "p") {
        None => None,
        Some((file, index)) => match process_file(container, file, &env) {
            Ok(copy) => copy.map(|copy| (copy, index)),
            Err(refusal) => return refusal,
        },
    };
    if let Some((copy, index)) = &copy {
        words = words.with_value(*index, &format!("/proc/self/fd/{copy}"));
    }
    let gained = gained::by_flags(container);
    // From the last on: what stands before keeps its place.
    words = gained.iter().rev().fold(words, |words, (_, index)| words.without_flag(*index));
    note_gained(container, gained.iter().map(|(name, _)| name.as_str()));
    handover::become_runtime(&low_level, &words)
}

/// A group or a folder that is not the container's own.
fn leads_out(container: &Container<'_>) -> Option<Refusal> {
    let call = container.call;
    let climbs = |group: &&str| group.split(['/', ':', ',']).any(|part| part == "..");
    // crun leaves the process where its caller is when the group is not there, and any other may.
    let unsure = |group: &&str| {
        LowLevel::of(&container.low_level.to_string_lossy()) != LowLevel::Runc && !group.trim_matches('/').is_empty()
    };
    let mut groups = call.values_of("cgroup", "cgroup").map(|(group, _)| group);
    if let Some(group) = groups.find(|group| climbs(group) || unsure(group)) {
        // As runc says it, whose users look for these words. crun would put the process into any group of the machine.
        let message = format!("{group} is not a sub cgroup path: the process would not be in its container's group");
        let refusal = Refusal::new(Code::UnsafeSpec, "exec-cgroup", message, "name a group below the container's");
        return Some(refusal.at("argv/--cgroup", group));
    }
    call.value("cwd").and_then(|cwd| guard::judge_cwd(cwd, "argv/--cwd"))
}

fn note_gained<'n>(container: &Container<'_>, names: impl Iterator<Item = &'n str>) {
    let names: Vec<&str> = names.collect();
    if !names.is_empty() {
        let names = names.join(", ");
        let message = format!("exec-caps: the process was not given {names}, which its container does not have");
        record::event(Kind::Exec, container, &message);
    }
}

/// What the low-level runtime reads instead of a process file; nothing when it reads the file itself. What cannot be carried
/// out is noted and left, but for what the process would gain.
fn process_file(container: &Container<'_>, file: &str, env: &[(String, String)]) -> Result<Option<RawFd>, Refusal> {
    let profile = container.setup.config.policy.profile;
    let (bytes, again) = match read_process(file) {
        Ok(read) => read,
        Err(error) => {
            note_without_variables(container, env, &format!("read {file}: {error}"));
            return Ok(None);
        }
    };
    // What stands behind the part that was read may give anything.
    let judged = bytes.len() > MAX_BYTES || guard::may_gain(&bytes, profile) || gained::gives_all(container, &bytes);
    if again && !judged && env.is_empty() {
        return Ok(None);
    }
    let (copy, why) = if judged || !env.is_empty() {
        match json::parse_oci(&bytes) {
            Ok(process) => edited(container, &bytes, &process, env, judged)?,
            // No engine writes such a file, and what it gives cannot be told.
            Err(error) if judged => return Err(Refusal::from(error)),
            Err(error) => (bytes, Some(error.to_string())),
        }
    } else {
        (bytes, None)
    };
    why.iter().for_each(|why| note_without_variables(container, env, why));
    // What was read may be gone from where it came, so the copy is handed on.
    let copy = in_memory(&copy, preserved::behind(container.call));
    copy.map(Some).map_err(|e| Refusal::internal("exec", &format_args!("copy {file}: {e}")))
}

/// The process without what it would gain, and with the contract's variables, or why without them.
fn edited(
    container: &Container<'_>,
    bytes: &[u8],
    process: &Node<'_>,
    env: &[(String, String)],
    judged: bool,
) -> Result<(Vec<u8>, Option<String>), Refusal> {
    let cwd = process.get("cwd").and_then(Node::as_str).filter(|_| judged);
    if let Some(refusal) = cwd.and_then(|cwd| guard::judge_cwd(cwd, "/cwd")) {
        return Err(refusal);
    }
    let less = if judged { gained::by_process(container, bytes, process) } else { None };
    note_gained(container, less.iter().flat_map(|(_, names)| names.iter().map(String::as_str)));
    let bytes = less.map_or_else(|| bytes.to_vec(), |(bytes, _)| bytes);
    Ok(match with_environment(&bytes, env) {
        Ok(edited) => (edited, None),
        Err(why) => (bytes, Some(why)),
    })
}

fn note_without_variables(container: &Container<'_>, env: &[(String, String)], why: &str) {
    if !env.is_empty() {
        record::event(Kind::Exec, container, &format!("the process got no variables of the contract: {why}"));
    }
}

/// The bytes of a process file, and whether it can be read once more.
fn read_process(file: &str) -> std::io::Result<(Vec<u8>, bool)> {
    let file = std::fs::File::open(file)?;
    let meta = file.metadata()?;
    let again = meta.is_file();
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0).min(MAX_BYTES) + 1);
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes, again))
}

/// A process spec with the contract's variables.
fn with_environment(bytes: &[u8], env: &[(String, String)]) -> Result<Vec<u8>, String> {
    let process = json::parse_oci(bytes).map_err(|e| e.to_string())?;
    cdi::apply_process(bytes, &process, env).map_err(|e| e.to_string())
}

/// The bytes as an open file that lives on in the runtime we become, by a number from this one on: any before may be one that
/// the container is to have, or to be without.
fn in_memory(bytes: &[u8], from: RawFd) -> std::io::Result<RawFd> {
    let mut file = std::fs::File::from(memfd_create(c"quilt-gpu", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(bytes)?;
    // The runtime inherits it and reads it by number; it closes what it does not know before the container's process.
    let numbered = fcntl(&file, FcntlArg::F_DUPFD(from)).or_else(|_| fcntl(&file, FcntlArg::F_DUPFD(STANDARD)));
    Ok(numbered?)
}

/// `update`: limits may change, devices may not. containerd sends the whole resources of its own copy of the spec, device
/// list included, which runc ignores and crun carries out: the low-level runtime gets the same bytes without that list.
///
/// # Errors
/// `UNSAFE_SPEC` when the resources cannot be read in one way.
pub(crate) fn update(container: &Container<'_>, words: Words) -> Result<i32, Refusal> {
    let low_level = container.made_by();
    let Some((file, index)) = container.call.value_at("resources", "r") else {
        return Err(handover::become_runtime(&low_level, &words));
    };
    let bytes = read_resources(file)?;
    let resources = json::parse_oci(&bytes)?;
    if let Some(refusal) = guard::judge_update(&resources) {
        return Err(refusal);
    }
    let without = without_devices(&bytes, &resources);
    if without.is_some() {
        record::event(
            Kind::Update,
            container,
            "the device list of the update was left out: an update changes limits only",
        );
    }
    // What was judged is what the runtime reads, from standard input or from the file's name alike.
    let copy = in_memory(&without.unwrap_or(bytes), STANDARD).map_err(|e| Refusal::internal("update", &e))?;
    let path = format!("/proc/self/fd/{copy}");
    Err(handover::become_runtime(&low_level, &words.with_value(index, &path)))
}

/// The document without its member `devices` and one comma beside it; nothing when no list is there.
fn without_devices(bytes: &[u8], resources: &Node<'_>) -> Option<Vec<u8>> {
    let members = resources.members();
    let at = members.iter().position(|member| member.key == "devices")?;
    let empty =
        |value: &Value<'_>| matches!(value, Value::Null) || matches!(value, Value::Array(list) if list.is_empty());
    let devices = members.get(at).filter(|member| !empty(&member.value.value))?;
    let place = match (at.checked_sub(1).and_then(|before| members.get(before)), members.get(at + 1)) {
        (Some(before), _) => before.value.span.end..devices.value.span.end,
        (None, Some(after)) => devices.start..after.start,
        (None, None) => devices.start..devices.value.span.end,
    };
    Some([bytes.get(..place.start)?, bytes.get(place.end..)?].concat())
}

fn read_resources(file: &str) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    let most = MAX_BYTES as u64 + 1;
    let read = if file == "-" {
        std::io::stdin().lock().take(most).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|f| f.take(most).read_to_end(&mut bytes))
    };
    read.map(|_| bytes).map_err(|e| Refusal::internal("update", &format_args!("read {file}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_list_goes_and_every_other_byte_stays() {
        for (resources, expected) in [
            (r#"{"memory": {"limit": 1}, "x-new":[ ]}"#, None),
            (r#"{"devices":[]}"#, None),
            (r#"{"devices": null, "cpu":{}}"#, None),
            (r#"{ "devices":[{"allow":true}] }"#, Some("{  }")),
            (r#"{"devices":[{"allow":true,"access":"rwm"}], "cpu":{"shares":2}}"#, Some(r#"{"cpu":{"shares":2}}"#)),
            (r#"{"cpu":{} , "devices" : [{}] ,"pids":{"limit":3}}"#, Some(r#"{"cpu":{} ,"pids":{"limit":3}}"#)),
            ("{\"cpu\":{},\n \"devices\":[{\"allow\":true}]\n}", Some("{\"cpu\":{}\n}")),
            // What is no list is no runtime's list either, and none reads it.
            (r#"{"devices":"a","cpu":{}}"#, Some(r#"{"cpu":{}}"#)),
        ] {
            let without = without_devices(resources.as_bytes(), &json::parse_oci(resources.as_bytes()).unwrap());
            let without = without.map(|bytes| String::from_utf8(bytes).unwrap());
            assert_eq!(without.as_deref(), expected, "{resources}");
            if let Some(without) = &without {
                assert_eq!(without_devices(without.as_bytes(), &json::parse_oci(without.as_bytes()).unwrap()), None);
            }
        }
    }

    #[test]
    fn keys_that_only_look_like_it_are_refused() {
        for resources in [r#"{"devices":[],"devices":[{"allow":true}]}"#, r#"{"Devices":[{"allow":true}]}"#] {
            let read = json::parse_oci(resources.as_bytes());
            assert!(read.is_err(), "{resources}: {read:?}");
        }
    }
}
