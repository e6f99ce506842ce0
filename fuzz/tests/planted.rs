//! What `planted.sh` plants has its place in the tree of today: one target each, and each target one.

use std::path::Path;

use fuzz::TARGETS;

/// The fields of a line, in which `\\|` is no end.
fn fields(line: &str) -> Vec<String> {
    line.replace("\\|", "\0").split('|').map(|field| field.replace('\0', "|")).collect()
}

#[test]
fn every_target_has_a_mistake_that_can_be_planted() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = std::fs::read_to_string(here.join("planted.txt")).unwrap();
    let mut targets = Vec::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let fields = fields(line);
        let [target, file, old, new] = fields.as_slice() else { panic!("{line} has {} fields", fields.len()) };
        let text = std::fs::read_to_string(here.join("..").join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert_eq!(text.matches(old).count(), 1, "{target}: {file} has not exactly one `{old}`");
        assert_ne!(old, new, "{target}");
        targets.push(target.clone());
    }
    targets.sort();
    assert_eq!(targets, TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
}
