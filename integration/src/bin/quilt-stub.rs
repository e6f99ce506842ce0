//! A low-level runtime that makes no container. `create` leaves the state folder that a real one leaves, so that leases
//! stay held, in a fraction of the time; and it can write down how it was called.
//!
//! It reads runc's words the simple way: the tests write them. Without Rust's own start-up code, which would hide closed
//! descriptors and the disposition of SIGPIPE.
//!
//! | variable | effect |
//! | --- | --- |
//! | `QUILT_STUB_REPORT` | a line of JSON is added to this file: words, environment, descriptors, signals |
//! | `QUILT_STUB_OUTPUT` | write this to standard output, and then to standard error |
//! | `QUILT_STUB_STATUS` | exit with this status |
//! | `QUILT_STUB_SIGNAL` | die by this signal after doing the work |
//! | `QUILT_STUB_SECONDS` | wait so long before doing the work |
//! | `QUILT_STUB_KILL` | die by SIGKILL, `before` or `after` doing the work |
//! | `QUILT_STUB_INIT` | the container's first process: `create` names it in the pid file … |
//! | `QUILT_STUB_CGROUP` | … and puts it into this cgroup's folder before the container is there |
#![no_main]
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Map, Value, json};

// SAFETY: this program has no other `main`; the C start-up code calls it once.
#[unsafe(no_mangle)]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    match played() {
        Ok(status) => status,
        Err(cause) => {
            let _ = writeln!(io::stderr(), "quilt-stub: {cause}");
            1
        }
    }
}

fn played() -> io::Result<c_int> {
    if let Some(path) = std::env::var_os("QUILT_STUB_REPORT") {
        report(Path::new(&path))?;
    }
    if let Some(seconds) = number("QUILT_STUB_SECONDS") {
        std::thread::sleep(Duration::from_secs(seconds));
    }
    die_if("before");
    if let Some(text) = std::env::var_os("QUILT_STUB_OUTPUT") {
        // Either may be closed.
        let _ = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
        let _ = io::stderr().write_all(text.as_bytes());
    }
    let call = Call::read(std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect());
    let status = call.carry_out()?;
    die_if("after");
    if let Some(signal) = number("QUILT_STUB_SIGNAL") {
        die_by(signal as c_int);
    }
    Ok(number("QUILT_STUB_STATUS").and_then(|n| n.try_into().ok()).unwrap_or(status))
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn die_if(moment: &str) {
    if std::env::var("QUILT_STUB_KILL").is_ok_and(|at| at == moment) {
        let _ = kill(Pid::this(), Signal::SIGKILL);
    }
}

/// Whatever becomes of this signal otherwise.
fn die_by(signal: c_int) {
    // SAFETY: calls with numbers, and with a set that is made of zeros and lives through them.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, signal);
        libc::signal(signal, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::kill(libc::getpid(), signal);
    }
}

/// What a test asked for.
struct Call {
    words: Vec<String>,
    folder: PathBuf,
}

impl Call {
    fn read(words: Vec<String>) -> Self {
        let root = value(&words, "--root").unwrap_or("/run/quilt-stub");
        let id = words.last().map_or("", String::as_str);
        let folder = Path::new(root).join(id);
        Self { words, folder }
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|w| w == word)
    }

    fn carry_out(&self) -> io::Result<c_int> {
        if self.has("create") {
            return self.create();
        }
        if self.has("run") {
            let status = self.create()?;
            return fs::remove_dir(&self.folder).map(|()| status);
        }
        if self.has("delete") {
            return match fs::remove_dir(&self.folder) {
                Err(_) if self.has("--force") => Ok(0),
                other => other.map(|()| 0),
            };
        }
        if self.has("state") {
            return Ok(c_int::from(!self.folder.is_dir()));
        }
        Ok(0)
    }

    fn create(&self) -> io::Result<c_int> {
        // The root alone: a stub that outlives its test must not bring the test's folder back.
        if let Some(root) = self.folder.parent() {
            let _ = fs::create_dir(root);
        }
        let init = std::env::var("QUILT_STUB_INIT").unwrap_or_else(|_| Pid::this().to_string());
        if let Some(group) = std::env::var_os("QUILT_STUB_CGROUP") {
            fs::write(Path::new(&group).join("cgroup.procs"), &init)?;
        }
        fs::create_dir(&self.folder)?;
        if let Some(file) = value(&self.words, "--pid-file") {
            fs::write(file, init)?;
        }
        Ok(0)
    }
}

fn value<'a>(words: &'a [String], flag: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == flag)?;
    words.get(at + 1).map(String::as_str)
}

/// How this process was started, as the kernel tells it.
fn report(file: &Path) -> io::Result<()> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or("").trim();
    let capabilities: Vec<&str> = status.lines().filter(|line| line.starts_with("Cap")).collect();
    let report = json!({
        "argv": list("/proc/self/cmdline")?,
        "env": list("/proc/self/environ")?,
        "fds": descriptors()?,
        "exe": fs::read_link("/proc/self/exe")?.to_string_lossy(),
        "cwd": std::env::current_dir()?.to_string_lossy(),
        "pid": std::process::id(),
        "umask": line("Umask:"),
        "blocked": line("SigBlk:"),
        "ignored": line("SigIgn:"),
        "caught": line("SigCgt:"),
        "no_new_privs": line("NoNewPrivs:"),
        "capabilities": capabilities,
        "groups": line("Groups:"),
        "limits": fs::read_to_string("/proc/self/limits")?,
        "oom": fs::read_to_string("/proc/self/oom_score_adj")?,
        "pending": [line("SigPnd:"), line("ShdPnd:")],
        "processors": line("Cpus_allowed_list:"),
        "personality": fs::read_to_string("/proc/self/personality")?,
        "slack": fs::read_to_string("/proc/self/timerslack_ns")?,
        "numbers": numbers(),
    });
    let mut out = File::options().create(true).append(true).open(file)?;
    out.write_all(format!("{report}\n").as_bytes())
}

/// What only system calls tell: who started us, whose group and session we are in, what we get when it dies; how we are
/// scheduled.
fn numbers() -> Value {
    let mut death_signal: c_int = 0;
    // SAFETY: calls without pointers but for one, to a number that lives through the call.
    unsafe {
        libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut death_signal);
        json!({
            "parent": libc::getppid(),
            "group": libc::getpgrp(),
            "session": libc::getsid(0),
            "death_signal": death_signal,
            "nice": libc::getpriority(libc::PRIO_PROCESS, 0),
            "policy": libc::sched_getscheduler(0),
        })
    }
}

/// The strings of a file in which each ends with NUL.
fn list(path: &str) -> io::Result<Vec<String>> {
    let bytes = fs::read(path)?;
    let ended = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    Ok(ended.split(|byte| *byte == 0).map(|text| text.escape_ascii().to_string()).collect())
}

/// Each open descriptor: what it is, and the kernel's words about it.
fn descriptors() -> io::Result<Map<String, Value>> {
    let mut found = Map::new();
    let own = format!("/proc/{}/fd", std::process::id());
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let target = fs::read_link(entry.path()).unwrap_or_default();
        // The descriptor through which this folder is being read.
        if target == Path::new(&own) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let facts = fs::read_to_string(format!("/proc/self/fdinfo/{name}"))?;
        let facts: Vec<&str> = facts.lines().filter(|l| l.starts_with("pos:") || l.starts_with("flags:")).collect();
        found.insert(name, json!([target.to_string_lossy(), facts]));
    }
    Ok(found)
}
