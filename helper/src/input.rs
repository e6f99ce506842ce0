//! Files that people name on the command line, `-` being stdin.

use std::io::{self, Read};
use std::path::Path;

use crate::exit::Failure;

/// Most bytes that are read.
const MOST: u64 = 8 << 20;

/// The whole text.
///
/// # Errors
/// It cannot be read, or is no text.
pub(crate) fn text(file: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = if file.as_os_str() == "-" {
        io::stdin().lock().take(MOST).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(MOST).read_to_string(&mut text))
    };
    read.map_err(|cause| Failure::Usage(format!("cannot read {}: {cause}", file.display())))?;
    Ok(text)
}
