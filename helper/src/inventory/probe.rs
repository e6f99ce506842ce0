//! Whether device filters of the low-level runtime hold on this node: tried once, with a container that never runs.
//!
//! A container is created with a list that closes every GPU, its filter is read as that of any other container, and it is
//! removed. Nothing of it may stay behind, on any way out: what a killed probe left is swept by the next one.

mod container;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use contract::config::Verify;
use contract::inventory::{Filter, LowLevel};
use guard::{Numbers, System};
use node::{Mode, Node, write_atomic};
use shim::Setup;

use container::Container;

/// The lock of whoever looks at the node: probes would sweep each other's containers away.
pub(super) struct Turn {
    asked: SystemTime,
    _lock: File,
}

impl Turn {
    /// Waits for its turn.
    pub(super) fn wait(setup: &Setup) -> Result<Self, String> {
        let asked = SystemTime::now();
        let path = setup.state_dir().join("refresh.lock");
        let failed = |cause| format!("cannot lock {}: {cause}", path.display());
        let lock = File::options().create(true).append(true).open(&path).map_err(failed)?;
        lock.lock().map_err(failed)?;
        Ok(Self { asked, _lock: lock })
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
    let now = (node::file_id(low_level).ok()?, node::cgroup::version_of_filters().ok()?);
    shim::known(setup, low_level).filter(|known| (known.id, known.cgroup) == now)
}

fn folder(setup: &Setup) -> PathBuf {
    setup.state_dir().join("probe")
}

fn probed(setup: &Setup, path: &Path) -> Result<LowLevel, String> {
    let id = node::file_id(path).map_err(|cause| cause.to_string())?;
    let cgroup = node::cgroup::version_of_filters().map_err(|cause| cause.to_string())?;
    let (name, version) = container::calls_itself(&folder(setup), path);
    let (filter, reason) = tried(setup, path, &name, cgroup);
    Ok(LowLevel { path: path.display().to_string(), id, name, version, cgroup, filter, reason })
}

fn tried(setup: &Setup, path: &Path, name: &str, cgroup: u8) -> (Filter, Option<String>) {
    let system = Node::new(&setup.config.host);
    if !system.initial_user_namespace() {
        let reason = "inside a user namespace the kernel takes no device filter";
        return (Filter::NotEnforced, Some(reason.to_owned()));
    }
    let folder = folder(setup);
    container::sweep(&folder, path);
    let made = Numbers::read(&system).and_then(|numbers| {
        let container = Container::create(&folder, path, true)?;
        Ok(shim::filter(container.pid, &[container::ALLOWED], &numbers))
    });
    let made = match made {
        // It may make containers, but none that are closed.
        Err(words) if Container::create(&folder, path, false).is_ok() => {
            Ok(Err(format!("without a device list it makes containers, with one it does not: {words}")))
        }
        made => made,
    };
    let ways = guard::LowLevel::of(if name.is_empty() { path.to_str().unwrap_or_default() } else { name });
    match made {
        Ok(Ok(())) => (Filter::Enforced, None),
        Ok(Err(why)) if why.ends_with("no device filter is attached") => {
            (Filter::NotEnforced, Some(ways.lacks_filter(cgroup == 2).to_owned()))
        }
        Ok(Err(why)) => (Filter::NotEnforced, Some(why)),
        Err(why) => (Filter::NotTried, Some(why)),
    }
}
