//! Engines that keep their own runtime and call quilt-gpu's hooks: the same container as through the runtime, and what becomes
//! of leases when one hook ran and the next did not. What every engine must do is in the table of engines (rows `hooked`).

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use integration::engine::{Ask, Engine, Ground, Kit, Podman};
use integration::{
    Error, Groups, PROBE_ALL, QuiltOptions, Ran, Result, Rootfs, Scratch, Seen, Site, Spec, root_for, run,
    runc_that_gets_along, say,
};
use serde_json::{Value, json};

const PROBE: &str = env!("CARGO_BIN_EXE_quilt-probe");

/// A node of two GPUs, Podman through the runtime, and Podman over runc with the hooks.
struct Yard {
    // First: their containers use the node.
    through: Podman,
    hooked: Podman,
    site: Site,
    hooks: PathBuf,
    _tools: Scratch,
}

impl Yard {
    /// `None` when this is not root, or Podman of this release is not here.
    fn new(test: &str, release: &str) -> Result<Option<Self>> {
        if !root_for(test) {
            return Ok(None);
        }
        let kit = Kit::default();
        let low_level = match kit.podman(release).and_then(|_| kit.low_level("runc-1.1")) {
            Ok(low_level) => low_level,
            Err(absent) => {
                say(format_args!("{test}: skipped, {absent}"));
                return Ok(None);
            }
        };
        let tools = Scratch::new()?;
        let plain = runc_that_gets_along(tools.path(), &low_level)?;
        let options = QuiltOptions { low_level: vec![plain.clone()], ..QuiltOptions::default() };
        let site = Site::with(|host| host.gpus(2), &options)?;
        let hooks = site.quilt.hooks()?;
        let ground = Ground {
            quilt: site.quilt.runtime(),
            plain,
            groups: Groups::Hybrid,
            shown: [site.quilt.programs(), vec![site.folder().to_owned(), tools.path().to_owned()]].concat(),
            remapped: false,
            hooks: None,
        };
        let through = Podman::on(release, &ground)?;
        let hooked = Podman::on(release, &Ground { hooks: Some(hooks.clone()), ..ground })?;
        let rootfs = Rootfs::debian_like(site.join("debian"), Path::new(PROBE))?;
        for podman in [&through, &hooked] {
            podman.import("deb:1", &rootfs, &[("FROM_IMAGE", "yes")], &[])?;
        }
        say(format_args!("{test}: {}, {}", hooked.versions()?, site.files));
        Ok(Some(Self { through, hooked, site, hooks, _tools: tools }))
    }

    /// What the low-level runtime was given for a container that asks for this, and what is seen in it.
    fn made(&self, podman: &Podman, ask: &Ask) -> Result<(Value, Seen)> {
        podman.start(ask)?.checked()?;
        let id = podman.call(&["inspect", "--format", "{{.Id}}", &ask.name])?.checked()?.stdout.trim().to_owned();
        let config = find(&podman.folder().join("root"), &id)?;
        let text = fs::read_to_string(&config).map_err(|e| Error::new(format!("{}: {e}", config.display())))?;
        let seen = Seen::of(&podman.exec(&ask.name, &PROBE_ALL)?.checked()?.stdout)?;
        podman.remove(&ask.name)?.checked()?;
        let own = podman.folder().to_string_lossy().into_owned();
        let parent = own.rsplit('/').next().unwrap_or_default().to_owned();
        let text =
            text.replace(&id, "<id>").replace(&id[..12], "<id>").replace(&own, "<own>").replace(&parent, "<own>");
        let mut spec: Value = serde_json::from_str(&text).map_err(|e| Error::new(e.to_string()))?;
        let hooks = spec.as_object_mut().and_then(|spec| spec.remove("hooks"));
        assert_eq!(hooks.is_some_and(|hooks| hooks["createRuntime"].is_array()), std::ptr::eq(podman, &self.hooked));
        // Named by when it was made.
        spec["annotations"]["io.kubernetes.cri-o.Created"] = Value::Null;
        spec["root"]["path"] = Value::Null;
        Ok((spec, seen))
    }

    /// A container that must not come into being; nothing of it is left.
    fn refused(&self, ask: &Ask, words: &[&str]) -> Result<Ran> {
        let ran = self.hooked.run(ask)?;
        assert!(!ran.ok(), "{ran:?}");
        for word in words {
            assert!(ran.stderr.contains(word), "no {word} in {}", ran.stderr);
        }
        self.site.wait_no_leases()?;
        Ok(ran)
    }
}

