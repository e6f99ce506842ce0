//! Loaders of several distributions, as bytes around their folder array; the build machine's own.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const DEBIAN: &[u8] = b"/lib/x86_64-linux-gnu/\0/usr/lib/x86_64-linux-gnu/\0/lib/\0/usr/lib/\0";
const DEBIAN_FOLDERS: [&str; 4] = ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib"];
const REAL_LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// A loader as far as its strings go: what stands around the array in real ones.
fn loader(array: &[u8]) -> Vec<u8> {
    let mut out = b"\x7fELF".to_vec();
    out.resize(1000, 0x90);
    out.extend(b"\0/proc/self/exe\0/etc/ld.so.cache\0/var/tmp\0/usr/share/locale/\0/usr/lib/locale\0");
    out.extend(b"glibc-hwcaps/\0\x80\x01");
    out.extend(array);
    out.extend([0; 40]);
    out.extend(b"DATEMSK\0GCONV_PATH\0");
    out
}

fn on_musl(folders: &[&str]) -> Image {
    Image::Musl { folders: folders.iter().map(|folder| (*folder).to_owned()).collect() }
}

#[test]
fn folders_of_several_distributions() {
    let store = "/nix/store/0123456789abcdfghijklmnpqrsvwxyz-glibc-2.40-66/lib";
    let nix = format!("{store}/\0");
    let table: [(&[u8], &[&str]); 10] = [
        (DEBIAN, &DEBIAN_FOLDERS),
        (b"/lib64/\0/usr/lib64/\0", &["/lib64", "/usr/lib64"]),
        (b"/usr/lib/\0/usr/lib/\0", &["/usr/lib"]),
        (b"/lib64////\0//usr//lib64/\0", &["/lib64", "/usr/lib64"]),
        (b"/lib/\0/usr/local/lib/\0", &["/lib", "/usr/local/lib"]),
        (nix.as_bytes(), &[store]),
        // Hostile or unlike anything known.
        (b"/etc/\0/dev/\0/usr/\0/usr/local/\0/proc/\0//\0", &[]),
        (b"/lib/../etc/\0/usr/lib/./x/\0/lib/../../\0", &[]),
        (b"/lib64/\0/etc/\0/usr/lib64/\0/usr/lib/\0", &["/usr/lib64", "/usr/lib"]),
        (b"lib64/\0/lib64\0", &[]),
    ];
    for (array, folders) in table {
        let array_text = String::from_utf8_lossy(array);
        assert_eq!(default_folders(&loader(array)), folders, "{array_text:?}");
        assert_eq!(default_folders(array), folders, "{array_text:?} alone");
    }
}

#[test]
fn the_array_is_found_wherever_it_stands() {
    for before in 0..128 {
        let mut bytes = vec![0; before];
        bytes.extend(DEBIAN);
        assert_eq!(default_folders(&bytes), DEBIAN_FOLDERS, "after {before} bytes");
    }
}

#[test]
fn a_hostile_loader_is_bounded() {
    let many: Vec<u8> = (0..1000).flat_map(|n| format!("/lib{n}/\0").into_bytes()).collect();
    assert_eq!(default_folders(&many).len(), MAX_FOLDERS);
    let endless = [b"/lib/".repeat(1 << 16), b"\0".to_vec()].concat();
    assert!(default_folders(&endless).iter().all(|folder| folder.len() <= MAX_FOLDER_BYTES));
    let mut late = vec![0; MAX_LOADER_BYTES];
    late.extend(DEBIAN);
    assert!(default_folders(&late).is_empty());
}

