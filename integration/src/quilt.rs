//! An installation of quilt-gpu on a fixture host: configuration, state and log folders, and the
//! program that an engine is told to run.
//!
//! Only writes what an operator would write; it knows the configuration's keys and nothing else.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::binaries::Binaries;
use crate::error::{Context, Result};
use crate::host::FakeHost;
use crate::process::{Ran, run, text};
use crate::runc::{Runc, script};

/// How long one call of the command line may take.
const LIMIT: Duration = Duration::from_secs(60);

/// What differs from the defaults.
#[derive(Clone, Debug)]
pub struct QuiltOptions {
    /// `[policy] verify`; off only for benchmarks and crash tests.
    pub verify: bool,
    /// Low-level runtimes in the order tried; the first is also the link that pass-through takes.
    pub low_level: Vec<PathBuf>,
    /// Further lines of config.toml, with their table headers.
    pub more: String,
}

impl Default for QuiltOptions {
    fn default() -> Self {
        Self { verify: true, low_level: vec!["/usr/sbin/runc".into()], more: String::new() }
    }
}

/// An installation in a folder.
#[derive(Clone, Debug)]
pub struct Quilt {
    /// The folder.
    pub folder: PathBuf,
    binaries: Binaries,
}

impl Quilt {
    /// Installs into `folder`, whose parents only root may write (see [`crate::Scratch`]).
    ///
    /// # Errors
    /// The path that could not be made.
    pub fn install(
        folder: impl Into<PathBuf>,
        host: &FakeHost,
        binaries: &Binaries,
        options: &QuiltOptions,
    ) -> Result<Self> {
        let folder = folder.into();
        for path in [&folder, &folder.join("state"), &folder.join("log")] {
            fs::create_dir_all(path).cannot(|| format!("create {}", path.display()))?;
        }
        let quilt = Self { folder, binaries: binaries.clone() };
        let config = quilt.config();
        fs::write(&config, config_toml(&quilt, host, options)?).cannot(|| format!("write {}", config.display()))?;
        if let Some(first) = options.low_level.first() {
            let link = quilt.folder.join("low-level-runtime");
            std::os::unix::fs::symlink(first, &link).cannot(|| format!("link {}", link.display()))?;
        }
        script(&quilt.runtime(), &wrapper(&config, &binaries.runtime)?)?;
        Ok(quilt)
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.folder.join("config.toml")
    }

    /// The state folder: inventory, leases, contracts.
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// The program for an engine's `runtimes` entry: the runtime, with the variable that leads it
    /// to the configuration, which such an entry cannot set.
    pub fn runtime(&self) -> PathBuf {
        self.folder.join("quilt-gpu")
    }

    /// The hook, for bundles that a test puts it into.
    pub fn hook(&self) -> &Path {
        &self.binaries.hook
    }

    /// The hooks for engines that keep their own runtime, as an operator installs them, led to this configuration.
    ///
    /// # Errors
    /// The path that could not be read or made.
    pub fn hooks(&self) -> Result<PathBuf> {
        let folder = self.folder.join("hooks.d");
        fs::create_dir_all(&folder).cannot(|| format!("create {}", folder.display()))?;
        let installed = crate::binaries::workspace().join("configs/hooks.d");
        for stage in ["precreate", "createRuntime", "poststop"] {
            let name = format!("zz-quilt-gpu-{stage}.json");
            let hook = fs::read_to_string(installed.join(&name)).cannot(|| format!("read {name}"))?;
            let hook = hook.replace("/usr/local/bin/quilt-gpu-hook", text(self.hook())?);
            let config = format!("\"{stage}\", \"--config\", \"{}\"],\n    \"env\"", text(&self.config())?);
            let hook = hook.replace(&format!("\"{stage}\"],\n    \"env\""), &config);
            fs::write(folder.join(&name), hook).cannot(|| format!("write {name}"))?;
        }
        Ok(folder)
    }

    /// The folders that its programs lie in.
    pub fn programs(&self) -> Vec<PathBuf> {
        let Binaries { runtime, hook, engine, helper } = &self.binaries;
        let folders = [runtime, hook, engine, helper].into_iter().filter_map(|program| program.parent());
        folders.map(Path::to_owned).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The variable that leads every binary to this configuration.
    pub fn env(&self) -> (&'static str, PathBuf) {
        ("QUILT_GPU_CONFIG", self.config())
    }

    /// The runtime itself, driven by its command line, with its state root in `folder`.
    ///
    /// # Errors
    /// `folder` cannot be made.
    pub fn runc(&self, folder: impl Into<PathBuf>) -> Result<Runc> {
        let (key, value) = self.env();
        Ok(Runc::new(&self.binaries.runtime, folder)?.env(key, value))
    }

    /// The command line under this configuration, for calls that a test makes by itself.
    pub fn command(&self) -> Command {
        let (key, value) = self.env();
        let mut command = Command::new(&self.binaries.helper);
        command.env(key, value);
        command
    }

    /// A call of the command line.
    ///
    /// # Errors
    /// It cannot be started or does not end in time. That it failed is in the result.
    pub fn cli(&self, args: &[&str]) -> Result<Ran> {
        run(self.command().args(args), None, LIMIT)
    }

    /// The audit log's records, oldest first.
    pub fn audit(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.folder.join("log/audit.jsonl")).unwrap_or_default();
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

fn config_toml(quilt: &Quilt, host: &FakeHost, options: &QuiltOptions) -> Result<String> {
    let mut low_level = Vec::new();
    for path in &options.low_level {
        low_level.push(quoted(path)?);
    }
    let mut toml = String::new();
    // The node is made up: its driver cannot be asked. Writing to a String cannot fail.
    let _ = write!(
        toml,
        "[paths]\nstate_dir = {}\nlog_dir = {}\nhelper = {}\nhook = {}\n\n\
         [host]\nroot = {}\ndriver_root = {}\ndev_root = {}\nnvml = \"off\"\n\n\
         [policy]\nverify = \"{}\"\n\n\
         [runtime]\nlow_level = [{}]\n\n{}",
        quoted(&quilt.state())?,
        quoted(&quilt.folder.join("log"))?,
        quoted(&quilt.binaries.helper)?,
        quoted(&quilt.binaries.hook)?,
        quoted(&host.root)?,
        quoted(&host.root)?,
        quoted(&host.root.join("dev"))?,
        if options.verify { "always" } else { "off" },
        low_level.join(", "),
        options.more,
    );
    Ok(toml)
}

fn wrapper(config: &Path, runtime: &Path) -> Result<String> {
    Ok(format!("#!/bin/sh\nexport QUILT_GPU_CONFIG='{}'\nexec '{}' \"$@\"\n", text(config)?, text(runtime)?))
}

/// A TOML basic string; JSON's escapes are a subset of TOML's.
fn quoted(path: &Path) -> Result<String> {
    Ok(Value::from(text(path)?).to_string())
}
