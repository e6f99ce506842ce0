//! The specs that real engines write, recorded in `samples/`: each passes as it is, each with one road to a GPU added is
//! refused by its code, and one that another injector has been at is refused. The dry run and the runtime must agree.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use integration::{QuiltOptions, Ran, Result, Runc, Scratch, Site, root_for, run, say};
use serde_json::{Value, json};

const STUB: &str = env!("CARGO_BIN_EXE_quilt-stub");
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES=";

/// One recorded spec.
struct Sample {
    name: String,
    bytes: Vec<u8>,
}

impl Sample {
    /// All that are whole specs.
    fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples");
        let mut samples: Vec<Self> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
            .map(|path| Self {
                name: path.file_stem().unwrap().to_str().unwrap().into(),
                bytes: fs::read(&path).unwrap(),
            })
            .collect();
        samples.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(samples.len() > 20, "only {} samples", samples.len());
        samples
    }

    /// Made with the engine's own GPU option and NVIDIA's hook.
    fn has_injector(&self) -> bool {
        self.name.contains("gpus")
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap()
    }

    /// The same with a change.
    fn with(&self, change: impl FnOnce(&mut Value)) -> Self {
        let mut document = self.json();
        change(&mut document);
        Self { name: self.name.clone(), bytes: document.to_string().into_bytes() }
    }

    /// The container's name under CRI.
    fn container(&self) -> Option<String> {
        self.json().pointer("/annotations/io.kubernetes.cri.container-name")?.as_str().map(str::to_owned)
    }

    fn is_sandbox(&self) -> bool {
        self.json().pointer("/annotations/io.kubernetes.cri.container-type").is_some_and(|kind| kind == "sandbox")
    }

    /// With requests as annotations, whose keys name the container where there are pods.
    fn asking(&self, requests: &[(&str, &str)]) -> Self {
        let suffix = self.container().map_or_else(String::new, |name| format!(".{name}"));
        self.with(|spec| {
            for (key, value) in requests {
                spec["annotations"][format!("quilt.gpu/{key}{suffix}")] = json!(value);
            }
        })
    }
}

/// What is done with a spec: the dry run's verdict, and what the runtime did.
struct Outcome {
    verdict: Value,
    created: Ran,
    /// The stub was reached.
    exists: bool,
    /// `config.json` afterwards.
    after: Vec<u8>,
}

struct Bench {
    runtime: Runc,
    site: Site,
    _names: Scratch,
}

impl Bench {
    /// Over the stub by this name: the guard reads device lists as the runtime of that name does.
    fn new(name: &str) -> Result<Self> {
        let names = Scratch::new()?;
        symlink(STUB, names.join(name)).unwrap();
        let options = QuiltOptions { verify: false, low_level: vec![names.join(name)], ..QuiltOptions::default() };
        let site = Site::with(|host| host.gpus(2), &options)?;
        site.quilt.cli(&["inventory", "refresh"])?.checked()?;
        say(format_args!("low-level runtime: the stub, judged as {name}, no engine; {}", site.files));
        Ok(Self { runtime: site.quilt.runc(site.join("runtime"))?, site, _names: names })
    }

    /// Judges dry, makes a container, removes it.
    fn outcome(&self, sample: &Sample) -> Result<Outcome> {
        let folder = self.site.join("bundle");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let file = folder.join("config.json");
        fs::write(&file, &sample.bytes).unwrap();
        let path = file.to_str().unwrap();
        let checked = self.site.quilt.cli(&["check", path, "--format", "json"])?;
        let verdict: Value = serde_json::from_str(&checked.stdout).unwrap_or_else(|e| panic!("{e}: {checked:?}"));
        let status = if verdict["verdict"] == "accept" { 0 } else { 1 };
        assert_eq!(checked.status.code(), Some(status), "{}: {checked:?}", sample.name);
        assert!(fs::read(&file).unwrap() == sample.bytes, "{}: a dry run wrote", sample.name);
        assert!(self.site.leases_on_disk()?.is_empty(), "{}: a dry run took a lease", sample.name);

        let mut create = self.runtime.command(&sample.name);
        create.arg("create").arg("--bundle").arg(&folder).arg("--pid-file").arg(folder.join("pid")).arg(&sample.name);
        let created = run(&mut create, None, Duration::from_secs(20))?;
        let exists = self.runtime.root().join(&sample.name).exists();
        let after = fs::read(&file).unwrap();
        self.runtime.delete(&sample.name, true)?.checked()?;
        assert!(self.site.leases_on_disk()?.is_empty(), "{}", sample.name);
        Ok(Outcome { verdict, created, exists, after })
    }

