//! What kind of image this is, told by its loader: which one it has, and which folders that one
//! searches without being told.
//!
//! Nothing of the image is executed, and no file of its configuration is followed: the folders are
//! strings inside the loader itself. A hostile image can only mislead itself.

use std::io::BufRead;

use crate::elf::{EM_386, EM_AARCH64, EM_X86_64};

/// How many bytes of a loader are worth reading; real ones have between 0.2 and 1 MiB.
pub const MAX_LOADER_BYTES: usize = 2 << 20;

const MUSL_PREFIX: &str = "/lib/ld-musl-";
/// What musl searches where its `/etc/ld-musl-*.path` says nothing else (`ldso/dynlink.c`); last what users fill by hand.
const MUSL_FOLDERS: [&str; 3] = ["/lib", "/usr/lib", "/usr/local/lib"];
const MAX_FOLDERS: usize = 16;
const MAX_FOLDER_BYTES: usize = 255;

/// How the image's programs find their libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// glibc's loader, with the folders it searches by default, in its order.
    Glibc {
        /// Those of the node's own ABI. Empty when the loader does not name any.
        folders: Vec<String>,
        /// Those of the image's 32-bit loader. Empty when it has none, or nobody asked.
        folders32: Vec<String>,
    },
    /// musl's loader, which reads neither `ld.so.cache` nor glibc's folders.
    Musl {
        /// Those that it searches. Empty when its own list of them names none.
        folders: Vec<String>,
    },
    /// None that is known: static programs, or a store such as Nix's.
    NoLoader,
}

impl Image {
    /// Looks for the loader of `machine` (an ELF `e_machine`), and with `compat32` for that of its
    /// 32-bit programs. `read` gives a regular file's first bytes, at most [`MAX_LOADER_BYTES`], by
    /// its path inside the image; `None` when there is none. Of a loader its [`constants`] are enough.
    pub fn identify(machine: u16, compat32: bool, mut read: impl FnMut(&str) -> Option<Vec<u8>>) -> Self {
        let mut glibc = false;
        let mut folders = Vec::new();
        for path in loader_candidates(machine) {
            let Some(loader) = read(path) else { continue };
            // glibc first: an image that has both runs its own programs with glibc, unless the
            // glibc loader is only a stand-in on a musl image, which names no folder.
            if let Some(machine) = path.strip_prefix(MUSL_PREFIX).and_then(|rest| rest.split('.').next()) {
                return Self::Musl { folders: musl_folders(read(&format!("/etc/ld-musl-{machine}.path"))) };
            }
            glibc = true;
            folders = default_folders(&loader);
            if !folders.is_empty() {
                break;
            }
        }
        if !glibc {
            return Self::NoLoader;
        }
        let narrow: &[&str] = match machine {
            EM_X86_64 if compat32 => loader_candidates(EM_386),
            _ => &[],
        };
        let folders32 = (narrow.iter())
            .filter(|path| !path.starts_with(MUSL_PREFIX))
            .filter_map(|path| Some(default_folders(&read(path)?)))
            .find(|folders| !folders.is_empty())
            .unwrap_or_default();
        Self::Glibc { folders, folders32 }
    }
}

/// The folders that musl searches, by its file of them: one in a line, or with colons between. A file that is there takes the
/// place of what is compiled in.
fn musl_folders(file: Option<Vec<u8>>) -> Vec<String> {
    let Some(file) = file else { return MUSL_FOLDERS.map(str::to_owned).to_vec() };
    let text = str::from_utf8(&file).unwrap_or_default();
    let folders = text.split(['\n', ':']).map(|folder| folder.trim_end_matches('/'));
    let sound = |folder: &&str| {
        folder.starts_with('/') && folder.len() <= MAX_FOLDER_BYTES && !folder.contains('\0') && is_plain(folder)
    };
    folders.filter(sound).take(MAX_FOLDERS).map(str::to_owned).collect()
}

/// Whether no part of a path leads back.
pub(crate) fn is_plain(path: &str) -> bool {
    !path.split('/').any(|part| matches!(part, "." | ".."))
}

/// Where an image for `machine` (an ELF `e_machine`) may have its loader, in the order to try:
/// the path that the ABI puts into every program, distributions' other places, then musl's.
pub fn loader_candidates(machine: u16) -> &'static [&'static str] {
    match machine {
        EM_X86_64 => &[
            "/lib64/ld-linux-x86-64.so.2",
            "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
            "/lib/ld-linux-x86-64.so.2",
            "/lib/ld-musl-x86_64.so.1",
        ],
        EM_AARCH64 => &[
            "/lib/ld-linux-aarch64.so.1",
            "/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1",
            "/lib64/ld-linux-aarch64.so.1",
            "/lib/ld-musl-aarch64.so.1",
        ],
        EM_386 => &[
            "/lib/ld-linux.so.2",
            "/lib/i386-linux-gnu/ld-linux.so.2",
            "/lib32/ld-linux.so.2",
            "/lib/ld-musl-i386.so.1",
        ],
        _ => &[],
    }
}

