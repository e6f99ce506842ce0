//! `quilt-gpu cdi list`: the devices that engines find in the node's CDI folders, and everything that keeps others from
//! being found.

use std::path::{Path, PathBuf};

use cdi::spec::{Cache, Encoding, Found, MAX_BYTES, MAX_FILES};
use contract::config::Host;
use node::folder::{Bounds, Writers, files};
use serde_json::{Value, json};

use super::problem;
use crate::cli::Context;
use crate::exit::{Exit, Failure};
use crate::table;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Looks in this folder instead of /etc/cdi and /var/run/cdi; of several the last one wins
    #[arg(long = "dir", value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Reads files that others than root could have written too, as engines do
    #[arg(long)]
    any_owner: bool,
}

pub(crate) fn run(args: &Args, mut context: Context<'_>) -> Result<Exit, Failure> {
    let json = context.json()?;
    let folders = if args.folders.is_empty() { usual(&context.setup.config.host) } else { args.folders.clone() };
    let writers = if args.any_owner { Writers::Anyone } else { Writers::Root };
    let found = folders.iter().enumerate().flat_map(|(priority, folder)| look(folder, priority, writers));
    let cache = Cache::of(found.collect::<Vec<_>>());
    if json {
        context.document(&document(&cache))?
    } else {
        write!(context.out, "{}", text(&cache, &folders))?
    }
    Ok(Exit::Done)
}

/// Where engines look. `/var/run` is a link to `/run` on most nodes, which below another root would lead out of it.
fn usual(host: &Host) -> Vec<PathBuf> {
    let led_out = host.root != "/" && Path::new(&host.path("var/run")).is_symlink();
    let run = if led_out { "run/cdi" } else { "var/run/cdi" };
    ["etc/cdi", run].map(|path| host.path(path).into()).into()
}

fn look(folder: &Path, priority: usize, writers: Writers) -> Vec<Found> {
    let wanted = |name: &Path| Encoding::of(&name.to_string_lossy()).is_some();
    let found = |path: &Path, bytes| Found { path: path.display().to_string(), priority, bytes };
    match files(folder, wanted, writers, Bounds { files: MAX_FILES, bytes: MAX_BYTES }) {
        Ok(files) => files.into_iter().map(|(path, bytes)| found(&path, bytes)).collect(),
        Err(error) => vec![found(folder, Err(error.to_string()))],
    }
}

fn document(cache: &Cache) -> Value {
    let devices: Vec<Value> = cache
        .devices()
        .map(|(name, file, device)| {
            json!({ "name": name, "file": file.path, "annotations": device.annotations, "edits": device.container_edits })
        })
        .collect();
    let conflicts: Vec<Value> =
        cache.conflicts.iter().map(|it| json!({ "device": it.device, "files": it.paths })).collect();
    let shadows: Vec<Value> =
        cache.shadows.iter().map(|it| json!({ "device": it.device, "file": it.path, "by": it.by })).collect();
    let problems: Vec<Value> = cache
        .problems
        .iter()
        .map(|(path, all)| json!({ "file": path, "problems": all.iter().map(problem).collect::<Vec<_>>() }))
        .collect();
    json!({ "devices": devices, "conflicts": conflicts, "shadows": shadows, "problems": problems })
}

fn text(cache: &Cache, folders: &[PathBuf]) -> String {
    let rows: Vec<[String; 2]> = cache.devices().map(|(name, file, _)| [name.to_owned(), file.path.clone()]).collect();
    let folders: Vec<String> = folders.iter().map(|folder| table::one_line(&folder.display().to_string())).collect();
    let mut out = match rows.as_slice() {
        [] => format!("no CDI device is named in {}\n", folders.join(" or ")),
        rows => table::render(["DEVICE", "FILE"], rows),
    };
    let mut lines = Vec::new();
    for conflict in &cache.conflicts {
        let paths = conflict.paths.iter().map(String::as_str).collect::<Vec<_>>().join(" and ");
        lines.push(format!("nobody gets {}: {paths} both have it", conflict.device));
    }
    for shadow in &cache.shadows {
        lines.push(format!("{} of {} does not count: {} has it too", shadow.device, shadow.path, shadow.by));
    }
    for (path, problems) in &cache.problems {
        lines.extend(problems.iter().map(|problem| format!("{path} is passed by: {problem}")));
    }
    if !lines.is_empty() {
        out.push('\n');
    }
    for line in lines {
        out.push_str(&table::one_line(&line));
        out.push('\n');
    }
    out
}
