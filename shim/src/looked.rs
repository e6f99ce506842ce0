//! When the node was last looked at in vain: a refresh asks NVML and makes a container, and whoever starts a container on a
//! full node again and again would have the helper do nothing else.
//!
//! Only what stays as it was is spared a look: a fact that changed (`CONTRACT_STALE`) always has one.

use std::fs;
use std::time::{Duration, SystemTime};

use contract::{Code, Refusal};

use crate::setup::Setup;

/// The file that is written after each look that ended nothing.
const MARK: &str = "looked";
/// How long nobody looks again then. Who waits for a GPU, or starts again, sees it that much later.
const REST: Duration = Duration::from_secs(3);

/// Whether another look may end this.
pub(crate) fn is_worth_it(setup: &Setup, refusal: &Refusal) -> bool {
    let last = fs::metadata(setup.state_dir().join(MARK)).and_then(|mark| mark.modified());
    refusal.code == Code::ContractStale || !last.is_ok_and(|last| is_recent(last, SystemTime::now()))
}

/// A look ended nothing.
pub(crate) fn in_vain(setup: &Setup) {
    // Without it somebody looks once more.
    let _ = fs::write(setup.state_dir().join(MARK), "\n");
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
        let worth = |code| is_worth_it(&setup, &Refusal::new(code, "r", "m", "h"));
        for (looked, code, worth_it) in [
            (false, Code::GpuUnavailable, true),
            (true, Code::GpuUnavailable, false),
            (true, Code::DriverNotReady, false),
            (true, Code::CapacityFull, false),
            (true, Code::ContractStale, true),
        ] {
            if looked {
                in_vain(&setup);
            }
            assert_eq!(worth(code), worth_it, "{looked} {code:?}");
        }
        let now = SystemTime::now();
        let mark = fs::File::open(folder.path().join(MARK)).unwrap();
        for last in [now - REST, now + Duration::from_secs(600)] {
            mark.set_modified(last).unwrap();
            assert!(worth(Code::GpuUnavailable), "{last:?}");
        }
    }
}
