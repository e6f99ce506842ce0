//! The embedded engine by itself, as engines call it: what runc does it does, and what libcontainer would leave out is there
//! or is an error. What it knows of specs is a table in `engine/src/unsupported.rs`.
#![allow(clippy::unwrap_used)]

mod ends;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use integration::{Binaries, Bundle, Result, Rootfs, Runc, Scratch, Spec, root_for, run};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use serde_json::{Value, json};

/// The engine with a state root of its own, and runc beside it.
struct Bench {
    engine: Runc,
    runc: Runc,
    rootfs: Rootfs,
    scratch: Scratch,
}

impl Bench {
    fn new(test: &str) -> Result<Option<Self>> {
        if !root_for(test) {
            return Ok(None);
        }
        let scratch = Scratch::new()?;
        let engine = Runc::new(Binaries::locate()?.engine, scratch.join("engine"))?;
        let runc = Runc::new("/usr/sbin/runc", scratch.join("runc"))?;
        let rootfs = Rootfs::busybox(scratch.join("rootfs"))?;
        Ok(Some(Self { engine, runc, rootfs, scratch }))
    }

    fn bundle(&self, name: &str, spec: &Spec) -> Result<Bundle> {
        Bundle::new(self.scratch.join(name), spec, &self.rootfs)
    }
}

/// The id of a test's container: its own on this machine.
fn id(name: &str) -> String {
    format!("eng-{name}-{}", std::process::id())
}

fn pid(bundle: &Bundle) -> String {
    fs::read_to_string(bundle.path.join("init.pid")).unwrap()
}

#[test]
fn cve_2019_5736() -> Result<()> {
    let Some(bench) = Bench::new("cve_2019_5736")? else { return Ok(()) };
    let (name, spec) = (id("sealed"), Spec::new().args(["sleep", "600"]));
    let bundle = bench.bundle("sealed", &spec)?;
    bench.engine.create(&name, &bundle)?.checked()?;
    // What a process in the container would find behind /proc/<pid>/exe: no file of the host, and none that can change.
    let exe = format!("/proc/{}/exe", pid(&bundle));
    let behind = fs::read_link(&exe).unwrap().display().to_string();
    assert!(behind.starts_with("/memfd:quilt-gpu-engine"), "{behind}");
    let file = fs::File::open(&exe).unwrap();
    let seals = SealFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GET_SEALS).unwrap());
    let all = SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
    assert!(seals.contains(all), "{seals:?}");
    assert!(fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd())).is_err());
    Ok(())
}

/// `/proc/self/status`, what of it is about rights, and whether SIGPIPE (13) is ignored.
fn rights(text: &str) -> BTreeMap<&str, String> {
    let fields = text.lines().filter_map(|line| line.split_once(':')).map(|(key, value)| (key, value.trim()));
    let wanted = fields.filter(|(key, _)| key.starts_with("Cap") || ["NoNewPrivs", "Seccomp", "SigIgn"].contains(key));
    let ignored = |mask: &str| (u64::from_str_radix(mask, 16).unwrap() >> 12 & 1).to_string();
    wanted.map(|(key, value)| (key, if key == "SigIgn" { ignored(value) } else { value.to_owned() })).collect()
}

