//! OCI bundles like the ones Docker makes, without Docker: the same capabilities, namespaces, masked
//! paths and device rules, for tests that give a runtime exactly one thing to judge.
//!
//! No rlimits: raising them needs a capability that build machines lack.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::{Context, Result};
use crate::rootfs::Rootfs;

/// Docker's default capabilities.
const CAPABILITIES: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// Numbers that every container may use; Docker's list: zero, null, urandom, random, tty, console.
const RULES: [(u64, u64); 6] = [(1, 5), (1, 3), (1, 9), (1, 8), (5, 0), (5, 1)];

/// A config.json in the making. Methods add what a tenant would; [`Spec::edit`] does the rest.
#[derive(Clone, Debug)]
pub struct Spec(Value);

impl Default for Spec {
    fn default() -> Self {
        Self::new()
    }
}

impl Spec {
    /// A container that runs `true`, with its root file system still to be named.
    pub fn new() -> Self {
        let namespaces = ["mount", "network", "uts", "pid", "ipc"].map(|kind| json!({"type": kind}));
        let mut rules = vec![json!({"allow": false, "access": "rwm"})];
        rules.extend(RULES.map(|(major, minor)| rule('c', Some(major), Some(minor), "rwm")));
        Self(json!({
            "ociVersion": "1.0.2-dev",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["true"],
                "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "cwd": "/",
                "capabilities": {
                    "bounding": CAPABILITIES,
                    "effective": CAPABILITIES,
                    "permitted": CAPABILITIES,
                },
            },
            "root": {"path": "rootfs"},
            "hostname": "test",
            "mounts": mounts(),
            "linux": {
                "resources": {"devices": rules},
                "namespaces": namespaces,
                "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            },
        }))
    }

    /// The command.
    #[must_use]
    pub fn args<S: AsRef<str>>(self, args: impl IntoIterator<Item = S>) -> Self {
        let args: Vec<Value> = args.into_iter().map(|arg| arg.as_ref().into()).collect();
        self.set("/process/args", args.into())
    }

    /// One more environment variable.
    #[must_use]
    pub fn env(self, key: &str, value: &str) -> Self {
        self.push("/process/env", format!("{key}={value}").into())
    }

    /// A recursive private bind mount; `options` come after those two.
    #[must_use]
    pub fn bind(self, source: &Path, destination: &str, options: &[&str]) -> Self {
        let options: Vec<&str> = ["rbind", "rprivate"].iter().chain(options).copied().collect();
        self.mount(json!({
            "destination": destination,
            "type": "bind",
            "source": source.to_string_lossy(),
            "options": options,
        }))
    }

    /// A mount entry as it stands.
    #[must_use]
    pub fn mount(self, entry: Value) -> Self {
        self.push("/mounts", entry)
    }

    /// An entry of linux.devices; nobody is allowed to open it by that alone.
    #[must_use]
    pub fn device(self, path: &str, kind: char, major: u64, minor: u64) -> Self {
        let entry = json!({
            "path": path, "type": kind.to_string(), "major": major, "minor": minor,
            "fileMode": 0o666, "uid": 0, "gid": 0,
        });
        self.push("/linux/devices", entry)
    }

    /// An allowing device rule at the end of the list; `None` is a wildcard.
    #[must_use]
    pub fn allow(self, kind: char, major: Option<u64>, minor: Option<u64>, access: &str) -> Self {
        self.rule(rule(kind, major, minor, access))
    }

    /// A device rule as it stands, at the end of the list.
    #[must_use]
    pub fn rule(self, entry: Value) -> Self {
        self.push("/linux/resources/devices", entry)
    }

    /// One more annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["annotations"][key] = value.into();
        self
    }

    /// One more capability, in every set.
    #[must_use]
    pub fn capability(self, name: &str) -> Self {
        ["bounding", "effective", "permitted"]
            .iter()
            .fold(self, |spec, set| spec.push(&format!("/process/capabilities/{set}"), name.into()))
    }

    /// A user namespace that maps `size` ids from `host` on to 0. The root file system's folders
    /// must let that user in.
    #[must_use]
    pub fn user_namespace(self, host: u32, size: u32) -> Self {
        let mapping = json!([{"containerID": 0, "hostID": host, "size": size}]);
        self.push("/linux/namespaces", json!({"type": "user"}))
            .set("/linux/uidMappings", mapping.clone())
            .set("/linux/gidMappings", mapping)
    }

    /// The container's cgroup.
    #[must_use]
    pub fn cgroup(self, path: &str) -> Self {
        self.set("/linux/cgroupsPath", path.into())
    }

    /// Any other change.
    #[must_use]
    pub fn edit(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.0);
        self
    }

    /// The document.
    pub fn json(&self) -> &Value {
        &self.0
    }

    /// Puts `value` at a JSON pointer whose parent exists.
    fn set(mut self, pointer: &str, value: Value) -> Self {
        if let Some((parent, key)) = pointer.rsplit_once('/')
            && let Some(parent) = self.0.pointer_mut(parent)
        {
            parent[key] = value;
        }
        self
    }

    /// Appends to the array at a JSON pointer, made where it is missing.
    fn push(self, pointer: &str, value: Value) -> Self {
        let mut list = self.0.pointer(pointer).cloned().unwrap_or_else(|| json!([]));
        if let Some(list) = list.as_array_mut() {
            list.push(value);
        }
        self.set(pointer, list)
    }
}

