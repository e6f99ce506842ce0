//! Device filters of real low-level runtimes, on control groups of both versions: found out before the first use, read as
//! the kernel has them, refused where they do not hold.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use integration::{Binaries, Error, PROBE_ALL, QuiltOptions, Ran, Result, Runc, Scratch, Seen, Site, Spec, run, say};
use serde_json::{Value, json};

use crate::verify::program;
use crate::{Bench, bytes};

const V1: &str = "{ umount /sys/fs/cgroup/unified 2>/dev/null || true; }";
const V2: &str = "umount -l /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup";
const LIMIT: Duration = Duration::from_secs(60);

/// What the probe says of a runtime here.
const ENFORCED: &str = "enforced";
const NOT_ENFORCED: &str = "not-enforced";

/// A node over one low-level runtime, in a mount namespace of its own for every call.
struct Over {
    bench: Bench,
    prepare: &'static str,
}

impl Over {
    fn new(test: &str, low_level: &Path, prepare: &'static str) -> Result<Option<Self>> {
        if !low_level.exists() {
            say(format_args!("{test}: skipped, {} is not there", low_level.display()));
            return Ok(None);
        }
        let options = QuiltOptions { low_level: vec![low_level.into()], ..QuiltOptions::default() };
        let Some(mut bench) = Bench::on(test, || Site::with(|host| host.gpus(2), &options))? else { return Ok(None) };
        let text = format!(
            "#!/bin/sh\nexec unshare --mount --propagation private sh -c '{prepare} && exec \"$@\"' sh '{}' \"$@\"\n",
            bench.site.quilt.runtime().display()
        );
        bench.runc = Runc::new(program(bench.site.join("ours"), &text)?, bench.site.join("runc"))?;
        Ok(Some(Self { bench, prepare }))
    }

    fn helper(&self, before: &[&str], words: &[&str]) -> Result<Ran> {
        let helper = self.bench.site.quilt.command();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]).args(before);
        command.args(["sh", "-c", &format!("{} && exec \"$@\"", self.prepare), "sh"]).arg(helper.get_program());
        command.args(words).envs(helper.get_envs().filter_map(|(key, value)| Some((key, value?))));
        run(&mut command, None, LIMIT)
    }

    /// What a refresh stores about the low-level runtime.
    fn probed(&self) -> Result<Value> {
        let answer = self.helper(&[], &["inventory", "refresh", "--format", "json"])?.checked()?;
        let document: Value = serde_json::from_str(&answer.stdout).map_err(failed)?;
        self.nothing_left()?;
        Ok(document["inventory"]["low_level"].clone())
    }

    fn nothing_left(&self) -> Result<()> {
        let probe = self.bench.site.quilt.state().join("probe");
        let left: Vec<_> = names(&probe)?.into_iter().filter(|name| name.starts_with("quilt-gpu-probe")).collect();
        assert_eq!(left, Vec::<String>::new());
        assert_eq!(names(&probe.join("root"))?, Vec::<String>::new());
        Ok(())
    }

    /// Whether no GPU can be opened; where none can even be made, none can be opened.
    fn is_closed(&self, id: &str, spec: &Spec) -> Result<bool> {
        match self.see(id, spec)?.gpus() {
            Err(error) if error.to_string().starts_with("0 of ") => Ok(true),
            gpus => Ok(gpus?.is_empty()),
        }
    }

    fn see(&self, id: &str, spec: &Spec) -> Result<Seen> {
        let bundle = self.bench.bundle(id, &spec.clone().args(PROBE_ALL))?;
        let seen = Seen::of(&self.bench.runc.whole_life(id, &bundle)?);
        crate::remove(&bundle.path)?;
        seen
    }
}

fn failed(cause: impl std::fmt::Display) -> Error {
    Error::new(cause.to_string())
}

fn names(folder: &Path) -> Result<Vec<String>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(folder).map_err(failed)?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// Low-level runtimes beside the installed ones, where they were fetched.
pub(crate) fn fetched(name: &str) -> PathBuf {
    let cache = std::env::var_os("QUILT_TEST_CACHE").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache"));
    cache.join("engines/low-level").join(name)
}

