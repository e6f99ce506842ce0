//! `quilt-gpu cdi validate`: each file's problems at their places, or what the file is and which version it needs.

use std::path::PathBuf;

use cdi::spec::{Problem, Spec, lowest, needs};
use serde_json::{Value, json};

use super::{judged, problem};
use crate::cli::Context;
use crate::exit::{Exit, Failure};
use crate::table;

type Verdict = (String, Result<Spec, Vec<Problem>>);

pub(crate) fn run(files: &[PathBuf], mut context: Context<'_>) -> Result<Exit, Failure> {
    let json = context.json()?;
    let verdict = |path: &PathBuf| Ok((path.display().to_string(), judged(path)?.1));
    let verdicts: Vec<Verdict> = files.iter().map(verdict).collect::<Result<_, Failure>>()?;
    if json {
        context.document(&verdicts.iter().map(document).collect::<Vec<_>>())?;
    } else {
        write!(context.out, "{}", text(&verdicts))?;
    }
    Ok(if verdicts.iter().all(|(_, verdict)| verdict.is_ok()) { Exit::Done } else { Exit::Refused })
}

fn document((file, verdict): &Verdict) -> Value {
    match verdict {
        Ok(spec) => {
            let needs = needs(spec);
            let needs = needs.iter().map(|it| json!({ "version": it.version, "at": it.at, "what": it.what }));
            let names: Vec<&str> = spec.devices.iter().map(|device| device.name.as_str()).collect();
            json!({
                "file": file, "valid": true, "kind": spec.kind, "devices": names, "version": spec.cdi_version,
                "lowest_version": lowest(spec), "needs": needs.collect::<Vec<_>>(), "problems": [],
            })
        }
        Err(problems) => {
            json!({ "file": file, "valid": false, "problems": problems.iter().map(problem).collect::<Vec<_>>() })
        }
    }
}

fn text(verdicts: &[Verdict]) -> String {
    let row = |(file, verdict): &Verdict| match verdict {
        Ok(spec) => {
            let devices = spec.devices.len().to_string();
            [file.clone(), "valid".into(), spec.kind.clone(), devices, spec.cdi_version.clone(), lowest(spec).into()]
        }
        Err(_) => [file.clone(), "wrong".into(), String::new(), String::new(), String::new(), String::new()],
    };
    let rows: Vec<_> = verdicts.iter().map(row).collect();
    let mut out = table::render(["FILE", "VERDICT", "KIND", "DEVICES", "STATES", "NEEDS"], &rows);
    for (file, problems) in verdicts.iter().filter_map(|(file, verdict)| Some((file, verdict.as_ref().err()?))) {
        out.push('\n');
        for problem in problems {
            out.push_str(&table::one_line(&format!("{file}: {problem}")));
            out.push('\n');
        }
    }
    out
}
