//! Low-level runtimes and hooks that make another container than was decided, with and without a GPU: it is gone before its
//! program runs, nothing stays leased, and the audit says what differed. Each over runc, crun and youki.

use std::path::{Path, PathBuf};

use integration::{Binaries, Error, Result, Runc, Scratch, Spec, say};
use serde_json::json;

use crate::verify::{FORGETFUL, OPENER, filter_opener, program, tracing};
use crate::{Bench, CRUN, RUNC, VERSION_1};

/// What the odd runtime does to the spec that it carries out.
const EDIT: &str = r#".linux.resources.devices = [{"allow": true, "access": "rwm"}]"#;

/// A hook that runs `DO` in the container's mount namespace, whose root file system is `$root`.
const MOUNTER: &str = r#"#!/bin/bash
state=$(cat)
export root=$(jq -r .bundle <<<"$state")/rootfs
nsenter -t "$(jq .pid <<<"$state")" -m -- sh -ec 'DO'
"#;

/// One thing that is wrong, and a word of what is said about it. None: nothing is wrong.
struct Fault {
    name: &'static str,
    spec: Spec,
    jq: &'static str,
    /// A program, or what MOUNTER is to do.
    hook: String,
    word: Option<&'static str>,
}

impl Fault {
    fn new(name: &'static str, spec: &Spec, word: Option<&'static str>) -> Self {
        Self { name, spec: spec.clone(), jq: ".", hook: String::new(), word }
    }

    fn jq(self, jq: &'static str) -> Self {
        Self { jq, ..self }
    }

    fn hook(self, script: String) -> Self {
        Self { hook: script, ..self }
    }
}

fn with_gpu() -> Spec {
    Spec::new().env("QUILT_GPU_IDS", "nvidia0")
}

/// What the guard changes without a GPU: a list that allows everything.
fn without_gpu() -> Spec {
    Spec::new().edit(|spec| spec["linux"]["resources"]["devices"] = json!([{"allow": true, "access": "rwm"}]))
}

