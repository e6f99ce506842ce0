//! `install-node`: puts our programs on a node from outside, as a container does that sees the node below a folder;
//! tells the engine, and takes both back.
//!
//! `before` looks for what would fail, `versions` places programs, `used` tells who still needs them, `record` keeps what
//! was made, `configure` does what engines are told. Every step leaves the old state or the new one, and is passed over
//! when it is done: whatever a crash leaves, the next call completes. No API server is asked, and no container is started.

mod before;
mod record;
mod status;
#[cfg(test)]
mod tests;
mod used;
mod versions;

use std::path::PathBuf;
use std::process::Command;

use clap::ValueEnum;
use contract::config::{DEFAULT_PATH, LOW_LEVEL_LINK};
use contract::key::sha256;
use serde::Serialize;
use shim::Setup;

use crate::configure::{self, Engine, Files, OnNode, Turn, configure, link, undo};
use crate::exit::Failure;
use record::Record;
pub(crate) use status::{Status, status};
use status::{others, states};
use used::{by_lease, by_name};
use versions::{Programs, Shelf};

/// The folder of our configuration.
const FOLDER: &str = "/etc/quilt-gpu";
/// The configuration of a node that has none: every default, with what it is for.
const CONFIG: &str = include_str!("../../../configs/config.toml");

/// What the operator asked for.
pub(crate) struct Ask<'a> {
    /// The folder that the node lies below.
    pub(crate) root: &'a str,
    /// The programs' folder on the node.
    pub(crate) prefix: &'a str,
    /// Where the programs are read from.
    pub(crate) from: PathBuf,
    /// The engine; the one that is there where none is named.
    pub(crate) engine: Option<Engine>,
    /// The engine's file, if not the usual one.
    pub(crate) engine_config: Option<String>,
    /// Whether the engine is restarted when its files have changed.
    pub(crate) restart: bool,
    /// Only say it.
    pub(crate) dry_run: bool,
}

/// What was done, or would be.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Outcome {
    pub(crate) engine: &'static str,
    /// The version that counts now; none after a removal.
    pub(crate) version: Option<String>,
    pub(crate) changed: bool,
    /// One line for each thing that was changed.
    pub(crate) steps: Vec<String>,
    /// What the engine's files become, as unified diffs.
    pub(crate) diffs: Vec<String>,
    /// The command that makes the engine read its files, where it has to.
    pub(crate) restart: Option<Vec<String>>,
    pub(crate) restarted: bool,
    /// Who keeps a removal from being whole.
    pub(crate) used_by: Vec<String>,
    pub(crate) notes: Vec<String>,
}

impl Outcome {
    fn did(&mut self, what: String) {
        self.changed = true;
        self.steps.push(what);
    }

    fn told(&mut self, engine: configure::Outcome) {
        self.restart = engine.restart.filter(|_| !engine.changes.is_empty());
        self.notes.extend(engine.notes);
        for change in engine.changes {
            self.did(format!("{}: {}", change.path, change.action.word()));
            self.diffs.push(change.diff);
        }
    }
}

