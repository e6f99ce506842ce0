//! Handing over to the low-level runtime: `execve` in our place, or a child that is waited for.
//!
//! Raw, because a program that stands between an engine and runc must change nothing it does not mean to change: same
//! words, same descriptors, same environment, same signal dispositions.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// The engine's words as the kernel gave them to `main`; ends with a null pointer.
#[derive(Clone, Copy)]
pub struct RawArgs {
    argc: c_int,
    argv: *const *const c_char,
}

impl RawArgs {
    /// Takes what `main` was called with.
    ///
    /// # Safety
    /// `argv` must hold `argc` pointers to NUL-ended strings and a null pointer after them, all alive for the process.
    pub unsafe fn new(argc: c_int, argv: *const *const c_char) -> Self {
        Self { argc, argv }
    }

    /// The words, the program's name first.
    pub fn words(self) -> impl Iterator<Item = &'static [u8]> {
        (0..usize::try_from(self.argc).unwrap_or(0)).map(move |i| {
            // SAFETY: by `new`, `argv[i]` for i < argc points to a NUL-ended string that lives as long as the process.
            unsafe { CStr::from_ptr(*self.argv.add(i)) }.to_bytes()
        })
    }

    /// Replaces this process by `path`, with the same words and environment.
    ///
    /// Returns only when that failed: the cause.
    pub fn exec(self, path: &CStr) -> std::io::Error {
        // SAFETY: all three pointers are valid by `new` and by libc's contract for `environ`.
        unsafe { libc::execve(path.as_ptr(), self.argv, environ.cast()) };
        std::io::Error::last_os_error()
    }
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Replaces this process by `path` with other words and the same environment. Returns the cause when that failed.
pub fn exec(path: &CStr, words: &[CString]) -> std::io::Error {
    let pointers = pointers(words);
    // SAFETY: `pointers` ends with null and its strings live until execve has copied them.
    unsafe { libc::execve(path.as_ptr(), pointers.as_ptr(), environ.cast()) };
    std::io::Error::last_os_error()
}

fn pointers(words: &[CString]) -> Vec<*const c_char> {
    words.iter().map(|w| w.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Where a child's standard descriptors go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// The same descriptors as ours.
    Inherit,
    /// `/dev/null`, all three.
    Null,
}

/// What the child needs between clone and exec; nothing in it allocates.
struct Start {
    path: *const c_char,
    words: *const *const c_char,
    env: *const *const c_char,
    parent: libc::pid_t,
    /// `LISTEN_PID=` with room for digits: rewritten in the child, which alone knows its number.
    listen_pid: Option<[u8; 32]>,
    null: bool,
    /// What SIGCHLD did when we were started.
    on_child: libc::sighandler_t,
    /// Signals that wait for us: a child has none of them, and it stands in our place.
    pending: libc::sigset_t,
    errno: c_int,
}

const LISTEN_PID: &[u8] = b"LISTEN_PID=";
const STACK: usize = 64 * 1024;

/// Runs `path` as a child that dies with us, and waits for it. The environment is ours, or `env` when given. Gives the status
/// it exits with; of one that a signal ended, less than nothing by that signal.
///
/// # Errors
/// When the child could not be started or waited for.
pub fn run(path: &CStr, words: &[CString], env: Option<&[CString]>, output: Output) -> std::io::Result<c_int> {
    let words = pointers(words);
    let mut env = match env {
        Some(list) => pointers(list),
        None => inherited(),
    };
    let listen_at = listen_pid_of_ours(&env);
    let mut start = Start {
        path: path.as_ptr(),
        words: words.as_ptr(),
        env: std::ptr::null(),
        // SAFETY: getpid cannot fail.
        parent: unsafe { libc::getpid() },
        listen_pid: listen_at.map(|_| [0; 32]),
        null: output == Output::Null,
        // An engine that ignores SIGCHLD would leave us no status to wait for.
        // SAFETY: sets a signal's default action.
        on_child: unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) },
        pending: match output {
            Output::Inherit => pending(),
            Output::Null => no_signals(),
        },
        errno: 0,
    };
    if let (Some(at), Some(buffer)) = (listen_at, start.listen_pid.as_mut())
        && let Some(slot) = env.get_mut(at)
    {
        *slot = buffer.as_ptr().cast();
    }
    start.env = env.as_ptr();
    let mut stack = vec![0_u128; STACK / 16];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack's upper end is passed, as clone wants; CLONE_VFORK keeps us (and `stack`, `start`) still until the
    // child has called execve or _exit; `child` touches nothing but `start` and calls only async-signal-safe functions.
    let pid = unsafe { libc::clone(child, stack.as_mut_ptr().add(stack.len()).cast(), flags, (&raw mut start).cast()) };
    let status = if pid < 0 { Err(std::io::Error::last_os_error()) } else { wait(pid) };
    // SAFETY: gives the signal back the action it had.
    unsafe { libc::signal(libc::SIGCHLD, start.on_child) };
    let status = status?;
    if start.errno != 0 { Err(std::io::Error::from_raw_os_error(start.errno)) } else { Ok(status) }
}

/// Our own environment's pointers.
fn inherited() -> Vec<*const c_char> {
    let mut out = Vec::new();
    // SAFETY: `environ` is null or ends with a null pointer, and nothing changes it: we have one thread.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            out.push(*at);
            at = at.add(1);
        }
    }
    out.push(std::ptr::null());
    out
}

