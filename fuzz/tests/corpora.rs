//! Every input in the corpora is tried, and what makes a corpus useful is there.

use std::path::{Path, PathBuf};

use fuzz::TARGETS;

fn inputs(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    files.sort();
    files
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Tries the inputs of a folder, naming the one that fails.
fn holds(target: &str, run: fn(&[u8]), files: &[PathBuf]) {
    for file in files {
        let bytes = std::fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let outcome = std::panic::catch_unwind(|| run(&bytes));
        assert!(outcome.is_ok(), "{target} does not hold for {}", file.display());
        // What begins or ends like it is an input of another kind.
        for cut in [0, bytes.len() / 2, bytes.len().saturating_sub(1)] {
            let (front, back) = bytes.split_at(cut);
            let outcome = std::panic::catch_unwind(|| (run(front), run(back)));
            assert!(outcome.is_ok(), "{target} does not hold for {} cut at {cut}", file.display());
        }
    }
}

#[test]
fn every_input_holds() {
    let samples = inputs(&here().join("../integration/samples"));
    assert!(samples.len() >= 20, "the engines' samples are not there");
    for (target, run) in TARGETS {
        let files = inputs(&here().join("corpora").join(target));
        assert!(files.len() >= 10, "{target} has {} inputs", files.len());
        holds(target, *run, &files);
        if matches!(*target, "json" | "guard") {
            holds(target, *run, &samples);
        }
    }
}

#[test]
fn every_corpus_has_a_target() {
    let mut folders: Vec<String> = std::fs::read_dir(here().join("corpora"))
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    folders.sort();
    assert_eq!(folders, TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
}
