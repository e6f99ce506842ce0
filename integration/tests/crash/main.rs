//! A crash at any instant: one process of ours is killed at each system call that changes something, and afterwards every
//! file is old or new, no lease is left that nobody holds, and every GPU can be granted again, once.
#![allow(clippy::unwrap_used)]

mod bench;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use integration::{QuiltOptions, Result, Spec, root_for, run, say};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use bench::{Bench, Then, let_children_go};

const STUB: &str = env!("CARGO_BIN_EXE_quilt-stub");
const RUNC: &str = "/usr/sbin/runc";
const LIMIT: Duration = Duration::from_secs(30);
const VICTIM: &str = "victim";

fn stubbed() -> QuiltOptions {
    QuiltOptions { verify: false, low_level: vec![STUB.into()], ..QuiltOptions::default() }
}

fn wants_one() -> Spec {
    Spec::new().env("QUILT_GPU_COUNT", "1").args(["sleep", "60"])
}

/// Kills `verb` at each of its calls. `before`: what has happened already.
fn at_every_call(bench: &Bench, verb: &str, before: &dyn Fn() -> Result<()>, restores: bool) -> Result<usize> {
    bench.reset();
    before()?;
    let with_gpu = fs::read(bench.victim.config()).unwrap();
    let (counts, after) = bench.count(verb)?;
    let edited = if verb == "delete" { with_gpu } else { after };
    bench.free_again(verb, Then::Delete)?;
    let mut points = 0;
    for (name, count) in &counts {
        // strace's own execve starts the program; it is in the trace and does not count for the injection.
        for n in 1..=count - usize::from(name == "execve") {
            for then in [Then::Delete, Then::Nothing] {
                bench.reset();
                before()?;
                bench.killed_at(verb, name, n, &edited, then)?;
                if restores {
                    bench.restored(&format!("{verb}, {name} {n}, {then:?}"));
                }
                points += 1;
            }
        }
    }
    assert!(points > 4, "{verb}: only {counts:?}");
    say(format_args!("{verb}: {points} kills at {counts:?}"));
    Ok(points)
}

#[test]
fn killed_at_every_call_over_the_stub() -> Result<()> {
    if !root_for("killed_at_every_call_over_the_stub") {
        return Ok(());
    }
    let begin = Instant::now();
    let bench = Bench::new(8, &stubbed(), &wants_one())?;
    say("low-level runtime: the stub, no engine");
    let nothing = || Ok(());
    let created = || bench.call("create")?.checked().map(|_| ());
    let mut points = at_every_call(&bench, "create", &nothing, true)?;
    points += at_every_call(&bench, "run", &nothing, true)?;
    points += at_every_call(&bench, "delete", &created, true)?;

    // Again with what an earlier create of the same bundle left: killed after it had written everything.
    let crashed = || {
        let ran = bench.traced("create", &["-e", "trace=wait4", "-e", "inject=wait4:signal=SIGKILL:when=1"])?;
        assert_eq!(ran.status.signal(), Some(9), "{ran:?}");
        let_children_go();
        let _ = fs::remove_dir(bench.runtime.root().join(VICTIM));
        Ok(())
    };
    points += at_every_call(&bench, "create", &crashed, true)?;
    say(format_args!("{points} kills: {:.1} s", begin.elapsed().as_secs_f64()));
    Ok(())
}

#[test]
fn killed_at_every_call_without_a_gpu() -> Result<()> {
    if !root_for("killed_at_every_call_without_a_gpu") {
        return Ok(());
    }
    // An image that brings the variable: the one edit that a container without GPUs gets.
    let bench = Bench::new(2, &stubbed(), &Spec::new().env("NVIDIA_VISIBLE_DEVICES", "all"))?;
    say("low-level runtime: the stub, no engine");
    at_every_call(&bench, "create", &|| Ok(()), false)?;
    Ok(())
}

