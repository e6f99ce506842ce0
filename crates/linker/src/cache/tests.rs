//! Made-up caches of several machines, the build machine's own, and broken ones.

use std::process::Command;

use proptest::prelude::*;

use super::*;

const X86_64: u32 = 0x0303;

/// The current part: header, entries, strings.
pub(super) fn made(entries: &[(&str, &str, u32, u64)]) -> Vec<u8> {
    let mut strings = Vec::new();
    let mut table = Vec::new();
    let strings_at = HEADER_BYTES + entries.len() * ENTRY_BYTES;
    for (name, path, flags, hwcap) in entries {
        table.extend(flags.to_le_bytes());
        for text in [name, path] {
            table.extend(((strings_at + strings.len()) as u32).to_le_bytes());
            strings.extend(text.as_bytes());
            strings.push(0);
        }
        table.extend(0u32.to_le_bytes());
        table.extend(hwcap.to_le_bytes());
    }
    let mut out = MAGIC.to_vec();
    out.extend((entries.len() as u32).to_le_bytes());
    out.extend((strings.len() as u32).to_le_bytes());
    out.push(2);
    out.resize(HEADER_BYTES, 0);
    out.extend(table);
    out.extend(strings);
    out
}

/// The same behind an old part of so many entries.
fn behind_old_part(old_entries: u32, cache: &[u8]) -> Vec<u8> {
    let mut out = OLD_MAGIC.to_vec();
    out.extend(old_entries.to_le_bytes());
    out.resize((out.len() + old_entries as usize * OLD_ENTRY_BYTES).next_multiple_of(8), 0xaa);
    out.extend(cache);
    out
}

#[test]
fn entries_come_back_in_order_with_their_abi() {
    let rows = [
        ("libcuda.so.1", "/usr/lib64/libcuda.so.1", X86_64, 0, Some(Abi::X86_64)),
        ("libcuda.so.1", "/usr/lib/libcuda.so.1", 0x0003, 0, Some(Abi::I386)),
        ("libcuda.so.1", "/usr/lib/aarch64-linux-gnu/libcuda.so.1", 0x0a03, 0, Some(Abi::Aarch64)),
        ("libx.so.1", "/libx32/libx.so.1", 0x0803, 0, Some(Abi::X32)),
        ("libp.so.1", "/lib64/libp.so.1", 0x0503, 0, Some(Abi::Other(5))),
        ("libe.so.1", "/lib64/libe.so.1", 0x0301, 0, Some(Abi::X86_64)),
        ("libz.so.1", "/lib64/glibc-hwcaps/x86-64-v3/libz.so.1", X86_64, 1 << 62 | 2, Some(Abi::X86_64)),
        ("libz.so.1", "/lib64/libz.so.1", X86_64, 0, Some(Abi::X86_64)),
        ("libold.so.5", "/lib/libold.so.5", 0x0002, 0, None),
    ];
    let cache = made(&rows.map(|(name, path, flags, hwcap, _)| (name, path, flags, hwcap)));
    for bytes in [0, 1, 2, 3].map(|old| behind_old_part(old, &cache)).iter().chain([&cache]) {
        let entries = parse(bytes).expect("a good cache");
        assert_eq!(entries.len(), rows.len());
        for (entry, (name, path, flags, hwcap, abi)) in entries.iter().zip(rows) {
            assert_eq!(*entry, Entry { name, path, flags, hwcap });
            assert_eq!(entry.abi(), abi, "{path}");
        }
    }
    assert_eq!(parse(&made(&[])), Ok(Vec::new()));
}

#[test]
fn broken_caches_are_errors() {
    let good = made(&[("a", "/lib/a", X86_64, 0), ("b", "/lib/b", X86_64, 0)]);
    let with = |at: usize, bytes: &[u8]| {
        let mut broken = good.clone();
        broken[at..at + bytes.len()].copy_from_slice(bytes);
        broken
    };
    let second = HEADER_BYTES + ENTRY_BYTES;
    let long = made(&[("a", &"/x".repeat(MAX_STRING_BYTES), X86_64, 0)]);
    let table = [
        (Vec::new(), CacheError::NotACache),
        (b"\x7fELF".repeat(20), CacheError::NotACache),
        (with(17, b"9.9"), CacheError::NotACache),
        (behind_old_part(2, &[]), CacheError::NotACache),
        (OLD_MAGIC.to_vec(), CacheError::Truncated),
        (behind_old_part(2, &[])[..30].to_vec(), CacheError::Truncated),
        (with(BYTE_ORDER_AT, &[3]), CacheError::BigEndian),
        (good[..MAGIC.len()].to_vec(), CacheError::Truncated),
        (good[..second + 1].to_vec(), CacheError::Truncated),
        (with(20, &[0, 0, 16, 0]), CacheError::TooMany(1 << 20)),
        (with(20, &[0xff; 4]), CacheError::TooMany(u32::MAX.into())),
        (with(20, &[3, 0, 0, 0]), CacheError::Truncated),
        (with(second + 4, &[0xff; 4]), CacheError::BadString { entry: 1 }),
        (with(second + 8, &(good.len() as u32).to_le_bytes()), CacheError::BadString { entry: 1 }),
        (good[..good.len() - 1].to_vec(), CacheError::BadString { entry: 1 }),
        (with(good.len() - 2, &[0xff]), CacheError::BadString { entry: 1 }),
        (long, CacheError::BadString { entry: 0 }),
    ];
    for (row, (bytes, error)) in table.iter().enumerate() {
        assert_eq!(parse(bytes), Err(*error), "row {row}");
    }
    let mut huge_old = OLD_MAGIC.to_vec();
    huge_old.extend([0xff; 4]);
    assert_eq!(parse(&huge_old), Err(CacheError::TooMany(u32::MAX.into())));
}

#[test]
fn the_build_machines_own_cache() {
    let cache = std::fs::read("/etc/ld.so.cache");
    let listing = Command::new("/sbin/ldconfig").arg("-p").env("LC_ALL", "C").output();
    let (Ok(cache), Ok(listing)) = (cache, listing) else {
        println!("skipped: no /etc/ld.so.cache or no ldconfig here");
        return;
    };
    let entries = parse(&cache).expect("the machine's own cache");
    let listing = String::from_utf8(listing.stdout).expect("text");
    let listed: Vec<(&str, &str)> = (listing.lines())
        .filter_map(|line| line.split_once(" => "))
        .map(|(left, path)| (left.split_whitespace().next().unwrap_or_default(), path))
        .collect();
    let read: Vec<(&str, &str)> = entries.iter().map(|entry| (entry.name, entry.path)).collect();
    assert!(!read.is_empty());
    assert_eq!(read, listed);
}

proptest! {
    #[test]
    fn random_bytes_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let _ = parse(&tail);
        for magic in [MAGIC, OLD_MAGIC] {
            let mut bytes = magic.to_vec();
            bytes.extend(&tail);
            let _ = parse(&bytes);
        }
    }

    #[test]
    fn mutated_caches_are_whole_or_errors(
        old in 0u32..4,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        length in any::<prop::sample::Index>(),
    ) {
        let cache = made(&[("a.so", "/lib/a.so", X86_64, 0), ("b.so", "/usr/lib/b.so", 3, 7)]);
        let mut bytes = behind_old_part(old, &cache);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(length.index(bytes.len()) + 1);
        if let Ok(entries) = parse(&bytes) {
            prop_assert!(entries.len() * ENTRY_BYTES <= bytes.len());
        }
    }
}
