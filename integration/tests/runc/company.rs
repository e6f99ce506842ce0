//! One filter serves a cgroup: whoever else is in that of a container with a GPU would get the GPU too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use integration::{Binaries, Bundle, Error, Result, Spec};
use serde_json::{Value, json};

use crate::Bench;
use crate::verify::{program, tracing};

/// A process of somebody else, for as long as this lives.
struct Stranger(Child);

impl Stranger {
    fn new() -> Result<Self> {
        Command::new("sleep").arg("600").spawn().map(Self).map_err(|e| Error::new(format!("start sleep: {e}")))
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A hook that puts a process into the container's cgroup (v1).
const JOINER: &str = r#"#!/bin/bash
pid=$(jq .pid)
cgroup=$(sed -n 's/^[0-9]*:devices://p' "/proc/$pid/cgroup")
echo STRANGER >"/sys/fs/cgroup/devices$cgroup/cgroup.procs"
"#;

/// A cgroup (v1), for as long as this lives.
struct Group(PathBuf);

impl Group {
    fn new(path: &str) -> Result<Self> {
        let folder = Path::new("/sys/fs/cgroup/devices").join(path.trim_start_matches('/'));
        fs::create_dir(&folder).map(|()| Self(folder)).map_err(|e| Error::new(format!("make {path}: {e}")))
    }

    fn take(&self, stranger: &Stranger) -> Result<()> {
        let written = fs::write(self.0.join("cgroup.procs"), stranger.0.id().to_string());
        written.map_err(|e| Error::new(format!("{}: {e}", self.0.display())))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn who_was_there_first_gets_no_gpu() -> Result<()> {
    let Some(bench) = Bench::new("who_was_there_first_gets_no_gpu", 1)? else { return Ok(()) };
    let bundle = bench.bundle("taken", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    let cgroup = bench.cgroup("taken");
    let group = Group::new(&cgroup)?;
    let stranger = Stranger::new()?;
    group.take(&stranger)?;
    bench.refused("taken", &bundle, &["UNSAFE_SPEC", "has processes already", &cgroup])?;
    // The group is not what is wrong.
    drop(stranger);
    bench.runc.whole_life("taken", &bundle)?;
    Ok(())
}

/// Low-level runtimes differ in what they call a group that no spec names.
#[test]
fn who_was_first_in_a_group_without_a_name_gets_no_gpu() -> Result<()> {
    let test = "who_was_first_in_a_group_without_a_name_gets_no_gpu";
    let id = format!("unnamed-{}", std::process::id());
    for (low_level, group) in [(Binaries::locate()?.engine, format!(":youki:{id}")), (crate::CRUN.into(), id.clone())] {
        let Some(bench) = Bench::within(test, &low_level.to_string_lossy(), crate::VERSION_1)? else { return Ok(()) };
        let spec = Spec::new().env("QUILT_GPU_COUNT", "1").args(["quilt-probe", "sleep"]);
        let bundle = Bundle::new(bench.home(&id, &spec), &spec, &bench.rootfs)?;
        let (stranger, taken) = (Stranger::new()?, Group::new(&group)?);
        taken.take(&stranger)?;
        bench.refused(&id, &bundle, &["UNSAFE_SPEC", "this cgroup has processes already", &group])?;
        drop(stranger);
        bench.runc.create(&id, &bundle)?.checked()?;
        // Its lease is given back when nobody is in this group.
        let leases = bench.site.quilt.state().join("leases");
        let lease = fs::read_dir(&leases).into_iter().flatten().flatten().next().map(|lease| lease.path());
        let lease: Value =
            serde_json::from_slice(&fs::read(lease.unwrap_or_default()).unwrap_or_default()).unwrap_or_default();
        assert_eq!(lease["holder"]["container"]["cgroup"], json!(group), "{lease}");
        bench.runc.delete(&id, true)?.checked()?;
    }
    Ok(())
}

#[test]
fn who_comes_while_it_is_made_stops_create_and_run() -> Result<()> {
    let Some(bench) = Bench::new("who_comes_while_it_is_made_stops_create_and_run", 1)? else { return Ok(()) };
    for id in ["create", "run"] {
        let stranger = Stranger::new()?;
        let text = JOINER.replace("STRANGER", &stranger.0.id().to_string());
        let joiner = program(bench.site.join("join"), &text)?;
        let hook = json!([{"path": joiner.to_string_lossy(), "args": ["join"], "env": ["A=b"]}]);
        let asking = Spec::new().env("QUILT_GPU_COUNT", "1").edit(|spec| spec["hooks"] = json!({"prestart": hook}));
        let (bundle, ran) = tracing(&bench, id, &asking)?;
        let answer = if id == "run" { bench.runc.run(id, &bundle)? } else { bench.runc.create(id, &bundle)? };
        assert!(!answer.ok() && !ran.exists(), "{id}: {answer:?}");
        let words = format!("process {} is in its cgroup", stranger.0.id());
        assert!(answer.stderr.contains("VERIFY_FAILED") && answer.stderr.contains(&words), "{id}: {answer:?}");
        assert_eq!(bench.runc.state(id)?, None, "{id}");
        // Who is in the group may hold the GPU open: it is not free before.
        drop(stranger);
        bench.site.wait_no_leases()?;
        let _ = fs::remove_dir(format!("/sys/fs/cgroup/devices{}", bench.cgroup(id)));
    }
    Ok(())
}
