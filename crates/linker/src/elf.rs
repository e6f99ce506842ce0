//! What an ELF file says about itself, read as the loader does: program headers and the dynamic
//! segment, never section headers, which a stripped or hostile file need not have.
//!
//! It must not trust a single offset or count: every read is bounded, and whatever the bytes, one
//! file costs less than 1 MiB of reads and never a panic.

use std::fmt;
use std::io;

use ::elf::abi;
use ::elf::dynamic::DynamicTable;
use ::elf::endian::LittleEndian;
use ::elf::file::{self, FileHeader};
use ::elf::parse::{ParseAt, ParseError};
use ::elf::segment::{ProgramHeader, SegmentTable};

/// `e_machine` of 32-bit x86.
pub const EM_386: u16 = abi::EM_386;
/// `e_machine` of 64-bit x86.
pub const EM_X86_64: u16 = abi::EM_X86_64;
/// `e_machine` of 64-bit ARM.
pub const EM_AARCH64: u16 = abi::EM_AARCH64;

/// The larger of the two file headers; no real file is shorter.
const HEADER_BYTES: usize = 64;
const MAX_SEGMENTS: u16 = 128;
const MAX_DYNAMIC_BYTES: u64 = 64 << 10;
const MAX_NEEDED: usize = 128;
/// PATH_MAX: an interpreter or a needed library may be a path.
const MAX_STRING_BYTES: u64 = 4096;

/// What one ELF file says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// Width of its pointers; the only reliable sign of a 32-bit library.
    pub class: Class,
    /// `e_machine`, for example [`EM_X86_64`].
    pub machine: u16,
    /// Program, library or something else.
    pub kind: Kind,
    /// `DT_SONAME`: the name under which other files ask the loader for this one.
    pub soname: Option<String>,
    /// `DT_NEEDED`, in file order.
    pub needed: Vec<String>,
    /// `PT_INTERP`: the loader the kernel starts for it. Static programs have none.
    pub interp: Option<String>,
}

/// Width of a file's pointers (`EI_CLASS`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// 32-bit.
    Elf32,
    /// 64-bit.
    Elf64,
}

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A program, position-independent or not.
    Executable,
    /// A shared library.
    Shared,
    /// Object files, core dumps and the rest: the `e_type`.
    Other(u16),
}

/// Why a file could not be inspected. The caller knows its path and says it.
#[derive(Debug)]
pub enum ElfError {
    /// No ELF magic.
    NotElf,
    /// ELF, but big-endian or of an unknown class or version.
    Unsupported,
    /// The named part contradicts itself.
    Malformed(&'static str),
    /// The named part is larger than any real file's.
    TooLarge(&'static str),
    /// The named part could not be read; a truncated file ends here.
    Read(&'static str, io::Error),
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotElf => f.write_str("not an ELF file"),
            Self::Unsupported => f.write_str("not a little-endian 32-bit or 64-bit ELF file"),
            Self::Malformed(part) => write!(f, "malformed ELF {part}"),
            Self::TooLarge(part) => write!(f, "ELF {part} too large"),
            Self::Read(part, cause) => write!(f, "read ELF {part}: {cause}"),
        }
    }
}

impl std::error::Error for ElfError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read(_, cause) => Some(cause),
            _ => None,
        }
    }
}

