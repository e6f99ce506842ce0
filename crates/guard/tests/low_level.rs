//! What is known of low-level runtimes, as tables.

mod common;

use common::{By, Fake, hardened, judge_text};
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