fn asking() -> Spec {
    Spec::new().env("QUILT_GPU_IDS", "nvidia1")
}

/// One runtime on one version: what the probe says, and that it is true.
fn holds(test: &str, low_level: &Path, prepare: &'static str, expected: &str, reason: &str) -> Result<()> {
    let Some(over) = Over::new(test, low_level, prepare)? else { return Ok(()) };
    let probed = over.probed()?;
    say(format_args!("{test}: {probed}"));
    let told = probed["reason"].as_str().unwrap_or_default();
    assert!(probed["filter"] == expected && told.contains(reason), "{probed}");
    assert_eq!(probed["cgroup"], if prepare == V2 { 2 } else { 1 });
    if expected != ENFORCED {
        let bundle = over.bench.sharing("asking", &asking())?;
        over.bench.refused("asking", &bundle, &["POLICY", reason, "low-level-runtime"])?;
        // Nobody closes it, and nobody keeps it from starting.
        let bundle = over.bench.bundle("plain", &Spec::new().edit(no_list).args(["true"]))?;
        over.bench.runc.whole_life("plain", &bundle)?;
        let record = over.bench.site.quilt.audit().into_iter().rev().find(|record| record["kind"] == "create");
        let notes = record.unwrap_or_default()["notes"].to_string();
        assert!(notes.contains("no-device-filter") && notes.contains(reason), "{notes}");
        // A list that nobody enforces stays where it does no harm.
        assert_eq!(notes.contains("cgroup-canon"), probed["fails_with_list"] == false, "{notes}");
        return Ok(());
    }
    assert_eq!(over.see("asking", &asking())?.gpus()?, [1].into(), "{test}");
    let notes = over.bench.site.quilt.audit().into_iter().rev().find(|record| record["kind"] == "create");
    assert!(!notes.unwrap_or_default()["notes"].to_string().contains("no-device-filter"));
    assert_eq!(over.see("plain", &Spec::new())?.gpus()?.len(), 0, "{test}");
    assert_eq!(over.see("open", &Spec::new().edit(no_list))?.gpus()?.len(), 0, "{test}, no list");
    let bundle = over.bench.bundle("run", &asking().args(PROBE_ALL))?;
    let answer = over.bench.runc.run("run", &bundle)?.checked()?;
    assert_eq!(Seen::of(&answer.stdout)?.gpus()?, [1].into(), "{test}, run");
    over.bench.site.wait_no_leases()
}

fn no_list(spec: &mut Value) {
    spec["linux"]["resources"]["devices"] = json!([]);
}

#[test]
fn lists_of_runc() -> Result<()> {
    holds("lists_of_runc", Path::new(crate::RUNC), V1, ENFORCED, "")
}

#[test]
fn programs_of_runc() -> Result<()> {
    holds("programs_of_runc", Path::new(crate::RUNC), V2, ENFORCED, "")
}

#[test]
fn lists_of_newer_runc() -> Result<()> {
    holds("lists_of_newer_runc", &fetched("runc-1.3"), V1, ENFORCED, "")
}

#[test]
fn programs_of_newer_runc() -> Result<()> {
    holds("programs_of_newer_runc", &fetched("runc-1.3"), V2, ENFORCED, "")
}

#[test]
fn lists_of_crun() -> Result<()> {
    holds("lists_of_crun", Path::new("/usr/bin/crun"), V1, ENFORCED, "")
}

#[test]
fn lists_of_newer_crun() -> Result<()> {
    holds("lists_of_newer_crun", &fetched("crun-1.21"), V1, ENFORCED, "")?;
    holds("lists_of_newer_crun", &fetched("crun-1.28"), V1, ENFORCED, "")
}

#[test]
fn programs_of_newer_crun() -> Result<()> {
    holds("programs_of_newer_crun", &fetched("crun-1.21"), V2, ENFORCED, "")?;
    holds("programs_of_newer_crun", &fetched("crun-1.28"), V2, ENFORCED, "")
}

