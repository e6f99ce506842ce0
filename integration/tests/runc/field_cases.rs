//! What people who run GPU containers report, each case as a test under its number: the input that shows it, and the right
//! outcome. (D16, limits that change: `updates`. D19, nodes that are missing: `nodes`. D22 and D23, MIG: `mig`. D39, user
//! namespaces: `grants`.)

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::{Binaries, Error, QuiltOptions, Result, Runc, Seen, Site, Spec, run};
use serde_json::{Value, json};

use crate::updates::newer;
use crate::{Bench, CRUN, RUNC, VERSION_1, VERSION_2, bytes, inside};

const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

fn list<'a>(document: &'a Value, pointer: &str) -> &'a [Value] {
    document.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Every character device that is granted stands in both lists, `rw` exactly.
fn stands_in_both_lists(spec: &Value, granted: &[(u64, u64)]) {
    let number = |entry: &Value| (entry["major"].as_u64().unwrap_or(0), entry["minor"].as_u64().unwrap_or(0));
    let nodes: BTreeSet<_> = list(spec, "/linux/devices").iter().map(number).collect();
    let gpus = |entry: &&Value| [195, 511].contains(&number(entry).0);
    let rules: Vec<&Value> = list(spec, "/linux/resources/devices").iter().filter(gpus).collect();
    for wanted in granted {
        assert!(nodes.contains(wanted), "{wanted:?} in {nodes:?}");
        let rule = json!({"allow": true, "type": "c", "major": wanted.0, "minor": wanted.1, "access": "rw"});
        assert!(rules.contains(&&rule), "{rule} in {rules:?}");
    }
    assert!(rules.iter().all(|rule| rule["allow"] == false || granted.contains(&number(rule))), "{rules:?}");
}

/// The audit record of a container.
fn record(bench: &Bench, id: &str, kind: &str) -> Value {
    let is = |record: &Value| record["container"] == id && record["kind"] == kind;
    bench.site.quilt.audit().into_iter().rev().find(is).unwrap_or_default()
}

fn io<T>(what: &Path, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|e| Error::new(format!("{}: {e}", what.display())))
}

/// What systemd does at daemon-reload with a container in its cgroups: the device list, made anew from what stands in the
/// spec. Here by hand, in version 1.
fn derive_anew(cgroup: &str, spec: &Value) -> Result<()> {
    let folder = PathBuf::from(format!("/sys/fs/cgroup/devices{cgroup}"));
    let write = |name: &str, line: &str| io(&folder.join(name), fs::write(folder.join(name), line));
    for rule in list(spec, "/linux/resources/devices") {
        let number = |key: &str| rule[key].as_u64().map_or_else(|| "*".to_owned(), |number| number.to_string());
        let (allow, kind) = (rule["allow"] == true, rule["type"].as_str().unwrap_or("a"));
        let line =
            format!("{kind} {}:{} {}", number("major"), number("minor"), rule["access"].as_str().unwrap_or("rwm"));
        write(if allow { "devices.allow" } else { "devices.deny" }, if kind == "a" { "a" } else { &line })?;
    }
    // runc's own, for every container: making a node is not opening it, and the probe makes them all.
    write("devices.allow", "c *:* m")
}

/// Makes the node WSL's: nothing on the bus, no driver in `/proc`, one node, and the driver's files where Windows puts them.
fn under_wsl(bench: &Bench) -> Result<()> {
    let root = &bench.site.host.root;
    let (from, lib) = (root.join(bench.site.host.layout.library_folder()), root.join("usr/lib/wsl/lib"));
    let store = root.join("usr/lib/wsl/drivers/nv_dispi.inf_amd64_aa11");
    for folder in [&lib, &store] {
        io(folder, fs::create_dir_all(folder))?;
    }
    let ours = |name: &str| format!("{name}.{}", bench.site.files.version);
    for (name, to) in [
        (ours("libcuda.so"), lib.join("libcuda.so.1.1")),
        (ours("libnvidia-ml.so"), lib.join("libnvidia-ml.so.1")),
        (ours("libcuda.so"), store.join("libcuda.so.1.1")),
    ] {
        io(&to, fs::copy(from.join(name), &to))?;
    }
    let dxcore = lib.join("libdxcore.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-nostdlib", "-Wl,-soname,libdxcore.so", "-x", "c", "/dev/null", "-o"]).arg(dxcore);
    let mut mknod = Command::new("mknod");
    mknod.args(["-m", "666"]).arg(root.join("dev/dxg")).args(["c", "10", "62"]);
    for command in [&mut cc, &mut mknod] {
        run(command, None, Duration::from_secs(20))?.checked()?;
    }
    io(root, fs::write(root.join("proc/misc"), " 62 dxg\n200 tun\n"))?;
    bench.site.quilt.cli(&["inventory", "refresh"])?.checked().map(|_| ())
}

