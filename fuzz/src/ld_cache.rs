//! `ld.so.cache`: what was read is the same when it is written and read again, every name stands in the file, and with a
//! library of ours in it everything else is still there.

use linker::cache::{Entry, parse, with};

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER: usize = 48;
const EACH: usize = 24;

/// Holds the reader to it.
pub fn run(data: &[u8]) {
    let Ok(entries) = parse(data) else { return };
    assert!(entries.len() * EACH <= data.len(), "more entries than bytes");
    for entry in entries.iter().take(64) {
        for text in [entry.name, entry.path] {
            let within = data.as_ptr_range();
            assert!(text.is_empty() || within.contains(&text.as_ptr()), "a name from elsewhere");
            assert!(text.len() < 4096 && !text.contains('\0'), "{text:?}");
        }
    }
    let few = entries.get(..entries.len().min(256)).unwrap_or_default();
    let written = write(few);
    assert_eq!(parse(&written).as_deref(), Ok(few), "written and read again");
    let ours = Entry { name: "libcuda.so.1", path: "/usr/lib/libcuda.so.1", flags: 0x0303, hwcap: 0 };
    let Ok(Some(made)) = with(data, &[ours]) else { return };
    let made = parse(&made).unwrap_or_else(|error| panic!("what was written cannot be read: {error}"));
    assert!(made.contains(&ours), "ours is lost");
    let others = |list: &[Entry<'_>]| list.iter().filter(|e| !e.name.starts_with("libcuda.so.")).count();
    assert_eq!(others(&made), others(&entries), "an entry of the image's is lost");
}

/// A cache as glibc 2.32 and later write it.
fn write(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
    out.extend(number(entries.len()));
    out.resize(HEADER, 0);
    let mut strings = Vec::new();
    let start = HEADER + entries.len() * EACH;
    for entry in entries {
        out.extend(entry.flags.to_le_bytes());
        for text in [entry.name, entry.path] {
            out.extend(number(start + strings.len()));
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
        }
        out.extend([0; 4]);
        out.extend(entry.hwcap.to_le_bytes());
    }
    out.extend(strings);
    out
}
