//! Open files that the engine hands on to the container: an open GPU among them would be past every filter.

use contract::{Code, Refusal};
use guard::Numbers;
use node::Node;

use crate::argv::Call;
use crate::setup::Setup;

/// Refuses a call that hands on an open GPU. Looks at nothing where nothing is handed on.
pub(crate) fn judge(call: &Call<'_>, setup: &Setup) -> Option<Refusal> {
    let (flagged, passed) = told(call);
    let many = flagged.saturating_add(passed);
    if many == 0 {
        return None;
    }
    let devices = node::process::open_devices(3, many);
    let (fd, numbers) =
        (!devices.is_empty()).then(|| Numbers::read(&Node::new(&setup.config.host))).and_then(|numbers| {
            let numbers = numbers.ok();
            let is_gpu = |(_, (major, minor)): &&(u64, (u32, u32))| {
                numbers.as_ref().is_none_or(|numbers| numbers.is_gpu(*major, *minor))
            };
            devices.iter().find(is_gpu).copied()
        })?;
    let at = if fd - 3 < flagged { "argv/--preserve-fds" } else { "LISTEN_FDS" };
    let message = format!("descriptor {fd} is an open device {}:{}, a GPU for all that is known", numbers.0, numbers.1);
    let help = "close it before: the GPUs that are asked for are added by the runtime";
    Some(Refusal::new(Code::TenantGpuDevice, "args-preserve-fds", message, help).at(at, fd.to_string()))
}

/// The first descriptor that the low-level runtime hands on to nobody.
pub(crate) fn behind(call: &Call<'_>) -> i32 {
    let (flagged, passed) = told(call);
    i32::try_from(flagged.saturating_add(passed).saturating_add(3)).unwrap_or(i32::MAX)
}

/// How many are handed on by the flag, and by socket activation.
fn told(call: &Call<'_>) -> (u64, u64) {
    // crun asks not for whom they are.
    let passed = std::env::var_os("LISTEN_FDS").map_or(0, |many| count(&many.to_string_lossy()));
    (call.value("preserve-fds").map_or(0, count), passed)
}

/// A number as Go and C read it; one too large to read is as many as there can be.
fn count(text: &str) -> u64 {
    let text = text.trim();
    let digits = text.strip_prefix('+').unwrap_or(text);
    match digits.parse() {
        Ok(many) => many,
        Err(_) if text.is_empty() || text.starts_with('-') => 0,
        // 0x10, 12abc, 1e30: whoever reads it may read any number.
        Err(_) => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_as_many_as_there_can_be() {
        for (text, many) in [("0", 0), ("3", 3), ("+2", 2), ("-1", 0), ("0x3", u64::MAX), ("3x", u64::MAX), ("", 0)] {
            assert_eq!(count(text), many, "{text:?}");
        }
    }
}
