//! What an engine is only sometimes: with a user namespace for every container, or without the test that started it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use integration::engine::{Ask, Docker, Engine};
use integration::{Error, Groups, Result, Rootfs, Scratch, root_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::life::plain;
use crate::traces::Traces;
use crate::{IMAGE, Place, write};

#[test]
fn docker_20_remapped() -> Result<()> {
    remapped("docker_20_remapped", "docker-20", Groups::Hybrid, "runc-nsr")
}

#[test]
fn docker_26_remapped() -> Result<()> {
    remapped("docker_26_remapped", "docker-26", Groups::Hybrid, "runc-1.1")
}

#[test]
fn docker_28_v2_remapped() -> Result<()> {
    remapped("docker_28_v2_remapped", "docker-28", Groups::V2, "runc-1.3")
}

fn remapped(test: &str, name: &str, groups: Groups, low_level: &str) -> Result<()> {
    let users = ["/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid"];
    let before = users.map(|path| fs::read(path).ok());
    let Some(mut place) = Place::new(test, low_level, groups)? else { return Ok(()) };
    place.ground.remapped = true;
    let Some((engine, folder)) = place.engine(test, name)? else { return Ok(()) };
    engine.import(IMAGE, &Rootfs::busybox(place.scratch.join("bb"))?, &[], &[])?;

    let mapped = |ask: &Ask| -> Result<Vec<String>> {
        let map = engine.run(ask)?.checked()?.stdout;
        Ok(map.split_whitespace().map(str::to_owned).collect())
    };
    assert_eq!(mapped(&plain("map", "cat /proc/self/uid_map"))?, ["0", "100000", "65536"]);
    let mut ask = plain("device", "test -c /dev/fuse && cat /proc/self/gid_map");
    ask.devices.push(PathBuf::from("/dev/fuse"));
    assert_eq!(mapped(&ask)?, ["0", "100000", "65536"]);
    engine.start(&plain("kept", "sleep 600"))?.checked()?;
    engine.restart("kept")?.checked()?;

    let traces = Traces::of(&folder);
    drop(engine);
    assert_eq!(traces.found(), Vec::<String>::new());
    assert!(before == users.map(|path| fs::read(path).ok()), "the machine's own users");
    Ok(())
}

/// Set for the process that is to be killed; the file in which it says where its engine is.
const CHILD: &str = "QUILT_HARNESS_CHILD";

#[test]
fn a_killed_test_leaves_nothing() -> Result<()> {
    let test = "a_killed_test_leaves_nothing";
    if let Some(note) = std::env::var_os(CHILD) {
        return live_until_killed(test, Path::new(&note));
    }
    if !root_for(test) {
        return Ok(());
    }
    let scratch = Scratch::new()?;
    let note = scratch.join("note");
    let program = std::env::current_exe().map_err(|e| Error::new(e.to_string()))?;
    let mut command = Command::new(program);
    command.args(["--exact", "others::a_killed_test_leaves_nothing"]).env(CHILD, &note);
    let mut child = command.stdout(Stdio::null()).spawn().map_err(|e| Error::new(e.to_string()))?;
    let said = wait_for(|| fs::read_to_string(&note).ok().filter(|text| text.ends_with('\n'))).unwrap_or_default();
    let traces: Vec<Traces> = said.lines().skip(1).map(|line| Traces::of(Path::new(line))).collect();
    let seen = traces.iter().all(|traces| !traces.found().is_empty());
    let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
    let _ = child.wait();
    // What it has beside the engines nobody else removes.
    let _ = said.lines().next().map(fs::remove_dir_all);
    assert!(seen && traces.len() == 2, "{said:?}");
    let left = || traces.iter().flat_map(Traces::found).collect::<Vec<_>>();
    assert_eq!(wait_for(|| left().is_empty().then_some(())), Some(()), "{:?}", left());
    Ok(())
}

/// Two engines with a container each, and no end.
fn live_until_killed(test: &str, note: &Path) -> Result<()> {
    let Some(place) = Place::new(test, "runc-1.1", Groups::Hybrid)? else { return Ok(()) };
    let rootfs = Rootfs::busybox(place.scratch.join("bb"))?;
    let docker = Docker::on("20", &place.ground)?;
    Engine::import(&docker, IMAGE, &rootfs, &[], &[])?;
    Engine::start(&docker, &plain("left", "sleep 600"))?.checked()?;
    let Some((podman, folder)) = place.engine(test, "podman-4.3")? else { return Ok(()) };
    podman.import(IMAGE, &rootfs, &[], &[])?;
    podman.start(&plain("left", "sleep 600"))?.checked()?;
    let folders = [place.scratch.path(), docker.folder(), &folder].map(|path| path.display().to_string());
    write(note, &format!("{}\n", folders.join("\n")))?;
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

fn wait_for<T>(mut seen: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let now = seen();
        if now.is_some() || Instant::now() > deadline {
            return now;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
