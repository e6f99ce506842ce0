//! What configure must not touch, with the words that it says.

use super::super::Engine::{self, Containerd, Crio, Docker, K3s, Microk8s, Podman};
use super::super::text::Trouble;
use super::Node;

const MAIN: &str = "/etc/containerd/config.toml";
const TEMPLATE: &str = "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl";

/// The engine, the node's files, and a part of what is said.
type Case<'a> = (Engine, &'a [(&'a str, &'a str)], &'a str);

/// D32, D33, D34, D35 of the field: each of these has been written over, or written in vain.
#[test]
fn what_is_broken_or_would_have_no_effect_is_told_and_left_alone() {
    let cases: &[Case<'_>] = &[
        // D35: a comma is missing; twice the same key; no object; not even JSON.
        (Docker, &[("/etc/docker/daemon.json", "{\n  \"debug\": true\n  \"hosts\": []\n}\n")], "daemon.json:3:3: "),
        (Docker, &[("/etc/docker/daemon.json", "{\n  \"a\": 1,\n  \"a\": 2\n}\n")], "daemon.json:3:"),
        (Docker, &[("/etc/docker/daemon.json", "[]")], "daemon.json:1:1: this is not an object"),
        (Docker, &[("/etc/docker/daemon.json", "{\"runtimes\": []}")], "daemon.json:1:14: \"runtimes\" is no object"),
        (Docker, &[("/etc/docker/daemon.json", "{\n  // no\n}")], "daemon.json:2:3: "),
        (
            Docker,
            &[("/usr/lib/systemd/system/docker.service", "ExecStart=/usr/bin/dockerd --add-runtime a=/b")],
            "dockerd --add-runtime, and dockerd does not start",
        ),
        (
            Docker,
            &[
                ("/usr/lib/systemd/system/docker.service", "ExecStart=/bin/false"),
                (
                    "/etc/systemd/system/docker.service.d/x.conf",
                    "ExecStart=\nExecStart=/usr/bin/dockerd --default-runtime=a",
                ),
            ],
            "dockerd --default-runtime",
        ),
        (
            Docker,
            &[("/etc/docker/daemon.json", "{}"), ("/var/snap/docker/current/config/daemon.json", "{}")],
            "two Dockers",
        ),
        // D32: the plugin is off, here or in an import.
        (
            Containerd,
            &[(MAIN, "disabled_plugins = [\"cri\"]\n")],
            "config.toml: disabled_plugins has \"cri\": the CRI plugin is off",
        ),
        (
            Containerd,
            &[
                (MAIN, "version = 3\nimports = ['a.toml']"),
                ("/etc/containerd/a.toml", "disabled_plugins = ['io.containerd.cri.v1.runtime']"),
            ],
            "a.toml: disabled_plugins",
        ),
        (Containerd, &[(MAIN, "version = 2\n[plugins\n")], "config.toml:2:9: "),
        (Containerd, &[(MAIN, "version = 2\n[a]\nx = 1\nx = 2\n")], "config.toml:4:1: "),
        (Containerd, &[(MAIN, "version = 7\n")], "is of version 7"),
        // D34: where the default of version 1 is a table, a name would not be read.
        (
            Containerd,
            &[(MAIN, "[plugins.cri.containerd.default_runtime]\nruntime_type = 'x'\n")],
            "`default_runtime` outranks",
        ),
        (
            Containerd,
            &[(
                MAIN,
                "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\ncontainerd.runtimes.runc.runtime_type = 'x'\n",
            )],
            "write it as [plugins",
        ),
        (
            Containerd,
            &[
                (MAIN, "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\na = 1\n"),
                ("/var/lib/rancher/k3s/agent/etc/containerd/config.toml", ""),
            ],
            "this node has k3s's containerd too",
        ),
        (
            Containerd,
            &[("/var/snap/microk8s/current/args/containerd-template.toml", "")],
            "quilt-gpu configure microk8s",
        ),
        (
            Crio,
            &[("/etc/crio/crio.conf.d/99-zz.conf", "[crio.runtime]\ndefault_runtime = 'runc'\n")],
            "99-zz.conf: this file is read after",
        ),
        (Crio, &[("/etc/crio/crio.conf", "[crio\n")], "crio.conf:1:6: "),
        (
            Podman,
            &[("/etc/containers/containers.conf.d/zz.conf", "[engine]\nruntime = 'runc'\n")],
            "zz.conf: this file is read after",
        ),
        // D33: a stub in place of the base; logic that is not closed.
        (K3s, &[(TEMPLATE, "version = 3\nimports = ['/x/*.toml']\n")], "neither the line {{ template \"base\" . }}"),
        (K3s, &[(TEMPLATE, "{{ template \"base\" . }}\n{{ if .X }}\n")], "tmpl:2:1: this block has no {{ end }}"),
        (K3s, &[(TEMPLATE, "{{ template \"base\" . }}\n  {{ end }}\n")], "tmpl:2:3: this end closes nothing"),
        (K3s, &[(TEMPLATE, "{{ template \"base\" . \n")], "tmpl:1:1: this action has no end"),
        (
            K3s,
            &[
                ("/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl", "{{ template \"base\" . }}"),
                (TEMPLATE, "{{ template \"base\" . }}"),
            ],
            "start k3s once",
        ),
        (K3s, &[], "start k3s once"),
        (
            K3s,
            &[
                (TEMPLATE, "{{ template \"base\" . }}"),
                ("/etc/rancher/k3s/config.yaml.d/z.yaml", "default-runtime: runc\n"),
            ],
            "z.yaml: this file is read after",
        ),
        (Microk8s, &[], "microk8s is not installed here"),
    ];
    for (engine, files, part) in cases {
        let (path, trouble) = Node::of(files).plan(*engine, true).expect_err(part);
        let said = trouble.of(&path);
        assert!(said.contains(part), "{part:?}: {said}");
        assert!(!said.contains('\n'), "one line: {said}");
        assert_eq!(matches!(trouble, Trouble::Broken { .. }), said.contains("mend it first"));
    }
}

#[test]
fn a_broken_file_is_not_undone_either() {
    let mut node = Node::of(&[(MAIN, "version = 2\n")]);
    let done = node.apply(&node.plan(Containerd, false).unwrap());
    let error = done[0].reverted(Some("version = = 2\n")).unwrap_err();
    assert!(matches!(error, Trouble::Broken { line: 1, .. }), "{error}");
}