/// Inspects a whole file in memory. See [`inspect_with`].
pub fn inspect(bytes: &[u8]) -> Result<Elf, ElfError> {
    inspect_with(|offset, buffer| {
        let wanted = usize::try_from(offset)
            .ok()
            .and_then(|start| bytes.get(start..)?.get(..buffer.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(wanted);
        Ok(())
    })
}

/// Inspects a file through `read_exact_at`, which fills its buffer from a byte offset or fails
/// (`FileExt::read_exact_at` as it stands). Reads a few KiB however large the file is.
///
/// Follows the System V ABI's chapters on program loading and dynamic linking.
pub fn inspect_with(read_exact_at: impl FnMut(u64, &mut [u8]) -> io::Result<()>) -> Result<Elf, ElfError> {
    let mut source = Source(read_exact_at);
    let header = source.header()?;
    let segments = source.segments(&header)?;
    let interp = source.interpreter(&segments)?;
    let dynamic = source.dynamic(&header, &segments)?;
    let strings = dynamic.strings(&segments);
    let soname = match dynamic.soname {
        Some(at) => Some(source.string(strings, at)?),
        None => None,
    };
    let needed = (dynamic.needed.iter()).map(|&at| source.string(strings, at)).collect::<Result<_, _>>()?;
    // Programs linked before DF_1_PIE existed look like libraries, but have a loader and no name.
    // libc.so.6 has a loader too, so that it can be run; it has a name.
    let kind = match header.e_type {
        abi::ET_EXEC => Kind::Executable,
        abi::ET_DYN if dynamic.pie || (interp.is_some() && soname.is_none()) => Kind::Executable,
        abi::ET_DYN => Kind::Shared,
        other => Kind::Other(other),
    };
    Ok(Elf {
        class: match header.class {
            file::Class::ELF32 => Class::Elf32,
            file::Class::ELF64 => Class::Elf64,
        },
        machine: header.e_machine,
        kind,
        soname,
        needed,
        interp,
    })
}

/// The dynamic segment's entries that matter here; strings are offsets into the string table.
#[derive(Default)]
struct Dynamic {
    table_address: Option<u64>,
    table_bytes: u64,
    soname: Option<u64>,
    needed: Vec<u64>,
    pie: bool,
}

/// Where the dynamic string table lies in the file.
#[derive(Clone, Copy)]
struct Strings {
    offset: u64,
    bytes: u64,
}

impl Dynamic {
    /// Translates the table's address as the loader maps it into a file offset.
    fn strings(&self, segments: &[ProgramHeader]) -> Option<Strings> {
        let address = self.table_address?;
        segments.iter().filter(|segment| segment.p_type == abi::PT_LOAD).find_map(|segment| {
            let within = address.checked_sub(segment.p_vaddr)?;
            let left = segment.p_filesz.checked_sub(within)?;
            Some(Strings { offset: segment.p_offset.checked_add(within)?, bytes: self.table_bytes.min(left) })
        })
    }
}

struct Source<R>(R);

impl<R: FnMut(u64, &mut [u8]) -> io::Result<()>> Source<R> {
    fn read(&mut self, part: &'static str, offset: u64, bytes: usize) -> Result<Vec<u8>, ElfError> {
        let mut buffer = vec![0; bytes];
        (self.0)(offset, &mut buffer).map_err(|cause| ElfError::Read(part, cause))?;
        Ok(buffer)
    }

    fn header(&mut self) -> Result<FileHeader<LittleEndian>, ElfError> {
        let bytes = match self.read("file header", 0, HEADER_BYTES) {
            Err(ElfError::Read(_, cause)) if cause.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(ElfError::NotElf);
            }
            other => other?,
        };
        let ident = file::parse_ident::<LittleEndian>(&bytes).map_err(|error| match error {
            ParseError::BadMagic(_) => ElfError::NotElf,
            _ => ElfError::Unsupported,
        })?;
        let tail = bytes.get(abi::EI_NIDENT..).unwrap_or_default();
        FileHeader::parse_tail(ident, tail).map_err(|_| ElfError::Malformed("file header"))
    }

    fn segments(&mut self, header: &FileHeader<LittleEndian>) -> Result<Vec<ProgramHeader>, ElfError> {
        const PART: &str = "program headers";
        if header.e_phnum == 0 {
            return Ok(Vec::new());
        }
        if header.e_phnum > MAX_SEGMENTS {
            return Err(ElfError::TooLarge(PART));
        }
        let each = ProgramHeader::validate_entsize(header.class, header.e_phentsize.into())
            .map_err(|_| ElfError::Malformed(PART))?;
        let bytes = self.read(PART, header.e_phoff, each * usize::from(header.e_phnum))?;
        Ok(SegmentTable::new(LittleEndian, header.class, &bytes).iter().collect())
    }

    fn interpreter(&mut self, segments: &[ProgramHeader]) -> Result<Option<String>, ElfError> {
        let Some(segment) = find(segments, abi::PT_INTERP) else {
            return Ok(None);
        };
        let strings = Strings { offset: segment.p_offset, bytes: segment.p_filesz };
        self.string(Some(strings), 0).map(Some)
    }

    fn dynamic(&mut self, header: &FileHeader<LittleEndian>, segments: &[ProgramHeader]) -> Result<Dynamic, ElfError> {
        const PART: &str = "dynamic segment";
        let mut dynamic = Dynamic::default();
        let Some(segment) = find(segments, abi::PT_DYNAMIC) else {
            return Ok(dynamic);
        };
        if segment.p_filesz > MAX_DYNAMIC_BYTES {
            return Err(ElfError::TooLarge(PART));
        }
        let bytes = self.read(PART, segment.p_offset, segment.p_filesz as usize)?;
        for entry in DynamicTable::new(LittleEndian, header.class, &bytes).iter() {
            match entry.d_tag {
                abi::DT_NULL => break,
                abi::DT_STRTAB => dynamic.table_address = Some(entry.d_ptr()),
                abi::DT_STRSZ => dynamic.table_bytes = entry.d_val(),
                abi::DT_SONAME => dynamic.soname = Some(entry.d_val()),
                abi::DT_NEEDED if dynamic.needed.len() == MAX_NEEDED => {
                    return Err(ElfError::TooLarge("list of needed libraries"));
                }
                abi::DT_NEEDED => dynamic.needed.push(entry.d_val()),
                abi::DT_FLAGS_1 => dynamic.pie = entry.d_val() & abi::DF_1_PIE as u64 != 0,
                _ => {}
            }
        }
        Ok(dynamic)
    }

    /// One NUL-terminated string, by its offset in the table. Reads a window, not the table: a
    /// library's table holds every symbol it exports.
    fn string(&mut self, strings: Option<Strings>, at: u64) -> Result<String, ElfError> {
        const PART: &str = "string";
        let malformed = || ElfError::Malformed(PART);
        let strings = strings.ok_or_else(malformed)?;
        let left = strings.bytes.checked_sub(at).ok_or_else(malformed)?;
        let offset = strings.offset.checked_add(at).ok_or_else(malformed)?;
        let mut bytes = self.read(PART, offset, left.min(MAX_STRING_BYTES) as usize)?;
        let end = bytes.iter().position(|&byte| byte == 0).ok_or_else(malformed)?;
        bytes.truncate(end);
        String::from_utf8(bytes).map_err(|_| malformed())
    }
}

fn find(segments: &[ProgramHeader], kind: u32) -> Option<&ProgramHeader> {
    segments.iter().find(|segment| segment.p_type == kind)
}

#[cfg(test)]
mod tests;
