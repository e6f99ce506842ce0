//! The binaries as files, and what the runtime does when it has nothing to do: it becomes the low-level runtime, and
//! nothing of the call is different. The stub stands for that runtime and writes down how it was called.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::{Binaries, Bundle, Error, QuiltOptions, Ran, Result, Rootfs, Site, Spec, root_for, run, say};
use serde_json::Value;

const STUB: &str = env!("CARGO_BIN_EXE_quilt-stub");
const LIMIT: Duration = Duration::from_secs(20);

/// Most bytes of the runtime: engines start it several times for each container.
const MOST: usize = 1_500_000;

#[test]
fn runtime_and_hook_need_no_loader_and_the_runtime_is_small() -> Result<()> {
    let binaries = Binaries::locate()?;
    let runtime = fs::read(&binaries.runtime).unwrap();
    assert!(!has_interpreter(&runtime), "the runtime has PT_INTERP");
    assert!(!has_interpreter(&fs::read(&binaries.hook).unwrap()), "the hook has PT_INTERP");
    assert!(runtime.len() < MOST, "the runtime has {} bytes", runtime.len());
    // Loads NVML by name: here the same look finds an interpreter.
    assert!(has_interpreter(&fs::read(&binaries.helper).unwrap()), "the helper has no PT_INTERP");
    say(format_args!("quilt-gpu-runtime: {} bytes, no engine", runtime.len()));
    Ok(())
}

/// Whether an ELF file of this machine has a program header PT_INTERP (elf(5)).
fn has_interpreter(elf: &[u8]) -> bool {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, size: usize| elf[at..at + size].iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
    assert_eq!(&elf[..5], b"\x7fELF\x02", "no 64-bit ELF");
    let (table, size, count) = (number(0x20, 8), number(0x36, 2), number(0x38, 2));
    (0..count).any(|n| number((table + n * size) as usize, 4) == PT_INTERP)
}

/// A site whose low-level runtime is the stub, and the reports of its calls.
struct Stubbed {
    site: Site,
    binaries: Binaries,
}

impl Stubbed {
    fn new(gpus: u64) -> Result<Self> {
        let options = QuiltOptions { verify: false, low_level: vec![STUB.into()], ..QuiltOptions::default() };
        let stubbed = Self { site: Site::with(|host| host.gpus(gpus), &options)?, binaries: Binaries::locate()? };
        say("low-level runtime: the stub, no engine");
        Ok(stubbed)
    }

    fn root(&self) -> String {
        self.site.join("root").display().to_string()
    }

    fn link(&self) -> PathBuf {
        self.site.quilt.folder.join("low-level-runtime")
    }

    fn link_to(&self, target: &Path) {
        fs::remove_file(self.link()).unwrap();
        symlink(target, self.link()).unwrap();
    }

    fn bundle(&self, name: &str, spec: &Spec) -> Result<Bundle> {
        let rootfs = Rootfs { path: self.site.join("rootfs") };
        fs::create_dir_all(&rootfs.path).unwrap();
        Bundle::sharing(self.site.join(name), spec, &rootfs)
    }

    /// Has a shell prepare itself by `prelude` and become `program`; how that ended, and the stub's reports.
    fn call(&self, program: &Path, prelude: &str, words: &[&str]) -> Result<(Ran, Vec<Value>)> {
        let file = self.site.join("report");
        let _ = fs::remove_file(&file);
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("{prelude}\nexec \"$@\"")).arg("sh").arg(program).args(words);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("QUILT_STUB_REPORT", &file);
        command.envs([self.site.quilt.env()]).current_dir(self.site.quilt.folder.parent().unwrap());
        let ran = run(&mut command, None, LIMIT)?;
        let lines = fs::read_to_string(&file).unwrap_or_default();
        Ok((ran, lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()))
    }

    /// The one call that reached the stub through the runtime.
    fn through(&self, prelude: &str, words: &[&str]) -> Result<Value> {
        one(self.call(&self.binaries.runtime, prelude, words)?)
    }

    /// The same call without quilt-gpu.
    fn directly(&self, prelude: &str, words: &[&str]) -> Result<Value> {
        one(self.call(Path::new(STUB), prelude, words)?)
    }

    /// Checks that the stub cannot tell both apart, but for its own name.
    fn same(&self, prelude: &str, words: &[&str]) -> Result<()> {
        let (mut through, mut directly) = (self.through(prelude, words)?, self.directly(prelude, words)?);
        assert_eq!(through["argv"][0], self.binaries.runtime.to_str().unwrap(), "{words:?}");
        for report in [&mut through, &mut directly] {
            report["argv"][0] = Value::Null;
            report["pid"] = Value::Null;
            report["numbers"] = Value::Null;
        }
        assert_eq!(through, directly, "{prelude:?} {words:?}");
        Ok(())
    }
}

