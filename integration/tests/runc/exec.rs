//! `exec` adds a process to a container, not rights: what the container itself could not open, no process added to it opens.
//!
//! Each road is taken by the bare runtime too, where it must lead out: else it would prove nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use integration::{PROBE_ALL, Ran, Result, Runc, Seen, Spec, run, say};
use serde_json::{Value, json};

use crate::updates::newer;
use crate::{Bench, CRUN, RUNC, VERSION_1, VERSION_2, inside};

/// Says what it may, makes itself free of every device filter that it can reach, and looks what opens.
const ROADS: [(&str, &str); 2] = [
    (
        "into the groups of all",
        "mkdir -p /tmp/1 /tmp/2
         mount -t cgroup -o devices none /tmp/1; echo 0 >/tmp/1/cgroup.procs
         mount -t cgroup2 none /tmp/2; echo 0 >/tmp/2/cgroup.procs",
    ),
    (
        "more for the own group",
        "mkdir -p /tmp/3; mount -t cgroup -o devices none /tmp/3
         echo 'a *:* rwm' >/tmp/3$(sed -n 's/^[0-9]*:devices://p' /proc/self/cgroup)/devices.allow",
    ),
];

fn script(road: &str) -> String {
    format!("grep ^Cap /proc/self/status; {{ {road}\n}} >/dev/null 2>&1; exec {}", PROBE_ALL.join(" "))
}

/// All that a privileged process has on a machine that lacks CAP_SYS_RESOURCE.
fn all() -> Vec<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let own = mask(&status, "CapBnd");
    let names = "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE \
        NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE \
        SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL \
        SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE";
    let has = |number: usize| own >> number & 1 == 1;
    names.split(' ').enumerate().filter(|(number, _)| has(*number)).map(|(_, name)| format!("CAP_{name}")).collect()
}

fn mask(status: &str, set: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':'));
    line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or_else(|| panic!("no {set} in {status}"))
}

/// SYS_ADMIN, SYS_MODULE, SYS_RAWIO, DAC_READ_SEARCH, BPF, PERFMON, SYS_BOOT.
const PAST_THE_BOUNDARY: u64 = 1 << 21 | 1 << 16 | 1 << 17 | 1 << 2 | 1 << 39 | 1 << 38 | 1 << 22;

/// What a process had of those in any of its sets.
fn reaching(output: &str) -> u64 {
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    sets.iter().fold(0, |all, set| all | mask(output, set)) & PAST_THE_BOUNDARY
}

/// The process document of `exec --privileged`, as containerd writes it; older ones and Podman fill all five sets.
fn process(command: &[&str], names: &[String]) -> Value {
    json!({
        "user": {"uid": 0, "gid": 0}, "args": command, "cwd": "/", "env": ["PATH=/usr/bin:/bin"],
        "capabilities": {
            "bounding": names, "effective": names, "permitted": names, "inheritable": names, "ambient": names,
        },
    })
}

/// A container in reach of the product and of the bare runtime.
struct Two {
    bench: Bench,
    bare: Runc,
}

impl Two {
    fn prepared(test: &str, low_level: &str, prepare: &str) -> Result<Option<Self>> {
        if !Path::new(low_level).exists() {
            say(format_args!("{test}: skipped, {low_level} is not there"));
            return Ok(None);
        }
        let Some(bench) = Bench::within(test, low_level, prepare)? else { return Ok(None) };
        // One state root: the containers of one are the other's.
        let program = inside(bench.site.join("bare"), Path::new(low_level), prepare)?;
        let bare = Runc::new(program, bench.site.join("runc"))?;
        Ok(Some(Self { bench, bare }))
    }

    fn exec(&self, runtime: &Runc, id: &str, document: &Value) -> Result<Ran> {
        let file = self.bench.site.join("process.json");
        fs::write(&file, document.to_string()).unwrap();
        runtime.call(id, &["exec", "--process", &file.to_string_lossy(), id])
    }

    fn notes(&self) -> Vec<String> {
        let audit = self.bench.site.quilt.audit();
        let said = audit.iter().filter(|entry| entry["kind"] == "exec").filter_map(|entry| entry["message"].as_str());
        said.filter(|text| text.starts_with("exec-caps: ")).map(str::to_owned).collect()
    }
}

