//! Files: ELF of both classes, and caches of the loader's.

use crate::Seed;

/// A little-endian word of the class's width.
fn word(out: &mut Vec<u8>, wide: bool, value: u32) {
    out.extend(value.to_le_bytes());
    if wide {
        out.extend([0; 4]);
    }
}

/// Header, program headers, dynamic segment, strings; addresses are offsets.
fn file(wide: bool, kind: u16, soname: &str, needed: &[&str], interp: &str) -> Vec<u8> {
    let (header, segment, entry) = if wide { (64_u32, 56_u32, 16_u32) } else { (52, 32, 8) };
    let mut strings = vec![0];
    let mut put = |text: &str| {
        let at = u32::try_from(strings.len()).unwrap_or_default();
        strings.extend_from_slice(text.as_bytes());
        strings.push(0);
        at
    };
    // DT_NEEDED, DT_SONAME.
    let mut dynamic: Vec<(u32, u32)> = needed.iter().map(|name| (1, put(name))).collect();
    dynamic.extend((!soname.is_empty()).then(|| (14, put(soname))));
    let interp_at = (!interp.is_empty()).then(|| put(interp));
    let segments = 2 + u32::from(interp_at.is_some());
    let dynamic_at = header + segment * segments;
    let dynamic_bytes = (u32::try_from(dynamic.len()).unwrap_or_default() + 3) * entry;
    let strings_at = dynamic_at + dynamic_bytes;
    let length = u32::try_from(strings.len()).unwrap_or_default();
    // DT_STRTAB, DT_STRSZ, DT_NULL.
    dynamic.extend([(5, strings_at), (10, length), (0, 0)]);

    let mut out = vec![0x7f, b'E', b'L', b'F', if wide { 2 } else { 1 }, 1, 1];
    out.resize(16, 0);
    out.extend(kind.to_le_bytes());
    out.extend(62_u16.to_le_bytes());
    out.extend(1_u32.to_le_bytes());
    [0, header, 0].iter().for_each(|value| word(&mut out, wide, *value));
    out.extend(0_u32.to_le_bytes());
    for half in [header, segment, segments, 0, 0, 0] {
        out.extend(u16::try_from(half).unwrap_or_default().to_le_bytes());
    }
    let mut segment = |kind: u32, at: u32, bytes: u32| {
        out.extend(kind.to_le_bytes());
        if wide {
            out.extend(4_u32.to_le_bytes());
        }
        [at, at, 0, bytes, bytes].iter().for_each(|value| word(&mut out, wide, *value));
        if !wide {
            out.extend(4_u32.to_le_bytes());
        }
        word(&mut out, wide, 0x1000);
    };
    segment(1, 0, strings_at + length);
    segment(2, dynamic_at, dynamic_bytes);
    if let Some(at) = interp_at {
        segment(3, strings_at + at, u32::try_from(interp.len()).unwrap_or_default() + 1);
    }
    for (tag, value) in dynamic {
        word(&mut out, wide, tag);
        word(&mut out, wide, value);
    }
    out.extend(strings);
    out
}

pub(crate) fn elf() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for wide in [false, true] {
        let name = |what: &str| format!("{what}-{}", if wide { 64 } else { 32 });
        let library = file(wide, 3, "libcuda.so.1", &["libc.so.6", "libm.so.6"], "");
        seeds.push((name("cut"), library.get(..library.len() - 9).unwrap_or_default().to_vec()));
        seeds.push((name("library"), library));
        seeds.push((name("program"), file(wide, 2, "", &["libc.so.6"], "/lib64/ld-linux-x86-64.so.2")));
        seeds.push((name("pie"), file(wide, 3, "", &[], "/lib/ld-musl-x86_64.so.1")));
        seeds.push((name("libc"), file(wide, 3, "libc.so.6", &[], "/lib64/ld-linux-x86-64.so.2")));
        seeds.push((name("object"), file(wide, 1, "", &[], "")));
    }
    seeds.push(("magic".into(), b"\x7fELF\x02\x02\x01".to_vec()));
    seeds
}

fn cache(entries: &[(&str, &str, u32, u64)]) -> Vec<u8> {
    let (mut table, mut strings) = (Vec::new(), Vec::new());
    let start = 48 + entries.len() * 24;
    for (name, path, flags, hwcap) in entries {
        table.extend(flags.to_le_bytes());
        for text in [name, path] {
            table.extend(u32::try_from(start + strings.len()).unwrap_or_default().to_le_bytes());
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
        }
        table.extend([0; 4]);
        table.extend(hwcap.to_le_bytes());
    }
    let mut out = b"glibc-ld.so.cache1.1".to_vec();
    out.extend(u32::try_from(entries.len()).unwrap_or_default().to_le_bytes());
    out.extend(u32::try_from(strings.len()).unwrap_or_default().to_le_bytes());
    out.push(2);
    out.resize(48, 0);
    out.extend(table);
    out.extend(strings);
    out
}

pub(crate) fn ld_cache() -> Vec<Seed> {
    let rows = [
        ("libcuda.so.1", "/usr/lib64/libcuda.so.1", 0x0303, 0),
        ("libcuda.so.1", "/usr/lib/libcuda.so.1", 0x0003, 0),
        ("libx.so.1", "/libx32/libx.so.1", 0x0803, 0),
        ("libz.so.1", "/lib64/glibc-hwcaps/x86-64-v3/libz.so.1", 0x0303, 1 << 62 | 2),
        ("libold.so.5", "/lib/libold.so.5", 0x0002, 0),
    ];
    let whole = cache(&rows);
    let old = |n: u32| {
        let mut out = b"ld.so-1.7.0\0".to_vec();
        out.extend(n.to_le_bytes());
        out.resize((out.len() + n as usize * 12).next_multiple_of(8), 0xaa);
        out.extend(&whole);
        out
    };
    let changed = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
        bytes
    };
    let seeds = [
        ("none", cache(&[])),
        ("one", cache(&rows[..1])),
        ("old-1", old(1)),
        ("old-2", old(2)),
        ("big-endian", changed(28, 3)),
        ("byte-order-0", changed(28, 0)),
        ("count-255", changed(20, 255)),
        ("count-high", changed(23, 1)),
        ("offset-high", changed(48 + 7, 0x7f)),
        ("offset-early", changed(48 + 4, 0)),
        ("cut", whole.get(..whole.len() - 3).unwrap_or_default().to_vec()),
        ("latin", changed(whole.len() - 4, 0xe9)),
        ("whole", whole.clone()),
    ];
    seeds.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}
