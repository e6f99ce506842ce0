//! What is left of a program when it panics: a message that says where, and an abort. The static programs bring an
//! unwinder that finds no frame (`shim/src/no_unwind.rs`), built here into a program that panics, by the flags of theirs.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::{Binaries, Result, Scratch, run, say};

const LIMIT: Duration = Duration::from_secs(120);

/// The release profile, and the edition.
const PROFILE: &str = "--edition 2024 -Copt-level=z -Clto=fat -Ccodegen-units=1 -Cpanic=abort -Cstrip=symbols";

/// What of the standard library reads debug information to name frames.
const PRINTER: &[u8] = b"gimli";

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A program without Rust's start-up code, as ours are, that holds something to be dropped when it panics.
fn program() -> String {
    let unwinder = workspace().join("shim/src/no_unwind.rs");
    format!(
        r#"#![no_main]
#[path = {unwinder:?}]
mod no_unwind;
struct Held;
impl Drop for Held {{ fn drop(&mut self) {{ eprintln!("dropped"); }} }}
#[unsafe(no_mangle)]
extern "C" fn main(argc: i32, _: *const *const u8) -> i32 {{
    let _held = Held;
    assert!(argc > 1, "for want of a word");
    0
}}
"#
    )
}

/// The flags by which the Makefile has the static programs built.
fn flags() -> Vec<String> {
    let makefile = fs::read_to_string(workspace().join("Makefile")).unwrap();
    let line = makefile.lines().find_map(|line| line.strip_prefix("STATIC_FLAGS := ")).unwrap();
    line.replace("$(CURDIR)", workspace().to_str().unwrap()).split(' ').map(str::to_owned).collect()
}

fn built(folder: &Path) -> Result<PathBuf> {
    let (source, program_file) = (folder.join("panics.rs"), folder.join("panics"));
    fs::write(&source, program()).unwrap();
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc")));
    rustc.args(PROFILE.split(' ')).args(flags()).arg(&source).arg("-o").arg(&program_file).current_dir(workspace());
    run(&mut rustc, None, LIMIT)?.checked()?;
    Ok(program_file)
}

fn names_frames(program: &Path) -> bool {
    fs::read(program).unwrap().windows(PRINTER.len()).any(|bytes| bytes == PRINTER)
}

#[test]
fn a_panic_says_where_and_aborts() -> Result<()> {
    let scratch = Scratch::new()?;
    let program = built(scratch.path())?;
    assert!(run(Command::new(&program).arg("word"), None, LIMIT)?.ok());
    for backtrace in ["0", "1", "full"] {
        let ran = run(Command::new(&program).env("RUST_BACKTRACE", backtrace), None, LIMIT)?;
        assert_eq!(ran.status.signal(), Some(libc::SIGABRT), "{ran:?}");
        for text in ["panicked at", "panics.rs:9", "for want of a word"] {
            assert!(ran.stderr.contains(text), "{text}: {ran:?}");
        }
        assert!(!ran.stderr.contains("dropped"), "{ran:?}");
    }
    // The abort is the end of the panic, not of a search for frames, which the note comes after.
    let ran = run(Command::new(&program).env("RUST_BACKTRACE", "1"), None, LIMIT)?;
    assert!(ran.stderr.contains("RUST_BACKTRACE=full"), "{ran:?}");
    Ok(())
}

#[test]
fn nothing_of_the_static_programs_prints_frames() -> Result<()> {
    let binaries = Binaries::locate()?;
    for program in [&binaries.runtime, &binaries.hook] {
        assert!(!names_frames(program), "{} names frames", program.display());
    }
    // Where panics may unwind the same look finds it.
    assert!(names_frames(&binaries.helper), "the helper names no frames");
    say("quilt-gpu-runtime and quilt-gpu-hook: no printer of frames, no engine");
    Ok(())
}
