//! Docker: `runtimes` and `default-runtime` of `daemon.json`.

use super::format::Format;
use super::plan::{Draft, Files, NAME, Place, Plan, Stop, Wanted};
use super::text::{Trouble, Value, keys};
use super::units;

const FILE: &str = "/etc/docker/daemon.json";
/// Docker as a snap: its own file, and the node's root file system as it sees it.
const SNAP: &str = "/var/snap/docker/current";
const SNAP_ROOT: &str = "/var/lib/snapd/hostfs";

pub(super) fn plan(files: &dyn Files, wanted: &Wanted) -> Result<Plan, Stop> {
    let words = units::command(files, "docker", "dockerd");
    let (path, snap) = place(files, wanted, &words).map_err(|why| (FILE.to_owned(), why))?;
    let of = |why| (path.clone(), why);
    flags(&words, wanted).map_err(of)?;
    let program = if snap { format!("{SNAP_ROOT}{}", wanted.program) } else { wanted.program.clone() };
    let entry = Value::Table(vec![("path".into(), Value::Word(program))]);
    let keys = Place { entry: keys(["runtimes", NAME]), default: keys(["default-runtime"]) };
    let before = files.text(&path).map_err(of)?;
    let draft = Draft::make((&path, Format::Json), before, keys, &entry, wanted.default).map_err(of)?;
    let mut plan = Plan { drafts: vec![draft], ..Plan::default() };
    let restart = if snap { ["snap", "restart", "docker"] } else { ["systemctl", "reload", "docker"] };
    plan.restart = Some(restart.map(str::to_owned).to_vec());
    if snap {
        plan.low_level.push("/snap/docker/current/bin/runc".into());
        plan.notes.push(format!("Docker is a snap: it sees the node's programs below {SNAP_ROOT}"));
    }
    Ok(plan)
}

fn place(files: &dyn Files, wanted: &Wanted, words: &[String]) -> Result<(String, bool), Trouble> {
    if let Some(file) = &wanted.file {
        return Ok((file.clone(), file.starts_with(SNAP)));
    }
    let snap = files.exists(SNAP);
    if snap && (files.exists(FILE) || !words.is_empty()) {
        let why = format!(
            "this node has two Dockers, one of them a snap; say which with --engine-config {FILE} or \
             --engine-config {SNAP}/config/daemon.json"
        );
        return Err(Trouble::Refused(why));
    }
    let own = units::value(words, &["--config-file"]).unwrap_or_else(|| FILE.into());
    Ok(if snap { (format!("{SNAP}/config/daemon.json"), true) } else { (own, false) })
}

/// dockerd does not start when a key stands in the file and on its command line.
fn flags(words: &[String], wanted: &Wanted) -> Result<(), Trouble> {
    let clash = [("--add-runtime", "runtimes", true), ("--default-runtime", "default-runtime", wanted.default)];
    for (flag, key, asked) in clash {
        if asked && words.iter().any(|word| word == flag || word.starts_with(&format!("{flag}="))) {
            let why = format!(
                "docker.service gives dockerd {flag}, and dockerd does not start with that and `{key}` in this file; \
                 move the flag into the file first"
            );
            return Err(Trouble::Refused(why));
        }
    }
    Ok(())
}
