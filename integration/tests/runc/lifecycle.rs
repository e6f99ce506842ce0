//! The same bundle again and again, every way a container can end, and containers that ask for nothing.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use integration::{Builder, PROBE_ALL, QuiltOptions, Result, Runc, Seen, Site, Spec, say};
use serde_json::json;

use crate::verify::change_low_level;
use crate::{Bench, CRUN, RUNC, VERSION_1, bytes};

#[test]
fn a_bundle_serves_again_and_is_put_back() -> Result<()> {
    let Some(bench) = Bench::new("a_bundle_serves_again_and_is_put_back", 2)? else { return Ok(()) };
    let asking = Spec::new().args(PROBE_ALL).env("QUILT_GPU_COUNT", "1").env("NVIDIA_VISIBLE_DEVICES", "all");
    let bundle = bench.bundle("again", &asking)?;
    let original = bytes(&bundle.config())?;

    bench.runc.create("again", &bundle)?.checked()?;
    let injected = bytes(&bundle.config())?;
    assert!(injected != original, "the contract stands in config.json");
    assert_eq!(bench.site.leases_on_disk()?.len(), 1);
    bench.runc.delete("again", true)?.checked()?;
    assert!(bytes(&bundle.config())? == original, "config.json was not put back");
    assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new());
    bench.runc.delete("again", true)?.checked()?;
    assert_eq!(bench.ends("again"), ["deleted"], "an end is recorded once");

    for _ in 0..2 {
        let seen = Seen::of(&bench.runc.whole_life("again", &bundle)?)?;
        assert_eq!(seen.gpus()?.len(), 1);
        assert!(bytes(&bundle.config())? == original);
    }

    // Somebody who knows nothing of us removed the container: what we wrote is judged by its original.
    bench.runc.create("again", &bundle)?.checked()?;
    Runc::new(RUNC, bench.site.join("runc"))?.delete("again", true)?.checked()?;
    assert!(bytes(&bundle.config())? != original);
    bench.runc.create("again", &bundle)?.checked()?;
    let leases = bench.site.leases_on_disk()?;
    let second = bench.runc.create("again", &bundle)?;
    assert!(!second.ok(), "a container of this id exists: {second:?}");
    assert_eq!(bench.site.leases_on_disk()?, leases, "the container that exists keeps what it has");
    bench.runc.start("again")?.checked()?;
    bench.runc.wait_stopped("again")?;
    bench.runc.delete("again", false)?.checked()?;
    assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new());
    assert!(bytes(&bundle.config())? == original, "config.json was not put back");
    Ok(())
}

#[test]
fn a_foreground_run_releases_by_itself() -> Result<()> {
    let Some(bench) = Bench::new("a_foreground_run_releases_by_itself", 1)? else { return Ok(()) };
    let bundle = bench.bundle("run", &Spec::new().args(PROBE_ALL).env("QUILT_GPU_COUNT", "1"))?;
    let original = bytes(&bundle.config())?;
    for _ in 0..2 {
        let seen = Seen::of(&bench.runc.run("run", &bundle)?.checked()?.stdout)?;
        assert_eq!(seen.gpus()?, BTreeSet::from([0]));
        assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new());
        assert!(bytes(&bundle.config())? == original, "config.json was not put back");
    }
    assert_eq!(bench.ends("run"), ["its process ended"; 2]);
    let failing = bench.bundle("failing", &Spec::new().args(["sh", "-c", "exit 7"]).env("QUILT_GPU_COUNT", "1"))?;
    assert_eq!(bench.runc.run("failing", &failing)?.status.code(), Some(7));
    assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new());
    let missing = bench.bundle("missing", &Spec::new().args(["no-such-program"]).env("QUILT_GPU_COUNT", "1"))?;
    assert!(!bench.runc.run("missing", &missing)?.ok());
    assert_eq!(bench.site.leases()?, Vec::<serde_json::Value>::new());
    Ok(())
}