/// A header of this class and order, and segments: flags, offset, size.
fn header(class: u8, order: u8, segments: &[(u32, u64, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, order]);
    let (wide, each) = if class == 2 { (8, 56) } else { (4, 32) };
    let places = if class == 2 { [0x20, 0x36, 0x38, 4, 8, 0x20] } else { [0x1c, 0x2a, 0x2c, 0x18, 4, 0x10] };
    let mut put =
        |at: usize, value: u64, size: usize| bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    put(places[0], 64, wide);
    put(places[1], each, 2);
    put(places[2], segments.len() as u64, 2);
    for (n, (flags, offset, size)) in segments.iter().enumerate() {
        let at = 64 + n * each as usize;
        put(at, 1, 4);
        put(at + places[3], (*flags).into(), 4);
        put(at + places[4], *offset, wide);
        put(at + places[5], *size, wide);
    }
    bytes
}

#[test]
fn constants_are_what_is_neither_code_nor_written() {
    let (first, code, behind, data) = ((4, 0, 99), (5, 0x1000, 0x9000), (4, 0xa000, 0x500), (6, 0xb000, 0x70));
    for (segments, expected) in [
        (&[first, code, behind, data][..], Some((0xa000, 0x500))),
        (&[code, data], None),
        // Constants before the code are at the file's beginning, with much else.
        (&[first, code, data], None),
        (&[code, (4, 0xa000, u64::from(u32::MAX))], None),
        (&[], None),
    ] {
        for class in [1, 2] {
            assert_eq!(constants(&header(class, 1, segments)), expected, "{segments:?}, class {class}");
            assert_eq!(constants(&header(class, 2, segments)), None, "{segments:?}, class {class}, another order");
            let whole = header(class, 1, segments);
            // Cut anywhere, and with a table that lies nowhere.
            (0..200).for_each(|end| assert!(constants(&whole[..end]).is_none() || end > 64));
            let mut odd = whole.clone();
            odd[0x1c..0x3a].fill(0xff);
            assert_eq!(constants(&odd), None);
        }
    }
}

#[test]
fn the_build_machines_own_loader() {
    let Ok(mut bytes) = std::fs::read(REAL_LOADER) else {
        println!("skipped: no {REAL_LOADER} here");
        return;
    };
    let folders = default_folders(&bytes);
    assert!(folders.iter().any(|folder| folder.starts_with("/usr/lib")), "{folders:?}");
    let (offset, size) = constants(&bytes[..1024]).unwrap();
    let part = &bytes[offset as usize..][..size];
    assert_eq!((default_folders(part), part.len() < bytes.len() / 2), (folders.clone(), true));
    // The same loader with its own folders overwritten, as an image of another layout has them.
    if folders != DEBIAN_FOLDERS {
        println!("skipped in part: {REAL_LOADER} is not Debian's");
        return;
    }
    for (old, new) in [("/usr/lib/x86_64-linux-gnu/\0", "/usr/lib64"), ("/lib/x86_64-linux-gnu/\0", "/lib64")] {
        let mut new = new.as_bytes().to_vec();
        new.resize(old.len() - 1, b'/');
        for at in 0..bytes.len() - old.len() {
            // The array's own strings only: the first is the end of the second, too.
            if bytes[at..].starts_with(old.as_bytes()) && !(at > 4 && bytes[at - 4..].starts_with(b"/usr")) {
                bytes[at..at + new.len()].copy_from_slice(&new);
            }
        }
    }
    assert_eq!(default_folders(&bytes), ["/lib64", "/usr/lib64", "/lib", "/usr/lib"]);
}

fn identify(machine: u16, compat32: bool, files: &[(&str, &[u8])]) -> Image {
    let files: BTreeMap<&str, &[u8]> = files.iter().copied().collect();
    Image::identify(machine, compat32, |path| files.get(path).map(|bytes| bytes.to_vec()))
}