#[test]
fn d06_under_wsl_the_one_node_is_one_gpu_for_one_container() -> Result<()> {
    let site = || Site::with(|host| host.gpus(0).no_driver(), &QuiltOptions::default());
    let Some(bench) = Bench::on("d06_under_wsl_the_one_node_is_one_gpu_for_one_container", site)? else {
        return Ok(());
    };
    under_wsl(&bench)?;
    let asking = Spec::new().env("QUILT_GPU_IDS", "nvidia0");
    let probe = ["quilt-probe", "all", "10:0-255", "195:0-255", "libcuda.so.1", "libdxcore.so", "/dev"];
    bench.sleeper("d06", &asking)?;
    let seen = Seen::of(&bench.runc.exec("d06", &probe)?.checked()?.stdout)?;
    // Older low-level runtimes open 10:200, tun, to everybody.
    let open: Vec<String> = seen.open_numbers().into_iter().filter(|number| number != "10:200").collect();
    assert_eq!(open, ["10:62"]);
    let there = seen.found().into_iter().map(|(path, number, _)| (path, number)).collect::<Vec<_>>();
    assert_eq!(there, [("/dev/dxg".to_owned(), "10:62".to_owned())]);
    for name in ["libcuda.so.1", "libdxcore.so"] {
        seen.library(name)?;
    }
    assert!(seen.mount("/usr/lib/wsl/drivers/nv_dispi.inf_amd64_aa11/libcuda.so.1.1").is_some());
    bench.refused("second", &bench.sharing("second", &asking)?, &["CAPACITY_FULL"])?;
    let node = bench.site.host.node("dxg");
    bench.refused("bound", &bench.sharing("bound", &Spec::new().bind(&node, "/dev/x", &[]))?, &["TENANT_GPU_MOUNT"])?;
    Ok(())
}

#[test]
fn d15_daemon_reload_finds_everything_granted_in_the_spec() -> Result<()> {
    let test = "d15_daemon_reload_finds_everything_granted_in_the_spec";
    let Some(bench) = Bench::new(test, 2)? else { return Ok(()) };
    let asking = Spec::new().env("QUILT_GPU_IDS", "nvidia1").args(["quilt-probe", "sleep"]);
    let before = bench.sleeper("d15", &asking)?;
    let spec: Value = serde_json::from_slice(&bytes(&bench.site.join("bundle-d15/config.json"))?).unwrap();
    stands_in_both_lists(&spec, &[(195, 1), (195, 255), (511, 0), (511, 1)]);
    derive_anew(&bench.cgroup("d15"), &spec)?;
    let after = bench.look("d15")?;
    assert_eq!(after.gpus()?, BTreeSet::from([1]));
    assert_eq!(after.open_numbers(), before.open_numbers());
    Ok(())
}

#[test]
fn d15_daemon_reload_in_version_2() -> Result<()> {
    let test = "d15_daemon_reload_in_version_2";
    let Some(crun) = newer(test, "crun-1.21") else { return Ok(()) };
    let Some(bench) = Bench::within(test, &crun.to_string_lossy(), VERSION_2)? else { return Ok(()) };
    let before = bench.sleeper("d15", &Spec::new().env("QUILT_GPU_IDS", "nvidia1"))?;
    let spec: Value = serde_json::from_slice(&bytes(&bench.site.join("bundle-d15/config.json"))?).unwrap();
    // Without us crun writes the filter anew from a list.
    let bare = Runc::new(inside(bench.site.join("bare"), &crun, VERSION_2)?, bench.site.join("runc"))?;
    let file = bench.site.join("resources.json");
    for (devices, same) in
        [(spec["linux"]["resources"]["devices"].clone(), true), (json!([{"allow": false, "access": "rwm"}]), false)]
    {
        fs::write(&file, json!({ "devices": devices }).to_string()).unwrap();
        bare.call("d15", &["update", "--resources", &file.to_string_lossy(), "d15"])?.checked()?;
        let after = bench.look("d15")?;
        assert_eq!(after.gpus().is_ok_and(|gpus| gpus == BTreeSet::from([1])), same);
        assert_eq!(after.open_numbers() == before.open_numbers(), same);
    }
    Ok(())
}