/// Installs, or brings an installation to these programs.
///
/// # Errors
/// The engine's files do not take our part, or a step would fail: then nothing is touched. Or one fails all the same; the
/// next call goes on there.
pub(crate) fn install(ask: &Ask<'_>) -> Result<Outcome, Failure> {
    let node = OnNode::below(ask.root);
    let programs = Programs::read(&ask.from)?;
    let _turn = turn(ask, &node)?;
    let known = Record::read(&node)?;
    let (engine, file) = engine(ask, &node, known.as_ref())?;
    let shelf = Shelf { node: &node, prefix: ask.prefix };
    let tell = |dry_run| configure(&telling(ask, &shelf, engine, file.clone(), dry_run));
    // Before anything is written it is known that the engine's files take it.
    let planned = tell(true)?;
    before::judge(ask, &node, &planned, (!shelf.has(&programs)).then_some(&programs))?;
    let mut outcome = Outcome { engine: engine.name(), version: Some(programs.id.clone()), ..Outcome::default() };
    let before = shelf.current()?;
    if ask.dry_run {
        if !shelf.has(&programs) || before.as_ref() != Some(&programs.id) {
            outcome.did(format!("{}: the programs", shelf.folder(&programs.id)));
        }
        if !node.exists(DEFAULT_PATH) {
            outcome.did(format!("{DEFAULT_PATH}: made"));
        }
        outcome.told(planned);
        return Ok(outcome);
    }
    let mut record = known.unwrap_or_else(|| Record::new(ask.prefix, engine.name(), file.as_deref()));
    // What is remembered before it is made is found again, whenever this ends.
    record.will_make(&node, &format!("{}/versions", ask.prefix));
    record.will_make(&node, FOLDER);
    record.write(&node)?;
    sweep(&node, &planned);
    if !shelf.has(&programs) {
        shelf.put(&programs)?;
        outcome.did(format!("{}: the programs", shelf.folder(&programs.id)));
    }
    if before.as_ref() != Some(&programs.id) {
        record.previous = before;
        record.write(&node)?;
        shelf.point(&programs.id)?;
        outcome.did(shelf.program("") + " leads there");
    }
    own_configuration(&node, &mut record, &mut outcome)?;
    record.restart_due |= ask.restart && !planned.changes.is_empty();
    record.write(&node)?;
    let told = tell(false)?;
    low_level(&node, ask.root, &told, &mut record, &mut outcome)?;
    outcome.told(told);
    prune(&shelf, &states(&node, engine, file.as_deref()), &record, &programs.id, &mut outcome)?;
    restart(ask, &node, &mut record, planned.restart.as_deref(), &mut outcome)
        .map_err(|why| Failure::Internal(format!("everything is installed, and {why}")))?;
    Ok(outcome)
}

/// Takes an installation back, once no container needs it: what the engine was told, then the programs and everything else
/// that was made. Not before, as containerd 2 runs nothing more in a pod whose handler it does not know.
///
/// # Errors
/// A step cannot be done; the next call goes on there.
pub(crate) fn remove(ask: &Ask<'_>) -> Result<Outcome, Failure> {
    let node = OnNode::below(ask.root);
    if !node.exists(record::FOLDER) {
        return Ok(Outcome::default());
    }
    let _turn = turn(ask, &node)?;
    let Some(mut record) = Record::read(&node)? else { return Ok(Outcome::default()) };
    let engine = Engine::value_variants().iter().copied().find(|engine| engine.name() == record.engine);
    let unknown = || Failure::Wrong(format!("{} was told by a later version of this program", record.engine));
    let engine = engine.ok_or_else(unknown)?;
    let (prefix, file) = (record.prefix.clone(), record.engine_config.clone());
    let shelf = Shelf { node: &node, prefix: &prefix };
    let mut outcome = Outcome { engine: engine.name(), ..Outcome::default() };
    let states = states(&node, engine, file.as_deref());
    outcome.used_by = by_name(&shelf, &states).into_iter().map(|user| user.place).collect();
    outcome.used_by.extend(by_lease(&node, &state_dir(&node)));
    if !outcome.used_by.is_empty() {
        return Ok(outcome);
    }
    let telling = |dry_run| telling(ask, &shelf, engine, file.clone(), dry_run);
    let planned = undo(&telling(true))?;
    let command = planned.restart.clone();
    if ask.dry_run {
        outcome.told(planned);
    } else {
        record.restart_due |= ask.restart && !planned.changes.is_empty();
        record.write(&node)?;
        sweep(&node, &planned);
        outcome.told(undo(&telling(false))?);
        restart(ask, &node, &mut record, command.as_deref(), &mut outcome).map_err(|why| {
            let why = format!("the engine's files are without quilt-gpu, its programs are still there, and {why}");
            Failure::Internal(format!("{why}; the next call goes on there"))
        })?;
    }
    take_away(&shelf, &record, ask.dry_run, &mut outcome)?;
    Ok(outcome)
}

