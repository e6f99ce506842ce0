//! Races: whoever can change the spec, the bundle or what lies behind a mount's source does so between our steps. The runtime
//! is a build that stops there (feature `stops`). Nothing may be granted: no container, or one that can open no GPU, and
//! sees nothing of the node's own record.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use integration::{
    Binaries, Bundle, PROBE_ALL, QuiltOptions, Result, Rootfs, Runc, Scratch, Seen, Site, Spec, VERSION_1, apart,
    root_for, run, say,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const PROBE: &str = env!("CARGO_BIN_EXE_quilt-probe");
const LIMIT: Duration = Duration::from_secs(30);
/// Where the build stops, in order.
const PLACES: [&str; 5] = ["judged", "writing", "written", "handing-over", "created"];
const CRUN: &str = "/usr/bin/crun";
/// Anybody but root.
const SOMEBODY: u32 = 1000;

/// The build that stops, made with the tests.
fn stopping() -> Result<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = top.join("target/stops");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--locked", "-p", "shim", "--features", "stops", "--target-dir"]).arg(&target);
    // A coverage or sanitizer run's flags are not for it.
    run(build.current_dir(&top).env_remove("RUSTFLAGS"), None, Duration::from_secs(1200))?.checked()?;
    Ok(target.join("debug/quilt-gpu-runtime"))
}

struct Bench {
    site: Site,
    runtime: PathBuf,
    rootfs: Rootfs,
    plain: Runc,
}

impl Bench {
    fn new(test: &str) -> Result<Option<Self>> {
        Self::on(test, || Site::new(2))
    }

    fn on(test: &str, site: impl FnOnce() -> Result<Site>) -> Result<Option<Self>> {
        if !root_for(test) {
            return Ok(None);
        }
        let site = site()?;
        let rootfs = Rootfs::debian_like(site.join("debian"), Path::new(PROBE))?;
        let plain = site.quilt.runc(site.join("runc"))?;
        Ok(Some(Self { runtime: stopping()?, rootfs, plain, site }))
    }

    fn command(&self, verb: &str, bundle: &Path, id: &str) -> Command {
        let mut command = Command::new(&self.runtime);
        command.envs([self.site.quilt.env()]).arg("--root").arg(self.plain.root());
        command.args([verb, "--bundle"]).arg(bundle).arg("--pid-file").arg(self.site.join("pid")).arg(id);
        let out = || fs::File::create(self.site.join("said")).map(Stdio::from).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(out());
        command
    }

    /// Creates a container, and does `swap` when the runtime has stopped at `place`. Whether it got there, and the end.
    fn raced(&self, place: &str, bundle: &Path, id: &str, swap: &dyn Fn()) -> (bool, bool, String) {
        let mut command = self.command("create", bundle, id);
        let mut child = command.env("QUILT_GPU_STOP", place).spawn().unwrap();
        let stopped = stops(&mut child);
        if stopped {
            swap();
            kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGCONT).unwrap();
        }
        let status = child.wait().unwrap();
        (stopped, status.success(), fs::read_to_string(self.site.join("said")).unwrap())
    }

    /// What the container's own program saw; nothing when there is none.
    fn saw(&self, id: &str, created: bool, stdout: &Path) -> Option<String> {
        if !created {
            assert_eq!(self.plain.state(id).unwrap(), None, "{id}");
            return None;
        }
        self.plain.start(id).unwrap();
        self.plain.wait_stopped(id).unwrap();
        let said = fs::read_to_string(stdout).unwrap_or_default();
        self.plain.delete(id, true).unwrap();
        Some(said)
    }
}

