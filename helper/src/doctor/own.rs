//! Our own side: configuration, programs, folders, ledger, contracts, the audit log.

use contract::config::{Unwritable, Verify};
use contract::inventory::Filter;

use super::facts::{Folder, Stored};
use super::{Facts, Finding};

/// Free bytes below which the log will not be written much longer, and below which that is near.
const FULL: u64 = 16 << 20;
const NEAR: u64 = 256 << 20;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    [programs(facts), units(facts), configuration(facts), folders(facts), ledger(facts), log(facts)].concat()
}

fn programs(facts: &Facts) -> Vec<Finding> {
    let mut list = Vec::new();
    if !facts.root {
        let cause = "most of what matters is readable by root alone: findings may be missing";
        list.push(Finding::warns("not-root", cause, "effective user id", "run it as root"));
    }
    if let Err(why) = &facts.low_level {
        let mend = "install runc or crun, and make the link: ln -sfn /usr/sbin/runc /etc/quilt-gpu/low-level-runtime";
        list.push(Finding::stops("low-level-missing", "there is no low-level runtime to make containers", why, mend));
    }
    for (code, program) in [("hook-missing", &facts.hook), ("helper-missing", &facts.helper)] {
        if !program.exists() {
            let cause = "a program of ours is not where the runtime looks for it";
            let mend = "install the whole package again, or name it in [paths] of the configuration";
            list.push(Finding::stops(code, cause, program.display().to_string(), mend));
        }
    }
    let Stored::There(stored) = &facts.stored else { return list };
    if let Some(low_level) = &stored.low_level {
        let why = low_level.reason.clone().unwrap_or_default();
        match low_level.filter {
            Filter::Enforced => {}
            Filter::NotEnforced => {
                let cause =
                    format!("device filters of {} do not hold here, so no GPU is granted: {why}", low_level.path);
                let mend = "use another low-level runtime, or a newer one; then quilt-gpu inventory refresh";
                list.push(Finding::stops("filter-not-enforced", cause, &facts.inventory_path, mend));
            }
            Filter::NotTried => {
                let cause = format!("whether device filters of {} hold could not be tried: {why}", low_level.path);
                let refresh = "quilt-gpu inventory refresh";
                list.push(Finding::warns("filter-not-tried", cause, &facts.inventory_path, refresh));
            }
        }
    }
    list
}

fn units(facts: &Facts) -> Vec<Finding> {
    let mut list = Vec::new();
    for unit in &facts.units {
        let name = unit.name.as_str();
        let is_broker = name.ends_with(".socket");
        // Nobody waits for a broker that may give nobody anything.
        if is_broker && facts.config.broker.allow.is_empty() {
            continue;
        }
        if let Some(program) = unit.program.as_ref().filter(|path| !facts.exists(path)) {
            let cause = format!("{name} is to start a program that is not there");
            let mend = "install the package again";
            list.push(Finding::warns("unit-program-missing", cause, format!("{}: {program}", unit.path), mend));
        }
        if !unit.enabled {
            let follows = match is_broker {
                true => "users without root whom the configuration allows GPUs find nobody to ask",
                false => "after a boot engines start containers before the node's GPUs are known",
            };
            let cause = format!("nothing starts {name}: {follows}");
            list.push(Finding::warns(
                "unit-not-enabled",
                cause,
                unit.path.as_str(),
                format!("systemctl enable --now {name}"),
            ));
        }
    }
    list
}

fn configuration(facts: &Facts) -> Vec<Finding> {
    let mut list = Vec::new();
    let path = facts.config_path.as_str();
    if let Some((message, help)) = &facts.config_problem {
        list.push(Finding::stops("config", message, path, help));
    }
    if facts.config.policy.verify == Verify::Off {
        let cause = "created containers are not checked against their contracts: that is for benchmarks only";
        list.push(Finding::stops("verify-off", cause, path, "set verify = \"always\" in [policy]"));
    }
    list
}

fn folders(facts: &Facts) -> Vec<Finding> {
    let mut list = Vec::new();
    for (code, folder) in [("state-folder", &facts.state), ("log-folder", &facts.log)] {
        let Folder { path, mode, uid, .. } = folder;
        if folder.is_there && (!folder.is_dir || mode & 0o022 != 0 || *uid != 0) {
            let cause = "a folder of ours is not root's alone to write, so nothing in it is trusted";
            let evidence = format!("{path}: owner {uid}, mode {mode:04o}");
            list.push(Finding::stops(code, cause, evidence, format!("chown root: {path} && chmod 0700 {path}")));
        }
    }
    let state = &facts.state;
    if state.is_there && !state.is_tmpfs {
        let cause =
            "the state folder is no tmpfs: leases outlive a loss of power half-written, and creates wait for a disk";
        let mend = "put it below /run: [paths] state_dir";
        list.push(Finding::warns("state-on-disk", cause, &state.path, mend));
    }
    for folder in [&facts.state, &facts.log] {
        let evidence = format!("{}: {} MiB free", folder.path, folder.free >> 20);
        match folder.free {
            free if free >= NEAR || !folder.is_there => {}
            free if free < FULL && facts.config.audit.unwritable == Unwritable::Refuse => {
                let cause = "the file system is full, and a container with a GPU that cannot be recorded is refused";
                list.push(Finding::stops("disk-full", cause, evidence, format!("make room in {}", folder.path)));
            }
            _ => {
                let cause = "the file system is nearly full";
                list.push(Finding::warns("disk-low", cause, evidence, format!("make room in {}", folder.path)));
            }
        }
    }
    list
}

fn ledger(facts: &Facts) -> Vec<Finding> {
    let mut list = Vec::new();
    if let Err(why) = &facts.contracts {
        let mend = "look at the state folder's permissions";
        list.push(Finding::stops("ledger", "the ledger cannot be read", why, mend));
    }
    for (key, why) in facts.contracts.iter().flatten() {
        let cause = format!("a contract in force does not count or does not hold any more: {why}");
        let mend = format!("quilt-gpu contract verify {key}; remove the container that has it, and start it anew");
        list.push(Finding::warns("contract", cause, format!("{}/contracts/{key}.json", facts.state.path), mend));
    }
    list
}

fn log(facts: &Facts) -> Vec<Finding> {
    let verify = "quilt-gpu audit --verify-log";
    match &facts.log_check {
        Err(why) => vec![Finding::warns("log-unreadable", "the audit log cannot be read", why, verify)],
        Ok(found) => {
            let mut list = Vec::new();
            if let Some(bad) = &found.bad {
                let cause = format!("the audit log is not what was written: {}", bad.why);
                list.push(Finding::warns("log-changed", cause, format!("{}, line {}", bad.file, bad.line), verify));
            }
            if found.lost > 0 {
                let cause = format!("{} records of the audit log are lost", found.lost);
                list.push(Finding::warns("log-lost", cause, &facts.log.path, verify));
            }
            list
        }
    }
}
