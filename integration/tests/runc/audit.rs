//! What `quilt-gpu audit` tells of real containers: what one was given and by which line of its contract, and whatever was
//! changed behind our back while it runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::{Error, QuiltOptions, Result, Site, Spec, run};
use serde_json::Value;

use crate::{Bench, bytes};

/// Exit status, and what a call of the command line answers in JSON.
fn asked(bench: &Bench, words: &[&str]) -> Result<(Option<i32>, Value)> {
    let answer = bench.site.quilt.cli(&[words, &["--format", "json"]].concat())?;
    let parsed = serde_json::from_str(&answer.stdout).map_err(|e| Error::new(format!("{e}: {answer:?}")))?;
    Ok((answer.status.code(), parsed))
}

/// What `audit --all` finds different in a container, `what: message`; `None` when it does not say that it drifted.
fn drift(bench: &Bench, id: &str) -> Result<Option<String>> {
    let (code, list) = asked(bench, &["audit", "--all"])?;
    let of = list.as_array().and_then(|list| list.iter().find(|one| one["container"] == id)).cloned();
    let of = of.ok_or_else(|| Error::new(format!("{id} is not looked at: {list}")))?;
    let any = list.as_array().is_some_and(|list| list.iter().any(|one| one["state"] == "drift"));
    assert_eq!(code, Some(i32::from(any)), "{list}");
    let words = of["differences"].as_array().into_iter().flatten();
    let words: Vec<String> = words.map(|one| format!("{}: {}", one["what"], one["message"])).collect();
    assert_eq!(of["state"] == "drift", !words.is_empty(), "{of}");
    if of["state"] == "drift" { Ok(Some(words.join("; "))) } else { Ok(None) }
}

fn pid(bench: &Bench, id: &str) -> Result<i64> {
    let state = bench.runc.state(id)?.unwrap_or_default();
    state["pid"].as_i64().ok_or_else(|| Error::new(format!("no pid: {state}")))
}

/// The cgroup file that changes a container's filter (v1).
fn filter(bench: &Bench, id: &str, file: &str) -> Result<PathBuf> {
    let pid = pid(bench, id)?;
    let groups = String::from_utf8_lossy(&bytes(Path::new(&format!("/proc/{pid}/cgroup")))?).into_owned();
    let path = groups.lines().find_map(|line| line.split_once(":devices:").map(|(_, path)| path.to_owned()));
    let path = path.ok_or_else(|| Error::new(format!("no devices group: {groups}")))?;
    Ok(PathBuf::from(format!("/sys/fs/cgroup/devices{path}/{file}")))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|e| Error::new(format!("{}: {e}", path.display())))
}

/// Runs a command in the mount namespace of a container's first process.
fn inside(pid: i64, words: &[&str]) -> Result<()> {
    let mut command = Command::new("nsenter");
    command.arg("--mount").arg("--target").arg(pid.to_string()).args(words);
    run(&mut command, None, Duration::from_secs(10))?.checked().map(|_| ())
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let entry = fs::read_dir(folder).ok().and_then(|mut entries| entries.next()).and_then(|entry| entry.ok());
    entry.map(|entry| entry.path()).ok_or_else(|| Error::new(format!("nothing in {}", folder.display())))
}

