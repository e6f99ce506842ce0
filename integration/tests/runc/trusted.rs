//! The files that decide who gets a GPU as targets (security cases Q59 to Q63): each kind of damage on each file, and what the
//! product then does. Nothing that others than root could have written grants anything, and nothing of it hangs a container.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use integration::{Error, Result, Spec};
use serde_json::{Value, json};

use crate::Bench;
use crate::refusals::make_node;

/// What others could do to a file, or who they could be; each is undone again.
const DAMAGES: [&str; 10] = [
    "symlink",
    "group-writable",
    "world-writable",
    "parent 0777",
    "two names",
    "owner 1000",
    "parent of 1000",
    "pipe",
    "folder",
    "too large",
];

fn tool(words: &[&str]) {
    assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success(), "{words:?}");
}

/// Damages a file, does something, and mends it.
fn damaged<T>(path: &Path, how: &str, act: impl FnOnce() -> T) -> T {
    let aside = path.with_extension("aside");
    let parent = path.parent().unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let before = (fs::metadata(path).unwrap().mode() & 0o7777, fs::metadata(parent).unwrap().mode() & 0o7777);
    let elsewhere = || fs::rename(path, &aside).unwrap();
    match how {
        "symlink" => {
            elsewhere();
            symlink(&aside, path).unwrap();
        }
        "group-writable" => mode(path, 0o660),
        "world-writable" => mode(path, 0o606),
        "parent 0777" => mode(parent, 0o777),
        "two names" => fs::hard_link(path, &aside).unwrap(),
        "owner 1000" => chown(path, Some(1000), None).unwrap(),
        "parent of 1000" => chown(parent, Some(1000), None).unwrap(),
        "pipe" => {
            elsewhere();
            tool(&["mkfifo", "-m", "0600", &path.to_string_lossy()]);
        }
        "folder" => {
            elsewhere();
            fs::create_dir(path).unwrap();
        }
        "too large" => {
            fs::copy(path, &aside).unwrap();
            fs::File::options().write(true).open(path).unwrap().set_len(64 << 20).unwrap();
        }
        other => panic!("{other}"),
    }
    let done = act();
    match how {
        "group-writable" | "world-writable" => mode(path, before.0),
        "parent 0777" => mode(parent, before.1),
        "two names" => fs::remove_file(&aside).unwrap(),
        "owner 1000" => chown(path, Some(0), None).unwrap(),
        "parent of 1000" => chown(parent, Some(0), None).unwrap(),
        _ => {
            fs::remove_file(path).or_else(|_| fs::remove_dir(path)).unwrap();
            fs::rename(&aside, path).unwrap();
        }
    }
    done
}

/// The only file of a folder of the state folder.
fn only(bench: &Bench, folder: &str) -> Result<PathBuf> {
    let folder = bench.site.quilt.state().join(folder);
    let mut list = fs::read_dir(&folder).map_err(|e| Error::new(format!("{}: {e}", folder.display())))?;
    let first = list.next().expect("one file").unwrap().path();
    assert!(list.next().is_none(), "one file alone in {}", folder.display());
    Ok(first)
}

fn reserved(bench: &Bench, ids: &[&str]) -> Result<String> {
    let request = bench.site.join("request.json");
    fs::write(&request, json!({"gpu_count": ids.len(), "gpu_ids": ids}).to_string()).unwrap();
    let answer = bench.site.quilt.cli(&["contract", "prepare", "--request", &request.to_string_lossy()])?.checked()?;
    let answer: Value = serde_json::from_str(&answer.stdout).unwrap();
    Ok(answer["token"].as_str().unwrap().to_owned())
}

