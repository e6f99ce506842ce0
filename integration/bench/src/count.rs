//! Counts of one call: system calls by strace, instructions by valgrind. Of the runtime's own process alone.

use std::ffi::OsString;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

use integration::{Error, Result, run};

use crate::scene::{LowLevel, Scene, failed};

const LIMIT: Duration = Duration::from_secs(60);

/// What one call took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// System calls of the process, those of the low-level runtime that it becomes (one: its end) with them.
    pub calls: u64,
    /// How many of these failed.
    pub failed: u64,
    /// Instructions, in the program and the C library; the kernel's are not seen. 0: not counted, as valgrind would not
    /// let the program see the image.
    pub instructions: u64,
}

/// Counts a scene.
///
/// # Errors
/// strace or valgrind is missing or fails.
pub fn count(scene: &Scene<'_>) -> Result<Counts> {
    let trace = traced(scene)?;
    let lines: Vec<&str> = trace.lines().filter(|line| line.contains('(') && !line.starts_with("---")).collect();
    let failed = lines.iter().filter(|line| line.contains(" = -1 ")).count();
    let instructions = if scene.has_image() { 0 } else { instructions(scene, "/dev/null")? };
    Ok(Counts { calls: lines.len() as u64, failed: failed as u64, instructions })
}

/// The trace of a scene's own process.
///
/// # Errors
/// As [`count`].
pub fn traced(scene: &Scene<'_>) -> Result<String> {
    scene.node().end_with(LowLevel::Ends)?;
    scene.reset()?;
    traced_as_it_is(scene)
}

/// The same, with the node as it is.
///
/// # Errors
/// As [`count`].
pub fn traced_as_it_is(scene: &Scene<'_>) -> Result<String> {
    let file = scene.node().join("trace");
    let tracer = ["strace".into(), "-qq".into(), "-o".into(), file.clone().into_os_string()];
    run(&mut scene.under(&tracer), None, LIMIT)?.checked()?;
    fs::read_to_string(&file).map_err(|e| failed("read", &file, &e))
}

/// Makes a scene's call again and again, by another name of the runtime.
///
/// # Errors
/// A call fails.
pub fn again(scene: &Scene<'_>, many: usize) -> Result<()> {
    let timed = scene.node().join("quilt-timed");
    let hook = scene.runtime().with_file_name("quilt-gpu-hook");
    for (from, to) in [(scene.runtime(), timed.clone()), (&hook, scene.node().join("quilt-gpu-hook"))] {
        fs::copy(from, &to).map_err(|e| failed("copy", &to, &e))?;
    }
    scene.node().end_with(LowLevel::Ends)?;
    for _ in 0..many {
        scene.reset()?;
        run(&mut scene.made_by(&timed), None, LIMIT)?.checked()?;
    }
    Ok(())
}

/// The instructions of a scene, and where they were into a file for `callgrind_annotate`.
///
/// # Errors
/// As [`count`].
pub fn instructions(scene: &Scene<'_>, profile: &str) -> Result<u64> {
    // Who becomes the low-level runtime is not below valgrind any more, which then tells nothing: that one must not succeed.
    let mut told = Err(Error::new("nothing was counted"));
    for low_level in [LowLevel::Ends, LowLevel::CannotStart] {
        scene.node().end_with(LowLevel::Ends)?;
        scene.reset()?;
        scene.node().end_with(low_level)?;
        told = instructions_as_it_is(scene, profile);
        if told.is_ok() {
            break;
        }
    }
    told
}

/// The same, with the node as it is, of who does not become the low-level runtime.
///
/// # Errors
/// As [`count`].
fn instructions_as_it_is(scene: &Scene<'_>, profile: &str) -> Result<u64> {
    let file = scene.node().join("valgrind");
    let tracer = ["valgrind".to_owned(), "--tool=callgrind".to_owned()];
    let named = [format!("--callgrind-out-file={profile}"), format!("--log-file={}", file.display())];
    let tracer: Vec<OsString> = tracer.into_iter().chain(named).map(Into::into).collect();
    run(&mut scene.under(&tracer), None, LIMIT)?;
    let log = fs::read_to_string(&file).map_err(|e| failed("read", &file, &e))?;
    let told = log.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    told.ok_or_else(|| Error::new(format!("valgrind counted nothing: {log}")))
}

/// Most memory that a scene's own process had at a time, in KiB. The kernel's own number of it counts what started the
/// process, too, so the process is held before its end and asked.
///
/// # Errors
/// strace fails, or the process was not seen.
pub fn memory(scene: &Scene<'_>) -> Result<u64> {
    scene.node().end_with(LowLevel::Ends)?;
    scene.reset()?;
    let tracer = ["strace", "-qq", "-o", "/dev/null", "-e", "trace=execve,exit_group", "-e"].map(OsString::from);
    let held = OsString::from("inject=execve,exit_group:delay_enter=40000");
    let tracer: Vec<OsString> = tracer.into_iter().chain([held]).collect();
    let mut command = scene.under(&tracer);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut strace = command.spawn().map_err(|e| Error::new(format!("cannot start strace: {e}")))?;
    let mut most = 0;
    while strace.try_wait().map_err(|e| Error::new(format!("cannot wait for strace: {e}")))?.is_none() {
        let children = format!("/proc/{0}/task/{0}/children", strace.id());
        let child = fs::read_to_string(children).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{}/status", child.trim())).unwrap_or_default();
        let told = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        if told("Name:").starts_with("quilt-gpu-runti") {
            let peak = told("VmHWM:").trim_end_matches(" kB").parse().unwrap_or(0);
            most = most.max(peak);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    if most == 0 { Err(Error::new("the process was not seen")) } else { Ok(most) }
}
