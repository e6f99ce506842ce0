//! The operator's side of one call: configuration, folders, low-level runtime.
//!
//! Never fails: a container without GPUs starts whatever is wrong here. What is wrong is kept and refuses GPU requests.

use std::path::{Path, PathBuf};

use contract::config::{self, Config};
use contract::key::sha256;
use contract::{Code, Refusal};
use ledger::audit::{Audit, AuditError};

use crate::lowlevel;

/// Largest configuration file that is read, in bytes.
const MAX_CONFIG: usize = 256 << 10;

/// What our other programs are installed as.
const HOOK: &str = "quilt-gpu-hook";
const HELPER: &str = "quilt-gpu";

/// What the operator set, and what follows from it.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The configuration file, there or not.
    pub path: PathBuf,
    /// Its content; the defaults where it says nothing, or cannot be read.
    pub config: Config,
    /// The file's bytes; none when nothing of it counts.
    bytes: Vec<u8>,
    /// Why the file does not count; then no GPU is granted, and containers without one go by what of it can be read.
    pub problem: Option<Refusal>,
    /// Whether this is the runtime of a user without root, who keeps books of their own and has GPUs of the broker alone.
    pub rootless: bool,
}

/// The folder that a user without root has for what ends with the session.
const USERS_FOLDER: &str = "XDG_RUNTIME_DIR";

impl Setup {
    /// Reads the configuration that the engine's environment names, or the default one.
    #[must_use]
    pub fn from_environment() -> Self {
        let Some(path) = std::env::var_os(config::PATH_VARIABLE).filter(|path| !path.is_empty()) else {
            return Self::read(Path::new(config::DEFAULT_PATH));
        };
        let mut setup = Self::read(Path::new(&path));
        if setup.problem.is_none() && setup.bytes.is_empty() && !setup.path.exists() {
            let message = format!("the configuration that {} names is not there", config::PATH_VARIABLE);
            let help = "make the file, or take the variable out of the engine's environment";
            let named = setup.path.display().to_string();
            setup.config = Config::unknown();
            setup.problem = Some(Refusal::new(Code::Internal, "config-missing", message, help).at("", named));
        }
        setup
    }

    /// Reads a configuration file. A file that is not there means the defaults.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let setup = |config, bytes, problem| Self { path: path.to_owned(), config, bytes, problem, rootless: false };
        let problem = |rule, why: &str, help| {
            let message = format!("the configuration does not count: {why}");
            Some(Refusal::new(Code::Internal, rule, message, help).at("", path.display().to_string()))
        };
        match node::read_trusted(path, MAX_CONFIG) {
            Ok(trusted) => {
                let (config, wrong) = Config::read(&trusted.bytes);
                let help = "mend that line; every key stands with its default in the file that was installed";
                let problem = wrong.and_then(|why| problem("config-invalid", &why, help));
                setup(config, trusted.bytes, problem)
            }
            Err(node::TrustError::Missing(_)) => setup(Config::default(), Vec::new(), None),
            Err(error) => {
                let help = "the file and every folder above it must belong to root and be writable by root alone";
                setup(Config::unknown(), Vec::new(), problem("config-untrusted", &error.to_string(), help))
            }
        }
    }

    /// The same for whoever runs this: a user without root cannot write the node's folders, and has one of their own. Where
    /// the environment names none, as that of engines' daemons, nothing is asked.
    #[must_use]
    pub(crate) fn of_this_user(self) -> Self {
        match std::env::var(USERS_FOLDER).ok().filter(|folder| folder.starts_with('/')) {
            Some(folder) if !node::process::is_nodes_root() => self.of_user(&folder),
            _ => self,
        }
    }

    /// The same for a user without root who has this folder.
    #[must_use]
    pub(crate) fn of_user(mut self, folder: &str) -> Self {
        let own = format!("{}/quilt-gpu", folder.trim_end_matches('/'));
        self.config.paths.log_dir = format!("{own}/log");
        (self.config.paths.state_dir, self.rootless) = (own, true);
        self
    }

    /// The folder of a user without root.
    #[must_use]
    pub(crate) fn users_folder(&self) -> Option<&Path> {
        self.state_dir().parent().filter(|_| self.rootless)
    }

    /// Digest of the policy in force: of the file's bytes, or of nothing when nothing of it counts.
    #[must_use]
    pub(crate) fn policy_digest(&self) -> String {
        sha256(&self.bytes)
    }

    /// The folder of the configuration file.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// The state folder.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        Path::new(&self.config.paths.state_dir)
    }

    /// The folder of the audit log.
    #[must_use]
    pub fn log_dir(&self) -> &Path {
        Path::new(&self.config.paths.log_dir)
    }

    /// The audit log, kept as the configuration says.
    ///
    /// # Errors
    /// As [`Audit::open`].
    pub fn audit(&self) -> Result<Audit, AuditError> {
        Audit::open(self.log_dir(), &self.config.audit)
    }

    /// Folders that no tenant may bind, links resolved where they exist: of the state, the log and the configuration.
    #[must_use]
    pub fn own_paths(&self) -> [String; 3] {
        let real = |folder: &Path| node::real_path(folder).unwrap_or_else(|_| folder.to_owned()).display().to_string();
        // No link leads to a file that was read as trusted.
        let folder = if self.bytes.is_empty() { real(self.folder()) } else { self.folder().display().to_string() };
        [real(self.state_dir()), real(self.log_dir()), folder]
    }

    /// Programs that run as root on this node for containers, links resolved where it matters: whoever writes one is root.
    #[must_use]
    pub(crate) fn programs(&self, low_level: Option<&Path>) -> Vec<String> {
        let real = |path: &Path| node::real_path(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
        let own = std::env::current_exe().unwrap_or_else(|_| "/usr/bin/quilt-gpu-runtime".into());
        // What lies beside the running program is found as it stands there.
        let beside = |path: PathBuf| {
            if path.parent() == own.parent() { path.display().to_string() } else { real(&path) }
        };
        let named = self.config.policy.allow_hooks.iter().map(Path::new).chain(low_level);
        let mut programs: Vec<String> = named.map(real).collect();
        let paths = &self.config.paths;
        let at = |configured, name| beside(configured_or_beside(configured, name, Some(&own)));
        programs.extend([at(&paths.hook, HOOK), at(&paths.helper, HELPER)]);
        programs.push(own.with_file_name("quilt-gpu-runtime").display().to_string());
        programs
    }

    /// The node's own program, for refreshing the inventory.
    #[must_use]
    pub fn helper(&self) -> PathBuf {
        configured_or_beside(&self.config.paths.helper, HELPER, None)
    }

    /// The hook's program.
    #[must_use]
    pub fn hook(&self) -> PathBuf {
        configured_or_beside(&self.config.paths.hook, HOOK, None)
    }

    /// The low-level runtime for new containers.
    ///
    /// # Errors
    /// `INTERNAL`, naming every place that was tried.
    pub fn low_level(&self) -> Result<PathBuf, Refusal> {
        lowlevel::find(&self.config.runtime.low_level, self.folder())
    }
}

/// `own` is the running program, where that is known.
fn configured_or_beside(configured: &str, name: &str, own: Option<&Path>) -> PathBuf {
    if !configured.is_empty() {
        return configured.into();
    }
    let own = own.map_or_else(std::env::current_exe, |own| Ok(own.to_owned()));
    let beside = own.ok().and_then(|exe| exe.parent().map(|folder| folder.join(name)));
    beside.filter(|path| path.exists()).unwrap_or_else(|| Path::new("/usr/bin").join(name))
}
