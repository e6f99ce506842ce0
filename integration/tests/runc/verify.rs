//! What was created is checked against the contract before anything of the tenant's runs: a low-level runtime that
//! forgets the device rules, and a hook that opens the filter behind our back.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::{Bundle, Error, PROBE_ALL, QuiltOptions, Result, Scratch, Seen, Site, Spec, run};
use serde_json::{Value, json};

use crate::{Bench, VERSION_2, bytes};

/// A runc that reads another list of devices than the bundle has, and leaves the file as it was. To the helper's probe it
/// is honest.
pub(crate) const FORGETFUL: &str = r#"#!/bin/bash
bundle= previous= verb= probe=
for argument in "$@"; do
  [ "$previous" = --bundle ] && bundle=$argument
  case $argument in create | run) verb=$argument ;; quilt-gpu-probe*) probe=1 ;; esac
  previous=$argument
done
[ -n "$verb" ] && [ -z "$probe" ] || exec /usr/sbin/runc "$@"
config=$bundle/config.json
written=$(mktemp)
cat "$config" >"$written"
jq '.linux.resources.devices = [{"allow": true, "access": "rwm"}]' "$written" >"$config"
/usr/sbin/runc "$@"
status=$?
cat "$written" >"$config"
rm "$written"
exit $status
"#;

/// A hook that allows a device in the container's cgroup (v1).
pub(crate) const OPENER: &str = r#"#!/bin/bash
pid=$(jq .pid)
cgroup=$(sed -n 's/^[0-9]*:devices://p' "/proc/$pid/cgroup")
echo 'RULE' >"/sys/fs/cgroup/devices$cgroup/devices.allow"
"#;

/// Written by a process of its own: what a child of another test's thread still has open for writing cannot be run.
pub(crate) fn program(path: PathBuf, text: &str) -> Result<PathBuf> {
    let plain = path.with_extension("text");
    fs::write(&plain, text).map_err(|e| Error::new(e.to_string()))?;
    let mut install = Command::new("install");
    run(install.args(["-m", "755"]).args([&plain, &path]), None, Duration::from_secs(30))?.checked()?;
    Ok(path)
}

/// A hook program that adds `rule` to the container's device filter.
pub(crate) fn filter_opener(site: &Site, rule: &str) -> Result<PathBuf> {
    program(site.join("open-filter"), &OPENER.replace("RULE", rule))
}

/// A site whose low-level runtime is this program.
pub(crate) fn site_over(text: &str, verify: bool) -> Result<Site> {
    let site = Site::with(|host| host.gpus(4), &QuiltOptions { verify, ..QuiltOptions::default() })?;
    let runtime = program(site.join("runc-odd"), text)?;
    change_low_level(&site, crate::RUNC, &runtime)?;
    Ok(site)
}

/// Makes another program than `before` the low-level runtime of a site, by configuration and link.
pub(crate) fn change_low_level(site: &Site, before: &str, runtime: &Path) -> Result<()> {
    let config = String::from_utf8_lossy(&bytes(&site.quilt.config())?).into_owned();
    let quoted = |path: &str| Value::from(path).to_string();
    let config = config.replace(&quoted(before), &quoted(&runtime.to_string_lossy()));
    let link = site.quilt.folder.join("low-level-runtime");
    fs::write(site.quilt.config(), config)
        .and_then(|()| fs::remove_file(&link))
        .and_then(|()| std::os::unix::fs::symlink(runtime, &link))
        .map_err(|e| Error::new(e.to_string()))
}

/// A bundle whose program leaves a trace on the machine, and where.
pub(crate) fn tracing(bench: &Bench, id: &str, spec: &Spec) -> Result<(Bundle, PathBuf)> {
    let trace = bench.site.join(format!("trace-{id}"));
    fs::create_dir(&trace).map_err(|e| Error::new(e.to_string()))?;
    let spec = spec.clone().args(["touch", "/trace/ran"]).bind(&trace, "/trace", &[]);
    Ok((bench.bundle(id, &spec)?, trace.join("ran")))
}

#[test]
fn a_runtime_that_forgets_the_rules_is_found_out() -> Result<()> {
    let Some(bench) = Bench::on("a_runtime_that_forgets_the_rules_is_found_out", || site_over(FORGETFUL, true))? else {
        return Ok(());
    };
    let asking = Spec::new().env("QUILT_GPU_COUNT", "1");
    let (bundle, ran) = tracing(&bench, "forgot", &asking)?;
    let said = bench.refused("forgot", &bundle, &["VERIFY_FAILED", "195:"])?.stderr;
    assert!(!ran.exists(), "{said}");
    assert!(bench.site.quilt.audit().iter().any(|record| record["kind"] == "verify-failed"));
    assert_eq!(bench.site.leases()?, Vec::<Value>::new());

    // Nobody watches `run` from outside: the hook is there for that.
    let (bundle, ran) = tracing(&bench, "forgot-run", &asking)?;
    let answer = bench.runc.run("forgot-run", &bundle)?;
    assert!(!answer.ok() && !ran.exists(), "{answer:?}");
    assert_eq!(bench.runc.state("forgot-run")?, None);
    assert_eq!(bench.site.leases()?, Vec::<Value>::new());
    Ok(())
}