fn faults(bench: &Bench) -> Vec<Fault> {
    let node = bench.site.host.node("nvidia1").display().to_string();
    let state = bench.site.quilt.state();
    let above = state.parent().and_then(Path::parent).unwrap_or(&state).to_owned();
    let tree = Spec::new().bind(&above, "/above", &["ro"]);
    let mut all = Vec::new();
    for (names, spec) in [
        (
            ["fine", "filter", "dev", "masks", "mask", "read-only", "node-mount", "node-own", "dev-mount", "widened"],
            with_gpu(),
        ),
        (
            [
                "fine-0",
                "filter-0",
                "dev-0",
                "masks-0",
                "mask-0",
                "read-only-0",
                "node-mount-0",
                "node-own-0",
                "dev-mount-0",
                "widened-0",
            ],
            without_gpu(),
        ),
    ] {
        let fault = |index: usize, word| Fault::new(names.get(index).copied().unwrap_or_default(), &spec, word);
        all.push(fault(0, None));
        all.push(fault(1, Some("the device filter leaves a GPU open")).jq(EDIT));
        let dev = r#".mounts += [{"destination": "/x", "type": "devtmpfs", "source": "devtmpfs"}]"#;
        all.push(fault(2, Some("/x")).jq(dev));
        all.push(fault(3, Some("must be masked")).jq("del(.linux.maskedPaths)"));
        all.push(fault(4, Some("/sys/firmware must be masked")).jq(r#".linux.maskedPaths -= ["/sys/firmware"]"#));
        all.push(fault(5, Some("/proc/sys must be read-only")).jq(r#".linux.readonlyPaths -= ["/proc/sys"]"#));
        let bind =
            |what: &str, at: &str| format!("mkdir -p $root/mnt; touch $root/mnt/file; mount --bind {what} $root{at}");
        all.push(fault(6, Some("a node of a GPU is mounted in the container")).hook(bind(&node, "/mnt/file")));
        all.push(fault(7, Some("195:1")).hook(bind(&node, "/dev/full")));
        all.push(fault(8, Some("or a part of it, is mounted in the container")).hook(bind("/dev", "/mnt")));
        all.push(fault(9, Some("the device filter leaves a GPU open")).hook(OPENER.replace("RULE", "c 195:* rwm")));
    }
    let hidden = r#".mounts |= map(select((.destination | startswith("/above/")) | not))"#;
    all.push(Fault::new("hidden", &tree, Some("who has which GPU is seen")).jq(hidden));
    all.push(Fault::new("hidden-fine", &tree, None));
    let pids = r#".linux.namespaces |= map(select(.type != "pid"))"#;
    all.push(Fault::new("pids", &with_gpu(), Some("pid namespace")).jq(pids));
    all
}

/// A runtime that edits the spec as the file `edit` says.
fn odd(folder: &Scratch, low_level: &str) -> Result<PathBuf> {
    let name = Path::new(low_level).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let edit = folder.join("edit").display().to_string();
    let text = FORGETFUL.replace(&format!("jq '{EDIT}'"), &format!("sh '{edit}'")).replace(RUNC, low_level);
    program(folder.join(format!("{name}-odd")), &text)
}

fn are_caught(test: &str, low_level: &str) -> Result<()> {
    if !Path::new(low_level).exists() {
        say(format_args!("{test}: skipped, {low_level} is not there"));
        return Ok(());
    }
    let folder = Scratch::new()?;
    let runtime = odd(&folder, low_level)?;
    let Some(bench) = Bench::within(test, &runtime.to_string_lossy(), VERSION_1)? else { return Ok(()) };
    let failed = |e: std::io::Error| Error::new(e.to_string());
    let all = faults(&bench);
    for fault in &all {
        let edits = fault.jq != ".";
        let edit = if edits { format!("jq '{}' \"$1\"\n", fault.jq) } else { "cat \"$1\"\n".to_owned() };
        std::fs::write(folder.join("edit"), edit).map_err(failed)?;
        let mut spec = fault.spec.clone();
        if !fault.hook.is_empty() {
            let whole = fault.hook.starts_with("#!");
            let script = if whole { fault.hook.clone() } else { MOUNTER.replace("DO", &fault.hook) };
            let hook = program(bench.site.join(format!("hook-{}", fault.name)), &script)?;
            let hook =
                json!([{"path": hook.to_string_lossy(), "args": ["hook"], "env": ["PATH=/usr/bin:/bin:/usr/sbin"]}]);
            spec = spec.edit(move |spec| spec["hooks"] = json!({"createRuntime": hook}));
        }
        for verb in ["create", "run"] {
            let id = format!("{}-{verb}", fault.name);
            if verb == "run" && fault.word.is_none() && low_level.ends_with("youki") {
                // Its foreground waits for ever for a container that has ended by then, without us too.
                continue;
            }
            bench.site.wait_no_leases()?;
            let (bundle, ran) = tracing(&bench, &id, &spec)?;
            let answer = match (verb, fault.word) {
                ("create", Some(word)) => bench.refused(&id, &bundle, &["VERIFY_FAILED", word])?,
                ("create", None) => {
                    bench.runc.whole_life(&id, &bundle)?;
                    continue;
                }
                _ => bench.runc.run(&id, &bundle)?,
            };
            let Some(word) = fault.word else {
                assert!(answer.ok() && ran.exists(), "{test} {id}: {answer:?}");
                continue;
            };
            assert!(!answer.ok() && !ran.exists(), "{test} {id}: {answer:?}");
            assert_eq!(bench.runc.state(&id)?, None, "{test} {id}");
            bench.site.wait_no_leases()?;
            // There the hook sees another spec than was written, whatever the difference is.
            let word = if verb == "run" && edits { "is not what was written for this container" } else { word };
            let failed = bench.site.quilt.audit().into_iter().rev().find(|record| record["kind"] == "verify-failed");
            let failed = failed.unwrap_or_default();
            assert!(failed["container"] == id && failed["message"].to_string().contains(word), "{test} {id}: {failed}");
        }
    }
    say(format_args!("{test}: {} faults and controls over {low_level}", all.len()));
    Ok(())
}

fn fetched(name: &str) -> String {
    crate::filters::fetched(name).display().to_string()
}

#[test]
fn faults_of_runc_are_caught() -> Result<()> {
    are_caught("faults_of_runc_are_caught", RUNC)
}

#[test]
fn faults_of_newer_runc_are_caught() -> Result<()> {
    are_caught("faults_of_newer_runc_are_caught", &fetched("runc-1.3"))
}

#[test]
fn faults_of_crun_are_caught() -> Result<()> {
    are_caught("faults_of_crun_are_caught", CRUN)
}

#[test]
fn faults_of_newer_crun_are_caught() -> Result<()> {
    are_caught("faults_of_newer_crun_are_caught", &fetched("crun-1.28"))
}

#[test]
fn faults_of_youki_are_caught() -> Result<()> {
    are_caught("faults_of_youki_are_caught", &fetched("youki"))
}

#[test]
fn what_is_narrowed_on_version_1_stays_open_for_the_rest() -> Result<()> {
    let test = "what_is_narrowed_on_version_1_stays_open_for_the_rest";
    let Some(bench) = Bench::new(test, 2)? else { return Ok(()) };
    let script = "mknod /tmp/gpu c 195 0 2>/dev/null && exit 1; mknod /tmp/null c 1 3 && echo >/tmp/null && echo made";
    for verb in ["create", "run"] {
        let bundle = bench.bundle(verb, &without_gpu().args(["sh", "-c", script]))?;
        let output = match verb {
            "run" => bench.runc.run(verb, &bundle)?.checked()?.stdout,
            _ => bench.runc.whole_life(verb, &bundle)?,
        };
        assert_eq!(output, "made\n", "{verb}");
        // The child that tried the filter is gone, and so are its nodes.
        let left = std::fs::read_dir(bench.site.quilt.state()).map_err(|e| Error::new(e.to_string()))?;
        let left: Vec<_> =
            left.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(".node")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
    Ok(())
}

/// The runtime, whose nodes take longer to make than anybody waits for what is a tenant's: as under load.
const SLOW: &str = r#"#!/bin/sh
case " $* " in
  *" create "*) exec strace -f -b execve -o /dev/null -e inject=mknod,mknodat:delay_enter=4000000:when=1 "$RUNTIME" "$@" ;;
esac
exec "$RUNTIME" "$@"
"#;

#[test]
fn a_filter_that_takes_long_to_try_is_tried_all_the_same() -> Result<()> {
    let Some(mut bench) = Bench::new("a_filter_that_takes_long_to_try_is_tried_all_the_same", 2)? else {
        return Ok(());
    };
    let slow = program(bench.site.join("slow"), SLOW)?;
    let (key, config) = bench.site.quilt.env();
    let runc = Runc::new(slow, bench.site.join("slowly"))?.env(key, config);
    bench.runc = runc.env("RUNTIME", Binaries::locate()?.runtime);
    let opener = filter_opener(&bench.site, "c 195:* rwm")?;
    let hook = json!([{"path": opener.to_string_lossy(), "args": ["open"], "env": ["PATH=/usr/bin:/bin"]}]);
    let spec = without_gpu().edit(|spec| spec["hooks"] = json!({"createRuntime": hook}));
    let (bundle, ran) = tracing(&bench, "slow", &spec)?;
    bench.refused("slow", &bundle, &["VERIFY_FAILED", "the device filter leaves a GPU open"])?;
    assert!(!ran.exists());
    Ok(())
}