/// The folders that a glibc loader searches by default, from its bytes.
///
/// glibc compiles them in as one array of NUL-terminated strings, each ending in a slash
/// (`system_dirs` in `elf/dl-load.c`): the longest row of such strings is that array. Only
/// normalised absolute paths below the places where distributions keep libraries are accepted.
pub fn default_folders(loader: &[u8]) -> Vec<String> {
    let loader = loader.get(..MAX_LOADER_BYTES).unwrap_or(loader);
    let (mut best, mut row) = (Vec::new(), Vec::new());
    let mut row_ends = 0;
    for end in folder_ends(loader) {
        let text = text_before(loader, end);
        let Some(folder) = normalised(text) else {
            continue;
        };
        if end - text.len() != row_ends {
            row = Vec::new();
        }
        row_ends = end + 1;
        if row.len() < MAX_FOLDERS {
            row.push(folder);
        }
        if row.len() > best.len() {
            best.clone_from(&row);
        }
    }
    let mut folders: Vec<String> = Vec::with_capacity(best.len());
    for folder in best {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// Where the constants of a loader lie in its file, the folders among them, by its first bytes: the last segment that is
/// neither code nor writable. Offset and size; nothing where the linker gave them no segment of their own behind the code.
#[must_use]
pub fn constants(head: &[u8]) -> Option<(u64, usize)> {
    const LOAD: u64 = 1;
    const READ: u64 = 4;
    let number = |at: usize, size: usize| {
        let bytes = head.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0_u64, |number, byte| (number << 8) | u64::from(*byte)))
    };
    // Class, and little-endian; then the places of: table, its entry's size, their number, and in an entry flags, offset, size.
    let (wide, places) = match head.get(..6)? {
        b"\x7fELF\x02\x01" => (8, [0x20, 0x36, 0x38, 4, 8, 0x20]),
        b"\x7fELF\x01\x01" => (4, [0x1c, 0x2a, 0x2c, 0x18, 4, 0x10]),
        _ => return None,
    };
    let [table, each, many, flags, offset, size] = places;
    let (table, each) = (usize::try_from(number(table, wide)?).ok()?, usize::try_from(number(each, 2)?).ok()?);
    let table = Some(table).filter(|table| *table < head.len())?;
    let mut entries = (0..usize::try_from(number(many, 2)?).ok()?).map(|n| table + n * each);
    let constant = |at: &usize| {
        number(*at, 4) == Some(LOAD) && number(at + flags, 4) == Some(READ) && number(at + offset, wide) != Some(0)
    };
    let last = entries.rfind(constant)?;
    let bytes = usize::try_from(number(last + size, wide)?).ok()?;
    (bytes <= MAX_LOADER_BYTES).then_some((number(last + offset, wide)?, bytes))
}

/// Where each NUL after a slash stands. Every create of a container with a GPU searches a loader, so slashes are looked for
/// by the library's own search, which sees many bytes at once; a loader has few.
fn folder_ends(loader: &[u8]) -> impl Iterator<Item = usize> {
    let mut rest = loader;
    std::iter::from_fn(move || {
        while rest.skip_until(b'/').is_ok_and(|passed| passed > 0) {
            if rest.first() == Some(&0) {
                return Some(loader.len() - rest.len());
            }
        }
        None
    })
}

/// The path that ends at `end`. What stands before the array is data of any kind: the path begins
/// at the first slash after a byte that no path has.
fn text_before(loader: &[u8], end: usize) -> &[u8] {
    let start = end.saturating_sub(MAX_FOLDER_BYTES);
    let window = loader.get(start..end).unwrap_or_default();
    let ours = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._+-".contains(byte);
    let from = window.iter().rposition(|byte| !ours(byte)).map_or(0, |at| at + 1);
    let text = window.get(from..).unwrap_or_default();
    let slash = text.iter().position(|byte| *byte == b'/').unwrap_or(0);
    text.get(slash..).unwrap_or_default()
}

/// The path that begins with a slash, without repeated ones, if it is that of a library folder.
fn normalised(text: &[u8]) -> Option<String> {
    let text = str::from_utf8(text).ok()?;
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
    let plain = !parts.iter().any(|part| matches!(*part, "." | ".."));
    let libraries = match parts.as_slice() {
        ["usr", "local", folder, ..] | ["usr", folder, ..] | [folder, ..] if folder.starts_with("lib") => true,
        ["nix" | "gnu", "store", _, ..] => true,
        _ => false,
    };
    (plain && libraries).then(|| format!("/{}", parts.join("/")))
}

#[cfg(test)]
mod tests;
