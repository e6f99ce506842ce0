//! How containers of the engine begin and end where others are about: in their group, under their id, or gone meanwhile.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use integration::{Result, Spec, run};

use crate::{Bench, id, pid};

/// Somebody in a control group of this name, in each hierarchy here.
struct Stranger {
    process: Child,
    groups: Vec<PathBuf>,
}

impl Stranger {
    fn in_group(name: &str, hierarchies: &[&str]) -> Self {
        let process = Command::new("sleep").arg("600").spawn().unwrap();
        let top = Path::new("/sys/fs/cgroup");
        let v2 = top.join("cgroup.controllers").exists();
        let roots = if v2 { vec![top.to_owned()] } else { hierarchies.iter().map(|one| top.join(one)).collect() };
        let groups: Vec<_> = roots.iter().map(|root| root.join(name)).collect();
        for group in &groups {
            fs::create_dir_all(group).unwrap();
            fs::write(group.join("cgroup.procs"), process.id().to_string()).unwrap();
        }
        Self { process, groups }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        for group in &self.groups {
            let _ = fs::remove_dir(group);
        }
    }
}

#[test]
fn a_group_that_others_are_in_is_left_to_them() -> Result<()> {
    let Some(bench) = Bench::new("a_group_that_others_are_in")? else { return Ok(()) };
    let list = |stranger: &Stranger| fs::read_to_string(stranger.groups[0].join("devices.list")).unwrap_or_default();
    // In several hierarchies of version 1, below the group, and in none that libcontainer asks whom to kill.
    for (case, hierarchies, below) in
        [("all", &["devices", "pids"][..], ""), ("devices", &["devices"][..], "/inner"), ("pids", &["pids"][..], "")]
    {
        let name = id(&format!("others-{case}"));
        let mut stranger = Stranger::in_group(&format!("{name}{below}"), hierarchies);
        let before = list(&stranger);
        let bundle = bench.bundle(&name, &Spec::new().args(["true"]).cgroup(&format!("/{name}")))?;
        let ran = bench.engine.create(&name, &bundle)?;
        let words = format!("the control group /{name} has processes already");
        assert!(!ran.ok() && ran.stderr.contains(&words), "{case}: {ran:?}");
        assert!(!bench.engine.root().join(&name).exists(), "{case}: its state is left");
        assert_eq!((list(&stranger), stranger.process.try_wait().unwrap()), (before, None), "{case}");
        drop(stranger);
        for group in ["devices", "pids", ""] {
            let _ = fs::remove_dir(Path::new("/sys/fs/cgroup").join(group).join(&name));
        }
        assert_eq!(bench.engine.whole_life(&name, &bundle)?, "", "{case}");
    }
    Ok(())
}

#[test]
fn of_two_creates_of_one_id_one_succeeds() -> Result<()> {
    let Some(bench) = Bench::new("of_two_creates")? else { return Ok(()) };
    let name = id("twice");
    let bundle = bench.bundle("twice", &Spec::new().args(["sleep", "600"]))?;
    for round in 0..5 {
        let all: Vec<_> = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..4).map(|_| scope.spawn(|| bench.engine.create(&name, &bundle).unwrap())).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        let (made, not): (Vec<_>, Vec<_>) = all.iter().partition(|ran| ran.ok());
        assert_eq!(made.len(), 1, "{round}: {all:?}");
        assert!(not.iter().all(|ran| ran.stderr.contains("container with id exists")), "{round}: {not:?}");
        assert_eq!(bench.engine.state(&name)?.unwrap()["status"], "created", "{round}");
        bench.engine.delete(&name, true)?.checked()?;
        assert_eq!(
            fs::read_dir(bench.engine.root()).unwrap().filter(|one| one.as_ref().unwrap().path().is_dir()).count(),
            0
        );
    }
    Ok(())
}

#[test]
fn what_has_no_state_that_can_be_read_is_ended_by_its_group() -> Result<()> {
    let Some(bench) = Bench::new("what_has_no_state")? else { return Ok(()) };
    for (case, frozen) in [("runs", false), ("frozen", true)] {
        let name = id(&format!("unread-{case}"));
        let bundle = bench.bundle(&name, &Spec::new().args(["sh", "-c", "sleep 600 & sleep 600"]))?;
        bench.engine.create(&name, &bundle)?.checked()?;
        bench.engine.start(&name)?.checked()?;
        if frozen {
            bench.engine.call(&name, &["pause", &name])?.checked()?;
        }
        let first = Path::new("/proc").join(pid(&bundle));
        let folder = bench.engine.root().join(&name);
        fs::write(folder.join("state.json"), "").unwrap();
        let kept = fs::read(folder.join("youki_config.json")).unwrap();
        fs::write(folder.join("youki_config.json"), "").unwrap();
        // Nothing says where it is: then it must not look as if it were gone.
        let ran = bench.engine.delete(&name, true)?;
        assert!(!ran.ok() && ran.stderr.contains("cannot read the state") && folder.exists(), "{case}: {ran:?}");
        assert!(first.exists(), "{case}");
        fs::write(folder.join("youki_config.json"), kept).unwrap();
        assert!(!bench.engine.delete(&name, false)?.ok(), "{case}: without --force");
        bench.engine.delete(&name, true)?.checked()?;
        let stat = fs::read_to_string(first.join("stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{case}: {stat}");
        assert!(!folder.exists(), "{case}");
        for group in ["devices", ""] {
            assert!(!Path::new("/sys/fs/cgroup").join(group).join(format!(":youki:{name}")).exists(), "{case}");
        }
    }
    Ok(())
}

#[test]
fn signals_without_a_name_reach_who_runs_in_the_foreground() -> Result<()> {
    let Some(bench) = Bench::new("signals_without_a_name")? else { return Ok(()) };
    let name = id("realtime");
    let bundle = bench.bundle(
        "realtime",
        &Spec::new().args(["sh", "-c", "trap 'exit 5' 34; echo ready; while :; do sleep 1; done"]),
    )?;
    let mut call = bench.engine.command(&name);
    call.arg("run").arg("--bundle").arg(&bundle.path).arg(&name).stdout(Stdio::piped());
    let mut call = call.spawn().unwrap();
    let mut word = [0; 6];
    call.stdout.as_mut().unwrap().read_exact(&mut word).unwrap();
    let told = run(Command::new("kill").args(["-34", &call.id().to_string()]), None, Duration::from_secs(10));
    if told.is_err() {
        call.kill().unwrap();
    }
    assert_eq!(call.wait().unwrap().code(), Some(5));
    assert_eq!(bench.engine.state(&name)?, None);
    Ok(())
}

#[test]
fn events_end_with_their_container() -> Result<()> {
    let Some(bench) = Bench::new("events_end_with_their_container")? else { return Ok(()) };
    let name = id("events");
    bench.engine.create(&name, &bench.bundle("events", &Spec::new().args(["sleep", "600"]))?)?.checked()?;
    let paused = bench.engine.call(&name, &["pause", &name])?;
    assert!(paused.stderr.contains("cannot pause a container that is created"), "{paused:?}");
    let mut call = bench.engine.command(&name);
    call.args(["events", "--interval", "200ms", &name]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut call = call.spawn().unwrap();
    // They have begun.
    call.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let deleted = bench.engine.delete(&name, true);
    if deleted.is_err() {
        call.kill().unwrap();
    }
    let ended = call.wait_with_output().unwrap();
    deleted?.checked()?;
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    assert!(bench.engine.call(&name, &["events", &name])?.stderr.contains("does not exist"));
    Ok(())
}
