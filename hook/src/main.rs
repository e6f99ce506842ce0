//! `quilt-gpu-hook`: OCI stages on the runtime's library. It grants nothing: it judges, verifies and releases.
//!
//! The runtime puts it into the spec of a `run`; it also serves alone under a plain low-level runtime.
#![no_main]
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::io::Write;

use shim::exec::RawArgs;
use shim::stage::{self, Call};

// SAFETY: this program has no other `main`; the C start-up code calls it once with the kernel's words.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: the C start-up code passes `argc` NUL-ended words and a null pointer, which live as long as the process.
    let args = unsafe { RawArgs::new(argc, argv) };
    let words: Vec<String> = args.words().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    // Some runtimes start hooks inside the image, with its environment. Nothing follows that runs another program.
    stage::harden();
    match Call::parse(&words) {
        Ok(call) => match stage::run(&call, std::io::stdin().lock()) {
            Ok(()) => 0,
            Err(refusals) => fail(1, refusals.iter().map(ToString::to_string)),
        },
        Err(why) => fail(2, std::iter::once(why)),
    }
}

fn fail(status: c_int, lines: impl Iterator<Item = String>) -> c_int {
    let mut stderr = std::io::stderr();
    for line in lines {
        let _ = writeln!(stderr, "quilt-gpu-hook: {line}");
    }
    status
}
