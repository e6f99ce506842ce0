//! `quilt-gpu doctor`: what is wrong between hardware and container, and what mends it.

use serde_json::json;

use crate::cli::Context;
use crate::doctor::{Facts, Finding, Level, diagnose};
use crate::exit::{Exit, Failure};
use crate::table;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args, mut context: Context<'_>) -> Result<Exit, Failure> {
    let json = context.json()?;
    let findings = diagnose(&Facts::gather(&context.setup));
    let stops = findings.iter().any(|finding| finding.level == Level::Stops);
    if json {
        context.document(&json!({ "stops": stops, "findings": findings }))?;
    } else {
        write!(context.out, "{}", text(&findings))?;
    }
    Ok(if stops { Exit::Refused } else { Exit::Done })
}

fn text(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "nothing is wrong between hardware and container\n".to_owned();
    }
    let mut out = String::new();
    for Finding { code, level, cause, evidence, mend } in findings {
        let word = if *level == Level::Stops { "stops" } else { "warns" };
        let [cause, evidence, mend] = [cause, evidence, mend].map(|text| table::one_line(text));
        out.push_str(&format!("{word}  {code}: {cause}\n       seen: {evidence}\n       mend: {mend}\n"));
    }
    let stopping = findings.iter().filter(|finding| finding.level == Level::Stops).count() as u64;
    let warning = findings.len() as u64 - stopping;
    let stopping = table::counted(stopping, "finding that stops", "findings that stop");
    let warning = table::counted(warning, "that warns", "that warn");
    out + &format!("{stopping} GPU containers, {warning}\n")
}
