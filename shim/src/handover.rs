//! The words for the low-level runtime, and the ways of running it.

use std::ffi::{CString, OsStr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use contract::Refusal;
use guard::LowLevel;
use node::process;

use crate::argv::Call;
use crate::exec::{self, Output};
use crate::lowlevel::c_string;

/// Default state root of a runtime, where its containers' folders are.
fn default_root(low_level: &Path) -> PathBuf {
    // By the file's name alone: what the program calls itself may be found out between two calls for one container.
    let own = LowLevel::of(&low_level.to_string_lossy()).state_folder();
    let rootless =
        std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty() && !nix::unistd::geteuid().is_root());
    rootless.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join(own)
}

/// The state root as one absolute path without links, so that every spelling of it gives the same key.
pub(crate) fn state_root(named: Option<&str>, low_level: &Path) -> PathBuf {
    let named = named.map_or_else(|| default_root(low_level), PathBuf::from);
    let path = std::path::absolute(&named).unwrap_or(named);
    // The folder itself may not exist before the first container: resolve as far as there is something to resolve.
    for folder in path.ancestors() {
        if let Ok(real) = node::real_path(folder) {
            return path
                .strip_prefix(folder)
                .map_or(real.clone(), |rest| if rest.as_os_str().is_empty() { real } else { real.join(rest) });
        }
    }
    path
}

/// The engine's words, the program's name first.
pub(crate) struct Words(pub(crate) Vec<CString>);

impl Words {
    /// From the words as they came.
    pub(crate) fn of<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Self {
        Self(words.into_iter().map(c_string).collect())
    }

    /// Adds a flag directly behind the verb.
    pub(crate) fn with_flag(mut self, call: &Call<'_>, flag: &str, value: &Path) -> Self {
        let at = call.verb_index + 2;
        self.0.splice(at..at, [c_string(flag.as_bytes()), c_string(value.as_os_str().as_encoded_bytes())]);
        self
    }

    /// Takes out the flag whose value stands in word `index` (counted without the program's name).
    pub(crate) fn without_flag(mut self, index: usize) -> Self {
        let inline = self.0.get(index + 1).is_some_and(|word| word.as_bytes().starts_with(b"-"));
        let first = if inline { index + 1 } else { index };
        if index + 1 < self.0.len() {
            self.0.drain(first..=index + 1);
        }
        self
    }

    /// Replaces the value that stands in word `index` (counted without the program's name).
    pub(crate) fn with_value(mut self, index: usize, value: &str) -> Self {
        if let Some(word) = self.0.get_mut(index + 1) {
            let flag = word.as_bytes().iter().position(|b| *b == b'=').filter(|_| word.as_bytes().starts_with(b"-"));
            let inline = flag.and_then(|end| word.as_bytes().get(..=end)).map(<[u8]>::to_vec).unwrap_or_default();
            *word = c_string(&[inline.as_slice(), value.as_bytes()].concat());
        }
        self
    }
}

/// Becomes the low-level runtime. Returns only on failure.
pub(crate) fn become_runtime(low_level: &Path, words: &Words) -> Refusal {
    let path = c_string(low_level.as_os_str().as_encoded_bytes());
    let error = exec::exec(&path, &words.0);
    Refusal::internal("exec", &format_args!("start {}: {error}", low_level.display()))
}

/// Runs the low-level runtime as a child and gives its status.
pub(crate) fn run_runtime(low_level: &Path, words: &Words) -> Result<i32, Refusal> {
    let path = c_string(low_level.as_os_str().as_encoded_bytes());
    exec::run(&path, &words.0, None, Output::Inherit)
        .map_err(|error| Refusal::internal("spawn", &format_args!("start {}: {error}", low_level.display())))
}

/// How often a container is told to go.
const TRIES: usize = 5;

/// Removes a container that was created and must not run. youki gives up where its process takes long to die (seen under
/// load): it is told again. Best effort: the lease stays held while the container exists.
pub(crate) fn delete_forced(low_level: &Path, root: &Path, id: &str) {
    let path = c_string(low_level.as_os_str().as_encoded_bytes());
    let words = [low_level.as_os_str(), OsStr::new("--root"), root.as_os_str()];
    let words = words.into_iter().chain(["delete", "--force", id].map(OsStr::new));
    let words = Words::of(words.map(OsStr::as_encoded_bytes));
    for pause in 0..TRIES {
        std::thread::sleep(Duration::from_millis(100 * pause as u64));
        let _ = exec::run(&path, &words.0, None, Output::Null);
        if std::fs::symlink_metadata(root.join(id)).is_err() {
            return;
        }
    }
}

/// The pid that a pid file holds.
pub(crate) fn read_pid(file: &Path) -> Result<process::Process, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("read {}: {e}", file.display()))?;
    let pid: u32 = text.trim().parse().map_err(|_| format!("{} holds no process number", file.display()))?;
    process::of(pid).ok_or_else(|| format!("process {pid} of {} is gone", file.display()))
}
