//! `quilt-gpu-hook`: OCI stages on the runtime's library. `precreate` does the runtime's work for engines that keep their own;
//! the others grant nothing: they judge, verify and release. Two more words serve CDI files ([`shim::layout`]).
//!
//! The runtime puts it into the spec of a `run`; it also serves alone under a plain low-level runtime.
#![no_main]
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::io::Write;

use shim::exec::RawArgs;
use shim::layout;
use shim::stage::{self, Call};

// SAFETY: this program has no other `main`; the C start-up code calls it once with the kernel's words.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: the C start-up code passes `argc` NUL-ended words and a null pointer, which live as long as the process.
    let args = unsafe { RawArgs::new(argc, argv) };
    let words: Vec<String> = args.words().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    // Some runtimes start hooks inside the image, with its environment. Nothing follows that runs another program.
    stage::harden();
    // What `precreate` puts into a spec that it refuses.
    if words.get(1).is_some_and(|stage| stage == "refused") {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        return fail(1, words.into_iter().skip(2));
    }
    match layout::Call::parse(&words) {
        Ok(None) => {}
        Ok(Some(call)) => {
            return match layout::run(&call, std::io::stdin().lock()) {
                // The container starts without what could not be done.
                Ok(notes) => fail(0, notes.into_iter()),
                Err(refusals) => fail(1, refusals.iter().map(ToString::to_string)),
            };
        }
        Err(why) => return fail(2, std::iter::once(why)),
    }
    match Call::parse(&words) {
        Ok(call) => match stage::run(&call, std::io::stdin().lock()) {
            Ok(answer) => match tell(&answer) {
                Ok(()) => 0,
                Err(error) => fail(1, std::iter::once(format!("cannot write the spec: {error}"))),
            },
            Err(refusals) => fail(1, refusals.iter().map(ToString::to_string)),
        },
        Err(why) => fail(2, std::iter::once(why)),
    }
}

/// To the last byte: nothing is left for the end of a program that has no such end.
fn tell(answer: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(answer)?;
    stdout.flush()
}

/// Tells people why, and gives the status to end with.
fn fail(status: c_int, lines: impl Iterator<Item = String>) -> c_int {
    let mut stderr = std::io::stderr();
    for line in lines {
        let _ = writeln!(stderr, "quilt-gpu-hook: {line}");
    }
    status
}