/// Q66, H5: CVE-2022-29162, CVE-2022-27650, and youki before 0.5.3.
fn no_process_gets_out(test: &str, low_level: &str, prepare: &str, spellings: &[&str]) -> Result<()> {
    let Some(two) = Two::prepared(test, low_level, prepare)? else { return Ok(()) };
    let Two { bench, bare } = &two;
    let mut written: Vec<Vec<String>> = vec![all()];
    written.extend(
        spellings.iter().map(|name| vec![(*name).to_owned(), "CAP_DAC_OVERRIDE".to_owned(), "CAP_MKNOD".to_owned()]),
    );
    for (id, spec, gpus) in [
        ("granted", Spec::new().env("QUILT_GPU_IDS", "nvidia0"), BTreeSet::from([0])),
        ("plain", Spec::new(), BTreeSet::new()),
    ] {
        assert_eq!(bench.sleeper(id, &spec)?.gpus()?, gpus, "{id}");
        for (road, steps) in ROADS.iter().filter(|(road, _)| prepare != VERSION_2 || !road.contains("own")) {
            let script = script(steps);
            for names in &written {
                let document = process(&["sh", "-c", &script], names);
                let before = two.notes().len();
                let said = two.exec(&bench.runc, id, &document)?.checked()?.stdout;
                assert_eq!(Seen::of(&said)?.gpus()?, gpus, "{id}, {road}, {names:?}");
                assert_eq!(reaching(&said), 0, "{id}, {road}, {names:?}: {said}");
                assert_eq!(two.notes().len(), before + 1, "{id}, {road}, {names:?}: it is noted");
            }
        }
        // The container is as it was, and what it has itself a process may have.
        assert_eq!(bench.look(id)?.gpus()?, gpus, "{id}");
        let kept = two.exec(&bench.runc, id, &process(&["cat", "/proc/self/status"], &all()))?.checked()?.stdout;
        assert_eq!(mask(&kept, "CapEff") >> 27 & 1, 1, "{id}: CAP_MKNOD stays");
    }
    // Last: the group of the container is not what it was afterwards.
    for (road, steps) in ROADS.iter().filter(|(road, _)| prepare != VERSION_2 || !road.contains("own")) {
        for names in &written {
            let said = two.exec(bare, "plain", &process(&["sh", "-c", &script(steps)], names))?.checked()?.stdout;
            assert!(Seen::of(&said)?.open_numbers().len() > 200, "{road}, {names:?}: the bare runtime lets it out");
        }
    }
    Ok(())
}

#[test]
fn cve_2022_29162_no_exec_gains_a_capability_over_runc() -> Result<()> {
    no_process_gets_out("cve_2022_29162_no_exec_gains_a_capability_over_runc", RUNC, "true", &["CAP_SYS_ADMIN"])
}

#[test]
fn cve_2022_29162_no_exec_gains_a_capability_over_runc_in_version_2() -> Result<()> {
    no_process_gets_out("cve_2022_29162_no_exec_gains_a_capability_over_runc_in_version_2", RUNC, VERSION_2, &[])
}

/// crun takes a name in any case, a number, and what follows either.
const LIBCAPS: &[&str] = &["cap_sys_admin", "21", "0x15", "cap_sys_admin=ep"];

#[test]
fn cve_2022_27650_no_exec_gains_a_capability_over_crun() -> Result<()> {
    no_process_gets_out("cve_2022_27650_no_exec_gains_a_capability_over_crun", CRUN, VERSION_1, LIBCAPS)
}

#[test]
fn cve_2022_27650_no_exec_gains_a_capability_over_crun_in_version_2() -> Result<()> {
    let test = "cve_2022_27650_no_exec_gains_a_capability_over_crun_in_version_2";
    let Some(crun) = newer(test, "crun-1.21") else { return Ok(()) };
    no_process_gets_out(test, &crun.to_string_lossy(), VERSION_2, LIBCAPS)
}

