//! Runs a program that may hang, flood or be killed, and takes what it prints. It decides nothing about the answer.

use std::fmt;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// How long a killed program may take to go. One that sleeps in the kernel stays, and init takes it.
const GOING: Duration = Duration::from_secs(1);

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It did not end in time, and was killed.
    Slow(Duration),
    /// Anything else, in words.
    Failed(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slow(limit) => write!(f, "no answer within {} s", limit.as_secs()),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// What a program printed and whether it succeeded. It gets no environment but a path and a language, a process group of
/// its own, and is killed with all of that group when it prints more than `most` bytes or takes longer than `limit`.
pub(crate) fn output(command: &mut Command, limit: Duration, most: usize) -> Result<(Vec<u8>, bool), Trouble> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |what: &str, cause: &dyn fmt::Display| Trouble::Failed(format!("cannot {what} {program}: {cause}"));
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let until = Instant::now() + limit;
    let mut child = command.spawn().map_err(|cause| failed("start", &cause))?;
    let answer = match read(&mut child, until, most) {
        Ok(Some(bytes)) => ended(&mut child, until).map(|success| (bytes, success)),
        Ok(None) => Err(Trouble::Failed(format!("{program} prints more than {most} bytes"))),
        Err(Some(cause)) => Err(failed("read what is printed by", &cause)),
        Err(None) => Err(Trouble::Slow(limit)),
    };
    if answer.is_err() {
        kill(&mut child);
    }
    answer.map_err(|trouble| if let Trouble::Slow(_) = trouble { Trouble::Slow(limit) } else { trouble })
}

/// All that it prints until it closes its output; `Ok(None)` when that is too much, `Err(None)` when time is up.
fn read(child: &mut Child, until: Instant, most: usize) -> Result<Option<Vec<u8>>, Option<std::io::Error>> {
    let mut bytes = Vec::new();
    let Some(mut out) = child.stdout.take() else { return Ok(Some(bytes)) };
    let mut part = [0; 16 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut ready = [PollFd::new(out.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(0) => return Err(None),
            Err(nix::Error::EINTR) => continue,
            Err(cause) => return Err(Some(cause.into())),
            Ok(_) => {}
        }
        match out.read(&mut part).map_err(Some)? {
            0 => return Ok(Some(bytes)),
            read => bytes.extend_from_slice(part.get(..read).unwrap_or_default()),
        }
        if bytes.len() > most {
            return Ok(None);
        }
    }
}

/// Whether it succeeded, once it has ended.
fn ended(child: &mut Child, until: Instant) -> Result<bool, Trouble> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status.success()),
            Ok(None) if Instant::now() < until => sleep(Duration::from_millis(1)),
            Ok(None) => return Err(Trouble::Slow(Duration::ZERO)),
            Err(cause) => return Err(Trouble::Failed(format!("cannot wait for it: {cause}"))),
        }
    }
}

fn kill(child: &mut Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let _ = ended(child, Instant::now() + GOING);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<(String, bool), String> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).env("SECRET", "x");
        let answer = output(&mut command, limit, 1000).map_err(|trouble| trouble.to_string())?;
        Ok((String::from_utf8(answer.0).unwrap(), answer.1))
    }

    #[test]
    fn a_program_answers_fails_hangs_or_floods() {
        const LONG: Duration = Duration::from_secs(60);
        const SHORT: Duration = Duration::from_millis(100);
        assert_eq!(shell("echo a; exit 0", LONG), Ok(("a\n".into(), true)));
        assert_eq!(shell("echo a; exit 3", LONG), Ok(("a\n".into(), false)));
        assert_eq!(shell("echo $SECRET$PWD", LONG), Ok(("/\n".into(), true)));
        assert_eq!(shell("kill -9 $$", LONG), Ok((String::new(), false)));
        assert_eq!(shell("sleep 1000", SHORT), Err("no answer within 0 s".into()));
        assert_eq!(shell("exec >&-; sleep 1000", SHORT), Err("no answer within 0 s".into()));
        // Whoever it left behind holds the output open.
        assert_eq!(shell("sleep 1000 & exit 0", SHORT), Err("no answer within 0 s".into()));
        assert_eq!(shell("yes", LONG), Err("/bin/sh prints more than 1000 bytes".into()));
        let missing = output(&mut Command::new("/nonexistent"), LONG, 10).unwrap_err().to_string();
        assert!(missing.contains("cannot start /nonexistent: No such file"), "{missing}");
    }
}