fn one((ran, reports): (Ran, Vec<Value>)) -> Result<Value> {
    match reports.as_slice() {
        [report] => Ok(report.clone()),
        _ => Err(Error::new(format!("{} calls reached the stub: {ran:?}", reports.len()))),
    }
}

/// By a process of its own: while this one holds a program open for writing, another thread's child would too, and the
/// program could not be started.
fn copy(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").args([from, to]), None, LIMIT)?.checked().map(|_| ())
}

fn env<'a>(report: &'a Value, key: &str) -> Option<&'a str> {
    let strings = report["env"].as_array()?.iter().filter_map(Value::as_str);
    strings.filter_map(|s| s.split_once('=')).find(|(name, _)| *name == key).map(|(_, value)| value)
}

/// A shell's preparations, each of which a wrapper may spoil. Output goes to named files, so that two calls look alike.
const PRELUDES: [&str; 7] = [
    "exec </dev/null >out 2>err",
    "exec <&- >out 2>err",
    "exec <&- >&- 2>&-",
    "exec </dev/null >out 2>err 5</etc/passwd 9>>nine",
    "exec </dev/null >out 2>err; trap '' PIPE HUP USR1",
    "exec </dev/null >out 2>err; umask 0157; cd /usr",
    "exec </dev/null >out 2>err; export EMPTY= ODD='a=b  c' LD_LIBRARY_PATH=/opt/x: LISTEN_PID=1 LISTEN_FDS=2",
];

#[test]
fn verbs_that_are_not_ours_reach_the_low_level_runtime_as_they_came() -> Result<()> {
    if !root_for("verbs_that_are_not_ours") {
        return Ok(());
    }
    let stubbed = Stubbed::new(1)?;
    let root = stubbed.root();
    let verbs: [&[&str]; 16] = [
        &[],
        &["--version"],
        &["features"],
        &["--help"],
        &["state", "x"],
        &["--root", &root, "--log", "l.json", "--log-format", "json", "start", "x"],
        &["--root", &root, "kill", "--all", "x", "9"],
        &["--systemd-cgroup", "--root", &root, "pause", "x"],
        &["resume", "x"],
        &["ps", "--format", "json", "x"],
        &["events", "--stats", "x"],
        &["checkpoint", "--image-path", "i", "x"],
        &["list", "-f", "json"],
        // No verb of ours, though its word is there.
        &["--root", "create", "state", "run"],
        // What is unknown is the low-level runtime's business, unless it makes a container.
        &["--new-flag", "value", "state", "x"],
        &["invented", "", "a b", "*", "--create", "\n"],
    ];
    for words in verbs {
        stubbed.same(PRELUDES[0], words)?;
    }
    for prelude in PRELUDES {
        stubbed.same(prelude, &["--root", &root, "state", "x"])?;
    }
    // Verbs that are ours and find nothing of ours.
    for prelude in PRELUDES {
        for words in [
            &["--root", &root, "delete", "--force", "x"][..],
            &["--root", &root, "exec", "x", "true"],
            &["--root", &root, "update", "--memory", "1", "x"],
            &["--new-flag", "delete", "--force", "x"],
        ] {
            stubbed.same(prelude, words)?;
        }
    }
    Ok(())
}

#[test]
fn the_exit_and_the_name_are_the_low_level_runtimes() -> Result<()> {
    if !root_for("the_exit_and_the_name") {
        return Ok(());
    }
    let stubbed = Stubbed::new(1)?;
    for status in [0, 1, 7, 255] {
        let prelude = format!("export QUILT_STUB_STATUS={status}");
        let (ran, _) = stubbed.call(&stubbed.binaries.runtime, &prelude, &["state", "x"])?;
        assert_eq!(ran.status.code(), Some(status), "{ran:?}");
        assert_eq!((&*ran.stdout, &*ran.stderr), ("", ""));
    }
    let (ran, _) = stubbed.call(&stubbed.binaries.runtime, "export QUILT_STUB_KILL=before", &["state", "x"])?;
    assert_eq!(ran.status.signal(), Some(9), "{ran:?}");
    // The process is the same one, by the number that its engine knows.
    let report = stubbed.through("export ENGINE=$$", &["state", "x"])?;
    assert_eq!(env(&report, "ENGINE"), Some(report["pid"].to_string().as_str()));

    let file = stubbed.site.join("report");
    let mut command = Command::new(&stubbed.binaries.runtime);
    command.arg0("another name").args(["start", "x"]).env("QUILT_STUB_REPORT", &file).envs([stubbed.site.quilt.env()]);
    fs::remove_file(&file).unwrap();
    run(&mut command, None, LIMIT)?.checked()?;
    let report: Value = serde_json::from_str(fs::read_to_string(&file).unwrap().trim()).unwrap();
    assert_eq!(report["argv"][0], "another name");
    Ok(())
}

