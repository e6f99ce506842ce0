//! Whether device filters of the low-level runtime hold on this node: tried once, with a container that never runs.
//!
//! A container is created with a list that closes every GPU, its filter is read as that of any other container, and it is
//! removed. Nothing of it may stay behind, on any way out: what a killed probe left is swept by the next one.

mod container;

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use contract::config::Verify;
use contract::inventory::{Filter, LowLevel};
use guard::{Numbers, System};
use node::{Mode, Node, write_atomic};
use shim::{Setup, Wrong};

use container::{Container, Failure};

/// Why a container tells nothing.
const ENDED: &str = "the container's process ended before it was looked at";

/// How long somebody else may look: longer than a driver that does not answer is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The lock of whoever looks at the node: probes would sweep each other's containers away.
pub(super) struct Turn {
    asked: SystemTime,
    _lock: File,
}

impl Turn {
    /// Waits for its turn, not for ever: containers wait for us.
    pub(super) fn wait(setup: &Setup) -> Result<Self, String> {
        let asked = SystemTime::now();
        let path = setup.state_dir().join("refresh.lock");
        let failed = |cause| format!("cannot lock {}: {cause}", path.display());
        let lock = File::options().create(true).append(true).open(&path).map_err(failed)?;
        let until = Instant::now() + PATIENCE;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { asked, _lock: lock }),
                Err(TryLockError::Error(cause)) => return Err(failed(cause)),
                Err(TryLockError::WouldBlock) if Instant::now() > until => {
                    let (path, seconds) = (path.display(), PATIENCE.as_secs());
                    return Err(format!(
                        "another process has been looking at the node for {seconds} s: it holds {path}"
                    ));
                }
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// What the low-level runtime in force does here, stored for the runtime. Nothing where containers are not verified
/// anyway, and where there is no low-level runtime.
pub(super) fn low_level(setup: &Setup, turn: &Turn) -> Result<Option<LowLevel>, String> {
    let file = setup.state_dir().join(shim::LOW_LEVEL);
    let path = setup.low_level().ok().filter(|_| setup.config.policy.verify != Verify::Off);
    let Some(path) = path else {
        let _ = fs::remove_file(&file);
        return Ok(None);
    };
    // Whoever waited for the lock takes the answer of whoever had it.
    let just_now = fs::metadata(&file).and_then(|meta| meta.modified()).is_ok_and(|made| made >= turn.asked);
    if let Some(known) = current(setup, &path).filter(|_| just_now) {
        return Ok(Some(known));
    }
    let found = probed(setup, &path)?;
    let bytes = serde_json::to_vec(&found).map_err(|cause| format!("cannot write {}: {cause}", file.display()))?;
    write_atomic(&file, &bytes, Mode::root(0o644), false).map_err(|cause| cause.to_string())?;
    Ok(Some(found))
}

/// What is stored, if it is about this program as it is now.
pub(super) fn current(setup: &Setup, low_level: &Path) -> Option<LowLevel> {
    shim::current(setup, low_level)
}

fn folder(setup: &Setup) -> PathBuf {
    setup.state_dir().join("probe")
}

fn probed(setup: &Setup, path: &Path) -> Result<LowLevel, String> {
    let id = node::file_id(path).map_err(|cause| cause.to_string())?;
    let cgroup = node::cgroup::version_of_filters().map_err(|cause| cause.to_string())?;
    let (name, version) = container::calls_itself(&folder(setup), path);
    let ways = guard::LowLevel::of(if name.is_empty() { path.to_str().unwrap_or_default() } else { &name });
    let (filter, fails_with_list, reason) = match tried(setup, path) {
        Tried::Holds => (Filter::Enforced, false, None),
        Tried::Open(Wrong::Absent) => (Filter::NotEnforced, false, Some(ways.lacks_filter(cgroup == 2).to_owned())),
        Tried::Open(wrong) => (Filter::NotEnforced, false, Some(wrong.to_string())),
        Tried::NoneWithList(words) => {
            let reason = format!("without a device list it makes containers, with one it does not: {words}");
            (Filter::NotEnforced, true, Some(reason))
        }
        Tried::Unknown(why) => (Filter::NotTried, false, Some(why)),
    };
    Ok(LowLevel { path: path.display().to_string(), id, name, version, cgroup, filter, fails_with_list, reason })
}

/// What came of it. Only what was seen counts: everything else is [`Tried::Unknown`].
enum Tried {
    /// The container's filter closed what it should.
    Holds,
    /// The container was open: no filter, or one that leaves a GPU open.
    Open(Wrong),
    /// It makes containers, but none with a device list; its words.
    NoneWithList(String),
    /// Why it cannot be told.
    Unknown(String),
}

fn tried(setup: &Setup, path: &Path) -> Tried {
    let system = Node::new(&setup.config.host);
    if !system.initial_user_namespace() {
        return Tried::Unknown("inside a user namespace the kernel takes no device filter".to_owned());
    }
    let folder = folder(setup);
    container::sweep(&folder, path);
    let numbers = match Numbers::read(&system) {
        Ok(numbers) => numbers,
        Err(why) => return Tried::Unknown(why),
    };
    let mut words = String::new();
    // A create fails by chance too: twice one after the other, and never without a list, it does not.
    for _ in 0..2 {
        match Container::create(&folder, path, true) {
            Ok(container) => return looked_at(&container, &numbers),
            Err(Failure::Other(why)) => return Tried::Unknown(why),
            Err(Failure::Refused(said)) => words = said,
        }
        if Container::create(&folder, path, false).is_err() {
            return Tried::Unknown(words);
        }
    }
    Tried::NoneWithList(words)
}

fn looked_at(container: &Container<'_>, numbers: &Numbers) -> Tried {
    let Some(start) = node::process::start_time(container.pid) else {
        return Tried::Unknown(ENDED.to_owned());
    };
    let seen = shim::filter(container.pid, &[container::ALLOWED], numbers);
    match seen {
        // The kernel shows a process that ended in the topmost group, which is open.
        _ if !node::process::is_alive(container.pid, start) => Tried::Unknown(ENDED.to_owned()),
        Ok(()) => Tried::Holds,
        Err(wrong @ (Wrong::Open(_) | Wrong::Absent)) => Tried::Open(wrong),
        Err(Wrong::Unfit(why) | Wrong::Unknown(why) | Wrong::Differs(why)) => Tried::Unknown(why),
    }
}
