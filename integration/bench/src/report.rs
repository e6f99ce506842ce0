//! `docs/benchmarks.md` and its drawings, from what was measured.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use integration::Result;

use crate::budgets;
use crate::contests::WAITING;
use crate::figures::Figure;
use crate::growth::Growth;
use crate::plot;
use crate::race::{Middle, Race};
use crate::scene::failed;

/// Everything that is reported.
pub struct Measured {
    /// Machine, versions and date, as lines.
    pub head: Vec<String>,
    /// More processes than processors wanted to run.
    pub crowded: bool,
    /// The wrappers alone.
    pub alone: Race,
    /// Real containers, by low-level runtime.
    pub over: Vec<(String, Race)>,
    /// Sixty-four at once: ms of each round.
    pub at_once: Vec<f64>,
    /// Counts, and the program's size.
    pub counts: (u64, Vec<Figure>),
    /// Peak memory of the counted scenes, in KiB.
    pub memory: Vec<(String, u64)>,
    /// Growth.
    pub growth: Vec<Growth>,
}

/// Writes the page and the drawings into `docs`.
///
/// # Errors
/// A file cannot be written.
pub fn write(docs: &Path, measured: &Measured) -> Result<()> {
    let folder = docs.join("benchmarks");
    fs::create_dir_all(&folder).map_err(|e| failed("create", &folder, &e))?;
    let put = |path: &Path, text: &str| fs::write(path, text).map_err(|e| failed("write", path, &e));
    put(&docs.join("benchmarks.md"), &page(measured))?;
    let bars = |race: &Race| {
        let rows = race.names.iter().enumerate().skip(1).filter(|(_, name)| !name.ends_with("(A/A)"));
        rows.map(|(at, name)| (name.clone(), race.over(at, 0).at)).collect::<Vec<_>>()
    };
    put(&folder.join("alone.svg"), &plot::bars("Wrappers alone: ms over no wrapper", "ms", &bars(&measured.alone)))?;
    for (name, race) in &measured.over {
        let title = format!("Create over {name}: ms over bare {name}");
        put(&folder.join(format!("{name}.svg")), &plot::bars(&title, "ms", &bars(race)))?;
    }
    measured.growth.iter().try_for_each(|growth| {
        let [file, title, across] = growth.words;
        let drawing = |up: &str, lines| plot::lines(title, across, up, lines);
        put(&folder.join(format!("{file}-instructions.svg")), &drawing("instructions", &growth.instructions))?;
        put(&folder.join(format!("{file}-calls.svg")), &drawing("system calls", &growth.calls))
    })
}

fn page(measured: &Measured) -> String {
    let mut page = String::from(
        "# Benchmarks\n\nWritten by `make bench`. Compare rows of one table; times of another machine, or another day, are other \
         times.\n\n",
    );
    // Writing to a String cannot fail.
    for line in &measured.head {
        let _ = writeln!(page, "- {line}");
    }
    page.push_str(HOW);
    if measured.crowded {
        page.push_str(CROWDED);
    }
    page.push_str("\n## Wrappers alone\n\nThe low-level runtime is a program that ends at once. Verification is off: there is no container.\n\n");
    table(&mut page, &measured.alone, 0);
    page.push_str("\n![Wrappers alone](benchmarks/alone.svg)\n");
    for (name, race) in &measured.over {
        let _ = write!(page, "\n## Real containers over {name}\n\n`create`, verification on.\n\n");
        table(&mut page, race, 0);
        let _ = writeln!(page, "\n![Over {name}](benchmarks/{name}.svg)");
        added(&mut page, race);
    }
    page.push_str(&budgets::table(measured));
    let middle = Middle::of(measured.at_once.clone());
    let _ = write!(
        page,
        "\n## Sixty-four creates at one instant\n\nOn eight GPUs, {} rounds: 8 grants and 56 `CAPACITY_FULL` each time, none \
         lost, none given twice; {:.0} ms for all of them ({:.0} to {:.0}), starting the 64 processes included.\n",
        measured.at_once.len(),
        middle.at,
        middle.low,
        middle.high
    );
    page.push_str(
        "\n## Counts\n\nThe same on every run; `make test` fails on more (`integration/bench/figures.txt`).\n\n",
    );
    page.push_str("| call | system calls | instructions | peak MiB |\n| --- | --- | --- | --- |\n");
    for Figure { name, counts } in &measured.counts.1 {
        let million = counts.instructions as f64 / 1e6;
        let told = if counts.instructions == 0 { "–".to_owned() } else { format!("{million:.2} M") };
        let memory = measured.memory.iter().find(|(known, _)| known == name).map_or(0, |(_, memory)| *memory);
        let _ = writeln!(page, "| {name} | {} | {told} | {:.1} |", counts.calls, memory as f64 / 1024.0);
    }
    let _ = writeln!(page, "\nThe runtime has {} bytes.\n\n## Growth\n", measured.counts.0);
    for growth in &measured.growth {
        let [file, title, _] = growth.words;
        let _ = writeln!(
            page,
            "{title}:\n\n![instructions](benchmarks/{file}-instructions.svg) ![system calls](benchmarks/{file}-calls.svg)\n"
        );
    }
    page
}

const CROWDED: &str = "\n**Other programs wanted more processors than there are while this was measured.** Each start then waits for \
    its turn, and one that starts a process waits twice: wall times say little, processor times more, counts all.\n";

const HOW: &str = "\nAll starts of a table were made in turns, one round after the other, in an order that is another one each round. A row says the \
    median, and between which values it lies with 95 % confidence; \"over\" is the median of the differences within a round. A row \
    with (A/A) is the same command once more: what lies between such a pair is what this table cannot tell apart. Instructions are \
    counted by valgrind, without the kernel's, and with SHA-256 in software; on most machines the processor does that.\n";

fn table(page: &mut String, race: &Race, base: usize) {
    let _ = write!(
        page,
        "{} rounds; before {:.0} % of the starts the machine did not come to rest.\n\n| what | wall ms | over {} | processor ms |\n| --- | --- | --- | --- |\n",
        race.rounds(),
        race.restless * 100.0,
        race.names.get(base).map_or("", String::as_str)
    );
    for (at, name) in race.names.iter().enumerate() {
        let (wall, over) = (race.wall(at), race.over(at, base));
        let _ = writeln!(
            page,
            "| {name} | {:.3} | {:+.3} ({:+.3} to {:+.3}) | {:.2} |",
            wall.at,
            over.at,
            over.low,
            over.high,
            race.processor(at).at
        );
    }
}

fn over_of(race: &Race, name: &str, base: &str) -> Option<Middle> {
    let at = |name: &str| race.names.iter().position(|known| known == name);
    Some(race.over(at(name)?, at(base)?))
}

/// What is added to a start that has the same edits already.
fn added(page: &mut String, race: &Race) {
    let same = "the edits already in config.json";
    let Some(own) = over_of(race, "quilt-gpu, 1 GPU", same) else { return };
    let _ = write!(
        page,
        "\nOver the same edits already in `config.json`: quilt-gpu {:+.2} ms ({:+.2} to {:+.2})",
        own.at, own.low, own.high
    );
    if let Some(least) = over_of(race, WAITING, same) {
        let _ = write!(page, ", of which a static program that only waits takes {:+.2} ms", least.at);
    }
    for name in ["NVIDIA, 1 GPU, no hooks", "NVIDIA, 1 GPU, 3 hooks"] {
        if let Some(peer) = over_of(race, name, same) {
            let _ = write!(page, "; {name} {:+.2} ms, {:.1} times as much", peer.at, peer.at / own.at);
        }
    }
    page.push_str(".\n");
}