/// `config.json` of a container, whatever the storage's driver is called.
fn find(root: &Path, id: &str) -> Result<PathBuf> {
    let drivers = fs::read_dir(root).map_err(|e| Error::new(format!("{}: {e}", root.display())))?;
    let configs = drivers.filter_map(|entry| Some(entry.ok()?.path().join(id).join("userdata/config.json")));
    configs.into_iter().find(|path| path.exists()).ok_or_else(|| Error::new(format!("no bundle of {id}")))
}

/// What differs between two specs. The engine's own variables and mounts come in another order with each start; ours stand
/// behind them, in one order.
fn difference(a: &Value, b: &Value, ours: &str) -> Vec<String> {
    let lines = |spec: &Value| {
        let mut lines = BTreeSet::new();
        let mut spec = spec.clone();
        for (list, pointer) in [("env", "/process/env"), ("mount", "/mounts")] {
            let items = spec.pointer_mut(pointer).and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default();
            let (own, others): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| item.to_string().contains(ours));
            lines.extend(others.iter().map(|item| format!("{list} {item}")));
            lines.extend(own.iter().enumerate().map(|(at, item)| format!("{list} {at} of ours {item}")));
        }
        // Newer Podmans add some of theirs behind what a hook wrote.
        if let Some(masked) = spec.pointer_mut("/linux/maskedPaths").and_then(Value::as_array_mut) {
            masked.sort_by_key(Value::to_string);
        }
        leaves("", &spec, &mut lines);
        lines
    };
    lines(a).symmetric_difference(&lines(b)).cloned().collect()
}

/// Every value in a document that holds no others, with the way to it.
fn leaves(at: &str, value: &Value, lines: &mut BTreeSet<String>) {
    match value {
        Value::Object(items) => items.iter().for_each(|(key, item)| leaves(&format!("{at}/{key}"), item, lines)),
        Value::Array(items) => {
            (0..).zip(items).for_each(|(n, item): (usize, _)| leaves(&format!("{at}/{n}"), item, lines))
        }
        leaf => _ = lines.insert(format!("{at} {leaf}")),
    }
}

/// The host's devices, which a privileged container is given: path, number, owner and mode.
fn devices_of_host() -> BTreeSet<(PathBuf, u64, u32, u32, u32)> {
    let mut folders = vec![PathBuf::from("/dev")];
    let mut devices = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                // Terminals come and go, and are given to nobody.
                Ok(facts) if facts.is_dir() && entry.file_name() != "pts" => folders.push(entry.path()),
                Ok(f) if f.rdev() != 0 => _ = devices.insert((entry.path(), f.rdev(), f.uid(), f.gid(), f.mode())),
                _ => {}
            }
        }
    }
    devices
}

fn same_container(test: &str, release: &str) -> Result<()> {
    let Some(yard) = Yard::new(test, release)? else { return Ok(()) };
    let ask = |name: &str| Ask::new(name, "deb:1", ["quilt-probe", "sleep"]);
    let with = |name: &str, key: &str, value: &str| {
        let mut ask = ask(name);
        ask.env.push((key.into(), value.into()));
        ask
    };
    let mut host = with("host", "QUILT_GPU_IDS", "nvidia1");
    host.binds.push(("/".into(), "/host".into()));
    let mut privileged = ask("all");
    privileged.privileged = true;
    for (ask, gpus) in [
        (ask("none"), Some(BTreeSet::new())),
        (with("baked", "NVIDIA_VISIBLE_DEVICES", "all"), Some(BTreeSet::new())),
        (with("one", "QUILT_GPU_IDS", "nvidia1"), Some(BTreeSet::from([1]))),
        (with("both", "QUILT_GPU_COUNT", "2"), Some(BTreeSet::from([0, 1]))),
        (host, Some(BTreeSet::from([1]))),
        (privileged, None),
    ] {
        let mut tries = 0..9;
        let ((through, seen), (hooked, hooked_seen)) = loop {
            let host = devices_of_host();
            let both = (yard.made(&yard.through, &ask)?, yard.made(&yard.hooked, &ask)?);
            // What another test made or removed in between is no difference.
            if devices_of_host() == host || tries.next().is_none() {
                break both;
            }
        };
        let ours = yard.site.folder().to_string_lossy();
        assert_eq!(difference(&hooked, &through, &ours), Vec::<String>::new(), "{}", ask.name);
        assert_eq!(hooked_seen.open_numbers(), seen.open_numbers(), "{}", ask.name);
        if let Some(gpus) = gpus {
            assert_eq!((seen.gpus()?, hooked_seen.gpus()?), (gpus.clone(), gpus), "{}", ask.name);
        }
        yard.site.wait_no_leases()?;
    }
    Ok(())
}

