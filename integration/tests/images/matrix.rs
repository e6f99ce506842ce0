//! `matrix.txt`: which images, node layouts and capabilities there are, what is asked of each, and how many cells that makes.

use integration::Layout;

/// Everything that can be asked.
pub(crate) const WORDS: [&str; 5] = ["starts", "loads", "lists", "keeps", "installs"];
/// The field cases that rows are about; each has a test, and so has what is about none.
pub(crate) const CASES: [&str; 6] = ["plain", "D02", "D07", "D08", "D09", "D11"];

/// One kind of image.
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) image: String,
    pub(crate) words: Vec<String>,
}

impl Row {
    pub(crate) fn asks(&self, word: &str) -> bool {
        self.words.iter().any(|asked| asked == word)
    }
}

/// What the file says.
#[derive(Default)]
pub(crate) struct Matrix {
    pub(crate) rows: Vec<Row>,
    pub(crate) layouts: Vec<Layout>,
    pub(crate) capabilities: Vec<String>,
    /// Image and reason.
    pub(crate) gaps: Vec<(String, String)>,
    pub(crate) cells: usize,
}

impl Matrix {
    pub(crate) fn read(text: &str) -> Self {
        let mut matrix = Self::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            matrix.line(line).unwrap_or_else(|| panic!("matrix.txt: cannot read the line {line:?}"));
        }
        let cells = matrix.rows.len() * matrix.layouts.len() * matrix.capabilities.len();
        assert_eq!(cells, matrix.cells, "matrix.txt: rows, layouts and capabilities against the number of cells");
        matrix
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (kind, rest) = line.split_once(' ')?;
        match kind {
            "row" => {
                let (case, rest) = rest.split_once(' ')?;
                CASES.contains(&case).then_some(())?;
                let (image, words) = rest.split_once(" | ")?;
                let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
                words.iter().all(|word| WORDS.contains(&word.as_str())).then_some(())?;
                self.rows.push(Row { case: case.to_owned(), image: image.to_owned(), words });
            }
            "gap" => self.gaps.push(rest.split_once(" | ").map(|(image, why)| (image.to_owned(), why.to_owned()))?),
            "layout" => self.layouts.push(match rest {
                "debian" => Layout::Debian,
                "lib64" => Layout::Lib64,
                _ => return None,
            }),
            "capabilities" => self.capabilities.push(rest.to_owned()),
            "cells" => self.cells = rest.parse().ok()?,
            _ => return None,
        }
        Some(())
    }
}
