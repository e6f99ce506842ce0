//! Asks the driver's own interfaces about its GPUs: each in a process of its own, with a time limit and nothing of our
//! environment. Whoever hangs, crashes or floods is a source that failed, never a failed inventory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use contract::config::{Host, Nvml};
use contract::gpu::Gpu;
use contract::inventory::{DriverFile, FileKind, Inventory, Library};

use super::told::{Answer, Kind, Message, NVML, SMI, Silence};
use crate::child::{self, Trouble};
use crate::stats::{self, told::Usage};
use crate::{judged, smi};

/// The driver may have to start every GPU first, which takes seconds on large machines.
const LIMIT: Duration = Duration::from_secs(20);
/// More than any answer for the largest machines.
const MOST: usize = 8 << 20;

/// What the sources say about the GPUs that the driver holds, as far as `seen` has them. Nobody is asked without a loaded
/// driver: the libraries would load it. `live`: what the GPUs do now too.
pub(super) fn ask(host: &Host, seen: &Inventory, live: bool) -> Vec<Answer> {
    let held = |driver: &Option<String>| driver.as_deref() == Some("nvidia");
    let asked: Vec<&str> = seen.gpus.iter().filter(|gpu| held(&gpu.driver)).map(|gpu| gpu.pci.as_str()).collect();
    let Some(own) = own_program().filter(|_| host.nvml == Nvml::Auto) else { return Vec::new() };
    // Behind WSL's node is whatever the library lists.
    let on_bus = seen.facts.driver_version.is_some() && !asked.is_empty();
    if !on_bus && !seen.gpus.iter().any(Gpu::is_dxg) {
        return Vec::new();
    }
    // The program is nothing without the library, and would find one by itself that nobody has judged.
    let library = seen.libraries.iter().find(|library| library.soname == "libnvidia-ml.so.1" && library.bits == 64);
    let Some(library) = library else { return Vec::new() };
    let mut answers = vec![nvml(&own, library, &asked, live)];
    let others_would_fail = |answer: &Answer| !matches!(answer, Err(Silence { kind: Kind::Failed, .. }));
    if !answers.iter().any(others_would_fail) {
        let program =
            seen.files.iter().find(|file| file.kind == FileKind::Program && file.path.ends_with("/nvidia-smi"));
        answers.extend(program.map(|program| nvidia_smi(&own, host.driver_root(), program, library)));
    }
    answers
}

/// The program that asks: this one. A test of a part of it is another.
fn own_program() -> Option<PathBuf> {
    if cfg!(test) { None } else { std::env::current_exe().ok() }
}

fn nvml(own: &Path, library: &Library, asked: &[&str], live: bool) -> Answer {
    let mut command = Command::new(own);
    command.args(["source", "nvml", &library.host_path, &judged::word(&library.id)]).args(asked);
    command.args(live.then_some("--live"));
    let library = library.host_path.as_str();
    let (printed, _) = child::output(&mut command, LIMIT, MOST).map_err(|trouble| silence(NVML, library, &trouble))?;
    message(&printed).unwrap_or_else(|| {
        Err(Silence::failed(NVML, format!("the process that asked {library} ended without an answer")))
    })
}

/// Who uses the GPUs of this inventory now. Only NVML tells.
pub(crate) fn usage(seen: &Inventory) -> Result<Usage, String> {
    let library = seen.libraries.iter().find(|library| library.soname == "libnvidia-ml.so.1" && library.bits == 64);
    let library = library
        .ok_or("the node has no libnvidia-ml.so.1 of the loaded driver's version; `quilt-gpu doctor` says why")?;
    let own = own_program().ok_or("the program that asks the driver cannot be found")?;
    let mut command = Command::new(own);
    command.args(["source", "nvml", "--usage", &library.host_path, &judged::word(&library.id)]);
    let library = library.host_path.as_str();
    let held = seen.gpus.iter().filter(|gpu| gpu.driver.as_deref() == Some("nvidia"));
    command.args(held.map(|gpu| gpu.pci.as_str()));
    let (printed, _) = child::output(&mut command, LIMIT, MOST).map_err(|trouble| format!("{library}: {trouble}"))?;
    let line = printed.split(|byte| *byte == b'\n').rfind(|line| line.starts_with(b"{\"usage\":"));
    let message = line.and_then(|line| contract::read::document::<stats::told::Message>(line).ok());
    let answer = message.and_then(stats::told::Message::answer);
    answer.ok_or(format!("the process that asked {library} ended without an answer"))?.map_err(|silence| silence.why)
}

/// The answer is on a line of its own: the library may print what it likes.
fn message(printed: &[u8]) -> Option<Answer> {
    let line = printed.split(|byte| *byte == b'\n').rfind(|line| line.starts_with(b"{\"told\":"))?;
    contract::read::document::<Message>(line).ok()?.answer()
}

fn nvidia_smi(own: &Path, root: &str, program: &DriverFile, library: &Library) -> Answer {
    let real = std::fs::canonicalize(root).unwrap_or_default();
    let inside = |path: &str| {
        let inside = Path::new(path).strip_prefix(&real).map(|inside| Path::new("/").join(inside));
        inside.map_err(|_| Silence::failed(SMI, format!("{path} does not lie in {root}")))
    };
    // The loader takes a list there.
    if library.host_path.contains([' ', ':']) {
        return Err(Silence::failed(SMI, format!("{} cannot be preloaded by that path", library.host_path)));
    }
    let mut command = Command::new(own);
    command.args(["source", "program", root]).arg(inside(&program.host_path)?).arg(judged::word(&program.id));
    command.arg(inside(&library.host_path)?).arg(judged::word(&library.id)).args(["--", "-q", "-x"]);
    let program = program.host_path.as_str();
    let (printed, success) =
        child::output(&mut command, LIMIT, MOST).map_err(|trouble| silence(SMI, program, &trouble))?;
    let answer = smi::told(&printed);
    match answer {
        Ok(_) if !success => Err(Silence::failed(SMI, format!("{program} fails after it has answered"))),
        Err(silence) => Err(Silence { why: format!("{program}: {}", silence.why), ..silence }),
        told => told,
    }
}

fn silence(source: &str, what: &str, trouble: &Trouble) -> Silence {
    let kind = if matches!(trouble, Trouble::Slow(_)) { Kind::Slow } else { Kind::Failed };
    Silence { source: source.to_owned(), kind, why: format!("{what}: {trouble}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::told::Told;

    #[test]
    fn an_answer_is_found_whatever_is_printed_around_it() {
        let told = Told { source: NVML.into(), driver_version: Some("550.1".into()), ..Told::default() };
        let line = serde_json::to_string(&Message::from(Ok(told.clone()))).unwrap();
        assert_eq!(message(format!("NVML: hello\n{line}\nbye").as_bytes()), Some(Ok(told)));
        let silent = Silence { source: NVML.into(), kind: Kind::Mismatch, why: "x".into() };
        let line = serde_json::to_string(&Message::from(Err(silent.clone()))).unwrap();
        assert_eq!(message(line.as_bytes()), Some(Err(silent)));
        for printed in ["", "{}", "{\"told\":null,\"silence\":null}", "{\"told\":{", "{\"told\":{\"source\":1}}"] {
            assert_eq!(message(printed.as_bytes()), None, "{printed}");
        }
    }
}
