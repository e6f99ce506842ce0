//! Many real processes at one ledger: as many grants as there are GPUs, none twice, none lost, also when they are killed.
//!
//! [`one_create`] is both a test of its own and, when a variable says so, the process that the other tests start.
#![allow(clippy::unwrap_used, reason = "all of this is test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use contract::capability::Capabilities;
use contract::gpu::Gpu;
use contract::inventory::Inventory;
use contract::key::Key;
use contract::request::{Places, Request, Source};
use contract::{Code, Refusal};
use ledger::audit::{Audit, Kind, Record, verify};
use ledger::{Holder, Ledger};
use serde_json::json;
use tempfile::TempDir;

const VARIABLE: &str = "LEDGER_TEST_CREATE";
const GPUS: usize = 8;

fn inventory() -> Inventory {
    let gpu = |n: usize| Gpu {
        vendor: "nvidia".into(),
        pci: format!("0000:{:02x}:00.0", n + 1),
        minor: u32::try_from(n).ok(),
        device_id: "0x20b0".into(),
        ..Gpu::default()
    };
    Inventory { schema: contract::inventory::SCHEMA, gpus: (0..GPUS).map(gpu).collect(), ..Inventory::default() }
}

fn request(count: usize) -> Request {
    Request {
        terms: contract::request::Terms::default(),
        places: Places::default(),
        source: Source::Json,
        count: u32::try_from(count).unwrap(),
        ids: Vec::new(),
        kind: None,
        profile: None,
        capabilities: Capabilities::default(),
    }
}

/// What a create of container `id` does with the ledger: grant, audit, and the low-level runtime's state folder.
fn create(base: &Path, id: &str, count: usize) -> Result<BTreeSet<String>, Refusal> {
    let root = base.join("low");
    let holder = Holder {
        key: Key::of(root.to_str().unwrap(), id),
        container: id.into(),
        state_root: root.to_str().unwrap().into(),
        low_level: "/bin/true".into(),
        cgroup: Some(format!("/quilt-gpu-ledger-test-{}/{id}", base.file_name().unwrap().to_str().unwrap())),
        pod: None,
        owner: None,
        creator: node::process::me(),
    };
    let gpus = Ledger::open(&base.join("state"))?.grant(&inventory(), &request(count), &holder)?;
    let fields = json!({"container": id}).as_object().cloned().unwrap();
    Audit::open(&base.join("log"), &contract::config::AuditPolicy::default())?
        .append(&Record { kind: Kind::Create, fields })?;
    fs::create_dir_all(root.join(id)).unwrap();
    Ok(gpus.into_iter().map(|gpu| gpu.pci).collect())
}

#[test]
fn one_create() {
    let Ok(told) = std::env::var(VARIABLE) else {
        let base = tempfile::tempdir().unwrap();
        assert_eq!(create(base.path(), "alone", 2).unwrap().len(), 2);
        assert_eq!(create(base.path(), "greedy", GPUS).unwrap_err().code, Code::CapacityFull);
        return;
    };
    let told: Vec<&str> = told.split('|').collect();
    match create(Path::new(told[0]), told[1], told[2].parse().unwrap()) {
        Ok(gpus) => println!("GRANTED {}", gpus.into_iter().collect::<Vec<_>>().join(" ")),
        Err(refusal) => println!("REFUSED {}", refusal.code.name()),
    }
}

fn start(base: &Path, id: &str, count: usize) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "one_create", "--nocapture"]).env(VARIABLE, format!("{}|{id}|{count}", base.display()));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The GPUs that a create says it got; nothing when it was refused for want of capacity.
fn outcome(child: Child) -> Option<Vec<String>> {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let said = |word: &str| text.lines().find_map(|line| line.split_once(word).map(|(_, rest)| rest.trim().to_owned()));
    match said("GRANTED ") {
        Some(gpus) => Some(gpus.split(' ').map(str::to_owned).collect()),
        None => {
            assert_eq!(said("REFUSED ").as_deref(), Some("CAPACITY_FULL"), "{text}");
            None
        }
    }
}

fn base() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    (dir, path)
}

#[test]
fn sixty_four_processes_and_eight_gpus() {
    for round in 0..5 {
        let (_dir, base) = base();
        let children: Vec<Child> = (0..64).map(|n| start(&base, &format!("c{n}"), 1)).collect();
        let granted: Vec<String> = children.into_iter().filter_map(outcome).flatten().collect();
        assert_eq!(granted.len(), GPUS, "round {round}");
        assert_eq!(granted.iter().collect::<BTreeSet<_>>().len(), GPUS, "round {round}: {granted:?}");
        // The creators are gone; the state folders hold the leases.
        assert_eq!(Ledger::open(&base.join("state")).unwrap().leases().unwrap().len(), GPUS);
        let log = verify(&base.join("log")).unwrap();
        assert_eq!((log.records, log.torn, log.bad), (GPUS as u64, 0, None), "round {round}");
    }
}

#[test]
fn sixty_four_threads_and_eight_gpus() {
    for round in 0..20 {
        let (_dir, base) = base();
        let granted: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..64)
                .map(|n| {
                    scope.spawn({
                        let base = &base;
                        move || create(base, &format!("c{n}"), 1)
                    })
                })
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| match thread.join().unwrap() {
                    Ok(gpus) => gpus.into_iter().collect::<Vec<_>>(),
                    Err(refusal) => {
                        assert_eq!(refusal.code, Code::CapacityFull, "{refusal}");
                        Vec::new()
                    }
                })
                .collect()
        });
        assert_eq!((granted.len(), granted.iter().collect::<BTreeSet<_>>().len()), (GPUS, GPUS), "round {round}");
    }
}

/// Processes killed at whatever they are doing: afterwards no GPU has two leases, those of finished creates are still
/// there, the log is sound, and after `delete --force` of all, all GPUs can be granted.
#[test]
fn killed_processes() {
    let mut kills = 0;
    for round in 0..40_u64 {
        let (_dir, base) = base();
        let names: Vec<String> = (0..4).map(|n| format!("c{n}")).collect();
        let children: Vec<Child> = names.iter().map(|id| start(&base, id, 3)).collect();
        std::thread::sleep(Duration::from_micros(1000 + round * 300));
        let mut finished = BTreeSet::new();
        for mut child in children {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            if !output.status.success() {
                kills += 1;
                continue;
            }
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            finished.extend(
                text.split_once("GRANTED ")
                    .iter()
                    .flat_map(|(_, rest)| rest.lines().next().unwrap().split(' ').map(str::to_owned)),
            );
        }
        let ledger = Ledger::open(&base.join("state")).unwrap();
        let leases: Vec<String> = ledger.leases().unwrap().into_iter().map(|lease| lease.slot).collect();
        let different: BTreeSet<String> = leases.iter().cloned().collect();
        assert_eq!(different.len(), leases.len(), "round {round}: {leases:?}");
        assert!(finished.is_subset(&different), "round {round}: {finished:?} of {different:?}");
        for id in &names {
            let _ = fs::remove_dir(base.join("low").join(id));
            ledger.release(&Key::of(base.join("low").to_str().unwrap(), id)).unwrap();
        }
        assert_eq!(create(&base, "last", GPUS).unwrap().len(), GPUS, "round {round}");
        assert_eq!(verify(&base.join("log")).unwrap().bad, None, "round {round}");
    }
    assert!(kills > 0, "no process was killed: the delays do not fit this machine");
}
