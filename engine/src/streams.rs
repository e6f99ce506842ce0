//! A process's standard streams belong to its user, and its terminal has the size that was asked for: programs open
//! `/dev/stdout` anew. What cannot be given stays as it is, as under runc.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{stderr, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown, fchown};

use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

/// `/dev/null`, which is everybody's.
const NULL: u64 = libc::makedev(1, 3);

fn wanted(meta: &Metadata, user: u32) -> bool {
    meta.uid() != user && meta.rdev() != NULL
}

/// For a container that is created and has not started.
pub(crate) fn of_created(pid: i32, spec: &Value) {
    let Some(user) = user(pid) else { return };
    for stream in 0..3 {
        let path = format!("/proc/{pid}/fd/{stream}");
        if fs::metadata(&path).is_ok_and(|meta| wanted(&meta, user)) {
            let _ = chown(&path, Some(user), None);
        }
    }
    if spec.pointer("/process/terminal") == Some(&Value::Bool(true))
        && let Some(size) = spec.pointer("/process/consoleSize")
        && let Ok(terminal) =
            OpenOptions::new().read(true).custom_flags(libc::O_NOCTTY).open(format!("/proc/{pid}/fd/0"))
    {
        let side = |key: &str| size[key].as_u64();
        if let (Some(height), Some(width)) = (side("height"), side("width")) {
            resize(&terminal, height, width);
        }
    }
}

/// For this process, which will be the program. `size`: height and width of its terminal.
pub(crate) fn of_this(user: u32, size: Option<(u64, u64)>) {
    let own = [
        stdin().as_fd().try_clone_to_owned(),
        stdout().as_fd().try_clone_to_owned(),
        stderr().as_fd().try_clone_to_owned(),
    ];
    for stream in own.into_iter().flatten().map(File::from) {
        if stream.metadata().is_ok_and(|meta| wanted(&meta, user)) {
            let _ = fchown(&stream, Some(user), None);
        }
    }
    if let Some((height, width)) = size {
        resize(stdin(), height, width);
    }
}

fn resize(terminal: impl AsFd, height: u64, width: u64) {
    if let (Ok(ws_row), Ok(ws_col)) = (height.try_into(), width.try_into()) {
        let _ = tcsetwinsize(terminal, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 });
    }
}

/// Who a process is, by our numbers: in a namespace of users its own are others.
fn user(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}
