//! What is known of low-level runtimes, as tables.

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
