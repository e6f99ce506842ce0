//! The engine × behaviour matrix: one table of behaviours, tried on every engine, low-level runtime and version of control
//! groups in `matrix.txt`.
//!
//! A program of its own instead of `#[test]`s: its result is a table. Words filter rows and behaviours
//! (`cargo test --test engines -- docker-26 privileged`); without them the number of cells must be the one in the file.

mod behaviours;
mod matrix;
mod rows;
mod table;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use integration::{root_for, say};

use behaviours::{BEHAVIOURS, Behaviour};
use matrix::{Matrix, Row};
use rows::Yard;
use table::{Cell, Line, Table};

/// Engines at a time.
const AT_ONCE: usize = 2;

fn main() -> ExitCode {
    let words: Vec<String> = integration::filter_words();
    if std::env::args().any(|word| word == "--list") {
        return ExitCode::SUCCESS;
    }
    let matrix = match Matrix::read(include_str!("matrix.txt")) {
        Ok(matrix) => matrix,
        Err(why) => {
            say(format_args!("matrix.txt: {why}"));
            return ExitCode::FAILURE;
        }
    };
    if !root_for("the matrix of engines") {
        say("test result: ok. 0 passed; 0 failed; 1 ignored");
        return ExitCode::SUCCESS;
    }
    let known = |word: &String| {
        let rows = matrix.rows.iter().any(|row| row.title().contains(word.as_str()));
        rows || BEHAVIOURS.iter().any(|(name, _)| name.contains(word.as_str()))
    };
    // Filters of a whole workspace's tests reach us too: what is no row and no behaviour means somebody else.
    if words.iter().any(|word| !known(word)) {
        say("test result: ok. 0 passed; 0 failed; 0 ignored");
        return ExitCode::SUCCESS;
    }
    let table = Table { lines: all(&matrix, &words), whole: words.is_empty() };
    say(table.text(&matrix));
    let wrong = table.wrong(&matrix);
    for line in &wrong {
        say(format_args!("NOT SO: {line}"));
    }
    let (passed, failed, skipped) = table.counts();
    let failed = failed.max(usize::from(!wrong.is_empty()));
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    say(format_args!("test result: {verdict}. {passed} passed; {failed} failed; {skipped} ignored"));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Every row that the words let through, several at a time.
fn all(matrix: &Matrix, words: &[String]) -> Vec<Line> {
    let of_rows: Vec<&String> =
        words.iter().filter(|word| matrix.rows.iter().any(|row| row.title().contains(word.as_str()))).collect();
    let wanted = |row: &Row| of_rows.is_empty() || of_rows.iter().all(|word| row.title().contains(word.as_str()));
    let rows: Vec<(usize, &Row)> = matrix.rows.iter().enumerate().filter(|(_, row)| wanted(row)).collect();
    let waiting = Mutex::new(VecDeque::from(rows));
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((at, row)) = next(&waiting) {
                    let line = line(matrix, row, words);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((at, line));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, line)| line).collect()
}

fn next<T>(waiting: &Mutex<VecDeque<T>>) -> Option<T> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

/// One engine, through all behaviours.
fn line(matrix: &Matrix, row: &Row, words: &[String]) -> Line {
    let begun = Instant::now();
    let mut yard = match Yard::new(row) {
        Ok(Ok(yard)) => yard,
        Ok(Err(absent)) => {
            say(format_args!("SKIPPED {}: {absent}", row.title()));
            return Line::of(row, absent, |name| gap(matrix, row, name).unwrap_or(Cell::Absent));
        }
        Err(why) => {
            let why = why.to_string();
            return Line::of(row, why.clone(), |name| {
                gap(matrix, row, name).unwrap_or_else(|| Cell::NotSo(why.clone()))
            });
        }
    };
    let mut cells = Vec::new();
    for (name, behaviour) in BEHAVIOURS {
        let of_row = words.iter().all(|word| row.title().contains(word.as_str()) || name.contains(word.as_str()));
        cells.push(match gap(matrix, row, name) {
            _ if !of_row => Cell::NotAsked,
            Some(gap) => gap,
            None => match tried(behaviour, &mut yard) {
                Ok(()) => Cell::So,
                Err(why) => {
                    say(format_args!("FAILED {}: {name}: {why}", row.title()));
                    yard.sweep();
                    Cell::NotSo(why.to_string())
                }
            },
        });
    }
    let versions = yard.versions();
    drop(yard);
    say(format_args!("{}: {versions}: {} s", row.title(), begun.elapsed().as_secs()));
    Line { row: row.clone(), versions, cells }
}

/// Tries a behaviour; again where youki, and nobody else, stumbled over itself.
fn tried(behaviour: Behaviour, yard: &mut Yard) -> integration::Result<()> {
    let once = |yard: &mut Yard| behaviour(yard).and_then(|()| yard.clean());
    match once(yard) {
        Err(why) if why.to_string().contains("failed to seal /proc/self/exe") => {
            say(format_args!("youki could not seal itself; once more: {why}"));
            yard.sweep();
            once(yard)
        }
        ended => ended,
    }
}

fn gap(matrix: &Matrix, row: &Row, behaviour: &str) -> Option<Cell> {
    matrix.missing(row, behaviour).map(|reason| Cell::Missing(reason.to_owned()))
}