/// Whether the process stopped before it ended.
fn stops(child: &mut Child) -> bool {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline && child.try_wait().unwrap().is_none() {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        if stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// A spec whose program writes what it can open, and what it finds of our state below `/v`, into the folder `/out`.
fn looking(out: &Path) -> Spec {
    let script =
        format!("{} >/out/seen; find /v -name leases >/out/record 2>/dev/null; echo 1 >/out/ran", PROBE_ALL.join(" "));
    Spec::new().bind(out, "/out", &[]).args(["sh", "-c", &script])
}

/// What a tenant would like to have instead: every GPU, made and allowed.
fn hostile(bundle: &Bundle) -> Vec<u8> {
    let mut spec: Value = serde_json::from_slice(&fs::read(bundle.config()).unwrap()).unwrap();
    let node = |minor: u64| json!({"path": format!("/dev/nvidia{minor}"), "type": "c", "major": 195, "minor": minor, "fileMode": 438});
    spec["linux"]["devices"] = json!([node(0), node(1)]);
    spec["linux"]["resources"]["devices"] = json!([{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "major": 195, "access": "rwm"},
        {"allow": true, "type": "c", "major": 1, "access": "rwm"}]);
    serde_json::to_vec(&spec).unwrap()
}

fn rename_over(path: &Path, bytes: &[u8]) {
    let other = path.with_extension("other");
    fs::write(&other, bytes).unwrap();
    fs::rename(&other, path).unwrap();
}

/// Opens no GPU but those granted, and shows nothing of the record.
fn nothing_granted(what: &str, out: &Path, granted: usize) {
    if out.join("ran").exists() {
        let seen = Seen::of(&fs::read_to_string(out.join("seen")).unwrap()).unwrap();
        let is_gpu = |number: &&String| number.starts_with("195:") && !number.starts_with("195:25");
        let open = seen.open_numbers();
        let open: Vec<_> = open.iter().filter(is_gpu).collect();
        assert!(open.len() <= granted, "{what}: {open:?}");
        assert_eq!(fs::read_to_string(out.join("record")).unwrap(), "", "{what}");
    }
}

#[test]
fn another_spec_or_bundle_grants_nothing() -> Result<()> {
    let Some(bench) = Bench::new("another_spec_or_bundle_grants_nothing")? else { return Ok(()) };
    let mut tried = 0;
    for gpu in [false, true] {
        for place in PLACES {
            for what in ["config", "bundle"] {
                let id = format!("{what}-{place}-{}-{}", u8::from(gpu), std::process::id());
                let out = bench.site.join(format!("out-{id}"));
                fs::create_dir(&out).unwrap();
                // Somebody's own folder: there the bundle can be moved away by who owns it.
                let home = bench.site.join(format!("home-{id}"));
                fs::create_dir(&home).unwrap();
                let spec = looking(&out);
                let spec = if gpu { spec.env("QUILT_GPU_IDS", "nvidia0") } else { spec };
                let bundle = Bundle::new(home.join("bundle"), &spec, &bench.rootfs)?;
                let evil = hostile(&bundle);
                chown(&home, Some(SOMEBODY), None).unwrap();
                let swap = || match what {
                    "config" => rename_over(&bundle.config(), &evil),
                    _ => {
                        fs::rename(&bundle.path, home.join("moved")).unwrap();
                        fs::create_dir(&bundle.path).unwrap();
                        fs::write(bundle.config(), &evil).unwrap();
                        fs::rename(home.join("moved/rootfs"), bundle.path.join("rootfs")).unwrap();
                    }
                };
                let (stopped, created, said) = bench.raced(place, &bundle.path, &id, &swap);
                if gpu {
                    // It is not even begun: what is granted may not hang on somebody's word.
                    assert!(
                        !created && said.contains("UNSAFE_SPEC") && said.contains("belongs to user 1000"),
                        "{id}: {said}"
                    );
                }
                bench.saw(&id, created, &bundle.path.join("stdout"));
                nothing_granted(&id, &out, 0);
                assert_eq!(bench.site.leases()?, Vec::<Value>::new(), "{id}");
                tried += usize::from(stopped);
            }
        }
    }
    assert!(tried >= 10, "{tried}");
    say(format_args!("{tried} swaps of a spec or a bundle, runc, no engine"));
    Ok(())
}

#[test]
fn in_a_bundle_of_roots_a_spec_that_was_written_is_the_one_that_counts() -> Result<()> {
    let test = "in_a_bundle_of_roots_a_spec_that_was_written_is_the_one_that_counts";
    let Some(bench) = Bench::new(test)? else { return Ok(()) };
    for place in ["judged", "writing", "written", "handing-over"] {
        let id = format!("root-{place}-{}", std::process::id());
        let out = bench.site.join(format!("out-{id}"));
        fs::create_dir(&out).unwrap();
        let spec = looking(&out).env("QUILT_GPU_IDS", "nvidia0");
        let bundle = Bundle::new(bench.site.join(format!("bundle-{id}")), &spec, &bench.rootfs)?;
        let evil = hostile(&bundle);
        let (stopped, created, said) = bench.raced(place, &bundle.path, &id, &|| rename_over(&bundle.config(), &evil));
        assert!(stopped, "{id}");
        // Before we write, what we write counts; afterwards the container is found out.
        assert_eq!(created, matches!(place, "judged" | "writing"), "{id}: {said}");
        assert!(created || said.contains("VERIFY_FAILED"), "{id}: {said}");
        bench.saw(&id, created, &bundle.path.join("stdout"));
        nothing_granted(&id, &out, 1);
        bench.site.wait_no_leases()?;
    }
    Ok(())
}

#[test]
fn another_source_grants_nothing() -> Result<()> {
    let Some(bench) = Bench::new("another_source_grants_nothing")? else { return Ok(()) };
    let node = bench.site.host.node("nvidia1");
    let state = bench.site.quilt.state();
    let groups = PathBuf::from("/sys/fs/cgroup/devices");
    // What runs programs on the host, or is run there as root.
    let (settings, programs) = (PathBuf::from("/proc/sys"), bench.runtime.parent().unwrap().to_owned());
    // What a container may have, but not without a word.
    let whole = PathBuf::from("/");
    let targets = [
        ("node", &node),
        ("state", &state),
        ("groups", &groups),
        ("settings", &settings),
        ("programs", &programs),
        ("whole", &whole),
    ];
    let mut tried = 0;
    for gpu in [false, true] {
        for place in PLACES {
            for (name, target) in targets {
                let id = format!("{name}-{place}-{}-{}", u8::from(gpu), std::process::id());
                let (out, home) = (bench.site.join(format!("out-{id}")), bench.site.join(format!("home-{id}")));
                fs::create_dir(&out).unwrap();
                fs::create_dir_all(home.join("data")).unwrap();
                // A file where a node is to come: a folder cannot become one under a mount that is a file.
                let volume = if name == "node" { home.join("file") } else { home.join("data") };
                fs::write(home.join("file"), "").unwrap();
                chown(&home, Some(SOMEBODY), None).unwrap();
                let spec = looking(&out).bind(&volume, "/v", &[]);
                let spec = if gpu { spec.env("QUILT_GPU_IDS", "nvidia0") } else { spec };
                let bundle = Bundle::new(bench.site.join(format!("bundle-{id}")), &spec, &bench.rootfs)?;
                let swap = || {
                    fs::rename(&volume, home.join("moved")).unwrap();
                    symlink(target, &volume).unwrap();
                };
                let (stopped, created, said) = bench.raced(place, &bundle.path, &id, &swap);
                assert!(stopped, "{id}: {said}");
                assert_eq!(created, place == "created", "{id}: {said}");
                assert!(created || said.contains("VERIFY_FAILED"), "{id}: {said}");
                bench.saw(&id, created, &bundle.path.join("stdout"));
                nothing_granted(&id, &out, usize::from(gpu));
                bench.site.wait_no_leases()?;
                tried += 1;
            }
        }
    }
    say(format_args!("{tried} swaps of a source, runc, no engine"));
    Ok(())
}

/// crun follows links to a root file system, and whatever looks for one before it mounts can be raced.
#[test]
fn another_root_is_not_what_was_judged() -> Result<()> {
    // A program that root runs is in it: else nothing would come of it.
    let ours = Scratch::new()?;
    let crun = ours.join("programs/crun");
    fs::create_dir(ours.join("programs")).unwrap();
    run(Command::new("cp").arg(CRUN).arg(&crun), None, LIMIT)?.checked()?;
    let options = QuiltOptions { low_level: vec![crun.clone()], ..QuiltOptions::default() };
    let site = || Site::with(|host| host.gpus(2), &options);
    let Some(mut bench) = Bench::on("another_root_is_not_what_was_judged", site)? else { return Ok(()) };
    bench.runtime = apart(bench.site.join("ours"), &bench.runtime, VERSION_1)?;
    bench.plain = Runc::new(apart(bench.site.join("plain"), &crun, VERSION_1)?, bench.site.join("crun"))?;
    run(Command::new("cp").arg("-a").arg(bench.rootfs.path.join(".")).arg(ours.path()), None, LIMIT)?.checked()?;
    for gpu in [false, true] {
        for place in ["judged", "handing-over", "created"] {
            for is_ours in [true, false] {
                let id = format!("root-{place}-{}-{is_ours}-{}", u8::from(gpu), std::process::id());
                let home = bench.site.join(format!("home-{id}"));
                fs::create_dir(&home).unwrap();
                let [root, other] = ["root", "other"].map(|name| home.join(name));
                bench.rootfs.copy_to(&root)?;
                bench.rootfs.copy_to(&other)?;
                chown(&home, Some(SOMEBODY), None).unwrap();
                let spec = Spec::new().args(["true"]).cgroup(&format!("/{id}"));
                let spec = if gpu { spec.env("QUILT_GPU_IDS", "nvidia0") } else { spec };
                let bundle = Bundle::sharing(bench.site.join(format!("bundle-{id}")), &spec, &bench.rootfs)?;
                let mut document = bundle.read()?;
                document["root"]["path"] = json!(root);
                fs::write(bundle.config(), document.to_string()).unwrap();
                let swap = || {
                    fs::rename(&root, home.join("moved")).unwrap();
                    symlink(if is_ours { ours.path() } else { &other }, &root).unwrap();
                };
                let (stopped, created, said) = bench.raced(place, &bundle.path, &id, &swap);
                assert!(stopped, "{id}: {said}");
                // Another image than the one that libraries were chosen for may do; what would have been refused may not.
                assert_eq!(created, !is_ours || place == "created", "{id}: {said}");
                assert!(created || said.contains("/root shows another place than was judged"), "{id}: {said}");
                if created {
                    bench.plain.delete(&id, true)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn another_namespace_is_not_one_with_a_gpu() -> Result<()> {
    let Some(bench) = Bench::new("another_namespace_is_not_one_with_a_gpu")? else { return Ok(()) };
    let holder = format!("holder-{}", std::process::id());
    let spec = Spec::new().args(["sleep", "60"]).env("QUILT_GPU_IDS", "nvidia0");
    let bundle = Bundle::new(bench.site.join("bundle-holder"), &spec, &bench.rootfs)?;
    let (_, created, said) = bench.raced("none", &bundle.path, &holder, &|| ());
    assert!(created, "{said}");
    let pids = |id: &str| format!("/proc/{}/ns/pid", bench.plain.state(id).unwrap().unwrap()["pid"]);
    let link = bench.site.join("namespace");
    for place in ["judged", "handing-over", "created"] {
        let id = format!("joins-{place}-{}", std::process::id());
        // At first it leads to the host's, which is not a boundary and opens nothing.
        let spec = Spec::new().args(["true"]).edit(|spec| {
            let list = spec["linux"]["namespaces"].as_array_mut().unwrap();
            list.retain(|namespace| namespace["type"] != "pid");
            list.push(json!({"type": "pid", "path": link}));
        });
        let bundle = Bundle::new(bench.site.join(format!("bundle-{id}")), &spec, &bench.rootfs)?;
        symlink("/proc/self/ns/pid", &link).unwrap();
        let swap = || {
            fs::remove_file(&link).unwrap();
            symlink(pids(&holder), &link).unwrap();
        };
        let (stopped, created, said) = bench.raced(place, &bundle.path, &id, &swap);
        assert!(stopped, "{id}: {said}");
        assert_eq!(created, place == "created", "{id}: {said}");
        assert!(created || said.contains("has a GPU that could be taken there"), "{id}: {said}");
        if created {
            bench.plain.delete(&id, true)?;
        }
        fs::remove_file(&link).unwrap();
    }
    bench.plain.delete(&holder, true)?;
    bench.site.wait_no_leases()
}

#[test]
fn another_source_that_anybody_may_have_is_let() -> Result<()> {
    let Some(bench) = Bench::new("another_source_that_anybody_may_have_is_let")? else { return Ok(()) };
    for place in ["judged", "handing-over"] {
        let id = format!("other-{place}-{}", std::process::id());
        let (out, home) = (bench.site.join(format!("out-{id}")), bench.site.join(format!("home-{id}")));
        fs::create_dir(&out).unwrap();
        fs::create_dir_all(home.join("data")).unwrap();
        fs::create_dir_all(home.join("other")).unwrap();
        symlink(home.join("data"), home.join("link")).unwrap();
        // Below one that lies over it nothing is looked for.
        let spec = looking(&out).bind(&home.join("link"), "/v", &[]).bind(&home.join("data"), "/w/a", &[]);
        let spec = spec.bind(&home.join("other"), "/w", &[]);
        let bundle = Bundle::new(bench.site.join(format!("bundle-{id}")), &spec, &bench.rootfs)?;
        let swap = || {
            fs::remove_file(home.join("link")).unwrap();
            symlink(home.join("other"), home.join("link")).unwrap();
        };
        let (stopped, created, said) = bench.raced(place, &bundle.path, &id, &swap);
        assert!(stopped && created, "{id}: {said}");
        bench.saw(&id, created, &bundle.path.join("stdout"));
        nothing_granted(&id, &out, 0);
    }
    Ok(())
}

#[test]
fn what_is_installed_does_not_stop() -> Result<()> {
    let has = |path: &Path| {
        let name = b"QUILT_GPU_STOP";
        fs::read(path).unwrap().windows(name.len()).any(|part| part == name)
    };
    let Binaries { runtime, hook, helper, .. } = Binaries::locate()?;
    for program in [&runtime, &hook, &helper] {
        assert!(!has(program), "{}", program.display());
    }
    assert!(has(&stopping()?), "a test that cannot fail");
    Ok(())
}
