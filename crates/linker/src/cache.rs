//! Reader of and writer for `/etc/ld.so.cache`, the list of libraries that glibc's loader looks names up in.
//!
//! It must survive a hostile image's cache: counts are bounded, every offset is checked, and a
//! cache that cannot be read whole is an error, never half a list.

mod with;

use std::ffi::CStr;
use std::fmt;

pub use with::with;

use crate::elf::{Class, EM_AARCH64, EM_X86_64};

/// The most bytes of a cache worth reading; a desktop's has about 200 KiB.
pub const MAX_BYTES: usize = 4 << 20;

const OLD_MAGIC: &[u8] = b"ld.so-1.7.0\0";
const OLD_ENTRY_BYTES: usize = 12;
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER_BYTES: usize = 48;
/// Where the header says its byte order: 0 (older glibc) and 2 are little-endian.
const BYTE_ORDER_AT: usize = 28;
const BYTE_ORDER_MASK: u8 = 3;
const ENTRY_BYTES: usize = 24;
const MAX_ENTRIES: usize = 65_536;
/// PATH_MAX. Without it, many entries could share one endless string.
const MAX_STRING_BYTES: usize = 4096;

/// One library in a cache. The order of entries is the order in which the loader tries them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name that is looked up, as a rule the SONAME.
    pub name: &'a str,
    /// Where it lies, as a path in the image.
    pub path: &'a str,
    /// The loader's `FLAG_…`: the kind of file in the low byte, the ABI above it.
    pub flags: u32,
    /// Which hardware variant the entry is for; 0 for all hardware.
    pub hwcap: u64,
}

impl Entry<'_> {
    /// Which programs this entry is for. `None` for what is no glibc library.
    pub fn abi(&self) -> Option<Abi> {
        let [kind, abi, ..] = self.flags.to_le_bytes();
        // FLAG_ELF and FLAG_ELF_LIBC6; the others are older than glibc.
        matches!(kind, 1 | 3).then_some(match abi {
            0 => Abi::I386,
            3 => Abi::X86_64,
            8 => Abi::X32,
            10 => Abi::Aarch64,
            other => Abi::Other(other),
        })
    }
}

/// The flags of a library of glibc's for this ELF machine (`e_machine`), or `None` for one that is not known.
pub fn flags(machine: u16, class: Class) -> Option<u32> {
    match (machine, class) {
        (EM_X86_64, Class::Elf64) => Some(0x0303),
        (EM_X86_64, Class::Elf32) => Some(0x0003),
        (EM_AARCH64, Class::Elf64) => Some(0x0a03),
        _ => None,
    }
}

/// The ABI in an entry's flags (glibc's `sysdeps/generic/ldconfig.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abi {
    /// 32-bit x86, or the only ABI of some other machine.
    I386,
    /// 64-bit x86.
    X86_64,
    /// 64-bit x86 with 32-bit pointers.
    X32,
    /// 64-bit ARM.
    Aarch64,
    /// Another machine's.
    Other(u8),
}

/// Why a cache was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheError {
    /// It has no `glibc-ld.so.cache1.1` part.
    NotACache,
    /// It was written for a big-endian machine.
    BigEndian,
    /// It claims this many entries.
    TooMany(u64),
    /// It ends before its entries do.
    Truncated,
    /// An entry's name or path lies outside the cache, has no end, or is not UTF-8.
    BadString {
        /// Which entry, from 0.
        entry: usize,
    },
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotACache => f.write_str("no glibc-ld.so.cache1.1 header"),
            Self::BigEndian => f.write_str("the cache is big-endian"),
            Self::TooMany(count) => {
                write!(f, "the cache claims {count} entries, more than {MAX_ENTRIES}")
            }
            Self::Truncated => f.write_str("the cache is truncated"),
            Self::BadString { entry } => write!(f, "entry {entry} has a bad name or path"),
        }
    }
}

impl std::error::Error for CacheError {}

/// Reads a cache (glibc's `elf/cache.c`, `sysdeps/generic/dl-cache.h`), with or without the old
/// part that glibc before 2.32 puts in front.
pub fn parse(bytes: &[u8]) -> Result<Vec<Entry<'_>>, CacheError> {
    let cache = skip_old_part(bytes)?;
    if !cache.starts_with(MAGIC) {
        return Err(CacheError::NotACache);
    }
    let (header, rest) = cache.split_at_checked(HEADER_BYTES).ok_or(CacheError::Truncated)?;
    let byte_order = header.get(BYTE_ORDER_AT).ok_or(CacheError::Truncated)? & BYTE_ORDER_MASK;
    if !matches!(byte_order, 0 | 2) {
        return Err(CacheError::BigEndian);
    }
    let count = bounded(u32_at(header, MAGIC.len()))?;
    let table = rest.get(..count * ENTRY_BYTES).ok_or(CacheError::Truncated)?;
    table
        .chunks_exact(ENTRY_BYTES)
        .enumerate()
        .map(|(index, entry)| {
            // Offsets count from the start of this part, not of the file.
            let string = |at| string_at(cache, u32_at(entry, at)?);
            let field = || {
                Some(Entry {
                    flags: u32_at(entry, 0)?,
                    name: string(4)?,
                    path: string(8)?,
                    hwcap: u64::from(u32_at(entry, 16)?) | u64::from(u32_at(entry, 20)?) << 32,
                })
            };
            field().ok_or(CacheError::BadString { entry: index })
        })
        .collect()
}

fn skip_old_part(bytes: &[u8]) -> Result<&[u8], CacheError> {
    let Some(old) = bytes.strip_prefix(OLD_MAGIC) else {
        return Ok(bytes);
    };
    let count = bounded(u32_at(old, 0))?;
    let end = OLD_MAGIC.len() + 4 + count * OLD_ENTRY_BYTES;
    bytes.get(end.next_multiple_of(8)..).ok_or(CacheError::Truncated)
}

fn bounded(count: Option<u32>) -> Result<usize, CacheError> {
    let count = count.ok_or(CacheError::Truncated)?;
    match usize::try_from(count) {
        Ok(fits) if fits <= MAX_ENTRIES => Ok(fits),
        _ => Err(CacheError::TooMany(count.into())),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_le_bytes(*four))
}

fn string_at(cache: &[u8], offset: u32) -> Option<&str> {
    let from = cache.get(usize::try_from(offset).ok()?..)?;
    let window = from.get(..MAX_STRING_BYTES).unwrap_or(from);
    CStr::from_bytes_until_nul(window).ok()?.to_str().ok()
}

#[cfg(test)]
mod tests;
