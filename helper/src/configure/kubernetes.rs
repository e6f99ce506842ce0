//! Distributions of Kubernetes that write containerd's configuration themselves: k3s and rke2 from a template in Go's
//! language, microk8s from one that is TOML with variables.

use super::format::Format;
use super::plan::{Draft, Files, NAME, Place, Plan, Stop, Wanted};
use super::text::{Trouble, Value, keys};
use super::{containerd, template, toml, units};

/// k3s, or rke2, which is built on it.
pub(super) fn rancher(files: &dyn Files, wanted: &Wanted, engine: &str) -> Result<Plan, Stop> {
    let folder = format!("/var/lib/rancher/{engine}/agent/etc/containerd");
    let (path, version) = match &wanted.file {
        Some(file) if file.ends_with("config-v3.toml.tmpl") => (file.clone(), 3),
        Some(file) if file.ends_with("config.toml.tmpl") => (file.clone(), 2),
        Some(file) => {
            let why = "a template is config-v3.toml.tmpl (containerd 2) or config.toml.tmpl (containerd 1.7)";
            return Err((file.clone(), Trouble::Refused(why.into())));
        }
        None => choice(files, &folder, engine)?,
    };
    let plugin = if version == 3 { "io.containerd.cri.v1.runtime" } else { "io.containerd.grpc.v1.cri" };
    let place = Place { entry: keys(["plugins", plugin, "containerd", "runtimes", NAME]), default: Vec::new() };
    let entry = entry(&wanted.program);
    let stop = |why: Trouble| (path.clone(), why);
    let before = files.text(&path).map_err(stop)?;
    let after = match &before {
        Some(text) => {
            template::check(text).map_err(stop)?;
            if template::is_stub(text) {
                let why = format!(
                    "this template has neither the line {} nor handlers of its own: containerd would be left without \
                     what {engine} writes; put that line first, or remove the file",
                    template::BASE
                );
                return Err((path, Trouble::Refused(why)));
            }
            template::set(text, &place.entry, &entry)
        }
        None => template::fresh(&place.entry, &entry),
    };
    let mut drafts = vec![Draft { path, format: Format::Template, before, after, place }];
    if wanted.default {
        drafts.push(default(files, engine)?);
    }
    let units = if engine == "k3s" { ["k3s", "k3s-agent"] } else { ["rke2-server", "rke2-agent"] };
    let unit = units.into_iter().find(|unit| units::exists(files, unit)).unwrap_or(units[0]);
    let restart = Some(["systemctl", "restart", unit].map(str::to_owned).to_vec());
    let low_level = vec![format!("/var/lib/rancher/{engine}/data/current/bin/runc")];
    Ok(Plan { drafts, restart, low_level, notes: Vec::new() })
}

/// Which of the two templates counts is for the containerd that wrote the configuration beside them.
fn choice(files: &dyn Files, folder: &str, engine: &str) -> Result<(String, i64), Stop> {
    let written = format!("{folder}/config.toml");
    let stop = |why: Trouble| (written.clone(), why);
    let paths = [(format!("{folder}/config.toml.tmpl"), 2), (format!("{folder}/config-v3.toml.tmpl"), 3)];
    let version = match files.text(&written).map_err(stop)? {
        Some(text) => toml::number(&text, &keys(["version"])).map_err(stop)?,
        None => None,
    };
    let there: Vec<&(String, i64)> = paths.iter().filter(|(path, _)| files.exists(path)).collect();
    let chosen = match (version, there.as_slice()) {
        (Some(version), _) => paths.iter().find(|(_, of)| *of == version.clamp(2, 3)),
        (None, [only]) => Some(*only),
        (None, _) => None,
    };
    let why = || {
        format!(
            "{engine} has not written it yet, so which containerd it brings is not known; start {engine} once, or name \
             the template with --engine-config"
        )
    };
    chosen.cloned().ok_or_else(|| stop(Trouble::Refused(why())))
}

/// The handler, with the one option that these distributions set by themselves.
fn entry(program: &str) -> Value {
    let list = |word: &str| Value::Words(vec![word.to_owned()]);
    let options = vec![
        ("BinaryName".to_owned(), Value::word(program)),
        ("SystemdCgroup".to_owned(), Value::Verbatim("{{ .SystemdCgroup }}".into())),
    ];
    Value::Table(vec![
        ("runtime_type".to_owned(), Value::word("io.containerd.runc.v2")),
        ("pod_annotations".to_owned(), list("quilt.gpu/*")),
        ("container_annotations".to_owned(), list("grant.quilt.gpu/*")),
        ("options".to_owned(), Value::Table(options)),
    ])
}

/// The base template has the table that names the default, and a table can be named once: so the distribution is told.
fn default(files: &dyn Files, engine: &str) -> Result<Draft, Stop> {
    let folder = format!("/etc/rancher/{engine}/config.yaml.d");
    let path = format!("{folder}/{NAME}.yaml");
    let own_key = |text: &str| text.lines().any(|line| line.starts_with("default-runtime:"));
    for later in files.names(&folder).into_iter().map(|name| format!("{folder}/{name}")).filter(|name| *name > path) {
        if files.text(&later).map_err(|why| (later.clone(), why))?.is_some_and(|text| own_key(&text)) {
            let why = format!("this file is read after {path} and names another default-runtime; take that out");
            return Err((later, Trouble::Refused(why)));
        }
    }
    let before = files.text(&path).map_err(|why| (path.clone(), why))?;
    Ok(Draft::whole(&path, before, format!("default-runtime: {NAME}\n")))
}

/// microk8s.
pub(super) fn microk8s(files: &dyn Files, wanted: &Wanted) -> Result<Plan, Stop> {
    const FILE: &str = "/var/snap/microk8s/current/args/containerd-template.toml";
    let main = wanted.file.clone().unwrap_or_else(|| FILE.into());
    if !files.exists(&main) {
        let why = "microk8s is not installed here: it brings this template, and there is none";
        return Err((main, Trouble::Refused(why.into())));
    }
    let plan = Plan {
        restart: Some(["snap", "restart", "microk8s.daemon-containerd"].map(str::to_owned).to_vec()),
        low_level: vec!["/snap/microk8s/current/bin/runc".into()],
        ..Plan::default()
    };
    containerd::at(files, wanted, &main, plan)
}