#[test]
fn d15_missing_char_links_are_told_and_made_when_asked() -> Result<()> {
    let Some(bench) = Bench::new("d15_missing_char_links_are_told_and_made_when_asked", 1)? else { return Ok(()) };
    let root = &bench.site.host.root;
    let findings = |words: &[&str]| -> Result<Vec<Value>> {
        let answer = bench.site.quilt.cli(&[&["inventory"], words, &["--format", "json"]].concat())?.checked()?;
        let document: Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
        let document = document.get("inventory").cloned().unwrap_or(document);
        Ok(list(&document, "/findings").iter().filter(|f| f["code"] == "char-link-missing").cloned().collect())
    };
    assert_eq!(findings(&[])?, Vec::<Value>::new(), "without systemd nobody needs them");
    fs::create_dir_all(root.join("run/systemd/system")).unwrap();
    let told = findings(&["refresh"])?;
    assert_eq!((told.len(), &told[0]["stops"]), (1, &json!(false)), "{told:?}");
    assert!(told[0]["message"].as_str().is_some_and(|m| m.contains("195:0") && m.contains("--char-links")), "{told:?}");
    assert!(!root.join("dev/char/195:0").exists(), "nothing is made unasked");
    // It is a note: containers start.
    assert_eq!(bench.see("d15", &Spec::new().env("QUILT_GPU_COUNT", "1"))?.gpus()?.len(), 1);
    assert_eq!(findings(&["refresh", "--char-links"])?, Vec::<Value>::new());
    assert_eq!(fs::read_link(root.join("dev/char/195:0")).unwrap(), Path::new("../nvidia0"));
    Ok(())
}

#[test]
fn d18_no_road_leads_to_another_gpus_number() -> Result<()> {
    let Some(bench) = Bench::new("d18_no_road_leads_to_another_gpus_number", 2)? else { return Ok(()) };
    let asking = Spec::new().env("QUILT_GPU_IDS", "nvidia0").capability("CAP_MKNOD");
    let seen = bench.sleeper("d18", &asking)?;
    assert_eq!(seen.gpus()?, BTreeSet::from([0]));
    // The probe makes every node itself, as the driver's library does, and opens it.
    let numbers = seen.open_numbers();
    assert!(numbers.iter().all(|number| !number.contains("195:1")), "{numbers:?}");
    let spec: Value = serde_json::from_slice(&bytes(&bench.site.join("bundle-d18/config.json"))?).unwrap();
    stands_in_both_lists(&spec, &[(195, 0), (195, 255), (511, 0), (511, 1)]);
    let node = bench.site.host.node("nvidia1");
    let link = bench.site.join("link");
    symlink(&node, &link).unwrap();
    for (id, road, code) in [
        ("dev", Spec::new().bind(Path::new("/dev"), "/x", &[]), "TENANT_GPU_MOUNT"),
        ("node", Spec::new().bind(&node, "/dev/nvidia1", &[]), "TENANT_GPU_MOUNT"),
        ("link", Spec::new().bind(&link, "/x", &[]), "TENANT_GPU_MOUNT"),
        ("entry", Spec::new().device("/dev/innocent", 'c', 195, 1), "TENANT_GPU_DEVICE"),
        ("rule", Spec::new().allow('c', Some(195), None, "rwm"), "TENANT_GPU_RULE"),
    ] {
        let road = road.env("QUILT_GPU_IDS", "nvidia0");
        bench.refused(id, &bench.sharing(id, &road)?, &[code])?;
    }
    Ok(())
}

#[test]
fn d24_an_images_variable_is_no_request() -> Result<()> {
    let Some(bench) = Bench::new("d24_an_images_variable_is_no_request", 2)? else { return Ok(()) };
    let image = Spec::new().env(VISIBLE, "all").env("NVIDIA_DRIVER_CAPABILITIES", "compute,utility");
    let seen = bench.see("none", &image)?;
    assert_eq!((seen.gpus()?, seen.env(VISIBLE)), (BTreeSet::new(), Some("void")));
    assert_eq!(record(&bench, "none", "create")["request"], Value::Null);
    // One is one, whatever the image says.
    let seen = bench.see("one", &image.env("QUILT_GPU_COUNT", "1"))?;
    assert_eq!(seen.gpus()?.len(), 1);
    assert_ne!(seen.env(VISIBLE), Some("all"));
    Ok(())
}

