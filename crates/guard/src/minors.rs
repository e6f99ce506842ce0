//! Which device numbers must be tried to know whether any GPU is open.

use crate::numbers::Numbers;
use crate::rules::MAX_MINOR;

/// Most minors that are tried of a major, before it counts as open.
const MOST: usize = 1 << 14;

/// Minors that stand for all: every number that one was compared with, and its neighbours. Two that lie between the same
/// numbers here are treated alike, as long as nothing but comparisons tells minors apart.
pub(crate) struct Minors {
    known: Vec<u32>,
    next: usize,
}

impl Minors {
    pub(crate) fn new(granted: &[(u32, u32)]) -> Self {
        let mut minors = Self { known: vec![0, MAX_MINOR], next: 0 };
        granted.iter().for_each(|node| minors.compared(node.1));
        minors
    }

    /// Notes that minors are compared with this number.
    pub(crate) fn compared(&mut self, number: u32) {
        for minor in [number.saturating_sub(1), number, number.saturating_add(1)] {
            if minor <= MAX_MINOR && !self.known.contains(&minor) {
                self.known.push(minor);
            }
        }
    }
}

/// GPU numbers to try where nothing tells what minors are compared with: a version 1 list that allows everything has no
/// other exceptions than those that were made by name, so a few of each major stand for all.
#[must_use]
pub fn stand_ins(numbers: &Numbers) -> Vec<(u32, u32)> {
    let (whole, exact) = numbers.parts();
    let few = |&major: &u32| [0, 1, 2, 254, 255, MAX_MINOR].map(|minor| (major, minor));
    whole.iter().flat_map(few).chain(exact.iter().copied()).collect()
}

/// A GPU number outside `granted` for which `open` is true. It is told the minors to come, and notes with what it compares;
/// `named` does so beforehand, by major.
pub(crate) fn find(
    numbers: &Numbers,
    granted: &[(u32, u32)],
    named: &dyn Fn(u32, &mut Minors),
    open: &dyn Fn((u32, u32), &mut Minors) -> bool,
) -> Option<(u32, u32)> {
    let (whole, exact) = numbers.parts();
    for &major in whole {
        let mut minors = Minors::new(granted);
        named(major, &mut minors);
        while let Some(&minor) = minors.known.get(minors.next) {
            minors.next += 1;
            let device = (major, minor);
            if minors.known.len() > MOST || (open(device, &mut minors) && !granted.contains(&device)) {
                return Some(device);
            }
        }
    }
    exact.iter().copied().find(|device| !granted.contains(device) && open(*device, &mut Minors::new(&[])))
}
