//! Sixty-four containers at the same instant on a node with eight GPUs: eight get one each, the others are told that
//! there is none, and afterwards nothing is left.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use integration::{Fleet, QuiltOptions, Result, Rootfs, Site, Spec, root_for, run, say};
use serde_json::Value;

const STUB: &str = env!("CARGO_BIN_EXE_quilt-stub");
const PROBE: &str = env!("CARGO_BIN_EXE_quilt-probe");
const RUNC: &str = "/usr/sbin/runc";
const GPUS: usize = 8;
const CONTAINERS: usize = 64;
const ROUNDS: usize = 50;

fn site(options: &QuiltOptions) -> Result<Site> {
    let site = Site::with(|host| host.gpus(GPUS as u64), options)?;
    site.quilt.cli(&["inventory", "refresh"])?.checked()?;
    Ok(site)
}

fn members(winners: &BTreeMap<u64, usize>) -> Vec<usize> {
    winners.values().copied().collect()
}

/// The leases must say what the winners' documents say.
fn leased_and_granted_agree(site: &Site, winners: &BTreeMap<u64, usize>) -> Result<()> {
    let leases = site.leases_on_disk()?;
    let mut leased: Vec<&str> = leases.iter().filter_map(|name| Some(name.split_once('@')?.0)).collect();
    leased.sort_unstable();
    let mut granted: Vec<&str> =
        winners.keys().filter_map(|minor| Some(site.host.by_minor(*minor)?.pci.as_str())).collect();
    granted.sort_unstable();
    assert_eq!(leased, granted);
    Ok(())
}

#[test]
fn sixty_four_at_once_get_eight_grants_round_after_round() -> Result<()> {
    if !root_for("sixty_four_at_once_get_eight_grants") {
        return Ok(());
    }
    let options = QuiltOptions { verify: false, low_level: vec![STUB.into()], ..QuiltOptions::default() };
    let site = site(&options)?;
    say(format_args!("low-level runtime: the stub, no engine; {}", site.files));
    let rootfs = Rootfs::busybox(site.join("rootfs"))?;
    let spec = Spec::new().env("QUILT_GPU_COUNT", "1");
    let runtime = site.quilt.runc(site.join("runtime"))?;
    let root = runtime.root();
    let fleet = Fleet::new(runtime, &site.join("bundles"), "c", CONTAINERS, &spec, &rootfs)?;

    let begin = Instant::now();
    for round in 0..ROUNDS {
        let winners = fleet.create()?;
        assert_eq!(winners.len(), GPUS, "round {round}: {winners:?}");
        leased_and_granted_agree(&site, &winners)?;
        assert_eq!(fs::read_dir(&root).unwrap().count(), GPUS, "round {round}");
        fleet.delete(&members(&winners))?;
        assert!(site.leases_on_disk()?.is_empty(), "round {round}");
        let contracts = fs::read_dir(site.quilt.state().join("contracts")).map_or(0, Iterator::count);
        assert_eq!(contracts, 0, "round {round}");
    }
    say(format_args!("{ROUNDS} rounds of {CONTAINERS} creates on {GPUS} GPUs: {:.1} s", begin.elapsed().as_secs_f64()));

    site.quilt.cli(&["audit", "--verify-log"])?.checked()?;
    let audit = site.quilt.audit();
    let count = |kind: &str| audit.iter().filter(|record| record["kind"] == kind).count();
    assert_eq!(count("create"), ROUNDS * GPUS);
    assert_eq!(count("refuse"), ROUNDS * (CONTAINERS - GPUS));
    assert_eq!(count("release"), ROUNDS * GPUS);
    let mut numbers = audit.iter().map(|record| record["seq"].as_u64());
    let first = numbers.next().flatten().unwrap();
    assert!(numbers.zip(first + 1..).all(|(seq, expected)| seq == Some(expected)), "no record is lost");
    Ok(())
}

#[test]
fn sixty_four_at_once_over_runc_can_each_open_only_what_they_got() -> Result<()> {
    if !root_for("sixty_four_at_once_over_runc") {
        return Ok(());
    }
    let site = site(&QuiltOptions::default())?;
    let version = run(Command::new(RUNC).arg("--version"), None, Duration::from_secs(5))?.checked()?.stdout;
    say(format_args!("{}, no engine; {}", version.lines().next().unwrap_or_default(), site.files));
    let rootfs = Rootfs::debian_like(site.join("rootfs"), Path::new(PROBE))?;
    let last = (GPUS - 1).to_string();
    let spec = Spec::new().env("QUILT_GPU_COUNT", "1").allow('c', None, None, "m").args([
        "quilt-probe",
        "numbers",
        "195",
        "0",
        &last,
    ]);
    let fleet =
        Fleet::new(site.quilt.runc(site.join("runtime"))?, &site.join("bundles"), "c", CONTAINERS, &spec, &rootfs)?;

    let winners = fleet.create()?;
    assert_eq!(winners.len(), GPUS, "{winners:?}");
    leased_and_granted_agree(&site, &winners)?;
    let outputs = fleet.outputs(&members(&winners))?;
    for (minor, output) in winners.keys().zip(outputs) {
        let tried: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(tried.len(), GPUS, "{output}");
        for line in tried {
            // A node of its own making in each case; the device filter lets it through (ENXIO: no driver) or not.
            let expected = if line["minor"] == *minor { "ENXIO" } else { "EPERM" };
            assert_eq!((&line["mknod"], &line["open"]), (&"ok".into(), &expected.into()), "holder of {minor}: {line}");
        }
    }
    fleet.delete(&members(&winners))?;
    assert!(site.leases_on_disk()?.is_empty());
    site.quilt.cli(&["audit", "--verify-log"])?.checked()?;
    Ok(())
}
