//! Privileged containers, hooks, annotations, namespaces and the process, each row in both columns.

mod common;

use common::{By, Fake, Spec, both, gpu, hardened, judge, judge_text, verdict};

const UNSAFE_NOTE: &str = "UNSAFE_SPEC annotation-low-level";
const FOREIGN: &str = "FOREIGN_GPU_INJECTION hook-foreign";

#[track_caller]
fn check(spec: &Spec, expected: &str) {
    assert_eq!(both(spec), (expected.to_owned(), expected.to_owned()), "{}", spec.text());
}

fn notes(spec: &Spec) -> Vec<(&'static str, String)> {
    judge(spec, &By::default()).notes.into_iter().map(|note| (note.rule, note.at)).collect()
}

#[test]
fn privileged() {
    let spec = Spec::privileged();
    assert_eq!(both(&spec), ("ok".to_owned(), "UNSAFE_SPEC privileged".to_owned()));
    assert!(notes(&spec).contains(&("privileged", "/linux/resources/devices/0".to_owned())));
    assert_eq!(verdict(&judge(&spec, &hardened())), "UNSAFE_SPEC privileged");
    let refusal = &judge(&spec, &gpu()).refusals[0];
    assert_eq!((refusal.at.as_str(), refusal.value.as_str()), ("/linux/resources/devices/0", "a *:* rwm"));
    // A device that the tenant names is refused in a privileged container as well.
    let mount = Spec { mounts: Spec::bind("/dev/nvidia0").mounts, ..Spec::privileged() };
    assert_eq!(both(&mount).0, "TENANT_GPU_MOUNT mount-gpu-node");
    assert_eq!(
        both(&Spec { mounts: Spec::bind("/dev").mounts, ..Spec::privileged() }).0,
        "TENANT_GPU_MOUNT mount-dev-tree"
    );
}

