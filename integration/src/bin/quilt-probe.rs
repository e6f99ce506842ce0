//! Runs inside containers under test and says what can be seen and opened there, one JSON value a
//! line. Dynamically linked on purpose: `dlopen` must go through the image's own loader.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use integration::probe;
use nix::unistd::{Gid, Uid, getgid, getuid, setfsgid, setfsuid};
use serde_json::{Value, json};

const USAGE: &str = "\
usage: quilt-probe devices [FOLDER]        nodes named nvidia* below FOLDER (/dev), and opening them
       quilt-probe numbers MAJOR LOW HIGH  own nodes of these numbers, and opening them
       quilt-probe dlopen NAME...          which file the loader takes for each name
       quilt-probe env | mounts
       quilt-probe all [MAJOR:LOW-HIGH | NAME | /PLACE]...   everything in one document; below each PLACE the
                                           nodes of these numbers by any name
       quilt-probe say SOCKET TEXT         what it answers, when nothing more is said
       quilt-probe crowd SOCKET NUMBER     so many connections that say one byte and no more, and sleeps
       quilt-probe connect SOCKET          whether anybody answers there: by the exit status
       quilt-probe sleep [SECONDS]
       quilt-probe hold PATH               keeps it open, without access, and sleeps
       quilt-probe leave PROCESSES PATH    makes PATH from the root folder of one of these that another user runs
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let report = match args.as_slice() {
        ["devices"] => probe::devices(Path::new("/dev")),
        ["devices", folder] => probe::devices(Path::new(folder)),
        ["numbers", major, low, high] => match range(major, low, high) {
            Some((major, low, high)) => probe::numbers('c', major, low, high),
            None => return usage(),
        },
        ["dlopen", names @ ..] => probe::libraries(names),
        ["env"] => vec![probe::environment()],
        ["mounts"] => probe::mounts(),
        ["all", what @ ..] => vec![everything(what)],
        ["connect", path] => return connect(path),
        ["say", path, text] => return status(say(path, text)),
        ["crowd", path, number] => match crowd(path, number) {
            Ok(_open) => sleep("60"),
            Err(_) => return ExitCode::FAILURE,
        },
        ["sleep"] => sleep("3600"),
        ["sleep", seconds] => sleep(seconds),
        ["hold", path] => match hold(path) {
            Ok(_open) => sleep("3600"),
            Err(_) => return ExitCode::FAILURE,
        },
        ["leave", processes, path] => return status(leave(Path::new(processes), path)),
        _ => return usage(),
    };
    match print(&report) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn everything(what: &[&str]) -> Value {
    let (places, what): (Vec<&str>, Vec<&str>) = what.iter().partition(|arg| arg.starts_with('/'));
    let (ranges, names): (Vec<&str>, Vec<&str>) = what.iter().partition(|arg| arg.contains(':'));
    let ranges: Vec<(u64, u64, u64)> = ranges
        .iter()
        .filter_map(|arg| {
            let (major, minors) = arg.split_once(':')?;
            let (low, high) = minors.split_once('-')?;
            range(major, low, high)
        })
        .collect();
    let numbers: Vec<Value> =
        ranges.iter().flat_map(|(major, low, high)| probe::numbers('c', *major, *low, *high)).collect();
    let found: Vec<Value> = places.iter().flat_map(|place| probe::nodes_of(Path::new(place), &ranges)).collect();
    json!({
        "devices": probe::devices(Path::new("/dev")),
        "numbers": numbers,
        "found": found,
        "libraries": probe::libraries(&names),
        "env": probe::environment(),
        "mounts": probe::mounts(),
    })
}

fn range(major: &str, low: &str, high: &str) -> Option<(u64, u64, u64)> {
    Some((major.parse().ok()?, low.parse().ok()?, high.parse().ok()?))
}

fn connect(path: &str) -> ExitCode {
    status(UnixStream::connect(path).map(|_| ()))
}

fn status(done: io::Result<()>) -> ExitCode {
    if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn say(path: &str, text: &str) -> io::Result<()> {
    let mut stream = UnixStream::connect(path)?;
    // Whoever hears enough of it may answer before its end.
    let _ = stream.write_all(text.as_bytes());
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let heard = stream.read_to_end(&mut answer);
    io::stdout().write_all(&answer)?;
    // What it did not hear resets the connection behind its answer.
    if answer.is_empty() { heard.map(|_| ()) } else { Ok(()) }
}

fn crowd(path: &str, number: &str) -> io::Result<Vec<UnixStream>> {
    let one = |_| {
        let mut stream = UnixStream::connect(path)?;
        // The other end may be closed already.
        let _ = stream.write_all(b"{");
        Ok(stream)
    };
    let open = (0..number.parse().unwrap_or(0)).map(one).collect();
    writeln!(io::stdout(), "there")?;
    open
}

fn sleep(seconds: &str) -> Vec<Value> {
    std::thread::sleep(Duration::from_secs(seconds.parse().unwrap_or(0)));
    Vec::new()
}

/// A descriptor of a device that no driver answers for.
fn hold(path: &str) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_PATH).open(path)
}

/// Goes into the folder of a process with its ids, and on from there with its own.
fn leave(processes: &Path, path: &str) -> io::Result<()> {
    let own = (getuid(), getgid());
    let become_user = |(user, group): (Uid, Gid)| {
        setfsgid(group);
        setfsuid(user);
    };
    for process in std::fs::read_dir(processes)?.flatten() {
        let Ok(facts) = process.metadata() else { continue };
        let others = (Uid::from_raw(facts.uid()), Gid::from_raw(facts.gid()));
        if others.0 != own.0 {
            become_user(others);
            let inside = std::env::set_current_dir(process.path().join("root"));
            become_user(own);
            if inside.is_ok() && File::create(path.trim_start_matches('/')).is_ok() {
                return Ok(());
            }
        }
    }
    Err(io::ErrorKind::PermissionDenied.into())
}

fn print(report: &[Value]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for value in report {
        writeln!(out, "{value}")?;
    }
    out.flush()
}

fn usage() -> ExitCode {
    let _ = io::stderr().write_all(USAGE.as_bytes());
    ExitCode::from(2)
}
