//! From the bytes of a file to a CDI spec that may be used, or to everything that is wrong with it. JSON is read by the
//! strict reader of all our documents; YAML is written as JSON first, so that there is one reader and one way to name a
//! place.

use contract::json::{self, Node};
use contract::read::FromJson;

use super::problem::{Lines, Problem, offset};
use super::types::Spec;
use super::validate::validate;

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

impl Encoding {
    /// By the ending of its name; none where CDI's readers pass a file by.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        match std::path::Path::new(path).extension()?.to_str()? {
            "json" => Some(Self::Json),
            "yaml" => Some(Self::Yaml),
            _ => None,
        }
    }
}

/// Reads a file and judges it.
///
/// # Errors
/// All that is wrong with it. What cannot be read is told alone: nothing behind it is known.
pub fn read(bytes: &[u8], encoding: Encoding) -> Result<Spec, Vec<Problem>> {
    match encoding {
        Encoding::Json => document(bytes, &Lines::Same(bytes)),
        Encoding::Yaml => of_yaml(bytes),
    }
}

#[cfg(feature = "yaml")]
fn of_yaml(bytes: &[u8]) -> Result<Spec, Vec<Problem>> {
    let (bytes, lines) = super::yaml::to_json(bytes).map_err(|problem| vec![problem])?;
    document(&bytes, &Lines::Table(lines))
}

#[cfg(not(feature = "yaml"))]
fn of_yaml(_: &[u8]) -> Result<Spec, Vec<Problem>> {
    Err(vec![Problem::whole("this program reads JSON only, and the file is YAML")])
}

fn document(bytes: &[u8], lines: &Lines<'_>) -> Result<Spec, Vec<Problem>> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(vec![Problem::whole("the file is empty")]);
    }
    let node = json::parse_data(bytes)
        .map_err(|error| vec![Problem { at: error.at, line: lines.of(error.offset), message: error.message }])?;
    let problems = match Spec::from_json(&node) {
        Ok(spec) => match validate(&spec) {
            problems if problems.is_empty() => return Ok(spec),
            problems => problems,
        },
        Err(error) => vec![Problem::new(error.at(), error.message())],
    };
    Err(problems.into_iter().map(|problem| placed(problem, &node, lines)).collect())
}

fn placed(problem: Problem, document: &Node<'_>, lines: &Lines<'_>) -> Problem {
    Problem { line: lines.of(offset(document, &problem.at)), ..problem }
}