/// Docker Swarm tells a task's generic resources in a variable; to this runtime it is a variable like any other, and an
/// image's `all` beside it is nothing.
#[test]
fn d27_swarms_variable_opens_nothing_that_was_not_asked_for() -> Result<()> {
    let Some(bench) = Bench::new("d27_swarms_variable_opens_nothing_that_was_not_asked_for", 2)? else { return Ok(()) };
    let task = Spec::new().env("DOCKER_RESOURCE_NVIDIA-GPU", "GPU-7af7a99b,GPU-e934c858").env(VISIBLE, "all");
    let seen = bench.see("task", &task)?;
    assert_eq!((seen.gpus()?, seen.env(VISIBLE)), (BTreeSet::new(), Some("void")));
    assert_eq!(bench.see("asking", &task.env("QUILT_GPU_COUNT", "1"))?.gpus()?.len(), 1);
    Ok(())
}

#[test]
fn d26_void_is_no_gpu_and_the_log_says_so() -> Result<()> {
    let Some(bench) = Bench::new("d26_void_is_no_gpu_and_the_log_says_so", 1)? else { return Ok(()) };
    // Compose without a count: the image's value, and what the engine made of the request.
    let void = |spec: &mut Value| {
        if let Some(env) = spec["process"]["env"].as_array_mut() {
            env.extend([json!("NVIDIA_VISIBLE_DEVICES=all"), json!("NVIDIA_VISIBLE_DEVICES=void")]);
        }
    };
    for (id, spec) in [("compose", Spec::new().edit(void)), ("plain", Spec::new().env(VISIBLE, "void"))] {
        let seen = bench.see(id, &spec)?;
        assert_eq!((seen.gpus()?, seen.env(VISIBLE)), (BTreeSet::new(), Some("void")), "{id}");
        let created = record(&bench, id, "create");
        let note = list(&created, "/notes").iter().find(|note| note["rule"] == "visible-void");
        let message = note.and_then(|note| note["message"].as_str()).unwrap_or_default();
        assert!(message.contains("resolved to 0 GPUs (void)"), "{id}: {created}");
    }
    let created = || record(&bench, "silent", "create");
    bench.see("silent", &Spec::new())?;
    assert!(list(&created(), "/notes").iter().all(|note| note["rule"] != "visible-void"), "{}", created());
    Ok(())
}