#[test]
fn podman_4_3_makes_the_same_container_by_hooks() -> Result<()> {
    same_container("podman_4_3_makes_the_same_container_by_hooks", "4.3")
}

#[test]
fn podman_5_4_makes_the_same_container_by_hooks() -> Result<()> {
    let test = "podman_5_4_makes_the_same_container_by_hooks";
    same_container(test, "5.4")?;
    let Some(yard) = Yard::new(test, "5.4")? else { return Ok(()) };
    // Its image is mounted after hooks: nobody could tell where libraries belong.
    let mut ask = Ask::new("apart", "deb:1", PROBE_ALL).asking(yard.hooked.sources()[0], "count", "1");
    ask.user_namespace = true;
    yard.refused(&ask, &["POLICY", "/root/path", "user 0", r#"\"0 100000 65536\""#, "runtime quilt-gpu"])?;
    Ok(())
}

#[test]
fn what_stands_between_the_hooks_gets_nothing() -> Result<()> {
    let Some(yard) = Yard::new("what_stands_between_the_hooks_gets_nothing", "4.3")? else { return Ok(()) };
    let ask = Ask::new("odd", "deb:1", PROBE_ALL).asking(yard.hooked.sources()[0], "count", "1");
    // A hook behind ours.
    let other = yard.hooks.join("zzz-other.json");
    let adds = ["-c", r#"sed 's/"env":\[/"env":["A=b",/'"#];
    let hook = json!({"path": "/bin/sh", "args": ["sh", adds[0], adds[1]], "env": ["PATH=/bin"]});
    let file = json!({"version": "1.0.0", "hook": hook, "when": {"always": true}, "stages": ["precreate"]});
    fs::write(&other, file.to_string()).unwrap();
    yard.refused(&ask, &["CONTRACT_UNTRUSTED", "no other hook"])?;
    fs::remove_file(&other).unwrap();
    // Nobody would look.
    let ours = yard.hooks.join("zz-quilt-gpu-createRuntime.json");
    fs::rename(&ours, yard.site.join("aside.json")).unwrap();
    yard.refused(&ask, &["POLICY", "/hooks/createRuntime", "hooks.d"])?;
    fs::rename(yard.site.join("aside.json"), &ours).unwrap();
    // Nobody prepared it: the hook grants nothing by itself.
    let ours = yard.hooks.join("zz-quilt-gpu-precreate.json");
    fs::remove_file(&ours).unwrap();
    yard.refused(&ask, &["POLICY", "precreate"])?;
    Ok(())
}

/// A node without any engine: the hook is called as one would.
struct Alone {
    site: Site,
    rootfs: Rootfs,
}

impl Alone {
    fn new(test: &str) -> Result<Option<Self>> {
        if !root_for(test) {
            return Ok(None);
        }
        let site = Site::new(1)?;
        // As Podman's storage has it.
        let rootfs = Rootfs::debian_like(site.join("overlay/debian/merged"), Path::new(PROBE))?;
        Ok(Some(Self { site, rootfs }))
    }

    fn spec(&self, id: &str) -> Value {
        let mut spec = Spec::new().env("QUILT_GPU_COUNT", "1").cgroup(&format!("/alone/libpod-{id}")).json().clone();
        let hook = self.site.quilt.hook().to_string_lossy();
        fs::create_dir_all(self.site.join("overlay-containers").join(id).join("userdata")).unwrap();
        spec["root"]["path"] = self.rootfs.path.to_string_lossy().into();
        spec["hooks"] =
            json!({"createRuntime": [{"path": hook, "args": ["quilt-gpu-hook", "createRuntime"], "env": ["A=b"]}]});
        spec
    }

    /// The hook at this stage, under a shell that goes on with `then` and ends.
    fn call(&self, stage: &str, stdin: &Value, then: &str) -> Result<Ran> {
        let file = self.site.join(format!("{stage}.json"));
        fs::write(&file, stdin.to_string()).map_err(|e| Error::new(e.to_string()))?;
        let script = format!("\"$0\" {stage} --config \"$1\" <\"$2\"; {then}");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script]).arg(self.site.quilt.hook()).arg(self.site.quilt.config()).arg(&file);
        run(&mut command, None, Duration::from_secs(30))
    }
}

#[test]
fn a_lease_goes_when_its_container_never_comes() -> Result<()> {
    let Some(alone) = Alone::new("a_lease_goes_when_its_container_never_comes")? else { return Ok(()) };
    let (first, second) = ("1a".repeat(32), "2b".repeat(32));
    // The engine is there still: its container may come.
    let held = alone.call("precreate", &alone.spec(&first), "echo; ls \"${1%/*}/state/leases\"; exit 0")?.checked()?;
    let lines: Vec<&str> = held.stdout.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("/dev/nvidia0") && lines[1].contains('@'), "{held:?}");
    // It is not, and nobody said so.
    assert_eq!(alone.site.leases_on_disk()?.len(), 1);
    let next = alone.call("precreate", &alone.spec(&second), "exit 0")?.checked()?;
    assert!(next.stdout.contains("/dev/nvidia0"), "{next:?}");
    assert_eq!(alone.site.leases_on_disk()?.len(), 1);
    alone.site.wait_no_leases()?;
    // The record of it says until when an engine that goes on counts.
    alone.call("precreate", &alone.spec(&first), "exit 0")?.checked()?;
    let name = alone.site.leases_on_disk()?.pop_first().unwrap_or_default();
    let lease = fs::read_to_string(alone.site.quilt.state().join("leases").join(name)).unwrap();
    let lease: Value = serde_json::from_str(&lease).unwrap();
    assert!(lease["holder"]["container"]["made"]["until"].is_u64(), "{lease}");
    // Its engine says that it is gone.
    let state = json!({"ociVersion": "1.0.2", "id": first, "status": "stopped", "bundle": "/nowhere"});
    alone.call("poststop", &state, "exit 0")?.checked()?;
    assert_eq!(alone.site.leases_on_disk()?, BTreeSet::new());
    Ok(())
}

