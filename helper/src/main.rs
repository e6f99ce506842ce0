//! `quilt-gpu`: hands runtime calls over, runs everything else, and turns the outcome into an exit status.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(helper::cli::main().code())
}
