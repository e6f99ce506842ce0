//! Names: which device each means, what several change together, and why a name means none.

use cdi::spec::{Cache, Found, split};
use serde_json::json;

use crate::made::{cache, gpus, one};

#[test]
fn a_files_own_edits_come_before_its_first_device_and_once() {
    let other = one("v.org/c", "x", &json!({"env": ["X=1"]}));
    let cache = cache(&[("a.json", &gpus()), ("b.json", &other)]);
    let injection = cache.resolve(&["v.org/c=x", "nvidia.com/gpu=GPU-1c0a", "nvidia.com/gpu=0", "v.org/c=x"]).unwrap();
    assert_eq!(injection.devices, ["v.org/c=x", "nvidia.com/gpu=GPU-1c0a", "nvidia.com/gpu=0"]);
    assert_eq!(injection.edits.env, ["X=1", "NVIDIA_VISIBLE_DEVICES=void", "ONE=1"]);
    let nodes: Vec<&str> = injection.edits.device_nodes.iter().map(|node| node.path.as_str()).collect();
    assert_eq!(nodes, ["/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia0"]);
    assert_eq!(injection.edits.hooks.len(), 1);
}

#[test]
fn of_two_settings_for_resctrl_the_later_counts() {
    let mut spec = one("v.org/c", "x", &json!({"intelRdt": {"closID": "own"}}));
    spec["containerEdits"] = json!({"intelRdt": {"closID": "all", "memBwSchema": "MB:0=1"}});
    let injection = cache(&[("a.json", &spec)]).resolve(&["v.org/c=x"]).unwrap();
    let rdt = injection.edits.intel_rdt.unwrap();
    assert_eq!((rdt.clos_id.as_deref(), rdt.mem_bw_schema), (Some("own"), None));
}

#[test]
fn every_name_that_means_nothing_is_told_with_what_would_be_right() {
    let cache = cache(&[("a.json", &gpus())]);
    for (name, expected) in [
        ("nvidia0", "\"nvidia0\" is not a qualified device name, which is VENDOR/CLASS=DEVICE"),
        ("", "is not a qualified device name"),
        ("nvidia.com/gpu=", "is not a qualified device name"),
        ("=0", "is not a qualified device name"),
        ("gpu=0", "the kind \"gpu\" must be VENDOR/CLASS"),
        ("nvidia.com/gpu=a b", "the device name \"a b\" may have"),
        ("amd.com/gpu=0", "no CDI file is about the kind amd.com/gpu"),
        ("nvidia.com/gpu=7", "the kind nvidia.com/gpu has 0, GPU-1c0a, all"),
    ] {
        let unresolved = cache.resolve(&["nvidia.com/gpu=0", name, "v.org/c=x"]).unwrap_err();
        assert_eq!(unresolved.len(), 2, "{name}");
        assert!(unresolved[0].to_string().starts_with(&format!("cannot resolve the CDI device {name:?}: ")));
        assert!(unresolved[0].why.contains(expected), "{name}: {}", unresolved[0].why);
    }
    assert_eq!(cache.resolve::<&str>(&[]).unwrap(), cdi::spec::Injection::default());
}

#[test]
fn a_qualified_name_is_a_kind_and_a_device() {
    for (name, parts) in [
        ("quilt.gpu/device=nvidia0", Some(("quilt.gpu/device", "nvidia0"))),
        ("nvidia.com/gpu=0:1", Some(("nvidia.com/gpu", "0:1"))),
        ("v/c=1", Some(("v/c", "1"))),
        ("/dev/null=x", None),
        ("v/c=d=e", None),
        ("v/c=-", None),
        ("1/c=d", None),
        ("v/1=d", None),
        ("v/c=d\n", None),
        ("v/c=é", None),
    ] {
        assert_eq!(split(name).ok(), parts, "{name}");
    }
    let long = |class: usize| format!("v/{}=d", "c".repeat(class));
    assert!(split(&long(63)).is_ok() && split(&long(64)).is_err());
}

#[test]
fn what_could_not_be_read_is_a_problem_of_its_own() {
    let cache = Cache::of([
        Found { path: "/etc/cdi".into(), priority: 0, bytes: Err("cannot read the folder".into()) },
        Found { path: "/run/cdi/a.json".into(), priority: 1, bytes: Ok(gpus().to_string().into_bytes()) },
        Found { path: "/run/cdi/b.json".into(), priority: 1, bytes: Ok(vec![b' '; cdi::spec::MAX_BYTES + 1]) },
        Found { path: "/run/cdi/c.txt".into(), priority: 1, bytes: Ok(gpus().to_string().into_bytes()) },
    ]);
    assert_eq!(cache.devices().count(), 3);
    let told: Vec<String> = cache.problems.iter().map(|(path, all)| format!("{path}: {}", all[0])).collect();
    assert_eq!(
        told,
        [
            "/etc/cdi: cannot read the folder",
            "/run/cdi/b.json: the file is larger than 1048576 bytes",
            "/run/cdi/c.txt: the file's name must end with .json or .yaml",
        ]
    );
}
