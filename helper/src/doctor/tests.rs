//! Each finding is provoked on a made-up node, by one change to one that is well. Needs root: nodes, and trusted folders.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use ledger::audit::{Kind, Record};
use shim::Setup;

use super::{Facts, Level, diagnose};
use crate::demo::{Folder, prepare};
use crate::inventory;

/// A node that is well, in a folder of its own.
struct Node {
    folder: Folder,
    setup: Setup,
}

impl Node {
    fn well() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: a made-up node needs root");
            return None;
        }
        let folder = Folder::make().unwrap();
        let setup = prepare(&folder.0).unwrap();
        let mut node = Self { folder, setup };
        for program in ["hook", "helper"] {
            node.write(program, "");
        }
        let at = |name: &str| node.folder.0.join(name).display().to_string();
        (node.setup.config.paths.hook, node.setup.config.paths.helper) = (at("hook"), at("helper"));
        node.host("etc/docker/daemon.json", r#"{"runtimes": {"quilt-gpu": {"path": "/usr/bin/quilt-gpu-runtime"}}}"#);
        node.host("usr/bin/quilt-gpu-runtime", "");
        node.host("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
        inventory::refresh(&node.setup, None).unwrap();
        node.record();
        Some(node)
    }

    fn record(&self) {
        let record = Record { kind: Kind::Create, fields: serde_json::Map::new() };
        self.setup.audit().unwrap().append(&record).unwrap();
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.folder.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A file of the node.
    fn host(&self, path: &str, text: &str) {
        let path = self.setup.config.host.path(path);
        fs::create_dir_all(Path::new(&path).parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// What an installer leaves: versions, and a link to one.
    fn installed(&self, versions: &[&str], current: &str) {
        let record = r#"{"schema":1,"prefix":"/opt/q","engine":"containerd","restart_due":false,"folders":[]}"#;
        self.host("var/lib/quilt-gpu/installed.json", record);
        for version in versions {
            for name in ["quilt-gpu-runtime", "quilt-gpu-hook", "quilt-gpu"] {
                self.host(&format!("opt/q/versions/{version}/{name}"), "");
            }
        }
        if !current.is_empty() {
            symlink(format!("versions/{current}"), self.setup.config.host.path("opt/q/current")).unwrap();
        }
    }

    /// A unit that lies here, of a node with systemd.
    fn unit(&self, name: &str) {
        self.host("run/systemd/system/other.service", "");
        self.host("usr/bin/quilt-gpu", "");
        self.host(&format!("usr/lib/systemd/system/{name}"), "[Service]\nExecStart=/usr/bin/quilt-gpu x\n");
    }

    fn wanted(&self, name: &str, by: &str) {
        self.host(&format!("etc/systemd/system/{by}/{name}"), "");
    }

    fn kubelet(&self, labels: &str) {
        self.host("proc/77/cmdline", &format!("/usr/bin/kubelet\0--v=2\0--node-labels={labels}\0"));
    }

    fn gone(&self, path: &str) {
        let path = self.setup.config.host.path(path);
        fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path)).unwrap();
    }

    fn facts(&self) -> Facts {
        Facts::gather(&self.setup)
    }

    fn found(&self) -> BTreeSet<(String, Level)> {
        codes(&self.facts())
    }
}

fn codes(facts: &Facts) -> BTreeSet<(String, Level)> {
    diagnose(facts)
        .into_iter()
        .map(|finding| {
            for text in [&finding.cause, &finding.evidence, &finding.mend] {
                assert!(!text.is_empty(), "{finding:?}");
            }
            (finding.code, finding.level)
        })
        .collect()
}

type Change = fn(&mut Node);

/// What follows from other findings: what is stored of a node that changed is stale, and in an open folder nothing is trusted.
/// And from systemd, which looks for GPUs in /dev/char.
const FOLLOWS: [&str; 3] = ["inventory-stale", "inventory-untrusted", "char-link-missing"];

/// What a change makes of a node that is well: these findings more, and no other.
const CHANGES: &[(&str, Level, Change)] = &[
    ("driver-missing", Level::Stops, |node| node.gone("proc/driver/nvidia/version")),
    ("no-gpu", Level::Stops, |node| node.gone("sys/bus/pci/devices")),
    ("inventory-missing", Level::Warns, |node| {
        fs::remove_file(node.setup.state_dir().join(shim::INVENTORY)).unwrap();
    }),
    ("inventory-untrusted", Level::Stops, |node| {
        fs::write(node.setup.state_dir().join(shim::INVENTORY), "{}").unwrap();
    }),
    ("inventory-stale", Level::Warns, |node| node.host("proc/sys/kernel/random/boot_id", "another\n")),
    ("low-level-missing", Level::Stops, |node| {
        node.setup.config.runtime.low_level = vec!["/nonexistent/runc".into()];
    }),
    ("hook-missing", Level::Stops, |node| node.setup.config.paths.hook = "/nonexistent".into()),
    ("helper-missing", Level::Stops, |node| node.setup.config.paths.helper = "/nonexistent".into()),
    ("config", Level::Stops, |node| {
        let path = node.folder.0.join("broken.toml");
        fs::write(&path, "[policy]\nprofil = 1\n").unwrap();
        node.setup.problem = Setup::read(&path).problem;
    }),
    ("verify-off", Level::Stops, |node| node.setup.config.policy.verify = contract::config::Verify::Off),
    ("state-folder", Level::Stops, |node| {
        fs::set_permissions(node.setup.state_dir(), fs::Permissions::from_mode(0o777)).unwrap();
    }),
    ("log-folder", Level::Stops, |node| {
        fs::set_permissions(node.setup.log_dir(), fs::Permissions::from_mode(0o770)).unwrap();
    }),
    ("contract", Level::Warns, |node| {
        let folder = node.setup.state_dir().join("contracts");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{}.json", "0".repeat(32))), "{}").unwrap();
    }),
    ("log-changed", Level::Warns, |node| {
        let path = node.setup.log_dir().join("audit.jsonl");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, text.replace("\"time\":\"2", "\"time\":\"1")).unwrap();
    }),
    ("log-lost", Level::Warns, |node| {
        node.record();
        let path = node.setup.log_dir().join("audit.jsonl");
        let text = fs::read_to_string(&path).unwrap();
        let one = text.lines().next().unwrap();
        fs::write(path, format!("{one}\n")).unwrap();
        node.record();
    }),
    ("engine-missing", Level::Warns, |node| node.gone("etc/docker")),
    // D38: registered nowhere, and registered but not used, are two things, and neither is a missing driver.
    ("runtime-not-registered", Level::Stops, |node| node.host("etc/docker/daemon.json", "{}")),
    ("runtime-not-registered", Level::Warns, |node| node.host("usr/bin/podman", "")),
    ("runtime-not-used", Level::Warns, |node| {
        fs::remove_dir_all(node.setup.log_dir()).unwrap();
        fs::create_dir(node.setup.log_dir()).unwrap();
        fs::set_permissions(node.setup.log_dir(), fs::Permissions::from_mode(0o700)).unwrap();
    }),
    ("runtime-program-missing", Level::Stops, |node| node.gone("usr/bin/quilt-gpu-runtime")),
    ("annotations-not-passed", Level::Warns, |node| {
        node.host("etc/containerd/config.toml", "# pod_annotations\n[runtimes.quilt-gpu]\n");
    }),
    ("runtime-bypass", Level::Warns, |node| {
        let both = r#"{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}, "quilt-gpu": {}}}"#;
        node.host("etc/docker/daemon.json", both);
    }),
    ("template-not-read", Level::Warns, |node| {
        let folder = "var/lib/rancher/k3s/agent/etc/containerd";
        node.host(&format!("{folder}/config.toml.tmpl"), "[runtimes.quilt-gpu]\npod_annotations = []\n");
        node.host(&format!("{folder}/config.toml"), "version = 2\n");
    }),
    ("installation-unreadable", Level::Warns, |node| node.host("var/lib/quilt-gpu/installed.json", "{}")),
    ("installation-broken", Level::Stops, |node| node.installed(&[], "")),
    ("installation-stale", Level::Warns, |node| node.installed(&["new", "old"], "new")),
    ("two-builds", Level::Warns, |node| {
        node.host("etc/containers/containers.conf", "quilt-gpu = [\"/opt/quilt-gpu-runtime\"]\n");
        node.host("opt/quilt-gpu-runtime", "another");
    }),
    ("foreign-injector", Level::Warns, |node| node.host("etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")),
    ("foreign-injector", Level::Warns, |node| {
        node.host("usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", "{}");
    }),
    ("unit-not-enabled", Level::Warns, |node| node.unit("quilt-gpu-inventory.service")),
    ("unit-not-enabled", Level::Warns, |node| {
        node.setup.config.broker.allow.push("*".into());
        node.unit("quilt-gpu-broker.socket");
    }),
    ("unit-program-missing", Level::Warns, |node| {
        node.unit("quilt-gpu-inventory.service");
        node.wanted("quilt-gpu-inventory.service", "multi-user.target.wants");
        node.gone("usr/bin/quilt-gpu");
    }),
    ("node-label", Level::Warns, |node| node.kubelet("a=b,nvidia.com/gpu.deploy.container-toolkit=true")),
    ("node-label", Level::Warns, |node| node.kubelet("nvidia.com/gpu.deploy.device-plugin=true")),
    ("node-label", Level::Warns, |node| node.kubelet("nvidia.com/gpu.workload.config=vm-passthrough")),
    ("cgroup", Level::Stops, |node| node.host("proc/mounts", "proc /proc proc rw 0 0\n")),
    ("selinux", Level::Warns, |node| node.host("sys/fs/selinux/enforce", "1\n")),
    ("apparmor", Level::Warns, |node| {
        node.host("sys/kernel/security/apparmor/profiles", "runc (enforce)\nx (complain)\n")
    }),
];

