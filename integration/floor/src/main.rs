//! `quilt-floor`: the least that a wrapper around a low-level runtime does which gives out one fixed GPU. On `create` it
//! reads `config.json`, puts in what a CDI document (JSON, its first device) says, and writes the file; then, and for every
//! other verb, it becomes the low-level runtime. It judges nothing, keeps nothing, and what it loses of a spec it loses.
//!
//! `QUILT_FLOOR_RUNTIME` is the low-level runtime, `QUILT_FLOOR_CDI` the document. With `QUILT_FLOOR_WAITS` it changes nothing and
//! stays until the low-level runtime has ended: the least of whoever looks at what was made.
#![allow(clippy::print_stderr)]

use std::error::Error;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value, json};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if std::env::var_os("QUILT_FLOOR_WAITS").is_some() {
        wait(&words);
    }
    let bundle = words.iter().position(|word| word == "--bundle").and_then(|at| words.get(at + 1));
    let edited = match bundle {
        Some(bundle) if words.iter().any(|word| word == "create") => edited(Path::new(bundle)),
        _ => Ok(()),
    };
    let failed = edited.map_or_else(|error| error, |()| become_runtime(&words));
    eprintln!("quilt-floor: {failed}");
    std::process::exit(1);
}

fn wait(words: &[String]) -> ! {
    let runtime = std::env::var_os("QUILT_FLOOR_RUNTIME").unwrap_or_default();
    let status = Command::new(runtime).args(words).status();
    std::process::exit(status.ok().and_then(|status| status.code()).unwrap_or(1));
}

fn become_runtime(words: &[String]) -> Box<dyn Error> {
    match std::env::var_os("QUILT_FLOOR_RUNTIME") {
        Some(runtime) => Command::new(runtime).args(words).exec().into(),
        None => "QUILT_FLOOR_RUNTIME is not set".into(),
    }
}

fn edited(bundle: &Path) -> Result<(), Box<dyn Error>> {
    let path = bundle.join("config.json");
    let mut spec: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    let cdi = std::env::var_os("QUILT_FLOOR_CDI").ok_or("QUILT_FLOOR_CDI is not set")?;
    let cdi: Value = serde_json::from_slice(&std::fs::read(cdi)?)?;
    for edits in [&cdi["containerEdits"], &cdi["devices"][0]["containerEdits"]] {
        inject(&mut spec, edits);
    }
    let temporary = bundle.join("config.json.new");
    std::fs::write(&temporary, serde_json::to_vec(&spec)?)?;
    Ok(std::fs::rename(&temporary, &path)?)
}

fn inject(spec: &mut Value, edits: &Value) {
    let list = |name: &str| edits[name].as_array().cloned().unwrap_or_default();
    for node in list("deviceNodes") {
        let rule = json!({"allow": true, "type": "c", "major": node["major"], "minor": node["minor"], "access": "rwm"});
        push(spec, &["linux", "resources", "devices"], rule);
        push(spec, &["linux", "devices"], node);
    }
    for mount in list("mounts") {
        let entry = json!({
            "destination": mount["containerPath"], "source": mount["hostPath"], "type": "bind", "options": mount["options"],
        });
        push(spec, &["mounts"], entry);
    }
    for variable in list("env") {
        push(spec, &["process", "env"], variable);
    }
}

fn push(spec: &mut Value, path: &[&str], item: Value) {
    let mut place = spec;
    for key in path {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        place = &mut place[*key];
    }
    match place {
        Value::Array(items) => items.push(item),
        other => *other = Value::Array(vec![item]),
    }
}
