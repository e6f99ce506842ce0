//! The hook for engines that start containers through another low-level runtime: a file of our own in `hooks.d`.

use serde_json::json;

use super::plan::{Draft, Files, Stop, Wanted};

/// The hook's file, where the hook is asked for.
pub(super) fn draft(files: &dyn Files, wanted: &Wanted, path: &str) -> Result<Option<Draft>, Stop> {
    let Some(program) = &wanted.hook else { return Ok(None) };
    let before = files.text(path).map_err(|why| (path.to_owned(), why))?;
    let name = program.rsplit('/').next().unwrap_or_default();
    let hook = json!({
        "version": "1.0.0",
        "hook": { "path": program, "args": [name, "createRuntime"] },
        "when": { "always": true },
        "stages": ["createRuntime"],
    });
    let text = serde_json::to_string_pretty(&hook).unwrap_or_default();
    Ok(Some(Draft::whole(path, before, format!("{text}\n"))))
}
