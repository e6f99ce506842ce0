//! What an operator installs for engines other than Docker: read by the engines themselves where they are there, and held
//! against what they are known to take where they are not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::{Result, Scratch, root_for, run, say};
use toml::de::{DeTable, DeValue};

const PODS: &str = r#"["quilt.gpu/*"]"#;
const NODES: &str = r#"["grant.quilt.gpu/*"]"#;
const RUNTIME: &str = "/usr/local/bin/quilt-gpu-runtime";

fn config(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs").join(name)).unwrap()
}

/// A value of a document by its path of keys, as TOML text.
fn value(text: &str, path: &[&str]) -> Option<String> {
    fn shown(value: &DeValue<'_>) -> String {
        match value {
            DeValue::String(text) => format!("{text:?}"),
            DeValue::Boolean(value) => value.to_string(),
            DeValue::Array(list) => {
                format!("[{}]", list.iter().map(|item| shown(item.get_ref())).collect::<Vec<_>>().join(", "))
            }
            DeValue::Table(table) => {
                let mut keys: Vec<String> = table.iter().map(|(key, _)| key.get_ref().to_string()).collect();
                keys.sort_unstable();
                keys.join(" ")
            }
            other => other.type_str().to_owned(),
        }
    }
    fn find<'t>(table: &'t DeTable<'_>, path: &[&str]) -> Option<&'t DeValue<'t>> {
        let (first, rest) = path.split_first()?;
        let value = table.iter().find(|(key, _)| key.get_ref() == first)?.1.get_ref();
        match (value, rest.is_empty()) {
            (value, true) => Some(value),
            (DeValue::Table(inner), false) => find(inner, rest),
            _ => None,
        }
    }
    let table = DeTable::parse(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    find(table.get_ref(), path).map(shown)
}

fn cache() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache");
    std::env::var_os("QUILT_TEST_CACHE").map_or_else(default, PathBuf::from).join("engines")
}

/// One version of containerd, by the folder of the engine that brings it.
fn containerd(test: &str, place: &str) -> Option<PathBuf> {
    let path = if place.is_empty() { PathBuf::from("/usr/bin") } else { cache().join(place) }.join("containerd");
    if !path.exists() {
        say(format_args!("{test}: skipped, {} is not there", path.display()));
        return None;
    }
    Some(path)
}

/// What containerd makes of a configuration.
fn dumped(containerd: &Path, file: &Path) -> Result<String> {
    let mut command = Command::new(containerd);
    let answer = run(command.arg("-c").arg(file).args(["config", "dump"]), None, Duration::from_secs(20))?.checked()?;
    Ok(answer.stdout)
}

