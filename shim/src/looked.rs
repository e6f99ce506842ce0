//! When the node was last looked at in vain: a refresh asks NVML and makes a container, and whoever starts a container on a
//! full node again and again would have the helper do nothing else.
//!
//! Only what stays as it was is spared a look: a fact that changed (`CONTRACT_STALE`) has one, and no second while it is the same
//! change, which no look mends then.

use std::fs;
use std::time::{Duration, SystemTime};

use contract::{Code, Refusal};

use crate::setup::Setup;

/// The file that is written after each look that ended nothing: why it did not.
const MARK: &str = "looked";
/// How long nobody looks again then. Who waits for a GPU, or starts again, sees it that much later.
const REST: Duration = Duration::from_secs(3);

/// Whether another look may end this.
pub(crate) fn is_worth_it(setup: &Setup, refusal: &Refusal) -> bool {
    let mark = setup.state_dir().join(MARK);
    let last = fs::metadata(&mark).and_then(|mark| mark.modified());
    let other = || !fs::read(&mark).is_ok_and(|why| why == refusal.message.as_bytes());
    !last.is_ok_and(|last| is_recent(last, SystemTime::now())) || (refusal.code == Code::ContractStale && other())
}

/// A look for the one refusal ended nothing: this is still so.
pub(crate) fn in_vain(setup: &Setup, before: &Refusal, still: &Refusal) {
    // What changed while it was looked was not looked at yet.
    if still.code == Code::ContractStale && still.message != before.message {
        return;
    }
    // Without it somebody looks once more.
    let _ = fs::write(setup.state_dir().join(MARK), &still.message);
}

/// A clock that was set back makes nothing recent.
fn is_recent(last: SystemTime, now: SystemTime) -> bool {
    now.duration_since(last).is_ok_and(|ago| ago < REST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_in_vain_is_not_repeated_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut setup = Setup::read(&folder.path().join("none.toml"));
        setup.config.paths.state_dir = folder.path().to_str().unwrap().into();
        let refusal = |code, message| Refusal::new(code, "r", message, "h");
        let worth = |code| is_worth_it(&setup, &refusal(code, "m"));
        for (looked, code, worth_it) in [
            (None, Code::GpuUnavailable, true),
            (None, Code::ContractStale, true),
            (Some("m"), Code::GpuUnavailable, false),
            (Some("another"), Code::DriverNotReady, false),
            (Some("m"), Code::CapacityFull, false),
            // A tenant whose container is started again and again has the helper look once.
            (Some("m"), Code::ContractStale, false),
            // The node changed once more.
            (Some("another"), Code::ContractStale, true),
        ] {
            if let Some(why) = looked {
                let still = refusal(Code::ContractStale, why);
                in_vain(&setup, &still, &still);
            }
            assert_eq!(worth(code), worth_it, "{looked:?} {code:?}");
        }
        // A look that was overtaken says nothing of what came meanwhile.
        in_vain(&setup, &refusal(Code::CapacityFull, "m"), &refusal(Code::ContractStale, "third"));
        assert!(is_worth_it(&setup, &refusal(Code::ContractStale, "third")));
        let now = SystemTime::now();
        let mark = fs::File::open(folder.path().join(MARK)).unwrap();
        for last in [now - REST, now + Duration::from_secs(600)] {
            mark.set_modified(last).unwrap();
            assert!(worth(Code::GpuUnavailable), "{last:?}");
        }
    }
}