/// Every file below a folder, with what it says or points to.
fn tree(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let (kind, meta) = (entry.file_type().unwrap(), entry.metadata().unwrap());
        all.push(format!("{} {:?} {:?} {}", path.display(), kind, meta.modified().unwrap(), meta.len()));
        if kind.is_dir() {
            all.extend(tree(&path));
        }
    }
    all.sort();
    all
}

/// An image whose folders lead out of it: nothing is written there, here or in the image, and no destination leaves the
/// container.
#[test]
fn d41_links_of_an_image_lead_the_hook_nowhere() -> Result<()> {
    let Some(alone) = Alone::new("d41_links_of_an_image_lead_the_hook_nowhere")? else { return Ok(()) };
    let outside = alone.site.join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("libcuda.so.1"), "the host's").unwrap();
    let up = format!("../../../../../../../../../../..{}", outside.display());
    let libraries = alone.rootfs.path.join("usr/lib/x86_64-linux-gnu");
    let etc = alone.rootfs.path.join("etc");
    fs::create_dir_all(&etc).unwrap();
    for (at, (place, target)) in [
        (etc.join("ld.so.cache"), up.as_str()),
        (etc.join("ld.so.conf.d"), outside.to_str().unwrap()),
        (libraries.join("libcuda.so.1"), up.as_str()),
        (libraries, up.as_str()),
    ]
    .into_iter()
    .enumerate()
    {
        let _ = fs::remove_file(&place).or_else(|_| fs::rename(&place, place.with_extension("was")));
        std::os::unix::fs::symlink(target, &place).unwrap();
        let before = (tree(&outside), tree(&alone.rootfs.path));
        let id = format!("{at}d").repeat(32);
        let ran = alone.call("precreate", &alone.spec(&id), "exit 0")?.checked()?;
        let spec: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!((tree(&outside), tree(&alone.rootfs.path)), before, "{}", place.display());
        for mount in spec["mounts"].as_array().unwrap() {
            let (from, to) = (mount["source"].as_str().unwrap(), mount["destination"].as_str().unwrap());
            let clean = Path::new(to).components().all(|part| !matches!(part, std::path::Component::ParentDir));
            assert!(to.starts_with('/') && clean && !from.starts_with(outside.to_str().unwrap()), "{mount}");
        }
        alone.site.wait_no_leases()?;
    }
    Ok(())
}