#[test]
fn the_low_level_runtime_is_killed() -> Result<()> {
    if !root_for("the_low_level_runtime_is_killed") {
        return Ok(());
    }
    let bench = Bench::new(8, &stubbed(), &wants_one())?;
    say("low-level runtime: the stub, no engine");
    bench.call("create")?.checked()?;
    let edited = fs::read(bench.victim.config()).unwrap();
    for moment in ["before", "after"] {
        for then in [Then::Delete, Then::Nothing] {
            bench.call("delete")?.checked()?;
            bench.reset();
            let what = format!("killed {moment} it made the container, then {then:?}");
            let ran = run(bench.command("create").env("QUILT_STUB_KILL", moment), None, LIMIT)?;
            assert_eq!(ran.status.signal(), Some(9), "{what}: {ran:?}");
            assert_eq!(bench.exists(), moment == "after", "{what}");
            assert_eq!(bench.site.leases_on_disk()?.len(), usize::from(bench.exists()), "{what}");
            bench.whole(&[&edited], &what)?;
            bench.free_again(&what, then)?;
            bench.restored(&what);
        }
    }
    Ok(())
}

#[test]
fn the_low_level_runtime_dies_with_ours() -> Result<()> {
    if !root_for("the_low_level_runtime_dies_with_ours") {
        return Ok(());
    }
    let bench = Bench::new(2, &stubbed(), &wants_one())?;
    say("low-level runtime: the stub, no engine");
    // It would make a container whose GPU somebody else may have by then.
    let mut create = bench.command("create");
    let child = killed_after(create.env("QUILT_STUB_SECONDS", "1"), Duration::from_millis(20), false).unwrap();
    bench.free_again("killed before the container was made", Then::Nothing)?;
    // A process that nobody has waited for yet has no command line any more.
    let left = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
    assert!(left.is_empty(), "{}", String::from_utf8_lossy(&left));
    std::thread::sleep(Duration::from_secs(1));
    assert!(!bench.exists());
    Ok(())
}

#[test]
fn killed_over_runc() -> Result<()> {
    if !root_for("killed_over_runc") {
        return Ok(());
    }
    let begin = Instant::now();
    let bench = Bench::new(2, &QuiltOptions::default(), &wants_one())?;
    let version = run(Command::new(RUNC).arg("--version"), None, LIMIT)?.checked()?.stdout;
    say(format_args!("{}, no engine", version.lines().next().unwrap_or_default()));
    let (counts, edited) = bench.count("create")?;
    bench.free_again("create", Then::Delete)?;
    let mut points = 0;
    for name in ["rename", "clone", "wait4", "unlink", "exit_group"] {
        let last = counts.get(name).copied().unwrap_or(0);
        for n in (1..=last).rev().step_by(2) {
            let then = if points % 2 == 0 { Then::Delete } else { Then::Nothing };
            bench.reset();
            // At the end of it the container is there, and its own process goes on.
            bench.killed_at("create", name, n, &edited, then)?;
            bench.restored(name);
            points += 1;
        }
    }
    // At any instant, runc's own work included: ours dies, or runc below ours.
    for step in 0..8 {
        for runc_dies in [false, true] {
            bench.reset();
            let what = format!("killed after {} ms, runc itself: {runc_dies}", step * 9);
            killed_after(&mut bench.command("create"), Duration::from_millis(step * 9), runc_dies);
            bench.whole(&[&edited], &what)?;
            bench.free_again(&what, Then::Delete)?;
            bench.restored(&what);
            points += 1;
        }
    }
    say(format_args!("{points} kills over runc: {:.1} s", begin.elapsed().as_secs_f64()));
    Ok(())
}

/// Starts a create and kills it, or its child, some time after the child was started. The child's pid.
fn killed_after(create: &mut Command, time: Duration, child: bool) -> Option<i32> {
    let mut create = create.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let runtime = first_child(&mut create);
    std::thread::sleep(time);
    match runtime {
        Some(pid) if child => {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        _ => create.kill().unwrap(),
    }
    create.wait().unwrap();
    let_children_go();
    runtime
}

/// The pid of its first child; none when it ends without one.
fn first_child(parent: &mut Child) -> Option<i32> {
    let path = format!("/proc/{0}/task/{0}/children", parent.id());
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline && parent.try_wait().unwrap().is_none() {
        let children = fs::read_to_string(&path).unwrap_or_default();
        if let Some(pid) = children.split(' ').next().and_then(|pid| pid.parse().ok()) {
            return Some(pid);
        }
    }
    None
}
