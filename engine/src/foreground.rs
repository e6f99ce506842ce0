//! Waiting for a process that we started, with signals passed on to it, and its terminal where it has one.

use std::io;
use std::os::fd::AsFd;

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};

use crate::life::send;
use crate::terminal::Terminal;

/// Waits for the process to end; its exit status, or 128 and the signal that ended it.
///
/// # Errors
/// Why we cannot wait.
pub(crate) fn wait(pid: i32, mut terminal: Option<Terminal>) -> Result<i32, String> {
    let failed = |cause: io::Error| format!("cannot wait for process {pid}: {cause}");
    // Blocked first, looked second: a child that ended in between is found by the look, and its signal is kept after it.
    let all = SigSet::all();
    all.thread_block().map_err(|cause| failed(cause.into()))?;
    let signals = SignalFd::with_flags(&all, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
    let signals = signals.map_err(|cause| failed(cause.into()))?;
    if let Some(terminal) = &mut terminal {
        terminal.raw()?;
    }
    loop {
        if let Some(status) = ended(pid).map_err(failed)? {
            if let Some(terminal) = &mut terminal {
                terminal.rest();
            }
            return Ok(status);
        }
        match &mut terminal {
            Some(terminal) => terminal.pass(signals.as_fd()).map_err(failed)?,
            None => drop(poll(&mut [PollFd::new(&signals, PollFlags::IN)], None)),
        }
        while let Ok(Some(told)) = signals.read_signal() {
            match (i32::try_from(told.ssi_signo).unwrap_or_default(), &terminal) {
                (libc::SIGCHLD | libc::SIGURG, _) => {}
                (libc::SIGWINCH, Some(terminal)) => terminal.resize(),
                // One that is gone will be told by its SIGCHLD.
                (signal, _) => drop(send(pid, signal)),
            }
        }
    }
}

fn ended(pid: i32) -> io::Result<Option<i32>> {
    Ok(match waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG))? {
        WaitStatus::Exited(_, status) => Some(status),
        WaitStatus::Signaled(_, signal, _) => Some(128 + signal as i32),
        _ => None,
    })
}