/// Labels of a spec stay as they are, and nothing of the host's is relabelled for it.
#[test]
fn d40_selinux_labels_are_the_engines() -> Result<()> {
    let Some(alone) = Alone::new("d40_selinux_labels_are_the_engines")? else { return Ok(()) };
    let mut spec = alone.spec(&"4e".repeat(32));
    let labels = ("system_u:system_r:container_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2");
    spec["process"]["selinuxLabel"] = labels.0.into();
    spec["linux"]["mountLabel"] = labels.1.into();
    let there = spec["mounts"].as_array().map_or(0, Vec::len);
    let ran = alone.call("precreate", &spec, "exit 0")?.checked()?;
    let edited: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        (&edited["process"]["selinuxLabel"], &edited["linux"]["mountLabel"]),
        (&labels.0.into(), &labels.1.into())
    );
    let ours = edited["mounts"].as_array().unwrap().get(there..).unwrap_or_default();
    assert!(ours.len() > 5, "{edited}");
    for mount in ours {
        let relabels =
            |option: &Value| option.as_str().is_some_and(|o| o.eq_ignore_ascii_case("z") || o.contains("context"));
        assert!(!mount["options"].as_array().unwrap().iter().any(relabels), "{mount}");
    }
    Ok(())
}

/// Whatever is mounted in a container with a GPU stands in its spec, and shares nothing with the host.
#[test]
fn d44_every_mount_of_the_hooks_stands_in_the_spec() -> Result<()> {
    let Some(yard) = Yard::new("d44_every_mount_of_the_hooks_stands_in_the_spec", "4.3")? else { return Ok(()) };
    let ask = Ask::new("mounts", "deb:1", ["quilt-probe", "sleep"]).asking(yard.hooked.sources()[0], "count", "1");
    yard.hooked.start(&ask)?.checked()?;
    let table = yard.hooked.exec("mounts", &["cat", "/proc/self/mountinfo"])?.checked()?.stdout;
    let (spec, _) = yard.made(&yard.hooked, &Ask { name: "twin".into(), ..ask })?;
    let texts = |pointer: &str, key: &str| -> Vec<String> {
        let list = spec.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
        let text = |item: &Value| if key.is_empty() { item.as_str() } else { item[key].as_str() }.map(str::to_owned);
        list.iter().filter_map(text).collect()
    };
    let named: Vec<String> = [
        texts("/mounts", "destination"),
        texts("/linux/maskedPaths", ""),
        texts("/linux/readonlyPaths", ""),
        vec!["/".into()],
    ]
    .concat();
    let mut ours = 0;
    for line in table.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let is_named = named.iter().any(|path| path == fields[4]);
        // runc shows each hierarchy of version 1 below the one mount that the spec has.
        assert!(is_named || fields[4].starts_with("/sys/fs/cgroup/"), "{line}");
        if fields[4].contains("nvidia") || fields[4].contains("libcuda") {
            ours += 1;
            assert_eq!(fields[6], "-", "no peer and no master: {line}");
        }
    }
    assert!(ours > 5, "{table}");
    yard.hooked.remove("mounts")?;
    Ok(())
}

/// In a user namespace that is not its owner's, a bundle cannot be read: who, where, and in which mapping.
#[test]
fn a_bundle_that_cannot_be_read_is_named_with_user_and_mapping() -> Result<()> {
    let test = "a_bundle_that_cannot_be_read_is_named_with_user_and_mapping";
    let Some(alone) = Alone::new(test)? else { return Ok(()) };
    let bundle = alone.site.join("bundle");
    fs::create_dir(&bundle).unwrap();
    fs::write(bundle.join("config.json"), "{}").unwrap();
    fs::set_permissions(&bundle, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    // Where that user may go.
    let open = Scratch::new()?;
    let hook = open.join("quilt-gpu-hook");
    fs::copy(alone.site.quilt.hook(), &hook).unwrap();
    fs::set_permissions(open.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let state = json!({"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 1, "bundle": bundle});
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1000", "--regid=1000", "--clear-groups", "unshare", "--user", "--map-root-user"]);
    command.arg(&hook).arg("createRuntime").stdin(Stdio::null());
    let file = open.join("state.json");
    fs::write(&file, state.to_string()).unwrap();
    let ran = run(&mut command, Some(fs::File::open(&file).unwrap()), Duration::from_secs(30))?;
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    for word in ["UNSAFE_SPEC", &*bundle.to_string_lossy(), "user 0", "\"0 1000 1\"", "as root on the node"] {
        assert!(ran.stderr.contains(word), "no {word} in {}", ran.stderr);
    }
    Ok(())
}
