//! The operator's configuration, `/etc/quilt-gpu/config.toml`, as types with defaults.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::capability::Capabilities;
use crate::json::{Member, Node, Value};
use crate::read::{FromJson, ReadError};
use crate::{settings, word};

/// Where the configuration lies unless the engine's environment says otherwise.
pub const DEFAULT_PATH: &str = "/etc/quilt-gpu/config.toml";
/// Environment variable of the engine that names another configuration file.
pub const PATH_VARIABLE: &str = "QUILT_GPU_CONFIG";
/// Name of the link beside the configuration file that names the low-level runtime for verbs that are not ours.
pub const LOW_LEVEL_LINK: &str = "low-level-runtime";

/// The whole file. Every key has a default; an unknown key is an error.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// Where our own files lie.
    pub paths: Paths,
    /// Where the node's files lie.
    pub host: Host,
    /// What is allowed.
    pub policy: Policy,
    /// Which words count as a request.
    pub request: RequestPolicy,
    /// The low-level runtimes.
    pub runtime: Runtime,
}

/// `[paths]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// Inventory, leases and contracts; best on a tmpfs.
    pub state_dir: String,
    /// The audit log.
    pub log_dir: String,
    /// The `quilt-gpu` program; empty means: beside the running program, else `/usr/bin/quilt-gpu`.
    pub helper: String,
    /// The `quilt-gpu-hook` program; empty means: beside the running program.
    pub hook: String,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            state_dir: "/run/quilt-gpu".into(),
            log_dir: "/var/log/quilt-gpu".into(),
            helper: String::new(),
            hook: String::new(),
        }
    }
}

/// `[host]`: the whole node under another root, for driver containers and tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Where `/proc`, `/sys` of the node are.
    pub root: String,
    /// Where the driver's libraries and programs are; empty means `root`.
    pub driver_root: String,
    /// The folder that holds `nvidia0` and the like; empty means `dev` under `root`.
    pub dev_root: String,
}

impl Default for Host {
    fn default() -> Self {
        Self { root: "/".into(), driver_root: String::new(), dev_root: String::new() }
    }
}

impl Host {
    /// The root with the driver's files.
    #[must_use]
    pub fn driver_root(&self) -> &str {
        if self.driver_root.is_empty() { &self.root } else { &self.driver_root }
    }

    /// The folder with the device nodes.
    #[must_use]
    pub fn dev_root(&self) -> String {
        if self.dev_root.is_empty() { under(&self.root, "dev") } else { self.dev_root.clone() }
    }

    /// A path of the node: `path` is relative.
    #[must_use]
    pub fn path(&self, path: &str) -> String {
        under(&self.root, path)
    }
}

fn under(root: &str, path: &str) -> String {
    format!("{}/{path}", root.trim_end_matches('/'))
}

/// How strict the guard is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// Refuses roads to GPUs, leaves everything else alone.
    #[default]
    Standard,
    /// Also refuses what could weaken the boundary.
    Hardened,
}

/// Whether the created container is checked against its contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// Before anything of the tenant's runs.
    #[default]
    Always,
    /// Never: for benchmarks and crash tests only.
    Off,
}

/// What `CUDA_VISIBLE_DEVICES` is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CudaVisibleDevices {
    /// `0..n-1`: only granted GPUs are visible anyway.
    #[default]
    Index,
    /// The GPUs' UUIDs.
    Uuid,
    /// Left as the image has it.
    Unset,
}

/// `[policy]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// `standard` or `hardened`.
    pub profile: Profile,
    /// `always` or `off`.
    pub verify: Verify,
    /// Ceiling of driver capabilities, as a comma list.
    pub capabilities: CapabilityList,
    /// `index`, `uuid` or `unset`.
    pub cuda_visible_devices: CudaVisibleDevices,
    /// Whether `restore` of a container with GPUs may pass.
    pub allow_restore: bool,
    /// Named exceptions, by absolute mount source that may be bound although it is the host's `/dev`.
    pub allow_dev_mounts: Vec<String>,
}

/// A comma list of capabilities in the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CapabilityList(pub Capabilities);

impl FromJson for CapabilityList {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        let list = node.as_str().ok_or_else(|| ReadError::new("it must be a comma list in quotes"))?;
        Capabilities::parse(list).map(Self).map_err(|refusal| ReadError::new(refusal.to_string()))
    }
}

/// How `NVIDIA_VISIBLE_DEVICES` is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NvidiaVisibleDevices {
    /// Never a request.
    #[default]
    Ignore,
}

/// `[request]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestPolicy {
    /// Whether `QUILT_GPU_…` in the environment is a request (outside CRI; it cannot be told from an image's).
    pub environment: bool,
    /// Most GPUs that one request may have; 0 means no ceiling.
    pub max_per_container: u32,
    /// `ignore`.
    pub nvidia_visible_devices: NvidiaVisibleDevices,
    /// Seconds that a reservation is kept for its container.
    pub reservation_seconds: u64,
    /// The same for a container of a pod, between its restarts too.
    pub pod_reservation_seconds: u64,
}

impl Default for RequestPolicy {
    fn default() -> Self {
        Self {
            environment: true,
            max_per_container: 0,
            nvidia_visible_devices: NvidiaVisibleDevices::Ignore,
            reservation_seconds: 60,
            pod_reservation_seconds: 600,
        }
    }
}

