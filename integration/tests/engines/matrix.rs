//! `matrix.txt`: which rows there are, how many cells, and which are missing for which reason.

use integration::Groups;

use crate::behaviours::BEHAVIOURS;

/// One engine over one low-level runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// `docker`, `ctr`, `cri`, `podman`.
    pub(crate) engine: String,
    /// `20`, `1.7`, `5.4`.
    pub(crate) release: String,
    /// `runc-1.1`.
    pub(crate) low_level: String,
    /// Control groups around it.
    pub(crate) groups: Groups,
    /// Whether its containers have user namespaces unless they say otherwise (Docker's `userns-remap`).
    pub(crate) remapped: bool,
    /// Whether the engine keeps its runtime and calls quilt-gpu's hooks.
    pub(crate) hooked: bool,
    /// Whether the table is incomplete without it.
    pub(crate) mandatory: bool,
}

impl Row {
    /// `docker-26 runc-1.1 v2`.
    pub(crate) fn title(&self) -> String {
        let way = if self.remapped {
            " remapped"
        } else if self.hooked {
            " hooked"
        } else {
            ""
        };
        format!("{}-{} {} {}{way}", self.engine, self.release, self.low_level, self.groups.name())
    }
}

/// What the file says.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(crate) rows: Vec<Row>,
    /// How many cells there are in all, those of absent engines included.
    pub(crate) cells: usize,
    /// Beginning of a row's title (whole with `$`), behaviour, reason.
    gaps: Vec<(String, String, String)>,
}

impl Matrix {
    /// Reads the file's text.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut matrix = Self { rows: Vec::new(), cells: 0, gaps: Vec::new() };
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            matrix.line(line).ok_or_else(|| format!("cannot read the line {line:?}"))?;
        }
        for (row, behaviour, _) in &matrix.gaps {
            if !matrix.rows.iter().any(|one| is_of(&one.title(), row)) {
                return Err(format!("a gap in a row {row} that does not exist"));
            }
            if !BEHAVIOURS.iter().any(|(name, _)| name == behaviour) {
                return Err(format!("a gap in a behaviour {behaviour} that does not exist"));
            }
        }
        Ok(matrix)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (kind, rest) = line.split_once(' ')?;
        let rest = rest.trim();
        match kind {
            "row" => {
                let mut words: Vec<&str> = rest.split_whitespace().collect();
                let way = if words.len() == 5 { words.remove(3) } else { "" };
                let (remapped, hooked) = (way == "remapped", way == "hooked");
                let [name, low_level, groups, need] = words[..] else { return None };
                let (engine, release) = name.split_once('-')?;
                let groups = [Groups::Hybrid, Groups::V1, Groups::V2].into_iter().find(|one| one.name() == groups)?;
                let mandatory = ["optional", "mandatory"].iter().position(|word| *word == need)? == 1;
                let [engine, release, low_level] = [engine, release, low_level].map(str::to_owned);
                self.rows.push(Row { engine, release, low_level, groups, remapped, hooked, mandatory });
            }
            "cells" => self.cells = rest.parse().ok()?,
            "gap" => {
                let (row, rest) = rest.split_once(" | ")?;
                let (behaviour, reason) = rest.split_once(" | ")?;
                let [row, behaviour, reason] = [row, behaviour, reason].map(|word| word.trim().to_owned());
                self.gaps.push((row, behaviour, reason));
            }
            _ => return None,
        }
        Some(())
    }

    /// Why this cell does not exist.
    pub(crate) fn missing(&self, row: &Row, behaviour: &str) -> Option<&str> {
        let title = row.title();
        let gap = self.gaps.iter().find(|(of, what, _)| is_of(&title, of) && what == behaviour)?;
        Some(&gap.2)
    }

    /// How many cells rows and gaps make.
    pub(crate) fn count(&self) -> usize {
        let of = |row: &Row| BEHAVIOURS.iter().filter(|(name, _)| self.missing(row, name).is_none()).count();
        self.rows.iter().map(of).sum()
    }
}

/// Whether a row's title begins with this; with `$` at its end, whether it is this.
fn is_of(title: &str, beginning: &str) -> bool {
    beginning.strip_suffix('$').map_or_else(|| title.starts_with(beginning), |whole| title == whole)
}
