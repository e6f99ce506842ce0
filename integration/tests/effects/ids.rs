//! Every id of the two lists that the cases must cover: the ways past a naive check (A to H, with the gaps that the list has),
//! and the attack cases (Q). Without one of them the run fails.

use std::collections::{BTreeMap, BTreeSet};

use crate::case::Case;

/// A letter and its numbers.
const SECTIONS: [(char, &[u32]); 9] = [
    (
        'A',
        &[
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 19, 20, 21, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
            33, 34,
        ],
    ),
    ('B', &[1, 2, 6, 9, 10, 11, 12, 13]),
    ('C', &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
    ('D', &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
    ('E', &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
    ('F', &[1, 6, 7, 8, 9, 11, 12, 13, 14]),
    ('G', &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ('H', &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]),
    (
        'Q',
        &[
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 15, 18, 19, 20, 22, 23, 24, 25, 30, 31, 32, 33, 34, 35, 36, 38, 39,
            41, 42, 43, 44, 45, 46, 47, 49, 50, 52, 53, 55, 56, 57, 58, 59, 60, 61, 62, 63, 65, 66, 67, 68,
        ],
    ),
];

/// All ids, as cases name them: `A1`, `Q07`.
pub(crate) fn all() -> BTreeSet<String> {
    let name =
        |letter: char, number: u32| if letter == 'Q' { format!("Q{number:02}") } else { format!("{letter}{number}") };
    SECTIONS.iter().flat_map(|(letter, numbers)| numbers.iter().map(move |number| name(*letter, *number))).collect()
}

/// What is not as it should be with the cases' ids: those without a case, and those that are none. `L` begins what only looks
/// like a road.
pub(crate) fn wrong(cases: &[Case]) -> Vec<String> {
    let mut missing = all();
    let mut wrong = Vec::new();
    let mut words: BTreeMap<&str, usize> = BTreeMap::new();
    for case in cases {
        *words.entry(case.what).or_default() += 1;
        for id in &case.ids {
            missing.remove(*id);
            if !id.starts_with('L') && !all().contains(*id) {
                wrong.push(format!("{id} is no id: {}", case.what));
            }
        }
    }
    wrong.extend(missing.iter().map(|id| format!("{id} has no case")));
    wrong.extend(
        words.iter().filter(|(_, count)| **count > 1).map(|(what, _)| format!("two cases are called {what:?}")),
    );
    wrong
}
