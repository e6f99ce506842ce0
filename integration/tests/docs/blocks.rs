//! Fenced blocks of a page, with what their info string says: `sh run`, `sh run fails: WORD`, `sh skip: REASON`, or a language
//! in which nothing can be run. Also its links and headings.

/// What is to be done with a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mark {
    /// It is run, and ends well; with a word, it fails and says that word.
    Run {
        /// The word.
        fails: Option<String>,
    },
    /// It is not, and the page says why.
    Skip,
    /// No commands.
    Other,
}

/// A block of a page.
pub(crate) struct Block {
    pub(crate) line: usize,
    pub(crate) mark: Mark,
    pub(crate) text: String,
    /// The info string.
    pub(crate) info: String,
}

/// Languages of what is shown and not run.
const SHOWN: [&str; 5] = ["text", "json", "yaml", "toml", "ini"];

fn mark(info: &str) -> Result<Mark, String> {
    let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
    match (language, rest) {
        ("sh", "run") => Ok(Mark::Run { fails: None }),
        ("sh", rest) => match (rest.strip_prefix("run fails: "), rest.strip_prefix("skip: ")) {
            (Some(word), _) => Ok(Mark::Run { fails: Some(word.to_owned()) }),
            (_, Some(why)) if !why.trim().is_empty() => Ok(Mark::Skip),
            _ => Err(format!("{info:?} is not `sh run`, `sh run fails: WORD` or `sh skip: REASON`")),
        },
        (language, _) if SHOWN.contains(&language) => Ok(Mark::Other),
        _ => Err(format!("{info:?} is no language that is known here")),
    }
}

/// Line, info string and text of each block.
fn fenced(page: &str) -> Vec<(usize, &str, String)> {
    let mut all = Vec::new();
    let mut open: Option<(usize, &str, String)> = None;
    for (at, line) in page.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => open = Some((at + 1, info, String::new())),
            (Some(_), Some(_)) => all.extend(open.take()),
            (Some((.., text)), None) => text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    all.extend(open);
    all
}

/// The mark of each block, or what is wrong with it.
pub(crate) fn marks(page: &str) -> Vec<(usize, Result<Mark, String>)> {
    fenced(page).into_iter().map(|(line, info, _)| (line, mark(info))).collect()
}

/// Every block whose mark can be read.
pub(crate) fn of(page: &str) -> Vec<Block> {
    let blocks = fenced(page).into_iter();
    blocks
        .filter_map(|(line, info, text)| Some(Block { line, mark: mark(info).ok()?, text, info: info.to_owned() }))
        .collect()
}

/// Text before and target of each link outside blocks.
pub(crate) fn links(page: &str) -> Vec<(&str, &str)> {
    let mut all = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        inside ^= line.starts_with("```");
        let mut rest = line;
        while let Some((before, after)) = rest.split_once("](").filter(|_| !inside) {
            let (target, next) = after.split_once(')').unwrap_or((after, ""));
            all.push((before, target));
            rest = next;
        }
    }
    all
}

/// The names by which a page's headings are linked to: small letters, digits, `-` and `_`; blanks are `-`.
pub(crate) fn headings(page: &str) -> impl Iterator<Item = String> {
    let lines = page.lines().filter(|line| line.starts_with('#'));
    lines.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}
