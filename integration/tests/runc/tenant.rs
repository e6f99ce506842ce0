//! `exec` and `update` of containers that have a GPU.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use integration::{PROBE_ALL, Result, Seen, Spec, run};
use serde_json::json;

use crate::Bench;

#[test]
fn a_process_added_later_sees_the_contract() -> Result<()> {
    let Some(bench) = Bench::new("a_process_added_later_sees_the_contract", 2)? else { return Ok(()) };
    let asking = Spec::new().env("QUILT_GPU_IDS", "nvidia1").env("NVIDIA_VISIBLE_DEVICES", "all");
    let first = bench.sleeper("exec", &asking)?;
    let uuid = &*bench.site.host.by_minor(1).unwrap().uuid;
    let has_contract = |seen: &Seen, what: &str| -> Result<()> {
        assert_eq!(seen.gpus()?, BTreeSet::from([1]), "{what}");
        for (key, value) in [("NVIDIA_VISIBLE_DEVICES", Some(uuid)), ("CUDA_VISIBLE_DEVICES", Some("0"))] {
            assert_eq!(seen.env(key), value, "{what}: {key}");
        }
        assert!(seen.env("NVIDIA_DRIVER_CAPABILITIES").is_some(), "{what}");
        assert!(seen.library("libcuda.so.1").is_ok(), "{what}");
        Ok(())
    };
    has_contract(&first, "by words")?;

    // Engines give the process as a file, with the variables that the image and the user set.
    let file = bench.site.join("process.json");
    let process = json!({
        "user": {"uid": 0, "gid": 0}, "args": PROBE_ALL, "cwd": "/",
        "env": ["PATH=/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=all", "MINE=kept"],
        "capabilities": Spec::new().json()["process"]["capabilities"],
    });
    fs::write(&file, process.to_string()).unwrap();
    let named = file.to_string_lossy().into_owned();
    for (what, call) in [
        ("--process F", vec!["exec", "--process", &named, "exec"]),
        ("-p F", vec!["exec", "-p", &named, "exec"]),
        ("--process=F", vec!["exec", &format!("--process={named}"), "exec"]),
    ] {
        let seen = Seen::of(&bench.runc.call("exec", &call)?.checked()?.stdout)?;
        has_contract(&seen, what)?;
        assert_eq!(seen.env("MINE"), Some("kept"), "{what}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), process.to_string(), "the engine's file is the engine's");

    let failing = bench.runc.exec("exec", &["sh", "-c", "exit 5"])?;
    assert_eq!(failing.status.code(), Some(5));
    Ok(())
}

#[test]
fn exec_in_a_container_without_gpus_is_untouched() -> Result<()> {
    let Some(bench) = Bench::new("exec_in_a_container_without_gpus_is_untouched", 1)? else { return Ok(()) };
    assert_eq!(bench.sleeper("plain", &Spec::new())?.gpus()?, BTreeSet::new());
    let file = bench.site.join("process.json");
    let process = json!({"user": {"uid": 0, "gid": 0}, "args": ["env"], "cwd": "/", "env": ["PATH=/bin", "A=b"]});
    fs::write(&file, process.to_string()).unwrap();
    let call = ["exec", "--process", &*file.to_string_lossy(), "plain"];
    let said = bench.runc.call("plain", &call)?.checked()?.stdout;
    let mut lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("HOME=")).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["A=b", "PATH=/bin"]);
    Ok(())
}

#[test]
fn an_update_changes_limits_and_never_devices() -> Result<()> {
    let Some(bench) = Bench::new("an_update_changes_limits_and_never_devices", 2)? else { return Ok(()) };
    let asking = Spec::new().env("QUILT_GPU_IDS", "nvidia0");
    let gpus = bench.sleeper("update", &asking)?.gpus()?;
    let limit = || {
        let file = PathBuf::from(format!("/sys/fs/cgroup/memory{}/memory.limit_in_bytes", bench.cgroup("update")));
        fs::read_to_string(file).map(|text| text.trim().parse::<u64>().unwrap_or_default()).unwrap()
    };
    let file = bench.site.join("resources.json");
    let named = file.to_string_lossy().into_owned();
    // By file and by standard input.
    for (call, bytes) in
        [(["update", "--resources", &named, "update"], 64 << 20), (["update", "-r", "-", "update"], 96 << 20)]
    {
        fs::write(&file, json!({"memory": {"limit": bytes}}).to_string()).unwrap();
        let stdin = File::open(&file).unwrap();
        run(bench.runc.command("update").args(call), Some(stdin), Duration::from_secs(10))?.checked()?;
        assert_eq!(limit(), bytes);
    }
    bench.runc.call("update", &["update", "--memory", "134217728", "update"])?.checked()?;
    assert_eq!(limit(), 128 << 20);

    // Two parsers would read these in two ways.
    for resources in [
        r#"{"memory":{"limit":33554432},"devices":[],"devices":[{"allow":true,"access":"rwm"}]}"#,
        r#"{"memory":{"limit":33554432},"Devices":[{"allow":true,"access":"rwm"}]}"#,
    ] {
        fs::write(&file, resources).unwrap();
        let answer = bench.runc.call("update", &["update", "--resources", &named, "update"])?;
        assert!(!answer.ok() && answer.stderr.contains("UNSAFE_SPEC"), "{answer:?}");
        assert_eq!(limit(), 128 << 20, "a refused update changes nothing");
    }
    assert_eq!(bench.look("update")?.gpus()?, gpus);
    Ok(())
}