/// The handler as containerd read it, under this plugin.
fn handler_stands(dump: &str, plugin: &str, what: &str) {
    let of = |handler: &str, keys: &[&str]| {
        value(dump, &[&["plugins", plugin, "containerd", "runtimes", handler][..], keys].concat())
    };
    for (keys, expected) in [
        (&["runtime_type"][..], r#""io.containerd.runc.v2""#),
        (&["pod_annotations"], PODS),
        (&["container_annotations"], NODES),
        (&["options", "BinaryName"], &format!("{RUNTIME:?}")),
    ] {
        assert_eq!(of("quilt-gpu", keys).as_deref(), Some(expected), "{what}: {keys:?}");
    }
    // Whichever the node has is set by whoever knows the node.
    let systemd = of("quilt-gpu", &["options", "SystemdCgroup"]);
    assert!(matches!(systemd.as_deref(), None | Some("false")), "{what}: {systemd:?}");
    assert_eq!(of("runc", &["runtime_type"]).as_deref(), Some(r#""io.containerd.runc.v2""#), "{what}: runc is kept");
    assert_ne!(of("runc", &["options", "BinaryName"]), of("quilt-gpu", &["options", "BinaryName"]), "{what}");
}

/// The lines that wait behind a number sign.
fn with_runc(text: &str) -> String {
    let line = |line: &str| {
        if line.starts_with("#[") || line.starts_with("#  ") { line[1..].to_owned() } else { line.to_owned() }
    };
    text.lines().map(|text| line(text) + "\n").collect()
}

#[test]
fn containerd_1_takes_the_tables_of_version_2() -> Result<()> {
    let test = "containerd_1_takes_the_tables_of_version_2";
    let tables = config("containerd-version-2.toml");
    let plugin = "io.containerd.grpc.v1.cri";
    let scratch = Scratch::new()?;
    let file = scratch.join("config.toml");
    for place in ["", "docker-26"] {
        let Some(containerd) = containerd(test, place) else { continue };
        let main = format!(
            "version = 2\n[plugins.\"{plugin}\"]\n  sandbox_image = \"example.org/pause:1\"\n\
             [plugins.\"{plugin}\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n"
        );
        for (what, text) in [
            ("a main file with runc", format!("{main}{tables}")),
            ("a main file without", format!("version = 2\n{}", with_runc(&tables))),
        ] {
            fs::write(&file, &text).unwrap();
            let dump = dumped(&containerd, &file)?;
            handler_stands(&dump, plugin, &format!("{}, {what}", containerd.display()));
            let image = value(&dump, &["plugins", plugin, "sandbox_image"]).unwrap();
            assert_eq!(image.contains("example.org"), text.contains("example.org"), "{what}: {image}");
        }
        // Why the comment says so: with these tables alone the built-in runc goes.
        fs::write(&file, format!("version = 2\n{tables}")).unwrap();
        let dump = dumped(&containerd, &file)?;
        assert_eq!(value(&dump, &["plugins", plugin, "containerd", "runtimes"]).as_deref(), Some("quilt-gpu"));
        say(format_args!("{test}: {}", containerd.display()));
    }
    Ok(())
}

#[test]
fn containerd_2_takes_the_file_of_version_3() -> Result<()> {
    let test = "containerd_2_takes_the_file_of_version_3";
    let Some(containerd) = containerd(test, "docker-28") else { return Ok(()) };
    let scratch = Scratch::new()?;
    fs::create_dir(scratch.join("conf.d")).unwrap();
    fs::write(scratch.join("conf.d/quilt-gpu.toml"), config("containerd-version-3.toml")).unwrap();
    let imports = scratch.join("conf.d/*.toml");
    let main = scratch.join("config.toml");
    let image = "[plugins.\"io.containerd.cri.v1.images\".pinned_images]\n  sandbox = \"example.org/pause:1\"\n";
    fs::write(&main, format!("version = 3\nimports = [{:?}]\n{image}", imports.to_str().unwrap())).unwrap();
    let dump = dumped(&containerd, &main)?;
    handler_stands(&dump, "io.containerd.cri.v1.runtime", "containerd 2");
    assert!(dump.contains("example.org/pause:1"), "the rest of the main file is kept");
    say(format_args!("{test}: {}", containerd.display()));
    Ok(())
}

#[test]
fn podman_knows_the_runtime_and_keeps_its_own() -> Result<()> {
    let text = config("podman.conf");
    assert_eq!(value(&text, &["engine", "runtimes", "quilt-gpu"]), Some(format!("[{RUNTIME:?}]")));
    assert_eq!(value(&text, &["engine"]).as_deref(), Some("runtimes"), "nothing else is set");
    let test = "podman_knows_the_runtime_and_keeps_its_own";
    if !root_for(test) || !Path::new("/usr/bin/podman").exists() {
        say(format_args!("{test}: the file alone, podman is not there"));
        return Ok(());
    }
    // Podman wants the program to be there.
    let scratch = Scratch::new()?;
    let conf = scratch.join("podman.conf");
    fs::write(&conf, text.replace(RUNTIME, "/usr/sbin/runc")).unwrap();
    for (runtime, path) in [("quilt-gpu", "/usr/sbin/runc"), ("crun", "crun")] {
        let mut podman = Command::new("/usr/bin/podman");
        podman.env("CONTAINERS_CONF", &conf);
        for (flag, name) in [("--root", "root"), ("--runroot", "runroot"), ("--tmpdir", "tmp")] {
            podman.arg(flag).arg(scratch.join(name));
        }
        podman.args(["--runtime", runtime, "info", "--format", "{{.Host.OCIRuntime.Path}}"]);
        let answer = run(&mut podman, None, Duration::from_secs(60))?.checked()?;
        assert!(answer.stdout.trim().ends_with(path), "{runtime}: {answer:?}");
    }
    Ok(())
}

/// Keys of a runtime handler that crio.conf(5) knows, and what they are.
const CRIO: [(&str, &str); 9] = [
    ("runtime_path", "path"),
    ("runtime_root", "path"),
    ("runtime_type", "oci"),
    ("runtime_config_path", "path"),
    ("privileged_without_host_devices", "flag"),
    ("allowed_annotations", "list"),
    ("monitor_path", "path"),
    ("monitor_cgroup", "word"),
    ("monitor_env", "list"),
];

#[test]
fn crio_would_take_its_file() {
    let text = config("crio.conf");
    let path = ["crio", "runtime", "runtimes", "quilt-gpu"];
    assert_eq!(value(&text, &path[..1]).as_deref(), Some("runtime"));
    assert_eq!(value(&text, &path[..3]).as_deref(), Some("quilt-gpu"));
    let keys = value(&text, &path).unwrap();
    for key in keys.split(' ') {
        let kind = CRIO.iter().find(|(known, _)| *known == key).unwrap_or_else(|| panic!("crio knows no {key}")).1;
        let value = value(&text, &[&path[..], &[key]].concat()).unwrap();
        let fits = match kind {
            "path" => value.starts_with("\"/"),
            "oci" => value == r#""oci""#,
            "flag" => value == "true" || value == "false",
            "list" => value.starts_with('['),
            _ => value.starts_with('"'),
        };
        assert!(fits, "{key} = {value}");
    }
    assert_eq!(value(&text, &[&path[..], &["runtime_path"]].concat()), Some(format!("{RUNTIME:?}")));
}

#[test]
fn only_the_nodes_own_keys_pass_as_container_annotations() {
    for name in ["containerd-version-2.toml", "containerd-version-3.toml"] {
        let text = config(name);
        let lists: Vec<&str> = text.lines().filter(|line| line.contains("_annotations = ")).map(str::trim).collect();
        assert_eq!(lists, [format!("pod_annotations = {PODS}"), format!("container_annotations = {NODES}")], "{name}");
    }
    // CRI-O's list is of annotations that CRI-O itself obeys.
    assert!(!config("crio.conf").contains("allowed_annotations"));
}

/// What runs before engines, and again after every change of the node.
#[test]
fn units_run_before_engines() {
    let of = |unit: &str, key: &str| {
        let text = config(&format!("systemd/{unit}.service"));
        let line = text.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned()));
        line.unwrap_or_else(|| panic!("{unit}: no {key}"))
    };
    for (unit, engine) in UNITS.iter().flat_map(|unit| ENGINES.map(|engine| (unit, engine))) {
        assert!(of(unit, "Before").split(' ').any(|before| before == format!("{engine}.service")), "{unit} {engine}");
    }
    let [inventory, cdi] = UNITS;
    assert!(of(inventory, "After").contains("systemd-modules-load.service"));
    // Leases lie in that folder, and systemd removes it with the unit unless it is told not to.
    let folder = (of(inventory, "RuntimeDirectory"), of(inventory, "RuntimeDirectoryPreserve"));
    assert_eq!(folder, ("quilt-gpu".to_owned(), "yes".to_owned()));
    assert!(of(inventory, "ExecStart").starts_with("/usr/local/bin/quilt-gpu inventory refresh --wait "));
    // Wanted by the inventory, it starts with each start of that, and after it.
    let after = format!("{inventory}.service");
    assert_eq!((of(cdi, "After"), of(cdi, "WantedBy")), (after.clone(), after));
    assert!(of(cdi, "ExecStart").starts_with("/usr/local/bin/quilt-gpu cdi generate --output /run/cdi/"));
}

/// The runtime asks where systemd listens.
#[test]
fn the_broker_listens_where_it_is_asked() {
    let (socket, service) = (config("systemd/quilt-gpu-broker.socket"), config("systemd/quilt-gpu-broker.service"));
    let asked =
        config("config.toml").lines().find_map(|line| line.strip_prefix("#socket = ").map(str::to_owned)).unwrap();
    assert!(
        socket.contains(&format!("\nListenStream={}\n", asked.trim_matches('"'))) && socket.contains("\nAccept=no\n")
    );
    assert!(service.contains("\nExecStart=/usr/local/bin/quilt-gpu broker\n"));
}

const UNITS: [&str; 2] = ["quilt-gpu-inventory", "quilt-gpu-cdi"];
const ENGINES: [&str; 5] = ["docker", "containerd", "crio", "podman-restart", "kubelet"];

/// The units as `make install` leaves them, with a program that is there.
#[test]
fn systemd_takes_the_units() -> Result<()> {
    let analyze = Path::new("/usr/bin/systemd-analyze");
    if !analyze.exists() {
        say(format_args!("systemd_takes_the_units: not verified, {} is not there", analyze.display()));
        return Ok(());
    }
    let scratch = Scratch::new()?;
    // The service names its socket, and is looked at with it.
    fs::write(scratch.join("quilt-gpu-broker.socket"), config("systemd/quilt-gpu-broker.socket")).unwrap();
    for (unit, timeout) in
        UNITS.map(|unit| (unit, "TimeoutStartSec=")).into_iter().chain([("quilt-gpu-broker", "TimeoutStopSec=")])
    {
        let path = scratch.join(format!("{unit}.service"));
        let verified = |text: &str| -> Result<(bool, String)> {
            fs::write(&path, text).unwrap();
            let ran = run(Command::new(analyze).arg("verify").arg(&path), None, Duration::from_secs(20))?;
            Ok((ran.status.success(), ran.stderr))
        };
        let with_program =
            config(&format!("systemd/{unit}.service")).replace("/usr/local/bin/quilt-gpu ", "/bin/true ");
        let (fine, said) = verified(&with_program)?;
        assert!(fine && !said.contains(&format!("{unit}.service:")), "{said}");
        let (_, said) = verified(&with_program.replace(timeout, &format!("{timeout}lots")))?;
        assert!(said.contains(&format!("{unit}.service")), "a mistake is told: {said}");
    }
    Ok(())
}

/// The log is a chain: a file of it is moved, never copied and cut.
#[test]
fn logrotate_would_move_the_log_and_leave_it() -> Result<()> {
    let text = config("logrotate.conf");
    let words: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with('#')).collect();
    for word in ["/var/log/quilt-gpu/audit.jsonl {", "nocopytruncate", "nocreate", "nocompress", "missingok"] {
        assert!(words.contains(&word), "{word}");
    }
    let logrotate = Path::new("/usr/sbin/logrotate");
    if !logrotate.exists() {
        say(format_args!("logrotate_would_move_the_log: not tried, {} is not there", logrotate.display()));
        return Ok(());
    }
    let scratch = Scratch::new()?;
    let log = scratch.join("audit.jsonl");
    fs::write(&log, "{}\n").unwrap();
    fs::write(scratch.join("conf"), text.replace("/var/log/quilt-gpu/audit.jsonl", log.to_str().unwrap())).unwrap();
    let mut command = Command::new(logrotate);
    command.args(["--force", "--state"]).arg(scratch.join("state")).arg(scratch.join("conf"));
    run(&mut command, None, Duration::from_secs(20))?.checked()?;
    assert!(!log.exists() && scratch.join("audit.jsonl.1").exists());
    Ok(())
}

/// No udev is here to read them: every line is held against the keys that udev(7) has, and jumps lead somewhere.
#[test]
fn udev_would_take_the_rules() {
    let text = config("udev/71-quilt-gpu.rules");
    let mut labels = Vec::new();
    let mut jumps = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        for part in line.split(", ") {
            let (key, value) = part.split_once('=').unwrap();
            let (key, value) = (key.trim_end_matches(['!', '+']), value.trim_start_matches('='));
            let value =
                value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or_else(|| panic!("{part}"));
            match key {
                "ACTION" | "SUBSYSTEM" | "DEVPATH" | "KERNEL" | "ENV{PCI_ID}" | "ENV{PCI_CLASS}" => {}
                "RUN" => assert_eq!(value, "/bin/systemctl --no-block restart quilt-gpu-inventory.service"),
                "LABEL" => labels.push(value.to_owned()),
                "GOTO" => jumps.push(value.to_owned()),
                other => panic!("udev has no {other}: {line}"),
            }
        }
    }
    assert!(jumps.len() > 3 && jumps.iter().all(|jump| labels.contains(jump)), "{jumps:?} {labels:?}");
}