/// Q59: a reservation, its lease, the inventory and the configuration, before there is a container.
#[test]
fn q59_nothing_that_others_could_write_makes_a_contract() -> Result<()> {
    let Some(bench) = Bench::new("q59_nothing_that_others_could_write_makes_a_contract", 2)? else { return Ok(()) };
    let token = reserved(&bench, &["nvidia0"])?;
    let redeeming = bench.sharing("redeeming", &Spec::new().env("QUILT_GPU_CONTRACT", &token))?;
    let asking = bench.sharing("asking", &Spec::new().env("QUILT_GPU_IDS", "nvidia1"))?;
    let plain = bench.sharing("plain", &Spec::new())?;
    let promise = only(&bench, "reservations")?;
    for how in DAMAGES {
        damaged(&promise, how, || bench.refused("redeeming", &redeeming, &["CONTRACT_UNTRUSTED"]))?;
        // Whoever may be in the way: the GPU stays taken, and nobody else's container waits for it.
        damaged(&promise, how, || bench.runc.create("plain", &plain)?.checked())?;
        bench.runc.delete("plain", true)?.checked()?;
    }
    let inventory = bench.site.quilt.state().join("inventory.json");
    let good = fs::read(&inventory).unwrap();
    for how in DAMAGES.into_iter().filter(|how| !how.starts_with("parent")) {
        damaged(&inventory, how, || -> Result<()> {
            // One that is not trusted is made anew, once, by the helper, in its own place; or the container is refused.
            let answer = bench.runc.create("asking", &asking)?;
            if answer.ok() {
                assert_eq!(asking.gpus()?, [1], "{how}");
                bench.runc.delete("asking", true)?.checked()?;
            } else {
                assert!(answer.stderr.contains("DRIVER_NOT_READY"), "{how}: {answer:?}");
            }
            bench.runc.create("plain", &plain)?.checked()?;
            bench.runc.delete("plain", true)?.checked()?;
            // So that it is there to be mended.
            if !matches!(how, "symlink" | "pipe" | "folder") || inventory.is_file() {
                return Ok(());
            }
            Ok(())
        })?;
        let _ = fs::remove_dir(&inventory);
        fs::write(&inventory, &good).unwrap();
        fs::set_permissions(&inventory, Permissions::from_mode(0o600)).unwrap();
    }
    let config = bench.site.quilt.config();
    for how in DAMAGES.into_iter().filter(|how| !how.starts_with("parent")) {
        damaged(&config, how, || -> Result<()> {
            let answer = bench.runc.create("asking", &asking)?;
            assert!(!answer.ok() && asking.gpus()?.is_empty(), "{how}: {answer:?}");
            bench.runc.create("plain", &plain)?.checked()?;
            bench.runc.delete("plain", true)?.checked()?;
            Ok(())
        })?;
    }
    // All of it mended, all of it is worth something again.
    assert_eq!(bench.see("redeemed", &Spec::new().env("QUILT_GPU_CONTRACT", &token))?.gpus()?, BTreeSet::from([0]));
    Ok(())
}

