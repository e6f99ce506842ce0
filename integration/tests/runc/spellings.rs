//! Command lines that two readers read in two ways (security rows H1, H3, H10; case Q65): what is judged is what runs.
//!
//! Each spelling is tried on the bare runtime first, which says what it runs: a harmless bundle or one that opens every GPU.
//! The product may refuse the spelling; it may not run anything else, and never the second bundle.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use integration::{Bundle, Ran, Result, Runc, Spec, run, say};

use crate::{Bench, CRUN, RUNC, VERSION_1, inside};

/// Words behind the global flags. `A` is the harmless bundle's folder, `B` the other's, `ID` the container's id; the call's own
/// working folder is A.
const SPELLINGS: [&str; 34] = [
    "run --bundle A ID",
    "run -b A ID",
    "run --bundle=A ID",
    "run -b=A ID",
    "run ID",
    "run --bundle B ID",
    "run -b B ID",
    "run --bundle=B ID",
    "run -b=B ID",
    "run -bB ID",
    "run -bundle=B ID",
    "run -bundle B ID",
    "run --b=B ID",
    "run --b B ID",
    "run --bund B ID",
    "run --bund=B ID",
    "run --bundle A --bundle B ID",
    "run --bundle B --bundle A ID",
    "run --bundle A -b B ID",
    "run -b A -b=B ID",
    "run --bundle=A ID --bundle=B",
    "run ID --bundle B",
    "run ID -b B",
    "run -- ID --bundle B",
    "run --bundle A -- ID --bundle B",
    "run -- --bundle B ID",
    "run --pid-file run --bundle B ID",
    "run --pid-file --bundle B ID",
    "--debug run --bundle B ID",
    "--root=run run --bundle B ID",
    "--log-level create run --bundle B ID",
    "-debug run -b B ID",
    "--systemd-cgroup=false run --bundle B ID",
    "run --no-pivot --no-new-keyring --bundle B ID",
];

/// Ids that lead out of the state root.
const IDS: [&str; 8] = ["../x", ".", "..", "a/b", "/x", "x\n", "", "-x"];

fn call(runtime: &Runc, id: &str, folder: &Path, words: &[&str]) -> Result<Ran> {
    let given = runtime.command(id);
    let mut command = Command::new(given.get_program());
    command.args(given.get_args()).args(words).current_dir(folder);
    command.envs(given.get_envs().filter_map(|(key, value)| Some((key, value?))));
    run(&mut command, None, Duration::from_secs(30))
}

fn what_is_judged_runs(test: &str, low_level: &str, prepare: &str) -> Result<()> {
    if !Path::new(low_level).exists() {
        say(format_args!("{test}: skipped, {low_level} is not there"));
        return Ok(());
    }
    let Some(bench) = Bench::within(test, low_level, prepare)? else { return Ok(()) };
    let bare =
        Runc::new(inside(bench.site.join("bare"), Path::new(low_level), prepare)?, bench.site.join("bare-runc"))?;
    let says = |word: &str| Spec::new().args(["echo", word]);
    let bundle = |name: &str, spec: &Spec| {
        Bundle::new(bench.site.join(name), &spec.clone().cgroup(&bench.cgroup(name)), &bench.rootfs)
    };
    let harmless = bundle("A", &says("harmless"))?;
    let open = bundle("B", &says("open").allow('c', Some(195), None, "rwm"))?;
    let (mut ran, mut accepted) = (Vec::new(), 0);
    for (number, spelling) in SPELLINGS.iter().enumerate() {
        let id = format!("s{number}");
        let folder = |word: &str| match word {
            "A" => harmless.path.to_string_lossy().into_owned(),
            "B" => open.path.to_string_lossy().into_owned(),
            "ID" => id.clone(),
            // A folder of words of this test alone.
            "--root=run" => format!("--root={}", bench.site.join("run").display()),
            word => word
                .replace("=A", &format!("={}", harmless.path.display()))
                .replace("=B", &format!("={}", open.path.display()))
                .replace("-bB", &format!("-b{}", open.path.display())),
        };
        let words: Vec<String> = spelling.split(' ').map(folder).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let told = |runtime: &Runc| -> Result<Option<String>> {
            let answer = call(runtime, &id, &harmless.path, &words)?;
            let _ = runtime.call(&id, &["delete", "--force", &id]);
            let _ = fs::remove_file(harmless.path.join("run"));
            let line = answer.stdout.lines().find(|line| ["harmless", "open"].contains(line)).map(str::to_owned);
            Ok(line.filter(|_| answer.ok()))
        };
        let (alone, ours) = (told(&bare)?, told(&bench.runc)?);
        assert_ne!(ours.as_deref(), Some("open"), "{spelling}: alone it runs {alone:?}");
        if ours.is_some() {
            assert_eq!(ours, alone, "{spelling}");
            accepted += 1;
        }
        ran.extend(alone);
    }
    // The table proves something: alone, both bundles are run by several spellings; and the usual ones are not refused.
    let opened = ran.iter().filter(|what| *what == "open").count();
    assert!(opened >= 6 && ran.len() - opened >= 4 && accepted >= 4, "{opened} of {ran:?}, {accepted} accepted");
    say(format_args!(
        "{test}: of {} spellings {} run alone, {opened} of them the open bundle",
        SPELLINGS.len(),
        ran.len()
    ));
    for id in IDS {
        let folder = harmless.path.to_string_lossy().into_owned();
        let answer = call(&bench.runc, "ids", &harmless.path, &["run", "--bundle", &folder, id])?;
        assert!(!answer.ok() || low_level != RUNC, "{id:?}: {answer:?}");
        fs::write(harmless.path.join("asking"), "").unwrap();
        let asking =
            Bundle::sharing(bench.site.join("asking"), &says("asking").env("QUILT_GPU_COUNT", "1"), &bench.rootfs)?;
        let folder = asking.path.to_string_lossy().into_owned();
        let answer = call(&bench.runc, "ids", &harmless.path, &["run", "--bundle", &folder, id])?;
        assert!(!answer.ok() && !answer.stdout.contains("asking"), "{id:?}: {answer:?}");
        assert!(bench.site.leases_on_disk()?.is_empty(), "{id:?}");
    }
    Ok(())
}

#[test]
fn q65_what_is_judged_is_what_runc_runs() -> Result<()> {
    what_is_judged_runs("q65_what_is_judged_is_what_runc_runs", RUNC, "true")
}

#[test]
fn q65_what_is_judged_is_what_crun_runs() -> Result<()> {
    what_is_judged_runs("q65_what_is_judged_is_what_crun_runs", CRUN, VERSION_1)
}
