//! How the GPUs that could answer a request stand, in numbers: a tenant reads these.

use std::fmt;

use contract::Code;
use contract::gpu::State;

use super::partitions::One;

/// Numbers of GPUs, or of instances.
pub(super) struct Standing {
    present: usize,
    free: usize,
    taken: usize,
    /// GPUs that are granted by their instances only.
    cut: usize,
    /// Those that cannot be granted, by state.
    unusable: Vec<(State, usize)>,
}

impl Standing {
    pub(super) fn of(gpus: &[One<'_>], taken: &dyn Fn(&str) -> bool) -> Self {
        let mut standing = Self { present: gpus.len(), free: 0, taken: 0, cut: 0, unusable: Vec::new() };
        for gpu in gpus {
            match gpu.why() {
                None if !gpu.usable() => standing.cut += 1,
                None if taken(&gpu.slot()) => standing.taken += 1,
                None => standing.free += 1,
                Some(why) => {
                    match standing.unusable.iter_mut().find(|(state, _)| state.in_words() == why.state.in_words()) {
                        Some((_, number)) => *number += 1,
                        None => standing.unusable.push((why.state, 1)),
                    }
                }
            }
        }
        standing
    }

    /// Why there are not so many free ones: code, rule and help of the refusal. Nothing when there are.
    pub(super) fn lacks(&self, wanted: usize) -> Option<(Code, &'static str, &'static str)> {
        if wanted <= self.free {
            return None;
        }
        let mend = match self.cut {
            0 => "try again when the node's GPUs are in order, or ask for fewer",
            _ => "ask for MIG instances by profile, or for fewer",
        };
        let rule = match self.unusable.as_slice() {
            [] => "mig-enabled",
            [(state, _)] if self.cut == 0 => state.rule(),
            _ => "gpu-unavailable",
        };
        // What holders give back is waited for and taken from the dead: it comes first, whatever else is the matter.
        let had = self.free + self.taken;
        Some(if wanted <= had {
            (Code::CapacityFull, "capacity", "try again when another container has ended, or ask for fewer")
        } else if wanted <= had + self.number(State::awaits_driver) {
            (Code::DriverNotReady, rule, mend)
        } else {
            (Code::GpuUnavailable, rule, mend)
        })
    }

    /// Whether there are so many free ones once what may be over is over.
    pub(super) fn may_do(&self, wanted: usize) -> bool {
        wanted <= self.free + self.number(State::may_be_over)
    }

    fn number(&self, is: fn(State) -> bool) -> usize {
        self.unusable.iter().filter(|(state, _)| is(*state)).map(|(_, number)| number).sum()
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} present, {} free", self.present, self.free)?;
        let mut between = ": ";
        for (state, number) in &self.unusable {
            write!(f, "{between}{number} {}", state.in_words())?;
            between = ", ";
        }
        if self.cut > 0 {
            write!(f, "{between}{} in MIG mode", self.cut)?;
            between = ", ";
        }
        if self.taken > 0 {
            write!(f, "{between}{} taken", self.taken)?;
        }
        Ok(())
    }
}