    /// Both must refuse, with this code first, and nothing may have been done.
    fn refused(&self, sample: &Sample, what: &str, code: &str, at: &str) -> Result<()> {
        let outcome = self.outcome(sample)?;
        let what = format!("{} with {what}", sample.name);
        let first = &outcome.verdict["refusals"][0];
        assert_eq!((&outcome.verdict["verdict"], &first["code"]), (&json!("refuse"), &json!(code)), "{what}: {first}");
        assert!(first["at"].as_str().unwrap().starts_with(at), "{what}: not at {at}: {first}");
        assert!(!first["help"].as_str().unwrap().is_empty(), "{what}: {first}");
        assert_eq!(outcome.created.status.code(), Some(1), "{what}: {:?}", outcome.created);
        assert!(outcome.created.stderr.contains(code), "{what}: {:?}", outcome.created);
        assert!(!outcome.exists && outcome.after == sample.bytes, "{what}: it was made all the same");
        Ok(())
    }

    /// Both must accept.
    fn accepted(&self, sample: &Sample, what: &str) -> Result<Outcome> {
        let outcome = self.outcome(sample)?;
        assert_eq!(outcome.verdict["verdict"], "accept", "{} {what}: {}", sample.name, outcome.verdict["refusals"]);
        assert_eq!(outcome.verdict["refusals"], json!([]), "{} {what}", sample.name);
        assert!(outcome.created.ok() && outcome.exists, "{} {what}: {:?}", sample.name, outcome.created);
        Ok(outcome)
    }
}

/// What the container's process sees of the variable: the last one counts.
fn visible(spec: &Value) -> Option<&str> {
    let env = spec.pointer("/process/env")?.as_array()?;
    env.iter().filter_map(Value::as_str).rfind(|text| text.starts_with(VISIBLE))
}

/// The document without what may be changed in a container that gets no GPU: the variable, and the device list where a
/// note says so.
fn stripped(mut spec: Value, list_too: bool) -> Value {
    if let Some(env) = spec.pointer_mut("/process/env").and_then(Value::as_array_mut) {
        env.retain(|text| !text.as_str().unwrap_or_default().starts_with(VISIBLE));
    }
    if list_too && let Some(resources) = spec.pointer_mut("/linux/resources").and_then(Value::as_object_mut) {
        resources.remove("devices");
    }
    spec
}

#[test]
fn what_engines_write_passes_untouched() -> Result<()> {
    if !root_for("what_engines_write_passes_untouched") {
        return Ok(());
    }
    for low_level in ["runc", "crun"] {
        let bench = Bench::new(low_level)?;
        for sample in Sample::all().iter().filter(|sample| !sample.has_injector()) {
            let name = &sample.name;
            let Outcome { verdict, after, .. } = bench.accepted(sample, "as it is")?;
            assert_eq!(verdict["grant"], Value::Null, "{name}");
            let canonical = verdict["notes"].as_array().unwrap().iter().any(|note| note["rule"] == "cgroup-canon");
            let brings = visible(&sample.json()).is_some();
            assert_eq!(verdict["patch"] == json!([]), after == sample.bytes, "{name}: {}", verdict["patch"]);
            if !brings && !canonical {
                assert!(after == sample.bytes, "{name}: {}", verdict["patch"]);
                continue;
            }
            let after: Value = serde_json::from_slice(&after).unwrap();
            assert_eq!(visible(&after), brings.then_some("NVIDIA_VISIBLE_DEVICES=void"), "{name}");
            assert_eq!(stripped(after, canonical), stripped(sample.json(), canonical), "{name}");
            // Lists that forbid all to begin with stay.
            let deny_first = sample.json().pointer("/linux/resources/devices/0").is_some_and(|r| r["allow"] == false);
            assert!(!(deny_first && canonical), "{name}: {}", verdict["notes"]);
        }
    }
    Ok(())
}

#[test]
fn a_request_is_granted_in_each() -> Result<()> {
    if !root_for("a_request_is_granted_in_each") {
        return Ok(());
    }
    let bench = Bench::new("runc")?;
    for sample in Sample::all().iter().filter(|sample| !sample.has_injector()) {
        let asking = sample.asking(&[("count", "1")]);
        let Outcome { verdict, after, .. } = bench.accepted(&asking, "asking for a GPU")?;
        if sample.is_sandbox() {
            assert_eq!(verdict["grant"], Value::Null, "{}", sample.name);
            assert!(after == asking.bytes, "{}: {}", sample.name, verdict["patch"]);
            continue;
        }
        assert_eq!(verdict["grant"]["gpus"].as_array().map(Vec::len), Some(1), "{}: {verdict}", sample.name);
        let after: Value = serde_json::from_slice(&after).unwrap();
        let uuid = verdict["grant"]["gpus"][0]["uuid"].as_str().unwrap();
        assert_eq!(visible(&after), Some(&*format!("{VISIBLE}{uuid}")), "{}", sample.name);
        let rules = after.pointer("/linux/resources/devices").unwrap().as_array().unwrap();
        let gpus = rules.iter().filter(|rule| rule["major"] == 195 && rule["minor"] != 255).count();
        assert_eq!(gpus, 1, "{}: {rules:?}", sample.name);
        assert_eq!(rules[0], json!({"allow": false, "access": "rwm"}), "{}", sample.name);
    }
    Ok(())
}

