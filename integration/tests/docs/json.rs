//! The page of JSON against what commands print: the fields of each.

use std::collections::BTreeSet;
use std::fs;

use integration::{Error, Result, must, root_for};
use serde_json::Value;

use crate::project;
use crate::room::Room;

/// Command, fields and line of each row.
fn rows(page: &str) -> Vec<(usize, String, BTreeSet<String>)> {
    let mut rows = Vec::new();
    for (at, line) in page.lines().enumerate() {
        let Some(rest) = line.strip_prefix("| `quilt-gpu ") else { continue };
        let mut cells = rest.split(" | ");
        let command = cells.next().unwrap_or_default().trim_end_matches('`');
        let fields = cells.next().unwrap_or_default().split('`').skip(1).step_by(2).map(str::to_owned);
        rows.push((at + 1, format!("quilt-gpu {command}"), fields.collect()));
    }
    rows
}

#[test]
fn commands_print_the_fields_that_the_page_names() -> Result<()> {
    let test = "commands_print_the_fields_that_the_page_names";
    if !root_for(test) {
        return Ok(());
    }
    let Some(room) = Room::new(test)? else { return Ok(()) };
    room.clear()?;
    // Something to list.
    let prepared = "docker run -d --name one --runtime=quilt-gpu -e QUILT_GPU_COUNT=1 busybox sleep 600; runc spec
        quilt-gpu cdi generate --output /run/cdi/q.json; echo '{\"gpu_count\":1}' >request.json";
    room.run(prepared)?.checked()?;
    let page = fs::read_to_string(project().join("docs/json.md")).map_err(|e| Error::new(e.to_string()))?;
    let (rows, mut wrong) = (rows(&page), Vec::new());
    for (line, command, told) in &rows {
        let ran = room.run(&format!("{command} || true"))?;
        let Ok(answer) = serde_json::from_str::<Value>(&ran.stdout) else {
            wrong.push(format!("{line}: {command}: no JSON: {}{}", ran.stdout, ran.stderr));
            continue;
        };
        let one = answer.as_array().and_then(|list| list.first()).unwrap_or(&answer);
        let fields: BTreeSet<String> = one.as_object().into_iter().flat_map(|fields| fields.keys().cloned()).collect();
        if fields != *told {
            wrong.push(format!("{line}: {command}: {fields:?}"));
        }
    }
    must(wrong.is_empty(), wrong.join("\n"))?;
    must(rows.len() > 8, "the page of JSON lost its rows")
}
