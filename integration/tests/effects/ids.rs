//! Every id of the two lists that the cases must cover: the ways past a naive check (A to H, with the gaps that the list has),
//! the attack cases (Q), and the vulnerabilities of others. Without one of them the run fails.

use std::collections::{BTreeMap, BTreeSet};

use crate::case::{Act, Bare, Case, Verdict};

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

/// Vulnerabilities of others whose kind could happen here: NVIDIA's tools, runc, crun, youki, containerd, CRI-O, Kata.
const OTHERS: &[&str] = &[
    "CVE-2019-5736",
    "CVE-2020-2023",
    "CVE-2021-1056",
    "CVE-2021-30465",
    "CVE-2021-43816",
    "CVE-2022-0811",
    "CVE-2022-27650",
    "CVE-2022-29162",
    "CVE-2023-25809",
    "CVE-2023-27561",
    "CVE-2023-28642",
    "CVE-2024-0132",
    "CVE-2024-0133",
    "CVE-2024-0134",
    "CVE-2024-0135",
    "CVE-2024-0136",
    "CVE-2024-0137",
    "CVE-2024-21626",
    "CVE-2024-3154",
    "CVE-2024-45310",
    "CVE-2025-23266",
    "CVE-2025-23267",
    "CVE-2025-23359",
    "CVE-2025-24965",
    "CVE-2025-31133",
    "CVE-2025-52565",
    "CVE-2025-52881",
    "CVE-2025-54867",
    "CVE-2025-62161",
    "CVE-2025-62596",
    "CVE-2026-24260",
    "CVE-2026-30892",
    "CVE-2026-41579",
    "CVE-2026-47262",
    "CVE-2026-47766",
    "CVE-2026-50195",
    "CVE-2026-53488",
    "CVE-2026-53489",
    "CVE-2026-53492",
    "GHSA-g54h-m393-cpwq",
];

/// All ids, as cases name them: `A1`, `Q07`.
pub(crate) fn all() -> BTreeSet<String> {
    let name =
        |letter: char, number: u32| if letter == 'Q' { format!("Q{number:02}") } else { format!("{letter}{number}") };
    let listed = SECTIONS.iter().flat_map(|(letter, numbers)| numbers.iter().map(move |number| name(*letter, *number)));
    listed.chain(OTHERS.iter().map(|id| (*id).to_owned())).collect()
}

/// Where any end is right, the bare runtime must show what may not be there.
fn shows_nothing(case: &Case) -> bool {
    let Act::Deed(deed) = &case.act else { return false };
    let any = [Some(deed.standard), deed.asking, Some(deed.hardened)].contains(&Some(Verdict::Either));
    any && deed.places.iter().all(|(_, bare)| *bare != Bare::Exposes)
}

/// What is not as it should be with the cases' ids: those without a case, and those that are none. `L` begins what only looks
/// like a road.
pub(crate) fn wrong(cases: &[Case]) -> Vec<String> {
    let mut missing = all();
    let mut wrong = Vec::new();
    let mut words: BTreeMap<&str, usize> = BTreeMap::new();
    for case in cases {
        *words.entry(case.what).or_default() += 1;
        if shows_nothing(case) {
            wrong.push(format!("whatever becomes of it, this case passes: {}", case.what));
        }
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
