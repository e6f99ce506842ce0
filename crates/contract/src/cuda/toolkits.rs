//! What NVIDIA says about its toolkits, as tables: which driver each was released with, where minor version compatibility
//! begins, and which GPUs each makes code for. Data and look-ups, no judgement.
//!
//! Sources: the release notes of CUDA Toolkit 7.5 to 13.3 (table "CUDA Toolkit and Corresponding Driver Versions", the
//! Linux column, each version's first release; "Minimum Required Driver Version for CUDA Minor Version Compatibility";
//! "Deprecated Architectures"), and `nvcc --list-gpu-arch` of those toolkits as their documentation has it.

use super::{Verdict, Version};

/// CUDA major and minor, and the driver that this toolkit was released with. Oldest first.
const DRIVERS: [(u8, u8, [u16; 3]); 30] = [
    (7, 5, [352, 31, 0]),
    (8, 0, [367, 48, 0]),
    (9, 0, [384, 81, 0]),
    (9, 1, [390, 46, 0]),
    (9, 2, [396, 26, 0]),
    (10, 0, [410, 48, 0]),
    (10, 1, [418, 39, 0]),
    (10, 2, [440, 33, 0]),
    (11, 0, [450, 36, 6]),
    (11, 1, [455, 23, 0]),
    (11, 2, [460, 27, 3]),
    (11, 3, [465, 19, 1]),
    (11, 4, [470, 42, 1]),
    (11, 5, [495, 29, 5]),
    (11, 6, [510, 39, 1]),
    (11, 7, [515, 43, 4]),
    (11, 8, [520, 61, 5]),
    (12, 0, [525, 60, 13]),
    (12, 1, [530, 30, 2]),
    (12, 2, [535, 54, 3]),
    (12, 3, [545, 23, 6]),
    (12, 4, [550, 54, 14]),
    (12, 5, [555, 42, 2]),
    (12, 6, [560, 28, 3]),
    (12, 8, [570, 26, 0]),
    (12, 9, [575, 51, 3]),
    (13, 0, [580, 65, 6]),
    (13, 1, [590, 44, 1]),
    (13, 2, [595, 45, 4]),
    (13, 3, [610, 43, 2]),
];

/// CUDA major, and the oldest driver that runs all its toolkits.
const MINOR: [(u64, [u16; 3]); 3] = [(11, [450, 80, 2]), (12, [525, 60, 13]), (13, [580, 0, 0])];

/// Compute capability, and the first toolkit that makes code for it. Sorted.
const FIRST: [((u8, u8), (u8, u8)); 23] = [
    ((3, 5), (5, 0)),
    ((3, 7), (6, 5)),
    ((5, 0), (6, 0)),
    ((5, 2), (6, 5)),
    ((5, 3), (7, 0)),
    ((6, 0), (8, 0)),
    ((6, 1), (8, 0)),
    ((6, 2), (8, 0)),
    ((7, 0), (9, 0)),
    ((7, 2), (9, 2)),
    ((7, 5), (10, 0)),
    ((8, 0), (11, 0)),
    ((8, 6), (11, 1)),
    ((8, 7), (11, 4)),
    ((8, 8), (13, 0)),
    ((8, 9), (11, 8)),
    ((9, 0), (11, 8)),
    ((10, 0), (12, 8)),
    ((10, 1), (12, 8)),
    ((10, 3), (12, 9)),
    ((11, 0), (13, 0)),
    ((12, 0), (12, 8)),
    ((12, 1), (12, 9)),
];

/// Compute capabilities below the first have the second as their last toolkit.
const LAST: [((u8, u8), (u8, u8)); 2] = [((5, 0), (11, 8)), ((7, 5), (12, 9))];

/// The family of products whose driver accepts newer user-mode libraries.
pub(super) const DATA_CENTRE: &str = "tesla";

fn pair((major, minor): (u8, u8)) -> Version {
    Version::new([major.into(), minor.into(), 0])
}

/// The newest CUDA that a driver serves. Of branches beyond either end of the table nothing is known.
pub(super) fn served_by(version: Version) -> Option<Version> {
    let known = DRIVERS.last().is_some_and(|(.., numbers)| version.major() <= Version::new(*numbers).major());
    let row = DRIVERS.iter().rev().find(|(.., numbers)| Version::new(*numbers) <= version);
    row.filter(|_| known).map(|(major, minor, _)| pair((*major, *minor)))
}

/// The driver that a toolkit was released with.
pub(super) fn made_for(cuda: Version) -> Option<Version> {
    DRIVERS.iter().find(|(major, minor, _)| pair((*major, *minor)) == cuda).map(|(.., numbers)| Version::new(*numbers))
}

/// The oldest driver that runs every toolkit of a major version; CUDA before 11 had no such promise.
pub(super) fn minor_compatible(major: u64) -> Option<Version> {
    MINOR.iter().find(|(known, _)| *known == major).map(|(_, driver)| Version::new(*driver))
}

/// What a toolkit that is too old or too new for a compute capability comes to, and the version that would do, below or
/// above. Nothing for one that makes code for it, and for a capability that we do not know.
pub(super) fn target(toolkit: Version, capability: Version) -> Option<(Verdict, Version, bool)> {
    let dropped = LAST.iter().find(|(below, _)| capability < pair(*below));
    // Code for an older GPU of the same major capability runs on later ones too.
    let (mut first, mut family) = (None, false);
    for (known, since) in FIRST {
        let (known, since) = (pair(known), pair(since));
        if known == capability {
            first = Some(since);
        }
        family |= known.major() == capability.major() && known < capability && since <= toolkit;
    }
    let first = first?;
    match dropped {
        Some((_, last)) if toolkit > pair(*last) => Some((Verdict::Architecture, pair(*last), true)),
        _ if toolkit >= first => None,
        _ if family => Some((Verdict::Supported, first, false)),
        _ => Some((Verdict::Architecture, first, false)),
    }
}

/// The family of a product by its name. NVIDIA's own brands are finer, and drivers differ in them.
pub(super) fn brand(model: &str) -> &'static str {
    let families = ["geforce", "titan", "quadro", "grid", "rtx"];
    match families.into_iter().find(|word| (0..model.len()).any(|at| begins(model.get(at..), word))) {
        Some("rtx") => "nvidiartx",
        Some(family) => family,
        None => DATA_CENTRE,
    }
}

/// Whether a brand in a condition stands for a family: `tesla` and `nvidia` are the data centre's, old and new.
pub(super) fn is_family(named: &str, family: &str) -> bool {
    let fine = named.len() == family.len() || begins(named.get(family.len()..), "rtx");
    begins(Some(named), family) && fine || family == DATA_CENTRE && begins(Some(named), "nvidia") && named.len() == 6
}

/// Whether a text begins with a word in whatever case. Never inlined: the standard library's comparison is large.
#[inline(never)]
fn begins(text: Option<&str>, word: &str) -> bool {
    let Some(text) = text else { return false };
    let same = text.bytes().zip(word.bytes()).all(|(a, b)| a.to_ascii_lowercase() == b);
    same && text.len() >= word.len()
}
