//! A cache with libraries of ours in it: what `ldconfig` would write if it found them, without running it.
//!
//! The image's own entries and strings are kept byte by byte; only offsets move. What contradicts itself is an error and
//! changes nothing.

use std::cmp::Ordering;
use std::ops::Range;

use super::{CacheError, ENTRY_BYTES, Entry, HEADER_BYTES, MAGIC, parse, skip_old_part, u32_at};

/// Where the header says how long the strings are, and where the part behind them begins (glibc 2.33 and later).
const STRING_BYTES_AT: usize = 24;
const EXTENSION_AT: usize = 32;
const EXTENSION_MAGIC: u32 = 0xeaa4_2174;
const MAX_SECTIONS: u32 = 16;
const SECTION_BYTES: usize = 16;
/// The section that names folders for hardware variants, by the offset of each name.
const TAG_HWCAPS: u32 = 1;
/// The most names in it; real ones have about four.
const MAX_HWCAPS: usize = 1024;

/// The bytes of a cache in which each of `ours` stands before all others of its name and ABI, variants for some hardware
/// included: the loader takes the first. `None` when it says so already.
///
/// # Errors
/// The cache cannot be read whole.
pub fn with(bytes: &[u8], ours: &[Entry<'_>]) -> Result<Option<Vec<u8>>, CacheError> {
    let cache = skip_old_part(bytes)?;
    let there = parse(cache)?;
    let entry = |slot: usize| there.get(slot).or_else(|| ours.get(slot.checked_sub(there.len())?));
    let compared = |slot: &usize, with: &Entry<'_>| entry(*slot).map_or(Ordering::Greater, |e| order(e, with));
    let mut slots: Vec<usize> = (0..there.len()).collect();
    for (at, our) in ours.iter().enumerate() {
        let start = slots.partition_point(|slot| compared(slot, our).is_lt());
        let first = slots.get(start).and_then(|slot| entry(*slot));
        if first != Some(our) {
            slots.insert(start, there.len() + at);
        }
    }
    if slots.len() == there.len() {
        return Ok(None);
    }
    let strings = there.iter().flat_map(|entry| [entry.name, entry.path]);
    let ends = strings.map(|text| (text.as_ptr().addr() + text.len()).saturating_sub(cache.as_ptr().addr()));
    written(cache, (there.len(), ends.max().unwrap_or_default()), &slots, ours).map(Some)
}

/// The order of entries: falling by name and flags (glibc's `elf/cache.c`). The loader's search halves a list so sorted.
fn order(a: &Entry<'_>, b: &Entry<'_>) -> Ordering {
    compare(b.name.as_bytes(), a.name.as_bytes()).then(b.flags.cmp(&a.flags))
}

/// Compares names as the loader does (`_dl_cache_libcmp`): numbers count as numbers, and come behind all else.
fn compare(mut a: &[u8], mut b: &[u8]) -> Ordering {
    loop {
        let ordering = match (a.split_first(), b.split_first()) {
            (Some((x, _)), Some((y, _))) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let ((x, left), (y, right)) = (number(a), number(b));
                (a, b) = (left, right);
                x.cmp(&y)
            }
            (Some((x, _)), _) if x.is_ascii_digit() => Ordering::Greater,
            (_, Some((y, _))) if y.is_ascii_digit() => Ordering::Less,
            (Some((x, left)), Some((y, right))) => {
                (a, b) = (left, right);
                x.cmp(y)
            }
            (x, y) => return x.is_some().cmp(&y.is_some()),
        };
        if ordering.is_ne() {
            return ordering;
        }
    }
}

fn number(text: &[u8]) -> (i32, &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let value = digits.iter().fold(0_i32, |value, digit| value.wrapping_mul(10).wrapping_add(i32::from(digit - b'0')));
    (value, rest)
}

