//! A unified diff of two texts, as `diff -u` and `patch` write and read it.

/// Lines around a change.
const CONTEXT: usize = 3;
/// Most pairs of lines that are compared; where there are more, all of the one side is gone and all of the other new.
const MOST: usize = 4 << 20;

/// What became of one line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Gone,
    New,
}

/// The differences; nothing where there are none. None stands for a file that is not there.
pub(super) fn unified(path: &str, before: Option<&str>, after: Option<&str>) -> String {
    let name = |text: Option<&str>, side: &str| match text {
        Some(_) => format!("{side}/{}", path.trim_start_matches('/')),
        None => "/dev/null".to_owned(),
    };
    let (old, new) = (before.unwrap_or_default(), after.unwrap_or_default());
    if old == new && before.is_some() == after.is_some() {
        return String::new();
    }
    let (old, new): (Vec<&str>, Vec<&str>) = (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
    let script = script(&old, &new);
    let mut out = format!("--- {}\n+++ {}\n", name(before, "a"), name(after, "b"));
    for hunk in hunks(&script) {
        out.push_str(&printed(&script, hunk));
    }
    out
}

/// The lines of both, in order, by the longest common part between equal ends.
fn script<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<(Fate, &'a str)> {
    let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - head;
    let tail = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let middle = |lines: &[&'a str]| lines.get(head..lines.len() - tail).unwrap_or_default().to_vec();
    let kept = |line: &&'a str| (Fate::Kept, *line);
    let mut out: Vec<(Fate, &str)> = old.iter().take(head).map(kept).collect();
    out.extend(common(&middle(old), &middle(new)));
    out.extend(old.iter().skip(old.len() - tail).map(kept));
    out
}

fn common<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<(Fate, &'a str)> {
    if old.len().saturating_mul(new.len()) > MOST {
        let gone = old.iter().map(|line| (Fate::Gone, *line));
        return gone.chain(new.iter().map(|line| (Fate::New, *line))).collect();
    }
    let width = new.len() + 1;
    let mut longest = vec![0u32; (old.len() + 1) * width];
    let at = |longest: &[u32], i: usize, j: usize| longest.get(i * width + j).copied().unwrap_or_default();
    for (i, a) in old.iter().enumerate().rev() {
        for (j, b) in new.iter().enumerate().rev() {
            let best = if a == b {
                at(&longest, i + 1, j + 1) + 1
            } else {
                at(&longest, i + 1, j).max(at(&longest, i, j + 1))
            };
            if let Some(cell) = longest.get_mut(i * width + j) {
                *cell = best;
            }
        }
    }
    let (mut i, mut j, mut out) = (0, 0, Vec::new());
    while let (a, b) = (old.get(i), new.get(j))
        && (a.is_some() || b.is_some())
    {
        match (a, b) {
            (Some(a), Some(b)) if a == b => {
                out.push((Fate::Kept, *a));
                (i, j) = (i + 1, j + 1);
            }
            (Some(a), b) if b.is_none() || at(&longest, i + 1, j) >= at(&longest, i, j + 1) => {
                out.push((Fate::Gone, *a));
                i += 1;
            }
            (_, Some(b)) => {
                out.push((Fate::New, *b));
                j += 1;
            }
            _ => break,
        }
    }
    out
}

/// The parts of the script that are shown.
fn hunks(script: &[(Fate, &str)]) -> Vec<std::ops::Range<usize>> {
    let mut out: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, _) in script.iter().enumerate().filter(|(_, (fate, _))| *fate != Fate::Kept) {
        let (from, to) = (at.saturating_sub(CONTEXT), (at + 1 + CONTEXT).min(script.len()));
        match out.last_mut().filter(|last| last.end >= from) {
            Some(last) => last.end = to,
            None => out.push(from..to),
        }
    }
    out
}

fn printed(script: &[(Fate, &str)], hunk: std::ops::Range<usize>) -> String {
    let count = |lines: &[(Fate, &str)], other: Fate| lines.iter().filter(|(fate, _)| *fate != other).count();
    let before = script.get(..hunk.start).unwrap_or_default();
    let lines = script.get(hunk).unwrap_or_default();
    let place = |other: Fate| {
        let (first, many) = (count(before, other), count(lines, other));
        // An empty side stands behind the line before it.
        format!("{},{many}", if many == 0 { first } else { first + 1 })
    };
    let mut out = format!("@@ -{} +{} @@\n", place(Fate::New), place(Fate::Gone));
    for (fate, line) in lines {
        out.push(match fate {
            Fate::Kept => ' ',
            Fate::Gone => '-',
            Fate::New => '+',
        });
        out.push_str(line);
        if !line.ends_with('\n') {
            out.push_str("\n\\ No newline at end of file\n");
        }
    }
    out
}
