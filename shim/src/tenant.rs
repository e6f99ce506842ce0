//! `exec` and `update` of containers that exist.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use contract::json::{self, MAX_BYTES, Value};
use contract::{Code, Refusal};
use ledger::Ledger;
use ledger::audit::Kind;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::container::Container;
use crate::handover::{self, Words};
use crate::record;

/// `exec`: a process of a container with a contract sees the contract's environment. Never fails because of us.
pub(crate) fn exec(container: &Container<'_>, words: Words) -> Refusal {
    let contract = Ledger::open_existing(container.setup.state_dir()).and_then(|ledger| {
        let low_level = ledger.low_level(&container.key);
        ledger.contract(&container.key).ok().flatten().map(|contract| (contract, low_level))
    });
    let Some((contract, low_level)) = contract else {
        return handover::become_runtime(&container.low_level, &words);
    };
    let low_level = low_level.unwrap_or_else(|| container.low_level.clone());
    let Some((file, index)) = container.call.value_at("process", "p") else {
        // Without a process file the runtime takes the container's own environment, which has the variables.
        return handover::become_runtime(&low_level, &words);
    };
    let (copy, why) = match read_process(file) {
        Ok(bytes) => match with_environment(&bytes, &contract.env) {
            Ok(edited) => (in_memory(&edited), None),
            // What was read may be gone from where it came: the copy is handed on.
            Err(why) => (in_memory(&bytes), Some(why)),
        },
        Err(error) => (Err(error), None),
    };
    let why = why.or_else(|| copy.as_ref().err().map(|error| format!("copy {file}: {error}")));
    if let Some(why) = why {
        record::event(Kind::Exec, container, &format!("the process got no variables of the contract: {why}"));
    }
    match copy {
        Ok(copy) => {
            let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
            let refusal = handover::become_runtime(&low_level, &words.with_value(index, &path));
            drop(copy);
            refusal
        }
        Err(_) => handover::become_runtime(&low_level, &words),
    }
}

fn read_process(file: &str) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(file)?.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A process spec with the contract's variables.
fn with_environment(bytes: &[u8], env: &[(String, String)]) -> Result<Vec<u8>, String> {
    let process = json::parse_oci(bytes).map_err(|e| e.to_string())?;
    cdi::apply_process(bytes, &process, env).map_err(|e| e.to_string())
}

/// The bytes as an open file that lives on in the runtime we become.
fn in_memory(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    // The runtime inherits it and reads it by number; it closes what it does not know before the container's process.
    let fd = memfd_create(c"quilt-gpu", MFdFlags::empty())?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// `update`: limits may change, devices may not.
///
/// # Errors
/// `TENANT_GPU_RULE` when the new resources speak about devices, `UNSAFE_SPEC` when they cannot be read in one way.
pub(crate) fn update(container: &Container<'_>, words: Words) -> Result<i32, Refusal> {
    let Some((file, _)) = container.call.value_at("resources", "r") else {
        return Err(handover::become_runtime(&container.low_level, &words));
    };
    let bytes = read_resources(file)?;
    let document = json::parse_oci(&bytes)?;
    let devices = document.get("devices").is_some_and(|d| !matches!(&d.value, Value::Array(items) if items.is_empty()));
    if devices {
        return Err(Refusal::new(
            Code::TenantGpuRule,
            "update-devices",
            "an update cannot change which devices a container may open",
            "leave devices out of the resources",
        )
        .at("/devices", ""));
    }
    // What was judged is what the runtime reads, from standard input or from the file's name alike.
    let copy = in_memory(&bytes).map_err(|e| Refusal::internal("update", &e))?;
    let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
    let index = container.call.value_at("resources", "r").map_or(0, |(_, index)| index);
    let refusal = handover::become_runtime(&container.low_level, &words.with_value(index, &path));
    drop(copy);
    Err(refusal)
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
