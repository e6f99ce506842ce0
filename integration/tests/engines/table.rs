//! The table as it is printed, and what makes it incomplete.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::behaviours::BEHAVIOURS;
use crate::matrix::{Matrix, Row};

/// How a behaviour went on an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    /// As it should be.
    So,
    /// Not as it should be.
    NotSo(String),
    /// The engine has no such thing.
    Missing(String),
    /// Filtered out.
    NotAsked,
    /// The engine is not here.
    Absent,
}

impl Cell {
    fn word(&self) -> &'static str {
        match self {
            Self::So => "ok",
            Self::NotSo(_) => "NO",
            Self::Missing(_) => "-",
            Self::NotAsked => ".",
            Self::Absent => "skip",
        }
    }
}

/// One engine's cells.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) row: Row,
    /// What the engine says of itself, or why it is not here.
    pub(crate) versions: String,
    pub(crate) cells: Vec<Cell>,
}

impl Line {
    /// Of an engine that did not run at all.
    pub(crate) fn of(row: &Row, versions: String, cell: impl Fn(&str) -> Cell) -> Self {
        Self { row: row.clone(), versions, cells: BEHAVIOURS.iter().map(|(name, _)| cell(name)).collect() }
    }
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) lines: Vec<Line>,
    /// Whether nothing was filtered out.
    pub(crate) whole: bool,
}

impl Table {
    /// The table in columns, what the columns mean, and the reasons of gaps.
    pub(crate) fn text(&self, matrix: &Matrix) -> String {
        let mut text = String::from("\nengine x behaviour (ok, NO, - no such thing there, skip not on this machine)\n");
        for (at, (name, _)) in BEHAVIOURS.iter().enumerate() {
            let _ = writeln!(text, "  {:2} {name}", at + 1);
        }
        let wide = self.lines.iter().map(|line| line.row.title().len()).max().unwrap_or(0);
        let numbers: String = (1..=BEHAVIOURS.len()).map(|at| format!("{at:>5}")).collect();
        let _ = writeln!(text, "{:wide$}{numbers}", "");
        for line in &self.lines {
            let cells: String = line.cells.iter().map(|cell| format!("{:>5}", cell.word())).collect();
            let _ = writeln!(text, "{:wide$}{cells}   {}", line.row.title(), line.versions);
        }
        let mut gaps: BTreeMap<&str, usize> = BTreeMap::new();
        for cell in self.lines.iter().flat_map(|line| &line.cells) {
            if let Cell::Missing(reason) = cell {
                *gaps.entry(reason).or_default() += 1;
            }
        }
        for (reason, count) in gaps {
            let _ = writeln!(text, "  {count} x -: {reason}");
        }
        let (passed, failed, skipped) = self.counts();
        let _ = write!(text, "cells: {} in matrix.txt; {passed} ok, {failed} not, {skipped} skipped", matrix.cells);
        text
    }

    /// Everything that keeps the table from being complete, cells that are not so included.
    pub(crate) fn wrong(&self, matrix: &Matrix) -> Vec<String> {
        let mut wrong = Vec::new();
        for line in &self.lines {
            let title = line.row.title();
            if line.row.mandatory && line.cells.contains(&Cell::Absent) {
                wrong.push(format!("{title} is mandatory and was skipped: {}", line.versions));
            }
            for ((name, _), cell) in BEHAVIOURS.iter().zip(&line.cells) {
                if matches!(cell, Cell::NotSo(_)) {
                    wrong.push(format!("{title}: {name}"));
                }
            }
        }
        let (passed, failed, skipped) = self.counts();
        if self.whole && passed + failed + skipped != matrix.cells {
            let all = passed + failed + skipped;
            wrong.push(format!("{all} cells, matrix.txt says {}: change both or neither", matrix.cells));
        }
        if matrix.count() != matrix.cells {
            wrong.push(format!(
                "rows, behaviours and gaps make {} cells, matrix.txt says {}",
                matrix.count(),
                matrix.cells
            ));
        }
        wrong
    }

    /// Cells that are so, that are not, and of engines that are not here.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let of = |is: fn(&Cell) -> bool| self.lines.iter().flat_map(|line| &line.cells).filter(|cell| is(cell)).count();
        let absent = of(|cell| *cell == Cell::Absent);
        (of(|cell| *cell == Cell::So), of(|cell| matches!(cell, Cell::NotSo(_))), absent)
    }
}
