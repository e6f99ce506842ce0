//! Runs a small kernel on the granted GPU and says what CUDA showed, as one JSON object. For `integration/gpu/run.sh`;
//! dynamically linked on purpose: `libcuda.so.1` must be found by the image's own loader.

use std::io::Write;
use std::process::ExitCode;

use serde_json::json;

fn main() -> ExitCode {
    let (report, exit) = match integration::cuda::run() {
        Ok(report) => (report, ExitCode::SUCCESS),
        Err(why) => (json!({ "error": why }), ExitCode::FAILURE),
    };
    match writeln!(std::io::stdout(), "{report}") {
        Ok(()) => exit,
        Err(_) => ExitCode::FAILURE,
    }
}