/// The place of `LISTEN_PID=<us>`: socket activation meant for the runtime must name the process that becomes it.
fn listen_pid_of_ours(env: &[*const c_char]) -> Option<usize> {
    env.iter().position(|p| {
        // SAFETY: every non-null entry is a NUL-ended string of the environment.
        !p.is_null()
            && unsafe { CStr::from_ptr(*p) }
                .to_bytes()
                .strip_prefix(LISTEN_PID)
                .is_some_and(|v| v == std::process::id().to_string().as_bytes())
    })
}

extern "C" fn child(start: *mut c_void) -> c_int {
    // SAFETY: `run` passes a valid `Start` and stands still until we are gone; only system calls without locks follow.
    unsafe {
        let start = &mut *start.cast::<Start>();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::signal(libc::SIGCHLD, start.on_child);
        if libc::getppid() != start.parent {
            libc::_exit(1);
        }
        // They are blocked, or they would not be pending: they wait on.
        for signal in (1..=LAST_SIGNAL).filter(|signal| libc::sigismember(&raw const start.pending, *signal) == 1) {
            libc::kill(libc::getpid(), signal);
        }
        if let Some(buffer) = start.listen_pid.as_mut() {
            write_listen_pid(buffer, libc::getpid().unsigned_abs());
        }
        if start.null {
            let fd = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            for standard in 0..3 {
                libc::dup2(fd, standard);
            }
        }
        libc::execve(start.path, start.words, start.env);
        start.errno = *libc::__errno_location();
        libc::_exit(127)
    }
}

fn write_listen_pid(buffer: &mut [u8; 32], pid: u32) {
    let mut digits = [0_u8; 10];
    let mut used = 0;
    let mut rest = pid;
    for slot in &mut digits {
        *slot = b'0' + (rest % 10) as u8;
        rest /= 10;
        used += 1;
        if rest == 0 {
            break;
        }
    }
    let text = LISTEN_PID.iter().copied().chain(digits.into_iter().take(used).rev());
    for (slot, byte) in buffer.iter_mut().zip(text) {
        *slot = byte;
    }
}

const LAST_SIGNAL: c_int = 64;

fn no_signals() -> libc::sigset_t {
    // SAFETY: a set of bits, for which zeros are the empty one.
    unsafe { std::mem::zeroed() }
}

fn pending() -> libc::sigset_t {
    let mut set = no_signals();
    // SAFETY: a set that lives through the call. It cannot fail then.
    unsafe { libc::sigpending(&raw mut set) };
    set
}

/// The status to exit with after a child of [`run`]; where a signal ended it, the same signal ends us, whatever would become
/// of it otherwise. The child has left a core dump, or none was wanted.
#[must_use]
pub fn end_as(status: c_int) -> c_int {
    if status >= 0 {
        return status;
    }
    let mut set = no_signals();
    // SAFETY: calls with numbers, and with a set that lives through them.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::signal(-status, libc::SIG_DFL);
        libc::sigaddset(&raw mut set, -status);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::kill(libc::getpid(), -status);
    }
    // As a shell would say it: nothing else is left.
    128 - status
}

/// The child's exit status, or less than nothing by the signal that ended it.
fn wait(pid: libc::pid_t) -> std::io::Result<c_int> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place for waitpid's answer.
        let got = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if got == pid {
            return Ok(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) });
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn c(text: &str) -> CString {
        CString::new(text).unwrap()
    }

    #[test]
    fn children_give_their_status() {
        for (command, expected) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9)] {
            let status = run(c"/bin/sh", &[c("sh"), c("-c"), c(command)], None, Output::Null).unwrap();
            assert_eq!(status, expected, "{command}");
        }
        assert_eq!(
            run(c"/nowhere/at-all", &[c("x")], None, Output::Null).unwrap_err().raw_os_error(),
            Some(libc::ENOENT)
        );
    }

    #[test]
    fn an_ignored_sigchld_is_no_trouble_and_stays_ignored_in_the_child() {
        // SAFETY: sets and gives back a signal's action; nextest or not, no other test of this process relies on it.
        let before = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        // A shell would set the signal anew. SIGCHLD is 17: bit 16, the fifth digit from the end.
        let words = ["grep", "-q", "^SigIgn:.*[13579bdf]....$", "/proc/self/status"].map(c);
        let status = run(c"/bin/grep", &words, None, Output::Null);
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGCHLD, before) };
        assert_eq!(status.unwrap(), 0);
    }

    #[test]
    fn listen_pid_names_the_child() {
        let ours = c(&format!("LISTEN_PID={}", std::process::id()));
        let test = c("test \"$LISTEN_PID\" = $$");
        assert_eq!(run(c"/bin/sh", &[c("sh"), c("-c"), test.clone()], Some(&[ours]), Output::Null).unwrap(), 0);
        let other = c("LISTEN_PID=1");
        assert_eq!(run(c"/bin/sh", &[c("sh"), c("-c"), test], Some(&[other]), Output::Null).unwrap(), 1);
    }

    #[test]
    fn numbers_are_written_whole() {
        for pid in [1, 9, 10, 4_194_304, u32::MAX] {
            let mut buffer = [0; 32];
            write_listen_pid(&mut buffer, pid);
            assert_eq!(CStr::from_bytes_until_nul(&buffer).unwrap().to_str().unwrap(), format!("LISTEN_PID={pid}"));
        }
    }
}