/// Appends to an array that may be missing, and gives the pointer of the new entry.
fn push(spec: &mut Value, place: &str, entry: Value) -> String {
    let (parent, key) = place.rsplit_once('/').unwrap();
    let list = &mut spec.pointer_mut(parent).unwrap()[key];
    if list.is_null() {
        *list = json!([]);
    }
    let list = list.as_array_mut().unwrap();
    list.push(entry);
    format!("{place}/{}", list.len() - 1)
}

#[test]
fn one_road_to_a_gpu_is_refused_in_each() -> Result<()> {
    if !root_for("one_road_to_a_gpu_is_refused_in_each") {
        return Ok(());
    }
    let bench = Bench::new("runc")?;
    let node = bench.site.host.node("nvidia0");
    let mount = |kind: &str, source: &str, options: Value| json!({"destination": "/mnt/x", "type": kind, "source": source, "options": options});
    let rule = |major: Value| json!({"allow": true, "type": "c", "major": major, "access": "rwm"});
    let mut any_major = rule(Value::Null);
    any_major.as_object_mut().unwrap().remove("major");
    let roads = [
        (
            "a bind of a node",
            "/mounts",
            mount("bind", node.to_str().unwrap(), json!(["rbind", "ro"])),
            "TENANT_GPU_MOUNT",
        ),
        ("devtmpfs", "/mounts", mount("devtmpfs", "devtmpfs", json!([])), "TENANT_GPU_MOUNT"),
        (
            "a device entry",
            "/linux/devices",
            json!({"path": "/dev/x", "type": "c", "major": 195, "minor": 0}),
            "TENANT_GPU_DEVICE",
        ),
        ("a rule", "/linux/resources/devices", rule(json!(195)), "TENANT_GPU_RULE"),
        ("a rule for every major", "/linux/resources/devices", any_major, "TENANT_GPU_RULE"),
    ];
    for sample in Sample::all().iter().filter(|sample| !sample.has_injector()) {
        for (what, place, entry, code) in &roads {
            let mut at = String::new();
            let changed = sample.with(|spec| at = push(spec, place, entry.clone()));
            bench.refused(&changed, what, code, &at)?;
            // Asking for a GPU properly excuses none of them; for a sandbox it is no request.
            bench.refused(&changed.asking(&[("count", "1")]), &format!("{what} and a request"), code, &at)?;
        }
        let strict = sample.asking(&[("count", "1"), ("strict", "true")]);
        if sample.is_sandbox() {
            bench.accepted(&strict, "with strict and a request")?;
        } else {
            bench.refused(&strict, "strict and a request", "STRICT_GPU_CONFLICT", "/annotations/")?;
        }
        bench.accepted(&sample.asking(&[("strict", "true")]), "with strict alone")?;
    }
    Ok(())
}

#[test]
fn another_injector_is_refused_and_other_vendors_are_not() -> Result<()> {
    if !root_for("another_injector_is_refused") {
        return Ok(());
    }
    let bench = Bench::new("runc")?;
    let samples = Sample::all();
    let injected: Vec<&Sample> = samples.iter().filter(|sample| sample.has_injector()).collect();
    assert!(injected.len() >= 4);
    for sample in injected {
        bench.refused(sample, "an injector's hook", "FOREIGN_GPU_INJECTION", "/hooks/")?;
        bench.refused(&sample.asking(&[("count", "1")]), "a hook and a request", "FOREIGN_GPU_INJECTION", "/hooks/")?;
    }

    // The recorded ones are another vendor's: its device is /dev/zero, its hooks do nothing. Here they become NVIDIA's.
    let cdi: Vec<&Sample> = samples.iter().filter(|sample| sample.name.contains("cdi")).collect();
    assert!(cdi.len() >= 5);
    for sample in cdi {
        let hook = sample.with(|spec| {
            spec["hooks"]["createContainer"][0]["path"] = json!("/usr/bin/nvidia-cdi-hook");
        });
        bench.refused(&hook, "NVIDIA's CDI hook", "FOREIGN_GPU_INJECTION", "/hooks/createContainer/0")?;
        let nodes = sample.with(|spec| {
            let device = &mut spec["linux"]["devices"][0];
            (device["path"], device["major"], device["minor"]) = (json!("/dev/nvidia0"), json!(195), json!(0));
            push(spec, "/process/env", json!("NVIDIA_VISIBLE_DEVICES=void"));
        });
        bench.refused(&nodes, "NVIDIA's CDI nodes", "FOREIGN_GPU_INJECTION", "")?;
    }
    Ok(())
}
