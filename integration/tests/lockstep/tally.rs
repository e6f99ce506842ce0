//! What happened in many sequences: a run in which something never happened shows nothing about it.

use std::fmt;

#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) steps: usize,
    /// Creates that succeeded.
    pub(crate) granted: usize,
    /// Creates that were killed, or whose low-level runtime was, and left a container.
    pub(crate) orphans: usize,
    /// Creates that were killed and left none.
    pub(crate) killed: usize,
    /// Creates that took back what they had taken, because the low-level runtime died.
    pub(crate) undone: usize,
    pub(crate) refused: usize,
    /// Refused because the node became another meanwhile.
    pub(crate) overtaken: usize,
    pub(crate) deleted: usize,
    /// Granted what another has too.
    pub(crate) shared: usize,
    /// Granted after others had ended.
    pub(crate) waited: usize,
    pub(crate) reserved: usize,
    pub(crate) redeemed: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in self.counts_mut().into_iter().zip(other.counts()) {
            *sum += more.1;
        }
    }

    /// What never happened.
    pub(crate) fn never(&self) -> Vec<&'static str> {
        self.counts().into_iter().filter(|(_, many)| *many == 0).map(|(name, _)| name).collect()
    }

    fn counts(&self) -> [(&'static str, usize); 12] {
        let Self { steps, granted, orphans, killed, undone, refused, overtaken, deleted, .. } = *self;
        let Self { shared, waited, reserved, redeemed, .. } = *self;
        [
            ("steps", steps),
            ("granted", granted),
            ("killed and made", orphans),
            ("killed and not made", killed),
            ("undone", undone),
            ("refused", refused),
            ("refused as overtaken", overtaken),
            ("deleted", deleted),
            ("shared", shared),
            ("waited", waited),
            ("reserved", reserved),
            ("redeemed", redeemed),
        ]
    }

    fn counts_mut(&mut self) -> [&mut usize; 12] {
        let Self { steps, granted, orphans, killed, undone, refused, overtaken, deleted, .. } = self;
        let Self { shared, waited, reserved, redeemed, .. } = self;
        [steps, granted, orphans, killed, undone, refused, overtaken, deleted, shared, waited, reserved, redeemed]
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.counts().iter().map(|(name, many)| format!("{many} {name}")).collect();
        f.write_str(&counts.join(", "))
    }
}
