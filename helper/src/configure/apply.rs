//! Carries a plan out and takes it back: all files of it or none, with a record of what was there.

use clap::ValueEnum;

use super::Engine;
use super::diff::unified;
use super::on_node::OnNode;
use super::plan::{Done, Draft, Files, Stop, Wanted};
use super::record::Record;
use super::text::Trouble;
use crate::exit::Failure;

/// What the operator asked for.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    /// Which engine.
    pub(crate) engine: Engine,
    /// The folder that the node lies below.
    pub(crate) root: &'a str,
    /// The engine's file, if not the usual one.
    pub(crate) file: Option<String>,
    /// The runtime's program, on the node.
    pub(crate) program: String,
    /// The hook's program, where it is wanted.
    pub(crate) hook: Option<String>,
    /// Whether ours becomes the default.
    pub(crate) default: bool,
    /// Only say it.
    pub(crate) dry_run: bool,
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// It was not there.
    Made,
    /// It was.
    Edited,
    /// It is no more.
    Removed,
}

impl Action {
    /// In lists.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Edited => "edited",
            Self::Removed => "removed",
        }
    }
}

/// One file that changed, or would.
#[derive(Debug)]
pub(crate) struct Change {
    /// On the node.
    pub(crate) path: String,
    /// What became of it.
    pub(crate) action: Action,
    /// How, as a unified diff.
    pub(crate) diff: String,
}

/// What was done, or would be.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Files; none when everything was as asked already.
    pub(crate) changes: Vec<Change>,
    /// The command that makes the engine read them.
    pub(crate) restart: Option<Vec<String>>,
    /// What else to know.
    pub(crate) notes: Vec<String>,
    /// Low-level runtimes that the engine uses.
    pub(crate) low_level: Vec<String>,
}

/// A file that is to become another text; none: no file.
struct Step {
    path: String,
    before: Option<String>,
    after: Option<String>,
}

impl Ask<'_> {
    fn wanted(&self) -> Wanted {
        let (program, hook) = (self.program.clone(), self.hook.clone());
        Wanted { program, hook, default: self.default, file: self.file.clone() }
    }
}

/// Makes the runtime known.
///
/// # Errors
/// The engine's files cannot be read, or it would not work: nothing is changed then.
pub(crate) fn configure(ask: &Ask<'_>) -> Result<Outcome, Failure> {
    let node = OnNode::below(ask.root);
    let plan = ask.engine.plan(&node, &ask.wanted()).map_err(|stop| told(&stop))?;
    let drafts: Vec<&Draft> = plan.drafts.iter().filter(|draft| draft.changes()).collect();
    let (name, file) = (ask.engine.name(), ask.file.as_deref());
    let mut record = Record::read(&node, name, file)?.unwrap_or_else(|| Record::new(name, file));
    for draft in &drafts {
        // What a later undo restores is the file without us, whoever else changed it in between.
        let known = record.files.iter().position(|done| done.path == draft.path).map(|at| record.files.remove(at));
        let before = match known {
            Some(done) => done.reverted(draft.before.as_deref()).map_err(|why| told(&(draft.path.clone(), why)))?.text,
            None => draft.before.clone(),
        };
        let after = contract::key::sha256(draft.after.as_bytes());
        record.files.push(Done {
            path: draft.path.clone(),
            format: draft.format,
            before,
            after,
            place: draft.place.clone(),
        });
    }
    let steps: Vec<Step> = drafts
        .iter()
        .map(|draft| Step { path: draft.path.clone(), before: draft.before.clone(), after: Some(draft.after.clone()) })
        .collect();
    if !ask.dry_run && !steps.is_empty() {
        // First: a crash between the two leaves a record of something that is not there, which undoes nothing.
        record.write(&node)?;
        let made = carry_out(&node, &steps, &[])?;
        if !made.is_empty() {
            record.folders.extend(made);
            record.write(&node)?;
        }
    }
    Ok(outcome(steps, plan.restart, plan.notes, plan.low_level))
}

/// What was configured on a node and not taken back: engines, and their files where the operator named them.
///
/// # Errors
/// A record is not to be trusted, or of an engine that this program does not know.
pub(crate) fn configured(root: &str) -> Result<Vec<(Engine, Option<String>)>, Failure> {
    let records = Record::all(&OnNode::below(root))?.into_iter();
    let known = records.map(|record| {
        let engine = Engine::value_variants().iter().find(|engine| engine.name() == record.engine);
        let unknown = || Failure::Wrong(format!("{} was configured by a later version of this program", record.engine));
        Ok((engine.copied().ok_or_else(unknown)?, record.file))
    });
    known.collect()
}