#[test]
fn a_filter_holds_in_the_first_process_and_in_what_exec_starts() -> Result<()> {
    let Some(bench) = Bench::new("a_filter_holds")? else { return Ok(()) };
    let filter = json!({"defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}]});
    for (user, nnp) in [(0, false), (0, true), (1000, false)] {
        let shell = "cat /proc/self/status; mkdir /tmp/x; echo $?";
        let spec = Spec::new().args(["sh", "-c", &format!("{shell}; exec sleep 600")]).edit(|spec| {
            spec["linux"]["seccomp"] = filter.clone();
            spec["process"]["user"] = json!({"uid": user, "gid": user});
            if nnp {
                spec["process"]["noNewPrivileges"] = true.into();
            }
        });
        let mut seen = Vec::new();
        for (runtime, which) in [(&bench.engine, "engine"), (&bench.runc, "runc")] {
            let name = id(&format!("filter-{which}-{user}-{nnp}"));
            let bundle = bench.bundle(&name, &spec)?;
            runtime.create(&name, &bundle)?.checked()?;
            runtime.start(&name)?.checked()?;
            let started = runtime.exec(&name, &["sh", "-c", shell])?.stdout;
            assert!(started.trim_end().ends_with('1'), "{which} {user} {nnp}: {started}");
            let first = fs::read_to_string(bundle.path.join("stdout")).unwrap();
            seen.push((first, started));
        }
        let seen: Vec<_> = seen.iter().map(|(first, started)| (rights(first), rights(started))).collect();
        assert_eq!((&*seen[0].1["Seccomp"], &*seen[0].1["SigIgn"]), ("2", "0"), "{seen:?}");
        assert_eq!(seen[0], seen[1], "{user} {nnp}: as under runc");
    }
    Ok(())
}

#[test]
fn state_has_the_fields_that_engines_read() -> Result<()> {
    let Some(bench) = Bench::new("state_has_the_fields")? else { return Ok(()) };
    let spec = Spec::new().args(["sleep", "600"]).annotation("a.key", "value");
    let shape = |state: Value| -> BTreeMap<String, bool> {
        state.as_object().unwrap().iter().map(|(key, value)| (key.clone(), value.is_string())).collect()
    };
    let mut shapes = Vec::new();
    for (runtime, which) in [(&bench.engine, "engine"), (&bench.runc, "runc")] {
        let name = id(&format!("state-{which}"));
        let bundle = bench.bundle(&name, &spec)?;
        runtime.create(&name, &bundle)?.checked()?;
        let state = runtime.state(&name)?.unwrap();
        assert_eq!((&state["status"], state["pid"].to_string()), (&json!("created"), pid(&bundle)), "{which}");
        runtime.start(&name)?.checked()?;
        assert_eq!(runtime.state(&name)?.unwrap()["status"], "running");
        assert!(!runtime.delete(&name, false)?.ok());
        for words in [["pause", "paused"], ["resume", "running"]] {
            runtime.call(&name, &[words[0], &name])?.checked()?;
            assert_eq!(runtime.state(&name)?.unwrap()["status"], words[1], "{which}");
        }
        runtime.kill(&name, "KILL")?.checked()?;
        runtime.wait_stopped(&name)?;
        let state = runtime.state(&name)?.unwrap();
        assert_eq!((&state["pid"], &state["rootfs"]), (&json!(0), &json!(bundle.path.join("rootfs"))), "{which}");
        shapes.push(shape(state));
        assert!(runtime.kill(&name, "KILL")?.stderr.contains("container not running"), "{which}");
        runtime.delete(&name, false)?.checked()?;
        assert!(runtime.delete(&name, false)?.stderr.contains("does not exist"), "{which}");
        runtime.delete(&name, true)?.checked()?;
    }
    assert_eq!(shapes[0], shapes[1]);
    Ok(())
}

#[test]
fn what_fails_is_told_and_leaves_nothing() -> Result<()> {
    let Some(bench) = Bench::new("what_fails_is_told")? else { return Ok(()) };
    type Edit = fn(&mut Value);
    let table: [(&str, Edit, &str); 6] = [
        ("program", |spec| spec["process"]["args"] = json!(["nonesuch"]), "executable file not found in $PATH"),
        ("folder", |spec| spec["process"]["args"] = json!(["/bin"]), "permission denied"),
        (
            "capability",
            |spec| spec["process"]["capabilities"]["bounding"] = json!(["CAP_NEW"]),
            "/process/capabilities/bounding/0",
        ),
        ("root", |spec| spec["root"]["path"] = json!("none"), "No such file or directory"),
        (
            "source",
            |spec| spec["mounts"] = json!([{"destination": "/x", "source": "/none", "options": ["bind"]}]),
            "/none",
        ),
        (
            "agent",
            |spec| spec["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/a"}),
            "/linux/seccomp/listenerPath",
        ),
    ];
    for (case, change, words) in table {
        let name = id(case);
        let spec = Spec::new().args(["true"]).cgroup(&format!("/{name}")).edit(change);
        let bundle = bench.bundle(case, &spec)?;
        let ran = bench.engine.create(&name, &bundle)?;
        assert!(!ran.ok() && ran.stderr.contains(words), "{case}: {ran:?}");
        assert!(bench.engine.last_error(&name).is_some_and(|line| line.contains(words)), "{case}: the log");
        assert!(!bench.engine.root().join(&name).exists(), "{case}: its state is left");
        for group in ["/sys/fs/cgroup/devices", "/sys/fs/cgroup"] {
            assert!(!Path::new(group).join(&name).exists(), "{case}: its control group is left");
        }
    }
    let name = id("mapped");
    let bundle = bench.bundle("mapped", &Spec::new().args(["sleep", "600"]).user_namespace(100_000, 65_536))?;
    if bench.engine.create(&name, &bundle)?.ok() {
        bench.engine.start(&name)?.checked()?;
        let ran = bench.engine.exec(&name, &["true"])?;
        assert!(!ran.ok() && ran.stderr.contains("does not enter a user namespace"), "{ran:?}");
    }
    Ok(())
}

/// `make demo` on a machine without runc and crun: they are hidden, and what was built beside the runtime serves.
#[test]
fn the_demonstration_needs_no_other_runtime() -> Result<()> {
    if !root_for("the_demonstration_needs_no_other_runtime") {
        return Ok(());
    }
    let hide = "for folder in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /usr/libexec/crio; do \
        for name in runc crun; do [ ! -e $folder/$name ] || mount --bind /dev/null $folder/$name; done; done";
    let binaries = Binaries::locate()?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &format!("{hide}; exec \"$@\""), "sh"]);
    command.arg(&binaries.helper).args(["demo", "--runtime"]).arg(&binaries.runtime);
    let told = run(&mut command, None, Duration::from_secs(120))?.checked()?.stdout;
    let line = told.lines().find(|line| line.starts_with("low-level runtime")).unwrap_or_default();
    assert!(line.contains("quilt-gpu-engine") && line.ends_with("device filters hold"), "{told}");
    Ok(())
}

