//! Writes the corpora's seeds: `cargo run -p fuzz --example seeds`. What fuzzing found stands beside them under other names
//! and stays.

mod seeds {
    pub(crate) mod cdi;
    pub(crate) mod documents;
    pub(crate) mod files;
    pub(crate) mod specs;
    pub(crate) mod texts;
}

use std::io;
use std::path::Path;

/// An input's name and its bytes.
pub(crate) type Seed = (String, Vec<u8>);

fn main() -> io::Result<()> {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora");
    for (target, seeds) in [
        ("argv", seeds::texts::argv()),
        ("cdi", seeds::cdi::cdi()),
        ("contract", seeds::documents::contract()),
        ("elf", seeds::files::elf()),
        ("guard", seeds::specs::guard()),
        ("json", seeds::texts::json()),
        ("ld_cache", seeds::files::ld_cache()),
        ("mountinfo", seeds::texts::mountinfo()),
        ("proc_devices", seeds::texts::proc_devices()),
    ] {
        let folder = corpora.join(target);
        std::fs::create_dir_all(&folder)?;
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("seed-")) {
                std::fs::remove_file(path)?;
            }
        }
        for (name, bytes) in seeds {
            std::fs::write(folder.join(format!("seed-{name}")), bytes)?;
        }
    }
    Ok(())
}