#[test]
fn whatever_is_changed_behind_our_back_is_found_and_nothing_else() -> Result<()> {
    let test = "whatever_is_changed_behind_our_back_is_found_and_nothing_else";
    let Some(bench) = Bench::new(test, 4)? else { return Ok(()) };
    bench.sleeper("red", &Spec::new().env("QUILT_GPU_IDS", "nvidia0"))?;
    // It has more processes by now, and its program changes its own files.
    bench
        .runc
        .exec("red", &["sh", "-c", "sleep 100 >/dev/null 2>&1 </dev/null & touch /tmp/x; rm -f /etc/hostname"])?;
    let image_void = Spec::new().env("NVIDIA_VISIBLE_DEVICES", "all");
    bench.sleeper("plain", &image_void)?;
    let state = bench.site.quilt.state();
    assert_eq!(drift(&bench, "red")?, None);
    let found = |words: &str| -> Result<()> {
        let drift = drift(&bench, "red")?.unwrap_or_default();
        assert!(drift.contains(words), "{words}: {drift}");
        Ok(())
    };

    // The live view: another GPU in its filter, another file instead of a library, another node.
    write(&filter(&bench, "red", "devices.allow")?, "c 195:1 rw")?;
    found("\"view\": \"the device filter leaves a GPU open")?;
    write(&filter(&bench, "red", "devices.deny")?, "c 195:1 rw")?;
    write(&filter(&bench, "red", "devices.deny")?, "c 195:0 rw")?;
    found("closes character device 195:0")?;
    write(&filter(&bench, "red", "devices.allow")?, "c 195:0 rwm")?;
    assert_eq!(drift(&bench, "red")?, None);
    let (pid, config) = (pid(&bench, "red")?, bench.site.join("bundle-red/config.json"));
    let spec: Value = serde_json::from_slice(&bytes(&config)?).map_err(|e| Error::new(e.to_string()))?;
    let mounts = spec["mounts"].as_array().cloned().unwrap_or_default();
    let library =
        mounts.iter().filter_map(|mount| mount["destination"].as_str()).find(|path| path.contains("libcuda.so"));
    let library = library.ok_or_else(|| Error::new("no libcuda"))?;
    inside(pid, &["mount", "--bind", "/bin/sh", library])?;
    found("is not the host's file")?;
    inside(pid, &["umount", library])?;
    assert_eq!(drift(&bench, "red")?, None);

    // What was decided: contract, lease, spec; each put back again.
    let contract = only_file(&state.join("contracts"))?;
    let before = bytes(&contract)?;
    let edited = String::from_utf8_lossy(&before).replacen("\"created\":", "\"created\":1", 1);
    write(&contract, &edited)?;
    found("\"contract\": \"it is not the contract that the audit log knows")?;
    write(&contract, "{}")?;
    found("\"contract\": \"CONTRACT_UNTRUSTED")?;
    fs::write(&contract, &before).map_err(|e| Error::new(e.to_string()))?;
    let lease = bench.site.leases_on_disk()?.into_iter().next().unwrap_or_default();
    let (lease, away) = (state.join("leases").join(&lease), bench.site.join("lease"));
    let keep = bytes(&lease)?;
    write(&lease, &String::from_utf8_lossy(&keep).replacen("\"pci\":\"0000", "\"pci\":\"0001", 1))?;
    found("\"lease\": \"no lease says that nvidia0")?;
    fs::copy(&lease, &away).and_then(|_| fs::write(&lease, &keep)).map_err(|e| Error::new(e.to_string()))?;
    let written = bytes(&config)?;
    write(&config, &String::from_utf8_lossy(&written).replacen("nvidia0", "nvidia1", 1))?;
    found("\"spec\": \"")?;
    fs::write(&config, &written).map_err(|e| Error::new(e.to_string()))?;
    assert_eq!(drift(&bench, "red")?, None, "everything is back");

    // One that ended says nothing.
    bench.runc.kill("red", "KILL")?.checked()?;
    bench.runc.wait_stopped("red")?;
    let (code, list) = asked(&bench, &["audit", "--all"])?;
    assert_eq!((code, &list[0]["state"]), (Some(0), &Value::from("gone")), "{list}");
    bench.runc.delete("red", true)?.checked()?;
    bench.runc.delete("plain", true)?.checked()?;
    let (code, list) = asked(&bench, &["audit", "--all"])?;
    assert_eq!((code, list), (Some(0), Value::Array(Vec::new())));
    Ok(())
}