fn rule(kind: char, major: Option<u64>, minor: Option<u64>, access: &str) -> Value {
    let mut rule = json!({"allow": true, "type": kind.to_string(), "access": access});
    for (key, number) in [("major", major), ("minor", minor)] {
        if let Some(number) = number {
            rule[key] = number.into();
        }
    }
    rule
}

fn mounts() -> Value {
    let entry = |at: &str, kind: &str, options: &[&str]| json!({"destination": at, "type": kind, "source": kind, "options": options});
    json!([
        entry("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        entry("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        entry("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
        entry("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        entry("/sys/fs/cgroup", "cgroup", &["ro", "nosuid", "noexec", "nodev"]),
        entry("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        entry("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
    ])
}

/// A bundle on disk.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// The folder with config.json.
    pub path: PathBuf,
}

impl Bundle {
    /// A bundle with a copy of `rootfs` of its own, as engines give each container.
    ///
    /// # Errors
    /// The path that could not be made.
    pub fn new(path: impl Into<PathBuf>, spec: &Spec, rootfs: &Rootfs) -> Result<Self> {
        let bundle = Self::write(path.into(), spec)?;
        rootfs.copy_to(bundle.path.join("rootfs"))?;
        Ok(bundle)
    }

    /// A bundle whose root is `rootfs` itself, by absolute path.
    ///
    /// # Errors
    /// The path that could not be made.
    pub fn sharing(path: impl Into<PathBuf>, spec: &Spec, rootfs: &Rootfs) -> Result<Self> {
        let root = rootfs.path.to_string_lossy().into_owned();
        Self::write(path.into(), &spec.clone().set("/root/path", root.into()))
    }

    /// The path of config.json.
    pub fn config(&self) -> PathBuf {
        self.path.join("config.json")
    }

    /// The document as it is now.
    ///
    /// # Errors
    /// It cannot be read, or is no JSON.
    pub fn read(&self) -> Result<Value> {
        let path = self.config();
        let bytes = fs::read(&path).cannot(|| format!("read {}", path.display()))?;
        serde_json::from_slice(&bytes).cannot(|| format!("parse {}", path.display()))
    }

    /// The minors of the GPUs among its device entries, in order.
    ///
    /// # Errors
    /// As [`Bundle::read`].
    pub fn gpus(&self) -> Result<Vec<u64>> {
        let document = self.read()?;
        let devices = document.pointer("/linux/devices").and_then(Value::as_array);
        let path = |device: &Value| device["path"].as_str().map(str::to_owned);
        let minor = |device: &Value| path(device)?.strip_prefix("/dev/nvidia")?.parse().ok();
        let mut gpus: Vec<u64> = devices.into_iter().flatten().filter_map(minor).collect();
        gpus.sort_unstable();
        Ok(gpus)
    }

    fn write(path: PathBuf, spec: &Spec) -> Result<Self> {
        fs::create_dir_all(&path).cannot(|| format!("create {}", path.display()))?;
        let bundle = Self { path };
        let config = bundle.config();
        fs::write(&config, spec.0.to_string()).cannot(|| format!("write {}", config.display()))?;
        Ok(bundle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_land_where_the_specification_wants_them() {
        let spec = Spec::new()
            .args(["sh", "-c", "id"])
            .env("A", "b")
            .bind(Path::new("/srv"), "/data", &["ro"])
            .device("/dev/x", 'c', 195, 0)
            .allow('c', Some(195), None, "rw")
            .annotation("quilt.gpu/count", "1")
            .capability("CAP_SYS_ADMIN")
            .user_namespace(100_000, 65536)
            .cgroup("/t/x");
        let at = |pointer: &str| spec.json().pointer(pointer).cloned().unwrap_or_default();
        assert_eq!(at("/process/args"), json!(["sh", "-c", "id"]));
        assert_eq!(at("/process/env/1"), "A=b");
        assert_eq!(at("/mounts/7/options"), json!(["rbind", "rprivate", "ro"]));
        assert_eq!(at("/linux/devices/0/major"), 195);
        assert_eq!(at("/linux/resources/devices/7"), json!({"allow": true, "type": "c", "major": 195, "access": "rw"}));
        assert_eq!(at("/annotations/quilt.gpu~1count"), "1");
        assert_eq!(at("/process/capabilities/permitted/14"), "CAP_SYS_ADMIN");
        assert_eq!(at("/linux/gidMappings/0/hostID"), 100_000);
        assert_eq!(at("/linux/namespaces/5/type"), "user");
        assert_eq!(at("/linux/cgroupsPath"), "/t/x");
    }

    #[test]
    fn device_rules_begin_with_deny_all_and_name_no_gpu() {
        let spec = Spec::new();
        let rules = spec.json().pointer("/linux/resources/devices").unwrap();
        assert_eq!(rules[0], json!({"allow": false, "access": "rwm"}));
        assert!(rules.as_array().unwrap().iter().all(|rule| rule["major"] != 195));
    }
}