/// The engine that counts: one that was told stays, a named one, or the only one that is there.
fn engine(ask: &Ask<'_>, node: &OnNode, known: Option<&Record>) -> Result<(Engine, Option<String>), Failure> {
    let chosen = match (ask.engine, known) {
        (Some(engine), _) => engine,
        (None, Some(record)) if Engine::from_str(&record.engine, false).is_ok() => {
            Engine::from_str(&record.engine, false).map_err(Failure::Internal)?
        }
        (None, _) => match Engine::of_kubernetes(node).as_slice() {
            [only] => *only,
            [] => {
                let why = "no containerd, k3s, rke2, microk8s or CRI-O is on this node; name one with --engine";
                return Err(Failure::Wrong(why.into()));
            }
            several => {
                let names: Vec<&str> = several.iter().map(|engine| engine.name()).collect();
                let why = format!("this node has {}; say with --engine which one kubelet uses", names.join(" and "));
                return Err(Failure::Wrong(why));
            }
        },
    };
    let file = ask.engine_config.clone().or_else(|| known.and_then(|record| record.engine_config.clone()));
    match known {
        Some(record)
            if record.engine != chosen.name() || record.engine_config != file || record.prefix != ask.prefix =>
        {
            Err(Failure::Wrong(format!(
                "this node has an installation in {} for {}: take that back first, with install-node --remove",
                record.prefix, record.engine
            )))
        }
        _ => Ok((chosen, file)),
    }
}

fn telling<'a>(
    ask: &Ask<'a>,
    shelf: &Shelf<'_>,
    engine: Engine,
    file: Option<String>,
    dry_run: bool,
) -> configure::Ask<'a> {
    let program = shelf.program("quilt-gpu-runtime");
    configure::Ask { engine, root: ask.root, file, program, hook: None, default: false, dry_run }
}

/// One at a time, from the first thing that is read; who only says what would be waits for nobody.
fn turn<'a>(ask: &Ask<'_>, node: &'a OnNode) -> Result<Option<Turn<'a>>, Failure> {
    if ask.dry_run {
        return Ok(None);
    }
    before::writable(node, record::FOLDER)?;
    Turn::wait(node).map(Some)
}

/// Removes what a call that was killed left beside the files that it wrote.
fn sweep(node: &OnNode, planned: &configure::Outcome) {
    let above = |path: &str| path.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    let engines = planned.changes.iter().filter_map(|change| above(&change.path));
    let own = [FOLDER.to_owned(), record::FOLDER.to_owned(), format!("{}/configured", record::FOLDER)];
    for folder in engines.chain(own) {
        let names = node.names(&folder).into_iter();
        let left = names.filter(|name| name.starts_with(".quilt-gpu.") && name.ends_with(".tmp"));
        for name in left {
            // It is no more than a file too many.
            let _ = node.remove(&format!("{folder}/{name}"), &[]);
        }
    }
}

/// Our configuration, on a node that has none.
fn own_configuration(node: &OnNode, record: &mut Record, outcome: &mut Outcome) -> Result<(), Failure> {
    if node.exists(DEFAULT_PATH) {
        return Ok(());
    }
    record.config = Some(sha256(CONFIG.as_bytes()));
    record.write(node)?;
    node.write(DEFAULT_PATH, CONFIG)?;
    outcome.did(format!("{DEFAULT_PATH}: made"));
    Ok(())
}

/// The link that says who makes containers, where there is none.
fn low_level(
    node: &OnNode,
    root: &str,
    told: &configure::Outcome,
    record: &mut Record,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let place = low_level_place(node)?;
    if place.symlink_metadata().is_err() {
        record.low_level = Some(String::new());
        record.write(node)?;
        outcome.changed = true;
    }
    outcome.notes.extend(link(root, FOLDER, &told.low_level, false)?);
    if record.low_level.as_deref() == Some("") {
        record.low_level = std::fs::read_link(&place).ok().map(|target| target.display().to_string());
        record.write(node)?;
    }
    Ok(())
}

