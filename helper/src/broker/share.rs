//! Everybody's share of the broker: so many connections at once, and so many questions and records of refusals in a while. Pure,
//! but for the mutex.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use contract::key::Key;
use contract::{Code, Refusal};

/// Connections at once, of all and of one user.
const MOST: usize = 128;
const MOST_OF_ONE: usize = 8;
/// More connections for users who have none open: who holds many keeps nobody out.
const MOST_FIRST: usize = 128;
/// Questions that a user may have saved up, and how long each takes to come back. A container asks three.
const SAVED: u32 = 60;
const EVERY: Duration = Duration::from_millis(500);
/// Records of refusals that a user may have saved up, and how long each takes to come back: 70 in an hour. The node's log is
/// bounded, and users must not push out of it what others did.
const RECORDS: u32 = 10;
const EVERY_RECORD: Duration = Duration::from_secs(60);
/// Most users that are remembered; those who ask nothing are forgotten first.
const MOST_USERS: usize = 4096;

/// What a user has used.
struct Used {
    open: usize,
    questions: Saved,
    records: Saved,
    /// Which container's refusal was recorded last, by which rule, and when; and how many were not since.
    last: Option<(Key, &'static str, Instant)>,
    left_out: u32,
}

impl Used {
    fn nothing(now: Instant) -> Self {
        let questions = Saved { left: SAVED, at: now, most: SAVED, every: EVERY };
        let records = Saved { left: RECORDS, at: now, most: RECORDS, every: EVERY_RECORD };
        Self { open: 0, questions, records, last: None, left_out: 0 }
    }
}

/// What is left of something that comes back with time, at a time.
struct Saved {
    left: u32,
    at: Instant,
    most: u32,
    every: Duration,
}

impl Saved {
    fn refilled(&mut self, now: Instant) -> u32 {
        let came = now.saturating_duration_since(self.at).as_millis() / self.every.as_millis();
        let came = u32::try_from(came).unwrap_or(self.most).min(self.most);
        self.left = self.left.saturating_add(came).min(self.most);
        // The begun part of one counts on, or who asks often would get fewer back.
        self.at = if self.left == self.most { now } else { self.at + self.every * came };
        self.left
    }
}

/// What all have used.
#[derive(Default)]
pub(crate) struct Shares {
    users: HashMap<u32, Used>,
    open: usize,
}

impl Shares {
    /// One more connection of a user.
    ///
    /// # Errors
    /// It is more than their share, or than all can have.
    pub(crate) fn take(&mut self, uid: u32, now: Instant) -> Result<(), Refusal> {
        let busy = |message: &str| Refusal::new(Code::CapacityFull, "broker-busy", message, "try again in a moment");
        if self.users.len() >= MOST_USERS && !self.users.contains_key(&uid) {
            self.users.retain(|_, used| {
                used.questions.refilled(now) < SAVED || used.records.refilled(now) < RECORDS || used.open > 0
            });
            if self.users.len() >= MOST_USERS {
                return Err(busy("too many users ask the broker"));
            }
        }
        let used = self.users.entry(uid).or_insert_with(|| Used::nothing(now));
        if used.open >= MOST_OF_ONE || used.questions.refilled(now) == 0 {
            return Err(busy("this user asks the broker too much at once"));
        }
        if self.open >= if used.open == 0 { MOST + MOST_FIRST } else { MOST } {
            return Err(busy("too much is asked of the broker at once"));
        }
        (used.open, used.questions.left, self.open) = (used.open + 1, used.questions.left - 1, self.open + 1);
        Ok(())
    }

    /// Whether a refusal is worth a record, and how many of this user's were not since the last one: who waits for a GPU asks
    /// every second, and is refused by the same rule until there is one.
    fn records(&mut self, uid: u32, key: &Key, rule: &'static str, now: Instant) -> Option<u32> {
        let used = self.users.entry(uid).or_insert_with(|| Used::nothing(now));
        let again = used.last.as_ref().is_some_and(|(last, by, at)| {
            last == key && *by == rule && now.saturating_duration_since(*at) < EVERY_RECORD
        });
        if again || used.records.refilled(now) == 0 {
            used.left_out = used.left_out.saturating_add(1);
            return None;
        }
        used.records.left -= 1;
        used.last = Some((key.clone(), rule, now));
        Some(std::mem::take(&mut used.left_out))
    }