/// `[runtime]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Runtime {
    /// Candidates in order; a name without `/` is looked up in the standard folders. We ourselves never count. Empty: what
    /// the link [`LOW_LEVEL_LINK`] names.
    pub low_level: Vec<String>,
}

settings!(Config { paths, host, policy, request, runtime });
settings!(Paths { state_dir, log_dir, helper, hook });
settings!(Host { root, driver_root, dev_root });
settings!(Policy { profile, verify, capabilities, cuda_visible_devices, allow_restore, allow_dev_mounts });
settings!(RequestPolicy {
    environment,
    max_per_container,
    nvidia_visible_devices,
    reservation_seconds,
    pod_reservation_seconds
});
settings!(Runtime { low_level });
word!(Profile { Standard = "standard", Hardened = "hardened" });
word!(Verify { Always = "always", Off = "off" });
word!(CudaVisibleDevices { Index = "index", Uuid = "uuid", Unset = "unset" });
word!(NvidiaVisibleDevices { Ignore = "ignore" });

impl Config {
    /// Reads the file's bytes.
    ///
    /// # Errors
    /// What is wrong: with line and column for TOML, by the key's path for its meaning.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
        let table = DeTable::parse(text).map_err(|e| e.to_string().trim_end().replace('\n', " "))?;
        let node = table_node(table.get_ref()).map_err(|e| e.to_string())?;
        let config = Self::from_json(&node).map_err(|e| e.to_string())?;
        config.checked()
    }

    /// What runs as root may not depend on the folder it was started in.
    fn checked(self) -> Result<Self, String> {
        let (paths, host) = (&self.paths, &self.host);
        for (key, path, may_be_empty) in [
            ("/paths/state_dir", &paths.state_dir, false),
            ("/paths/log_dir", &paths.log_dir, false),
            ("/paths/helper", &paths.helper, true),
            ("/paths/hook", &paths.hook, true),
            ("/host/root", &host.root, false),
            ("/host/driver_root", &host.driver_root, true),
            ("/host/dev_root", &host.dev_root, true),
        ] {
            if !(path.starts_with('/') || path.is_empty() && may_be_empty) {
                return Err(format!("{key}: {path:?} is not an absolute path"));
            }
        }
        // A mount's source is compared as it stands, and no engine writes one with a slash at its end.
        let plain = |path: &&String| path.starts_with('/') && !path.ends_with('/');
        if let Some(path) = self.policy.allow_dev_mounts.iter().find(|path| !plain(path)) {
            return Err(format!(
                "/policy/allow_dev_mounts: {path:?} is not an absolute path without a slash at its end"
            ));
        }
        if self.request.reservation_seconds == 0 || self.request.pod_reservation_seconds == 0 {
            return Err(
                "/request/reservation_seconds and pod_reservation_seconds: with 0 every reservation is over at once"
                    .to_owned(),
            );
        }
        Ok(self)
    }
}

/// A TOML table as the reader of documents takes it.
fn table_node<'t>(table: &'t DeTable<'_>) -> Result<Node<'t>, ReadError> {
    let member = |(key, value): (&'t Spanned<DeString<'_>>, &'t Spanned<DeValue<'_>>)| {
        let key = Cow::Borrowed(key.get_ref().as_ref());
        Ok(Member { key, start: value.span().start, value: value_node(value)? })
    };
    Ok(Node { span: 0..0, value: Value::Object(table.iter().map(member).collect::<Result<_, _>>()?) })
}

fn value_node<'t>(value: &'t Spanned<DeValue<'_>>) -> Result<Node<'t>, ReadError> {
    let made = match value.get_ref() {
        DeValue::String(text) => Value::String(Cow::Borrowed(text)),
        DeValue::Integer(number) if number.radix() == 10 => Value::Number(number.as_str()),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Array(items) => Value::Array(items.iter().map(value_node).collect::<Result<_, _>>()?),
        DeValue::Table(table) => return table_node(table),
        other => return Err(ReadError::new(format!("no key takes a {}", other.type_str()))),
    };
    Ok(Node { span: value.span(), value: made })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_is_all_defaults() {
        let config = Config::parse(b"").unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(config.host.dev_root(), "/dev");
        assert_eq!(config.policy.capabilities.0.list(), "compute,utility");
    }

    #[test]
    fn keys_are_checked() {
        let config =
            Config::parse(b"[host]\nroot = '/x'\n[policy]\nprofile='hardened'\ncapabilities='video,compute'\n")
                .unwrap();
        assert_eq!(config.host.dev_root(), "/x/dev");
        assert_eq!(config.policy.capabilities.0.list(), "compute,video");
        for (text, part) in [
            ("[host]\nrot='/'", "rot"),
            ("[paths]\nstate_dir='rel'", "/paths/state_dir: \"rel\" is not an absolute path"),
            ("[paths]\nlog_dir=''", "not an absolute path"),
            ("[host]\nroot='x'", "not an absolute path"),
            ("[policy]\nallow_dev_mounts=['/dev/']", "slash at its end"),
            ("[policy]\nallow_dev_mounts=['/dev', 'dev']", "\"dev\" is not an absolute path"),
            ("[request]\nreservation_seconds=0", "/request/reservation_seconds"),
            ("[request]\npod_reservation_seconds=0", "pod_reservation_seconds: with 0"),
            ("[policy]\nverify='no'", "verify"),
            ("[policy]\ncapabilities='x'", "not a driver capability"),
            ("[host", "line 1"),
        ] {
            let error = Config::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
