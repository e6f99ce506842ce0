//! Verdicts as one table, the grammar as another, and the data against itself.

use proptest::prelude::*;

use super::*;

fn read<'a>(environment: &[&'a str]) -> Image<'a> {
    let mut image = Image::default();
    environment.iter().enumerate().for_each(|(index, entry)| image.read(index, entry));
    image
}

const A100: (&str, &str) = ("NVIDIA A100-SXM4-40GB", "8.0");
const V100: (&str, &str) = ("Tesla V100-SXM2-16GB", "7.0");
const H100: (&str, &str) = ("NVIDIA H100 80GB HBM3", "9.0");
const RTX4090: (&str, &str) = ("NVIDIA GeForce RTX 4090", "8.9");
const NOBODY: (&str, &str) = ("", "");

fn kinds(of: &[(&str, &str)]) -> Products {
    Products(of.iter().map(|(model, capability)| ((*model).to_owned(), (*capability).to_owned())).collect())
}

/// As NVIDIA's images have it, shortened.
const CUDA_12_9: &str = "NVIDIA_REQUIRE_CUDA=cuda>=12.9 brand=unknown,driver>=535,driver<536 \
    brand=tesla,driver>=470,driver<471 brand=tesla,driver>=535,driver<536 brand=nvidia,driver>=535,driver<536";

fn judged(environment: &[&str], driver: &str, device: (&str, &str)) -> (Verdict, Vec<String>) {
    let image = read(environment);
    let (driver, kinds) = (Driver::of(Some(driver), None), kinds(&[device]));
    let findings = judge(&image, &driver, &kinds);
    let worst = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Supported);
    let told = |finding: &Finding<'_>| {
        let (message, help) = finding.words(&driver, &kinds);
        assert_eq!(help.is_empty(), finding.verdict <= Verdict::MinorVersion, "{finding:?}: {message}");
        format!("{} {message}; {help}", finding.condition())
    };
    (worst, findings.iter().map(told).collect())
}