#[test]
fn a_runtime_that_gives_up_is_told_again_to_delete() -> Result<()> {
    let gives_up =
        "#!/bin/bash\n[[ \" $* \" == *' delete --force again '* ]] && mkdir \"$0-told\" 2>/dev/null && exit 1\n";
    let site = || site_over(&FORGETFUL.replacen("#!/bin/bash\n", gives_up, 1), true);
    let Some(bench) = Bench::on("a_runtime_that_gives_up_is_told_again_to_delete", site)? else { return Ok(()) };
    let (bundle, _) = tracing(&bench, "again", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    bench.refused("again", &bundle, &["VERIFY_FAILED"])?;
    assert!(bench.site.join("runc-odd-told").exists(), "this fixture must give up once");
    Ok(())
}

#[test]
fn without_verification_the_same_runtime_would_open_every_gpu() -> Result<()> {
    let Some(bench) = Bench::on("without_verification_every_gpu_would_be_open", || site_over(FORGETFUL, false))? else {
        return Ok(());
    };
    let bundle = bench.bundle("open", &Spec::new().args(PROBE_ALL).env("QUILT_GPU_COUNT", "1"))?;
    let seen = Seen::of(&bench.runc.whole_life("open", &bundle)?)?;
    assert!(seen.gpus().is_err(), "this fixture must be able to fail");
    assert!(seen.numbers().values().all(|(_, open)| open != "EPERM"));
    Ok(())
}

#[test]
fn a_filter_opened_behind_our_back_stops_create_and_run() -> Result<()> {
    let Some(bench) = Bench::new("a_filter_opened_behind_our_back_stops_create_and_run", 4)? else { return Ok(()) };
    for (id, rule, fails) in [
        ("major", "c 195:* rw", true),
        ("other", "c 195:1 r", true),
        ("everything", "a", true),
        ("caps", "c 236:1 rw", true),
        ("harmless", "c 10:229 rwm", false),
    ] {
        let opener = filter_opener(&bench.site, rule)?;
        let hook = json!([{"path": opener.to_string_lossy(), "args": ["open"], "env": ["A=b"]}]);
        let asking = Spec::new().env("QUILT_GPU_IDS", "nvidia0").edit(|spec| spec["hooks"] = json!({"prestart": hook}));

        let (bundle, ran) = tracing(&bench, id, &asking)?;
        if fails {
            bench.refused(id, &bundle, &["VERIFY_FAILED"])?;
        } else {
            bench.runc.whole_life(id, &bundle)?;
        }
        assert_eq!(ran.exists(), !fails, "create, {rule}");

        let run = format!("{id}-run");
        let (bundle, ran) = tracing(&bench, &run, &asking)?;
        let answer = bench.runc.run(&run, &bundle)?;
        assert_eq!(answer.ok(), !fails, "{answer:?}");
        assert!(!fails || answer.stderr.contains("VERIFY_FAILED"), "{answer:?}");
        assert_eq!(ran.exists(), !fails, "run, {rule}");
        assert_eq!(bench.site.leases()?, Vec::<Value>::new(), "{rule}");
    }
    Ok(())
}

#[test]
fn a_node_that_is_another_gpu_is_found_out() -> Result<()> {
    // The low-level runtime makes another node than config.json has: a second GPU by the control node's name.
    let forgets = ".linux.resources.devices = [{\"allow\": true, \"access\": \"rwm\"}]";
    let swaps = "(.linux.devices[] | select(.path == \"/dev/nvidiactl\") | .minor) = 1";
    let site = || site_over(&FORGETFUL.replace(forgets, swaps), true);
    let Some(bench) = Bench::on("a_node_that_is_another_gpu_is_found_out", site)? else { return Ok(()) };
    let (bundle, ran) = tracing(&bench, "swapped", &Spec::new().env("QUILT_GPU_IDS", "nvidia0"))?;
    bench.refused("swapped", &bundle, &["VERIFY_FAILED", "/dev/nvidiactl"])?;
    assert!(!ran.exists());
    assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new());
    Ok(())
}

#[test]
fn a_library_that_is_another_file_is_found_out() -> Result<()> {
    let forgets = ".linux.resources.devices = [{\"allow\": true, \"access\": \"rwm\"}]";
    let swaps = "(.mounts[] | select(.destination | test(\"/libcuda[.]so\")) | .source) = \"/etc/hostname\"";
    let site = || site_over(&FORGETFUL.replace(forgets, swaps), true);
    let Some(bench) = Bench::on("a_library_that_is_another_file_is_found_out", site)? else { return Ok(()) };
    let (bundle, ran) = tracing(&bench, "library", &Spec::new().env("QUILT_GPU_IDS", "nvidia0"))?;
    bench.refused("library", &bundle, &["VERIFY_FAILED", "libcuda.so", "is not the host's file"])?;
    assert!(!ran.exists());
    Ok(())
}

#[test]
fn a_list_that_was_closed_is_looked_at_without_a_gpu_too() -> Result<()> {
    // Only version 2 can show that everything but GPUs is open.
    let test = "a_list_that_was_closed_is_looked_at_without_a_gpu_too";
    let folder = Scratch::new()?;
    let runtime = program(folder.join("runc-odd"), FORGETFUL)?;
    let Some(bench) = Bench::within(test, &runtime.to_string_lossy(), VERSION_2)? else { return Ok(()) };
    let all =
        Spec::new().edit(|spec| spec["linux"]["resources"]["devices"] = json!([{"allow": true, "access": "rwm"}]));
    let (bundle, ran) = tracing(&bench, "all", &all)?;
    bench.refused("all", &bundle, &["VERIFY_FAILED", "195:"])?;
    assert!(!ran.exists());
    Ok(())
}
