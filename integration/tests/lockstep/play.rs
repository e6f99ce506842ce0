//! One sequence, on the node and in the model at once.

mod before;

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use integration::{Change, Error, Result, must};
use serde_json::Value;

use crate::model::{Answer, Grant, Holder, Model};
use crate::place::{Place, meanwhile, read_json, whole};
use crate::random::{Ask, CONTAINERS, Fate, Step, Turn};
use crate::tally::Tally;
use crate::truth::{self, Files, Given};

/// What a create may say when the node becomes another under it.
const OVERTAKEN: [&str; 6] =
    ["CONTRACT_STALE", "DRIVER_NOT_READY", "GPU_UNAVAILABLE", "CAPACITY_FULL", "UNKNOWN_GPU", "UNSAFE_SPEC"];

pub(crate) struct Play<'a> {
    place: &'a mut Place,
    model: Model,
    tally: &'a mut Tally,
}

impl<'a> Play<'a> {
    pub(crate) fn new(place: &'a mut Place, tally: &'a mut Tally) -> Result<Self> {
        let model = Model::new(place.reset()?);
        Ok(Self { place, model, tally })
    }

    /// A step and everything that must be true after it.
    pub(crate) fn step(&mut self, step: &Step) -> Result<()> {
        self.tally.steps += 1;
        match step {
            Step::Create { c, ask, fate } => {
                // A token is worth something while the node stays what it was: most are brought at once.
                if *ask == Ask::Reserved && self.model.reserved.is_empty() && *c > 0 {
                    self.reserve(1)?;
                }
                self.create(*c, ask, fate)?;
            }
            Step::Wait { c, many, other } => self.wait(*c, &Ask::Waiting(*many), *other)?,
            Step::Reserve { many } => self.reserve(*many)?,
            Step::GiveUp => self.give_up()?,
            Step::Delete { c } => self.delete(*c, true)?,
            Step::DeleteLeaving { c } => self.delete(*c, false)?,
            Step::DeleteKilled { c, after } => self.delete_killed(*c, *after)?,
            Step::Crash { c } => {
                self.place.end_process(*c);
                self.changed(*c);
            }
            Step::Vanish { c } => {
                self.place.forget(*c);
                self.changed(*c);
            }
            Step::Node(turn) => self.turn(*turn)?,
            Step::Refresh { killed } => self.refresh(*killed)?,
            Step::Look => self.look()?,
        }
        self.in_step()
    }

    /// Everybody ends; then all that is usable can be had at once.
    pub(crate) fn end(&mut self) -> Result<()> {
        for c in 0..CONTAINERS {
            if self.model.holders.contains_key(&c) {
                self.delete(c, true)?;
            }
        }
        while !self.model.reserved.is_empty() {
            self.give_up()?;
        }
        self.look()?;
        let usable = self.model.free_gpus().len() as u64;
        if usable > 0 {
            self.create(0, &Ask::Count(usable), &Fate::Whole)?;
            must(self.place.queue().is_empty(), "the dead are still in the queue")?;
        }
        self.in_step()
    }

    fn create(&mut self, c: u64, ask: &Ask, fate: &Fate) -> Result<()> {
        let before = self.model.clone();
        if !before.holders.contains_key(&c) {
            let words = self.model.words(ask);
            self.place.ask(c, &words)?;
        }
        let were = self.place.files(&before.node.version)?;
        let left = self.left(c)?;
        let (status, said) = self.called(c, fate)?;
        self.place.adopt(c)?;
        if before.holders.contains_key(&c) {
            must(status != Some(0), "a container was made a second time")?;
            return self.refused(c, &before, ask, fate, &said);
        }
        let made = self.made(c, ask)?;
        match (made, status) {
            (true, _) => self.granted(c, ask, (&before, &were), status),
            (false, Some(0)) => Err(Error::new("create succeeded and there is no container")),
            // The runtime ends as the low-level one did.
            (false, None) if matches!(fate, Fate::LowLevelDies { .. }) => {
                self.tally.undone += 1;
                must(!matches!(before.answer(c, ask), Answer::Refused(_)), "the low-level runtime was started")?;
                self.nothing_left(c, &left)
            }
            // Killed: whatever it left is the next one's to clean up.
            (false, None) => {
                self.tally.killed += 1;
                Ok(())
            }
            (false, Some(_)) => {
                self.nothing_left(c, &left)?;
                self.refused(c, &before, ask, fate, &said)
            }
        }
    }

