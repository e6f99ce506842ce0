//! Model and real files in lockstep: random sequences of create, delete, crash and change of the node, of waiting, sharing and
//! reservations. After every step no GPU has two living holders who do not share it, nor one and a reservation for another, every
//! living holder has its leases, everything else can be had again, and what was granted is what the node is.
//!
//! `QUILT_LOCKSTEP=1000` plays so many sequences; `QUILT_LOCKSTEP_SEED=7` plays that one alone, and says its steps.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod model;
mod place;
mod play;
mod random;
mod tally;
mod truth;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use integration::{Error, Result, root_for, say};

use place::Place;
use play::Play;
use random::{Random, Step};
use tally::Tally;

/// Steps of a sequence.
const STEPS: usize = 12;
const SEQUENCES: u64 = 200;
/// Calls wait for the disk and for each other's children: two players keep two processors busy.
const PLAYERS: u64 = 2;

#[test]
fn random_sequences() -> Result<()> {
    if !root_for("random_sequences") {
        return Ok(());
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let begin = Instant::now();
    if let Some(seed) = number("QUILT_LOCKSTEP_SEED") {
        let mut tally = Tally::default();
        let told = played(&mut Place::new(&name(0))?, seed, &mut tally);
        say(format_args!("seed {seed}: {tally}\n{}", lines(&Random::new(seed).steps(STEPS))));
        return told;
    }
    let many = number("QUILT_LOCKSTEP").unwrap_or(SEQUENCES);
    let (next, all, failed) = (AtomicU64::new(0), Mutex::new(Tally::default()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for player in 0..PLAYERS {
            let (next, all, failed) = (&next, &all, &failed);
            scope.spawn(move || {
                let mut tally = Tally::default();
                let told = many_played(player, many, next, &mut tally);
                all.lock().unwrap().add(&tally);
                if let Err(cause) = told {
                    // The other player stops too.
                    next.store(many, Ordering::Relaxed);
                    failed.lock().unwrap().push(cause.to_string());
                }
            });
        }
    });
    let tally = all.into_inner().unwrap();
    say(format_args!("{many} sequences in {:.1} s: {tally}", begin.elapsed().as_secs_f64()));
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    if many >= SEQUENCES {
        assert!(tally.never().is_empty(), "never: {:?}", tally.never());
    }
    Ok(())
}

fn name(player: u64) -> String {
    format!("{}-{player}", std::process::id())
}

fn many_played(player: u64, many: u64, next: &AtomicU64, tally: &mut Tally) -> Result<()> {
    let mut place = Place::new(&name(player))?;
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= many {
            return Ok(());
        }
        played(&mut place, seed, tally)?;
    }
}

/// One sequence; the first step after which something is not true, with those before it.
fn played(place: &mut Place, seed: u64, tally: &mut Tally) -> Result<()> {
    let steps = Random::new(seed).steps(STEPS);
    let mut play = Play::new(place, tally)?;
    for (at, step) in steps.iter().enumerate() {
        play.step(step).map_err(|cause| {
            let before = lines(&steps[..at]);
            Error::new(format!("seed {seed}, step {at}, {step:?}: {cause}; before it:\n{before}"))
        })?;
    }
    play.end().map_err(|cause| Error::new(format!("seed {seed}, at the end: {cause}; steps:\n{}", lines(&steps))))
}

fn lines(steps: &[Step]) -> String {
    let lines: Vec<String> = steps.iter().map(|step| format!("    {step:?}")).collect();
    lines.join("\n")
}
