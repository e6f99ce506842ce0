//! Running a program to its end, with a time limit.
//!
//! Output goes through files, never pipes: a container started by the program keeps its output open
//! after the program has ended, and a reader of a pipe would wait for that container.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::error::{Context, Error, Result};
use crate::sys;

/// How often a program that does not end is reminded that a child may have.
const REMINDER: Duration = Duration::from_secs(2);

/// How a program ended and what it said.
#[derive(Debug)]
pub struct Ran {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it had written to standard output when it ended.
    pub stdout: String,
    /// What it had written to standard error when it ended.
    pub stderr: String,
    /// The command line, for messages.
    pub command: String,
}

impl Ran {
    /// Whether the exit status is 0.
    pub fn ok(&self) -> bool {
        self.status.success()
    }

    /// This, if the exit status is 0.
    ///
    /// # Errors
    /// The command, its status and its last words.
    pub fn checked(self) -> Result<Self> {
        if self.ok() {
            return Ok(self);
        }
        Err(Error::new(format!("{}: {}: {}{}", self.command, self.status, self.stderr, self.stdout)))
    }
}

/// Runs `command` to its end, at most `limit`, with nothing on standard input unless the command
/// says otherwise through `stdin`.
///
/// # Errors
/// It cannot be started, or did not end in time (its process group is then killed).
pub fn run(command: &mut Command, stdin: Option<File>, limit: Duration) -> Result<Ran> {
    let unnamed = || tempfile::tempfile().cannot(|| "make a temporary file".into());
    let (out, err) = (unnamed()?, unnamed()?);
    run_into(command, stdin, (out, err), limit)
}

/// [`run`], with the output going to these files, which are read back from their beginning.
pub(crate) fn run_into(
    command: &mut Command,
    stdin: Option<File>,
    (mut out, mut err): (File, File),
    limit: Duration,
) -> Result<Ran> {
    let line = command_line(command);
    let twin = |f: &File| f.try_clone().cannot(|| "duplicate a descriptor".into());
    let mut child = command
        .stdin(stdin.map_or_else(Stdio::null, Stdio::from))
        .stdout(twin(&out)?)
        .stderr(twin(&err)?)
        .process_group(0)
        .spawn()
        .cannot(|| format!("start {line}"))?;
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_micros(500);
    let mut reminder = Instant::now() + REMINDER;
    let status = loop {
        if let Some(status) = child.try_wait().cannot(|| format!("wait for {line}"))? {
            break status;
        }
        if Instant::now() >= deadline {
            kill_group(child.id());
            let _ = child.wait();
            return Err(Error::new(format!(
                "{line}: no end within {} s: {}{}",
                limit.as_secs(),
                read_back(&mut err)?,
                read_back(&mut out)?
            )));
        }
        if Instant::now() >= reminder {
            remind(child.id());
            reminder += REMINDER;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    };
    Ok(Ran { status, stdout: read_back(&mut out)?, stderr: read_back(&mut err)?, command: line })
}

/// What one run of a program took.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// From before it was started to after it had ended.
    pub wall: Duration,
    /// Processor time, its own and that of the processes it waited for.
    pub processor: Duration,
}

/// Runs a program to its end, however long that takes, with nothing to read or to write to, and measures it.
///
/// # Errors
/// It cannot be started, or does not exit with 0.
pub fn measured(command: &mut Command) -> Result<Used> {
    let line = command_line(command);
    let mut err = tempfile::tempfile().cannot(|| "make a temporary file".into())?;
    let twin = err.try_clone().cannot(|| "duplicate a descriptor".into())?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(twin);
    let begin = Instant::now();
    let child = command.spawn().cannot(|| format!("start {line}"))?;
    let (status, processor) = sys::wait_for(child.id()).cannot(|| format!("wait for {line}"))?;
    let wall = begin.elapsed();
    match status {
        0 => Ok(Used { wall, processor }),
        _ => Err(Error::new(format!("{line}: raw status {status}: {}", read_back(&mut err)?))),
    }
}

/// Runs a tool whose failure is the fixture's failure, for its standard output.
pub(crate) fn tool<const N: usize>(program: &str, args: [&str; N]) -> Result<String> {
    let limit = Duration::from_secs(60);
    Ok(run(Command::new(program).args(args), None, limit)?.checked()?.stdout)
}

/// A path as an argument; the harness makes its own paths and they are UTF-8.
pub(crate) fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::new(format!("path {} is not UTF-8", path.display())))
}

/// youki's `run` blocks its signals after it has started the container: who ends before that is never waited for. Another
/// SIGCHLD makes it look; nobody else takes notice of one.
fn remind(pid: u32) {
    if let Ok(pid) = i32::try_from(pid) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGCHLD);
    }
}

fn kill_group(leader: u32) {
    if let Ok(pid) = i32::try_from(leader) {
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

fn read_back(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).cannot(|| "read a program's output".into())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn command_line(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}