    /// What became of a create: whether the container is there, with which GPUs; and whether what was reserved for it still is.
    fn made(&mut self, c: u64, ask: &Ask) -> Result<bool> {
        let grants = self.place.leases()?.remove(&format!("c{c}")).unwrap_or_default();
        let (known, runs) = (self.place.is_known(c), self.place.runs(c));
        let shared = matches!(ask, Ask::Shared(_));
        self.model.seen(c, Some(Holder { grants, known, runs, shared, left: false }));
        let place = &*self.place;
        self.model.reserved.retain(|reserved| place.is_promised(&reserved.token));
        Ok(known || runs)
    }

    /// Calls create, and does to it what is its fate.
    fn called(&mut self, c: u64, fate: &Fate) -> Result<(Option<i32>, String)> {
        let mut command = self.place.create(c)?;
        match fate {
            Fate::LowLevelDies { after } => {
                command.env("QUILT_STUB_KILL", if *after { "after" } else { "before" });
            }
            Fate::Killed(after) => {
                return meanwhile(command, *after, |child| {
                    child.kill().map_err(|cause| Error::new(format!("cannot kill: {cause}")))
                });
            }
            Fate::Overtaken(turn, after) => {
                let node = self.model.turned(*turn);
                let change = self.place.drafted(&node)?;
                let place = &*self.place;
                let called = meanwhile(command, *after, |_| match turn {
                    Turn::Library => place.replace_library(&node.version),
                    _ => change.map_or(Ok(()), Change::apply),
                });
                self.model.node = node;
                self.model.libraries += u64::from(*turn == Turn::Library);
                return called;
            }
            Fate::Whole => {}
        }
        let ran = whole(&mut command)?;
        Ok((ran.status.code(), ran.stderr))
    }

    /// What a living container has is what it could be given, and what is true of the node.
    fn granted(&mut self, c: u64, ask: &Ask, (before, were): (&Model, &Files), status: Option<i32>) -> Result<()> {
        match status {
            Some(0) => self.tally.granted += 1,
            _ => self.tally.orphans += 1,
        }
        match ask {
            Ask::Reserved => self.tally.redeemed += 1,
            Ask::Shared(_) if self.shares(c) => self.tally.shared += 1,
            _ => {}
        }
        let grants = self.model.holders.get(&c).map(|holder| holder.grants.clone()).unwrap_or_default();
        let (contract, config) = (self.place.contract(c)?, read_json(&self.place.config(c))?);
        let given = Given { contract, config, grants };
        let fits = |model: &Model, files: &Files| {
            could_be(&given.grants, &model.answer(c, ask))?;
            truth::holds(&given, &model.node, files)
        };
        // The node may have become another meanwhile: one of both, and no mixture.
        let mut after = before.clone();
        after.node = self.model.node.clone();
        let files = self.place.files(&after.node.version)?;
        fits(before, were).or_else(|cause| fits(&after, &files).map_err(|_| cause))
    }

    /// Whether somebody else has one of its GPUs, too.
    fn shares(&self, c: u64) -> bool {
        let Some(own) = self.model.holders.get(&c) else { return false };
        self.model.holders.iter().any(|(other, holder)| *other != c && !holder.grants.is_disjoint(&own.grants))
    }

    fn refused(&mut self, c: u64, before: &Model, ask: &Ask, fate: &Fate, said: &str) -> Result<()> {
        self.tally.refused += 1;
        let is = |codes: &[&str]| codes.iter().any(|code| said.contains(code));
        match (before.answer(c, ask), fate) {
            (Answer::Refused(codes), _) if is(codes) => Ok(()),
            (Answer::Perhaps { .. }, _) if is(&OVERTAKEN) => Ok(()),
            (_, Fate::Overtaken(..)) if is(&OVERTAKEN) => {
                self.tally.overtaken += 1;
                Ok(())
            }
            (Answer::Refused(_), Fate::Killed(_)) if said.is_empty() => Ok(()),
            (answer, _) => Err(Error::new(format!("{answer:?} was answered by {said}"))),
        }
    }

    /// Its leases and its spec: of the dead, what a crash left.
    fn left(&self, c: u64) -> Result<(BTreeSet<Grant>, Vec<u8>)> {
        let leases = self.place.leases()?.remove(&format!("c{c}")).unwrap_or_default();
        Ok((leases, fs::read(self.place.config(c)).unwrap_or_default()))
    }

    /// A refused create leaves no lease, no container, and the spec as it was: the tenant's, or what a crash left there.
    fn nothing_left(&self, c: u64, (leases, config): &(BTreeSet<Grant>, Vec<u8>)) -> Result<()> {
        let (left, now) = self.left(c)?;
        must(left.is_subset(leases), format_args!("a refused create left the leases {left:?}"))?;
        let original = self.place.containers[c as usize].original.as_bytes();
        must(now == *config || now == original, "a refused create left its config.json")
    }

