//! Made-up files of both classes, the build machine's own, and broken ones.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::*;

/// Distance between addresses and file offsets, so that mixing them up shows.
const BASE: u64 = 0x10_0000;

/// What a made-up file says; the defaults are those of a shared library.
#[derive(Clone, Copy)]
struct Made<'a> {
    class: Class,
    machine: u16,
    e_type: u16,
    soname: Option<&'a str>,
    needed: &'a [&'a str],
    interp: Option<&'a str>,
    flags_1: i64,
}

const LIBRARY: Made<'static> = Made {
    class: Class::Elf64,
    machine: EM_X86_64,
    e_type: abi::ET_DYN,
    soname: Some("libcuda.so.1"),
    needed: &["libc.so.6", "libm.so.6"],
    interp: None,
    flags_1: 0,
};

impl Made<'_> {
    /// Header, program headers, dynamic segment, strings; the last are mapped at `BASE`.
    fn bytes(&self) -> Vec<u8> {
        let mut strings = vec![0];
        let mut put = |text: &str| {
            let at = strings.len() as u64;
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            at
        };
        let mut dynamic: Vec<(i64, u64)> = Vec::new();
        dynamic.extend(self.needed.iter().map(|name| (abi::DT_NEEDED, put(name))));
        dynamic.extend(self.soname.map(|name| (abi::DT_SONAME, put(name))));
        let interp = self.interp.map(|path| (put(path), path.len() as u64 + 1));

        let wide = self.class == Class::Elf64;
        let (header, segment, entry) = if wide { (64, 56, 16) } else { (52, 32, 8) };
        let segments = 2 + u64::from(interp.is_some());
        let dynamic_at = header + segment * segments;
        let dynamic_bytes = (dynamic.len() as u64 + 4) * entry;
        let strings_at = dynamic_at + dynamic_bytes;
        dynamic.push((abi::DT_STRTAB, BASE + strings_at));
        dynamic.push((abi::DT_STRSZ, strings.len() as u64));
        dynamic.push((abi::DT_FLAGS_1, self.flags_1 as u64));
        dynamic.push((abi::DT_NULL, 0));

        let mut out = vec![0x7f, b'E', b'L', b'F', if wide { 2 } else { 1 }, 1, 1];
        out.resize(abi::EI_NIDENT, 0);
        let word = |out: &mut Vec<u8>, value: u64| match wide {
            true => out.extend(value.to_le_bytes()),
            false => out.extend((value as u32).to_le_bytes()),
        };
        out.extend(self.e_type.to_le_bytes());
        out.extend(self.machine.to_le_bytes());
        out.extend(1u32.to_le_bytes());
        [0, header, 0].iter().for_each(|value| word(&mut out, *value));
        out.extend(0u32.to_le_bytes());
        for half in [header, segment, segments, 0, 0, 0] {
            out.extend((half as u16).to_le_bytes());
        }
        let total = strings_at + strings.len() as u64;
        let mut program_header = |kind: u32, at: u64, bytes: u64| {
            out.extend(kind.to_le_bytes());
            if wide {
                out.extend(4u32.to_le_bytes());
            }
            [at, BASE + at, 0, bytes, bytes].iter().for_each(|value| word(&mut out, *value));
            if !wide {
                out.extend(4u32.to_le_bytes());
            }
            word(&mut out, 0x1000);
        };
        program_header(abi::PT_LOAD, 0, total);
        program_header(abi::PT_DYNAMIC, dynamic_at, dynamic_bytes);
        if let Some((at, bytes)) = interp {
            program_header(abi::PT_INTERP, strings_at + at, bytes);
        }
        for (tag, value) in dynamic {
            word(&mut out, tag as u64);
            word(&mut out, value);
        }
        out.extend(strings);
        assert_eq!(out.len() as u64, total);
        out
    }
}

#[test]
fn says_what_the_file_says() {
    const PIE: i64 = abi::DF_1_PIE;
    const LOADER: Option<&str> = Some("/lib64/ld-linux-x86-64.so.2");
    let table = [
        (LIBRARY, Kind::Shared),
        (Made { class: Class::Elf32, machine: EM_386, ..LIBRARY }, Kind::Shared),
        (Made { machine: EM_AARCH64, needed: &[], ..LIBRARY }, Kind::Shared),
        (Made { soname: None, ..LIBRARY }, Kind::Shared),
        // libc.so.6 can be run.
        (Made { interp: LOADER, ..LIBRARY }, Kind::Shared),
        (Made { soname: None, interp: LOADER, flags_1: PIE, ..LIBRARY }, Kind::Executable),
        (Made { soname: None, interp: LOADER, ..LIBRARY }, Kind::Executable),
        (Made { soname: None, flags_1: PIE, needed: &[], ..LIBRARY }, Kind::Executable),
        (Made { soname: None, e_type: abi::ET_EXEC, ..LIBRARY }, Kind::Executable),
        (Made { e_type: abi::ET_REL, ..LIBRARY }, Kind::Other(abi::ET_REL)),
    ];
    for (row, (made, kind)) in table.into_iter().enumerate() {
        let elf = inspect(&made.bytes()).unwrap_or_else(|error| panic!("row {row}: {error}"));
        let expected = Elf {
            class: made.class,
            machine: made.machine,
            kind,
            soname: made.soname.map(str::to_owned),
            needed: made.needed.iter().map(|name| (*name).to_owned()).collect(),
            interp: made.interp.map(str::to_owned),
        };
        assert_eq!(elf, expected, "row {row}");
    }
}

