//! `quilt-gpu cdi generate`: this node's devices as a CDI file, for engines that put them in by themselves. Never from a node
//! that is not ready; a file that says the same already is left alone.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cdi::spec::{Encoding, Spec, read};
use contract::request::{Asked, Request, Source, Words};
use nix::unistd::{getegid, geteuid};
use node::{Mode, write_atomic};

use super::devices::{for_old_engines, made};
use super::{encoded, encoding, hooks};
use crate::cli::Context;
use crate::exit::{Exit, Failure};
use crate::inventory;
use crate::table;

/// The kind that NVIDIA's own tools write, too.
const NVIDIAS: &str = "nvidia.com/gpu";
/// Everybody reads it: engines run for users too.
const MODE: u32 = 0o644;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The vendor in the devices' kind
    #[arg(long, default_value = "quilt.gpu")]
    vendor: String,
    /// The class in the devices' kind
    #[arg(long, default_value = "device")]
    class: String,
    /// Which parts of the driver containers get [default: compute,utility]
    #[arg(long, value_name = "LIST")]
    capabilities: Option<String>,
    /// For engines that know CDI 0.3 only: leaves out what is newer, and says what is lost
    #[arg(long)]
    compat: bool,
    /// Adds hooks for images in which no bind leads to the libraries: links for other loaders, and the image's ld.so.cache
    #[arg(long)]
    hooks: bool,
    /// Writes the file here, in one step, instead of to stdout
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, context: Context<'_>) -> Result<Exit, Failure> {
    let encoding = encoding(Encoding::Json, context.format, args.output.as_deref())?;
    let request = request(args.capabilities.as_deref())?;
    shim::within_ceilings(&request, &context.setup.config)?;
    let kind = format!("{}/{}", args.vendor, args.class);
    let inventory = inventory::seen(&context.setup)?;
    let mut made = made(&inventory, &kind, &request, &context.setup.config.policy)?;
    let mut told: Vec<String> = made.without.iter().map(|why| format!("not in the file: {why}")).collect();
    if args.hooks {
        hooks::add(&mut made, &context.setup.hook());
    }
    if args.compat {
        told.extend(for_old_engines(&mut made.spec).into_iter().map(|lost| format!("--compat: {lost}")));
    }
    if kind == NVIDIAS {
        told.push(format!(
            "other programs write the kind {NVIDIAS} too (NVIDIA's toolkit, its operator): a device that two files of one \
             folder name is nobody's, and what they put in is no request to quilt-gpu"
        ));
    }
    let text = encoded(&usable(made.spec)?, encoding)?;
    for line in told {
        writeln!(context.err, "quilt-gpu: {}", table::one_line(&line))?;
    }
    match &args.output {
        None => context.out.write_all(text.as_bytes())?,
        Some(path) => store(path, text.as_bytes())?,
    }
    Ok(Exit::Done)
}

fn request(capabilities: Option<&str>) -> Result<Request, Failure> {
    let mut words = Words::default();
    words.set("count", "--count".to_owned(), "1".to_owned());
    if let Some(list) = capabilities {
        words.set("capabilities", "--capabilities".to_owned(), list.to_owned());
    }
    match words.ask(Source::CommandLine)? {
        Asked::Gpus(request) => Ok(request),
        Asked::Nothing | Asked::Reserved { .. } => Err(Failure::internal("a count is a request")),
    }
}

/// What we write is what we would read: a kind that is none comes to light here.
fn usable(spec: Spec) -> Result<Spec, Failure> {
    let text = encoded(&spec, Encoding::Json)?;
    read(text.as_bytes(), Encoding::Json).map_err(|problems| {
        let told: Vec<String> = problems.iter().map(|problem| problem.message.clone()).collect();
        Failure::Usage(format!("no CDI file can be made: {}", told.join("; ")))
    })
}

/// Engines read a file again whenever it changes: one that says the same is not touched.
fn store(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let about = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
    if about.is_some_and(|about| about.permissions().mode() & 0o7777 == MODE)
        && fs::read(path).is_ok_and(|old| old == bytes)
    {
        return Ok(());
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists()) {
        let failed = |cause| Failure::Internal(format!("cannot create {}: {cause}", folder.display()));
        DirBuilder::new().mode(0o755).create(folder).map_err(failed)?;
        // Whatever the caller's umask.
        fs::set_permissions(folder, Permissions::from_mode(0o755)).map_err(failed)?;
    }
    let mode = Mode { mode: MODE, uid: geteuid().as_raw(), gid: getegid().as_raw() };
    write_atomic(path, bytes, mode, true).map_err(Failure::internal)
}