    fn delete(&mut self, c: u64, ends: bool) -> Result<()> {
        // What is deleted already and whose process was left is looked for when somebody wants its GPU.
        let held = self.model.holders.get(&c).is_some_and(|holder| holder.known);
        if ends {
            self.place.end_process(c);
        }
        whole(&mut self.place.delete(c))?.checked()?;
        self.changed(c);
        if let Some(holder) = self.model.holders.get_mut(&c) {
            holder.left = true;
        }
        must(!self.place.is_known(c), "a deleted container is still known")?;
        if !held || self.model.holders.contains_key(&c) {
            return Ok(());
        }
        self.tally.deleted += 1;
        let left = self.place.leases_by_kind()?[0].remove(&format!("c{c}"));
        must(left.is_none(), format_args!("c{c} is deleted and has the leases {left:?}"))?;
        let now = fs::read_to_string(self.place.config(c)).unwrap_or_default();
        must(
            now == self.place.containers[c as usize].original,
            format_args!("c{c} is deleted, and its config.json is still ours"),
        )
    }

    fn delete_killed(&mut self, c: u64, after: Duration) -> Result<()> {
        self.place.end_process(c);
        meanwhile(self.place.delete(c), after, |child| {
            child.kill().map_err(|cause| Error::new(format!("cannot kill: {cause}")))
        })?;
        self.changed(c);
        Ok(())
    }

    fn turn(&mut self, turn: Turn) -> Result<()> {
        self.model.node = self.model.turned(turn);
        if turn == Turn::Library {
            self.model.libraries += 1;
            return self.place.replace_library(&self.model.node.version);
        }
        self.place.drafted(&self.model.node)?.map_or(Ok(()), Change::apply)
    }

    fn refresh(&mut self, killed: Option<Duration>) -> Result<()> {
        let mut command = self.place.quilt.command();
        command.args(["inventory", "refresh"]);
        let path = self.place.quilt.state().join("inventory.json");
        if let Some(after) = killed {
            meanwhile(command, after, |child| {
                child.kill().map_err(|cause| Error::new(format!("cannot kill: {cause}")))
            })?;
            return if path.exists() { read_json(&path).map(|_| ()) } else { Ok(()) };
        }
        whole(&mut command)?.checked()?;
        let inventory = read_json(&path)?;
        truth::facts(&inventory["facts"], &self.model.node)?;
        truth::instances(&inventory["facts"], &self.model.node)
    }

    /// `lease list` ends the leases of the dead, and shows what the living have: no more and no less.
    fn look(&mut self) -> Result<()> {
        let list = self.place.quilt.cli(&["lease", "list", "--format", "json"])?.checked()?.stdout;
        let list: Vec<Value> = serde_json::from_str(&list).map_err(|e| Error::new(format!("{list}: {e}")))?;
        let seen = self.place.leases()?;
        let (reserved, list): (Vec<Value>, Vec<Value>) =
            list.into_iter().partition(|lease| lease["kind"] == "reservation");
        let promised: usize = self.model.reserved.iter().map(|reserved| reserved.grants.len()).sum();
        must(reserved.len() == promised, format_args!("{promised} are reserved, and listed are {reserved:?}"))?;
        must(list.len() == seen.values().map(BTreeSet::len).sum::<usize>(), "lease list and leases differ")?;
        let living = self.model.holders.iter().map(|(c, holder)| (format!("c{c}"), holder.grants.clone())).collect();
        must(seen == living, format_args!("leases {seen:?}, alive {living:?}"))
    }

    /// A container that lived may not any more.
    fn changed(&mut self, c: u64) {
        let (known, runs) = (self.place.is_known(c), self.place.runs(c));
        let holder = self.model.holders.get(&c).cloned();
        self.model.seen(c, holder.map(|holder| Holder { known, runs, ..holder }));
    }

    /// Who lives has its leases, whatever happened, and nobody else has one of its GPUs.
    fn in_step(&self) -> Result<()> {
        let leases = self.place.leases()?;
        for (c, holder) in &self.model.holders {
            let seen = leases.get(&format!("c{c}")).cloned().unwrap_or_default();
            must(seen == holder.grants && !seen.is_empty(), format_args!("c{c} is {holder:?} with leases {seen:?}"))?;
        }
        match self.model.double() {
            Some(double) => Err(Error::new(format!("one GPU is held twice: {double}"))),
            None => Ok(()),
        }
    }
}

fn could_be(grants: &BTreeSet<Grant>, answer: &Answer) -> Result<()> {
    match answer {
        Answer::Granted { from, many } | Answer::Perhaps { from, many }
            if grants.len() == *many && grants.is_subset(from) =>
        {
            Ok(())
        }
        _ => Err(Error::new(format!("{grants:?} were granted, not {answer:?}"))),
    }
}