#[test]
fn images_are_told_by_their_loader() {
    let fedora: &[u8] = b"/lib64/\0/usr/lib64/\0";
    let narrow: &[u8] = b"/lib/\0/usr/lib/\0";
    let glibc = |folders: &[&str], folders32: &[&str]| Image::Glibc {
        folders: folders.iter().map(|folder| (*folder).to_owned()).collect(),
        folders32: folders32.iter().map(|folder| (*folder).to_owned()).collect(),
    };
    let wide = "/lib64/ld-linux-x86-64.so.2";
    let elsewhere = "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";
    let musl = "/lib/ld-musl-x86_64.so.1";
    let i386 = "/lib/ld-linux.so.2";
    let arm: &[u8] = b"/lib/aarch64-linux-gnu/\0/usr/lib/aarch64-linux-gnu/\0";
    let arm_folders = ["/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
    type Files<'a> = &'a [(&'a str, &'a [u8])];
    let table: [(u16, bool, Files<'_>, Image); 15] = [
        (EM_X86_64, false, &[], Image::NoLoader),
        (EM_X86_64, false, &[(wide, fedora)], glibc(&["/lib64", "/usr/lib64"], &[])),
        (EM_X86_64, false, &[(elsewhere, DEBIAN)], glibc(&DEBIAN_FOLDERS, &[])),
        (EM_X86_64, false, &[(wide, b"?"), (elsewhere, DEBIAN)], glibc(&DEBIAN_FOLDERS, &[])),
        (EM_X86_64, false, &[(musl, b"")], on_musl(&["/lib", "/usr/lib", "/usr/local/lib"])),
        (
            EM_X86_64,
            false,
            &[(musl, b""), ("/etc/ld-musl-x86_64.path", b"/lib/x86_64-linux-musl/\n/opt:lib:/a/../b\n\n")],
            on_musl(&["/lib/x86_64-linux-musl", "/opt"]),
        ),
        (EM_X86_64, false, &[(musl, b""), ("/etc/ld-musl-x86_64.path", b"\xff")], on_musl(&[])),
        (EM_X86_64, false, &[(musl, b""), (wide, DEBIAN)], glibc(&DEBIAN_FOLDERS, &[])),
        // gcompat's stand-in for glibc's loader names no folder.
        (EM_X86_64, false, &[(musl, b""), (wide, b"gcompat")], on_musl(&["/lib", "/usr/lib", "/usr/local/lib"])),
        (EM_X86_64, false, &[(wide, b"")], glibc(&[], &[])),
        (EM_X86_64, true, &[(wide, fedora), (i386, narrow)], glibc(&["/lib64", "/usr/lib64"], &["/lib", "/usr/lib"])),
        (EM_X86_64, false, &[(wide, fedora), (i386, narrow)], glibc(&["/lib64", "/usr/lib64"], &[])),
        (EM_X86_64, true, &[(i386, narrow)], Image::NoLoader),
        (EM_AARCH64, true, &[("/lib/ld-linux-aarch64.so.1", arm), (i386, narrow)], glibc(&arm_folders, &[])),
        (EM_AARCH64, false, &[(wide, DEBIAN)], Image::NoLoader),
    ];
    for (row, (machine, compat32, files, image)) in table.into_iter().enumerate() {
        assert_eq!(identify(machine, compat32, files), image, "row {row}");
    }
}

proptest! {
    #[test]
    fn every_accepted_folder_is_a_plain_library_folder(
        pieces in proptest::collection::vec(
            prop_oneof![
                Just(b"/".to_vec()), Just(b"\0".to_vec()), Just(b"/lib".to_vec()),
                Just(b"/usr".to_vec()), Just(b"/local".to_vec()), Just(b"/..".to_vec()),
                Just(b"/.".to_vec()), Just(b"/nix/store".to_vec()), Just(b"/\0".to_vec()),
                proptest::collection::vec(any::<u8>(), 0..4),
            ],
            0..60,
        ),
    ) {
        let folders = default_folders(&pieces.concat());
        prop_assert!(folders.len() <= MAX_FOLDERS);
        for folder in folders {
            let roots = ["/lib", "/usr/lib", "/usr/local/lib", "/nix/store/"];
            prop_assert!(roots.iter().any(|root| folder.starts_with(root)), "{folder:?}");
            prop_assert!(folder.split('/').skip(1).all(|part| !matches!(part, "" | "." | "..")), "{folder:?}");
        }
    }
}
