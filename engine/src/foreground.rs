//! Waiting for a process that we started, with signals passed on to it.

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Waits for the process to end; its exit status, or 128 and the signal that ended it.
///
/// # Errors
/// Why we cannot wait.
pub(crate) fn wait(pid: i32) -> Result<i32, String> {
    let pid = Pid::from_raw(pid);
    let failed = |cause| format!("cannot wait for process {pid}: {cause}");
    // Blocked first, looked second: a child that ended in between is found by the look, and its signal is kept after it.
    let signals = SigSet::all();
    signals.thread_block().map_err(failed)?;
    loop {
        match waitpid(pid, Some(WaitPidFlag::WNOHANG)).map_err(failed)? {
            WaitStatus::Exited(_, status) => return Ok(status),
            WaitStatus::Signaled(_, signal, _) => return Ok(128 + signal as i32),
            _ => {}
        }
        match signals.wait().map_err(failed)? {
            Signal::SIGCHLD | Signal::SIGURG => {}
            // One that is gone will be told by its SIGCHLD.
            signal => drop(kill(pid, signal)),
        }
    }
}