#[test]
fn others_keep_out_of_the_group_of_a_container_with_a_gpu() -> Result<()> {
    let Some(bench) = Bench::new("others_keep_out_of_the_group_of_a_container_with_a_gpu", 2)? else { return Ok(()) };
    let held = bench.sleeper("held", &Spec::new().env("QUILT_GPU_IDS", "nvidia0"))?;
    assert_eq!(held.gpus()?, BTreeSet::from([0]));
    let group = bench.cgroup("held");
    for (id, path) in [("same", group.clone()), ("below", format!("{group}/x")), ("slashes", format!("/{group}//"))] {
        let bundle = bench.sharing(id, &Spec::new())?;
        let mut config = bundle.read()?;
        config["linux"]["cgroupsPath"] = path.as_str().into();
        fs::write(bundle.config(), config.to_string()).unwrap();
        bench.refused(id, &bundle, &["UNSAFE_SPEC", &path])?;
    }
    assert_eq!(bench.look("held")?.gpus()?, BTreeSet::from([0]), "it kept its GPU");
    // Beside it is fine, and its group is anybody's once it is gone.
    assert_eq!(bench.see("beside", &Spec::new())?.gpus()?, BTreeSet::new());
    bench.runc.delete("held", true)?.checked()?;
    let bundle = bench.bundle("later", &Spec::new().args(PROBE_ALL))?;
    assert_eq!(Seen::of(&bench.runc.whole_life("later", &bundle)?)?.gpus()?, BTreeSet::new());
    Ok(())
}

#[test]
fn no_process_is_taken_into_a_container_by_its_spec() -> Result<()> {
    let Some(bench) = Bench::new("no_process_is_taken_into_a_container_by_its_spec", 1)? else { return Ok(()) };
    let spec = Spec::new().edit(|spec| spec["linux"]["resources"]["unified"] = json!({"cgroup.procs": "2"}));
    let bundle = bench.sharing("taken", &spec)?;
    bench.refused("taken", &bundle, &["UNSAFE_SPEC", "cgroup.procs"])?;
    Ok(())
}

#[test]
fn crun_takes_no_flag_that_leaves_the_filter_out() -> Result<()> {
    let Some(bench) = Bench::within("crun_takes_no_flag_that_leaves_the_filter_out", crate::CRUN, crate::VERSION_1)?
    else {
        return Ok(());
    };
    let bundle = bench.bundle("flags", &Spec::new().args(["quilt-probe", "sleep"]))?;
    let call = |words: &[&str]| bench.runc.call("flags", words);
    let folder = bundle.path.to_string_lossy().into_owned();
    let refused = call(&["--cgroup-manager=disabled", "create", "--bundle", &folder, "flags"])?;
    assert!(!refused.ok() && refused.stderr.contains("--cgroup-manager"), "{refused:?}");
    bench.runc.create("flags", &bundle)?.checked()?;
    bench.runc.start("flags")?.checked()?;
    // Each of several is judged, wherever it stands.
    for groups in
        [&["../elsewhere"][..], &["/", "../elsewhere"], &["../elsewhere", "/"], &["cpu:/,..:../elsewhere", "/"]]
    {
        let groups = groups.iter().flat_map(|group| ["--cgroup", group]);
        let words: Vec<&str> = std::iter::once("exec").chain(groups).chain(["flags", "true"]).collect();
        let refused = call(&words)?;
        assert!(!refused.ok() && refused.stderr.contains("../elsewhere is not a sub cgroup path"), "{refused:?}");
    }
    call(&["exec", "flags", "true"])?.checked()?;
    Ok(())
}