#[test]
fn poststop_releases_when_somebody_else_deletes() -> Result<()> {
    let Some(bench) = Bench::new("poststop_releases_when_somebody_else_deletes", 1)? else { return Ok(()) };
    let asking = Spec::new().args(["quilt-probe", "sleep"]).env("QUILT_GPU_COUNT", "1");
    let bundle = bench.bundle("left", &asking)?;
    let folder = bundle.path.to_string_lossy().into_owned();
    bench.runc.call("left", &["run", "--detach", "--bundle", &folder, "left"])?.checked()?;
    assert_eq!(bench.look("left")?.gpus()?, BTreeSet::from([0]));
    assert_eq!(bench.site.leases_on_disk()?.len(), 1);
    assert_eq!(bench.ends("left"), [""; 0]);

    // The same state root, but nobody that knows of leases.
    let plain = Runc::new(RUNC, bench.site.join("runc"))?;
    plain.delete("left", true)?.checked()?;
    assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new());
    assert_eq!(bench.ends("left"), ["its process ended"]);
    Ok(())
}

#[test]
fn a_command_that_does_not_exist_leaves_no_lease() -> Result<()> {
    let Some(bench) = Bench::new("a_command_that_does_not_exist_leaves_no_lease", 1)? else { return Ok(()) };
    let bundle = bench.bundle("missing", &Spec::new().args(["no-such-program"]).env("QUILT_GPU_COUNT", "1"))?;
    let original = bytes(&bundle.config())?;
    let answer = bench.runc.create("missing", &bundle)?;
    assert!(!answer.ok());
    let last = bench.runc.last_error("missing").unwrap_or_default();
    assert!(last.contains("no-such-program"), "runc's own reason is what the user sees: {last}");
    assert_eq!(bench.ends("missing"), ["create failed: status 1"]);
    assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new());
    assert!(bytes(&bundle.config())? == original, "config.json was not put back");
    Ok(())
}

#[test]
fn equal_ids_under_two_state_roots_do_not_free_each_other() -> Result<()> {
    let Some(bench) = Bench::new("equal_ids_under_two_state_roots", 2)? else { return Ok(()) };
    let other = bench.site.quilt.runc(bench.site.join("other"))?;
    let asking = Spec::new().args(["quilt-probe", "sleep"]).env("QUILT_GPU_COUNT", "1");
    let mut gpus = Vec::new();
    for (name, runc) in [("first", &bench.runc), ("second", &other)] {
        let bundle = bench.bundle(name, &asking)?;
        runc.create("same", &bundle)?.checked()?;
        runc.start("same")?.checked()?;
        gpus.extend(Seen::of(&runc.exec("same", &PROBE_ALL)?.checked()?.stdout)?.gpus()?);
    }
    assert_ne!(gpus[0], gpus[1]);

    other.delete("same", true)?.checked()?;
    // An engine that deletes twice must not hit the namesake.
    other.delete("same", true)?.checked()?;
    assert_eq!(bench.site.leases()?.len(), 1);
    assert_eq!(bench.look("same")?.gpus()?, BTreeSet::from([gpus[0]]));
    let third = bench.sleeper("third", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    assert_eq!(third.gpus()?, BTreeSet::from([gpus[1]]));
    bench.refused("full", &bench.bundle("full", &Spec::new().env("QUILT_GPU_COUNT", "1"))?, &["CAPACITY_FULL"])?;
    Ok(())
}

#[test]
fn specs_without_gpus_are_left_alone_on_every_node() -> Result<()> {
    for (node, gpus, driver) in [("with the driver", 2, true), ("without it", 2, false), ("without GPUs", 0, false)] {
        let change = |host: Builder| if driver { host.gpus(gpus) } else { host.gpus(gpus).no_driver() };
        let site = || Site::with(change, &QuiltOptions::default());
        let Some(bench) = Bench::on(&format!("specs_without_gpus_are_left_alone, node {node}"), site)? else {
            return Ok(());
        };
        let plain = Spec::new().args(PROBE_ALL).annotation("example.org/note", "kept").env("A", "b");
        let bundle = bench.bundle("plain", &plain)?;
        // Spaces and order are the engine's own.
        fs::write(bundle.config(), serde_json::to_string_pretty(&bundle.read()?).unwrap() + "\n").unwrap();
        let facts = |path: &Path| fs::metadata(path).map(|m| (m.ino(), m.mtime(), m.mtime_nsec()));
        let before = (bytes(&bundle.config())?, facts(&bundle.config()).unwrap());

        bench.runc.create("plain", &bundle)?.checked()?;
        assert!(bytes(&bundle.config())? == before.0, "{node}");
        bench.runc.start("plain")?.checked()?;
        bench.runc.wait_stopped("plain")?;
        bench.runc.delete("plain", false)?.checked()?;
        let ran = Seen::of(&bench.runc.run("run", &bundle)?.checked()?.stdout)?;
        assert_eq!(ran.gpus()?, BTreeSet::new(), "{node}");
        assert_eq!(ran.env("NVIDIA_VISIBLE_DEVICES"), None, "{node}");
        assert!((bytes(&bundle.config())?, facts(&bundle.config()).unwrap()) == before, "{node}");
        assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new(), "{node}");
    }
    Ok(())
}

