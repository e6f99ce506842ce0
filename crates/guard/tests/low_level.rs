//! What is known of low-level runtimes, as tables.

mod common;

use common::{By, Fake, Spec, hardened, judge, judge_text, verdict};
use guard::LowLevel;

#[test]
fn low_level_runtimes_by_name() {
    for (path, expected) in [
        ("/usr/sbin/runc", LowLevel::Runc),
        ("runc-1.3", LowLevel::Runc),
        ("/usr/bin/crun", LowLevel::Crun),
        ("/opt/runc/bin/youki", LowLevel::Youki),
        ("/usr/bin/quilt-gpu-engine", LowLevel::Engine),
        ("/usr/bin/quilt-gpu", LowLevel::Other),
    ] {
        assert_eq!(LowLevel::of(path), expected, "{path}");
    }
}

#[test]
fn what_is_known_of_low_level_runtimes() {
    for (low_level, folder) in [
        (LowLevel::Runc, "runc"),
        (LowLevel::Crun, "crun"),
        (LowLevel::Youki, "youki"),
        (LowLevel::Engine, "quilt-gpu-engine"),
        (LowLevel::Other, "runc"),
    ] {
        assert_eq!(low_level.state_folder(), folder);
        let feature = low_level == LowLevel::Youki;
        assert_eq!(low_level.lacks_filter(true).contains("cgroupsv2_devices"), feature, "{folder}");
        assert!(!low_level.lacks_filter(false).contains("cgroupsv2_devices"), "{folder}");
    }
}

#[test]
fn a_process_without_capabilities_is_read_as_its_runtime_reads_it() {
    for (low_level, capabilities, sealed) in [
        (LowLevel::Runc, "", true),
        (LowLevel::Crun, "", true),
        (LowLevel::Youki, "", false),
        (LowLevel::Youki, r#", "capabilities": null"#, false),
        (LowLevel::Youki, r#", "capabilities": {}"#, true),
    ] {
        let text = format!(
            r#"{{"ociVersion": "1.0.2", "root": {{"path": "rootfs"}}, "process": {{"cwd": "/"{capabilities}}}}}"#
        );
        let by = By { low_level, ..hardened() };
        let judgement = judge_text(&text, &by, &Fake::default());
        assert_eq!(judgement.sealed, sealed, "{low_level:?} {capabilities}");
        let refused = judgement.refusals.iter().any(|one| one.at == "/process/capabilities");
        assert_eq!(refused, !sealed, "{low_level:?} {capabilities}");
    }
}

#[test]
fn a_control_group_without_a_name_is_the_containers_own() {
    for (low_level, group, empty_is_own) in [
        (LowLevel::Runc, "one", true),
        (LowLevel::Crun, "one", true),
        (LowLevel::Other, "one", true),
        (LowLevel::Youki, ":youki:one", false),
        (LowLevel::Engine, ":youki:one", false),
    ] {
        assert_eq!(low_level.default_group("one"), group);
        let verdict = |linux: &str| {
            let by = By { low_level, ..By::default() };
            verdict(&judge(&Spec { more_linux: linux.into(), ..Spec::default() }, &by))
        };
        let expected = if empty_is_own { "ok" } else { "UNSAFE_SPEC cgroup-path" };
        assert_eq!(verdict(r#","cgroupsPath":"""#), expected, "{low_level:?}");
        assert_eq!((&*verdict(""), &*verdict(r#","cgroupsPath":"/""#)), ("ok", "UNSAFE_SPEC cgroup-path"));
    }
}

/// youki looks for it where its caller is, which nobody here knows.
#[test]
fn a_relative_source_is_judged_where_it_is_looked_for() {
    const UNSAFE: &str = "UNSAFE_SPEC mount-unresolvable";
    let overlay = r#"{"destination":"/x","type":"overlay","source":"overlay","options":["lowerdir=data"]}"#;
    for (low_level, expected) in [
        (LowLevel::Runc, "ok"),
        (LowLevel::Crun, "ok"),
        (LowLevel::Youki, UNSAFE),
        (LowLevel::Engine, UNSAFE),
        (LowLevel::Other, UNSAFE),
    ] {
        let told = |spec: &Spec| verdict(&judge(spec, &By { low_level, ..By::default() }));
        assert_eq!(told(&Spec::bind("data")), expected, "{low_level:?}");
        assert_eq!(told(&Spec::mount(overlay)), expected, "{low_level:?}");
        assert_eq!(told(&Spec::bind("/data")), "ok", "{low_level:?}");
        assert_eq!(told(&Spec::default()), "ok", "of no bind it is a name: {low_level:?}");
    }
}