#[test]
fn what_an_image_wants_against_what_a_node_has() {
    use Verdict::{Architecture, ForwardCompatibility, MinorVersion, NeedsDriver, Supported, Unmet};
    for (environment, driver, device, verdict, says) in [
        (&[][..], "535.104.05", A100, Supported, ""),
        (&["CUDA_VERSION=12.2.0"], "535.104.05", A100, Supported, ""),
        (&["CUDA_VERSION=11.8.0"], "535.104.05", A100, Supported, ""),
        // The same major version: 450.80.02 for 11.x, 525.60.13 for 12.x, 580 for 13.x.
        (&["CUDA_VERSION=11.8.0"], "450.80.02", A100, MinorVersion, "driver 450.80.02 for CUDA 11.0"),
        (&["CUDA_VERSION=11.8.0"], "450.51.06", A100, ForwardCompatibility, "520.61.05 or newer"),
        (&["CUDA_VERSION=12.9.1"], "525.60.13", A100, MinorVersion, "CUDA 12.9"),
        (&["CUDA_VERSION=12.9.1"], "520.61.05", A100, ForwardCompatibility, "575.51.03 or newer"),
        (&["CUDA_VERSION=13.1.0"], "580.65.06", A100, MinorVersion, "CUDA 13.0"),
        (&["CUDA_VERSION=13.0.0"], "575.57.08", A100, ForwardCompatibility, "580.65.06 or newer"),
        // Libraries of the image instead of a newer driver: never on GeForce (error 804), nor where nobody knows.
        (&["CUDA_VERSION=13.0.0"], "575.57.08", RTX4090, NeedsDriver, "an image for CUDA 12.9"),
        (&["CUDA_VERSION=13.0.0"], "575.57.08", NOBODY, NeedsDriver, "CUDA 13.0"),
        (&["CUDA_VERSION=10.2"], "418.39", V100, ForwardCompatibility, "440.33 or newer"),
        // Dropped, and not known yet.
        (&["CUDA_VERSION=13.0.0"], "580.65.06", V100, Architecture, "an image for CUDA 12.9"),
        (&["CUDA_VERSION=12.9.0"], "580.65.06", V100, Supported, ""),
        (&["CUDA_VERSION=11.2.0"], "580.65.06", H100, Architecture, "CUDA 11.8 or newer"),
        (&["CUDA_VERSION=11.2.0"], "580.65.06", RTX4090, Supported, "older relatives"),
        (&["CUDA_VERSION=11.8.0"], "580.65.06", RTX4090, Supported, ""),
        // What the image requires in NVIDIA's own words.
        (&["NVIDIA_REQUIRE_CUDA=cuda>=12.8"], "535.104.05", A100, MinorVersion, "CUDA 12.8"),
        (&["NVIDIA_REQUIRE_CUDA=cuda>=12.8"], "470.82.01", RTX4090, NeedsDriver, "570.26 or newer"),
        (&["NVIDIA_REQUIRE_CUDA=cuda>=12.8"], "580.65.06", A100, Supported, ""),
        (&[CUDA_12_9, "CUDA_VERSION=12.9.1"], "535.104.05", A100, MinorVersion, "CUDA 12.9"),
        (&[CUDA_12_9, "CUDA_VERSION=12.9.1"], "470.82.01", A100, ForwardCompatibility, "CUDA 12.9"),
        (&[CUDA_12_9, "CUDA_VERSION=12.9.1"], "470.82.01", RTX4090, NeedsDriver, "CUDA 12.9"),
        (&["NVIDIA_REQUIRE_DRIVER=driver>=550"], "535.104.05", A100, Unmet, "this node has driver 535.104.05"),
        (
            &["NVIDIA_REQUIRE_ARCH=arch>=9.0"],
            "580.65.06",
            A100,
            Unmet,
            "CUDA 13.0, NVIDIA A100-SXM4-40GB (compute capability 8.0)",
        ),
        (&["NVIDIA_REQUIRE_BRAND=brand=geforce"], "580.65.06", A100, Unmet, "requires brand=geforce"),
        (&["NVIDIA_REQUIRE_BRAND=brand=geforcertx"], "580.65.06", RTX4090, Supported, ""),
        (&["NVIDIA_REQUIRE_BRAND=brand=nvidia"], "580.65.06", A100, Supported, ""),
        (&["NVIDIA_REQUIRE_CUDA=cuda<12"], "580.65.06", A100, Unmet, "requires cuda<12"),
        (&["NVIDIA_REQUIRE_CUDA=cuda>=12.8 driver>=470,arch>=8.0"], "470.82.01", A100, Supported, ""),
        (&["NVIDIA_REQUIRE_JETPACK=csv-mounts=all"], "580.65.06", A100, Supported, ""),
        // What nobody knows: other properties, a driver beyond the table, a GPU without a name.
        (&["NVIDIA_REQUIRE_X=weather=fine,cuda>=12.0"], "580.65.06", A100, Supported, ""),
        (&["CUDA_VERSION=15.0.0"], "999.10.01", A100, Supported, ""),
        (&["NVIDIA_REQUIRE_ARCH=arch>=9.0"], "580.65.06", NOBODY, Supported, ""),
        (&["NVIDIA_REQUIRE_CUDA=cuda>=twelve"], "580.65.06", A100, Supported, "is no condition"),
        (&["NVIDIA_REQUIRE_CUDA=please"], "580.65.06", A100, Supported, "is no condition"),
        (&["NVIDIA_REQUIRE_CUDA=brand>=tesla"], "580.65.06", A100, Supported, "is no condition"),
        (&["CUDA_VERSION=x", "CUDA_VERSION"], "580.65.06", A100, Supported, ""),
    ] {
        let (found, told) = judged(environment, driver, device);
        assert_eq!(found, verdict, "{environment:?} on {driver}, {device:?}: {told:?}");
        assert!(told.join("\n").contains(says), "{environment:?} on {driver}: {told:?}");
        assert_eq!(told.is_empty(), verdict == Supported && says.is_empty(), "{environment:?} on {driver}: {told:?}");
    }
}

