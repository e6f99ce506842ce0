//! The linker view for one image: reads what kind of image it is through an in-root handle, and places the libraries.

use std::path::Path;

use contract::Note;
use contract::inventory::Library;
use linker::elf::{Class, EM_AARCH64, EM_X86_64};
use linker::image::{Image, MAX_LOADER_BYTES};
use node::InRoot;

/// Where the libraries go.
pub(crate) struct Placed {
    /// Host file and container path of each read-only bind.
    pub(crate) binds: Vec<(String, String)>,
    /// What is worth knowing.
    pub(crate) notes: Vec<Note>,
}

/// The ELF machine this runtime was built for: the driver's libraries are of the same.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };

/// Places the libraries where this image's own loader searches by default.
pub(crate) fn place(root: Option<&InRoot>, libraries: &[Library]) -> Placed {
    let compat32 = libraries.iter().any(|l| l.bits == 32);
    let image = match root {
        Some(root) => Image::identify(MACHINE, compat32, |path| root.read(Path::new(path), MAX_LOADER_BYTES).ok()),
        None => Image::NoLoader,
    };
    let wanted: Vec<linker::view::Library<'_>> = libraries
        .iter()
        .map(|l| linker::view::Library {
            host_path: &l.host_path,
            soname: Some(&l.soname),
            class: if l.bits == 32 { Class::Elf32 } else { Class::Elf64 },
        })
        .collect();
    let view = linker::view::plan(&image, &wanted, |folder| root.is_some_and(|root| root.is_dir(Path::new(folder))));
    Placed {
        binds: view.binds.iter().map(|b| (b.host_path.to_string(), b.container_path.clone())).collect(),
        notes: view.notes.iter().map(|n| Note::new(n.code, "/root/path", n.message.clone())).collect(),
    }
}
