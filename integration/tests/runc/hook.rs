//! The hook alone in a config.json under plain runc: nobody made a contract, so no container may reach a GPU. And what it
//! owes to containers that the runtime made.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use integration::{Bundle, PROBE_ALL, Ran, Result, Runc, Seen, Spec, say};
use serde_json::{Value, json};

use crate::{Bench, CRUN, RUNC, VERSION_1};

/// Plain runc, and our hook at one stage of every bundle.
struct Hooked<'a> {
    bench: &'a Bench,
    runc: Runc,
    stage: &'a str,
}

impl<'a> Hooked<'a> {
    fn new(bench: &'a Bench, stage: &'a str) -> Result<Self> {
        Ok(Self { bench, runc: Runc::new(RUNC, bench.site.join(format!("plain-{stage}")))?, stage })
    }

    fn bundle(&self, id: &str, spec: Spec) -> Result<Bundle> {
        self.bench.bundle(&format!("{}-{id}", self.stage), &self.with_hook(spec))
    }

    fn with_hook(&self, spec: Spec) -> Spec {
        let hook = json!({
            "path": self.bench.site.quilt.hook().to_string_lossy(),
            "args": ["quilt-gpu-hook", self.stage, "--config", self.bench.site.quilt.config().to_string_lossy()],
            "env": ["QUILT_TEST=1"],
        });
        let stage = self.stage.to_owned();
        spec.edit(move |spec| spec["hooks"][stage] = json!([hook]))
    }

    /// A foreground run that writes `ran` to a folder of the machine if it gets that far.
    fn attempt(&self, id: &str, spec: Spec) -> Result<(Ran, bool)> {
        let trace = self.bench.site.join(format!("trace-{}-{id}", self.stage));
        fs::create_dir(&trace).map_err(|e| integration::Error::new(e.to_string()))?;
        let spec = spec.args(["touch", "/trace/ran"]).bind(&trace, "/trace", &[]);
        let answer = self.runc.run(id, &self.bundle(id, spec)?)?;
        Ok((answer, trace.join("ran").exists()))
    }
}

#[test]
fn the_hook_alone_stops_every_road_to_a_gpu() -> Result<()> {
    let Some(bench) = Bench::new("the_hook_alone_stops_every_road_to_a_gpu", 2)? else { return Ok(()) };
    let node = bench.site.host.node("nvidia0");
    for stage in ["prestart", "createRuntime"] {
        let hooked = Hooked::new(&bench, stage)?;
        for (id, spec, code) in [
            ("bind", Spec::new().bind(&node, "/x", &[]), "TENANT_GPU_MOUNT"),
            ("device", Spec::new().device("/dev/nvidia0", 'c', 195, 0), "TENANT_GPU_DEVICE"),
            ("rule", Spec::new().allow('c', Some(195), Some(0), "rw"), "TENANT_GPU_RULE"),
            ("wildcard", Spec::new().allow('c', None, None, "rwm"), "TENANT_GPU_RULE"),
            ("all", Spec::new().rule(json!({"allow": true, "access": "rwm"})), "TENANT_GPU_RULE"),
            ("strict", Spec::new().env("QUILT_GPU_COUNT", "1").env("QUILT_STRICT", "true"), "STRICT_GPU_CONFLICT"),
            ("asking", Spec::new().env("QUILT_GPU_COUNT", "1"), "POLICY"),
        ] {
            let (answer, ran) = hooked.attempt(id, spec)?;
            assert!(!answer.ok() && !ran, "{stage} {id}: {answer:?}");
            assert!(answer.stderr.contains(code), "{stage} {id}: no {code} in {}", answer.stderr);
            assert_eq!(hooked.runc.state(id)?, None, "{stage} {id}");
        }
    }
    assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new(), "a hook grants nothing");
    Ok(())
}

#[test]
fn the_hook_alone_lets_ordinary_containers_pass() -> Result<()> {
    let Some(bench) = Bench::new("the_hook_alone_lets_ordinary_containers_pass", 2)? else { return Ok(()) };
    let file = bench.site.join("note");
    fs::write(&file, "").unwrap();
    for stage in ["prestart", "createRuntime"] {
        let hooked = Hooked::new(&bench, stage)?;
        for (id, spec) in [
            ("plain", Spec::new()),
            ("volume", Spec::new().bind(&file, "/note", &["ro"])),
            ("fuse", Spec::new().device("/dev/fuse", 'c', 10, 229).allow('c', Some(10), Some(229), "rwm")),
            ("baked", Spec::new().env("NVIDIA_VISIBLE_DEVICES", "all")),
        ] {
            let bundle = hooked.bundle(id, spec.clone().args(PROBE_ALL))?;
            let seen = Seen::of(&hooked.runc.run(id, &bundle)?.checked()?.stdout)?;
            assert_eq!(seen.gpus()?, BTreeSet::new(), "{stage} {id}");
            let (answer, ran) = hooked.attempt(&format!("{id}-again"), spec)?;
            assert!(answer.ok() && ran, "{stage} {id}: {answer:?}");
        }
    }
    Ok(())
}

