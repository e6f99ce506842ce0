//! Becomes a program from a state that a test made up: descriptors, signals, limits, and whatever else the kernel hands on
//! through `execve`. The state is a JSON file (`tests/transparency/state.rs` writes it).
//!
//! Without Rust's own start-up code, whose changes would be part of every state. Judges nothing.
#![no_main]
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::io::{self, Write};

use serde_json::Value;

/// Descriptors are made up here, then moved to where they must be.
const ASIDE: c_int = 200;

// SAFETY: this program has no other `main`; the C start-up code calls it once with the kernel's words.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    if argc != 2 {
        return 2;
    }
    // SAFETY: the second of two words, each of which ends with NUL.
    let path = unsafe { CStr::from_ptr(*argv.add(1)) };
    let cause = match become_it(&path.to_string_lossy()) {
        Ok(never) => never,
        Err(cause) => cause,
    };
    let _ = writeln!(io::stderr(), "quilt-launch: {cause}");
    126
}

/// Gives why the program could not be started.
fn become_it(path: &str) -> io::Result<io::Error> {
    let state: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let program = c_string(state["program"].as_str().unwrap_or_default().as_bytes())?;
    let (words, env) = (strings(&state["words"])?, strings(&state["env"])?);
    let (word_pointers, env_pointers) = (pointers(&words), pointers(&env));
    process(&state)?;
    descriptors(&state)?;
    limits(&state)?;
    signals(&state)?;
    for number in numbers(&state["closed"]) {
        // SAFETY: closes a number; nothing here uses it any more.
        unsafe { libc::close(number) };
    }
    // SAFETY: both lists end with null, and their strings live until execve has copied them.
    unsafe { libc::execve(program.as_ptr(), word_pointers.as_ptr(), env_pointers.as_ptr()) };
    Ok(io::Error::last_os_error())
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(io::Error::other)
}

/// Strings as lists of bytes; `$$` at the end of one is our number.
fn strings(list: &Value) -> io::Result<Vec<CString>> {
    let mut found = Vec::new();
    for item in list.as_array().into_iter().flatten() {
        let bytes: Vec<u8> = numbers(item).filter_map(|byte| u8::try_from(byte).ok()).collect();
        let bytes = match bytes.strip_suffix(b"$$") {
            Some(name) => [name, std::process::id().to_string().as_bytes()].concat(),
            None => bytes,
        };
        found.push(c_string(&bytes)?);
    }
    Ok(found)
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

fn numbers(list: &Value) -> impl Iterator<Item = c_int> {
    list.as_array().into_iter().flatten().map(number)
}

fn number(value: &Value) -> c_int {
    value.as_i64().and_then(|number| number.try_into().ok()).unwrap_or(0)
}

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// What a process is beside its descriptors and signals.
fn process(state: &Value) -> io::Result<()> {
    let of = |key: &str| number(&state[key]);
    std::env::set_current_dir(state["cwd"].as_str().unwrap_or("/"))?;
    std::fs::write("/proc/self/oom_score_adj", of("oom").to_string())?;
    // SAFETY: calls with numbers alone, and one with a set that is made of zeros and lives through the call.
    unsafe {
        libc::umask(of("umask").unsigned_abs());
        checked(libc::setpriority(libc::PRIO_PROCESS, 0, of("nice")))?;
        if of("batch") == 1 {
            let plain: libc::sched_param = std::mem::zeroed();
            checked(libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const plain))?;
        }
        if of("processor") >= 0 {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(of("processor").unsigned_abs() as usize, &mut set);
            checked(libc::sched_setaffinity(0, size_of_val(&set), &raw const set))?;
        }
        checked(libc::personality(of("personality").unsigned_abs().into()))?;
        for capability in numbers(&state["dropped"]) {
            checked(libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0))?;
        }
        if of("no_new_privs") == 1 {
            checked(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        }
        checked(libc::prctl(libc::PR_SET_TIMERSLACK, of("slack"), 0, 0, 0))?;
        checked(libc::prctl(libc::PR_SET_PDEATHSIG, of("death_signal"), 0, 0, 0))?;
        match of("group") {
            1 => checked(libc::setpgid(0, 0))?,
            2 => checked(libc::setsid())?,
            _ => 0,
        };
    }
    Ok(())
}

/// Each is `[number, kind, 1: closed by execve]`; pipes and pairs of sockets take the number behind it, too.
fn descriptors(state: &Value) -> io::Result<()> {
    for item in state["open"].as_array().into_iter().flatten() {
        let (at, flags) = (number(&item[0]), if number(&item[2]) == 1 { libc::O_CLOEXEC } else { 0 });
        let mut pair = [-1; 2];
        // SAFETY: names that end with NUL, and a pair that lives through the call.
        unsafe {
            match item[1].as_str().unwrap_or_default() {
                "pipe" => checked(libc::pipe(pair.as_mut_ptr()))?,
                "sockets" => checked(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()))?,
                kind => {
                    pair[0] = opened(kind)?;
                    0
                }
            };
        }
        for (at, fd) in (at..).zip(pair).filter(|(_, fd)| *fd >= 0) {
            // SAFETY: moves a number that is ours.
            unsafe {
                let aside = checked(libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, ASIDE))?;
                libc::close(fd);
                checked(libc::dup3(aside, at, flags))?;
                libc::close(aside);
            }
        }
    }
    Ok(())
}

fn opened(kind: &str) -> io::Result<c_int> {
    // SAFETY: names that end with NUL.
    unsafe {
        checked(match kind {
            "event" => libc::eventfd(7, 0),
            "folder" => libc::open(c"/usr".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY),
            "null" => libc::open(c"/dev/null".as_ptr(), libc::O_RDWR),
            "append" => libc::open(c"written".as_ptr(), libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND, 0o600),
            "path" => libc::open(c"/etc".as_ptr(), libc::O_PATH),
            _ => {
                let fd = libc::open(c"/etc/passwd".as_ptr(), libc::O_RDONLY);
                libc::lseek(fd, 5, libc::SEEK_SET);
                fd
            }
        })
    }
}

/// Each is `[resource, soft]`; the hard limit stays.
fn limits(state: &Value) -> io::Result<()> {
    for item in state["limits"].as_array().into_iter().flatten() {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let resource = number(&item[0]).unsigned_abs();
        // SAFETY: a struct that lives through both calls.
        unsafe {
            checked(libc::getrlimit(resource, &raw mut limit))?;
            limit.rlim_cur = item[1].as_u64().unwrap_or(0).min(limit.rlim_max);
            checked(libc::setrlimit(resource, &raw const limit))?;
        }
    }
    Ok(())
}

/// Ignored, blocked, and then pending ones.
fn signals(state: &Value) -> io::Result<()> {
    // SAFETY: calls with numbers, and with a set that lives through them.
    unsafe {
        for signal in numbers(&state["ignored"]) {
            libc::signal(signal, libc::SIG_IGN);
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        for signal in numbers(&state["blocked"]) {
            libc::sigaddset(&raw mut set, signal);
        }
        checked(libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()))?;
        for signal in numbers(&state["pending"]) {
            checked(libc::kill(libc::getpid(), signal))?;
        }
    }
    Ok(())
}