/// Q59: the record of what the low-level runtime was seen to do, which every container reads.
#[test]
fn q59_no_record_of_the_low_level_runtime_hangs_a_container() -> Result<()> {
    let Some(bench) = Bench::new("q59_no_record_of_the_low_level_runtime_hangs_a_container", 1)? else { return Ok(()) };
    let record = bench.site.quilt.state().join("low-level.json");
    bench.see("first", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    assert!(record.is_file());
    for how in ["symlink", "pipe", "folder", "too large"] {
        damaged(&record, how, || bench.see(&format!("plain-{}", how.replace(' ', "-")), &Spec::new()))?;
    }
    Ok(())
}

/// Q59: contract, lease and original of a container that runs.
#[test]
fn q59_what_a_container_has_is_not_changed_by_its_files() -> Result<()> {
    let Some(bench) = Bench::new("q59_what_a_container_has_is_not_changed_by_its_files", 2)? else { return Ok(()) };
    let spec = Spec::new().env("QUILT_GPU_IDS", "nvidia0").args(["quilt-probe", "sleep"]);
    let bundle = bench.bundle("gpu", &spec)?;
    let tenants = fs::read(bundle.config()).unwrap();
    bench.runc.create("gpu", &bundle)?.checked()?;
    bench.runc.start("gpu")?.checked()?;
    let written = fs::read(bundle.config()).unwrap();
    let pinned = bench.sharing("pinned", &Spec::new().env("QUILT_GPU_IDS", "nvidia0"))?;
    let (lease, contract) = (only(&bench, "leases")?, only(&bench, "contracts")?);
    for how in DAMAGES.into_iter().filter(|how| !how.starts_with("parent")) {
        // A probe goes on without the variables, whatever lies there.
        damaged(&contract, how, || bench.runc.exec("gpu", &["true"])?.checked())?;
        // A lease takes its GPU by its name alone.
        let answer = damaged(&lease, how, || bench.runc.create("pinned", &pinned))?;
        assert!(!answer.ok() && answer.stderr.contains("CAPACITY_FULL"), "{how}: {answer:?}");
    }
    // Where others could write, nothing is granted at all.
    let leases = lease.parent().unwrap();
    let answer = damaged(leases, "parent 0777", || bench.runc.create("pinned", &pinned))?;
    assert!(!answer.ok() && answer.stderr.contains("may write there"), "{answer:?}");
    let answer = damaged(leases, "parent of 1000", || bench.runc.create("pinned", &pinned))?;
    assert!(!answer.ok() && answer.stderr.contains("belongs to user 1000"), "{answer:?}");
    // An original that others could have written is nobody's: what we wrote stays, rather than what they wrote comes.
    let original = only(&bench, "originals")?;
    let forged = bench.site.join("forged");
    let kept = fs::read(&original).unwrap();
    let text = String::from_utf8_lossy(&kept).replace("quilt-probe", "forged-prog");
    fs::write(&forged, text).unwrap();
    fs::rename(&forged, &original).unwrap();
    chown(&original, Some(1000), None).unwrap();
    bench.runc.delete("gpu", true)?.checked()?;
    assert_eq!(fs::read(bundle.config()).unwrap(), written);
    assert_ne!(written, tenants);
    assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new());
    Ok(())
}

/// Q60: a contract serves one container, once, for a time, on this boot and this node.
#[test]
fn q60_no_contract_is_used_again_or_elsewhere() -> Result<()> {
    let Some(bench) = Bench::new("q60_no_contract_is_used_again_or_elsewhere", 2)? else { return Ok(()) };
    let [mine, other] = [0, 1].map(|minor| bench.site.host.by_minor(minor).unwrap().pci.clone());
    let version = format!("\"{}\"", bench.site.files.version);
    let edited = |text: &str, key: &str, value: Value| {
        let mut promise: Value = serde_json::from_str(text).unwrap();
        promise[key] = value;
        promise.to_string()
    };
    for what in ["another boot", "expired", "another driver", "a GPU without a lease", "another layout", "a field more"]
    {
        let token = reserved(&bench, &["nvidia0"])?;
        let promise = only(&bench, "reservations")?;
        let promised = fs::read_to_string(&promise).unwrap();
        let text = match what {
            "another boot" => edited(&promised, "boot_id", "00000000-0000-4000-8000-000000000000".into()),
            "expired" => edited(&promised, "until", 1.into()),
            "another driver" => promised.replace(&version, "\"999.99\""),
            "a GPU without a lease" => promised.replace(&mine, &other),
            "another layout" => edited(&promised, "version", 2.into()),
            _ => edited(&promised, "more", 1.into()),
        };
        assert_ne!(text, promised, "{what}");
        fs::write(&promise, text).unwrap();
        let bundle = bench.sharing("other", &Spec::new().env("QUILT_GPU_CONTRACT", &token))?;
        let answer = bench.runc.create("other", &bundle)?;
        assert!(!answer.ok() && answer.stderr.contains("CONTRACT_"), "{what}: {answer:?}");
        assert_eq!(bundle.gpus()?, Vec::<u64>::new(), "{what}");
        fs::write(&promise, promised).unwrap();
        bench.site.quilt.cli(&["lease", "release", "--token", &token])?.checked()?;
        assert_eq!(bench.site.leases()?, Vec::<Value>::new(), "{what}");
    }
    let token = reserved(&bench, &["nvidia0"])?;
    let promise = only(&bench, "reservations")?;
    let promised = fs::read(&promise).unwrap();
    let spec = Spec::new().env("QUILT_GPU_CONTRACT", &token);
    assert_eq!(bench.sleeper("first", &spec)?.gpus()?, BTreeSet::from([0]));
    // Used is used, also when the promise is put back; and one container's contract is no other's.
    fs::write(&promise, &promised).unwrap();
    let again = bench.runc.create("again", &bench.sharing("again", &spec)?)?;
    assert!(!again.ok() && again.stderr.contains("CONTRACT_UNTRUSTED"), "{again:?}");
    let contract = only(&bench, "contracts")?;
    bench.sleeper("second", &Spec::new().env("QUILT_GPU_IDS", "nvidia1"))?;
    let folder = bench.site.quilt.state().join("contracts");
    let seconds =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(|path| *path != contract).unwrap();
    fs::copy(&contract, &seconds).unwrap();
    let shown = bench.site.quilt.cli(&["contract", "show", "--format", "json"])?;
    assert!(shown.stdout.contains("contract-binding") || shown.stderr.contains("another container"), "{shown:?}");
    let added = bench.runc.exec("second", &["env"])?.checked()?.stdout;
    assert!(!added.contains(&bench.site.host.by_minor(0).unwrap().uuid), "{added}");
    Ok(())
}