/// As of a build: `podman build --cgroup-parent` names any group, and no hook was asked before the container was made.
#[test]
fn no_container_lies_in_the_group_of_one_with_a_gpu() -> Result<()> {
    let Some(bench) = Bench::new("no_container_lies_in_the_group_of_one_with_a_gpu", 1)? else { return Ok(()) };
    let hooked = Hooked::new(&bench, "createRuntime")?;
    let asking = Spec::new().env("QUILT_GPU_COUNT", "1");
    bench.sleeper("holder", &asking)?;
    let attempt = |id: &str| -> Result<Ran> {
        let group = format!("{}/{id}", bench.group_of("holder", &asking));
        let spec = hooked.with_hook(Spec::new().args(["true"])).cgroup(&group);
        hooked.runc.run(id, &Bundle::new(bench.site.join(format!("bundle-{id}")), &spec, &bench.rootfs)?)
    };
    let refused = attempt("below")?;
    assert!(!refused.ok() && refused.stderr.contains("in that of a container with a GPU"), "{refused:?}");
    assert_eq!(hooked.runc.state("below")?, None);
    // Beside it, and in its place once it is gone.
    assert!(hooked.attempt("beside", Spec::new())?.1);
    bench.runc.delete("holder", true)?.checked()?;
    attempt("after")?.checked()?;
    Ok(())
}

#[test]
fn a_filter_that_another_hook_opened_is_seen() -> Result<()> {
    let Some(bench) = Bench::new("a_filter_that_another_hook_opened_is_seen", 2)? else { return Ok(()) };
    let hooked = Hooked::new(&bench, "createRuntime")?;
    let opener = crate::verify::filter_opener(&bench.site, "c 195:* rwm")?;
    // Prestart hooks run before ours.
    let open = move |spec: &mut Value| {
        spec["hooks"]["prestart"] = json!([{"path": opener.to_string_lossy(), "args": ["open"], "env": ["A=b"]}]);
    };
    let (answer, ran) = hooked.attempt("opened", Spec::new().edit(open))?;
    assert!(!answer.ok() && !ran, "{answer:?}");
    Ok(())
}

#[test]
fn the_same_bundle_under_another_id_gets_nothing() -> Result<()> {
    let Some(bench) = Bench::new("the_same_bundle_under_another_id_gets_nothing", 1)? else { return Ok(()) };
    let bundle = bench.bundle("one", &Spec::new().args(PROBE_ALL).env("QUILT_GPU_COUNT", "1"))?;
    let folder = bundle.path.to_string_lossy().into_owned();
    // It ends, and stays there with its lease.
    bench.runc.call("one", &["run", "--detach", "--bundle", &folder, "one"])?.checked()?;
    bench.runc.wait_stopped("one")?;
    let leases = bench.site.leases_on_disk()?;
    assert_eq!(leases.len(), 1);
    // The same state root, but nobody who knows of leases.
    let plain = Runc::new(RUNC, bench.site.join("runc"))?;
    let answer = plain.run("other", &bundle)?;
    assert!(!answer.ok() && answer.stderr.contains("CONTRACT_UNTRUSTED"), "{answer:?}");
    assert_eq!((answer.stdout.as_str(), plain.state("other")?), ("", None));
    assert_eq!(bench.site.leases_on_disk()?, leases);
    bench.runc.delete("one", true)?.checked()?;
    assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new());
    Ok(())
}

#[test]
fn crun_ends_as_its_container_does_however_much_it_tells_the_hook() -> Result<()> {
    let test = "crun_ends_as_its_container_does_however_much_it_tells_the_hook";
    if !Path::new(CRUN).exists() {
        say(format_args!("{test}: skipped, {CRUN} is not there"));
        return Ok(());
    }
    let Some(bench) = Bench::within(test, CRUN, VERSION_1)? else { return Ok(()) };
    // More than a pipe holds: who writes it is ended by its signal when the hook does not read.
    let spec = Spec::new().annotation("example.org/note", &"x".repeat(100_000)).env("QUILT_GPU_COUNT", "1");
    let bundle = bench.bundle("told", &spec.args(["sh", "-c", "exit 7"]))?;
    let answer = bench.runc.run("told", &bundle)?;
    assert_eq!(answer.status.code(), Some(7), "{answer:?}");
    // crun calls the hook while its own state is there still: the lease goes with the next look.
    bench.site.wait_no_leases()
}