#[test]
fn d30_two_injectors_are_told_apart_by_name() -> Result<()> {
    let Some(bench) = Bench::new("d30_two_injectors_are_told_apart_by_name", 1)? else { return Ok(()) };
    let hook = |spec: &mut Value| {
        let hook = json!({"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]});
        spec["hooks"]["prestart"] = json!([hook]);
    };
    let gpus = Spec::new().edit(hook).env(VISIBLE, "all");
    // As Docker's and Podman's CDI leave it.
    let cdi =
        Spec::new().env(VISIBLE, "void").device("/dev/nvidia0", 'c', 195, 0).allow('c', Some(195), Some(0), "rwm");
    for (id, spec, place) in
        [("gpus", &gpus, "/usr/bin/nvidia-container-runtime-hook"), ("cdi", &cdi, "NVIDIA_VISIBLE_DEVICES=void")]
    {
        for (suffix, spec) in [("", spec.clone()), ("-asking", spec.clone().env("QUILT_GPU_COUNT", "1"))] {
            let id = format!("{id}{suffix}");
            let words = ["FOREIGN_GPU_INJECTION", place, "drop one of the two", "--gpus", "CDI", "quilt-gpu"];
            bench.refused(&id, &bench.sharing(&id, &spec)?, &words)?;
        }
    }
    Ok(())
}

#[test]
fn d31_no_gpu_has_two_containers() -> Result<()> {
    let Some(bench) = Bench::new("d31_no_gpu_has_two_containers", 4)? else { return Ok(()) };
    let asking = Spec::new().args(["quilt-probe", "sleep"]).env("QUILT_GPU_COUNT", "1");
    let ids: Vec<String> = (0..8).map(|n| format!("d31-{n}")).collect();
    let bundles: Vec<_> = ids.iter().map(|id| bench.bundle(id, &asking)).collect::<Result<_>>()?;
    let answers: Vec<_> = std::thread::scope(|scope| {
        let both = ids.iter().zip(&bundles);
        let started: Vec<_> = both.map(|(id, bundle)| scope.spawn(|| bench.runc.create(id, bundle))).collect();
        started.into_iter().map(|one| one.join().unwrap()).collect::<Result<_>>()
    })?;
    let (made, refused): (Vec<_>, Vec<_>) = ids.iter().zip(answers).partition(|(_, answer)| answer.ok());
    assert_eq!((made.len(), refused.len()), (4, 4), "{refused:?}");
    let gpus: BTreeSet<Vec<u64>> = made
        .iter()
        .map(|(id, _)| integration::Bundle::gpus(&bundles[ids.iter().position(|one| one == *id).unwrap()]))
        .collect::<Result<_>>()?;
    assert_eq!(gpus.len(), 4, "{gpus:?}");
    // Who holds them is the platform's business.
    for (id, answer) in &refused {
        assert!(answer.stderr.contains("CAPACITY_FULL"), "{answer:?}");
        assert!(ids.iter().all(|other| other == *id || !answer.stderr.contains(other.as_str())), "{answer:?}");
    }
    let last = bench.sharing("late", &asking)?;
    bench.refused("late", &last, &["CAPACITY_FULL"])?;
    let holders = record(&bench, "late", "refuse")["holders"].clone();
    let named: BTreeSet<&str> =
        holders.as_array().unwrap().iter().filter_map(|h| h.as_str()?.split(' ').nth(1)).collect();
    assert_eq!(named, made.iter().map(|(id, _)| id.as_str()).collect(), "{holders}");

    // One that was never started is deleted, and the fifth gets what it had.
    bench.runc.delete(made[0].0, true)?.checked()?;
    assert_eq!(bench.see("fifth", &Spec::new().env("QUILT_GPU_COUNT", "1"))?.gpus()?.len(), 1);
    Ok(())
}

#[test]
fn d36_the_low_level_runtime_is_found_without_path_and_never_ourselves() -> Result<()> {
    let test = "d36_the_low_level_runtime_is_found_without_path";
    let Some(bench) = Bench::new(test, 1)? else { return Ok(()) };
    let with = |low_level: &[&str], link: &str| -> Result<(Site, Runc)> {
        let low_level = low_level.iter().map(PathBuf::from).collect();
        let site = Site::with(|host| host.gpus(1), &QuiltOptions { low_level, ..QuiltOptions::default() })?;
        let path = site.quilt.folder.join("low-level-runtime");
        fs::remove_file(&path).unwrap();
        symlink(link, &path).unwrap();
        let runc = site.quilt.runc(site.join("runc"))?.env("PATH", "");
        Ok((site, runc))
    };
    let own = bench.site.quilt.runtime();
    let text = fs::read_to_string(&own).unwrap();
    let own = text.split('\'').nth(3).unwrap();
    let bundle = bench.bundle("d36", &Spec::new().args(["quilt-probe", "sleep"]).env("QUILT_GPU_COUNT", "1"))?;
    let (site, runc) = with(&["/does/not/exist/runc", own, RUNC], RUNC)?;
    runc.create("d36", &bundle)?.checked()?;
    assert_eq!(site.leases()?.len(), 1);
    runc.delete("d36", true)?.checked()?;

    let (_site, runc) = with(&["/does/not/exist/runc", own], "/does/not/exist/crun")?;
    let answer = runc.create("d36-none", &bundle)?;
    for word in ["/does/not/exist/runc", own] {
        assert!(!answer.ok() && answer.stderr.contains(word), "every place is named: {answer:?}");
    }
    // What is not ours finds nothing either, and says what it followed.
    let answer = runc.call("d36-none", &["state", "d36-none"])?;
    assert!(!answer.ok() && answer.stderr.contains("/does/not/exist/crun"), "{answer:?}");
    Ok(())
}

/// A node that has crun alone, where CRI-O's packages put it, and an engine without PATH.
const CRUN_ALONE: &str = "{ mount -t tmpfs tmpfs /usr/libexec && mkdir /usr/libexec/crio && touch /usr/libexec/crio/crun \
    && mount --bind /usr/bin/crun /usr/libexec/crio/crun && for folder in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin; do \
    for name in runc crun quilt-gpu-engine; do [ ! -e $folder/$name ] || mount --bind /dev/null $folder/$name; done; done; \
    export PATH=; }";

#[test]
fn d36_crun_alone_in_crio_folder_serves_whatever_the_list_names_before_it() -> Result<()> {
    let test = "d36_crun_alone_in_crio_folder_serves";
    let Some(bench) = Bench::within(test, CRUN, &format!("{VERSION_1} && {CRUN_ALONE}"))? else { return Ok(()) };
    let text = io(&bench.site.quilt.config(), fs::read_to_string(bench.site.quilt.config()))?;
    fs::remove_file(bench.site.quilt.folder.join("low-level-runtime")).unwrap();
    let (own, there) = (Binaries::locate()?.runtime.display().to_string(), "/usr/libexec/crio/crun");
    for (at, (list, missing)) in [
        (json!([]), &[][..]),
        (json!(["crun"]), &[]),
        (json!(["runc", "crun"]), &[]),
        (json!([own, there]), &[]),
        (json!([own]), &[&*own, "this is quilt-gpu-runtime itself"]),
        (json!(["runc"]), &["/usr/sbin/runc (not an executable file)", "/usr/libexec/crio/runc (not there)"]),
    ]
    .into_iter()
    .enumerate()
    {
        let config = text.replace(&format!("low_level = [\"{CRUN}\"]"), &format!("low_level = {list}"));
        assert_ne!(config, text, "this fixture must be able to fail");
        io(&bench.site.quilt.config(), fs::write(bench.site.quilt.config(), config))?;
        let id = format!("d36-crun-{at}");
        let asking = Spec::new().args(["quilt-probe", "sleep"]).env("QUILT_GPU_COUNT", "1");
        if !missing.is_empty() {
            bench.refused(&id, &bench.sharing(&id, &asking)?, missing)?;
            continue;
        }
        let bundle = bench.bundle(&id, &asking)?;
        bench.runc.create(&id, &bundle)?.checked()?;
        assert_eq!(
            (bundle.gpus()?.len(), record(&bench, &id, "create")["low_level"].as_str()),
            (1, Some(there)),
            "{list}"
        );
        bench.runc.start(&id)?.checked()?;
        bench.runc.delete(&id, true)?.checked()?;
    }
    Ok(())
}

#[test]
fn d37_calls_that_make_nothing_are_the_low_level_runtimes_own() -> Result<()> {
    let Some(bench) = Bench::new("d37_calls_that_make_nothing", 1)? else { return Ok(()) };
    let bare = Runc::new(RUNC, bench.site.join("runc"))?;
    bench.sleeper("d37", &Spec::new())?;
    for call in [
        &["features"][..],
        &["--version"],
        &["state", "d37"],
        &["list", "--format", "json"],
        &["state", "nobody"],
        &["delete", "--force", "nobody"],
        &["kill", "nobody", "9"],
        &["no-such-verb"],
        &["exec", "d37", "sh", "-c", "echo out; echo err >&2; exit 7"],
    ] {
        let (ours, theirs) = (bench.runc.call("d37", call)?, bare.call("d37", call)?);
        let of = |ran: &integration::Ran| (ran.status.code(), ran.stdout.clone());
        assert_eq!(of(&ours), of(&theirs), "{call:?}: {ours:?}");
    }
    // The bundle by `=`, and by the folder that the call is made in.
    let bundle = bench.bundle("in", &Spec::new().args(["quilt-probe", "sleep"]).env("QUILT_GPU_COUNT", "1"))?;
    let original = bytes(&bundle.config())?;
    for call in [vec![format!("--bundle={}", bundle.path.display())], vec![]] {
        let mut command: Command = bench.runc.command("in");
        command.arg("create").args(call).arg("in").current_dir(&bundle.path);
        let (out, err) =
            (fs::File::create(bundle.path.join("out")).unwrap(), fs::File::create(bundle.path.join("err")).unwrap());
        let status = command.stdin(std::process::Stdio::null()).stdout(out).stderr(err).status().unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&bytes(&bundle.path.join("err"))?));
        assert_eq!(bundle.gpus()?, [0]);
        bench.runc.delete("in", true)?.checked()?;
        assert!(bytes(&bundle.config())? == original);
    }
    Ok(())
}