/// The cache with these entries, each by its place among `there` old ones and ours behind them. The old strings and what
/// stands behind them stay together and move by one distance; our strings come last.
fn written(
    cache: &[u8],
    (there, ends): (usize, usize),
    slots: &[usize],
    ours: &[Entry<'_>],
) -> Result<Vec<u8>, CacheError> {
    let start = HEADER_BYTES + there * ENTRY_BYTES;
    let by = (slots.len() - there) * ENTRY_BYTES;
    let (table, tail) = cache.split_at_checked(start).ok_or(CacheError::Truncated)?;
    let mut added = Vec::new();
    let mut out = Vec::with_capacity(cache.len() + ours.len() * 128);
    out.extend_from_slice(table.get(..HEADER_BYTES).unwrap_or_default());
    for &slot in slots {
        if let Some(our) = slot.checked_sub(there).and_then(|at| ours.get(at)) {
            // A path ends with the name: one string for both.
            let path = cache.len() + by + added.len();
            let name = path + our.path.len().saturating_sub(our.name.len());
            added.extend_from_slice(our.path.as_bytes());
            added.push(0);
            put(&mut out, &[our.flags, name as u32, path as u32, 0, our.hwcap as u32, (our.hwcap >> 32) as u32]);
        } else {
            let at = out.len();
            let raw = table.get(HEADER_BYTES + slot * ENTRY_BYTES..).and_then(|raw| raw.get(..ENTRY_BYTES));
            out.extend_from_slice(raw.unwrap_or_default());
            let moved = shift(&mut out, at + 4, start, by).and_then(|()| shift(&mut out, at + 8, start, by));
            moved.ok_or(CacheError::BadString { entry: slot })?;
        }
    }
    out.extend_from_slice(tail);
    out.extend_from_slice(&added);
    set(&mut out, MAGIC.len(), slots.len() as u32);
    let strings = out.len() - start - by;
    set(&mut out, STRING_BYTES_AT, strings as u32);
    extension(&mut out, start, by, ends + by..(cache.len() + by).saturating_sub(3)).ok_or(CacheError::Truncated)?;
    Ok(out)
}

/// Moves the offsets of the part behind the strings (glibc's `struct cache_extension`), where there is one. In an image's that
/// is no glibc's it may claim to lie anywhere: nothing outside its `place`, behind the old strings, is changed.
fn extension(out: &mut [u8], start: usize, by: usize, place: Range<usize>) -> Option<()> {
    if u32_at(out, EXTENSION_AT)? == 0 {
        return Some(());
    }
    shift(out, EXTENSION_AT, start, by)?;
    let at = u32_at(out, EXTENSION_AT)? as usize;
    let count = u32_at(out, at + 4).filter(|count| *count <= MAX_SECTIONS)?;
    if u32_at(out, at)? != EXTENSION_MAGIC {
        return None;
    }
    for section in (0..count as usize).map(|index| at + 8 + index * SECTION_BYTES) {
        shift(out, Some(section + 8).filter(|at| place.contains(at))?, start, by)?;
        let (offset, bytes) = (u32_at(out, section + 8)? as usize, u32_at(out, section + 12)? as usize);
        if u32_at(out, section)? == TAG_HWCAPS {
            for name in 0..(bytes / 4).min(MAX_HWCAPS) {
                shift(out, Some(offset + name * 4).filter(|at| place.contains(at))?, start, by)?;
            }
        }
    }
    Some(())
}

/// Moves an offset that leads behind `start`. `None` for any other.
fn shift(out: &mut [u8], at: usize, start: usize, by: usize) -> Option<()> {
    let old = u32_at(out, at).filter(|old| *old as usize >= start)?;
    set(out, at, old.checked_add(by as u32)?);
    Some(())
}

fn put(out: &mut Vec<u8>, words: &[u32]) {
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

/// Overwrites four bytes.
fn set(out: &mut [u8], at: usize, value: u32) {
    if let Some(place) = out.get_mut(at..at + 4) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests;