/// Q61 and Q62: what the node is now decides, not what it was when the contract was made.
#[test]
fn q61_q62_a_contract_that_the_node_no_longer_bears_out_is_not_carried_out() -> Result<()> {
    let test = "q61_q62_a_contract_that_the_node_no_longer_bears_out_is_not_carried_out";
    let Some(bench) = Bench::new(test, 2)? else { return Ok(()) };
    let root = bench.site.host.root.clone();
    let node = root.join("dev/nvidia0");
    let majors = root.join("proc/devices");
    let information =
        root.join(format!("proc/driver/nvidia/gpus/{}/information", bench.site.host.by_minor(0).unwrap().pci));
    let asking = Spec::new().env("QUILT_GPU_IDS", "nvidia0");
    bench.see("first", &asking)?;
    let libraries = bench.site.host.layout.library_folder();
    let library = fs::canonicalize(root.join(libraries).join("libcuda.so.1")).unwrap();
    let (kept, text) = (fs::read(&library).unwrap(), |path: &Path| fs::read_to_string(path).unwrap());
    let (devices, informed) = (text(&majors), text(&information));
    let again = |path: &Path, bytes: &[u8]| {
        let _ = fs::remove_file(path);
        fs::write(path, bytes).unwrap();
    };
    for what in [
        "Q61: the node is another GPU's",
        "Q61: the node is a file",
        "Q61: the driver's number is gone",
        "Q61: UUID and minor do not belong together",
        "Q62: a library that is none",
        "Q62: a library of somebody else's",
        "Q62: a library that others may write",
        "Q62: a library under another library's name",
        "Q62: a folder that is somebody else's own",
    ] {
        let token = reserved(&bench, &["nvidia0"])?;
        match what {
            "Q61: the node is another GPU's" => {
                fs::remove_file(&node).unwrap();
                make_node(&node, "c", 195, 1)?;
            }
            "Q61: the node is a file" => again(&node, b""),
            "Q61: the driver's number is gone" => {
                let others = devices.lines().filter(|line| !line.starts_with("195 ")).map(|line| format!("{line}\n"));
                again(&majors, others.collect::<String>().as_bytes());
            }
            "Q61: UUID and minor do not belong together" => {
                let swapped = informed.replace("Device Minor: \t 0", "Device Minor: \t 1");
                assert_ne!(swapped, informed);
                again(&information, swapped.as_bytes());
            }
            "Q62: a library that is none" => again(&library, b"#!/bin/sh\n"),
            "Q62: a library of somebody else's" => chown(&library, Some(1000), None).unwrap(),
            "Q62: a library that others may write" => {
                fs::set_permissions(&library, Permissions::from_mode(0o666)).unwrap();
            }
            "Q62: a folder that is somebody else's own" => chown(library.parent().unwrap(), Some(1000), None).unwrap(),
            _ => again(&library, &fs::read("/lib/x86_64-linux-gnu/libc.so.6").unwrap()),
        }
        for (id, spec) in [("token", Spec::new().env("QUILT_GPU_CONTRACT", &token)), ("words", asking.clone())] {
            // Without a driver a number stays what the kernel's list says it is: a new contract may name it.
            if id == "words" && what == "Q61: the driver's number is gone" {
                continue;
            }
            let id = format!("{id}-{}", what.len());
            let bundle = bench.sharing(&id, &spec)?;
            let answer = bench.runc.create(&id, &bundle)?;
            assert!(!answer.ok(), "{what}, {id}: {answer:?}");
            let codes = ["CONTRACT_STALE", "DRIVER_NOT_READY", "GPU_UNAVAILABLE", "UNKNOWN_GPU", "CAPACITY_FULL"];
            assert!(codes.iter().any(|code| answer.stderr.contains(code)), "{what}, {id}: {answer:?}");
            if what.contains("a folder") {
                assert!(answer.stderr.contains("belongs to user 1000, must belong to root"), "{id}: {answer:?}");
            }
            assert_eq!(bench.runc.state(&id)?, None, "{what}");
        }
        let _ = fs::remove_file(&node);
        make_node(&node, "c", 195, 0)?;
        fs::set_permissions(&node, Permissions::from_mode(0o666)).unwrap();
        again(&majors, devices.as_bytes());
        again(&information, informed.as_bytes());
        again(&library, &kept);
        chown(library.parent().unwrap(), Some(0), None).unwrap();
        fs::set_permissions(&library, Permissions::from_mode(0o644)).unwrap();
        bench.site.quilt.cli(&["inventory", "refresh"])?;
        let _ = bench.site.quilt.cli(&["lease", "release", "--token", &token])?;
        let healthy = format!("mended-{}", what.len());
        assert_eq!(bench.see(&healthy, &asking)?.gpus()?, BTreeSet::from([0]), "{what}: mended");
    }
    Ok(())
}