#[test]
fn broken_files_are_told_apart() {
    let good = LIBRARY.bytes();
    let with = |at: usize, bytes: &[u8]| {
        let mut broken = good.clone();
        broken[at..at + bytes.len()].copy_from_slice(bytes);
        broken
    };
    let dynamic_at = 64 + 2 * 56;
    let names: Vec<&str> = vec!["a"; MAX_NEEDED + 1];
    let table: [(Vec<u8>, &str); 14] = [
        (Vec::new(), "not an ELF file"),
        (b"\x7fELF".to_vec(), "not an ELF file"),
        (b"#!/bin/sh\n".repeat(20), "not an ELF file"),
        (with(4, &[3]), "not a little-endian 32-bit or 64-bit ELF file"),
        (with(5, &[2]), "not a little-endian 32-bit or 64-bit ELF file"),
        (with(6, &[0]), "not a little-endian 32-bit or 64-bit ELF file"),
        (with(54, &[57, 0]), "malformed ELF program headers"),
        (with(56, &[200, 0]), "ELF program headers too large"),
        (with(32, &[0xff; 8]), "read ELF program headers: unexpected end of file"),
        (with(64 + 56 + 32, &[0xff; 8]), "ELF dynamic segment too large"),
        (with(dynamic_at + 8, &[0xff; 8]), "malformed ELF string"),
        (good[..good.len() - 30].to_vec(), "read ELF string: unexpected end of file"),
        (Made { soname: Some(&"x".repeat(5000)), ..LIBRARY }.bytes(), "malformed ELF string"),
        (Made { needed: &names, ..LIBRARY }.bytes(), "ELF list of needed libraries too large"),
    ];
    for (row, (bytes, message)) in table.iter().enumerate() {
        let error = inspect(bytes).expect_err(&format!("row {row}"));
        assert_eq!(error.to_string(), *message, "row {row}");
    }
}

#[test]
fn a_string_table_ends_with_the_segment_that_maps_it() {
    let mut bytes = LIBRARY.bytes();
    let size_at = 64 + 2 * 56 + 4 * 16;
    assert_eq!(bytes[size_at], abi::DT_STRSZ as u8);
    bytes[size_at + 8..size_at + 16].fill(0xff);
    assert_eq!(inspect(&bytes).ok(), inspect(&LIBRARY.bytes()).ok());
    assert!(inspect(&bytes).is_ok());
}

#[test]
fn a_failed_read_keeps_its_cause() {
    let denied = |_, _: &mut [u8]| Err(io::ErrorKind::PermissionDenied.into());
    let error = inspect_with(denied).expect_err("nothing was readable");
    assert_eq!(error.to_string(), "read ELF file header: permission denied");
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn reads_little_of_a_large_file() {
    let mut library = LIBRARY.bytes();
    library.resize(64 << 20, 0);
    let mut read = 0;
    let elf = inspect_with(|offset, buffer| {
        read += buffer.len();
        buffer.copy_from_slice(&library[offset as usize..][..buffer.len()]);
        Ok(())
    });
    assert_eq!(elf.expect("a good file").soname.as_deref(), Some("libcuda.so.1"));
    assert!(read < 16 << 10, "read {read} bytes");
}

#[test]
fn the_build_machines_own_files() {
    let files = [
        ("/bin/sh", Kind::Executable, None),
        ("/lib/x86_64-linux-gnu/libc.so.6", Kind::Shared, Some("libc.so.6")),
        ("/lib64/ld-linux-x86-64.so.2", Kind::Shared, Some("ld-linux-x86-64.so.2")),
    ];
    for (path, kind, soname) in files {
        let Ok(file) = File::open(path) else {
            println!("skipped: no {path} here");
            continue;
        };
        let elf = inspect_with(|offset, buffer| file.read_exact_at(buffer, offset)).expect(path);
        assert_eq!((elf.kind, elf.soname.as_deref()), (kind, soname), "{path}");
        assert_eq!(inspect(&fs::read(path).expect(path)).expect(path), elf, "{path}");
        if kind == Kind::Executable {
            assert!(elf.interp.is_some_and(|interp| interp.starts_with("/lib")), "{path}");
            assert!(elf.needed.iter().any(|name| name.starts_with("libc.")), "{path}");
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..4096)) {
        let _ = inspect(&tail);
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.extend(tail);
        let _ = inspect(&bytes);
    }

    #[test]
    fn mutated_files_never_panic_and_cost_little(
        wide in any::<bool>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        length in any::<prop::sample::Index>(),
    ) {
        let class = if wide { Class::Elf64 } else { Class::Elf32 };
        let mut bytes = Made { class, interp: Some("/lib/ld.so"), ..LIBRARY }.bytes();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(length.index(bytes.len()) + bytes.len() / 2);
        let _ = inspect(&bytes);
        // The same lies in a file without an end.
        let mut read = 0;
        let _ = inspect_with(|offset, buffer| {
            read += buffer.len();
            for (at, byte) in buffer.iter_mut().enumerate() {
                let at = usize::try_from(offset).unwrap_or(usize::MAX).saturating_add(at);
                *byte = bytes.get(at).copied().unwrap_or(b'x');
            }
            Ok(())
        });
        prop_assert!(read < 1 << 20, "read {} bytes", read);
    }
}