/// The C library would load modules that the image names, to find its user's home.
#[test]
fn cve_2019_14271() -> Result<()> {
    let Some(bench) = Bench::new("cve_2019_14271")? else { return Ok(()) };
    bench.rootfs.write("etc/passwd", b"app:x:7:7::/home/app:/bin/sh\n")?;
    bench.rootfs.write("etc/nsswitch.conf", b"passwd: evil\n")?;
    let spec =
        Spec::new().args(["sh", "-c", "echo $HOME"]).edit(|spec| spec["process"]["user"] = json!({"uid": 7, "gid": 7}));
    let bundle = bench.bundle("home", &spec)?;
    assert_eq!(bench.engine.whole_life(&id("home"), &bundle)?, "/home/app\n");
    let engine = fs::read(Binaries::locate()?.engine).unwrap();
    let has = |word: &[u8]| engine.windows(word.len()).any(|part| part == word);
    assert!(has(b"/etc/passwd") && !has(b"nsswitch.conf"), "the engine looks users up by the C library");
    Ok(())
}

/// A call on a terminal of its own, which is `script`'s: 33 lines of 77, and told what it is before and after.
struct Typist {
    script: Child,
    input: ChildStdin,
    said: String,
}

impl Typist {
    fn sit_down(call: &Command) -> Self {
        let words = std::iter::once(call.get_program()).chain(call.get_args());
        let words: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
        let line = "stty rows 33 cols 77; echo on $(tty) before $(stty -g)";
        let line = format!("{line}; {}; echo status $? after $(stty -g) end", words.join(" "));
        let mut script = Command::new("script");
        script.args(["--quiet", "--command", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = script.spawn().unwrap();
        Self { input: script.stdin.take().unwrap(), script, said: String::new() }
    }

    /// What was said up to this word.
    fn hear(&mut self, word: &str) -> &str {
        let out = self.script.stdout.as_mut().unwrap();
        let mut byte = [0];
        while !self.said.ends_with(word) && out.read(&mut byte).unwrap() > 0 {
            self.said.push(byte[0].into());
        }
        assert!(self.said.ends_with(word), "{word}: {}", self.said);
        &self.said
    }
}

impl Drop for Typist {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

#[test]
fn a_terminal_in_the_foreground_is_the_callers() -> Result<()> {
    let Some(bench) = Bench::new("a_terminal_in_the_foreground")? else { return Ok(()) };
    let talk = "tty; stat -c %u $(tty); stty size; echo ready; until [ \"$(stty size)\" = '44 99' ]; do :; done; \
        read line; echo heard $line; exit 7";
    bench.rootfs.write("talk", talk.as_bytes())?;
    for (runtime, which) in [(&bench.engine, "engine"), (&bench.runc, "runc")] {
        let (sleeping, name) = (id(&format!("tty-exec-{which}")), id(&format!("tty-run-{which}")));
        let spec =
            Spec::new().args(["sleep", "600"]).edit(|spec| spec["process"]["user"] = json!({"uid": 5, "gid": 5}));
        runtime.create(&sleeping, &bench.bundle(&sleeping, &spec)?)?.checked()?;
        runtime.start(&sleeping)?.checked()?;
        let spec = spec.args(["sh", "/talk"]).edit(|spec| spec["process"]["terminal"] = true.into());
        let bundle = bench.bundle(&name, &spec)?;
        let (mut ran, mut added) = (runtime.command(&name), runtime.command(&sleeping));
        ran.arg("run").arg("--bundle").arg(&bundle.path).arg(&name);
        added.args(["exec", "--tty", &sleeping, "sh", "/talk"]);
        for (call, verb) in [(ran, "run"), (added, "exec")] {
            let mut typist = Typist::sit_down(&call);
            let said = typist.hear("ready").to_owned();
            let (outer, before) = (said.split(' ').nth(1).unwrap(), said.split_whitespace().nth(3).unwrap());
            run(Command::new("stty").args(["-F", outer, "rows", "44", "cols", "99"]), None, Duration::from_secs(10))?
                .checked()?;
            typist.input.write_all(b"words\r").unwrap();
            let said = typist.hear("end").to_owned();
            assert!(said.contains(&format!("status 7 after {before} ")), "{which} {verb}: {said}");
            assert!(said.contains("heard words"), "{which} {verb}: {said}");
            // runc sees to size and line ends when the program may have begun, so what it says differs from time to time.
            if which == "engine" {
                let inside = said.split_once('\n').and_then(|(_, rest)| rest.split_once("status")).unwrap().0;
                let expected = "/dev/pts/0\r\n5\r\n33 77\r\nready\r\nwords\r\nheard words\r\n";
                assert_eq!(inside, expected, "{verb}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_group_without_a_device_list_is_closed() -> Result<()> {
    let Some(bench) = Bench::new("a_group_without_a_device_list")? else { return Ok(()) };
    // fuse: of everything a container never has, what every kernel knows. Lists without a deny in front are no lists.
    let table = [
        ("none", Value::Null, "Operation not permitted"),
        (
            "only-allowed",
            json!([{"allow": true, "type": "c", "major": 10, "minor": 200, "access": "rw"}]),
            "not permitted",
        ),
        ("open", json!([{"allow": true, "access": "rwm"}]), "opened"),
    ];
    for (case, list, words) in table {
        let open = "(: < /dev/open) 2>&1 && echo opened; : < /dev/null && echo null";
        let spec = Spec::new().args(["sh", "-c", open]).device("/dev/open", 'c', 10, 229);
        let spec = spec.edit(|spec| spec["linux"]["resources"]["devices"] = list);
        for (runtime, which) in [(&bench.engine, "engine"), (&bench.runc, "runc")] {
            let name = id(&format!("closed-{case}-{which}"));
            let said = runtime.whole_life(&name, &bench.bundle(&name, &spec)?)?;
            assert!(said.contains(words) && said.ends_with("null\n"), "{which} {case}: {said}");
        }
    }
    Ok(())
}

#[test]
fn over_procfs_nothing_else_is_mounted() -> Result<()> {
    let Some(bench) = Bench::new("over_procfs")? else { return Ok(()) };
    std::os::unix::fs::symlink("/proc", bench.rootfs.path.join("other")).unwrap();
    std::os::unix::fs::symlink("/tmp", bench.rootfs.path.join("linked")).unwrap();
    let file = bench.scratch.join("file");
    fs::write(&file, "words").unwrap();
    let bind = |at: &str| json!({"destination": at, "type": "bind", "source": file, "options": ["bind"]});
    let proc = |at: &str| json!({"destination": at, "type": "proc", "source": "proc"});
    let table = [
        (json!({"destination": "/proc", "type": "tmpfs", "source": "tmpfs"}), false),
        (json!({"destination": "/proc/sys", "type": "tmpfs", "source": "tmpfs"}), false),
        (bind("/proc/self/attr/exec"), false),
        (bind("/other/version"), false),
        (bind("/proc/uptime"), true),
        (bind("/process"), true),
        (json!({"destination": "/proc", "type": "bind", "source": "/proc", "options": ["rbind"]}), true),
        (proc("/linked"), false),
        (proc("/tmp"), true),
    ];
    for (number, (mount, fine)) in table.into_iter().enumerate() {
        let spec = Spec::new().args(["true"]).mount(mount.clone());
        // runc 1.1 looks at binds alone.
        let both = [(&bench.engine, "engine"), (&bench.runc, "runc")];
        for (runtime, which) in both.into_iter().take(if mount["type"] == "tmpfs" { 1 } else { 2 }) {
            let name = id(&format!("proc-{number}-{which}"));
            let ran = runtime.create(&name, &bench.bundle(&name, &spec)?)?;
            assert_eq!(ran.ok(), fine, "{which} {mount}: {ran:?}");
            assert!(fine || !runtime.root().join(&name).exists(), "{which} {mount}: its state is left");
        }
    }
    Ok(())
}