    fn give_back(&mut self, uid: u32) {
        self.open = self.open.saturating_sub(1);
        if let Some(used) = self.users.get_mut(&uid) {
            used.open = used.open.saturating_sub(1);
        }
    }
}

/// A connection that counts until it is dropped.
pub(crate) struct Taken {
    pub(crate) shares: Arc<Mutex<Shares>>,
    pub(crate) uid: u32,
}

impl Taken {
    /// Whether a refusal of this user's is recorded, with the number of those that were not.
    pub(crate) fn records(&self, key: &Key, refusal: &Refusal) -> Option<u32> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        shares.records(self.uid, key, refusal.rule, Instant::now())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner).give_back(self.uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_their_share() {
        let (mut shares, start) = (Shares::default(), Instant::now());
        let took = |shares: &mut Shares, uid, many| (0..many).filter(|_| shares.take(uid, start).is_ok()).count();
        assert_eq!(took(&mut shares, 1, 100), MOST_OF_ONE);
        assert_eq!(took(&mut shares, 2, 1), 1, "another user is not kept out by the first");
        let all: usize = (3..100).map(|uid| took(&mut shares, uid, 100)).sum();
        let first = (3..100).len() - (MOST - MOST_OF_ONE - 1).div_ceil(MOST_OF_ONE);
        assert_eq!(all, MOST - MOST_OF_ONE - 1 + first, "when all is taken, one for each who has none");
        assert_eq!(took(&mut shares, 200, 100), 1);
        let more = MOST + MOST_FIRST - shares.open;
        assert_eq!((300..900).map(|uid| took(&mut shares, uid, 1)).sum::<usize>(), more);
        assert_eq!(took(&mut shares, 200, 1), 0);
        shares.give_back(1);
        assert_eq!(took(&mut shares, 900, 1), 1);
    }

    #[test]
    fn questions_come_back_with_time() {
        let (mut shares, start) = (Shares::default(), Instant::now());
        let mut ask = |at| shares.take(1, at).map(|()| shares.give_back(1)).is_ok();
        assert_eq!((0..SAVED + 5).filter(|_| ask(start)).count(), SAVED as usize);
        assert!(!ask(start + EVERY / 2) && ask(start + EVERY) && !ask(start + EVERY));
        let often = (0..SAVED).filter(|turn| ask(start + EVERY + EVERY * 3 / 4 * (*turn + 1))).count();
        assert_eq!(often, SAVED as usize * 3 / 4, "who asks four times while three come back gets three");
        let later = start + EVERY * SAVED * 2;
        assert_eq!((0..SAVED + 5).filter(|_| ask(later)).count(), SAVED as usize);
    }

    #[test]
    fn a_user_fills_no_log_with_refusals() {
        let (mut shares, start) = (Shares::default(), Instant::now());
        let key = |number: u32| Key::of("", &number.to_string());
        let second = Duration::from_secs(1);
        // One that waits is one record a minute; another rule, or another container, is another refusal.
        let waited: Vec<_> =
            (0..90).filter_map(|at| shares.records(1, &key(1), "capacity", start + second * at)).collect();
        assert_eq!(waited, [0, 59]);
        let at = start + second * 90;
        assert_eq!(shares.records(1, &key(1), "owner-ceiling", at), Some(29));
        assert_eq!(shares.records(1, &key(2), "owner-ceiling", at), Some(0));
        // Whatever is asked: so many in an hour.
        let hour = (0..7200).filter(|n| shares.records(2, &key(*n), "capacity", start + EVERY * *n).is_some()).count();
        assert_eq!(hour, (RECORDS + 59) as usize);
        assert_eq!(shares.records(3, &key(1), "capacity", start), Some(0), "another user has records of their own");
    }

    #[test]
    fn users_who_ask_nothing_are_forgotten() {
        let (mut shares, start) = (Shares::default(), Instant::now());
        for uid in 0..MOST_USERS as u32 {
            shares.take(uid, start).map(|()| shares.give_back(uid)).unwrap();
        }
        assert!(shares.take(u32::MAX, start).is_err(), "what all of them used counts still");
        assert!(shares.take(u32::MAX, start + EVERY).is_ok());
        assert_eq!(shares.users.len(), 1);
    }
}