#[test]
fn every_finding_has_its_cause_and_nothing_else_has_it() {
    let Some(node) = Node::well() else { return };
    let well = node.found();
    println!("a made-up node that is well: {well:?}");
    assert!(well.iter().all(|(_, level)| *level == Level::Warns), "{well:?}");
    for (code, level, change) in CHANGES {
        let mut node = Node::well().unwrap();
        change(&mut node);
        let found = node.found();
        let more: BTreeSet<_> = found.difference(&well).filter(|(code, _)| !FOLLOWS.contains(&code.as_str())).collect();
        let wanted = ((*code).to_owned(), *level);
        assert!(found.contains(&wanted) && !well.contains(&wanted), "{code}: {found:?}");
        assert!(more.iter().all(|one| **one == wanted), "{code} alone: {more:?}");
    }
}

/// What looks like one of them and is none.
#[test]
fn nothing_is_found_where_it_is_as_it_should_be() {
    let Some(node) = Node::well() else { return };
    let well = node.found();
    let cases: [Change; 6] = [
        |node| {
            node.unit("quilt-gpu-inventory.service");
            node.wanted("quilt-gpu-inventory.service", "multi-user.target.wants");
        },
        |node| {
            node.setup.config.broker.allow.push("*".into());
            node.unit("quilt-gpu-broker.socket");
            node.wanted("quilt-gpu-broker.socket", "sockets.target.requires");
        },
        |node| node.unit("quilt-gpu-broker.socket"),
        |node| {
            node.unit("quilt-gpu-inventory.service");
            node.gone("run/systemd");
        },
        |node| node.kubelet("nvidia.com/gpu.deploy.container-toolkit=false,nvidia.com/gpu.workload.config=container"),
        |node| {
            node.setup.config.request.device_plugin = contract::config::DevicePlugin::Trusted;
            node.kubelet("nvidia.com/gpu.deploy.device-plugin=true");
            node.host("proc/78/cmdline", "vim\0--node-labels\0nvidia.com/gpu.deploy.container-toolkit=true\0");
        },
    ];
    for (number, change) in cases.iter().enumerate() {
        let mut node = Node::well().unwrap();
        change(&mut node);
        let mut found = node.found();
        found.retain(|(code, _)| !FOLLOWS.contains(&code.as_str()));
        assert_eq!(found, well, "{number}");
    }
}

