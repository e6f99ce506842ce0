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
            "line 2: /policy/allow_capabilities/1: policy hardened acts on no capability of this name: \"CHOWN\"; known are SYS_ADMIN",
        ),
        ("[policy]\nallow_capabilities=['CAP_SYS_ADMIN']", "\"CAP_SYS_ADMIN\"; near it: SYS_ADMIN"),
        ("[[allow]]\nnamespace='x'", "line 1: /allow/0/rules: it is missing"),
        ("\n[[allow]]\nrules=['cap']\n[[allow]]\n\nnamespace='x'", "line 4: /allow/1/rules: it is missing"),
        ("[[allow]]\nrules=['cap']\nnamespaces='x'", "line 3: /allow/0/namespaces: unknown field"),
        ("[allow]\nrules=['cap']", "line 1: /allow: it must be a list: [[allow]]"),
        (
            "[[allow]]\nrules=[]",
            "line 2: /allow/0/rules: no rule, so nothing is excused; known are annotation-low-level",
        ),
        ("[[allow]]\nrules=['cap']\nnamespace=''", "line 3: /allow/0/namespace: no namespace is called \"\""),
        ("[[allow]]\nrules=['cap']\ncontainer='web*'", "line 3: /allow/0/container: no container is called \"web*\""),
        ("[[allow]]\nrules=['cap']\nnamespace='a,b'", "/allow/0/namespace"),
        ("[policy]\nbusy='skip'\n'a/~b'=1", "line 3: /policy/a~1~0b: unknown field"),
        ("# x\n[request]\nenvironment=2", "line 3: /request/environment: it must be true or false"),
        ("[request]\nreservation_seconds=0", "/request/reservation_seconds"),
        ("[request]\npod_reservation_seconds=0", "pod_reservation_seconds: with 0"),
        ("[policy]\nverify='no'", "verify"),
        ("[audit]\nmode='0666'", "line 2: /audit/mode: it must be one of \"0600\" \"0640\" \"0644\""),
        ("[audit]\nsyslog='log'", "/audit/syslog: \"log\" is not an absolute path"),
        ("[audit]\nunwritable='yes'", "/audit/unwritable: it must be one of refuse go-on"),
        ("[policy]\ncapabilities='x'", "not a driver capability"),
        ("[host", "line 1"),
    ] {
        let error = Config::read(text.as_bytes()).1.unwrap();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn a_misspelt_rule_is_told_what_it_is_near() {
    for (word, told) in [
        ("privilegd", "near it: privileged"),
        ("rivileged", "near it: privileged"),
        ("mount-sysfs", "near it: mount-sysfs-rw"),
        ("sysfs-rw", "near it: mount-sysfs-rw"),
        ("cgroup_wildcard", "near it: cgroup-wildcard"),
        ("capability", "near it: cap"),
        ("hooks", "near it: hook"),
        ("ns-hostnet", "near it: ns-hostpid"),
        ("x", "known are annotation-low-level, args-no-pivot, cap, "),
        ("", "known are annotation-low-level, "),
    ] {
        let problem = Config::read(format!("[[allow]]\nrules=['cap',\n'{word}']").as_bytes()).1.unwrap();
        let expected = format!("line 3: /allow/0/rules/1: no rule of this name can be excused: {word:?}; {told}");
        assert!(problem.starts_with(&expected), "{problem}");
        // Not a word of the others where there is a near one.
        assert!(!told.starts_with("near") || problem == expected, "{problem}");
    }
    // One that exists and cannot be excused has neighbours, and is none of them.
    let problem = Config::read(b"[[allow]]\nrules=['mount-gpu-node']").1.unwrap();
    assert!(problem.contains("near it: mount-"), "{problem}");
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
    // Where the file is no TOML, a line that is cut off may have narrowed any.
    for broken in [text.replace("namespace='kube-system'", "namespace='kube-system"), format!("{text}[x")] {
        let (config, problem) = Config::read(broken.as_bytes());
        assert!(problem.is_some() && config.allow.0.is_empty(), "{broken}");
    }
    // One that is not understood excuses nothing; what else names a workload still does.
    for (broken, left) in [
        (text.replace("namespace=", "namspace="), "debug"),
        (text.replace("namespace='kube-system'", "namespace=''"), "debug"),
        (text.replace("'privileged'", "'privilegd'"), "debug"),
        (text.replace("container='debug'", "container=1"), "kube-system"),
        (text.replace("rules=['cap']", "rules=[]"), "kube-system"),
    ] {
        let (config, problem) = Config::read(broken.as_bytes());
        let [one] = config.allow.0.as_slice() else { panic!("{broken}: {:?}", config.allow) };
        assert!(problem.is_some() && [&one.namespace, &one.container].contains(&&Some(left.to_owned())), "{one:?}");
    }
    // For the whole node none counts then: what was to narrow it may be the part that is not understood.
    for broken in
        ["[[allow]]\nrules=['cap']\n[[allow]]\nnamespace='x'", "[[allow]]\nrules=['x']\n[[allow]]\nrules=['cap']"]
    {
        let (config, problem) = Config::read(broken.as_bytes());
        assert!(problem.is_some() && config.allow.0.is_empty(), "{broken}");
    }
    // Another mistake leaves them alone.
    let (config, problem) = Config::read(format!("nonsense=1\n{text}").as_bytes());
    assert!(problem.is_some() && config.allow.0.len() == 2);
}

#[test]
fn owners_and_internal_gpus_are_tables() {
    let text = "[capacity]\ngpus=2\nkind='h100'\n[request]\nmax_per_owner=3\nmax_wait_seconds=60\n\
                [[owners]]\nname='team-a'\nnamespace='red'\n[[internal]]\ngpus=['nvidia0']\nonly=['team-a','vm:x']\n";
    let config = good(text);
    assert_eq!((config.capacity.gpus, config.capacity.kind.as_str()), (2, "h100"));
    assert_eq!((config.request.max_per_owner, config.request.max_wait_seconds), (3, 60));
    assert_eq!((config.owners.0.len(), config.internal.0.len()), (1, 1));
    for (from, to, part) in [
        ("namespace='red'", "", "/owners/0: it must say namespace, state_root or uid"),
        ("namespace='red'", "namespace='red'\nuid=1", "/owners/0: a user's containers have no namespace"),
        ("namespace='red'", "uid='root'", "/owners/0/uid"),
        ("[capacity]", "[broker]\nsocket='run/x'\n[capacity]", "/broker/socket: \"run/x\" is not an absolute path"),
        ("name='team-a'", "name='team:a'", "/owners/0: its name must be letters"),
        ("name='team-a'", "nam='team-a'", "/owners/0"),
        ("gpus=['nvidia0']", "", "/internal/0: it must name gpus or a kind"),
        ("only=['team-a','vm:x']", "", "/internal/0/only: it is missing"),
        ("'nvidia0'", "'nvidia0',\n'nonsense'", "line 12: /internal/0/gpus/1: \"nonsense\" is no PCI address"),
        ("'nvidia0'", "'nvidia01'", "\"nvidia01\" is no PCI address"),
        ("'nvidia0'", "'GPU-1'", "/internal/0/gpus/0: \"GPU-1\" is no PCI address, no GPU-… UUID in full"),
        ("'nvidia0'", "'MIG-0000'", "is a part of a GPU, which cannot be kept by itself"),
        ("gpus=['nvidia0']", "kind='--'", "/internal/0/kind: it has no letter or digit"),
        ("kind='h100'", "kind='*'", "/capacity/kind: \"*\" has no letter or digit"),
        ("gpus=2", "gpus=-2", "/capacity/gpus"),
        ("[capacity]", "[capacity]\nnodes=1", "/capacity/nodes: unknown field"),
    ] {
        let (config, problem) = Config::read(text.replacen(from, to, 1).as_bytes());
        assert!(problem.as_ref().is_some_and(|why| why.contains(part)), "{to}: {problem:?}");
        assert!(config.owners.0.is_empty() || !part.contains("owners"), "{to}");
    }
    for id in ["0000:41:00.0", "41:00.0", "NVIDIA12", "GPU-5d1f0c2e-11aa-4b6c-9d3e-0a1b2c3d4e5f"] {
        good(&text.replace("nvidia0", id));
    }
    let config = good("[broker]\nallow=['alice','uid:7']\n[[owners]]\nname='alice'\nuid=1000\n");
    assert_eq!(["alice", "uid:7", "uid:1000", "*"].map(|who| config.broker.lets(who)), [true, true, false, false]);
    assert!(!Config::default().broker.lets("uid:0") && good("[broker]\nallow=['*']\n").broker.lets("uid:1000"));
    // What comes after a mistake may have narrowed what stands before it.
    assert!(Config::read(format!("{text}[[[").as_bytes()).0.owners.0.is_empty());
}
