//! The last step inside a container: what is run is looked for where the container would, and becomes the process.
//!
//! libcontainer's own executor reorders the environment, keeps an ignored SIGPIPE and takes a script without interpreter for
//! one of the shell; and it gives what `exec` starts no seccomp filter. The filter is loaded here, as the last thing.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::CString;

use libcontainer::oci_spec::runtime::{LinuxSeccomp, Spec};
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{AccessFlags, access};

/// Runs a container's program.
#[derive(Clone, Default)]
pub(crate) struct Program {
    /// The filter of what `exec` starts; libcontainer loads that of a first process itself.
    pub(crate) seccomp: Option<LinuxSeccomp>,
    /// Whether it is one that `exec` starts, and if its terminal is passed on: who creates a container sees to both from
    /// outside.
    pub(crate) added: Option<bool>,
}

impl Executor for Program {
    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        found(words(spec), &environment(spec)).map(drop).map_err(ExecutorValidationError::ArgValidationError)
    }

    fn setup_envs(&self, envs: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        // What the spec does not have, like HOME and LISTEN_FDS, is taken from here.
        for (key, _) in std::env::vars_os() {
            // SAFETY: the process that libcontainer forked has one thread.
            unsafe { std::env::remove_var(key) };
        }
        for (key, value) in envs {
            // SAFETY: as above.
            unsafe { std::env::set_var(key, value) };
        }
        Ok(())
    }

    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let environment = environment(spec);
        let other = |why: String| ExecutorError::Other(why);
        let path = found(words(spec), &environment).map_err(other)?;
        let c = |text: &String| CString::new(text.as_bytes()).map_err(|_| ExecutorError::InvalidArg);
        let words: Vec<CString> = words(spec).iter().map(c).collect::<Result<_, _>>()?;
        let environment: Vec<CString> = environment.iter().map(c).collect::<Result<_, _>>()?;
        let program = c(&path)?;
        // SAFETY: no handler is installed, only the default put back that every container begins with.
        let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
        if let (Some(foreground), Some(process)) = (self.added, spec.process()) {
            let size = process.console_size().as_ref().map(|size| (size.height(), size.width()));
            crate::streams::of_this(process.user().uid(), size);
            if foreground {
                let _ = crate::terminal::leave_line_ends(std::io::stdin());
            }
        }
        if let Some(seccomp) = &self.seccomp {
            let loaded = libcontainer::seccomp::initialize_seccomp(seccomp);
            loaded
                .map_err(|cause| other(format!("cannot load the seccomp filter: {}", crate::report::chain(&cause))))?;
        }
        match nix::unistd::execve(&program, &words, &environment) {
            Ok(never) => match never {},
            Err(cause) => Err(other(format!("exec {path:?}: {}", said(cause)))),
        }
    }
}

fn words(spec: &Spec) -> &[String] {
    spec.process().as_ref().and_then(|process| process.args().as_deref()).unwrap_or_default()
}

/// In the spec's order, of each name the last value, as runc has it; then what libcontainer added.
fn environment(spec: &Spec) -> Vec<String> {
    let given = spec.process().as_ref().and_then(|process| process.env().as_deref()).unwrap_or_default();
    let name = |entry: &str| entry.split('=').next().unwrap_or_default().to_owned();
    let mut all: Vec<String> = Vec::new();
    for entry in given.iter().filter(|entry| entry.contains('=')) {
        match all.iter_mut().find(|old| name(old) == name(entry)) {
            Some(old) => old.clone_from(entry),
            None => all.push(entry.clone()),
        }
    }
    for key in ["HOME", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
        if let Ok(value) = std::env::var(key)
            && !all.iter().any(|entry| name(entry) == key)
            && (key != "LISTEN_FDNAMES" || std::env::var_os("LISTEN_FDS").is_some())
        {
            all.push(format!("{key}={value}"));
        }
    }
    all
}

/// Where the program lies, in the words of runc where it does not: engines look for them.
fn found(words: &[String], environment: &[String]) -> Result<String, String> {
    let name = words.first().filter(|name| !name.is_empty()).ok_or("args must not be empty")?;
    let usable = |path: &str| match std::fs::metadata(path) {
        Err(cause) => Err(Errno::from_raw(cause.raw_os_error().unwrap_or(libc::EIO))),
        Ok(meta) if !meta.is_file() => Err(Errno::EACCES),
        Ok(_) => access(path, AccessFlags::X_OK),
    };
    if name.contains('/') {
        return match usable(name) {
            Ok(()) => Ok(name.clone()),
            Err(cause @ Errno::EACCES) => Err(format!("exec: {name:?}: {}", said(cause))),
            Err(cause) => Err(format!("exec: {name:?}: stat {name}: {}", said(cause))),
        };
    }
    let path = environment.iter().rev().find_map(|entry| entry.strip_prefix("PATH=")).unwrap_or_default();
    let mut denied = false;
    // Nothing is no list of one empty folder, which would be the working one.
    for folder in path.split(':').filter(|_| !path.is_empty()) {
        let candidate = if folder.is_empty() { format!("./{name}") } else { format!("{folder}/{name}") };
        match usable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(cause) => denied |= cause == Errno::EACCES && std::fs::metadata(&candidate).is_ok_and(|m| m.is_file()),
        }
    }
    let why = if denied { "permission denied" } else { "executable file not found in $PATH" };
    Err(format!("exec: {name:?}: {why}"))
}

/// Go's words for errors.
fn said(cause: Errno) -> String {
    cause.desc().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_path_nothing_is_looked_for() {
        // Tests run in the package's folder.
        let program = std::env::current_exe().unwrap();
        let (folder, name) = (program.parent().unwrap(), program.file_name().unwrap().to_str().unwrap().to_owned());
        std::env::set_current_dir(folder).unwrap();
        let found = |environment: &[&str]| {
            let environment: Vec<String> = environment.iter().map(|entry| (*entry).to_owned()).collect();
            found(std::slice::from_ref(&name), &environment)
        };
        let here = Ok(format!("./{name}"));
        let missing = Err(format!("exec: {name:?}: executable file not found in $PATH"));
        assert_eq!(found(&[]), missing);
        assert_eq!(found(&["PATH="]), missing);
        assert_eq!(found(&["PATH=/nonesuch:"]), here);
        assert_eq!(found(&["PATH=", &format!("PATH={}", folder.display())]), Ok(program.display().to_string()));
    }
}