/// Q63, H11: two creates at once bring one token; by the runtime itself (the ledger's own test has a thousand rounds).
#[test]
fn q63_two_creates_and_one_token() -> Result<()> {
    let Some(bench) = Bench::new("q63_two_creates_and_one_token", 1)? else { return Ok(()) };
    for round in 0..20 {
        let token = reserved(&bench, &["nvidia0"])?;
        let spec = Spec::new().env("QUILT_GPU_CONTRACT", &token);
        let ids = [format!("a-{round}"), format!("b-{round}")];
        let bundles = [bench.sharing(&ids[0], &spec)?, bench.sharing(&ids[1], &spec)?];
        let answers: Vec<_> = std::thread::scope(|scope| {
            let start = |n: usize| (&ids[n], &bundles[n]);
            let calls = [start(0), start(1)].map(|(id, bundle)| scope.spawn(|| bench.runc.create(id, bundle)));
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        let (mut won, mut lost) = (0, 0);
        for answer in answers {
            let answer = answer?;
            won += usize::from(answer.ok());
            lost += usize::from(answer.stderr.contains("CONTRACT_UNTRUSTED"));
        }
        assert_eq!((won, lost), (1, 1), "round {round}");
        for id in &ids {
            let _ = bench.runc.delete(id, true)?;
        }
        assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new(), "round {round}");
    }
    Ok(())
}
