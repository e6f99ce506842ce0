//! ELF files: little is read of any, and every name that is told stands in the file. And loaders: a part of one tells nothing that
//! is not in it.

use linker::elf::{inspect, inspect_with};
use linker::image::{MAX_LOADER_BYTES, constants, default_folders};

/// What one file may cost.
const MOST_BYTES: usize = 1 << 20;
const MOST_STRING: usize = 4096;

/// Holds the reader to it.
pub fn run(data: &[u8]) {
    loader(data);
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

/// The folders that a loader searches, of all of it and of its constants.
fn loader(data: &[u8]) {
    let part = constants(data).and_then(|(offset, size)| {
        assert!(size <= MAX_LOADER_BYTES, "{size} bytes");
        let start = usize::try_from(offset).ok()?;
        data.get(start..start.checked_add(size)?)
    });
    for folder in part.into_iter().chain([data]).flat_map(default_folders) {
        let plain = folder.starts_with('/') && !folder.split('/').any(|part| matches!(part, "." | ".."));
        assert!(plain && folder.len() < MOST_STRING && !folder.contains('\0'), "{folder:?}");
    }
}