#[test]
fn create_hands_over_what_it_was_given() -> Result<()> {
    if !root_for("create_hands_over") {
        return Ok(());
    }
    let stubbed = Stubbed::new(1)?;
    let root = stubbed.root();
    let plain = stubbed.bundle("plain", &Spec::new())?;
    let wants = stubbed.bundle("wants", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    for (bundle, gpu) in [(&plain, false), (&wants, true)] {
        let folder = bundle.path.to_str().unwrap();
        let pid_file = format!("{folder}/init.pid");
        let words = ["--root", &root, "create", "--bundle", folder, "--pid-file", &pid_file, "x"];
        let gone = || stubbed.call(&stubbed.binaries.runtime, "", &["--root", &root, "delete", "--force", "x"]);
        for prelude in PRELUDES {
            let mut through = stubbed.through(prelude, &words)?;
            assert_eq!(bundle.gpus()?.len(), usize::from(gpu), "{prelude}");
            gone()?.0.checked()?;
            let mut directly = stubbed.directly(prelude, &words)?;
            gone()?.0.checked()?;
            for report in [&mut through, &mut directly] {
                report["argv"][0] = Value::Null;
                report["pid"] = Value::Null;
                report["numbers"] = Value::Null;
            }
            assert_eq!(through, directly, "{prelude:?}, a GPU: {gpu}");
        }

        // Socket activation names the process that is to have the sockets: whoever becomes the runtime.
        let report = stubbed.through("export LISTEN_PID=$$ ENGINE=$$", &words)?;
        assert_eq!(env(&report, "LISTEN_PID"), Some(report["pid"].to_string().as_str()), "a GPU: {gpu}");
        assert_eq!(env(&report, "ENGINE") == env(&report, "LISTEN_PID"), !gpu, "with a GPU it is a child");
        gone()?.0.checked()?;

        // Nothing is printed: these descriptors are the container's.
        let (ran, _) = stubbed.call(&stubbed.binaries.runtime, "", &words)?;
        assert_eq!((&*ran.stdout, &*ran.stderr), ("", ""));
        gone()?.0.checked()?;

        // Without a pid file of the engine's a container that must be verified gets one.
        let report = stubbed.through("", &["--root", &root, "create", "--bundle", folder, "x"])?;
        let argv: Vec<&str> = report["argv"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let added: Vec<&str> = argv.iter().copied().filter(|word| word.starts_with("--pid-file")).collect();
        assert_eq!(added.len(), usize::from(gpu), "{argv:?}");
        assert_eq!((argv[3], argv[argv.len() - 1]), ("create", "x"));
        gone()?.0.checked()?;
        assert!(stubbed.site.leases_on_disk()?.is_empty());
    }
    Ok(())
}

#[test]
fn a_low_level_runtime_that_fails_gives_its_status_and_leaves_no_lease() -> Result<()> {
    if !root_for("a_low_level_runtime_that_fails") {
        return Ok(());
    }
    let stubbed = Stubbed::new(1)?;
    let root = stubbed.root();
    let bundle = stubbed.bundle("wants", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    let before = fs::read(bundle.config()).unwrap();
    let words = ["--root", &root, "create", "--bundle", bundle.path.to_str().unwrap(), "x"];
    for (prelude, status) in [
        // A file stands where the state root must be.
        (format!("echo >{root}"), Some(1)),
        ("export QUILT_STUB_KILL=before".to_owned(), None),
    ] {
        let (ran, reports) = stubbed.call(&stubbed.binaries.runtime, &prelude, &words)?;
        assert_eq!((ran.status.code(), reports.len()), (status, 1), "{ran:?}");
        assert!(stubbed.site.leases_on_disk()?.is_empty(), "{prelude}");
        assert_eq!(fs::read(bundle.config()).unwrap(), before, "{prelude}");
        let _ = fs::remove_file(&root);
    }
    // It died after the container was there: the lease is held until the container is gone.
    let (ran, _) = stubbed.call(&stubbed.binaries.runtime, "export QUILT_STUB_KILL=after", &words)?;
    assert_eq!(ran.status.signal(), Some(9), "{ran:?}");
    assert_eq!(stubbed.site.leases_on_disk()?.len(), 1);
    let delete = ["--root", &root, "delete", "--force", "x"];
    stubbed.call(&stubbed.binaries.runtime, "", &delete)?.0.checked()?;
    assert!(stubbed.site.leases_on_disk()?.is_empty());
    assert_eq!(fs::read(bundle.config()).unwrap(), before);
    Ok(())
}

#[test]
fn an_unknown_global_flag_before_a_making_verb_is_refused_by_name() -> Result<()> {
    if !root_for("an_unknown_global_flag") {
        return Ok(());
    }
    let stubbed = Stubbed::new(1)?;
    let root = stubbed.root();
    let bundle = stubbed.bundle("plain", &Spec::new())?;
    let folder = bundle.path.to_str().unwrap();
    for verb in ["create", "run", "restore"] {
        for flag in [&["--new-flag"][..], &["--new-flag", "value"], &["--new-flag=value"], &["-N"]] {
            let mut words = vec!["--root", &root, "--log", "log.json", "--log-format", "json"];
            words.extend(flag);
            words.extend([verb, "--bundle", folder, "x"]);
            let (ran, reports) = stubbed.call(&stubbed.binaries.runtime, "rm -f log.json", &words)?;
            assert_eq!((ran.status.code(), reports.len()), (Some(1), 0), "{ran:?}");
            let name = flag[0].split('=').next().unwrap();
            let log = fs::read_to_string(stubbed.site.join("log.json")).unwrap();
            let last: Value = serde_json::from_str(log.lines().last().unwrap_or_default()).unwrap();
            assert_eq!(last["level"], "error");
            for text in [&ran.stderr, last["msg"].as_str().unwrap()] {
                assert!(text.contains("UNSAFE_SPEC") && text.contains(name), "{words:?}: {text}");
            }
        }
        // The same words with a flag that is known.
        let words = ["--root", &root, "--debug", verb, "--bundle", folder, "x"];
        let (ran, reports) = stubbed.call(&stubbed.binaries.runtime, "", &words)?;
        assert_eq!(reports.len(), 1, "{ran:?}");
        let _ = fs::remove_dir(Path::new(&root).join("x"));
    }
    Ok(())
}

#[test]
fn the_link_decides_who_is_called_and_never_ourselves() -> Result<()> {
    if !root_for("the_link_decides") {
        return Ok(());
    }
    let stubbed = Stubbed::new(1)?;
    let root = stubbed.root();
    let other = stubbed.site.join("other-stub");
    copy(Path::new(STUB), &other)?;
    stubbed.link_to(&other);
    assert_eq!(stubbed.through("", &["state", "x"])?["exe"], other.to_str().unwrap());
    // One runtime would create what the other starts.
    let bundle = stubbed.bundle("plain", &Spec::new())?;
    let create = ["--root", &root, "create", "--bundle", bundle.path.to_str().unwrap(), "x"];
    let (ran, reports) = stubbed.call(&stubbed.binaries.runtime, "", &create)?;
    assert_eq!((ran.status.code(), reports.len()), (Some(1), 0), "{ran:?}");
    for text in [STUB, other.to_str().unwrap()] {
        assert!(ran.stderr.contains(text), "{text}: {}", ran.stderr);
    }
    stubbed.link_to(Path::new(STUB));
    let made_by = fs::canonicalize(STUB).unwrap();
    assert_eq!(stubbed.through("", &create)?["exe"], made_by.to_str().unwrap());

    let runtime = &stubbed.binaries.runtime;
    let (twin, detour) = (stubbed.site.join("twin"), stubbed.site.join("detour"));
    copy(runtime, &twin)?;
    symlink(runtime, &detour).unwrap();
    for target in [runtime, &detour, &twin, &stubbed.site.join("missing"), stubbed.site.quilt.folder.as_path()] {
        stubbed.link_to(target);
        let (ran, reports) = stubbed.call(runtime, "", &["state", "x"])?;
        assert_eq!((ran.status.code(), reports.len()), (Some(1), 0), "{}: {ran:?}", target.display());
        for text in [stubbed.link().to_str().unwrap(), target.to_str().unwrap()] {
            assert!(ran.stderr.contains(text), "{text}: {}", ran.stderr);
        }
    }

    fs::remove_file(stubbed.link()).unwrap();
    let (ran, _) = stubbed.call(runtime, "", &["--version"])?;
    assert!(ran.stdout.starts_with("runc version "), "{ran:?}");
    say(ran.stdout.lines().next().unwrap_or_default());
    Ok(())
}

#[test]
fn a_list_that_names_only_ourselves_is_an_error() -> Result<()> {
    if !root_for("a_list_that_names_only_ourselves") {
        return Ok(());
    }
    let binaries = Binaries::locate()?;
    let options = QuiltOptions { low_level: vec![binaries.runtime.clone()], ..QuiltOptions::default() };
    let stubbed = Stubbed { site: Site::with(|host| host.gpus(1), &options)?, binaries };
    let bundle = stubbed.bundle("plain", &Spec::new())?;
    let words = ["create", "--bundle", bundle.path.to_str().unwrap(), "x"];
    let (ran, reports) = stubbed.call(&stubbed.binaries.runtime, "", &words)?;
    assert_eq!((ran.status.code(), reports.len()), (Some(1), 0), "{ran:?}");
    assert!(ran.stderr.contains(stubbed.binaries.runtime.to_str().unwrap()), "{ran:?}");
    Ok(())
}
