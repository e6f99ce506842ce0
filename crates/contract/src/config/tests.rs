use super::*;

fn good(text: &str) -> Config {
    let (config, problem) = Config::read(text.as_bytes());
    assert_eq!(problem, None, "{text}");
    config
}

#[test]
fn what_can_be_read_of_a_broken_file_counts() {
    let whole = "[paths]\nstate_dir='/s'\nlog_dir='/l'\n[policy]\nprofile='standard'\nallow_dev_mounts=['/dev/x']\n\
                 [host]\nroot='/h'\n[runtime]\nlow_level=['/r']\n";
    let expected = good(whole);
    assert_ne!(expected, Config::default());
    for broken in [
        format!("{whole}[nonsense]\n"),
        format!("nonsense=1\n{whole}"),
        format!("{whole}more=2"),
        format!("{whole}[request]\nenvironment='perhaps'"),
        format!("{whole}[request]\nmax_per_container=1.5"),
        format!("{whole}[request]\nmax_per_container=1979-05-27"),
        format!("{whole}[request]\nnvidia_visible_devices=['x'"),
        format!("request=1.5\n{whole}"),
        format!("{whole}[request"),
        format!("{whole}\n\n[paths]\n"),
        format!("{whole}\nx = \"\"\"\n\n"),
        whole.replace("log_dir='/l'\n", "log_dir='/l'\nlogs='/x'\n"),
        whole.replace("profile='standard'", "profile='standard'\nverify=1"),
        whole.replace("['/dev/x']", "['/dev/x', '/dev/']"),
    ] {
        let (config, problem) = Config::read(broken.as_bytes());
        assert!(problem.is_some(), "{broken}");
        assert_eq!(config, expected, "{broken}");
    }
    // What was wrong itself gets its default.
    let (config, problem) = Config::read(whole.replace("'/l'", "'l'").as_bytes());
    assert_eq!((config.paths.log_dir.as_str(), config.paths.state_dir.as_str()), ("/var/log/quilt-gpu", "/s"));
    assert!(problem.unwrap().contains("/paths/log_dir"));
}

#[test]
fn a_profile_that_cannot_be_read_is_the_stricter_one() {
    assert_eq!(good("[paths]").policy.profile, Profile::Standard);
    for (text, profile) in [
        ("x=1\n[policy]\nprofile='standard'", Profile::Standard),
        ("x=1\n[policy]\nprofile='hardened'", Profile::Hardened),
        ("[policy]\nprofil='hardened'", Profile::Hardened),
        ("[policy]\nprofile='hardend'", Profile::Hardened),
        ("[polcy]\nprofile='hardened'", Profile::Hardened),
        ("policy='hardened'", Profile::Hardened),
        ("[host\n[policy]\nprofile='standard'", Profile::Hardened),
        ("[policy]\nprofile='standard'\n[host", Profile::Standard),
        ("[policy]\nprofile='hardened'\nprofile='standard'", Profile::Hardened),
        ("[policy]\nprofile='hardened'\n[[[", Profile::Hardened),
    ] {
        let (config, problem) = Config::read(text.as_bytes());
        assert!(problem.is_some(), "{text}");
        assert_eq!(config.policy.profile, profile, "{text}");
    }
    let (config, problem) = Config::read(b"[policy]\nprofile='standard'\n# \xff");
    assert_eq!((config.policy.profile, problem.as_deref()), (Profile::Hardened, Some("not UTF-8")));
}

#[test]
fn empty_is_all_defaults() {
    let config = good("");
    assert_eq!(config, Config::default());
    assert_eq!(config.host.dev_root(), "/dev");
    assert_eq!(config.policy.capabilities.0.list(), "compute,utility");
}

#[test]
fn keys_are_checked() {
    let config = good("[host]\nroot = '/x'\n[policy]\nprofile='hardened'\ncapabilities='video,compute'\n");
    assert_eq!(config.host.dev_root(), "/x/dev");
    assert_eq!(config.policy.capabilities.0.list(), "compute,video");
    for (text, part) in [
        ("[host]\nrot='/'", "rot"),
        ("[paths]\nstate_dir='rel'", "/paths/state_dir: \"rel\" is not an absolute path"),
        ("[paths]\nlog_dir=''", "not an absolute path"),
        ("[host]\nroot='x'", "not an absolute path"),
        ("[policy]\nallow_dev_mounts=['/dev/']", "slash at its end"),
        ("[policy]\nallow_dev_mounts=['/dev', 'dev']", "\"dev\" is not an absolute path"),
        ("[policy]\nallow_hooks=['dockerd']", "/policy/allow_hooks: \"dockerd\" is not an absolute path"),
        (
            "[policy]\nallow_capabilities=['SYS_PTRACE', 'CHOWN']",
            "/policy/allow_capabilities/1: policy hardened does not",
        ),
        (
            "[[allow]]\nrules=['cap']\n[[allow]]\nrules=['cap', 'mount-gpu-node']",
            "/allow/1/rules/1: this rule cannot be",
        ),
        ("[[allow]]\nrules=['nonsense']", "known are annotation-low-level"),
        ("[[allow]]\nnamespace='x'", "/allow/0/rules: it is missing"),
        ("[[allow]]\nrules=['cap']\nnamespaces='x'", "/allow/0/namespaces: unknown field"),
        ("[allow]\nrules=['cap']", "/allow: it must be a list"),
        ("[request]\nreservation_seconds=0", "/request/reservation_seconds"),
        ("[request]\npod_reservation_seconds=0", "pod_reservation_seconds: with 0"),
        ("[policy]\nverify='no'", "verify"),
        ("[policy]\ncapabilities='x'", "not a driver capability"),
        ("[host", "line 1"),
    ] {
        let error = Config::read(text.as_bytes()).1.unwrap();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn exceptions_count_whole_or_not_at_all() {
    let text = "[policy]\nallow_hooks=['/usr/bin/dockerd']\nallow_capabilities=['SYS_PTRACE','MKNOD']\n\
                [[allow]]\nrules=['privileged','mount-sysfs-rw']\nnamespace='kube-system'\n[[allow]]\nrules=['cap']\ncontainer='debug'\n";
    let config = good(text);
    let [first, second] = config.allow.0.as_slice() else { panic!("{:?}", config.allow) };
    assert_eq!(first.rules.iter().map(|rule| rule.0).collect::<Vec<_>>(), ["privileged", "mount-sysfs-rw"]);
    assert_eq!((first.namespace.as_deref(), first.container.as_deref()), (Some("kube-system"), None));
    assert_eq!((second.namespace.as_deref(), second.container.as_deref()), (None, Some("debug")));
    assert_eq!(config.policy.allow_capabilities.iter().map(|name| name.0).collect::<Vec<_>>(), ["SYS_PTRACE", "MKNOD"]);
    assert_eq!(config.policy.allow_hooks, ["/usr/bin/dockerd"]);
    for broken in [
        // What narrowed the exception is not read, or not understood.
        text.replace("namespace='kube-system'", "namespace='kube-system"),
        text.replace("namespace=", "namspace="),
        text.replace("container='debug'", "container=1"),
        text.replace("'privileged'", "'privilegd'"),
        format!("{text}[x"),
    ] {
        let (config, problem) = Config::read(broken.as_bytes());
        assert!(problem.is_some() && config.allow.0.is_empty(), "{broken}");
    }
    // Another mistake leaves them alone.
    let (config, problem) = Config::read(format!("nonsense=1\n{text}").as_bytes());
    assert!(problem.is_some() && config.allow.0.len() == 2);
}