/// D11: neither is a road to a device, and whoever enforces them looks at them itself.
#[test]
fn labels_and_profiles_pass() {
    for field in [r#""apparmorProfile":"unconfined""#, r#""apparmorProfile":"x""#, r#""selinuxLabel":"u:r:spc_t:s0""#] {
        let text = Spec::default().text().replace(r#""args":["sh"]"#, &format!(r#""args":["sh"],{field}"#));
        assert!(text.contains(field));
        for by in [By::default(), gpu(), hardened()] {
            let judgement = judge_text(&text, &by, &Fake::default());
            assert_eq!(verdict(&judgement), "ok", "{field}");
        }
    }
}

#[test]
fn capabilities_by_any_spelling() {
    for (caps, admin) in [
        (r#""CAP_SYS_ADMIN""#, true),
        (r#""cap_sys_admin""#, true),
        (r#""SYS_ADMIN""#, true),
        (r#""CAP_CHOWN","Cap_Sys_Admin""#, true),
        // crun hands names to libcap, which takes numbers, and whatever follows.
        (r#""21""#, true),
        (r#""0x15""#, true),
        (r#""cap_sys_admin=ep""#, true),
        (r#""CAP_SYS_ADMINX""#, false),
        (r#""CAP_SYS_NICE""#, false),
        ("", false),
    ] {
        let spec = Spec { caps: caps.into(), ..Spec::default() };
        check(&spec, "ok");
        assert_eq!(notes(&spec).iter().any(|note| note.0 == "cap"), admin, "{caps}");
    }
    let bounding =
        Spec::default().text().replace(r#""effective":["CAP_CHOWN","CAP_MKNOD"]"#, r#""effective":["CAP_SYS_ADMIN"]"#);
    let judgement = judge_text(&bounding, &By::default(), &Fake::default());
    assert!(judgement.notes.iter().any(|note| note.rule == "cap"));
}

#[test]
fn hardened_capabilities() {
    for name in ["SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "DAC_READ_SEARCH", "BPF", "PERFMON", "SYS_BOOT"] {
        let spec = Spec { caps: format!(r#""CAP_CHOWN","CAP_{name}""#), ..Spec::default() };
        let judgement = judge(&spec, &hardened());
        assert_eq!(verdict(&judgement), "UNSAFE_SPEC cap", "{name}");
        assert_eq!(judgement.refusals[0].at, "/process/capabilities/bounding/1");
    }
    assert_eq!(verdict(&judge(&Spec::default(), &hardened())), "ok");
}

#[test]
fn foreign_injectors() {
    let hook = |stage: &str, path: &str, args: &str| Spec {
        hooks: format!(r#"{{"{stage}":[{{"path":"{path}","args":[{args}]}}]}}"#),
        ..Spec::default()
    };
    for stage in ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"] {
        for path in [
            "/usr/bin/nvidia-container-runtime-hook",
            "/usr/bin/nvidia-container-toolkit",
            "/tmp/nvidia-cdi-hook",
            "nvidia-ctk",
            "/x/nvidia-container-cli",
        ] {
            check(&hook(stage, path, ""), FOREIGN);
        }
        check(
            &hook(
                stage,
                "/usr/bin/containerd",
                r#""containerd","oci-hook","--","/opt/nvidia-container-cli","configure""#,
            ),
            FOREIGN,
        );
        for (path, args) in [
            ("/proc/9583/exe", r#""libnetwork-setkey","-exec-root=/x","66e0""#),
            ("/bin/true", r#""true","nvidia""#),
            ("/usr/bin/nvidia-container-cli.txt", ""),
        ] {
            check(&hook(stage, path, args), "ok");
            assert_eq!(notes(&hook(stage, path, args)), [("hook", format!("/hooks/{stage}"))]);
        }
    }
    let judgement =
        judge(&hook("prestart", "/usr/bin/containerd", r#""--","/opt/nvidia-container-cli""#), &By::default());
    assert_eq!(judgement.refusals[0].at, "/hooks/prestart/0");
    assert_eq!(judgement.refusals[0].value, "/opt/nvidia-container-cli");
    // Both ways out, and how a GPU is asked for here.
    for part in ["--gpus", "QUILT_GPU_COUNT=1", "or the runtime quilt-gpu"] {
        assert!(judgement.refusals[0].help.contains(part), "{}", judgement.refusals[0].help);
    }
}

/// Docker's GPU hook that is taken for a request goes, that one alone, and from no other stage.
#[test]
fn dockers_hook_that_is_a_request() {
    let two =
        r#"[{"path":"/usr/bin/nvidia-container-runtime-hook"},{"path":"/usr/bin/nvidia-container-runtime-hook"}]"#;
    for (stage, replaced, expected) in [
        ("prestart", &[0, 1][..], ["ok", ""]),
        ("prestart", &[1], [FOREIGN, "/hooks/prestart/0"]),
        ("createRuntime", &[0], [FOREIGN, "/hooks/createRuntime/0"]),
    ] {
        let spec = Spec { hooks: format!(r#"{{"{stage}":{two}}}"#), ..Spec::default() };
        let judgement = judge(&spec, &By { replaced, ..gpu() });
        let at = judgement.refusals.first().map_or("", |refusal| refusal.at.as_str());
        assert_eq!([verdict(&judgement).split(',').next().unwrap(), at], expected, "{stage} {replaced:?}");
        assert_eq!(judgement.changes.drop_prestart, replaced);
        let noted = judgement.notes.iter().filter(|note| note.rule == "hook-replaced").count();
        assert_eq!(noted, if stage == "prestart" { replaced.len() } else { 0 });
    }
}

#[test]
fn a_foreign_injector_comes_first() {
    let node = r#"[{"path":"/dev/nvidia0","type":"c","major":195,"minor":0}]"#;
    let rules = Spec::rules(r#"{"allow":true,"type":"c","major":195,"minor":0,"access":"rw"}"#).rules;
    let injected = Spec { devices: node.into(), rules, ..Spec::default() };
    let tenants = "TENANT_GPU_DEVICE device-gpu, TENANT_GPU_RULE cgroup-gpu-rule";
    check(&injected, tenants);
    let hooks =
        r#"{"createContainer":[{"path":"/usr/bin/nvidia-cdi-hook","args":["nvidia-cdi-hook","update-ldcache"]}]}"#;
    check(&Spec { hooks: hooks.into(), ..injected.clone() }, &format!("{FOREIGN}, {tenants}"));
    let void = Spec { env: r#"["NVIDIA_VISIBLE_DEVICES=void"]"#.into(), ..injected };
    check(&void, &format!("FOREIGN_GPU_INJECTION cdi-foreign, {tenants}"));
    assert_eq!(judge(&void, &By::default()).refusals[0].at, "/process/env/0");
    check(&Spec { env: void.env, ..Spec::default() }, "ok");
}

#[test]
fn all_problems_in_the_order_of_the_tenants_words() {
    let spec = Spec {
        mounts: Spec::bind("/dev/nvidia0").mounts,
        devices: r#"[{"path":"/dev/x","type":"c","major":195,"minor":0}]"#.into(),
        rules: Spec::rules(r#"{"allow":true,"type":"c","access":"rw"}"#).rules,
        namespaces: "[]".into(),
        annotations: r#"{"krun.x":"1"}"#.into(),
        hooks: r#"{"prestart":[{"path":"/usr/bin/nvidia-ctk"}]}"#.into(),
        ..Spec::default()
    };
    check(
        &spec,
        "FOREIGN_GPU_INJECTION hook-foreign, TENANT_GPU_MOUNT mount-gpu-node, TENANT_GPU_DEVICE device-gpu, TENANT_GPU_RULE cgroup-wildcard, UNSAFE_SPEC ns-hostmnt, UNSAFE_SPEC annotation-low-level",
    );
}

#[test]
fn annotations() {
    for (key, expected) in [
        ("org.systemd.property.DeviceAllow", UNSAFE_NOTE),
        ("org.systemd.property.DevicePolicy", UNSAFE_NOTE),
        ("org.systemd.property.ExecStartPre", UNSAFE_NOTE),
        ("org.systemd.property.BindPaths", UNSAFE_NOTE),
        ("org.systemd.property.BindReadOnlyPaths", UNSAFE_NOTE),
        ("org.systemd.property.BPFProgram", UNSAFE_NOTE),
        ("org.systemd.property.Slice", UNSAFE_NOTE),
        ("org.systemd.property.RootDirectory", UNSAFE_NOTE),
        // Other units end, the machine does, or processes of others come in.
        ("org.systemd.property.Conflicts", UNSAFE_NOTE),
        ("org.systemd.property.PropagatesStopTo", UNSAFE_NOTE),
        ("org.systemd.property.SuccessAction", UNSAFE_NOTE),
        ("org.systemd.property.FailureAction", UNSAFE_NOTE),
        ("org.systemd.property.JobTimeoutAction", UNSAFE_NOTE),
        ("org.systemd.property.StartLimitAction", UNSAFE_NOTE),
        ("org.systemd.property.PIDs", UNSAFE_NOTE),
        ("run.oci.seccomp.plugins", UNSAFE_NOTE),
        ("run.oci.seccomp.receiver", UNSAFE_NOTE),
        ("run.oci.hooks.stdout", UNSAFE_NOTE),
        ("run.oci.hooks.stderr", UNSAFE_NOTE),
        ("run.oci.handler", UNSAFE_NOTE),
        ("run.oci.delegate-cgroup", UNSAFE_NOTE),
        ("run.oci.pidfd_receiver", UNSAFE_NOTE),
        ("module.wasm.image/variant", UNSAFE_NOTE),
        ("krun.vm", UNSAFE_NOTE),
        ("org.criu.config", UNSAFE_NOTE),
        ("org.criu.config=/tmp/x", UNSAFE_NOTE),
        ("bundle", UNSAFE_NOTE),
        ("bundle=/tmp/x", UNSAFE_NOTE),
        // Podman's own, and look-alikes.
        ("org.systemd.property.KillSignal", "ok"),
        ("org.systemd.property.TimeoutStopUSec", "ok"),
        ("org.systemd.property.CollectMode", "ok"),
        ("run.oci.keep_original_groups", "ok"),
        ("bundled", "ok"),
        ("bundle.example.com/x", "ok"),
        ("example.com/x=bundle", "ok"),
        ("io.container.manager", "ok"),
        ("io.podman.annotations.privileged", "ok"),
        ("io.kubernetes.cri.container-type", "ok"),
        ("org.opencontainers.image.stopSignal", "ok"),
        ("cdi.k8s.io/foo", "ok"),
        ("quilt.gpu/count", "ok"),
        ("krunch.example.com/DeviceAllow", "ok"),
        ("example.com/run.oci.handler", "ok"),
    ] {
        check(&Spec { annotations: format!(r#"{{"{key}":"v"}}"#), ..Spec::default() }, expected);
    }
    let spec = Spec { annotations: r#"{"module.wasm.image/variant":"compat"}"#.into(), ..Spec::default() };
    let refusal = &judge(&spec, &By::default()).refusals[0];
    assert_eq!((refusal.at.as_str(), refusal.value.as_str()), ("/annotations/module.wasm.image~1variant", "compat"));
    for (group, expected) in [("", "ok"), ("container", "ok"), ("../other", UNSAFE_NOTE)] {
        let annotations = format!(r#"{{"run.oci.systemd.subgroup":"{group}"}}"#);
        check(&Spec { annotations, ..Spec::default() }, expected);
    }
    let unknown = Spec { annotations: r#"{"org.systemd.property.MemoryMax":"1"}"#.into(), ..Spec::default() };
    assert_eq!(
        (verdict(&judge(&unknown, &By::default())).as_str(), verdict(&judge(&unknown, &hardened())).as_str()),
        ("ok", UNSAFE_NOTE)
    );
}

#[test]
fn namespaces() {
    for (list, expected) in [
        (r#"[{"type":"mount"}]"#, "ok"),
        (r#"[{"type":"mount","path":""}]"#, "ok"),
        (r#"[{"type":"mount","path":"/proc/1/ns/mnt"}]"#, "UNSAFE_SPEC ns-path"),
        (r#"[{"type":"mount"},{"type":"mount","path":"/proc/1/ns/mnt"}]"#, "UNSAFE_SPEC ns-path"),
        (r#"[{"type":"mount"},{"type":"cgroup","path":"/proc/1/ns/cgroup"}]"#, "UNSAFE_SPEC ns-path"),
        (r#"[{"type":"pid"}]"#, "UNSAFE_SPEC ns-hostmnt"),
        ("[]", "UNSAFE_SPEC ns-hostmnt"),
        ("null", "UNSAFE_SPEC ns-hostmnt"),
        (r#"[{"type":5},{"type":"mount"}]"#, "UNSAFE_SPEC spec-shape"),
        (
            r#"[{"type":"pid","path":"/proc/1/ns/pid"},{"type":"ipc","path":"/proc/1/ns/ipc"},{"type":"uts","path":"/proc/1/ns/uts"},{"type":"network","path":"/var/run/netns/cni-1"},{"type":"user","path":"/proc/1/ns/user"},{"type":"mount"}]"#,
            "ok",
        ),
    ] {
        check(&Spec { namespaces: list.into(), ..Spec::default() }, expected);
    }
    let host_pids = Spec { namespaces: r#"[{"type":"mount"}]"#.into(), ..Spec::default() };
    assert_eq!(verdict(&judge(&host_pids, &hardened())), "UNSAFE_SPEC ns-hostpid");
}

#[test]
fn cgroup_paths() {
    for (path, expected) in [
        ("/docker/66e0", "ok"),
        ("machine.slice:libpod:66e0", "ok"),
        ("/a..b/c", "ok"),
        ("", "ok"),
        ("/a/../b", "UNSAFE_SPEC cgroup-path"),
        ("../b", "UNSAFE_SPEC cgroup-path"),
        ("system.slice:..:x", "UNSAFE_SPEC cgroup-path"),
        ("/", "UNSAFE_SPEC cgroup-path"),
        ("//.", "UNSAFE_SPEC cgroup-path"),
    ] {
        check(&Spec { more_linux: format!(r#","cgroupsPath":"{path}""#), ..Spec::default() }, expected);
    }
    check(&Spec { more_linux: r#","cgroupsPath":null"#.into(), ..Spec::default() }, "ok");
}

/// crun 1.28 writes the first process into the group that the name leads to, from the folder of resctrl on.
#[test]
fn classes_of_cache() {
    for (name, expected) in [
        ("gold", "ok"),
        ("", "ok"),
        ("/", "ok"),
        ("..gold", "ok"),
        ("..", "UNSAFE_SPEC cgroup-path"),
        (".", "UNSAFE_SPEC cgroup-path"),
        ("../cgroup/devices", "UNSAFE_SPEC cgroup-path"),
        ("gold/mon_groups/x", "UNSAFE_SPEC cgroup-path"),
    ] {
        check(&Spec { more_linux: format!(r#","intelRdt":{{"closID":"{name}"}}"#), ..Spec::default() }, expected);
    }
}

#[test]
fn files_of_a_control_group_that_are_no_limit() {
    for (key, expected) in [
        ("memory.high", "ok"),
        ("cgroup.procs", "UNSAFE_SPEC cgroup-unified"),
        ("cgroup.freeze", "UNSAFE_SPEC cgroup-unified"),
        ("../other/memory.high", "UNSAFE_SPEC cgroup-unified"),
    ] {
        let resources = format!(r#"{{"unified":{{"{key}":"1"}}}}"#);
        let text = Spec::default().text().replacen(
            r#""resources":{"#,
            &format!(r#""resources":{{{},"#, &resources[1..resources.len() - 1]),
            1,
        );
        assert!(text.contains(key), "{text}");
        assert_eq!(verdict(&judge_text(&text, &By::default(), &Fake::default())), expected, "{key}");
        let update = guard::judge_update(&contract::json::parse_oci(resources.as_bytes()).unwrap());
        assert_eq!(update.is_some(), expected != "ok", "{key}");
    }
    for (size, at) in [("2MB", None), ("x/../../other/memory", Some("/hugepageLimits/1/pageSize"))] {
        let resources = format!(r#"{{"hugepageLimits":[{{"limit":1}},{{"pageSize":"{size}","limit":1}}]}}"#);
        let refusal = guard::judge_update(&contract::json::parse_oci(resources.as_bytes()).unwrap());
        assert_eq!(refusal.as_ref().map(|refusal| refusal.at.as_str()), at, "{size}");
        assert!(refusal.is_none_or(|refusal| refusal.value == size));
    }
}

/// Categories have commas, and quotes nobody.
#[test]
fn a_label_that_ends_its_quotes() {
    for (label, expected) in [("u:r:t:s0:c1,c2", "ok"), (r#"u:r:t:s0\",lowerdir=/x,y=\""#, "UNSAFE_SPEC mount-label")] {
        check(&Spec { more_linux: format!(r#","mountLabel":"{label}""#), ..Spec::default() }, expected);
    }
}

#[test]
fn words_before_a_label() {
    for (value, expected) in [("rootcontext", "ok"), ("lowerdir=/x,context", UNSAFE_NOTE)] {
        let annotations = format!(r#"{{"run.oci.mount_context_type":"{value}"}}"#);
        check(&Spec { annotations, ..Spec::default() }, expected);
    }
    let forced = Spec { annotations: r#"{"run.oci.systemd.force_cgroup_v1":"/x"}"#.into(), ..Spec::default() };
    assert_eq!([By::default(), hardened()].map(|by| verdict(&judge(&forced, &by))), ["ok", UNSAFE_NOTE]);
}

#[test]
fn hardened_linux() {
    for (more, expected) in [
        (r#","seccomp":{"listenerPath":"/run/agent.sock"}"#, "UNSAFE_SPEC seccomp-listener"),
        (r#","rootfsPropagation":"rshared""#, "UNSAFE_SPEC rootfs-propagation"),
        (r#","rootfsPropagation":"rslave""#, "ok"),
        (r#","seccomp":{"defaultAction":"SCMP_ACT_ERRNO"}"#, "ok"),
    ] {
        let spec = Spec { more_linux: more.into(), ..Spec::default() };
        assert_eq!(verdict(&judge(&spec, &hardened())), expected, "{more}");
        check(&spec, "ok");
    }
}

#[test]
fn visible_devices() {
    for (env, void) in [
        (r#"["PATH=/bin"]"#, false),
        (r#"["NVIDIA_VISIBLE_DEVICES=all"]"#, true),
        (r#"["NVIDIA_VISIBLE_DEVICES="]"#, true),
        (r#"["NVIDIA_VISIBLE_DEVICES=void"]"#, false),
        (r#"["NVIDIA_VISIBLE_DEVICES=all","NVIDIA_VISIBLE_DEVICES=void"]"#, true),
        (r#"["NVIDIA_VISIBLE_DEVICES=void","NVIDIA_VISIBLE_DEVICES=0"]"#, true),
        (
            r#"["nvidia_visible_devices=all","XNVIDIA_VISIBLE_DEVICES=all","CUDA_VERSION=12.4","NVIDIA_DRIVER_CAPABILITIES=all"]"#,
            false,
        ),
        ("null", false),
    ] {
        let spec = Spec { env: env.into(), ..Spec::default() };
        check(&spec, "ok");
        assert_eq!(judge(&spec, &By::default()).changes.void_visible_devices, void, "{env}");
        assert!(!judge(&spec, &gpu()).changes.void_visible_devices);
    }
    check(&Spec { env: r#"["A=1",2]"#.into(), ..Spec::default() }, "UNSAFE_SPEC spec-shape");
}

/// CVE-2024-21626: a working folder behind a handle of the runtime's.
#[test]
fn working_folders() {
    for (cwd, expected) in [
        ("/proc/self/fd/7", "UNSAFE_SPEC process-cwd"),
        // The kernel goes up from where the handle leads, not from its name.
        ("/proc//self/./fd/7/../..", "UNSAFE_SPEC process-cwd"),
        ("/proc/self/../sys", "ok"),
        ("//proc/1/root/tmp", "UNSAFE_SPEC process-cwd"),
        ("/proc/thread-self/cwd", "UNSAFE_SPEC process-cwd"),
        ("/proc", "ok"),
        ("/proc/sys/fs", "ok"),
        ("/procedures/x/fd", "ok"),
        ("/srv/proc/x/fd", "ok"),
    ] {
        check(&Spec { cwd: cwd.into(), ..Spec::default() }, expected);
    }
}

#[test]
fn a_request_that_came_to_nothing_is_noted_where_none_was_made_here() {
    let spec = Spec { env: r#"["NVIDIA_VISIBLE_DEVICES=void"]"#.into(), ..Spec::default() };
    for (by, expected) in [(By::default(), true), (gpu(), false)] {
        assert_eq!(judge(&spec, &by).notes.iter().any(|note| note.rule == "visible-void"), expected);
    }
}

#[test]
fn what_the_container_may_undo_is_said() {
    let sealed = |spec: &Spec| judge(spec, &By::default()).sealed;
    assert!(sealed(&Spec::default()) && !sealed(&Spec::admin()) && !sealed(&Spec::privileged()));
    // With CAP_SYS_ADMIN the host's processes are the lesser thing to say.
    let pids = |spec: Spec| Spec { namespaces: r#"[{"type":"mount"}]"#.into(), ..spec };
    let noted = |spec: &Spec| notes(spec).iter().any(|note| note.0 == "ns-hostpid");
    assert!(noted(&pids(Spec::default())) && !noted(&Spec::default()) && !noted(&pids(Spec::admin())));
}

#[test]
fn the_rule_that_allows_everything_is_named_where_it_stands() {
    let list = r#"[{"allow":true,"access":"rwm"},{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":1,"minor":3,"access":"rw"},{"allow":true,"access":"rwm"}]"#;
    let judgement = judge(&Spec::whole_list(list), &gpu());
    let at: Vec<_> = judgement.refusals.iter().map(|refusal| refusal.at.as_str()).collect();
    assert_eq!(at, ["/linux/resources/devices/3"]);
}
