//! Files that are found on nodes: each is configured with and without our runtime as default, configured again, which
//! changes nothing, and taken back, which leaves every byte as it was; also after others have edited the file.

use super::super::Engine::{self, Containerd, Crio, Docker, K3s, Microk8s, Podman, Rke2};
use super::super::format::Format;
use super::Node;

const DAEMON: &str = "/etc/docker/daemon.json";
const MAIN: &str = "/etc/containerd/config.toml";
const K3S: &str = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";
const K3S_V3: &str = "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl";
const RKE2: &str = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml";
const RKE2_V2: &str = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl";
const RKE2_V3: &str = "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.tmpl";

const V2: &str = r#"version = 2
# of the operator
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "example.org/pause:1" # ours
    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "runc"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        base_runtime_spec = '/etc/containerd/base.json'
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          SystemdCgroup = true
          # BinaryName = "crun"

[grpc]
  address = "/run/containerd/containerd.sock"
"#;
const V3: &str = "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n";
const V3_RUNC: &str =
    "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\nSystemdCgroup = true\n";
const TEMPLATE: &str = r#"version = 3
{{- if .IsRunningInUserNS }}
disabled_plugins = []
{{- end }}
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
{{ range $k, $v := .ExtraRuntimes -}}
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'{{$k}}']
  runtime_type = "{{$v.RuntimeType}}"
{{ end -}}
{{/* {{ a comment */}}
"#;
const MICROK8S: &str = r#"version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "${SNAPSHOTTER}"
  default_runtime_name = "${RUNTIME}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "${RUNTIME_TYPE}"
"#;

const NVIDIA: &str = r#"{
    "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}},
    "default-runtime": "nvidia"
}
"#;
const OLD_OURS: &str = r#"{
  "runtimes": {
    "quilt-gpu": {"path": "/old", "runtimeArgs": ["x"]}
  },
  "default-runtime": "quilt-gpu"
}
"#;
const OURS: &str =
    r#"{"runtimes": {"quilt-gpu": {"path": "/usr/bin/quilt-gpu-runtime"}}, "default-runtime": "quilt-gpu"}"#;
const V1: &str = r#"oom_score = 0
[plugins.cri]
  enable_selinux = true
