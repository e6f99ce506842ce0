//! A cache with libraries of ours in it: what `ldconfig` would write if it found them, without running it.
//!
//! The image's own entries and strings are kept byte by byte; only offsets move. What contradicts itself is an error and
//! changes nothing.

use std::cmp::Ordering;

use super::{CacheError, ENTRY_BYTES, Entry, HEADER_BYTES, MAGIC, parse, skip_old_part, string_at, u32_at};

/// Where the header says how long the strings are, and where the part behind them begins (glibc 2.33 and later).
const STRING_BYTES_AT: usize = 24;
const EXTENSION_AT: usize = 32;
const EXTENSION_MAGIC: u32 = 0xeaa4_2174;
const MAX_SECTIONS: u32 = 16;
const SECTION_BYTES: usize = 16;
/// The longest section worth keeping; real ones have about 60 bytes.
const MAX_SECTION: usize = 4096;
/// Text that says who wrote the cache, and the names of folders for hardware variants, as offsets.
const TAG_GENERATOR: u32 = 0;
const TAG_HWCAPS: u32 = 1;

/// The bytes of a cache in which each of `ours` is the only entry of its name and ABI: the loader takes the first that it
/// finds, and hardware variants before all others. `None` when it says so already.
///
/// # Errors
/// The cache cannot be read whole.
pub fn with(bytes: &[u8], ours: &[Entry<'_>]) -> Result<Option<Vec<u8>>, CacheError> {
    let cache = skip_old_part(bytes)?;
    let there = parse(cache)?;
    let entry = |slot: usize| there.get(slot).or_else(|| ours.get(slot.checked_sub(there.len())?));
    let compared = |slot: &usize, with: &Entry<'_>| entry(*slot).map_or(Ordering::Greater, |e| order(e, with));
    let mut slots: Vec<usize> = (0..there.len()).collect();
    let mut changed = false;
    for (at, our) in ours.iter().enumerate() {
        let start = slots.partition_point(|slot| compared(slot, our).is_lt());
        let same = slots.iter().skip(start).take_while(|slot| compared(slot, our).is_eq()).count();
        if same == 1 && slots.get(start).and_then(|slot| entry(*slot)) == Some(our) {
            continue;
        }
        slots.splice(start..start + same, [there.len() + at]);
        changed = true;
    }
    if !changed {
        return Ok(None);
    }
    Draft::new(cache, there.len(), slots.len())?.write(&slots, there.len(), ours).map(Some)
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

/// A cache in the making: the parts of the old one, and how far its strings move.
struct Draft<'a> {
    cache: &'a [u8],
    /// Where the old strings begin and end.
    strings: (usize, usize),
    /// Where they begin now.
    base: usize,
    /// Tag and bytes of what stands behind them.
    sections: Vec<(u32, &'a [u8])>,
}

impl<'a> Draft<'a> {
    fn new(cache: &'a [u8], old: usize, new: usize) -> Result<Self, CacheError> {
        let start = HEADER_BYTES + old * ENTRY_BYTES;
        let extension = u32_at(cache, EXTENSION_AT).ok_or(CacheError::Truncated)? as usize;
        let (end, sections) = match extension {
            0 => (cache.len(), Vec::new()),
            at => (at, sections(cache, at).ok_or(CacheError::Truncated)?),
        };
        if end < start || end > cache.len() {
            return Err(CacheError::Truncated);
        }
        Ok(Self { cache, strings: (start, end), base: HEADER_BYTES + new * ENTRY_BYTES, sections })
    }

    fn write(&self, slots: &[usize], there: usize, ours: &[Entry<'_>]) -> Result<Vec<u8>, CacheError> {
        let (start, end) = self.strings;
        let mut added = Vec::new();
        let mut out = Vec::with_capacity(self.cache.len() + ours.len() * 128);
        out.extend_from_slice(self.cache.get(..HEADER_BYTES).unwrap_or_default());
        for &slot in slots {
            let Some(our) = slot.checked_sub(there).and_then(|at| ours.get(at)) else {
                let raw = self.cache.get(HEADER_BYTES + slot * ENTRY_BYTES..).and_then(|raw| raw.get(..ENTRY_BYTES));
                let (name, path) = (raw.and_then(|raw| u32_at(raw, 4)), raw.and_then(|raw| u32_at(raw, 8)));
                let bad = CacheError::BadString { entry: slot };
                let (Some(raw), Some(name), Some(path)) = (raw, self.moved(name), self.moved(path)) else {
                    return Err(bad);
                };
                out.extend_from_slice(raw.get(..4).unwrap_or_default());
                put(&mut out, &[name, path]);
                out.extend_from_slice(raw.get(12..).unwrap_or_default());
                continue;
            };
            // A path ends with the name as a rule: one string for both.
            let path = self.base + (end - start) + added.len();
            added.extend_from_slice(our.path.as_bytes());
            added.push(0);
            let name = if our.path.ends_with(our.name) {
                path + our.path.len() - our.name.len()
            } else {
                added.extend_from_slice(our.name.as_bytes());
                added.push(0);
                path + our.path.len() + 1
            };
            put(&mut out, &[our.flags, name as u32, path as u32, 0, our.hwcap as u32, (our.hwcap >> 32) as u32]);
        }
        out.extend_from_slice(self.cache.get(start..end).unwrap_or_default());
        out.extend_from_slice(&added);
        set(&mut out, MAGIC.len(), slots.len());
        set(&mut out, STRING_BYTES_AT, end - start + added.len());
        self.extend(&mut out)?;
        Ok(out)
    }

    /// A string's offset, when it is that of a string.
    fn moved(&self, offset: Option<u32>) -> Option<u32> {
        let (start, end) = self.strings;
        let offset = offset? as usize;
        (offset >= start && offset < end).then(|| (offset - start + self.base) as u32)
    }

    /// The part behind the strings, where there was one.
    fn extend(&self, out: &mut Vec<u8>) -> Result<(), CacheError> {
        if self.sections.is_empty() {
            set(out, EXTENSION_AT, 0);
            return Ok(());
        }
        out.resize(out.len().next_multiple_of(4), 0);
        let at = out.len();
        set(out, EXTENSION_AT, at);
        put(out, &[EXTENSION_MAGIC, self.sections.len() as u32]);
        let mut place = at + 8 + self.sections.len() * SECTION_BYTES;
        for (tag, bytes) in &self.sections {
            put(out, &[*tag, 0, place as u32, bytes.len() as u32]);
            place += bytes.len().next_multiple_of(4);
        }
        for (tag, bytes) in &self.sections {
            if *tag == TAG_HWCAPS {
                for offset in bytes.chunks_exact(4) {
                    put(out, &[self.moved(u32_at(offset, 0)).ok_or(CacheError::Truncated)?]);
                }
            } else {
                out.extend_from_slice(bytes);
            }
            out.resize(out.len().next_multiple_of(4), 0);
        }
        Ok(())
    }
}

/// The sections that can be moved (glibc's `struct cache_extension`). What else there is only the loader of its own glibc reads.
fn sections(cache: &[u8], at: usize) -> Option<Vec<(u32, &[u8])>> {
    let count = u32_at(cache, at + 4).filter(|count| *count <= MAX_SECTIONS)?;
    if u32_at(cache, at)? != EXTENSION_MAGIC {
        return None;
    }
    let mut found = Vec::new();
    for index in 0..count as usize {
        let header = at + 8 + index * SECTION_BYTES;
        let field = |place: usize| u32_at(cache, header + place);
        let (tag, offset, bytes) = (field(0)?, field(8)? as usize, field(12)? as usize);
        let bytes = cache.get(offset..)?.get(..bytes).filter(|bytes| bytes.len() <= MAX_SECTION)?;
        let whole = || bytes.chunks_exact(4).all(|one| u32_at(one, 0).is_some_and(|at| string_at(cache, at).is_some()));
        match tag {
            TAG_GENERATOR => found.push((tag, bytes)),
            TAG_HWCAPS if bytes.len() % 4 == 0 && whole() => found.push((tag, bytes)),
            TAG_HWCAPS => return None,
            _ => {}
        }
    }
    Some(found)
}

fn put(out: &mut Vec<u8>, words: &[u32]) {
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

/// Overwrites four bytes of the header.
fn set(out: &mut [u8], at: usize, value: usize) {
    if let Some(place) = out.get_mut(at..at + 4) {
        place.copy_from_slice(&(value as u32).to_le_bytes());
    }
}

#[cfg(test)]
mod tests;