/// This crun raises a limit before it loads a program, and here nothing may.
#[test]
fn programs_of_crun_that_the_kernel_refuses() -> Result<()> {
    let crun = Path::new("/usr/bin/crun");
    let test = "programs_of_crun_that_the_kernel_refuses";
    let version = if crun.exists() { crate::version("/usr/bin/crun")? } else { String::new() };
    if !version.contains(" 1.8") || may_raise_limits() {
        say(format_args!("{test}: skipped, {version:?} is no crun 1.8, or it may raise limits"));
        return Ok(());
    }
    holds(test, crun, V2, NOT_ENFORCED, "RLIM_MEMLOCK")
}

/// CAP_SYS_RESOURCE is number 24.
fn may_raise_limits() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(effective.trim(), 16).is_ok_and(|bits| bits >> 24 & 1 == 1)
}

#[test]
fn lists_of_youki() -> Result<()> {
    holds("lists_of_youki", &fetched("youki"), V1, ENFORCED, "")
}

#[test]
fn youki_without_programs() -> Result<()> {
    holds("youki_without_programs", &fetched("youki"), V2, NOT_ENFORCED, "cgroupsv2_devices")
}

#[test]
fn lists_of_the_engine() -> Result<()> {
    holds("lists_of_the_engine", &Binaries::locate()?.engine, V1, ENFORCED, "")
}

#[test]
fn programs_of_the_engine() -> Result<()> {
    holds("programs_of_the_engine", &Binaries::locate()?.engine, V2, ENFORCED, "")
}

#[test]
fn in_a_user_namespace_nothing_holds() -> Result<()> {
    let test = "in_a_user_namespace_nothing_holds";
    let Some(over) = Over::new(test, Path::new(crate::RUNC), "true")? else { return Ok(()) };
    let answer = over.helper(&["--user", "--map-root-user"], &["inventory", "refresh"])?.checked()?;
    for words in ["device filters could not be tried", "user namespace"] {
        let again = over.helper(&["--user", "--map-root-user"], &["inventory"])?.checked()?;
        assert!(answer.stdout.contains(words) || again.stdout.contains(words), "{answer:?} {again:?}");
    }
    over.nothing_left()
}

/// A runtime whose containers are open although it keeps up appearances for the probe: every container is looked at.
const TWO_FACED: &str = r#"#!/bin/bash
bundle= previous= verb= probe=
for argument in "$@"; do
  [ "$previous" = --bundle ] && bundle=$argument
  case $argument in create | run) verb=$argument ;; quilt-gpu-probe*) probe=1 ;; esac
  previous=$argument
done
[ -n "$verb" ] && [ -z "$probe" ] || exec RUNTIME "$@"
config=$bundle/config.json
written=$(mktemp)
cat "$config" >"$written"
jq --slurpfile rule RULE '.linux.resources.devices += $rule' "$written" >"$config"
RUNTIME "$@"
status=$?
cat "$written" >"$config"
rm "$written"
exit $status
"#;