/// Where that link is, or would be: below the node's root, whatever links lead there.
fn low_level_place(node: &OnNode) -> Result<PathBuf, Failure> {
    let cannot = |cause| Failure::Internal(format!("cannot look at {FOLDER}: {cause}"));
    let folder = node.real(FOLDER).map_err(cannot)?;
    Ok(folder.unwrap_or_else(|| node.place(FOLDER)).join(LOW_LEVEL_LINK))
}

/// Versions that nobody needs go.
fn prune(
    shelf: &Shelf<'_>,
    states: &[String],
    record: &Record,
    current: &str,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    for (id, user) in others(shelf, states, record, current) {
        let folder = shelf.folder(&id);
        match user {
            Some(place) => outcome.notes.push(format!("{folder} stays: {place} names it")),
            None => {
                shelf.remove(&id)?;
                outcome.did(format!("{folder}: removed, nobody needs it"));
            }
        }
    }
    Ok(())
}

/// Where leases are, by the node's own configuration.
fn state_dir(node: &OnNode) -> String {
    Setup::read(&node.place(DEFAULT_PATH)).config.paths.state_dir
}

/// Everything that an installation made.
fn take_away(shelf: &Shelf<'_>, record: &Record, dry_run: bool, outcome: &mut Outcome) -> Result<(), Failure> {
    let node = shelf.node;
    outcome.did(format!("{}: removed", shelf.prefix));
    let text = node.text(DEFAULT_PATH).ok().flatten();
    let ours = text.is_some_and(|text| record.config.as_deref() == Some(&sha256(text.as_bytes())));
    match (ours, record.config.is_some()) {
        (true, _) => outcome.did(format!("{DEFAULT_PATH}: removed")),
        (false, true) => outcome.notes.push(format!("{DEFAULT_PATH} stays: others have changed it")),
        (false, false) => {}
    }
    let link = low_level_place(node)?;
    let leads = std::fs::read_link(&link).ok().map(|target| target.display().to_string());
    let link_is_ours = leads.is_some() && (leads == record.low_level || record.low_level.as_deref() == Some(""));
    if dry_run {
        return Ok(());
    }
    shelf.unlink()?;
    for id in shelf.all() {
        shelf.remove(&id)?;
    }
    if link_is_ours {
        let cannot = |cause| Failure::Internal(format!("cannot remove {}: {cause}", link.display()));
        std::fs::remove_file(&link).map_err(cannot)?;
    }
    if ours {
        node.remove(DEFAULT_PATH, &[])?;
    }
    record.forget(node)
}

/// Makes the engine read its files, where that is asked for and due. From a container the node's own command is run in
/// the node's root: systemd listens on a socket below it, so no other namespace of the node's is entered.
fn restart(
    ask: &Ask<'_>,
    node: &OnNode,
    record: &mut Record,
    command: Option<&[String]>,
    outcome: &mut Outcome,
) -> Result<(), String> {
    let Some(words) = command.filter(|_| record.restart_due) else { return Ok(()) };
    outcome.restart = Some(words.to_vec());
    if !ask.restart {
        return Ok(());
    }
    let mut command = match ask.root {
        "/" => Command::new(words.first().map_or("true", String::as_str)),
        root => {
            let mut command = Command::new("chroot");
            command.arg(root).args(words.first());
            command
        }
    };
    // systemctl does nothing where it takes its root for somebody else's.
    command.args(words.iter().skip(1)).env("SYSTEMD_IGNORE_CHROOT", "1");
    let words = words.join(" ");
    let status = command.status().map_err(|cause| format!("`{words}` cannot be run: {cause}"))?;
    if !status.success() {
        return Err(format!("`{words}` failed: {status}"));
    }
    outcome.restarted = true;
    record.restart_due = false;
    record.write(node).map_err(|failure| failure.to_string())
}
