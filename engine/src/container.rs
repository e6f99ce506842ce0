//! A container as its state folder has it: what libcontainer keeps there, and beside it what libcontainer does not.

use std::fs;
use std::path::{Path, PathBuf};

use libcgroups::common::{AnyCgroupManager, CgroupConfig, create_cgroup_manager};
use libcontainer::container::{Container, ContainerStatus};
use serde_json::{Value, json};

use crate::report::chain;

/// Where states are unless the engine says otherwise.
pub(crate) const DEFAULT_ROOT: &str = "/run/quilt-gpu-engine";

/// Beside libcontainer's files: when the first process began, and the root file system.
const BESIDE: &str = "engine.json";

/// An id that cannot leave the state root.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn valid(id: &str) -> Result<(), String> {
    let fine = id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_+-.".contains(&b));
    if id.is_empty() || !fine || id == "." || id == ".." || id.len() > 1024 {
        return Err(format!("invalid container ID {id:?}: letters, digits, _, +, - and . make one"));
    }
    Ok(())
}

/// One container.
pub(crate) struct Known {
    pub(crate) inner: Container,
    beside: Value,
}

impl Known {
    /// Loads a container.
    ///
    /// # Errors
    /// That it does not exist, in the words that engines look for, or why its state cannot be read.
    pub(crate) fn load(root: &Path, id: &str) -> Result<Self, String> {
        valid(id)?;
        let folder = root.join(id);
        if !folder.join("state.json").exists() {
            return Err("container does not exist".into());
        }
        let inner = Container::load(folder.clone())
            .map_err(|cause| format!("cannot read the state of {id} in {}: {}", folder.display(), chain(&cause)))?;
        let beside = fs::read(folder.join(BESIDE)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mut known = Self { inner, beside: beside.unwrap_or_default() };
        // A process that began at another time is another process with the same number.
        if let (Some(began), Some(pid)) = (known.beside["began"].as_u64(), known.pid())
            && began_at(pid) != Some(began)
        {
            known.inner.set_status(ContainerStatus::Stopped);
        }
        Ok(known)
    }

    /// Writes what libcontainer does not keep.
    ///
    /// # Errors
    /// Why it cannot be written.
    pub(crate) fn remember(container: &Container, rootfs: &Path) -> Result<(), String> {
        let began = container.pid().and_then(|pid| began_at(pid.as_raw()));
        let text = json!({ "began": began, "rootfs": rootfs }).to_string();
        let path = container.root.join(BESIDE);
        fs::write(&path, text).map_err(|cause| format!("cannot write {}: {cause}", path.display()))
    }

    /// The first process, also one that is gone.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.inner.pid().map(|pid| pid.as_raw())
    }

    /// In runc's words.
    pub(crate) fn status(&self) -> &'static str {
        match self.inner.status() {
            ContainerStatus::Creating => "creating",
            ContainerStatus::Created => "created",
            ContainerStatus::Running => "running",
            ContainerStatus::Stopped => "stopped",
            ContainerStatus::Paused => "paused",
        }
    }

    /// Its control groups.
    ///
    /// # Errors
    /// Why they cannot be reached.
    pub(crate) fn groups(&self) -> Result<AnyCgroupManager, String> {
        let failed = |cause: &dyn std::error::Error| {
            format!("cannot reach the control groups of {}: {}", self.inner.id(), chain(cause))
        };
        let config = self.inner.spec().map_err(|cause| failed(&cause))?;
        let config = CgroupConfig {
            cgroup_path: config.cgroup_path,
            systemd_cgroup: self.inner.systemd(),
            container_name: self.inner.id().to_owned(),
        };
        create_cgroup_manager(config).map_err(|cause| failed(&cause))
    }

    /// What `state` prints, with runc's fields.
    pub(crate) fn state(&self) -> Value {
        let state = &self.inner.state;
        let alive = self.inner.status() != ContainerStatus::Stopped;
        let mut shown = json!({
            "ociVersion": state.oci_version,
            "id": state.id,
            "pid": if alive { self.pid().unwrap_or(0) } else { 0 },
            "status": self.status(),
            "bundle": state.bundle,
            "rootfs": self.beside.get("rootfs").cloned().unwrap_or_else(|| state.bundle.join("rootfs").display().to_string().into()),
            "created": state.created.unwrap_or_default().to_rfc3339_opts(chrono::SecondsFormat::Nanos, true),
            "owner": self.inner.creator().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        });
        if let (Some(annotations), Some(map)) =
            (state.annotations.as_ref().filter(|a| !a.is_empty()), shown.as_object_mut())
        {
            map.insert("annotations".into(), json!(annotations));
        }
        shown
    }
}

/// A state as text, its fields in runc's order.
pub(crate) fn text(state: &Value, pretty: bool) -> String {
    const ORDER: [&str; 9] =
        ["ociVersion", "id", "pid", "status", "bundle", "rootfs", "created", "annotations", "owner"];
    let (before, between, behind) = if pretty { ("{\n  ", ",\n  ", "\n}") } else { ("{", ",", "}") };
    let colon = if pretty { ": " } else { ":" };
    let field = |key: &&str| state.get(key).map(|value| format!("\"{key}\"{colon}{value}"));
    format!("{before}{}{behind}", ORDER.iter().filter_map(field).collect::<Vec<_>>().join(between))
}

/// All containers of a state root, by their ids.
pub(crate) fn all(root: &Path) -> Vec<Known> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let mut ids: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    ids.sort();
    ids.iter().filter_map(|id| Known::load(root, id).ok()).collect()
}

/// When a process began, in the kernel's ticks; nothing for one that is gone or has ended.
fn began_at(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(PathBuf::from(format!("/proc/{pid}/stat"))).ok()?;
    let mut rest = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = rest.next()?;
    (!matches!(state, "Z" | "X")).then(|| rest.nth(18)?.parse().ok())?
}