#[test]
fn every_item_that_was_put_in_has_its_line_of_the_contract() -> Result<()> {
    let Some(bench) = Bench::new("every_item_that_was_put_in_has_its_line_of_the_contract", 2)? else { return Ok(()) };
    bench.sleeper("blue", &Spec::new().env("QUILT_GPU_IDS", "nvidia0"))?;
    let (_, told) = asked(&bench, &["audit", "blue", "--explain"])?;
    let told = &told["explanation"];
    assert_eq!((&told["contract"], &told["request"]["count"]), (&Value::from("in force"), &Value::from(1)), "{told}");
    assert!(told["decision"].as_str().unwrap_or_default().starts_with("granted nvidia0 (GPU-"), "{told}");
    let (_, contract) = asked(&bench, &["contract", "show", told_contract(&bench)?.as_str()])?;
    let items = told["items"].as_array().cloned().unwrap_or_default();
    let lines: Vec<&str> = items.iter().filter_map(|item| item["line"].as_str()).collect();
    for (part, count) in
        ["nodes", "libraries", "files", "env"].map(|part| (part, contract[part].as_array().map_or(0, Vec::len)))
    {
        for index in 0..count {
            let line = format!("/{part}/{index}");
            assert!(lines.contains(&line.as_str()), "{line} of the contract is in no item: {told}");
        }
    }
    let without: Vec<&str> =
        items.iter().filter(|item| item["line"].is_null()).filter_map(|item| item["what"].as_str()).collect();
    // What only closes: rules, hiding, and masks of the other GPU's folders.
    let closing = |what: &&str| {
        ["device rule: ", "an empty file system hides", "\"/proc/driver/nvidia/gpus/", "\"/sys/devices/"]
            .iter()
            .any(|closing| what.starts_with(closing))
    };
    let other: Vec<&&str> = without.iter().filter(|what| !closing(what)).collect();
    assert!(other.is_empty(), "put in without a line of the contract: {other:?}");
    let table = bench.site.quilt.cli(&["audit", "blue"])?.checked()?.stdout;
    for words in ["contract: in force", "/nodes/0", "device node /dev/nvidia0 (195:0)", "/libraries/0"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    bench.runc.delete("blue", true)?.checked()?;
    let (_, told) = asked(&bench, &["audit", "blue", "--explain"])?;
    assert_eq!(told["explanation"]["contract"], "gone");
    // Of every kind that comes without an engine: a refusal, reservations, an exec, a refresh.
    let unknown = bench.bundle("refused", &Spec::new().env("QUILT_GPU_IDS", "nvidia9"))?;
    bench.refused("refused", &unknown, &["UNKNOWN_GPU"])?;
    for words in
        [&["lease", "acquire", "--holder", "vm:a", "--count", "1"][..], &["lease", "release", "--holder", "vm:a"]]
    {
        bench.site.quilt.cli(words)?.checked()?;
    }
    let request = bench.site.join("request.json");
    write(&request, r#"{"gpu_count": 1}"#)?;
    bench.site.quilt.cli(&["contract", "prepare", "--request", &request.display().to_string()])?.checked()?;
    let records = bench.site.quilt.audit();
    crate::schema::keeps(&records);
    for kind in ["create", "refuse", "release", "reserve"] {
        assert!(records.iter().any(|record| record["kind"] == kind), "{kind}");
    }
    let lines = bench.site.quilt.cli(&["audit", "--format", "words", "--kind", "create"])?.checked()?.stdout;
    assert!(lines.lines().count() == 1 && lines.contains(" kind=create container=blue gpus=nvidia0 "), "{lines}");
    Ok(())
}

fn told_contract(bench: &Bench) -> Result<String> {
    let (_, list) = asked(bench, &["contract", "show"])?;
    list[0]["contract"]["id"].as_str().map(str::to_owned).ok_or_else(|| Error::new(format!("no contract: {list}")))
}

#[test]
fn what_a_log_that_cannot_be_written_means_is_policy() -> Result<()> {
    for (unwritable, starts) in [("refuse", false), ("go-on", true)] {
        let options =
            QuiltOptions { more: format!("[audit]\nunwritable = \"{unwritable}\"\n"), ..QuiltOptions::default() };
        let site = || Site::with(|host| host.gpus(2), &options);
        let Some(bench) = Bench::on("what_a_log_that_cannot_be_written_means_is_policy", site)? else { return Ok(()) };
        bench.site.quilt.cli(&["inventory", "refresh"])?.checked()?;
        let log = bench.site.quilt.folder.join("log/audit.jsonl");
        fs::remove_file(&log).and_then(|()| fs::create_dir(&log)).map_err(|e| Error::new(e.to_string()))?;
        bench.runc.whole_life("none", &bench.bundle("none", &Spec::new().args(["true"]))?)?;
        let bundle = bench.bundle("gpu", &Spec::new().args(["true"]).env("QUILT_GPU_COUNT", "1"))?;
        if starts {
            bench.runc.whole_life("gpu", &bundle)?;
        } else {
            bench.refused("gpu", &bundle, &["INTERNAL", "audit.jsonl"])?;
        }
        assert_eq!(bench.site.leases()?, Vec::<Value>::new(), "{unwritable}");
    }
    Ok(())
}