#[test]
fn gpu_trouble_does_not_reach_containers_without_gpus() -> Result<()> {
    let Some(bench) = Bench::new("gpu_trouble_does_not_reach_containers_without_gpus", 1)? else { return Ok(()) };
    let (state, log) = (bench.site.quilt.state(), bench.site.quilt.folder.join("log"));
    fs::write(state.join("inventory.json"), "{").unwrap();
    fs::remove_dir_all(&log).unwrap();
    // Root can write into any folder, but a file is none.
    fs::write(&log, "").unwrap();
    fs::write(state.join("leases"), "").unwrap();
    for (id, spec) in [("plain", Spec::new()), ("all", Spec::new().allow('a', None, None, "rwm"))] {
        let seen = bench.see(id, &spec.env("NVIDIA_VISIBLE_DEVICES", "all"))?;
        assert_eq!(seen.gpus_by_node()?, BTreeSet::new(), "{id}");
        assert_eq!(seen.open_numbers(), BTreeSet::new(), "{id}");
    }
    Ok(())
}

#[test]
fn a_container_that_exists_keeps_what_is_its_own() -> Result<()> {
    let Some(bench) = Bench::new("a_container_that_exists_keeps_what_is_its_own", 2)? else { return Ok(()) };
    let asking = |gpu: &str| Spec::new().env("QUILT_GPU_IDS", gpu);
    // The second has no GPU, and a list that was rewritten.
    let open =
        Spec::new().edit(|spec| spec["linux"]["resources"]["devices"] = json!([{"allow": true, "access": "rwm"}]));
    for (id, spec) in [("granted", asking("nvidia0")), ("plain", open)] {
        let bundle = bench.bundle(id, &spec.args(["quilt-probe", "sleep"]))?;
        let tenants = bytes(&bundle.config())?;
        bench.runc.create(id, &bundle)?.checked()?;
        let before = bytes(&bundle.config())?;
        assert!(before != tenants, "{id}: there is something to lose");
        let leases = bench.site.leases_on_disk()?;
        // Another bundle and another GPU, under its id: while it lives, and when its process has ended.
        let other = bench.sharing(&format!("{id}-other"), &asking("nvidia1"))?;
        for ended in [false, true] {
            if ended {
                bench.runc.kill(id, "KILL")?.checked()?;
                bench.runc.wait_stopped(id)?;
            }
            let answer = bench.runc.create(id, &other)?;
            assert!(!answer.ok() && answer.stderr.contains("a container of this id"), "{id}: {answer:?}");
            assert!(bytes(&bundle.config())? == before, "{id}, ended: {ended}: its config.json was changed");
            assert_eq!(bench.site.leases_on_disk()?, leases, "{id}, ended: {ended}");
        }
        bench.runc.delete(id, false)?.checked()?;
        assert!(bytes(&bundle.config())? == tenants, "{id}: config.json was not put back");
        assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new(), "{id}");
    }
    Ok(())
}

#[test]
fn a_container_is_deleted_by_the_runtime_that_made_it() -> Result<()> {
    let test = "a_container_is_deleted_by_the_runtime_that_made_it";
    if !Path::new(CRUN).exists() {
        say(format_args!("{test}: skipped, {CRUN} is not there"));
        return Ok(());
    }
    let Some(bench) = Bench::within(test, CRUN, VERSION_1)? else { return Ok(()) };
    bench.sleeper("cruns", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    let pid = bench.runc.state("cruns")?.unwrap_or_default()["pid"].clone();
    assert!(Path::new(&format!("/proc/{pid}/root")).exists(), "{pid}");
    change_low_level(&bench.site, CRUN, Path::new(RUNC))?;
    bench.runc.delete("cruns", true)?.checked()?;
    assert!(!Path::new(&format!("/proc/{pid}/root")).exists(), "runc left crun's process {pid} behind");
    assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new());
    Ok(())
}