[plugins.cri.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v1"
"#;
const BRACES: &str = r#"version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
runtimes = { runc = { runtime_type = 'io.containerd.runc.v2', options = { SystemdCgroup = true } } }
"#;
const V3_CRUN: &str = r#"version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'crun'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun.options]
BinaryName = '/usr/bin/crun'
SystemdCgroup = true
"#;
const CRIO_CRUN: &str = r#"[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
monitor_path = "/usr/libexec/crio/conmon"
allowed_annotations = ["io.kubernetes.cri-o.Devices"]
"#;

/// What the node is called, the engine, its files, and parts of what the configured files say together.
type Case<'a> = (&'a str, Engine, &'a [(&'a str, &'a str)], &'a [&'a str]);

const PATH: &str = r#""/usr/bin/quilt-gpu-runtime""#;

fn cases() -> Vec<Case<'static>> {
    vec![
        ("no file", Docker, &[], &[PATH]),
        ("empty", Docker, &[(DAEMON, "")], &[PATH]),
        ("blank", Docker, &[(DAEMON, "\n\n")], &[PATH]),
        ("hollow", Docker, &[(DAEMON, "{}")], &[PATH]),
        (
            "one line",
            Docker,
            &[(DAEMON, r#"{"hosts": ["fd://"], "debug": true}"#)],
            &[r#", "runtimes": {"quilt-gpu": {"path": "#],
        ),
        (
            "no final newline",
            Docker,
            &[(DAEMON, "{\n\t\"debug\": true\n}")],
            &["{\n\t\"debug\": true,\n\t\"runtimes\": {\n\t\t\"quilt-gpu\": {"],
        ),
        (
            "CRLF",
            Docker,
            &[(DAEMON, "{\r\n  \"debug\": true\r\n}\r\n")],
            &["true,\r\n  \"runtimes\": {\r\n    \"quilt-gpu\""],
        ),
        (
            "unicode",
            Docker,
            &[(DAEMON, "{\n  \"labels\": [\"größe=\u{1f680}\", \"\\u00e9\"],\n  \"log-opts\": {}\n}\n")],
            &["größe=\u{1f680}\", \"\\u00e9\"]"],
        ),
        ("other runtimes", Docker, &[(DAEMON, NVIDIA)], &["\"runtimeArgs\": []}, \"quilt-gpu\": {"]),
        ("no runtimes yet", Docker, &[(DAEMON, "{\n  \"runtimes\": {}, \"debug\": null\n}\n")], &[PATH]),
        ("null", Docker, &[(DAEMON, "{\n  \"runtimes\": null\n}\n")], &[PATH]),
        ("ours with another program", Docker, &[(DAEMON, OLD_OURS)], &[PATH, "\"runtimeArgs\": [\"x\"]"]),
        ("ours already", Docker, &[(DAEMON, OURS)], &[PATH]),
        (
            "the unit names another file",
            Docker,
            &[
                (
                    "/usr/lib/systemd/system/docker.service",
                    "[Service]\nExecStart=/usr/bin/dockerd -H fd:// \\\n  --config-file=/opt/d.json\n",
                ),
                ("/opt/d.json", "{}\n"),
            ],
            &[PATH],
        ),
        (
            "a snap",
            Docker,
            &[("/var/snap/docker/current/config/daemon.json", "{\n    \"log-level\": \"error\"\n}")],
            &["/var/lib/snapd/hostfs/usr/bin/quilt-gpu-runtime"],
        ),
        ("no file", Containerd, &[], &["version = 2\n", "containerd.runtimes.runc]\n", "BinaryName = "]),
        ("empty", Containerd, &[(MAIN, "")], &["version = 2\n", "containerd.runtimes.runc]\n"]),
        ("comments alone", Containerd, &[(MAIN, "# nothing yet\r\n")], &["version = 2\r\n# nothing yet\r\n"]),
        (
            "version 1",
            Containerd,
            &[(MAIN, V1)],
            &["[plugins.cri.containerd.runtimes.quilt-gpu]", "type = \"io.containerd.runc.v2\""],
        ),
        (
            "version 2",
            Containerd,
            &[(MAIN, V2)],
            &[
                "base_runtime_spec = '/etc/containerd/base.json'\n        pod_annotations",
                "quilt-gpu.options]",
                "SystemdCgroup = true\n\n[grpc]",
            ],
        ),
        (
            "implied runc",
            Containerd,
            &[(MAIN, "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_selinux = true")],
            &["selinux = true\n", "containerd.runtimes.runc]\n"],
        ),
        (
            "CRLF and unicode",
            Containerd,
            &[(MAIN, "version = 2\r\n# größe\r\n[grpc]\r\n  address = \"/ü\"\r\n")],
            &["größe", "runtimes.quilt-gpu]\r\n"],
        ),
        ("braces", Containerd, &[(MAIN, BRACES)], &["} }, quilt-gpu = { runtime_type", "SystemdCgroup = true } } }\n"]),
        (
            "version 3",
            Containerd,
            &[(MAIN, V3)],
            &["version = 3\n\n[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.quilt-gpu]"],
        ),
        (
            "version 3 with tables in an import",
            Containerd,
            &[(MAIN, V3), ("/etc/containerd/conf.d/50-own.toml", V3_RUNC)],
            &["BinaryName = ", "SystemdCgroup = true\n"],
        ),
        (
            "version 2 with tables in an import",
            Containerd,
            &[(MAIN, "version = 2\nimports = ['conf.d/cri.toml']\n"), ("/etc/containerd/conf.d/cri.toml", V2)],
            &["base_runtime_spec"],
        ),
        ("a default that is not runc", Containerd, &[(MAIN, V3_CRUN)], &["SystemdCgroup = true\n"]),
        ("no file", Crio, &[], &["runtime_path = \"/usr/bin/quilt-gpu-runtime\"", "runtime_type = \"oci\""]),
        (
            "another default",
            Crio,
            &[("/etc/crio/crio.conf.d/10-crun.conf", CRIO_CRUN)],
            &["monitor_path = \"/usr/libexec/crio/conmon\"\n"],
        ),
        ("no file", Podman, &[], &["quilt-gpu = [\"/usr/bin/quilt-gpu-runtime\"]", "\"stages\": ["]),
        (
            "somebody's file of our name",
            Podman,
            &[(
                "/etc/containers/containers.conf.d/quilt-gpu.conf",
                "[engine]\nruntime = \"crun\"\n[engine.runtimes]\n# more\nkata = [\"/usr/bin/kata\"]\n",
            )],
            &["quilt-gpu = ["],
        ),
        (
            "no template",
            K3s,
            &[(K3S, "version = 3\n")],
            &["{{ template \"base\" . }}\n\n[plugins", "cri.v1.runtime", "SystemdCgroup = {{ .SystemdCgroup }}"],
        ),
        ("logic", K3s, &[(K3S_V3, TEMPLATE)], &["{{/* {{ a comment */}}\n\n[plugins"]),
        (
            "base, CRLF, no final newline",
            Rke2,
            &[(RKE2_V2, "{{- template \"base\" . -}}\r\n# größe")],
            &["# größe\r\n\r\n[plugins", "grpc.v1.cri"],
        ),
        (
            "both templates",
            Rke2,
            &[
                (RKE2, "version = 2\n"),
                (RKE2_V2, "{{ template \"base\" . }}\n"),
                (RKE2_V3, "{{ template \"base\" . }}\n"),
            ],
            &["grpc.v1.cri"],
        ),
        (
            "its template",
            Microk8s,
            &[("/var/snap/microk8s/current/args/containerd-template.toml", MICROK8S)],
            &["snapshotter = \"${SNAPSHOTTER}\"", "runtimes.quilt-gpu]"],
        ),
    ]
}

#[test]
fn configured_again_nothing_changes_and_taken_back_every_byte_is_as_it_was() {
    for (name, engine, files, parts) in cases() {
        for default in [false, true] {
            let what = format!("{}, {name}, default: {default}", engine.name());
            let before = Node::of(files);
            let mut node = before.clone();
            let plan = node.plan(engine, default).unwrap_or_else(|stop| panic!("{what}: {stop:?}"));
            let done = node.apply(&plan);
            let said: String = plan.drafts.iter().map(|draft| draft.after.as_str()).collect();
            for part in parts {
                assert!(said.contains(part), "{what}: no {part:?} in\n{said}");
            }
            assert!(!default || said.matches("quilt-gpu").count() > 1, "{what}: {said}");
            for draft in &plan.drafts {
                draft.format.check(&draft.after).unwrap_or_else(|why| panic!("{what}: {why}\n{said}"));
                let lines = draft.after.matches('\n').count();
                assert!(
                    [0, lines].contains(&draft.after.matches("\r\n").count()),
                    "{what}: mixed ends of lines\n{said}"
                );
            }
            let again = node.plan(engine, default).unwrap();
            let changed: Vec<_> = again.drafts.iter().filter(|draft| draft.changes()).collect();
            assert!(changed.is_empty(), "{what}: not idempotent: {changed:#?}");
            assert!(node.undo(&done), "{what}");
            assert_eq!(node, before, "{what}");
        }
    }
}

/// The same text with something more in front, as others would edit it.
fn edited(format: Format, text: &str) -> String {
    match format {
        Format::Json if text.trim() == "{}" || text.trim().is_empty() => "{\"foreign\": 1}".into(),
        Format::Json => text.replacen('{', "{\"foreign\": 1, ", 1),
        _ if text.contains("\r\n") => format!("# foreign\r\n{text}"),
        _ => format!("# foreign\n{text}"),
    }
}

/// Nodes where more stays than was there, once others have edited the file: the version and runc's handler that had to
/// be written out, which others may build on; an object for what was `null`; what an older hand of ours had put there.
const LEAVES_MORE: [&str; 6] =
    ["empty", "comments alone", "implied runc", "CRLF and unicode", "null", "ours with another program"];

#[test]
fn what_others_have_changed_since_stays_and_only_our_part_goes() {
    for (name, engine, files, _) in cases() {
        let what = format!("{}, {name}", engine.name());
        let before = Node::of(files);
        let mut node = before.clone();
        let done = node.apply(&node.plan(engine, true).unwrap());
        let touched: Vec<_> = done.iter().filter(|file| file.format != Format::Whole).collect();
        for file in &touched {
            let text = node.0.get_mut(&file.path).unwrap();
            *text = edited(file.format, text);
        }
        let exact = node.undo(&done);
        assert!(touched.is_empty() || !exact, "{what}");
        for file in &touched {
            let squeeze = |text: &str| text.split_whitespace().collect::<String>();
            let was = before.0.get(&file.path).map(|text| squeeze(&edited(file.format, text)));
            let is = node.0.get(&file.path);
            match was {
                Some(was) if !LEAVES_MORE.contains(&name) => assert_eq!(squeeze(is.unwrap()), was, "{what}"),
                _ => assert!(is.is_none_or(|is| !is.contains("/usr/bin/quilt-gpu-runtime")), "{what}: {is:?}"),
            }
        }
    }
}
