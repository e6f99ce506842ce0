//! What happens to containers with GPUs in the course of their lives.

use std::collections::BTreeSet;

use integration::engine::{Ask, Through};
use integration::{Error, Ran, Result, must};

use crate::rows::{GPUS, Yard, exactly, gpus};

/// A process that is added sees the container's GPU and the contract's variables.
pub(super) fn exec(yard: &mut Yard) -> Result<()> {
    let ask = yard.asking(yard.staying("exec"), "ids", "nvidia1")?;
    let seen = yard.held(&ask)?;
    let has = gpus(&seen)?;
    must(has == BTreeSet::from([1]), format_args!("nvidia1 was asked for, exec sees {has:?}"))?;
    let uuid = yard.site.host.by_minor(1).map(|gpu| gpu.uuid.clone());
    must(seen.env("NVIDIA_VISIBLE_DEVICES") == uuid.as_deref(), "exec does not see the contract's variables")?;
    let ended = yard.engine.exec("exec", &["sh", "-c", "echo out; exit 3"])?;
    must(ended.status.code() == Some(3) && ended.stdout == "out\n", format_args!("exec: {ended:?}"))?;
    let staying = yard.staying("exec-none");
    exactly(&yard.held(&staying)?, 0)?;
    Ok(())
}

/// A container that is restarted has its GPU again, also when others have come.
pub(super) fn restart(yard: &mut Yard) -> Result<()> {
    let ask = yard.asking(yard.staying("first"), "count", "1")?;
    let first = exactly(&yard.held(&ask)?, 1)?;
    let ask = yard.asking(yard.staying("second"), "count", "1")?;
    let second = exactly(&yard.held(&ask)?, 1)?;
    yard.engine.restart("first")?.checked()?;
    let now = exactly(&yard.look("first")?, 1)?;
    must(now == first && first != second, format_args!("first had {first:?}, has {now:?}; second has {second:?}"))
}

pub(super) fn stop(yard: &mut Yard) -> Result<()> {
    let ask = yard.asking(yard.staying("stopped"), "count", &GPUS.to_string())?;
    exactly(&yard.held(&ask)?, GPUS)?;
    yard.engine.stop("stopped")?.checked()?;
    yard.site.wait_no_leases()?;
    let ask = yard.asking(yard.probing("next"), "count", &GPUS.to_string())?;
    exactly(&yard.see(&ask)?, GPUS)?;
    Ok(())
}

/// A command that does not exist: the user is told what the runtime below tells him, and the GPU is free.
pub(super) fn failed_create(yard: &mut Yard) -> Result<()> {
    let missing = Ask::new("missing", "deb:1", ["no-such-program"]);
    let control = yard.engine.run(&Ask { through: Through::Plain, ..missing.clone() })?;
    let ran = yard.engine.run(&yard.asking(missing, "count", "1")?)?;
    let told = |ran: &Ran| ran.stderr.contains("no-such-program");
    must(!ran.ok() && told(&ran) == told(&control), format_args!("told: {ran:?}, without quilt-gpu: {control:?}"))?;
    yard.site.wait_no_leases()?;
    exactly(&yard.see(&yard.asking(yard.probing("next"), "count", "1")?)?, 1)?;
    Ok(())
}

/// Another share of the CPUs: neither a GPU more nor one less, for whoever has one and whoever has none.
pub(super) fn update(yard: &mut Yard) -> Result<()> {
    let ask = yard.asking(yard.staying("updated"), "ids", "nvidia0")?;
    yard.held(&ask)?;
    let none = yard.staying("updated-none");
    yard.held(&none)?;
    for name in ["updated", "updated-none"] {
        let Some(answer) = yard.engine.update(name) else {
            return must(false, "this engine has no such call: it belongs to the gaps in matrix.txt");
        };
        answer?.checked()?;
    }
    let has = gpus(&yard.look("updated")?)?;
    must(has == BTreeSet::from([0]), format_args!("nvidia0 was granted, after the update it has {has:?}"))?;
    exactly(&yard.look("updated-none")?, 0)?;
    Ok(())
}

/// Twice as many containers as GPUs at the same instant: each GPU once, and everybody else is told why not.
pub(super) fn parallel(yard: &mut Yard) -> Result<()> {
    let names: Vec<String> = (0..2 * GPUS).map(|n| format!("parallel-{n}")).collect();
    let mut asks = Vec::new();
    for name in &names {
        asks.push(yard.asking(yard.staying(name), "count", "1")?);
    }
    let engine = &yard.engine;
    let answers: Vec<_> = std::thread::scope(|scope| {
        let calls: Vec<_> = asks.iter().map(|ask| scope.spawn(|| engine.start(ask))).collect();
        calls.into_iter().map(|call| call.join()).collect()
    });
    let (mut given, mut told) = (Vec::new(), 0);
    for (name, answer) in names.iter().zip(answers) {
        let ran = answer.map_err(|_| Error::new(format!("the call for {name} panicked")))??;
        if ran.ok() {
            yard.keep(name);
            given.extend(exactly(&yard.look(name)?, 1)?);
        } else {
            must(ran.stderr.contains("CAPACITY_FULL"), format_args!("{name} was told: {ran:?}"))?;
            let _ = yard.engine.remove(name);
            told += 1;
        }
    }
    let all: BTreeSet<u64> = given.iter().copied().collect();
    must(given.len() == GPUS && all.len() == GPUS, format_args!("GPUs given: {given:?}, {told} refused"))
}

/// The daemon dies and comes back while a container lives: it keeps its GPU, and nobody else gets it.
pub(super) fn engine_killed(yard: &mut Yard) -> Result<()> {
    let ask = yard.asking(yard.staying("survivor"), "ids", "nvidia3")?;
    let had = gpus(&yard.held(&ask)?)?;
    match yard.engine.crash() {
        Some(crashed) => crashed?,
        None => return must(false, "this engine has no daemon: it belongs to the gaps in matrix.txt"),
    }
    let leases = yard.site.leases()?;
    must(leases.len() == 1, format_args!("after the crash: {leases:?}"))?;
    let ask = yard.asking(yard.probing("thief"), "ids", "nvidia3")?;
    let thief = yard.engine.run(&ask)?;
    must(!thief.ok() && thief.stderr.contains("CAPACITY_FULL"), format_args!("the thief: {thief:?}"))?;
    let has = gpus(&yard.look("survivor")?)?;
    must(has == had, format_args!("it had {had:?}, now it has {has:?}"))?;
    yard.remove("survivor")?;
    yard.site.wait_no_leases()?;
    exactly(&yard.see(&ask)?, 1)?;
    Ok(())
}