/// Takes it back.
///
/// # Errors
/// A file is not as it was left, in a way that does not show what is ours; or the runtime stands in a file by somebody
/// else's hand.
pub(crate) fn undo(ask: &Ask<'_>) -> Result<Outcome, Failure> {
    let node = OnNode::below(ask.root);
    let plan = ask.engine.plan(&node, &ask.wanted());
    let Some(record) = Record::read(&node, ask.engine.name(), ask.file.as_deref())? else {
        // Whoever took it back and was stopped before the engine noticed is told how it does.
        let restart = plan.as_ref().ok().and_then(|plan| plan.restart.clone());
        return match plan.ok().and_then(|plan| plan.drafts.into_iter().find(names_us)) {
            Some(draft) => Err(Failure::Wrong(format!(
                "{} names quilt-gpu, and this command did not put it there: take it out by hand",
                draft.path
            ))),
            None => Ok(Outcome { restart, ..Outcome::default() }),
        };
    };
    let mut steps = Vec::new();
    let mut notes = Vec::new();
    let mut restart = plan.ok().and_then(|plan| plan.restart);
    for done in record.files.iter().rev() {
        let stop = |why: Trouble| told(&(done.path.clone(), why));
        let before = node.text(&done.path).map_err(stop)?;
        let reverted = done.reverted(before.as_deref()).map_err(stop)?;
        if !reverted.exact {
            notes.push(match &before {
                Some(_) => format!("{} was changed by others since: only our part is taken out", done.path),
                None => format!("{} is gone already", done.path),
            });
        }
        // dockerd keeps a default that its file no longer names, until it is started anew.
        if done.default_goes(before.as_deref(), reverted.text.as_deref()).map_err(stop)? {
            restart.iter_mut().flatten().filter(|word| *word == "reload").for_each(|word| *word = "restart".into());
        }
        if reverted.text != before {
            steps.push(Step { path: done.path.clone(), before, after: reverted.text });
        }
    }
    if !ask.dry_run {
        carry_out(&node, &steps, &record.folders)?;
        Record::forget(&node, ask.engine.name(), ask.file.as_deref())?;
    }
    Ok(outcome(steps, restart, notes, Vec::new()))
}

fn names_us(draft: &Draft) -> bool {
    draft.before.as_ref().is_some_and(|text| draft.format.has(text, &draft.place.entry).unwrap_or(false))
}

/// Every step, or none: what was done before one that failed is taken back. Gives the folders that were made.
fn carry_out(node: &OnNode, steps: &[Step], folders: &[String]) -> Result<Vec<String>, Failure> {
    let mut made = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let done = to(node, &step.path, step.after.as_deref(), folders);
        match done {
            Ok(new) => made.extend(new),
            Err(failure) => {
                for step in steps.iter().take(number).rev() {
                    to(node, &step.path, step.before.as_deref(), &made)?;
                }
                return Err(failure);
            }
        }
    }
    Ok(made)
}

fn to(node: &OnNode, path: &str, text: Option<&str>, folders: &[String]) -> Result<Vec<String>, Failure> {
    match text {
        Some(text) => node.write(path, text),
        None => node.remove(path, folders).map(|()| Vec::new()),
    }
}

fn outcome(steps: Vec<Step>, restart: Option<Vec<String>>, notes: Vec<String>, low_level: Vec<String>) -> Outcome {
    let change = |step: Step| {
        let action = match (&step.before, &step.after) {
            (None, _) => Action::Made,
            (_, None) => Action::Removed,
            _ => Action::Edited,
        };
        let diff = unified(&step.path, step.before.as_deref(), step.after.as_deref());
        Change { path: step.path, action, diff }
    };
    Outcome { changes: steps.into_iter().map(change).collect(), restart, notes, low_level }
}

/// A file that cannot be read is a wrong configuration; one that can, and would not serve, is a refusal.
fn told((path, trouble): &Stop) -> Failure {
    match trouble {
        Trouble::Broken { .. } => Failure::Usage(trouble.of(path)),
        Trouble::Refused(_) => Failure::Wrong(trouble.of(path)),
    }
}