#[test]
fn the_hook_keeps_nothing_of_whoever_starts_it() -> Result<()> {
    if !integration::root_for("the_hook_keeps_nothing_of_whoever_starts_it") {
        return Ok(());
    }
    let hook = integration::Binaries::locate()?.hook;
    // The state does not come: it waits for it.
    let dirty = "exec 5</etc/passwd 9</etc/group; umask 0; trap '' HUP PIPE TERM; cd /usr; exec \"$0\" prestart";
    let mut child = std::process::Command::new("/bin/sh");
    child.args(["-c", dirty]).arg(&hook).stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut child = child.spawn().unwrap();
    let of = |file: &str| format!("/proc/{}/{file}", child.id());
    let waits =
        || fs::read_link(of("exe")).is_ok_and(|exe| exe == hook) && fs::read_link(of("cwd")).unwrap() == Path::new("/");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !waits() && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    let (status, limits) = (fs::read_to_string(of("status")).unwrap(), fs::read_to_string(of("limits")).unwrap());
    let fds = fs::read_dir(of("fd")).unwrap().count();
    let cwd = fs::read_link(of("cwd")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    for line in ["Umask:\t0022", "NoNewPrivs:\t1", "SigBlk:\t0000000000000000"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default().trim();
    // HUP, PIPE and TERM; two others are the C library's own.
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & !(3 << 31), 0, "{ignored}");
    let core = limits.lines().find(|line| line.starts_with("Max core")).unwrap_or_default();
    assert_eq!(core.split_whitespace().collect::<Vec<_>>()[4..6], ["0", "0"], "{core}");
    assert_eq!((fds, cwd.as_path()), (3, Path::new("/")));
    Ok(())
}

/// CRI-O knows the stages `createRuntime` and `poststop`, and calls them for every runtime class. What asks by annotation is
/// served by the class alone; in all others the hook closes what it closes elsewhere.
#[test]
fn cri_o_serves_by_its_class_and_the_hook_judges_all_others() -> Result<()> {
    let Some(bench) = Bench::new("cri_o_serves_by_its_class_and_the_hook_judges_all_others", 2)? else { return Ok(()) };
    let (hook, config) = (bench.site.quilt.hook(), bench.site.quilt.config());
    let called = |stage: &str| json!([{"path": hook, "args": ["quilt-gpu-hook", stage, "--config", config], "env": ["QUILT_GPU_HOOK=1"]}]);
    let hooks = json!({"createRuntime": called("createRuntime"), "poststop": called("poststop")});
    let of_pod = |kind: &str, asks: bool| {
        let spec = Spec::new()
            .annotation("io.kubernetes.cri-o.ContainerType", kind)
            .annotation("io.kubernetes.cri-o.Namespace", "default")
            .annotation("io.kubernetes.container.name", "train")
            .annotation("io.kubernetes.pod.uid", "9ad2b4a0-0c5c-4d3c-8d8a-000000000001");
        let spec = if asks { spec.annotation("quilt.gpu/count.train", "1") } else { spec };
        let hooks = hooks.clone();
        spec.edit(move |spec| spec["hooks"] = hooks).args(PROBE_ALL)
    };
    let plain = Runc::new(RUNC, bench.site.join("plain-crio"))?;
    let node = bench.site.host.node("nvidia0");
    for (id, spec, class, expected) in [
        ("sandbox", of_pod("sandbox", true), false, Ok(0)),
        ("other", of_pod("container", false), false, Ok(0)),
        ("other-asks", of_pod("container", true), false, Err(["POLICY", "runtime quilt-gpu"])),
        (
            "other-binds",
            of_pod("container", false).bind(&node, "/x", &[]),
            false,
            Err(["TENANT_GPU_MOUNT", "/mounts/"]),
        ),
        ("class-sandbox", of_pod("sandbox", true), true, Ok(0)),
        ("class", of_pod("container", false), true, Ok(0)),
        ("class-asks", of_pod("container", true), true, Ok(1)),
    ] {
        let runc = if class { &bench.runc } else { &plain };
        let ran = runc.run(id, &bench.bundle(id, &spec)?)?;
        match expected {
            Ok(gpus) => assert_eq!(Seen::of(&ran.checked()?.stdout)?.gpus()?.len(), gpus, "{id}"),
            Err(words) => {
                assert!(!ran.ok() && ran.stdout.is_empty(), "{id}: {ran:?}");
                assert!(words.iter().all(|word| ran.stderr.contains(word)), "{id}: {}", ran.stderr);
            }
        }
        assert_eq!(runc.state(id)?, None, "{id}");
        bench.site.wait_no_leases()?;
    }
    Ok(())
}