#[test]
fn what_a_program_lets_pass_is_seen() -> Result<()> {
    let test = "what_a_program_lets_pass_is_seen";
    for runtime in [PathBuf::from(crate::RUNC), fetched("runc-1.3"), fetched("crun-1.21"), fetched("crun-1.28")] {
        if !runtime.exists() {
            say(format_args!("{test}: skipped, {} is not there", runtime.display()));
            continue;
        }
        let table = [
            (r#"{"allow": true, "type": "c", "major": 195, "minor": 0, "access": "r"}"#, Some("195:0")),
            (r#"{"allow": true, "type": "c", "major": 195, "access": "w"}"#, Some("195:")),
            (r#"{"allow": true, "type": "c", "major": 195, "minor": 7777, "access": "rw"}"#, Some("195:7777")),
            (r#"{"allow": true, "type": "c", "major": 236, "minor": 3, "access": "rwm"}"#, Some("236:3")),
            (r#"{"allow": true, "type": "c", "minor": 4, "access": "rw"}"#, Some(":4")),
            (r#"{"allow": true, "type": "c", "major": 195, "minor": 0, "access": "m"}"#, None),
            (r#"{"allow": true, "type": "b", "major": 195, "minor": 0, "access": "rwm"}"#, None),
            (r#"{"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rwm"}"#, None),
            (
                r#"{"allow": false, "type": "c", "major": 195, "minor": 1, "access": "rw"}"#,
                Some("closes character device 195:1"),
            ),
        ];
        let folder = Scratch::new()?;
        let added = folder.join("rule");
        let text = TWO_FACED.replace("RUNTIME", &runtime.to_string_lossy()).replace("RULE", &added.to_string_lossy());
        let Some(over) = Over::new(test, &program(folder.join("runc-odd"), &text)?, V2)? else { return Ok(()) };
        for (number, (rule, open)) in table.into_iter().enumerate() {
            fs::write(&added, rule).map_err(failed)?;
            let id = format!("two-{number}");
            let bundle = over.bench.bundle(&id, &asking().args(["true"]))?;
            match open {
                Some(words) => drop(over.bench.refused(&id, &bundle, &["VERIFY_FAILED", words])?),
                None => drop(over.bench.runc.whole_life(&id, &bundle)?),
            }
            over.bench.site.wait_no_leases()?;
        }
    }
    Ok(())
}

fn allow_all(spec: &mut Value) {
    spec["linux"]["resources"]["devices"] = json!([{"allow": true, "access": "rwm"}]);
}

/// What is written of version 2 opens nothing on version 1.
#[test]
fn a_record_of_other_control_groups_takes_no_list_away() -> Result<()> {
    let test = "a_record_of_other_control_groups_takes_no_list_away";
    for low_level in [PathBuf::from(crate::CRUN), fetched("youki")] {
        let Some(mut over) = Over::new(test, &low_level, V1)? else { continue };
        over.prepare = V2;
        let probed = over.probed()?;
        over.prepare = V1;
        if probed["filter"] != NOT_ENFORCED {
            say(format_args!(
                "{test}: {} holds on version 2 here, so this shows nothing: {probed}",
                low_level.display()
            ));
        }
        for (id, edit) in [("all", allow_all as fn(&mut Value)), ("none", no_list)] {
            assert!(over.is_closed(id, &Spec::new().edit(edit))?, "{test}: {id} {probed}");
        }
    }
    Ok(())
}

/// A runtime that makes its containers, and to the probe's something is done before it can be looked at.
const DISTURBED: &str = r#"#!/bin/bash
case "$*" in *" create "*quilt-gpu-probe*) BEFORE ;; *) exec RUNTIME "$@" ;; esac
RUNTIME "$@" || exit
for last; do :; done
previous=
for argument in "$@"; do [ "$previous" = --pid-file ] && pid=$(cat "$argument"); previous=$argument; done
AFTER
"#;

/// What could not be seen is no word against a runtime: whatever disturbs the probe, no container loses its list.
#[test]
fn a_disturbed_probe_says_nothing() -> Result<()> {
    let test = "a_disturbed_probe_says_nothing";
    let dead = r#"kill -9 $pid; while read -r _ _ state _ </proc/$pid/stat && [ "$state" != Z ]; do sleep 0.01; done 2>/dev/null; true"#;
    let another = "sleep 5 </dev/null >/dev/null 2>&1 & echo $! >/sys/fs/cgroup/devices/$last/cgroup.procs";
    // Only the first, only those with a list that are not first: both are chance.
    let first = "[ -e FLAG ] || { touch FLAG; echo by chance >&2; exit 1; }";
    let killed = "kill -9 $$";
    for (name, before, after, expected, reason) in [
        ("dead", ":", dead, "not-tried", "ended"),
        ("another", ":", another, "not-tried", "is in its cgroup"),
        ("killed", killed, ":", "not-tried", "was killed"),
        ("chance", first, ":", ENFORCED, ""),
        ("never", "echo never >&2; exit 1", ":", "not-tried", "never"),
    ] {
        let folder = Scratch::new()?;
        let flag = folder.join("flag");
        let text = DISTURBED.replace("RUNTIME", crate::RUNC).replace("BEFORE", before).replace("AFTER", after);
        let text = text.replace("FLAG", &flag.to_string_lossy());
        let Some(over) = Over::new(test, &program(folder.join("runc-odd"), &text)?, V1)? else { return Ok(()) };
        let probed = over.probed()?;
        let told = probed["reason"].as_str().unwrap_or_default();
        assert!(probed["filter"] == expected && told.contains(reason), "{name}: {probed}");
        assert!(over.is_closed("all", &Spec::new().edit(allow_all))?, "{name}: {probed}");
        // The next refresh tries again.
        program(folder.join("runc-odd"), &format!("#!/bin/sh\nexec {} \"$@\"\n", crate::RUNC))?;
        assert_eq!(over.probed()?["filter"], ENFORCED, "{name}");
    }
    Ok(())
}

/// A name says what a runtime does with a list that denies nothing; this one lies.
#[test]
fn a_crun_that_is_called_runc() -> Result<()> {
    let crun = Path::new("/usr/bin/crun");
    let test = "a_crun_that_is_called_runc";
    let folder = Scratch::new()?;
    let liar = folder.join("runc");
    if crun.exists() {
        fs::copy(crun, &liar).map_err(failed)?;
    }
    let Some(over) = Over::new(test, &liar, V1)? else { return Ok(()) };
    let open = Spec::new().edit(no_list);
    assert!(over.see("believed", &open)?.gpus().is_err(), "this fixture must be able to fail");
    assert_eq!(over.probed()?["name"], "crun");
    assert_eq!(over.see("known", &open)?.gpus()?.len(), 0);
    Ok(())
}

#[test]
fn crun_says_itself_which_versions_it_takes() -> Result<()> {
    let test = "crun_says_itself_which_versions_it_takes";
    let crun = Path::new("/usr/bin/crun");
    let Some(over) = Over::new(test, crun, V1)? else { return Ok(()) };
    if !crate::version("/usr/bin/crun")?.contains(" 1.8") {
        say(format_args!("{test}: skipped, this is no crun 1.8"));
        return Ok(());
    }
    for spec in [asking(), Spec::new()] {
        let spec = spec.edit(|spec| spec["ociVersion"] = "1.2.0".into());
        let bundle = over.bench.sharing("newer", &spec)?;
        let config = bytes(&bundle.config())?;
        let answer = over.bench.runc.create("newer", &bundle)?;
        let said = format!("{}{}", answer.stderr, over.bench.runc.last_error("newer").unwrap_or_default());
        assert!(!answer.ok() && said.contains("unknown version specified"), "{answer:?} {said}");
        assert!(bytes(&bundle.config())? == config);
        over.bench.site.wait_no_leases()?;
    }
    Ok(())
}

/// A runtime that makes the probe's container and then does not come back.
const STUCK: &str = r#"#!/bin/bash
/usr/sbin/runc "$@"
status=$?
case "$*" in *" create "*) [ ! -e FLAG ] || exec sleep 600 ;; esac
exit $status
"#;

#[test]
fn a_killed_probe_is_swept() -> Result<()> {
    let test = "a_killed_probe_is_swept";
    let folder = Scratch::new()?;
    let flag = folder.join("flag");
    let text = STUCK.replace("FLAG", &flag.to_string_lossy());
    fs::write(&flag, "").map_err(failed)?;
    let Some(over) = Over::new(test, &program(folder.join("runc-stuck"), &text)?, "true")? else { return Ok(()) };
    let mut helper = over.bench.site.quilt.command();
    let mut child = helper.args(["inventory", "refresh"]).stdout(Stdio::null()).spawn().map_err(failed)?;
    let groups = || names(Path::new("/sys/fs/cgroup/devices"));
    let root = over.bench.site.quilt.state().join("probe/root");
    // Made, and its maker asleep.
    let asleep = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n");
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let maker = || fs::read_to_string(&children).ok()?.trim().parse().ok().filter(|pid| asleep(*pid));
    let deadline = Instant::now() + LIMIT;
    while maker().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let maker = maker();
    child.kill().and_then(|()| child.wait()).map_err(failed)?;
    let maker = maker.ok_or_else(|| Error::new("no probe was made"))?;
    run(Command::new("kill").arg(maker.to_string()), None, LIMIT)?.checked()?;
    let name = names(&root)?.pop().ok_or_else(|| Error::new("no probe was made"))?;
    assert!(groups()?.contains(&name), "this fixture must be able to fail");
    fs::remove_file(&flag).map_err(failed)?;
    assert_eq!(over.probed()?["filter"], ENFORCED);
    assert!(!groups()?.contains(&name));
    Ok(())
}