/// Those that a folder on disk cannot be made to show, by facts.
#[test]
fn what_a_folder_cannot_show_is_found_by_facts() {
    use contract::config::Unwritable;
    use contract::inventory::{FileId, Filter, LowLevel};

    let Some(node) = Node::well() else { return };
    let well = node.found();
    let low_level = |filter| LowLevel {
        path: "/usr/bin/crun".into(),
        id: FileId { dev: 0, ino: 0, size: 0, ctime: 0, ctime_nsec: 0 },
        name: "crun".into(),
        version: String::new(),
        cgroup: 2,
        filter,
        fails_with_list: false,
        reason: Some("why".into()),
    };
    type Set<'a> = &'a dyn Fn(&mut Facts);
    let with_filter = |facts: &mut Facts, filter| {
        if let super::facts::Stored::There(stored) = &mut facts.stored {
            stored.low_level = Some(low_level(filter));
        }
    };
    let cases: [(&str, Level, Set<'_>); 10] = [
        ("node-unreadable", Level::Stops, &|facts| facts.inventory = Err("why".into())),
        ("not-root", Level::Warns, &|facts| facts.root = false),
        ("filter-not-enforced", Level::Stops, &|facts| with_filter(facts, Filter::NotEnforced)),
        ("filter-not-tried", Level::Warns, &|facts| with_filter(facts, Filter::NotTried)),
        ("ledger", Level::Stops, &|facts| facts.contracts = Err("why".into())),
        ("log-unreadable", Level::Warns, &|facts| facts.log_check = Err("why".into())),
        ("disk-full", Level::Stops, &|facts| facts.log.free = 1 << 20),
        ("disk-low", Level::Warns, &|facts| facts.log.free = 100 << 20),
        ("disk-low", Level::Warns, &|facts| {
            facts.log.free = 1 << 20;
            facts.config.audit.unwritable = Unwritable::GoOn;
        }),
        ("clock", Level::Warns, &|facts| facts.now = "1970-01-01T00:00:00Z".into()),
    ];
    for (code, level, set) in cases {
        let mut facts = node.facts();
        (facts.log.free, facts.state.free) = (u64::MAX, u64::MAX);
        set(&mut facts);
        let found = codes(&facts);
        assert!(found.contains(&(code.to_owned(), level)), "{code}: {found:?}");
        assert!(!well.contains(&(code.to_owned(), level)), "{code}: {well:?}");
    }
    let mut facts = node.facts();
    for (tmpfs, found) in [(true, false), (false, true)] {
        facts.state.is_tmpfs = tmpfs;
        assert_eq!(codes(&facts).contains(&("state-on-disk".to_owned(), Level::Warns)), found);
    }
    // A link that leads nowhere is no file of an engine, and no reason to fail.
    symlink("nowhere", node.setup.config.host.path("etc/docker/dangling")).unwrap();
    assert_eq!(node.found(), well);
}

/// Whoever writes a finding writes what provokes it.
#[test]
fn every_finding_in_the_sources_is_in_these_tables() {
    let sources =
        [include_str!("driver.rs"), include_str!("engines.rs"), include_str!("own.rs"), include_str!("system.rs")];
    let tables = include_str!("tests.rs");
    let mut seen = 0;
    for made in ["Finding::stops(", "Finding::warns(", "make("] {
        let calls = sources.iter().flat_map(|source| source.split(made).skip(1));
        // Others have their code from a table, or from the inventory, whose tests provoke it.
        for code in calls.filter_map(|call| call.trim_start().strip_prefix('"')?.split('"').next()) {
            assert!(tables.contains(&format!("(\"{code}\"")), "nothing provokes {code}");
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen}");
}