#[test]
fn no_exec_gains_a_capability_over_youki() -> Result<()> {
    let test = "no_exec_gains_a_capability_over_youki";
    let Some(youki) = newer(test, "youki") else { return Ok(()) };
    let youki = youki.to_string_lossy();
    no_process_gets_out(test, &youki, "true", &["sys_admin", "CAP_CAP_SYS_ADMIN"])?;
    // Without a word on capabilities youki gives all.
    let Some(two) = Two::prepared(&format!("{test}_silent"), &youki, "true")? else { return Ok(()) };
    two.bench.sleeper("plain", &Spec::new())?;
    for said in [None, Some(Value::Null)] {
        let mut document = process(&["cat", "/proc/self/status"], &[]);
        match &said {
            Some(null) => document["capabilities"] = null.clone(),
            None => drop(document.as_object_mut().unwrap().remove("capabilities")),
        }
        let has = |runc| -> Result<String> { Ok(two.exec(runc, "plain", &document)?.checked()?.stdout) };
        assert_eq!(mask(&has(&two.bare)?, "CapEff") >> 21 & 1, 1, "{said:?}: the bare runtime gives CAP_SYS_ADMIN");
        let first = &two.bench.runc.state("plain")?.unwrap()["pid"];
        let own = fs::read_to_string(format!("/proc/{first}/status")).unwrap();
        for set in ["CapBnd", "CapEff", "CapPrm"] {
            assert_eq!(mask(&has(&two.bench.runc)?, set), mask(&own, "CapBnd"), "{said:?} {set}");
        }
    }
    Ok(())
}

/// H5: its first process has all capabilities in a user namespace that it made for itself, and what is added to the container
/// comes into the machine's.
fn who_leaves_the_user_namespace_gains_nothing(test: &str, low_level: &str) -> Result<()> {
    let Some(two) = Two::prepared(test, low_level, "true")? else { return Ok(()) };
    let Two { bench, bare } = &two;
    let script = script(ROADS[0].1);
    let document = process(&["sh", "-c", &script], &all());
    let left = Spec::new().args(["unshare", "-U", "quilt-probe", "sleep"]);
    for (id, spec, gpus) in [
        ("granted", left.clone().env("QUILT_GPU_IDS", "nvidia0"), BTreeSet::from([0])),
        ("plain", left, BTreeSet::new()),
    ] {
        bench.runc.create(id, &bench.bundle(id, &spec)?)?.checked()?;
        bench.runc.start(id)?.checked()?;
        let pid = bench.runc.state(id)?.and_then(|state| state["pid"].as_u64()).unwrap();
        let users = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/user")).unwrap();
        let begun = Instant::now();
        while users(&pid.to_string()) == users("self") {
            assert!(begun.elapsed() < Duration::from_secs(20), "{id}: it stays in the machine's user namespace");
        }
        let flags = ["exec", "--cap", "CAP_SYS_ADMIN", "--cap", "CAP_DAC_OVERRIDE", id, "sh", "-c", &script];
        for said in [two.exec(&bench.runc, id, &document)?, bench.runc.call(id, &flags)?] {
            let said = said.checked()?.stdout;
            assert_eq!((Seen::of(&said)?.gpus()?, reaching(&said)), (gpus.clone(), 0), "{id}: {said}");
        }
        assert_eq!(two.notes().len(), if id == "granted" { 2 } else { 4 });
    }
    let said = two.exec(bare, "plain", &document)?.checked()?.stdout;
    assert!(Seen::of(&said)?.open_numbers().len() > 200, "the bare runtime lets it out");
    Ok(())
}

#[test]
fn who_leaves_the_user_namespace_gains_nothing_over_runc() -> Result<()> {
    who_leaves_the_user_namespace_gains_nothing("who_leaves_the_user_namespace_gains_nothing_over_runc", RUNC)
}

#[test]
fn who_leaves_the_user_namespace_gains_nothing_over_the_engine() -> Result<()> {
    let test = "who_leaves_the_user_namespace_gains_nothing_over_the_engine";
    let Some(engine) = newer(test, "engine") else { return Ok(()) };
    who_leaves_the_user_namespace_gains_nothing(test, &engine.to_string_lossy())
}

