//! Whoever is behind quilt-gpu-runtime cannot tell that it was there: started from any state, the low-level runtime is
//! what it would be without us, and whoever started it sees the same end and the same output.
//!
//! The states are random (`state`), the low-level runtime is the stub, which writes down all that it can see of itself;
//! `real` is the same over runc, for what only a container shows. `QUILT_TRANSPARENCY=10000` tries so many states,
//! `QUILT_TRANSPARENCY_SEED=7` that one alone.
#![allow(clippy::unwrap_used)]

mod place;
mod real;
mod state;

use integration::{Result, root_for, say};

use place::{Case, Place};
use state::{Random, state};

const STATES: u64 = 220;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn nothing_that_is_handed_on_differs() -> Result<()> {
    if !root_for("nothing_that_is_handed_on_differs") {
        return Ok(());
    }
    let place = Place::new()?;
    let named = number("QUILT_TRANSPARENCY_SEED");
    let seeds = match named {
        Some(seed) => seed..seed + 1,
        None => 0..number("QUILT_TRANSPARENCY").unwrap_or(STATES),
    };
    let mut wrong = Vec::new();
    for seed in seeds.clone() {
        let mut random = Random(seed);
        let case = Case::ALL[(seed % Case::ALL.len() as u64) as usize];
        let call = place.call(case, &mut random)?;
        let state = state(&mut random);
        if named.is_some() {
            say(format_args!("{case:?}: {state:#}"));
        }
        if let Some(difference) = place.compare(&call, &state)? {
            wrong.push(format!("QUILT_TRANSPARENCY_SEED={seed}, {case:?}: {difference}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    say(format_args!("{} states, {} kinds of calls; low-level runtime: the stub", seeds.count(), Case::ALL.len()));
    Ok(())
}

/// The comparison can fail: two starts without us, from states that differ in one part.
#[test]
fn each_part_of_a_state_is_seen() -> Result<()> {
    if !root_for("each_part_of_a_state_is_seen") {
        return Ok(());
    }
    let place = Place::new()?;
    let mut random = Random(1);
    let call = place.call(Case::Pass, &mut random)?;
    for _ in 0..3 {
        let one = state(&mut random);
        assert_eq!(place.differ(&call, &one, &one)?, None);
        for (part, other) in state::others(&one) {
            assert!(place.differ(&call, &one, &other)?.is_some(), "{part} is not seen: {one} and {other}");
        }
    }
    Ok(())
}
