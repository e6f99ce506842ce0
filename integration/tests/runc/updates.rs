//! `update` as engines send it, over runc and crun and both versions of control groups: limits change, devices do not.
//!
//! Case Q66 and row H7: what crun would carry out of an update's devices. Field case D16: a GPU is lost when limits change. containerd's CRI sends the whole resources of the spec that it keeps,
//! which is the tenant's: its device list has no GPU, and a privileged container's has everything.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use integration::engine::Kit;
use integration::{Error, Result, Runc, Spec, run, say};
use serde_json::{Value, json};

use crate::{Bench, CRUN, RUNC, VERSION_1, VERSION_2, inside};

/// A newer runtime than the distribution's, where it was unpacked.
pub(crate) fn newer(test: &str, name: &str) -> Option<PathBuf> {
    let found = Kit::default().low_level(name);
    found.inspect_err(|why| say(format_args!("{test}: skipped, {why}"))).ok()
}

/// Device lists of engines, each a trap of its own.
fn lists(tenants: &Value) -> [(&'static str, Value); 5] {
    [
        ("the tenant's, as containerd's CRI keeps it", tenants.clone()),
        ("deny-all", json!([{"allow": false, "access": "rwm"}])),
        ("allow-all", json!([{"allow": true, "access": "rwm"}])),
        ("the other GPU", json!([{"allow": true, "type": "c", "major": 195, "minor": 1, "access": "rw"}])),
        ("the own GPU's end", json!([{"allow": false, "type": "c", "major": 195, "minor": 0, "access": "rwm"}])),
    ]
}

fn devices_stay(test: &str, low_level: &str, prepare: &str) -> Result<()> {
    if !Path::new(low_level).exists() {
        say(format_args!("{test}: skipped, {low_level} is not there"));
        return Ok(());
    }
    let Some(bench) = Bench::within(test, low_level, prepare)? else { return Ok(()) };
    let file = bench.site.join("resources.json");
    let named = file.to_string_lossy().into_owned();
    for (id, spec, gpus, numbers) in [
        ("granted", Spec::new().env("QUILT_GPU_IDS", "nvidia0"), BTreeSet::from([0]), None),
        ("plain", Spec::new(), BTreeSet::new(), Some(BTreeSet::new())),
    ] {
        let tenants = spec.json()["linux"]["resources"]["devices"].clone();
        let before = bench.sleeper(id, &spec)?;
        assert_eq!(before.gpus()?, gpus, "{id}");
        let notes = |bench: &Bench| bench.site.quilt.audit().iter().filter(|record| record["kind"] == "update").count();
        for (number, (what, devices)) in lists(&tenants).into_iter().enumerate() {
            // Version 2 has no controller but devices on a machine that gives the others to version 1.
            let mut resources = json!({"devices": devices});
            if prepare != VERSION_2 {
                resources["cpu"] = json!({"shares": 512 + number});
            }
            write(&file, &resources)?;
            let noted = notes(&bench);
            let mut command = bench.runc.command(id);
            if number % 2 == 0 {
                command.args(["update", "--resources", &named, id]);
            } else {
                command.args(["update", "--resources=-", id]);
            }
            let answer = run(&mut command, Some(open(&file)?), Duration::from_secs(20))?;
            assert!(answer.ok(), "{id}, {what}: {answer:?}");
            let after = bench.look(id)?;
            assert_eq!(after.gpus()?, gpus, "{id}, {what}");
            assert_eq!(after.open_numbers(), before.open_numbers(), "{id}, {what}");
            assert!(numbers.as_ref().is_none_or(|numbers| *numbers == after.open_numbers()), "{id}, {what}");
            assert_eq!(notes(&bench), noted + 1, "{id}, {what}: it is noted what was left out");
        }
        // H7: files of a group that are no limits, by any way to write them: `cgroup.procs` takes processes in.
        for unified in [
            json!({"cgroup.procs": "1"}),
            json!({"memory.high": "max", "cgroup.threads": "0"}),
            json!({"../cgroup.procs": "1"}),
            json!({"/devices.allow": "a"}),
        ] {
            write(&file, &json!({"unified": unified}))?;
            let answer = bench.runc.call(id, &["update", "--resources", &named, id])?;
            assert!(!answer.ok() && answer.stderr.contains("UNSAFE_SPEC"), "{id}, {unified}: {answer:?}");
            assert_eq!(bench.look(id)?.open_numbers(), before.open_numbers(), "{id}, {unified}");
        }
        if prepare != VERSION_2 {
            bench.runc.call(id, &["update", "--cpu-share", "700", id])?.checked()?;
        }
        assert_eq!(bench.look(id)?.gpus()?, gpus, "{id}");
    }
    if low_level != RUNC {
        // Without us it would be carried out: else this would prove nothing.
        write(&file, &json!({"devices": [{"allow": true, "access": "rwm"}]}))?;
        let bare = Runc::new(inside(bench.site.join("bare"), Path::new(low_level), prepare)?, bench.site.join("runc"))?;
        bare.call("plain", &["update", "--resources", &named, "plain"])?.checked()?;
        assert!(bench.look("plain")?.open_numbers().len() > 200);
    }
    Ok(())
}

fn write(path: &Path, document: &Value) -> Result<()> {
    fs::write(path, document.to_string()).map_err(|e| Error::new(format!("{}: {e}", path.display())))
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|e| Error::new(format!("{}: {e}", path.display())))
}

#[test]
fn d16_no_update_changes_devices_over_runc() -> Result<()> {
    devices_stay("d16_no_update_changes_devices_over_runc", RUNC, "true")
}

#[test]
fn d16_no_update_changes_devices_over_runc_in_version_2() -> Result<()> {
    devices_stay("d16_no_update_changes_devices_over_runc_in_version_2", RUNC, VERSION_2)
}

#[test]
fn d16_no_update_changes_devices_over_crun() -> Result<()> {
    devices_stay("d16_no_update_changes_devices_over_crun", CRUN, VERSION_1)
}

#[test]
fn d16_no_update_changes_devices_over_crun_in_version_2() -> Result<()> {
    // The distribution's crun 1.8 needs CAP_SYS_RESOURCE there.
    let test = "d16_no_update_changes_devices_over_crun_in_version_2";
    let Some(crun) = newer(test, "crun-1.21") else { return Ok(()) };
    devices_stay(test, &crun.to_string_lossy(), VERSION_2)
}