#[test]
fn later_variables_win_and_the_switch_blocks_nothing() {
    let image = read(&["NVIDIA_REQUIRE_CUDA=cuda>=13", "A=b", "NVIDIA_REQUIRE_CUDA=cuda>=11"]);
    assert_eq!(judge(&image, &Driver::of(Some("535.54.03"), None), &kinds(&[A100])), []);
    let driver = Driver::of(Some("535.54.03"), None);
    for (switch, blocked) in [
        ("NVIDIA_DISABLE_REQUIRE=1", false),
        ("NVIDIA_DISABLE_REQUIRE=true", false),
        ("NVIDIA_DISABLE_REQUIRE=0", true),
        ("NVIDIA_DISABLE_REQUIRE=", true),
        ("NVIDIA_DISABLE_REQUIRE=yes", true),
    ] {
        let image = read(&[switch, "CUDA_VERSION=13.0.0"]);
        let findings = judge(&image, &driver, &kinds(&[RTX4090]));
        assert_eq!(findings.iter().any(|finding| image.is_blocked_by(finding)), blocked, "{switch}");
        assert_eq!(findings.len(), if blocked { 1 } else { 2 }, "{switch}: {findings:?}");
    }
    let image = read(&["CUDA_VERSION=12.8.0"]);
    let findings = judge(&image, &driver, &kinds(&[A100]));
    assert_eq!(
        (findings.len(), findings.iter().any(|finding| image.is_blocked_by(finding))),
        (1, false),
        "what runs is not refused"
    );
}

#[test]
fn equal_gpus_are_told_once_and_every_other_one_counts() {
    let image = read(&["CUDA_VERSION=13.0.0"]);
    let driver = Driver::of(Some("580.65.06"), None);
    assert_eq!(judge(&image, &driver, &kinds(&[V100, A100, H100])).len(), 1);
    assert_eq!(judge(&image, &driver, &kinds(&[A100, H100])).len(), 0);
    assert_eq!(judge(&read(&["CUDA_VERSION=13.3.0"]), &driver, &kinds(&[])).len(), 1);
}

#[test]
fn a_driver_serves_what_it_says_or_what_the_table_has() {
    for (driver, cuda, serves) in [
        (Some("535.104.05"), None, Some("12.2")),
        (Some("535.53"), None, Some("12.1")),
        (Some("535.104.05"), Some("12.4"), Some("12.4")),
        (Some("535.104.05"), Some("Not Found"), Some("12.2")),
        (Some("610.43.02"), None, Some("13.3")),
        (Some("611.1"), None, None),
        (Some("304.1"), None, None),
        (None, None, None),
    ] {
        let found = Driver::of(driver, cuda).cuda().map(|version| version.to_string());
        assert_eq!(found.as_deref(), serves, "{driver:?} {cuda:?}");
    }
}

#[test]
fn versions_are_read_strictly_and_written_as_nvidia_does() {
    for (text, written) in [
        ("12", Some("12.0")),
        ("12.4.1", Some("12.4")),
        ("535.104.05", Some("535.104.05")),
        ("550.54.14.1", Some("550.54.14")),
        ("580", Some("580.0")),
        ("", None),
        ("12.", None),
        (".1", None),
        ("12.x", None),
        ("+12", None),
        ("9999999999", None),
        ("65536.1", None),
        ("1..2", None),
    ] {
        assert_eq!(Version::parse(text).map(|version| version.to_string()).as_deref(), written, "{text}");
    }
}

proptest! {
    #[test]
    fn any_environment_is_judged(entries in proptest::collection::vec("(NVIDIA_REQUIRE_[A-Z]{1,4}|CUDA_VERSION|NVIDIA_DISABLE_REQUIRE)=[a-z<>=!,. 0-9é]{0,30}", 0..6),
                                 driver in "[0-9.]{0,12}") {
        let image = read(&entries.iter().map(String::as_str).collect::<Vec<_>>());
        for device in [A100, RTX4090, NOBODY] {
            let findings = judge(&image, &Driver::of(Some(&driver), None), &kinds(&[device]));
            // Each finding points at the variable it names.
            for finding in findings {
                let prefix = format!("{}=", finding.variable);
                prop_assert!(entries[finding.index].starts_with(&prefix));
            }
        }
    }

    /// A newer driver never makes it worse.
    #[test]
    fn newer_drivers_run_what_older_ones_run(major in 9u32..14, minor in 0u32..10, a in 380u32..620, b in 380u32..620) {
        let environment = format!("CUDA_VERSION={major}.{minor}");
        let on = |driver: u32| judged(&[&environment], &format!("{driver}.99.99"), RTX4090).0;
        prop_assert!(on(a.max(b)) <= on(a.min(b)));
    }
}
