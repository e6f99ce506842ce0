//! What is somebody's before there is a container: a place in the queue, and reservations.

use std::collections::BTreeSet;
use std::process::Child;
use std::time::Duration;

use integration::{Error, Result, must};
use serde_json::Value;

use super::{Play, could_be};
use crate::model::{Answer, Grant};
use crate::place::{meanwhile, whole};
use crate::random::{Ask, CONTAINERS, Fate};
use crate::truth;

impl Play<'_> {
    /// A create that waits, where it must; nobody comes before it, and it has what it waits for when another one ends.
    pub(super) fn wait(&mut self, c: u64, ask: &Ask, other: u64) -> Result<()> {
        if self.model.answer(c, ask) != Answer::Refused(&["CAPACITY_FULL"]) {
            return self.create(c, ask, &Fate::Whole);
        }
        self.place.ask(c, &self.model.words(ask))?;
        let were = self.place.files(&self.model.node.version)?;
        let left = self.left(c)?;
        let command = self.place.create(c)?;
        let (status, said) = meanwhile(command, Duration::ZERO, |child| {
            let done = self.waited_for(c, ask, child, other);
            if done.is_err() || !matches!(self.model.answer(c, ask), Answer::Granted { .. }) {
                child.kill().map_err(|cause| Error::new(format!("cannot kill: {cause}")))?;
            }
            done
        })?;
        self.place.adopt(c)?;
        let before = self.model.clone();
        match (self.made(c, ask)?, before.answer(c, ask)) {
            (true, Answer::Granted { .. }) if status == Some(0) => {
                self.tally.waited += 1;
                self.granted(c, ask, (&before, &were), status)
            }
            (false, Answer::Refused(_)) => self.nothing_left(c, &left),
            (made, answer) => Err(Error::new(format!("{answer:?} came to {made}, {status:?}: {said}"))),
        }
    }

    /// While this one waits.
    fn waited_for(&mut self, c: u64, ask: &Ask, child: &mut Child, other: u64) -> Result<()> {
        while !self.place.queue().contains(&child.id().into()) {
            let ended = child.try_wait().map_err(|cause| Error::new(format!("cannot wait: {cause}")))?;
            must(ended.is_none(), "it did not wait")?;
            std::thread::sleep(Duration::from_millis(2));
        }
        // What there is of what it wants is left to it.
        if let Some(later) = (0..CONTAINERS).find(|later| *later != c && !self.model.holders.contains_key(later)) {
            self.place.ask(later, &self.model.words(&Ask::Count(1)))?;
            let ran = whole(&mut self.place.create(later)?)?;
            must(!ran.ok() && ran.stderr.contains("CAPACITY_FULL"), format_args!("c{later} came before: {ran:?}"))?;
        }
        // Mostly somebody ends who has what it wants.
        let serves = |other: &u64| {
            let mut without = self.model.clone();
            without.seen(*other, None);
            matches!(without.answer(c, ask), Answer::Granted { .. })
        };
        let ends = self.model.holders.keys().copied().find(serves).filter(|_| other > 0).unwrap_or(other);
        match self.model.holders.contains_key(&ends) {
            true => self.delete(ends, true),
            false => Ok(()),
        }
    }

    /// The node's agent reserves so many.
    pub(super) fn reserve(&mut self, many: u64) -> Result<()> {
        let ran = self.place.reserve(many)?;
        match self.model.by_count(many as usize, false) {
            Answer::Refused(codes) => {
                let is = codes.iter().any(|code| ran.stderr.contains(code) || ran.stdout.contains(code));
                must(!ran.ok() && is, format_args!("{codes:?} was answered by {ran:?}"))
            }
            answer => {
                let reserved: Value =
                    serde_json::from_str(&ran.checked()?.stdout).map_err(|e| Error::new(e.to_string()))?;
                truth::facts(&reserved["contract"]["facts"], &self.model.node)?;
                let gpus = reserved["contract"]["gpus"].as_array().into_iter().flatten();
                let grant = |gpu: &Value| {
                    Some(Grant { pci: gpu["pci"].as_str()?.into(), minor: gpu["minor"].as_u64()?, part: None })
                };
                let grants: BTreeSet<Grant> = gpus.filter_map(grant).collect();
                could_be(&grants, &answer)?;
                self.tally.reserved += 1;
                self.model.promised(reserved["token"].as_str().unwrap_or_default().into(), grants);
                Ok(())
            }
        }
    }

    /// It gives up what it reserved first.
    pub(super) fn give_up(&mut self) -> Result<()> {
        if self.model.reserved.is_empty() {
            return Ok(());
        }
        let first = self.model.reserved.remove(0);
        self.place.quilt.cli(&["lease", "release", "--token", &first.token])?.checked()?;
        must(!self.place.is_promised(&first.token), "what was given up is still promised")
    }
}
