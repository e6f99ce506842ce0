//! A few thousand inputs that nobody wrote, the same in every run.

use fuzz::TARGETS;

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.next() % most).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

#[test]
fn made_up_specs_hold() {
    let runs = std::env::var("FUZZ_RANDOM").ok().and_then(|runs| runs.parse().ok()).unwrap_or(3000);
    let (_, guard) = TARGETS.iter().find(|(name, _)| *name == "guard").unwrap();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..runs {
        let bytes = random.bytes(160);
        let outcome = std::panic::catch_unwind(|| guard(&bytes));
        assert!(outcome.is_ok(), "guard does not hold for {bytes:?}");
    }
}
