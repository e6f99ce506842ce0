//! ELF files: little is read of any, and every name that is told stands in the file.

use linker::elf::{inspect, inspect_with};

/// What one file may cost.
const MOST_BYTES: usize = 1 << 20;
const MOST_STRING: usize = 4096;

/// Holds the reader to it.
pub fn run(data: &[u8]) {
    let mut read = 0;
    let told = inspect_with(|offset, buffer| {
        read += buffer.len();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.checked_add(buffer.len()).ok_or(std::io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(data.get(start..end).ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    });
    assert!(read < MOST_BYTES, "{read} bytes were read");
    let Ok(elf) = told else { return };
    assert!(data.starts_with(b"\x7fELF"), "no ELF file");
    assert_eq!(inspect(data).ok().as_ref(), Some(&elf), "in memory it is another");
    for name in elf.needed.iter().chain(&elf.soname).chain(&elf.interp) {
        assert!(name.len() < MOST_STRING && !name.contains('\0'), "{name:?}");
        let ended = [name.as_bytes(), b"\0"].concat();
        assert!(data.windows(ended.len()).any(|part| part == ended), "{name:?} is not in the file");
    }
}