/// H5: the same by flags, and in the places where the process file may come from.
#[test]
fn no_flag_gains_a_capability() -> Result<()> {
    let Some(two) = Two::prepared("no_flag_gains_a_capability", RUNC, "true")? else { return Ok(()) };
    let Two { bench, bare } = &two;
    bench.sleeper("plain", &Spec::new())?;
    let script = script(ROADS[0].1);
    let calls = [
        vec!["--cap", "CAP_SYS_ADMIN"],
        vec!["--cap=CAP_SYS_ADMIN", "--cap", "CAP_NET_RAW"],
        vec!["-c", "CAP_NET_RAW", "-c", "CAP_SYS_ADMIN", "--env", "A=b", "-c", "CAP_DAC_READ_SEARCH"],
    ]
    .map(|flags| [vec!["exec"], flags, vec!["plain", "sh", "-c", &script]].concat());
    for call in &calls {
        let said = bench.runc.call("plain", call)?.checked()?.stdout;
        assert_eq!((Seen::of(&said)?.gpus()?, reaching(&said)), (BTreeSet::new(), 0), "{call:?}");
    }
    assert_eq!(two.notes().len(), 3);
    // A file that is read once only, and one that two readers read in two ways.
    let document = process(&["cat", "/proc/self/status"], &all()).to_string();
    let file = bench.site.join("piped.json");
    fs::write(&file, &document).unwrap();
    let piped = format!("cat '{}' | \"$@\"", file.display());
    let mut call = bench.runc.command("plain");
    call.args(["exec", "--process", "/dev/stdin", "plain"]);
    let words: Vec<String> = std::iter::once(call.get_program().to_owned())
        .chain(call.get_args().map(Into::into))
        .map(|w| w.to_string_lossy().into_owned())
        .collect();
    let mut shell = Command::new("sh");
    shell.args(["-c", &piped, "sh"]).args(&words);
    shell.envs(call.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let said = run(&mut shell, None, Duration::from_secs(20))?.checked()?.stdout;
    assert_eq!(reaching(&said), 0, "{said}");
    fs::write(&file, document.replacen("{", "{\"capabilities\":{},", 1)).unwrap();
    let twice = bench.runc.call("plain", &["exec", "--process", &file.to_string_lossy(), "plain"])?;
    assert!(!twice.ok() && twice.stderr.contains("UNSAFE_SPEC"), "{twice:?}");
    // One that says what it gives behind more than is read.
    let mut long = process(&["true"], &all());
    long["args"] = vec!["x".repeat(131_000); 72].into();
    let said = two.exec(&bench.runc, "plain", &long)?;
    assert!(!said.ok() && said.stderr.contains("quilt-gpu: UNSAFE_SPEC"), "{}", said.stderr);
    // Last: the file systems that it mounts stay.
    for call in &calls {
        let said = bare.call("plain", call)?.checked()?.stdout;
        assert!(Seen::of(&said)?.open_numbers().len() > 200, "{call:?}: the bare runtime lets it out");
    }
    Ok(())
}

/// The look-alikes: who has a capability keeps it, and in a user namespace of its own none reaches us.
#[test]
fn what_the_container_has_its_processes_may_have() -> Result<()> {
    let Some(two) = Two::prepared("what_the_container_has_its_processes_may_have", RUNC, "true")? else {
        return Ok(());
    };
    let Two { bench, .. } = &two;
    let admin = 1 << 21;
    bench.sleeper("admin", &Spec::new().capability("CAP_SYS_ADMIN"))?;
    let said = two.exec(&bench.runc, "admin", &process(&["cat", "/proc/self/status"], &all()))?.checked()?.stdout;
    assert_eq!(reaching(&said), admin);
    let apart = bench.bundle("apart", &Spec::new().args(["quilt-probe", "sleep"]).user_namespace(100_000, 65536))?;
    Command::new("chown").args(["-R", "100000:100000"]).arg(apart.path.join("rootfs")).status().unwrap();
    bench.runc.create("apart", &apart)?.checked()?;
    bench.runc.start("apart")?.checked()?;
    let said = two.exec(&bench.runc, "apart", &process(&["cat", "/proc/self/status"], &all()))?.checked()?.stdout;
    assert_eq!(reaching(&said) & admin, admin);
    assert_eq!(two.notes().len(), 1, "{:?}", two.notes());
    Ok(())
}

/// H6, CVE-2024-21626: a working folder behind an open handle of the runtime's.
#[test]
fn cve_2024_21626_no_exec_starts_behind_a_handle() -> Result<()> {
    let Some(two) = Two::prepared("cve_2024_21626_no_exec_starts_behind_a_handle", RUNC, "true")? else {
        return Ok(());
    };
    let bench = &two.bench;
    bench.sleeper("plain", &Spec::new())?;
    for cwd in ["/proc/self/fd/7", "/proc/1/root", "//proc/./self/../self/cwd", "/usr/../proc/thread-self/fd/8/../.."] {
        let mut document = process(&["true"], &[]);
        document["cwd"] = cwd.into();
        for answer in [
            bench.runc.call("plain", &["exec", "--cwd", cwd, "plain", "true"])?,
            bench.runc.call("plain", &["exec", &format!("--cwd={cwd}"), "plain", "true"])?,
            two.exec(&bench.runc, "plain", &document)?,
        ] {
            assert!(!answer.ok() && answer.stderr.contains("magic link"), "{cwd}: {answer:?}");
        }
        let escaped = document.to_string().replace("proc", "pr\\u006fc");
        let file = bench.site.join("escaped.json");
        fs::write(&file, escaped).unwrap();
        let answer = bench.runc.call("plain", &["exec", "--process", &file.to_string_lossy(), "plain"])?;
        assert!(!answer.ok() && answer.stderr.contains("magic link"), "{cwd}: {answer:?}");
    }
    for cwd in ["/proc", "/proc/sys", "/tmp", "/"] {
        bench.runc.call("plain", &["exec", "--cwd", cwd, "plain", "true"])?.checked()?;
    }
    Ok(())
}

/// H8: an open GPU that the engine hands on would be past every filter. Its stand-in is a console's memory, which can be opened
/// here and whose number the node says is a GPU driver's.
#[test]
fn no_open_gpu_is_handed_on() -> Result<()> {
    let Some(two) = Two::prepared("no_open_gpu_is_handed_on", RUNC, "true")? else { return Ok(()) };
    let Two { bench, bare } = &two;
    let gpu = bench.site.join("gpu");
    Command::new("mknod").arg(&gpu).args(["c", "7", "0"]).status().unwrap();
    if File::open(&gpu).is_err() {
        say(format_args!("no_open_gpu_is_handed_on: skipped, {} cannot be opened here", gpu.display()));
        return Ok(());
    }
    bench.sleeper("plain", &Spec::new())?;
    let majors = bench.site.host.root.join("proc/devices");
    let text = fs::read_to_string(&majors).unwrap();
    fs::write(&majors, text.replacen("Character devices:\n", "Character devices:\n  7 nvidia-vgpu-vfio\n", 1)).unwrap();
    let looks = ["sh", "-c", "head -c 1 <&3 >/dev/null && echo open"];
    let hand_on = |runtime: &Runc, env: &str, file: &Path, words: &[&str]| -> Result<Ran> {
        let command = runtime.command("fds");
        let mut shell = Command::new("sh");
        let text = format!("{env} exec \"$@\" 3<'{}'", file.display());
        shell.args(["-c", &text, "sh"]).arg(command.get_program()).args(command.get_args()).args(words);
        shell.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        run(&mut shell, None, Duration::from_secs(20))
    };
    let bundle = bench.bundle("fds", &Spec::new().args(looks))?;
    let folder = bundle.path.to_string_lossy().into_owned();
    let exec = [&["exec", "--preserve-fds", "1", "plain"], &looks[..]].concat();
    let made = ["run", "--preserve-fds=1", "--bundle", &folder, "fds"];
    let activated = ["run", "--bundle", &folder, "fds"];
    for (what, env, words) in [
        ("exec", "", exec.as_slice()),
        ("run", "", made.as_slice()),
        ("activation", "export LISTEN_FDS=1 LISTEN_PID=$$;", activated.as_slice()),
    ] {
        let answer = hand_on(bare, env, &gpu, words)?;
        assert!(answer.ok() && answer.stdout == "open\n", "{what}: the bare runtime hands it on: {answer:?}");
        let answer = hand_on(&bench.runc, env, &gpu, words)?;
        assert!(!answer.ok() && answer.stdout.is_empty(), "{what}: {answer:?}");
        assert!(answer.stderr.contains("TENANT_GPU_DEVICE") && answer.stderr.contains("7:0"), "{what}: {answer:?}");
        // What is no GPU is handed on.
        let answer = hand_on(&bench.runc, env, Path::new("/dev/zero"), words)?;
        assert_eq!(answer.checked()?.stdout, "open\n", "{what}");
    }
    Ok(())
}
