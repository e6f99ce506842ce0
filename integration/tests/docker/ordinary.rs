//! Containers that ask for nothing: each is led through the same life under plain runc and under quilt-gpu, and what
//! the user observes must be the same, word for word.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use integration::{Ran, Result, run};

use crate::{IMAGE, Yard};

/// Exit status, standard output, standard error.
type Observed = (Option<i32>, String, String);

fn observed(ran: Ran) -> Observed {
    // Of two goroutines of the client either may be the first to see a failed start.
    let raced = |line: &&str| !line.ends_with(r#"msg="error waiting for container: context canceled""#);
    let words = ran.stderr.split_inclusive('\n').filter(|line| raced(&line.trim_end())).collect();
    (ran.status.code(), ran.stdout, words)
}

impl Yard {
    /// The same call under both runtimes.
    fn same(&self, args: &[&str]) -> Result<Observed> {
        let of = |runtime| Ok(observed(self.docker.run(&[&["--rm", "--runtime", runtime], args].concat())?));
        let (plain, ours): (Observed, Observed) = (of("plain")?, of("quilt-gpu")?);
        assert_eq!(ours, plain, "docker run {args:?}");
        Ok(ours)
    }
}

#[test]
fn single_runs_are_the_same() -> Result<()> {
    let Some(yard) = Yard::new("single_runs_are_the_same", 1)? else { return Ok(()) };
    let (node, host) = (yard.site.host.node("nvidia0"), yard.site.join("note"));
    let mut file = File::create(&host).unwrap();
    writeln!(file, "a volume").unwrap();
    let volume = format!("{}:/note:ro", host.display());
    let inside = format!("exec 3<>/host{}", node.display());
    for (args, shell, expected) in [
        (&[][..], "echo out; echo err >&2; exit 7", (Some(7), "out\n", "err\n")),
        (&["--network", "none"], "ip addr | grep -c eth0", (Some(1), "0\n", "")),
        (&[], "ip addr show eth0 | grep -c inet; ip route | grep -c default", (Some(0), "1\n1\n", "")),
        (&["--network", "host"], "ip addr | grep -c docker0:", (Some(0), "1\n", "")),
        (&["--user", "1000:1000"], "id -u", (Some(0), "1000\n", "")),
        (&["--read-only", "--tmpfs", "/t"], "touch /t/x && touch /x", (Some(1), "", "read-only")),
        (&["-v", &volume], "cat /note", (Some(0), "a volume\n", "")),
        (&["-v", "/:/host"], "test -d /host/etc && echo yes", (Some(0), "yes\n", "")),
        (&["-v", "/:/host:ro"], "test -d /host/etc && echo yes", (Some(0), "yes\n", "")),
        (&["-v", "/:/host:ro"], &inside, (Some(1), "", "not permitted")),
        (&["--device", "/dev/fuse"], "exec 3<>/dev/fuse && echo open", (Some(0), "open\n", "")),
        (&["--pid", "host", "--ipc", "host"], "test -d /proc/2 && echo yes", (Some(0), "yes\n", "")),
        (&["--cap-drop", "all"], "grep CapEff /proc/self/status", (Some(0), "CapEff:\t0000000000000000\n", "")),
        (
            &["--hostname", "here", "-e", "A=b", "-w", "/tmp"],
            "hostname; echo $A; pwd",
            (Some(0), "here\nb\n/tmp\n", ""),
        ),
    ] {
        let (status, out, err) = yard.same(&[args, &[IMAGE, "sh", "-c", shell]].concat())?;
        assert_eq!((status, out.as_str()), (expected.0, expected.1), "{args:?} {shell}: {err}");
        assert!(err.to_lowercase().contains(expected.2), "{args:?} {shell}: {err}");
    }
    let (status, _, words) = yard.same(&[IMAGE, "no-such-program"])?;
    assert_eq!(status, Some(127));
    assert!(words.contains("no-such-program"), "{words}");
    Ok(())
}

#[test]
fn standard_input_and_terminals_are_the_same() -> Result<()> {
    let Some(yard) = Yard::new("standard_input_and_terminals_are_the_same", 1)? else { return Ok(()) };
    let input = yard.site.join("input");
    std::fs::write(&input, "line one\nline two\n").unwrap();
    let piped = |runtime| {
        let mut call = yard.docker.command();
        call.args(["run", "--rm", "-i", "--runtime", runtime, IMAGE, "cat"]);
        Ok(observed(run(&mut call, Some(File::open(&input).unwrap()), Duration::from_secs(30))?))
    };
    let plain: Result<Observed> = piped("plain");
    let (plain, ours) = (plain?, piped("quilt-gpu")?);
    assert_eq!(ours, plain);
    assert_eq!(ours.1, "line one\nline two\n");
    let (status, out, _) = yard.same(&["-t", IMAGE, "sh", "-c", "test -t 1 && echo terminal"])?;
    assert_eq!((status, out.trim()), (Some(0), "terminal"));
    Ok(())
}

/// What a user sees of one container's life, step by step.
fn life(yard: &Yard, runtime: &str) -> Result<Vec<(&'static str, Observed)>> {
    let script = "trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; echo begun; n=0; \
        while [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done";
    let start = ["run", "-d", "--runtime", runtime, "--name", "life", "-m", "64m", IMAGE, "sh", "-c", script];
    yard.docker.client(&start)?.checked()?;
    let mut seen = Vec::new();
    let mut step = |what, call: &[&str]| -> Result<()> {
        seen.push((what, observed(yard.docker.client(call)?)));
        Ok(())
    };
    step("exec", &["exec", "life", "sh", "-c", "echo in; exit 3"])?;
    step("exec as user", &["exec", "-u", "7", "-w", "/tmp", "-e", "X=y", "life", "sh", "-c", "id -u; pwd; echo $X"])?;
    step("exec of nothing", &["exec", "life", "no-such-program"])?;
    step("pause", &["pause", "life"])?;
    step("paused", &["inspect", "--format", "{{.State.Status}}", "life"])?;
    step("unpause", &["unpause", "life"])?;
    step("update", &["update", "--memory", "96m", "--memory-swap", "96m", "life"])?;
    step("top", &["top", "life", "-o", "comm"])?;
    step("signal", &["kill", "-s", "USR1", "life"])?;
    std::thread::sleep(Duration::from_millis(400));
    step("stop", &["stop", "life"])?;
    step("stopped", &["inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", "life"])?;
    step("logs", &["logs", "life"])?;
    step("start", &["start", "life"])?;
    step("restart", &["restart", "-t", "0", "life"])?;
    step("restarted", &["inspect", "--format", "{{.State.Status}}", "life"])?;
    step("kill", &["kill", "life"])?;
    step("wait", &["wait", "life"])?;
    step("killed", &["inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", "life"])?;
    step("start again", &["start", "life"])?;
    step("remove", &["rm", "-f", "life"])?;
    step("gone", &["ps", "-aq"])?;
    Ok(seen)
}

#[test]
fn a_containers_life_is_the_same() -> Result<()> {
    let Some(yard) = Yard::new("a_containers_life_is_the_same", 1)? else { return Ok(()) };
    let plain = life(&yard, "plain")?;
    let ours = life(&yard, "quilt-gpu")?;
    for (plain, ours) in plain.iter().zip(&ours) {
        assert_eq!(ours, plain);
    }
    let of = |what| ours.iter().find(|(step, _)| *step == what).map(|(_, seen)| seen.clone()).unwrap();
    assert_eq!(of("exec"), (Some(3), "in\n".into(), String::new()));
    assert_eq!(of("exec as user").1, "7\n/tmp\ny\n");
    assert_eq!(of("paused").1, "paused\n");
    assert_eq!(of("stopped").1, "exited 9\n");
    assert_eq!(of("logs").1, "begun\nusr1\nterm\n");
    assert_eq!(of("restarted").1, "running\n");
    assert_eq!(of("killed").1, "exited 137\n");
    assert_eq!(of("gone").1, "");
    Ok(())
}

#[test]
fn running_out_of_memory_is_the_same() -> Result<()> {
    let Some(yard) = Yard::new("running_out_of_memory_is_the_same", 1)? else { return Ok(()) };
    for runtime in ["plain", "quilt-gpu"] {
        // Docker loses its word for it, whatever the runtime, when it hears of the end before the cause: rare, and under load.
        let mut told = Vec::new();
        for attempt in 0..3 {
            let name = format!("oom-{runtime}-{attempt}");
            let call = ["--runtime", runtime, "--name", &name, "-m", "16m", "--memory-swap", "16m", IMAGE];
            let ran = yard.docker.run(&[&call[..], &["tail", "/dev/zero"]].concat())?;
            assert_eq!(ran.status.code(), Some(137), "{runtime}: {ran:?}");
            told.push(yard.inspect(&name, ".State.OOMKilled")?);
            if told.last().is_some_and(|word| word == "true") {
                break;
            }
        }
        assert_eq!(told.last().map(String::as_str), Some("true"), "{runtime}: {told:?}");
    }
    Ok(())
}

#[test]
fn a_build_through_the_default_runtime_works() -> Result<()> {
    let Some(yard) = Yard::new("a_build_through_the_default_runtime_works", 1)? else { return Ok(()) };
    // What an operator does who wants every container to go through it: SIGHUP makes the daemon read the file again.
    let file = yard.docker.folder().join("daemon.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    config["default-runtime"] = "quilt-gpu".into();
    std::fs::write(&file, config.to_string()).unwrap();
    yard.docker.reload()?;
    let name = |yard: &Yard| Ok(yard.docker.client(&["info", "--format", "{{.DefaultRuntime}}"])?.checked()?.stdout);
    for _ in 0..100 {
        let now: Result<String> = name(&yard);
        if now?.trim() == "quilt-gpu" {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let now: Result<String> = name(&yard);
    assert_eq!(now?.trim(), "quilt-gpu");

    let folder = yard.site.join("context");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("Dockerfile"), format!("FROM {IMAGE}\nRUN echo built >/built\n")).unwrap();
    let mut build = yard.docker.command();
    build.env("DOCKER_BUILDKIT", "0").args(["build", "-q", "-t", "built:1"]).arg(&folder);
    run(&mut build, None, Duration::from_secs(60))?.checked()?;
    assert_eq!(yard.docker.run(&["--rm", "built:1", "cat", "/built"])?.checked()?.stdout, "built\n");
    Ok(())
}
