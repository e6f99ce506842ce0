//! Programs timed against each other: in turns, in an order that is another one each round, so that whatever else the machine does meets all
//! of them alike. What is compared is always two starts of one round.

use std::process::Command;
use std::time::{Duration, Instant};

use integration::{Result, Used, measured};

/// Does something before or after a start, which is not timed.
type Act<'a> = Box<dyn Fn() -> Result<()> + 'a>;

/// One who is timed.
pub struct Entrant<'a> {
    /// Its name in tables.
    pub name: String,
    /// Makes everything as it was.
    pub before: Act<'a>,
    /// What is timed.
    pub command: Box<dyn Fn() -> Command + 'a>,
    /// Removes what it made.
    pub after: Act<'a>,
}

impl<'a> Entrant<'a> {
    /// An entrant for whom nothing has to be prepared.
    pub fn new(name: impl Into<String>, command: impl Fn() -> Command + 'a) -> Self {
        Self { name: name.into(), before: Box::new(|| Ok(())), command: Box::new(command), after: Box::new(|| Ok(())) }
    }

    /// With something to do before each start.
    #[must_use]
    pub fn before(mut self, act: impl Fn() -> Result<()> + 'a) -> Self {
        self.before = Box::new(act);
        self
    }

    /// With something to do after each start.
    #[must_use]
    pub fn after(mut self, act: impl Fn() -> Result<()> + 'a) -> Self {
        self.after = Box::new(act);
        self
    }
}

/// What the rounds of one race took; the first entrant is what the others are compared with.
pub struct Race {
    /// Names, in the order in which they entered.
    pub names: Vec<String>,
    rounds: Vec<Vec<Used>>,
    /// Share of the starts before which the machine did not come to rest.
    pub restless: f64,
}

/// How long a start waits until nothing else wants a processor.
const REST: Duration = Duration::from_millis(100);

/// Waits until we are the only one who runs; says whether that came to be.
fn rested() -> bool {
    let begin = Instant::now();
    loop {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let running = load.split([' ', '/']).nth(3).and_then(|word| word.parse::<u32>().ok());
        if running.is_none_or(|running| running <= 1) {
            return true;
        }
        if begin.elapsed() > REST {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Times all entrants, round by round.
///
/// # Errors
/// A start fails.
pub fn race(entrants: &[Entrant<'_>], rounds: usize) -> Result<Race> {
    let mut all = Vec::with_capacity(rounds);
    let mut restless = 0;
    // One round more, of which nothing is kept: caches are filled.
    for round in 0..=rounds {
        let mut used: Vec<Option<Used>> = vec![None; entrants.len()];
        for at in order(entrants.len(), round) {
            let (Some(entrant), Some(place)) = (entrants.get(at), used.get_mut(at)) else { continue };
            (entrant.before)()?;
            restless += usize::from(!rested());
            *place = Some(measured(&mut (entrant.command)())?);
            (entrant.after)()?;
        }
        if round > 0 {
            all.push(used.into_iter().flatten().collect());
        }
    }
    let restless = restless as f64 / ((rounds + 1) * entrants.len()).max(1) as f64;
    Ok(Race { names: entrants.iter().map(|entrant| entrant.name.clone()).collect(), rounds: all, restless })
}

/// An order of so many, another one each round: what a start leaves behind (caches, groups that the kernel still takes down) then
/// meets all others alike.
fn order(many: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..many).collect();
    // Knuth's generator: the same orders on every run.
    let mut state = round as u64;
    for last in (1..many).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(last, (state >> 33) as usize % (last + 1));
    }
    order
}

/// The middle of many numbers, and between which it lies with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Middle {
    /// The median.
    pub at: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Middle {
    /// Of these numbers; the interval by their order alone, whatever they are distributed like.
    #[must_use]
    pub fn of(mut numbers: Vec<f64>) -> Self {
        numbers.sort_by(f64::total_cmp);
        let n = numbers.len();
        let half = 0.98 * (n as f64).sqrt();
        let place = |at: f64| numbers.get((at.max(0.0) as usize).min(n.saturating_sub(1))).copied().unwrap_or(f64::NAN);
        let middle = (n as f64 - 1.0) / 2.0;
        Self { at: place(middle), low: place((middle - half).floor()), high: place((middle + half).ceil()) }
    }
}

impl Race {
    /// The rounds of one half alone: what two runs would say.
    #[must_use]
    pub fn half(&self, second: bool) -> Self {
        let (first, last) = self.rounds.split_at(self.rounds.len() / 2);
        let rounds = if second { last } else { first }.to_vec();
        Self { names: self.names.clone(), rounds, restless: self.restless }
    }

    /// How many rounds there were.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.rounds.len()
    }

    fn middle(&self, number: impl Fn(&[Used]) -> Option<f64>) -> Middle {
        Middle::of(self.rounds.iter().filter_map(|round| number(round)).collect())
    }

    /// Wall time of an entrant, in ms.
    #[must_use]
    pub fn wall(&self, at: usize) -> Middle {
        self.middle(|round| round.get(at).map(|used| used.wall.as_secs_f64() * 1e3))
    }

    /// Processor time of an entrant, in ms.
    #[must_use]
    pub fn processor(&self, at: usize) -> Middle {
        self.middle(|round| round.get(at).map(|used| used.processor.as_secs_f64() * 1e3))
    }

    /// Wall time of an entrant over that of another in the same round, in ms.
    #[must_use]
    pub fn over(&self, at: usize, base: usize) -> Middle {
        self.middle(|round| Some((round.get(at)?.wall.as_secs_f64() - round.get(base)?.wall.as_secs_f64()) * 1e3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_lies_between_its_ends() {
        let middle = Middle::of((0..101).map(f64::from).rev().collect());
        assert_eq!(middle, Middle { at: 50.0, low: 40.0, high: 60.0 });
        assert_eq!(Middle::of(vec![7.0]), Middle { at: 7.0, low: 7.0, high: 7.0 });
    }

    #[test]
    fn nobody_always_comes_after_the_same() {
        let before = |round: usize, who: usize| {
            let order = order(9, round);
            order.iter().position(|at| *at == who).and_then(|at| order.get(at.wrapping_sub(1)).copied())
        };
        for who in 0..9 {
            let all: std::collections::BTreeSet<_> = (0..100).map(|round| before(round, who)).collect();
            assert_eq!(all.len(), 9, "{who}: the eight others, and nobody: {all:?}");
        }
    }

    #[test]
    fn pairs_are_compared_within_their_round() {
        let turns = std::cell::RefCell::new(Vec::new());
        let entrant = |name: &'static str| {
            let turns = &turns;
            Entrant::new(name, || Command::new("true")).before(move || {
                turns.borrow_mut().push(name);
                Ok(())
            })
        };
        let race = race(&[entrant("a"), entrant("b"), entrant("c")], 2).unwrap();
        let mut rounds: Vec<Vec<&str>> = turns.borrow().chunks(3).map(<[&str]>::to_vec).collect();
        rounds.iter_mut().for_each(|round| round.sort_unstable());
        assert_eq!(rounds, vec![vec!["a", "b", "c"]; 3]);
        assert_eq!((race.rounds(), race.names.len()), (2, 3));
        assert!(race.wall(0).at > 0.0 && race.over(1, 1).at == 0.0);
    }
}
