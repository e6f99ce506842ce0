//! `quilt-gpu doctor`: everything between hardware and container, and what of it keeps a GPU from a container.
//!
//! `facts` reads, changing nothing; every other file judges one area and touches nothing. A finding says what is wrong, why it
//! matters, what shows it, and what mends it.

mod driver;
mod engines;
mod facts;
mod own;
mod system;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub(crate) use facts::Facts;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Containers get no GPU while this is so.
    Stops,
    /// They do, and something is not as it should be.
    Warns,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// A stable word for it.
    pub(crate) code: String,
    pub(crate) level: Level,
    /// What is wrong, and what follows.
    pub(crate) cause: String,
    /// What shows it: a path, a line.
    pub(crate) evidence: String,
    /// What mends it, a command where there is one.
    pub(crate) mend: String,
}

impl Finding {
    fn stops(code: &str, cause: impl Into<String>, evidence: impl Into<String>, mend: impl Into<String>) -> Self {
        let (cause, evidence, mend) = (cause.into(), evidence.into(), mend.into());
        Self { code: code.to_owned(), level: Level::Stops, cause, evidence, mend }
    }

    fn warns(code: &str, cause: impl Into<String>, evidence: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { level: Level::Warns, ..Self::stops(code, cause, evidence, mend) }
    }
}

/// Everything that is wrong, what stops containers first.
pub(crate) fn diagnose(facts: &Facts) -> Vec<Finding> {
    let areas = [driver::judge(facts), own::judge(facts), engines::judge(facts), system::judge(facts)];
    let mut findings: Vec<Finding> = areas.into_iter().flatten().collect();
    findings.sort_by_key(|finding| finding.level);
    findings
}
