//! Podman: a file of our own in `containers.conf.d`, and a hook where it is asked for. There is no daemon to restart.

use super::format::Format;
use super::plan::{Draft, Files, NAME, Place, Plan, Stop, Wanted};
use super::text::{Trouble, Value, below, keys};
use super::{hooks, toml};

const FOLDER: &str = "/etc/containers/containers.conf.d";
const FILE: &str = "/etc/containers/containers.conf.d/quilt-gpu.conf";
const HOOKS: &str = "/etc/containers/oci/hooks.d/quilt-gpu.json";
const HEAD: &str = "# quilt-gpu for Podman, written by `quilt-gpu configure podman`; `--undo` takes it back.\n\
    # podman --runtime quilt-gpu run --env QUILT_GPU_COUNT=1 …\n";

pub(super) fn plan(files: &dyn Files, wanted: &Wanted) -> Result<Plan, Stop> {
    let path = wanted.file.clone().unwrap_or_else(|| FILE.into());
    let stop = |why: Trouble| (path.clone(), why);
    let engine = keys(["engine"]);
    let place = Place { entry: below(&below(&engine, "runtimes"), NAME), default: below(&engine, "runtime") };
    if wanted.default {
        for later in files.names(FOLDER).into_iter().map(|name| format!("{FOLDER}/{name}")).filter(|name| *name > path)
        {
            let stop = |why: Trouble| (later.clone(), why);
            let text = files.text(&later).map_err(stop)?.unwrap_or_default();
            if toml::word(&text, &place.default).map_err(stop)?.is_some_and(|name| name != NAME) {
                let why = format!("this file is read after {path} and names another runtime; take that out");
                return Err((later.clone(), Trouble::Refused(why)));
            }
        }
    }
    let before = files.text(&path).map_err(stop)?;
    let entry = Value::Words(vec![wanted.program.clone()]);
    let text = before.clone().unwrap_or_else(|| HEAD.into());
    let draft = Draft::make((&path, Format::Toml), Some(text), place, &entry, wanted.default).map_err(stop)?;
    let mut drafts = vec![Draft { before, ..draft }];
    drafts.extend(hooks::draft(files, wanted, HOOKS)?);
    Ok(Plan { drafts, ..Plan::default() })
}
